//! Fourteen faults of an earlier scheduler, each by its number: none may come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use dragnet_ambient::Cancel;
use dragnet_work::{
    Work, WorkContext, WorkError, WorkEvent, WorkOutcome, WorkScheduler, WorkSchedulerConfig, WorkSpec,
    WorkState, work_fn,
};
use tokio::sync::{Notify, mpsc};

use crate::kit::{
    Probe, Stopwatch, drain, error, pass, path_of, scheduler, scheduler_with, settle, spec, state,
    watched_scheduler,
};

use WorkState::{Aborting, Blocked, Cancelled, Failed, Retrying, Running, Success, Waiting};

fn ok(name: &str) -> WorkSpec {
    WorkSpec::new(work_fn(name, async |_| ()))
}

fn bad(name: &str) -> WorkSpec {
    WorkSpec::new(work_fn(name, async |_| WorkOutcome::failed("broken")))
}

#[tokio::test(start_paused = true)]
async fn fault_01_a_panic_fails_the_item_and_hangs_nothing() {
    let mut scheduler = scheduler(2);
    let panics = WorkSpec::new(work_fn("panics", async |_| -> () { panic!("at {}", "the disco") }));
    let panicking = scheduler.add(panics).unwrap();
    let after = scheduler.add(ok("after").after([panicking])).unwrap();
    let other = scheduler.add(ok("other")).unwrap();
    scheduler.run_until_done().await;
    assert_eq!([panicking, after, other].map(|id| state(&scheduler, id)), [Failed, Blocked, Success]);
    assert_eq!(error(&scheduler, panicking), "panicked: at the disco");
}

#[tokio::test(start_paused = true)]
async fn fault_02_a_pause_before_a_retry_holds_up_nobody_and_can_be_cancelled() {
    let mut scheduler = scheduler(1);
    let (retrying, calls) =
        Probe::new("retrying", |_, _| WorkOutcome::Retry { delay: Duration::from_secs(1000) });
    let retrying = scheduler.add(spec(retrying).retries(5)).unwrap();
    let other = scheduler.add(ok("other")).unwrap();
    let handle = scheduler.handle();
    let began = Stopwatch::start();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    handle.wait(other).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "the only slot was free for it");
    assert_eq!(handle.state(retrying), Some(Waiting));
    handle.cancel(retrying);
    run.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_eq!(handle.state(retrying), Some(Cancelled));
    assert_eq!(calls.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn fault_03_blocking_is_transitive() {
    let mut scheduler = scheduler(2);
    let root = scheduler.add(bad("root")).unwrap();
    let child = scheduler.add(ok("child").after([root])).unwrap();
    let grandchild = scheduler.add(ok("grandchild").after([child])).unwrap();
    scheduler.run_until_done().await;
    assert_eq!([root, child, grandchild].map(|id| state(&scheduler, id)), [Failed, Blocked, Blocked]);
    assert_eq!(error(&scheduler, grandchild), "'child' ended as blocked");
}

#[tokio::test(start_paused = true)]
async fn fault_04_unknown_self_and_cyclic_dependencies_are_refused_by_name() {
    let scheduler = scheduler(2);
    let foreign = {
        let other = crate::kit::scheduler(1);
        (0..9).map(|_| other.add(ok("x")).unwrap()).max().unwrap()
    };
    assert_eq!(
        scheduler.add(ok("a").after([foreign])),
        Err(WorkError::UnknownDependency { item: "a".into(), dependency: foreign })
    );
    let a = scheduler.add(ok("a")).unwrap();
    let b = scheduler.add(ok("b").after([a])).unwrap();
    let c = scheduler.add(ok("c").after([b])).unwrap();
    assert_eq!(scheduler.add_dependency(a, a), Err(WorkError::SelfDependency { item: "a".into() }));
    let cycle = scheduler.add_dependency(a, c).unwrap_err();
    assert_eq!(cycle, WorkError::Cycle { path: ["a", "c", "b", "a"].map(String::from).into() });
    assert_eq!(cycle.to_string(), "a dependency cycle: a -> c -> b -> a");
    assert_eq!(scheduler.metrics().total, 3, "nothing that was refused is there");
}

#[tokio::test(start_paused = true)]
async fn fault_05_a_dependent_added_after_the_failure_is_blocked() {
    let mut scheduler = scheduler(2);
    let root = scheduler.add(bad("root")).unwrap();
    scheduler.run_until_done().await;
    let late = scheduler.add(ok("late").after([root])).unwrap();
    assert_eq!(state(&scheduler, late), Blocked);
}

#[test]
fn fault_06_a_concurrency_of_zero_is_refused() {
    let config = WorkSchedulerConfig { max_concurrency: 0, ..Default::default() };
    assert_eq!(WorkScheduler::new(config).unwrap_err(), WorkError::ZeroConcurrency);
}

#[tokio::test(start_paused = true)]
async fn fault_07_missed_events_are_counted_and_none_is_sent_twice() {
    let (sender, mut receiver) = mpsc::channel::<WorkEvent>(4);
    let config = WorkSchedulerConfig { max_concurrency: 1, event_tx: Some(sender), ..Default::default() };
    let mut scheduler = scheduler_with(config);
    for n in 0..10 {
        scheduler.add(ok(&n.to_string())).unwrap();
    }
    let metrics = scheduler.run_until_done().await.metrics;
    let seen: Vec<_> = std::iter::from_fn(|| receiver.try_recv().ok()).collect();
    let missed: u64 = seen.iter().map(|event| event.missed).sum();
    assert_eq!(seen.len() as u64 + missed, 20, "running and success of ten items");
    assert_eq!(metrics.events_missed, missed);
    assert_eq!(seen.last().map(|event| (&*event.name, event.state)), Some(("9", Success)));
}

#[tokio::test(start_paused = true)]
async fn fault_07_a_cancelled_item_is_reported_once() {
    let (mut scheduler, mut events) = watched_scheduler(2);
    let (probe, _) = Probe::endless("endless");
    let id = scheduler.add(spec(probe)).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    settle().await;
    handle.cancel(id);
    handle.cancel(id);
    handle.cancel_all();
    run.await.unwrap();
    assert_eq!(path_of(&drain(&mut events), "endless"), [Running, Waiting, Aborting, Cancelled]);
}

#[tokio::test(start_paused = true)]
async fn fault_08_retries_used_up_leave_the_error_behind() {
    let (mut scheduler, mut events) = watched_scheduler(2);
    let why = scheduler.add(spec(Probe::failing("why", 1).0).retries(2)).unwrap();
    let (silent, _) = Probe::new("silent", |_, _| WorkOutcome::Retry { delay: Duration::ZERO });
    let silent = scheduler.add(spec(silent).retries(2)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(error(&scheduler, why), "no luck (gave up after 3 attempts)");
    assert_eq!(error(&scheduler, silent), "gave up after 3 attempts");
    assert_eq!(
        path_of(&drain(&mut events), "why"),
        [Running, Retrying, Waiting, Running, Retrying, Waiting, Running, Failed]
    );
}

#[tokio::test(start_paused = true)]
async fn fault_09_durations_follow_virtual_time() {
    let mut scheduler = scheduler(2);
    let work = work_fn("ten seconds", async |_| pass(Duration::from_secs(10)).await);
    let id = scheduler.add(WorkSpec::new(work)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(scheduler.inspect(id).unwrap().elapsed, Duration::from_secs(10));
}

/// A scheduler that looks at all items after each would need five billion looks here. What is counted is
/// work, not time: the items' own runs, in order.
#[tokio::test(start_paused = true)]
async fn fault_10_a_completion_costs_no_look_at_all_the_others() {
    const ITEMS: usize = 100_000;
    let mut scheduler = scheduler(16);
    let mut before = None;
    for n in 0..ITEMS {
        let spec = ok(if n == 0 { "first" } else { "next" }).after(before);
        before = Some(scheduler.add(spec).unwrap());
    }
    assert!(scheduler.run_until_done().await.all_succeeded());
}

#[tokio::test(start_paused = true)]
async fn fault_11_a_running_scheduler_can_be_looked_at() {
    let mut scheduler = scheduler(1);
    let gate = Arc::new(Notify::new());
    let opened = Arc::clone(&gate);
    let work = work_fn("busy", move |_| {
        let gate = Arc::clone(&opened);
        async move { gate.notified().await }
    });
    scheduler.add(WorkSpec::new(work)).unwrap();
    scheduler.add(ok("queued")).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    settle().await;
    let metrics = handle.metrics();
    assert_eq!((metrics.running, metrics.pending, metrics.slots_used), (1, 1, 1));
    let states: Vec<_> = handle.snapshot().iter().map(|item| item.state).collect();
    assert_eq!(states, [Running, WorkState::Pending]);
    gate.notify_one();
    run.await.unwrap();
    assert_eq!(handle.metrics().success, 2);
}

#[tokio::test(start_paused = true)]
async fn fault_12_items_start_in_the_order_in_which_they_were_added() {
    let mut scheduler = scheduler(1);
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let record = |n: u32| {
        let order = Arc::clone(&order);
        WorkSpec::new(work_fn(n.to_string(), move |_| {
            order.lock().unwrap().push(n);
            async {}
        }))
    };
    let root = scheduler.add(record(0)).unwrap();
    (1..50).for_each(|n| _ = scheduler.add(record(n).after([root])).unwrap());
    scheduler.run_until_done().await;
    assert_eq!(*order.lock().unwrap(), (0..50).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn fault_13_success_after_a_cancel_request_stays_success() {
    let (mut scheduler, mut events) = watched_scheduler(1);
    let started = Arc::new(Notify::new());
    let told = Arc::clone(&started);
    let work = work_fn("thorough", move |ctx: WorkContext| {
        let told = Arc::clone(&told);
        async move {
            told.notify_one();
            ctx.cancel_token().cancelled().await;
            assert!(ctx.is_cancelled());
            WorkOutcome::Success
        }
    });
    let id = scheduler.add(WorkSpec::new(work)).unwrap();
    let after = scheduler.add(ok("after").after([id])).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    started.notified().await;
    assert!(handle.cancel(id));
    run.await.unwrap();
    assert_eq!([id, after].map(|id| handle.state(id).unwrap()), [Success, Success]);
    assert_eq!(path_of(&drain(&mut events), "thorough"), [Running, Aborting, Success]);
}

#[tokio::test(start_paused = true)]
async fn fault_14_dropping_the_run_drops_what_it_runs() {
    struct Alive(Arc<AtomicBool>, Arc<Notify>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.store(false, Ordering::SeqCst);
            self.1.notify_one();
        }
    }
    let mut scheduler = scheduler(1);
    let (alive, started, dropped) =
        (Arc::new(AtomicBool::new(true)), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (flag, begun, gone) = (Arc::clone(&alive), Arc::clone(&started), Arc::clone(&dropped));
    let work = work_fn("endless", move |_| {
        let (held, begun) = (Alive(Arc::clone(&flag), Arc::clone(&gone)), Arc::clone(&begun));
        async move {
            begun.notify_one();
            std::future::pending::<()>().await;
            drop(held);
        }
    });
    let id = scheduler.add(WorkSpec::new(work)).unwrap();
    let next = scheduler.add(ok("next")).unwrap();
    let after = scheduler.add(ok("after").after([id])).unwrap();
    tokio::select! {
        biased;
        _ = scheduler.run_until_done() => unreachable!("it never ends"),
        () = started.notified() => {}
    }
    dropped.notified().await;
    assert!(!alive.load(Ordering::SeqCst));
    let end = scheduler.wait(id).await.unwrap();
    assert_eq!((end.state, end.error.as_deref()), (Cancelled, Some("its run was dropped")));
    assert_eq!([next, after].map(|id| state(&scheduler, id)), [WorkState::Pending, Blocked]);
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, next), Success, "what had not started is there for the next run");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_shuts_down_under_a_run_does_no_harm() {
    let scheduler = scheduler(1);
    let handle = scheduler.handle();
    let id =
        handle.add(WorkSpec::new(work_fn("endless", async |_| std::future::pending::<()>().await))).unwrap();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut scheduler = scheduler;
        let cancel = Cancel::new();
        runtime.block_on(async {
            tokio::select! {
                _ = scheduler.run_until_done_with_cancel(cancel) => {}
                () = settle() => {}
            }
        });
        drop(runtime);
    });
    thread.join().unwrap();
    assert_eq!(handle.state(id), Some(Cancelled));
}

/// An item whose future cannot even be made.
struct Unrunnable(Arc<AtomicU32>);

impl Work for Unrunnable {
    fn name(&self) -> &str {
        "unrunnable"
    }

    fn run<'a, 'b>(
        &'a mut self,
        _: WorkContext,
    ) -> std::pin::Pin<Box<dyn Future<Output = WorkOutcome> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        panic!("before the first poll")
    }

    fn on_failure_raise(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("and in a hook")
    }
}

#[tokio::test(start_paused = true)]
async fn panics_outside_the_future_are_caught_as_well() {
    let mut scheduler = scheduler(1);
    let raised = Arc::new(AtomicU32::new(0));
    let id = scheduler.add(WorkSpec::new(Unrunnable(Arc::clone(&raised)))).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, id), Failed);
    assert_eq!(error(&scheduler, id), "a hook panicked: and in a hook");
    assert_eq!(raised.load(Ordering::SeqCst), 1);
}
