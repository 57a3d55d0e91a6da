//! The thirty-two behaviours of the model, each by its number.
//!
//! Where ours differs on purpose, the test says how. The main difference: the model cranks its items one
//! step at a time on one thread and cranks parents along with their children; here items run at the same
//! time, and a parent is called when its children have something to tell. So parents run less often
//! (13 to 15), and a process keeps its slot while it runs instead of waiting without one (20).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dragnet_work::{
    BatchWork, ConditionalWork, RETRY_A_FEW, RETRY_ONCE, RunCommandWork, RunOptions, SequenceWork, Until,
    Work, WorkContext, WorkError, WorkOutcome, WorkSpec, WorkState, work_fn,
};

use crate::kit::{
    Calls, Probe, Stopwatch, drain, error, path_of, scheduler, settle, spec, state, watched_scheduler,
};

use WorkState::{Aborting, Cancelled, Failed, Running, Success, Waiting};

// BasicWork

#[tokio::test(start_paused = true)]
async fn parity_01_an_item_of_three_steps_runs_three_times_and_succeeds_once() {
    let mut scheduler = scheduler(4);
    let (probe, calls) = Probe::steps("three", 3);
    let id = scheduler.add(spec(probe)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, id), Success);
    assert_eq!(calls.counts(), [3, 1, 0, 0, 0]);
    assert_eq!(calls.resets.load(Ordering::SeqCst), 1, "reset at the start, and not after success");
}

#[tokio::test(start_paused = true)]
async fn parity_02_two_items_take_turns() {
    let mut scheduler = scheduler(1);
    let order = Arc::new(std::sync::Mutex::new(String::new()));
    let mut all = Vec::new();
    for name in ["a", "b"] {
        let order = Arc::clone(&order);
        let (probe, calls) = Probe::new(name, move |at, _| {
            order.lock().unwrap().push_str(name);
            if at == 3 { WorkOutcome::Success } else { WorkOutcome::Continue }
        });
        scheduler.add(spec(probe)).unwrap();
        all.push(calls);
    }
    scheduler.run_until_done().await;
    assert_eq!(*order.lock().unwrap(), "ababab");
    assert!(all.iter().all(|calls| calls.counts() == [3, 1, 0, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn parity_03_a_waiting_item_is_woken_as_often_as_it_waits() {
    let (mut scheduler, mut events) = watched_scheduler(4);
    let (probe, calls) = Probe::new("waiter", |at, _| match at {
        5 => WorkOutcome::Success,
        _ => WorkOutcome::wait_for(Duration::from_millis(10)),
    });
    let id = scheduler.add(spec(probe)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, id), Success);
    assert_eq!(calls.counts(), [5, 1, 0, 0, 0]);
    let path = path_of(&drain(&mut events), "waiter");
    assert_eq!(path.iter().filter(|state| **state == Waiting).count(), 4);
    assert_eq!(path.iter().filter(|state| **state == Running).count(), 5);
}

#[tokio::test(start_paused = true)]
async fn parity_04_a_shutdown_while_waiting_never_fires_the_timer() {
    let mut scheduler = scheduler(4);
    let (probe, calls) = Probe::endless("sleeper");
    let id = scheduler.add(spec(probe)).unwrap();
    let handle = scheduler.handle();
    let clock = Stopwatch::start();
    let run = tokio::spawn(async move {
        scheduler.run_until_done().await;
        scheduler
    });
    settle().await;
    assert_eq!(handle.state(id), Some(Waiting));
    handle.shutdown();
    let scheduler = run.await.unwrap();
    assert_eq!(calls.counts(), [1, 0, 0, 0, 1]);
    assert_eq!((state(&scheduler, id), scheduler.scheduler_state()), (Cancelled, Cancelled));
    assert!(clock.elapsed() < Duration::from_secs(1), "nobody waited for the hour to pass");
}

#[tokio::test(start_paused = true)]
async fn parity_05_an_item_added_midway_runs_with_the_others() {
    let mut scheduler = scheduler(2);
    let (late, late_calls) = Probe::steps("late", 3);
    let mut late = Some(late);
    let (first, first_calls) = Probe::new("first", move |at, ctx| {
        if at == 2 {
            ctx.handle().unwrap().add(spec(late.take().unwrap())).unwrap();
        }
        if at == 4 { WorkOutcome::Success } else { WorkOutcome::Continue }
    });
    let (second, second_calls) = Probe::steps("second", 4);
    scheduler.add(spec(first)).unwrap();
    scheduler.add(spec(second)).unwrap();
    let report = scheduler.run_until_done().await;
    assert_eq!(report.metrics.success, 3);
    assert_eq!([&first_calls, &second_calls, &late_calls].map(|calls| calls.runs()), [4, 4, 3]);
}

#[tokio::test(start_paused = true)]
async fn parity_06_adding_wakes_an_idle_scheduler() {
    let mut scheduler = scheduler(2);
    let handle = scheduler.handle();
    let run = tokio::spawn(async move {
        scheduler.run(RunOptions { until: Until::Shutdown, ..Default::default() }).await;
    });
    settle().await;
    assert_eq!(handle.scheduler_state(), Waiting);
    let (probe, _) =
        Probe::new(
            "work",
            |at, _| {
                if at == 1_000_000 { WorkOutcome::Success } else { WorkOutcome::Continue }
            },
        );
    let id = handle.add(spec(probe)).unwrap();
    assert_eq!(handle.scheduler_state(), Running);
    handle.cancel(id);
    assert_eq!(handle.wait(id).await.unwrap().state, Cancelled);
    assert_eq!(handle.scheduler_state(), Waiting);
    handle.shutdown();
    run.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn parity_07_an_item_that_always_fails_is_retried_once_and_then_raised() {
    let mut scheduler = scheduler(2);
    let (probe, calls) = Probe::failing("unlucky", 3);
    let id = scheduler.add(spec(probe).retries(RETRY_ONCE)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, id), Failed);
    assert_eq!(calls.counts(), [6, 0, 1, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn parity_08_a_long_item_is_shut_down_once_and_the_scheduler_stays_usable() {
    let mut scheduler = scheduler(2);
    let (probe, calls) = Probe::new("long", |_, _| WorkOutcome::Continue);
    let id = scheduler.add(spec(probe)).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move {
        scheduler.run(RunOptions { until: Until::Shutdown, ..Default::default() }).await;
    });
    settle().await;
    assert!(handle.cancel(id));
    assert!(!handle.cancel(id), "a second request changes nothing");
    assert!(!handle.cancel(id));
    assert_eq!(handle.wait(id).await.unwrap().state, Cancelled);
    let [_, successes, retries, raises, aborts] = calls.counts();
    assert_eq!([successes, retries, raises, aborts], [0, 0, 0, 1]);
    assert_eq!(calls.resets.load(Ordering::SeqCst), 2, "at the start and after the abort");
    assert_eq!(handle.scheduler_state(), Waiting);
    let end = handle.execute_work(WorkSpec::new(work_fn("after", async |_| ()))).await.unwrap();
    assert_eq!(end.state, Success);
    handle.shutdown();
    run.await.unwrap();
}

// Work with children

/// A parent that adds its children in its first step and ends as they end.
struct Parent {
    name: String,
    children: Vec<WorkSpec>,
    calls: Arc<Calls>,
}

impl Parent {
    fn of(name: &str, children: Vec<WorkSpec>) -> (Self, Arc<Calls>) {
        let calls = Arc::new(Calls::default());
        (Self { name: name.to_owned(), children, calls: Arc::clone(&calls) }, calls)
    }
}

#[async_trait]
impl Work for Parent {
    fn name(&self) -> &str {
        &self.name
    }

    async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
        self.calls.runs.fetch_add(1, Ordering::SeqCst);
        for child in self.children.drain(..) {
            if let Err(error) = ctx.add_child(child) {
                return WorkOutcome::failed(error);
            }
        }
        match ctx.children().first_failure {
            Some(failure) => WorkOutcome::Failed(failure),
            None => ctx.children().status(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn parity_09_parents_and_leaves_succeed() {
    let (mut scheduler, mut events) = watched_scheduler(4);
    let leaves = |names: [&str; 2]| names.map(|name| spec(Probe::steps(name, 3).0)).into();
    let (left, _) = Parent::of("left", leaves(["l1", "l2"]));
    let (right, _) = Parent::of("right", leaves(["r1", "r2"]));
    let (main, _) = Parent::of("main", vec![WorkSpec::new(left), WorkSpec::new(right)]);
    let id = scheduler.add(WorkSpec::new(main)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, id), Success);
    assert_eq!(scheduler.scheduler_state(), Waiting);
    let events = drain(&mut events);
    for name in ["main", "left", "right", "l1", "l2", "r1", "r2"] {
        assert_eq!(path_of(&events, name).last(), Some(&Success), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn parity_10_a_failed_child_fails_its_parent_and_spares_the_other_subtree() {
    let mut scheduler = scheduler(4);
    let (unlucky, calls) = Probe::failing("unlucky", 2);
    let (left, _) = Parent::of("left", vec![spec(unlucky).retries(RETRY_ONCE)]);
    let (right, _) = Parent::of("right", vec![spec(Probe::steps("fine", 2).0)]);
    let left = scheduler.add(WorkSpec::new(left)).unwrap();
    let right = scheduler.add(WorkSpec::new(right)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(calls.counts(), [4, 0, 1, 1, 0]);
    assert_eq!([left, right].map(|id| state(&scheduler, id)), [Failed, Success]);
    assert_eq!(error(&scheduler, left), "'unlucky' failed: no luck (gave up after 2 attempts)");
    assert_eq!(scheduler.scheduler_state(), Waiting);
}

#[tokio::test(start_paused = true)]
async fn parity_11_a_failed_child_aborts_its_siblings_before_the_parent_fails() {
    let (mut scheduler, mut events) = watched_scheduler(4);
    let (sibling, sibling_calls) = Probe::endless("sibling");
    let (left, _) = Parent::of("left", vec![spec(Probe::failing("unlucky", 2).0), spec(sibling)]);
    let (right, _) = Parent::of("right", vec![spec(Probe::steps("fine", 9).0)]);
    let left = scheduler.add(WorkSpec::new(left)).unwrap();
    let right = scheduler.add(WorkSpec::new(right)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!([left, right].map(|id| state(&scheduler, id)), [Failed, Success]);
    assert_eq!(sibling_calls.counts()[4], 1);
    let events = drain(&mut events);
    let place = |name: &str, state| events.iter().position(|event| event.0 == name && event.1 == state);
    assert!(place("sibling", Cancelled).unwrap() < place("left", Failed).unwrap());
}

#[tokio::test(start_paused = true)]
async fn parity_12_a_scheduler_shutdown_aborts_everything_at_once() {
    let (mut scheduler, mut events) = watched_scheduler(4);
    let handle = scheduler.handle();
    let gate = Arc::new(tokio::sync::Notify::new());
    let opened = Arc::clone(&gate);
    let stubborn = work_fn("stubborn", move |ctx: WorkContext| {
        let gate = Arc::clone(&opened);
        async move {
            gate.notified().await;
            let refused = ctx.add_child(WorkSpec::new(work_fn("too late", async |_| ())));
            assert_eq!(
                refused,
                Err(WorkError::Aborting { item: "too late".into(), owner: "the scheduler".into() })
            );
            WorkOutcome::Cancelled
        }
    });
    let (parent, _) = Parent::of("parent", vec![WorkSpec::new(stubborn), spec(Probe::endless("sleeper").0)]);
    let id = handle.add(WorkSpec::new(parent)).unwrap();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    settle().await;
    handle.shutdown();
    let of = |name: &str| handle.snapshot().iter().find(|item| &*item.name == name).map(|item| item.state);
    assert_eq!([of("parent"), of("stubborn"), of("sleeper")], [Some(Aborting); 3]);
    assert!(!handle.wake(id), "waking what is being aborted does nothing");
    gate.notify_one();
    run.await.unwrap();
    assert_eq!(handle.scheduler_state(), Cancelled);
    let refused = handle.add(WorkSpec::new(work_fn("later", async |_| ())));
    assert_eq!(refused, Err(WorkError::Aborting { item: "later".into(), owner: "the scheduler".into() }));
    let events = drain(&mut events);
    for name in ["parent", "stubborn", "sleeper"] {
        assert_eq!(path_of(&events, name).last(), Some(&Cancelled), "{name}");
    }
}

// Run counts: a parent runs once to add its children and once when they have ended, whatever they do.

#[tokio::test(start_paused = true)]
async fn parity_13_a_tree_of_three_levels_runs_each_parent_twice() {
    let mut scheduler = scheduler(1);
    let (leaf, leaf_calls) = Probe::steps("leaf", 5);
    let (middle, middle_calls) = Parent::of("middle", vec![spec(leaf)]);
    let (main, main_calls) = Parent::of("main", vec![WorkSpec::new(middle)]);
    scheduler.add(WorkSpec::new(main)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!([&leaf_calls, &middle_calls, &main_calls].map(|calls| calls.runs()), [5, 2, 2]);
}

#[tokio::test(start_paused = true)]
async fn parity_14_more_leaves_do_not_add_parent_runs() {
    let mut scheduler = scheduler(4);
    let leaves = (0..50).map(|n| spec(Probe::steps(&format!("leaf {n}"), 3).0)).collect();
    let (parent, calls) = Parent::of("parent", leaves);
    scheduler.add(WorkSpec::new(parent)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(calls.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn parity_15_a_linked_list_of_parents_costs_two_runs_a_link() {
    let mut scheduler = scheduler(1);
    let (mut inner, mut all) = (spec(Probe::steps("leaf", 4).0), Vec::new());
    for name in ["w3", "w2", "w1"] {
        let (parent, calls) = Parent::of(name, vec![inner]);
        inner = WorkSpec::new(parent);
        all.push(calls);
    }
    scheduler.add(inner).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(all.iter().map(|calls| calls.runs()).collect::<Vec<_>>(), [2, 2, 2]);
}

#[tokio::test(start_paused = true)]
async fn parity_16_a_flat_sequence_runs_each_element_once() {
    let mut scheduler = scheduler(4);
    let (probes, calls): (Vec<_>, Vec<_>) = (0..5).map(|n| Probe::steps(&format!("w{n}"), 1)).unzip();
    let sequence = SequenceWork::new("sequence", probes.into_iter().map(spec));
    scheduler.add(WorkSpec::new(sequence)).unwrap();
    scheduler.run_until_done().await;
    assert!(calls.iter().all(|calls| calls.runs() == 1));
}

// RunCommandWork

#[tokio::test]
async fn parity_17_a_command_succeeds() {
    let mut scheduler = scheduler(4);
    let end = scheduler.execute_work(WorkSpec::new(RunCommandWork::new("date", "date", [""; 0]))).await;
    assert_eq!(end.unwrap().state, Success);
}

#[tokio::test]
async fn parity_18_a_command_runs_beside_other_work() {
    let mut scheduler = scheduler(2);
    scheduler.add(WorkSpec::new(RunCommandWork::new("date", "date", [""; 0]))).unwrap();
    let (probe, calls) = Probe::steps("other", 20);
    scheduler.add(spec(probe)).unwrap();
    assert!(scheduler.run_until_done().await.all_succeeded());
    assert_eq!(calls.runs(), 20);
}

#[tokio::test(start_paused = true)]
async fn parity_19_an_invalid_command_fails_after_its_retries() {
    let mut scheduler = scheduler(4);
    let work = RunCommandWork::new("bad", "/no/such/program", [""; 0]);
    let id = scheduler.add(WorkSpec::new(work).retries(2)).unwrap();
    scheduler.run_until_done().await;
    let item = scheduler.inspect(id).unwrap();
    assert_eq!((item.state, item.attempts), (Failed, 3));
    let error = item.error.unwrap();
    assert!(error.starts_with("cannot run \"/no/such/program\": "), "{error}");
    assert!(error.ends_with("(gave up after 3 attempts)"), "{error}");
}

/// A process keeps its slot, and so reads as running, since slots are what bounds processes.
#[tokio::test]
async fn parity_20_an_aborted_command_leaves_no_process_behind() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("pids");
    let status = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(status.success());
    let mut scheduler = scheduler(4);
    // The shell starts a process of its own, tells us both, and waits.
    let script = "sleep 1000 & echo $$ $! > \"$0\"; wait";
    let work = RunCommandWork::new("sleep", "sh", ["-c", script, fifo.to_str().unwrap()]);
    let id = scheduler.add(WorkSpec::new(work)).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    let told = tokio::task::spawn_blocking(move || std::fs::read_to_string(fifo)).await.unwrap().unwrap();
    assert_eq!(handle.state(id), Some(Running));
    handle.cancel(id);
    assert_eq!(handle.wait(id).await.unwrap().state, Cancelled);
    run.await.unwrap();
    for pid in told.split_whitespace() {
        wait_until_gone(pid).await;
    }
}

/// The grandchild is reaped by whoever inherits it, which takes a moment of its own; dead it is at once.
async fn wait_until_gone(pid: &str) {
    let is_alive = || {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
    };
    for _ in 0..1_000_000 {
        if !is_alive() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("process {pid} is still there");
}

// WorkSequence

#[tokio::test(start_paused = true)]
async fn parity_21_a_sequence_keeps_strict_order() {
    let mut scheduler = scheduler(4);
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let element = |n: u32| {
        let order = Arc::clone(&order);
        let (probe, _) = Probe::new(&format!("w{n}"), move |at, _| {
            order.lock().unwrap().push((n, at));
            if at == 2 { WorkOutcome::Success } else { WorkOutcome::Continue }
        });
        spec(probe)
    };
    let sequence = SequenceWork::new("sequence", (1..=3).map(element));
    let end = scheduler.execute_work(WorkSpec::new(sequence)).await.unwrap();
    assert_eq!(end.state, Success);
    assert_eq!(*order.lock().unwrap(), [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]);
}

#[tokio::test(start_paused = true)]
async fn parity_22_an_empty_sequence_succeeds() {
    let mut scheduler = scheduler(4);
    let end = scheduler.execute_work(WorkSpec::new(SequenceWork::new("empty", []))).await.unwrap();
    assert_eq!(end.state, Success);
}

#[tokio::test(start_paused = true)]
async fn parity_23_a_sequence_whose_first_element_fails_never_runs_the_rest() {
    let mut scheduler = scheduler(4);
    let (first, first_calls) = Probe::failing("w1", 3);
    let (second, second_calls) = Probe::steps("w2", 3);
    let elements = [spec(first).retries(RETRY_ONCE), spec(second)];
    let id = scheduler.add(WorkSpec::new(SequenceWork::new("seq", elements)).retries(RETRY_A_FEW)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, id), Failed);
    assert_eq!(first_calls.runs(), 3 * 2 * 6);
    assert_eq!(second_calls.runs(), 0);
    assert_eq!(
        error(&scheduler, id),
        "'w1' failed: no luck (gave up after 2 attempts) (gave up after 6 attempts)"
    );
}

#[tokio::test(start_paused = true)]
async fn parity_24_a_sequence_that_fails_midway_restarts_from_its_first_element() {
    let mut scheduler = scheduler(4);
    let (first, first_calls) = Probe::steps("w1", 3);
    let (second, second_calls) = Probe::failing("w2", 3);
    let (third, third_calls) = Probe::steps("w3", 3);
    let elements = [spec(first), spec(second).retries(RETRY_ONCE), spec(third)];
    let id = scheduler.add(WorkSpec::new(SequenceWork::new("seq", elements)).retries(RETRY_A_FEW)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, id), Failed);
    assert_eq!(first_calls.counts(), [3 * 6, 6, 0, 0, 0]);
    assert_eq!(second_calls.runs(), 3 * 2 * 6);
    assert_eq!(third_calls.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn parity_25_a_shutdown_aborts_a_sequence() {
    let mut scheduler = scheduler(4);
    let (current, calls) = Probe::endless("current");
    let (later, later_calls) = Probe::steps("later", 1);
    let sequence = SequenceWork::new("sequence", [spec(current), spec(later)]);
    let id = scheduler.add(WorkSpec::new(sequence)).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move {
        scheduler.run_until_done().await;
        scheduler
    });
    settle().await;
    assert_eq!(handle.status(id).unwrap(), "Waiting: current", "a sequence shows its current element");
    handle.shutdown();
    let scheduler = run.await.unwrap();
    assert_eq!(state(&scheduler, id), Cancelled);
    assert_eq!((calls.counts()[4], later_calls.runs()), (1, 0));
}

// BatchWork

/// Counts how many of its kind are alive, and how many were at most.
#[derive(Clone, Default)]
struct Gauge {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

struct Counted(Gauge);

impl Gauge {
    fn enter(&self) -> Counted {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        Counted(self.clone())
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn parity_26_a_batch_never_exceeds_its_width() {
    let mut scheduler = scheduler(64);
    let in_flight = Gauge::default();
    let gauge = in_flight.clone();
    let batch = BatchWork::new("batch", 5, move || {
        let gauge = gauge.clone();
        (0..200).map(move |n| {
            let gauge = gauge.clone();
            let work = work_fn(format!("child {n}"), move |_| {
                let counted = gauge.enter();
                async move {
                    tokio::task::yield_now().await;
                    drop(counted);
                }
            });
            WorkSpec::new(work)
        })
    });
    let end = scheduler.execute_work(WorkSpec::new(batch)).await.unwrap();
    assert_eq!(end.state, Success);
    assert_eq!(in_flight.most(), 5);
}

#[tokio::test(start_paused = true)]
async fn parity_27_a_shutdown_aborts_a_batch_and_each_child_succeeds_or_is_aborted() {
    let (mut scheduler, mut events) = watched_scheduler(64);
    let batch = BatchWork::new("batch", 8, || {
        (0..1000_u64).map(|n| {
            let (probe, _) = Probe::new(&format!("child {n}"), move |at, _| {
                if at > n as u32 % 7 {
                    WorkOutcome::Success
                } else {
                    WorkOutcome::wait_for(Duration::from_secs(n))
                }
            });
            spec(probe)
        })
    });
    let id = scheduler.add(WorkSpec::new(batch)).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move {
        scheduler.run_until_done().await;
        scheduler
    });
    tokio::time::advance(Duration::from_secs(40)).await;
    settle().await;
    handle.shutdown();
    let scheduler = run.await.unwrap();
    assert_eq!(state(&scheduler, id), Cancelled);
    let events = drain(&mut events);
    let mut last = std::collections::BTreeMap::new();
    for (name, state, _) in events.iter().filter(|event| event.0.starts_with("child")) {
        last.insert(name.clone(), *state);
    }
    assert!(last.values().all(|state| matches!(state, Success | Cancelled)), "{last:?}");
    assert!(last.values().any(|state| *state == Success) && last.values().any(|state| *state == Cancelled));
}

// ConditionalWork

#[tokio::test(start_paused = true)]
async fn parity_28_a_condition_that_holds_at_once_runs_the_inner_item() {
    let mut scheduler = scheduler(4);
    let (inner, calls) = Probe::steps("inner", 2);
    let end = scheduler.execute_work(WorkSpec::new(ConditionalWork::new("if", || true, spec(inner)))).await;
    assert_eq!(end.unwrap().state, Success);
    assert_eq!(calls.counts(), [2, 1, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn parity_29_a_condition_that_can_never_hold_is_aborted_with_its_failed_source() {
    let (mut scheduler, mut events) = watched_scheduler(4);
    let (inner, calls) = Probe::steps("inner", 1);
    let conditional = ConditionalWork::new("if", || false, spec(inner));
    let (source, _) = Probe::failing("source", 3);
    let (parent, _) = Parent::of("parent", vec![WorkSpec::new(conditional), spec(source)]);
    let id = scheduler.add(WorkSpec::new(parent)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, id), Failed);
    assert_eq!(path_of(&drain(&mut events), "if").last(), Some(&Cancelled));
    assert_eq!(calls.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn parity_30_a_shutdown_while_polling_never_starts_the_inner_item() {
    let mut scheduler = scheduler(4);
    let (inner, calls) = Probe::steps("inner", 1);
    let id = scheduler.add(WorkSpec::new(ConditionalWork::new("if", || false, spec(inner)))).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    settle().await;
    assert_eq!(handle.status(id).unwrap(), "Waiting before starting if");
    handle.shutdown();
    assert_eq!(run.await.unwrap().metrics.cancelled, 1);
    assert_eq!(calls.counts(), [0; 5]);
}

#[tokio::test(start_paused = true)]
async fn parity_31_a_shutdown_after_the_start_aborts_the_inner_item_too() {
    let mut scheduler = scheduler(4);
    let (blocker, _) = Probe::steps("blocker", 2);
    let blocker = scheduler.add(spec(blocker)).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&done);
    let (inner, calls) = Probe::endless("inner");
    let conditional = ConditionalWork::new("if", move || flag.load(Ordering::SeqCst), spec(inner));
    let id = scheduler.add(WorkSpec::new(conditional)).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    handle.wait(blocker).await.unwrap();
    done.store(true, Ordering::SeqCst);
    tokio::time::advance(Duration::from_millis(100)).await;
    settle().await;
    assert_eq!(calls.runs(), 1);
    handle.shutdown();
    run.await.unwrap();
    assert_eq!([blocker, id].map(|id| handle.state(id).unwrap()), [Success, Cancelled]);
    assert_eq!(calls.counts()[4], 1);
}

#[tokio::test(start_paused = true)]
async fn parity_32_a_satisfied_condition_is_dropped_so_that_memory_stays_bounded() {
    const WIDTH: usize = 4;
    let mut scheduler = scheduler(64);
    let alive = Gauge::default();
    let gauge = alive.clone();
    let batch = BatchWork::new("batch", WIDTH, move || {
        let gauge = gauge.clone();
        // Each condition keeps the work before it alive, as long as the condition itself lives.
        let mut before = Arc::new(gauge.enter());
        (0..100).map(move |n| {
            let kept = std::mem::replace(&mut before, Arc::new(gauge.enter()));
            let own = Arc::clone(&before);
            let inner = work_fn(format!("inner {n}"), move |_| {
                let own = Arc::clone(&own);
                async move { drop(own) }
            });
            let condition = move || Arc::strong_count(&kept) > 0;
            WorkSpec::new(ConditionalWork::new(format!("if {n}"), condition, WorkSpec::new(inner)))
        })
    });
    let end = scheduler.execute_work(WorkSpec::new(batch)).await.unwrap();
    assert_eq!(end.state, Success);
    assert!(alive.most() <= 2 * (WIDTH + 1), "{} alive at most", alive.most());
}
