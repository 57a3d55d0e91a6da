//! Using a scheduler while it runs, and the choices of a run.

use std::sync::Arc;
use std::time::Duration;

use dragnet_ambient::Cancel;
use dragnet_work::{
    OnFailure, OutputError, RunOptions, Until, WorkContext, WorkError, WorkOutcome, WorkScheduler, WorkSpec,
    WorkState, WorkWithCallback, work_fn,
};

use crate::kit::{Probe, Stopwatch, error, pass, scheduler, settle, spec, state, watched_scheduler};

use WorkState::{Blocked, Cancelled, Failed, Pending, Success, Waiting};

fn ok(name: &str) -> WorkSpec {
    WorkSpec::new(work_fn(name, async |_| ()))
}

fn serve(mut scheduler: WorkScheduler) -> tokio::task::JoinHandle<WorkScheduler> {
    tokio::spawn(async move {
        scheduler.run(RunOptions { until: Until::Shutdown, ..Default::default() }).await;
        scheduler
    })
}

#[tokio::test(start_paused = true)]
async fn a_handle_adds_cancels_and_waits_while_the_scheduler_serves() {
    let scheduler = scheduler(2);
    let handle = scheduler.handle();
    let run = serve(scheduler);
    assert_eq!(handle.execute_work(ok("one")).await.unwrap().state, Success);
    let endless = handle.add(spec(Probe::endless("endless").0)).unwrap();
    let after = handle.add(ok("after").after([endless])).unwrap();
    let waits = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait(after).await.unwrap() }
    });
    settle().await;
    handle.cancel(endless);
    let end = waits.await.unwrap();
    assert_eq!((end.state, end.error.as_deref()), (Blocked, Some("'endless' ended as cancelled")));
    handle.shutdown();
    run.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_handle_outlives_its_scheduler_without_hanging() {
    let scheduler = scheduler(2);
    let handle = scheduler.handle();
    let unstarted = handle.add(ok("never run")).unwrap();
    let waits = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait(unstarted).await.unwrap() }
    });
    settle().await;
    drop(scheduler);
    assert_eq!(waits.await.unwrap().state, Cancelled);
    assert!(matches!(handle.add(ok("later")), Err(WorkError::Aborting { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_scheduler_ends_what_had_started_and_its_events() {
    let (mut scheduler, mut events) = watched_scheduler(2);
    let handle = scheduler.handle();
    let (parent, _) = Probe::new("parent", |_, ctx| {
        ctx.add_child(spec(Probe::endless("child").0)).unwrap();
        WorkOutcome::wait_for_children()
    });
    let parent = handle.add(spec(parent)).unwrap();
    tokio::select! {
        biased;
        _ = scheduler.run_until_done() => unreachable!("it waits for ever"),
        () = settle() => {}
    }
    assert_eq!(handle.state(parent), Some(Waiting));
    drop(scheduler);
    let end = handle.wait(parent).await.unwrap();
    assert_eq!((end.state, end.error.as_deref()), (Cancelled, Some("its scheduler was dropped")));
    let mut last = None;
    while let Some(event) = events.recv().await {
        last = Some((event.name.to_string(), event.state));
    }
    assert_eq!(last, Some(("parent".to_owned(), Cancelled)), "the events end although a handle is left");
}

#[tokio::test(start_paused = true)]
async fn an_external_cancel_ends_everything_and_refuses_new_work_meanwhile() {
    let mut scheduler = scheduler(1);
    let (handle, cancel) = (scheduler.handle(), Cancel::new());
    let inner = handle.clone();
    let running = work_fn("running", move |ctx: WorkContext| {
        let handle = inner.clone();
        async move {
            ctx.cancel_token().cancelled().await;
            assert!(matches!(handle.add(ok("too late")), Err(WorkError::Aborting { .. })));
            WorkOutcome::Cancelled
        }
    });
    let running = handle.add(WorkSpec::new(running)).unwrap();
    let pending = handle.add(ok("pending")).unwrap();
    let token = cancel.clone();
    let run = tokio::spawn(async move {
        scheduler.run_until_done_with_cancel(token).await;
        scheduler
    });
    settle().await;
    cancel.cancel();
    let mut scheduler = run.await.unwrap();
    assert_eq!([running, pending].map(|id| state(&scheduler, id)), [Cancelled, Cancelled]);
    let later = scheduler.add(ok("later")).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, later), Success, "the next run is a new one");
}

#[tokio::test(start_paused = true)]
async fn fail_fast_cancels_the_rest_and_keep_going_does_not() {
    for (on_failure, expected) in [(OnFailure::KeepGoing, Success), (OnFailure::FailFast, Cancelled)] {
        let mut scheduler = scheduler(1);
        let failing =
            scheduler.add(WorkSpec::new(work_fn("bad", async |_| WorkOutcome::failed("x")))).unwrap();
        let others: Vec<_> = (0..3).map(|n| scheduler.add(ok(&n.to_string())).unwrap()).collect();
        scheduler.run(RunOptions { on_failure, ..Default::default() }).await;
        assert_eq!(state(&scheduler, failing), Failed);
        assert!(others.iter().all(|id| state(&scheduler, *id) == expected), "{on_failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_during_the_run_is_not_lost() {
    let mut scheduler = scheduler(1);
    let (probe, calls) = Probe::new("waiter", |at, ctx| {
        if at == 1 {
            // The answer comes before we have begun to wait for it.
            assert!(ctx.waker().wake());
            return WorkOutcome::wait();
        }
        WorkOutcome::Success
    });
    let id = scheduler.add(spec(probe)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!((state(&scheduler, id), calls.runs()), (Success, 2));
    assert!(!scheduler.wake(id), "what has ended is not woken");
}

#[tokio::test(start_paused = true)]
async fn a_waker_calls_back_and_is_harmless_afterwards() {
    let scheduler = scheduler(1);
    let handle = scheduler.handle();
    let (sender, mut wakers) = tokio::sync::mpsc::unbounded_channel();
    let (probe, _) = Probe::new("waiter", move |at, ctx| {
        if at == 1 {
            sender.send(ctx.waker()).unwrap();
            return WorkOutcome::wait();
        }
        WorkOutcome::Success
    });
    let id = handle.add(spec(probe)).unwrap();
    let run = serve(scheduler);
    let waker = wakers.recv().await.unwrap();
    settle().await;
    assert_eq!(handle.state(id), Some(Waiting));
    assert!(waker.wake());
    assert_eq!(handle.wait(id).await.unwrap().state, Success);
    handle.shutdown();
    drop((run.await.unwrap(), handle));
    assert!(!waker.wake());
}

#[tokio::test(start_paused = true)]
async fn waking_an_item_that_pauses_before_a_retry_tries_it_now() {
    let mut scheduler = scheduler(1);
    let (probe, calls) = Probe::new("impatient", |_, ctx| match ctx.attempt {
        1 => WorkOutcome::Retry { delay: Duration::from_secs(3600) },
        _ => WorkOutcome::Success,
    });
    let id = scheduler.add(spec(probe).retries(1)).unwrap();
    let handle = scheduler.handle();
    let began = Stopwatch::start();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    settle().await;
    assert_eq!(handle.status(id).unwrap(), "Retrying in 3600 sec: impatient");
    assert_eq!(handle.retry_eta(id), Some(Duration::from_secs(3600)));
    tokio::time::advance(Duration::from_millis(600_500)).await;
    assert_eq!(handle.status(id).unwrap(), "Retrying in 2999 sec: impatient");
    assert!(handle.wake(id));
    run.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(601));
    assert_eq!(calls.runs(), 2);
    assert_eq!(handle.status(id).unwrap(), "Succeeded: impatient");
}

#[tokio::test(start_paused = true)]
async fn restarting_a_failed_item_reopens_what_it_had_blocked() {
    let mut scheduler = scheduler(2);
    let mut runs = 0;
    let (probe, calls) = Probe::new("flaky", move |_, _| {
        runs += 1;
        if runs == 1 { WorkOutcome::failed("first time") } else { WorkOutcome::Success }
    });
    let flaky = scheduler.add(spec(probe)).unwrap();
    let other =
        scheduler.add(WorkSpec::new(work_fn("bad", async |_| WorkOutcome::failed("always")))).unwrap();
    let after = scheduler.add(ok("after").after([flaky])).unwrap();
    let both = scheduler.add(ok("both").after([flaky, other])).unwrap();
    let last = scheduler.add(ok("last").after([after])).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(
        [flaky, other, after, both, last].map(|id| state(&scheduler, id)),
        [Failed, Failed, Blocked, Blocked, Blocked]
    );
    assert_eq!(scheduler.restart(flaky), Ok(()));
    assert_eq!(
        [flaky, other, after, both, last].map(|id| state(&scheduler, id)),
        [Pending, Failed, Pending, Blocked, Pending]
    );
    assert_eq!(scheduler.restart(flaky), Err(WorkError::NotFinished { item: "flaky".into() }));
    scheduler.run_until_done().await;
    assert_eq!(
        [flaky, after, both, last].map(|id| state(&scheduler, id)),
        [Success, Success, Blocked, Success]
    );
    assert_eq!(calls.counts(), [2, 1, 0, 1, 0]);
    assert_eq!(error(&scheduler, flaky), "");
}

#[tokio::test(start_paused = true)]
async fn finished_items_can_be_forgotten_and_their_ids_stay_void() {
    let mut scheduler = scheduler(2);
    let first = scheduler.add(ok("first")).unwrap();
    let second = scheduler.add(ok("second").after([first])).unwrap();
    assert_eq!(scheduler.forget(first), Err(WorkError::NotFinished { item: "first".into() }));
    scheduler.run_until_done().await;
    let third = scheduler.add(ok("third").after([second])).unwrap();
    let refused = scheduler.forget(second);
    assert_eq!(refused, Err(WorkError::StillNeeded { item: "second".into(), dependent: "third".into() }));
    assert_eq!(scheduler.forget(first), Ok(()));
    assert_eq!((scheduler.state(first), scheduler.metrics().total), (None, 2));
    scheduler.run_until_done().await;
    assert_eq!(scheduler.forget_finished(), 2);
    // Enough of them that their places are used again.
    for round in 0..5 {
        let ids: Vec<_> = (0..2000).map(|n| scheduler.add(ok(&n.to_string())).unwrap()).collect();
        let chained = scheduler.add(ok("chained").after([ids[0], ids[1999]])).unwrap();
        scheduler.run_until_done().await;
        assert_eq!(state(&scheduler, chained), Success, "round {round}");
        assert_eq!(scheduler.forget_finished(), 2001);
        assert!(ids.iter().all(|id| scheduler.state(*id).is_none()));
    }
    assert_eq!([first, second, third].map(|id| scheduler.state(id)), [None; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_dependency_can_be_added_until_an_item_starts() {
    let mut scheduler = scheduler(4);
    let order = Arc::new(std::sync::Mutex::new(String::new()));
    let write = |name: &'static str| {
        let order = Arc::clone(&order);
        WorkSpec::new(work_fn(name, move |_| {
            order.lock().unwrap().push_str(name);
            async {}
        }))
    };
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| scheduler.add(write(name)).unwrap());
    scheduler.add_dependency(a, b).unwrap();
    scheduler.add_dependency(b, c).unwrap();
    scheduler.add_dependency(a, d).unwrap();
    scheduler.add_dependency(d, b).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(*order.lock().unwrap(), "cbda");
    assert_eq!(scheduler.add_dependency(a, b), Err(WorkError::AlreadyStarted { item: "a".into() }));
    assert_eq!(*scheduler.inspect(a).unwrap().deps, [b, d]);
}

#[tokio::test(start_paused = true)]
async fn outputs_reach_dependents_with_their_type() {
    let mut scheduler = scheduler(2);
    let source = scheduler
        .add(WorkSpec::new(work_fn("source", async |ctx: WorkContext| ctx.set_output(vec![1_u64, 2, 3]))))
        .unwrap();
    let durable = work_fn("durable", async |ctx: WorkContext| ctx.set_durable_output(&("text", 7)));
    let durable = scheduler.add(WorkSpec::new(durable)).unwrap();
    let silent = scheduler.add(ok("silent")).unwrap();
    let sink = work_fn("sink", move |ctx: WorkContext| async move {
        assert_eq!(*ctx.output::<Vec<u64>>(source).unwrap(), [1, 2, 3]);
        assert_eq!(ctx.durable_output::<(String, u8)>(durable), Ok(("text".to_owned(), 7)));
        assert_eq!(
            ctx.output::<String>(source),
            Err(OutputError::WrongType { id: source, wanted: "alloc::string::String" })
        );
        assert_eq!(ctx.output::<u64>(silent), Err(OutputError::Missing(silent)));
        assert!(matches!(ctx.durable_output::<u8>(durable), Err(OutputError::Encoding { .. })));
    });
    let sink = scheduler.add(WorkSpec::new(sink).after([source, durable, silent])).unwrap();
    scheduler.run_until_done().await;
    assert_eq!((state(&scheduler, sink), error(&scheduler, sink)), (Success, String::new()));
}

#[tokio::test(start_paused = true)]
async fn the_output_of_a_failed_attempt_is_not_kept() {
    let mut scheduler = scheduler(1);
    let work = work_fn("second time lucky", async |ctx: WorkContext| {
        if ctx.attempt == 1 {
            ctx.set_output("of a failed attempt");
            return WorkOutcome::retry("once more");
        }
        WorkOutcome::Success
    });
    let id = scheduler.add(WorkSpec::new(work).retries(1)).unwrap();
    let reader = work_fn("reader", move |ctx: WorkContext| async move {
        assert_eq!(ctx.output::<&str>(id), Err(OutputError::Missing(id)));
    });
    let reader = scheduler.add(WorkSpec::new(reader).after([id])).unwrap();
    scheduler.run_until_done().await;
    assert_eq!((state(&scheduler, reader), error(&scheduler, reader)), (Success, String::new()));
}

#[tokio::test(start_paused = true)]
async fn a_callback_hears_of_every_outcome() {
    let mut scheduler = scheduler(1);
    let heard = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&heard);
    let callback = Arc::new(move |outcome: &WorkOutcome, ctx: &WorkContext| {
        log.lock().unwrap().push((ctx.attempt, outcome.clone()));
    });
    let (probe, calls) = Probe::new("flaky", |_, ctx| match ctx.attempt {
        1 => WorkOutcome::retry("again"),
        _ => WorkOutcome::Success,
    });
    let id = scheduler.add(WorkSpec::new(WorkWithCallback::new(probe, callback)).retries(1)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, id), Success);
    assert_eq!(*heard.lock().unwrap(), [(1, WorkOutcome::retry("again")), (2, WorkOutcome::Success)]);
    assert_eq!(calls.counts(), [2, 1, 1, 0, 0], "the hooks of the inner work are called as well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_computation_does_not_keep_others_from_starting() {
    // Both block their threads until the other one is there. They are preceded by items so quick that a
    // single slot does them all, which must not leave the second one waiting for the first.
    let mut scheduler = scheduler(4);
    let quick: Vec<_> = (0..1000).map(|n| scheduler.add(ok(&n.to_string())).unwrap()).collect();
    let meeting = Arc::new(std::sync::Barrier::new(2));
    for name in ["one", "two"] {
        let meeting = Arc::clone(&meeting);
        let work = work_fn(name, move |_| {
            meeting.wait();
            async {}
        });
        scheduler.add(WorkSpec::new(work).after(quick.iter().copied())).unwrap();
    }
    assert!(scheduler.run_until_done().await.all_succeeded());
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_was_quick_and_now_pauses_keeps_nobody_waiting() {
    // On one thread: quick items, then one that pauses for an hour, and one that asks to be run again at
    // once, which the run itself has to see to.
    let mut scheduler = scheduler(2);
    let quick: Vec<_> = (0..100).map(|n| scheduler.add(ok(&n.to_string())).unwrap()).collect();
    let hour = work_fn("hour", async |_| pass(Duration::from_secs(3600)).await);
    scheduler.add(WorkSpec::new(hour).after(quick.iter().copied())).unwrap();
    let (again, _) = Probe::new("again", |at, _| match at {
        100 => WorkOutcome::Success,
        _ => WorkOutcome::wait_for(Duration::ZERO),
    });
    let again = scheduler.add(spec(again).after(quick)).unwrap();
    let handle = scheduler.handle();
    let began = Stopwatch::start();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    handle.wait(again).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    run.await.unwrap();
}
