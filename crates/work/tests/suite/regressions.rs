//! Corners in which a scheduler easily goes wrong, by subject. What goes wrong there is mostly a run that
//! never ends: such a test does not fail, it hangs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use dragnet_ambient::{Cancel, FakeClock, Rng};
use dragnet_work::{
    BatchWork, ConditionalWork, Journal, JournalError, JournalRecord, OnFailure, OutputError, RunCommandWork,
    RunOptions, SequenceWork, Until, Work, WorkContext, WorkError, WorkHandle, WorkId, WorkOutcome,
    WorkScheduler, WorkSchedulerConfig, WorkSchedulerMetrics, WorkSpec, WorkState, work_fn,
};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::kit::{
    Hooked, Probe, Stopwatch, WatchedClock, drain, error, named, open_journal, pass, scheduler,
    scheduler_with, settle, spec, state, watched_scheduler,
};

use WorkState::{Cancelled, Failed, Pending, Running, Success, Waiting};

const SECOND: Duration = Duration::from_secs(1);

fn ok(name: &str) -> WorkSpec {
    WorkSpec::new(work_fn(name, async |_| ()))
}

fn bad(name: &str) -> WorkSpec {
    WorkSpec::new(work_fn(name, async |_| WorkOutcome::failed("broken")))
}

/// Runs for a while and drops the run, with what it has in its slots.
async fn run_and_drop(scheduler: &mut WorkScheduler, after: Duration) {
    tokio::select! {
        biased;
        _ = scheduler.run_until_done() => unreachable!("it has more to do"),
        () = pass(after) => {}
    }
}

// Outputs

/// Runs everything, and says what a dependent of `of` gets from it.
async fn output_of(scheduler: &mut WorkScheduler, of: WorkId) -> Result<u32, OutputError> {
    let (sender, receiver) = mpsc::channel();
    let reader = work_fn("reader", move |ctx: WorkContext| {
        sender.send(ctx.output::<u32>(of).map(|value| *value)).unwrap();
        async {}
    });
    scheduler.execute_work(WorkSpec::new(reader).after([of])).await.unwrap();
    receiver.recv().unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_output_is_kept_through_later_steps_and_while_children_hold_up_the_success() {
    let mut scheduler = scheduler(2);
    let (source, _) = Probe::new("source", |at, ctx| {
        if at == 1 {
            ctx.set_output(7_u32);
            return WorkOutcome::Continue;
        }
        ctx.add_child(ok("child")).unwrap();
        WorkOutcome::Success
    });
    let source = scheduler.add(spec(source)).unwrap();
    assert_eq!(output_of(&mut scheduler, source).await, Ok(7));
    let (parent, _) = Probe::new("parent", |_, ctx| {
        ctx.add_child(ok("child")).unwrap();
        ctx.set_output(8_u32);
        WorkOutcome::Success
    });
    let parent = scheduler.add(spec(parent)).unwrap();
    assert_eq!(output_of(&mut scheduler, parent).await, Ok(8));
}

#[tokio::test(start_paused = true)]
async fn a_restart_drops_the_output_of_the_time_before() {
    let mut scheduler = scheduler(2);
    let mut first = true;
    let (source, _) = Probe::new("source", move |_, ctx| {
        if std::mem::take(&mut first) {
            ctx.set_output(7_u32);
        }
        WorkOutcome::Success
    });
    let source = scheduler.add(spec(source)).unwrap();
    assert_eq!(output_of(&mut scheduler, source).await, Ok(7));
    scheduler.restart(source).unwrap();
    assert_eq!(output_of(&mut scheduler, source).await, Err(OutputError::Missing(source)));
}

/// Asks the scheduler for a state when it is dropped.
struct Inquisitive(WorkHandle, WorkId, mpsc::Sender<Option<WorkState>>);

impl Drop for Inquisitive {
    fn drop(&mut self) {
        self.2.send(self.0.state(self.1)).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_dropped_by_the_scheduler_may_use_a_handle() {
    let mut scheduler = scheduler(1);
    let (sender, receiver) = mpsc::channel();
    let first = scheduler.add(ok("first")).unwrap();
    let captured = Inquisitive(scheduler.handle(), first, sender.clone());
    let work = work_fn("captures", move |_| {
        let _ = &captured;
        async {}
    });
    let captures = scheduler.add(WorkSpec::new(work)).unwrap();
    let (gives, _) = Probe::new("gives", move |_, ctx| {
        ctx.set_output(Inquisitive(ctx.handle().unwrap(), first, sender.clone()));
        WorkOutcome::failed("and its output is dropped")
    });
    scheduler.add(spec(gives)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(receiver.try_recv(), Ok(Some(Success)));
    scheduler.forget(captures).unwrap();
    assert_eq!(receiver.try_recv(), Ok(Some(Success)));
}

// Restarts

#[tokio::test(start_paused = true)]
async fn a_restart_is_refused_after_the_scheduler_is_gone() {
    let mut scheduler = scheduler(2);
    let id = scheduler.add(ok("done")).unwrap();
    scheduler.run_until_done().await;
    let handle = scheduler.handle();
    drop(scheduler);
    let refused = Err(WorkError::Aborting { item: "done".into(), owner: "the scheduler".into() });
    assert_eq!(handle.restart(id), refused);
    assert_eq!(handle.wait(id).await.unwrap().state, Success);
}

#[tokio::test(start_paused = true)]
async fn a_restart_does_not_close_a_cycle() {
    let mut scheduler = scheduler(2);
    let first = scheduler.add(ok("first")).unwrap();
    let second = scheduler.add(ok("second").after([first])).unwrap();
    scheduler.run_until_done().await;
    scheduler.restart(first).unwrap();
    // Fine as long as the second stays as it is: it has succeeded.
    let third = scheduler.add(ok("third").after([second])).unwrap();
    scheduler.add_dependency(first, third).unwrap();
    let path = ["second", "first", "third", "second"].map(String::from).into();
    assert_eq!(scheduler.restart(second), Err(WorkError::Cycle { path }));
    assert!(scheduler.run_until_done().await.all_succeeded());
}

#[tokio::test(start_paused = true)]
async fn a_dependent_is_not_restarted_as_a_child_of_what_it_depends_on() {
    let mut scheduler = scheduler(2);
    let mut first = true;
    let (parent, _) = Probe::new("parent", move |_, ctx| {
        if std::mem::take(&mut first) {
            return WorkOutcome::Success;
        }
        let dependent = named(&ctx.handle().unwrap(), "dependent");
        WorkOutcome::failed(ctx.restart_child(dependent).unwrap_err())
    });
    let parent = scheduler.add(spec(parent)).unwrap();
    scheduler.add(ok("dependent").after([parent])).unwrap();
    scheduler.run_until_done().await;
    scheduler.restart(parent).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(error(&scheduler, parent), "a dependency cycle: dependent -> parent -> dependent");
}

#[tokio::test(start_paused = true)]
async fn a_sequence_with_a_refused_element_fails_each_time_for_the_same_reason() {
    let mut scheduler = scheduler(1);
    let sequence = SequenceWork::new("sequence", [ok("heavy").weight(9)]);
    let id = scheduler.add(WorkSpec::new(sequence)).unwrap();
    for round in 0..2 {
        scheduler.run_until_done().await;
        let reason = "'heavy' has weight 9, but the scheduler has only 1 slots";
        assert_eq!((state(&scheduler, id), &*error(&scheduler, id)), (Failed, reason), "round {round}");
        scheduler.restart(id).unwrap();
    }
}

// Forgetting

#[tokio::test(start_paused = true)]
async fn the_children_of_an_unfinished_parent_are_not_forgotten() {
    let mut scheduler = scheduler(2);
    let (parent, _) = Probe::new("parent", |at, ctx| {
        if at > 1 {
            return WorkOutcome::Success;
        }
        ctx.add_child(ok("child")).unwrap();
        WorkOutcome::wait()
    });
    let parent = scheduler.add(spec(parent)).unwrap();
    scheduler.add(ok("other")).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move {
        scheduler.run_until_done().await;
        scheduler
    });
    settle().await;
    let child = named(&handle, "child");
    assert_eq!([parent, child].map(|id| handle.state(id)), [Some(Waiting), Some(Success)]);
    let needed = WorkError::StillNeeded { item: "child".into(), dependent: "parent".into() };
    assert_eq!(handle.forget(child), Err(needed));
    assert_eq!((handle.forget_finished(), handle.state(child)), (1, Some(Success)));
    assert!(handle.wake(parent));
    let scheduler = run.await.unwrap();
    assert_eq!((scheduler.forget_finished(), scheduler.metrics().total), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn forgetting_all_that_is_finished_disturbs_neither_sequence_nor_batch() {
    let batch = || (0..5).map(|n| ok(&n.to_string()));
    let composites = [
        WorkSpec::new(SequenceWork::new("composite", [ok("one"), ok("two")])),
        WorkSpec::new(BatchWork::new("composite", 2, batch)),
    ];
    for composite in composites {
        let mut scheduler = scheduler(1);
        let (sender, receiver) = mpsc::channel();
        let ear = work_fn("after", move |_| {
            sender.send(()).unwrap();
            async {}
        });
        let id = scheduler.add(composite).unwrap();
        scheduler.add(WorkSpec::new(ear).after([id])).unwrap();
        let (janitor, _) = Probe::new("janitor", |at, ctx| {
            ctx.handle().unwrap().forget_finished();
            if at == 200 { WorkOutcome::Success } else { WorkOutcome::Continue }
        });
        scheduler.add(spec(janitor)).unwrap();
        assert!(scheduler.run_until_done().await.all_succeeded());
        assert_eq!(receiver.try_recv(), Ok(()), "the composite has succeeded");
        assert_eq!(scheduler.metrics().total, 1, "only the janitor is left");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_leaves_forgotten_dependents_alone() {
    let mut scheduler = scheduler(2);
    let root = scheduler.add(bad("root")).unwrap();
    let dependent = scheduler.add(ok("dependent").after([root])).unwrap();
    scheduler.run_until_done().await;
    scheduler.forget(dependent).unwrap();
    scheduler.restart(root).unwrap();
    scheduler.run_until_done().await;
    assert_eq!((scheduler.metrics().total, scheduler.state(dependent)), (1, None));
}

#[tokio::test(start_paused = true)]
async fn a_restart_means_the_same_soon_and_long_after_a_dependency_was_forgotten() {
    let mut scheduler = scheduler(2);
    let root = scheduler.add(bad("root")).unwrap();
    let dependent = scheduler.add(ok("dependent").after([root])).unwrap();
    scheduler.run_until_done().await;
    scheduler.forget(root).unwrap();
    for _ in 0..2 {
        scheduler.restart(dependent).unwrap();
        scheduler.run_until_done().await;
        let end = scheduler.inspect(dependent).unwrap();
        assert_eq!((end.state, end.error, end.deps.len()), (Success, None, 0));
        // So many that the places of forgotten items are used again.
        let others: Vec<_> = (0..1100).map(|n| scheduler.add(ok(&n.to_string())).unwrap()).collect();
        scheduler.run_until_done().await;
        others.into_iter().for_each(|id| scheduler.forget(id).unwrap());
    }
}

// Children and hooks

#[tokio::test(start_paused = true)]
async fn the_context_of_an_earlier_turn_adds_no_children() {
    let mut scheduler = scheduler(2);
    let mut kept: Option<WorkContext> = None;
    let (parent, _) = Probe::new("parent", move |_, ctx| {
        let Some(earlier) = kept.take() else {
            kept = Some(ctx.clone());
            return WorkOutcome::Continue;
        };
        WorkOutcome::failed(earlier.add_child(ok("child")).unwrap_err())
    });
    let parent = scheduler.add(spec(parent)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(error(&scheduler, parent), "'child' was not added: its parent 'parent' is not running");
}

#[tokio::test(start_paused = true)]
async fn a_hook_adds_no_children_and_restarts_none() {
    let mut scheduler = scheduler(2);
    let refused = Arc::new(Mutex::new(BTreeMap::new()));
    let log = Arc::clone(&refused);
    let hook = move |hook: &'static str, ctx: &WorkContext| {
        let child = named(&ctx.handle().unwrap(), "child");
        log.lock().unwrap().insert(hook, [ctx.add_child(ok("late")).map(drop), ctx.restart_child(child)]);
    };
    let (succeeds, _) = Probe::new("succeeds", |at, ctx| {
        if at == 1 {
            ctx.add_child(ok("child")).unwrap();
        }
        ctx.children().status()
    });
    scheduler.add(WorkSpec::new(Hooked::new(succeeds, hook.clone()))).unwrap();
    scheduler.run_until_done().await;
    let aborted = scheduler.add(WorkSpec::new(Hooked::new(Probe::endless("aborted").0, hook))).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    settle().await;
    handle.cancel(aborted);
    run.await.unwrap();
    let refusals = |parent: &str| {
        ["late", "child"]
            .map(|item| Err(WorkError::ParentNotRunning { item: item.into(), parent: parent.into() }))
    };
    let expected = [("abort", refusals("aborted")), ("success", refusals("succeeds"))];
    assert_eq!(*refused.lock().unwrap(), BTreeMap::from(expected));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_parent_that_succeeds_over_cancelled_children_is_only_aborted() {
    let mut scheduler = scheduler(2);
    let (sender, hooks) = mpsc::channel();
    let parent = work_fn("parent", async |ctx: WorkContext| {
        ctx.add_child(spec(Probe::endless("child").0)).unwrap();
        ctx.cancel_token().cancelled().await;
        WorkOutcome::Success
    });
    let parent = Hooked::new(parent, move |hook, _| sender.send(hook).unwrap());
    let id = scheduler.add(WorkSpec::new(parent).retries(1)).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    settle().await;
    handle.cancel(id);
    run.await.unwrap();
    assert_eq!(handle.state(id), Some(Cancelled));
    assert_eq!(hooks.try_iter().collect::<Vec<_>>(), ["abort"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_success_hook_means_the_same_with_and_without_a_journal() {
    let folder = tempfile::tempdir().unwrap();
    for mut scheduler in [scheduler(2), journalled(&folder.path().join("journal"))] {
        let (sender, hooks) = mpsc::channel();
        let hook = move |hook, _: &WorkContext| {
            sender.send(hook).unwrap();
            assert_ne!(hook, "success", "not here");
        };
        let id = scheduler.add(WorkSpec::new(Hooked::new(Probe::steps("work", 1).0, hook))).unwrap();
        scheduler.run_until_done().await;
        assert_eq!(state(&scheduler, id), Failed);
        assert!(error(&scheduler, id).starts_with("a hook panicked: "), "{}", error(&scheduler, id));
        assert_eq!(hooks.try_iter().collect::<Vec<_>>(), ["success"]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_of_many_children_to_fail_stops_the_others() {
    const CHILDREN: usize = 2000;
    let mut scheduler = scheduler(1);
    let (parent, calls) = Probe::new("parent", |_, ctx| {
        (0..CHILDREN).for_each(|n| _ = ctx.add_child(bad(&n.to_string())).unwrap());
        WorkOutcome::Success
    });
    let parent = scheduler.add(spec(parent)).unwrap();
    let metrics = scheduler.run_until_done().await.metrics;
    assert_eq!((metrics.failed, metrics.cancelled, metrics.attempts), (2, CHILDREN - 1, 2));
    assert_eq!((&*error(&scheduler, parent), calls.counts()), ("'0' failed: broken", [1, 0, 0, 1, 0]));
}

#[tokio::test(start_paused = true)]
async fn each_of_many_finished_children_is_taken_once() {
    const CHILDREN: u32 = 2000;
    let mut scheduler = scheduler(4);
    let (parent, _) = Probe::new("parent", |at, ctx| {
        if at == 1 {
            (0..CHILDREN).for_each(|n| _ = ctx.add_child(ok(&n.to_string())).unwrap());
            return WorkOutcome::wait_for_children();
        }
        let [first, again] = [(); 2].map(|()| ctx.take_finished_children());
        assert_eq!((first.len(), again.len()), (CHILDREN as usize, 0));
        assert_eq!((ctx.children().total, ctx.children().succeeded), (CHILDREN, CHILDREN));
        WorkOutcome::Success
    });
    let parent = scheduler.add(spec(parent)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!((error(&scheduler, parent), scheduler.metrics().total), (String::new(), 1));
}

#[tokio::test(start_paused = true)]
async fn a_batch_does_not_wait_for_what_depends_on_its_children_and_on_itself() {
    let mut scheduler = scheduler(2);
    let batch = BatchWork::new("batch", 2, || {
        let (child, _) = Probe::new("child", |_, ctx| {
            let handle = ctx.handle().unwrap();
            handle.add(ok("dependent").after([ctx.id, named(&handle, "batch")])).unwrap();
            WorkOutcome::Success
        });
        [spec(child)]
    });
    scheduler.add(WorkSpec::new(batch)).unwrap();
    assert!(scheduler.run_until_done().await.all_succeeded());
    assert_eq!(state(&scheduler, named(&scheduler, "dependent")), Success);
}

#[tokio::test(start_paused = true)]
async fn a_sequence_between_two_attempts_shows_its_own_status() {
    let mut scheduler = scheduler(2);
    let sequence = WorkSpec::new(SequenceWork::new("sequence", [bad("element")]));
    let id = scheduler.add(sequence.retries(1).exponential_backoff()).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    settle().await;
    assert_eq!(handle.status(id).unwrap(), "Retrying in 1 sec: sequence");
    run.await.unwrap();
}

#[tokio::test]
async fn a_command_is_done_when_it_ends_though_others_go_on_writing_to_its_output() {
    let mut scheduler = scheduler(1);
    let work = RunCommandWork::new("sh", "sh", ["-c", "yes >&2 & exit 0"]);
    assert_eq!(scheduler.execute_work(WorkSpec::new(work)).await.unwrap().state, Success);
}

// Cancelling and waking

#[tokio::test(start_paused = true)]
async fn an_item_cancelled_in_its_slot_before_its_turn_is_not_run() {
    let mut scheduler = scheduler(2);
    let (first, _) = Probe::new("first", |_, ctx| {
        let handle = ctx.handle().unwrap();
        assert!(handle.cancel(named(&handle, "second")));
        WorkOutcome::Success
    });
    let first = scheduler.add(spec(first)).unwrap();
    let (second, calls) = Probe::steps("second", 1);
    let second = scheduler.add(spec(second)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!([first, second].map(|id| state(&scheduler, id)), [Success, Cancelled]);
    assert_eq!(calls.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_cancelled_from_the_start_starts_nothing() {
    let mut scheduler = scheduler(2);
    let (probe, calls) = Probe::steps("work", 1);
    let id = scheduler.add(spec(probe)).unwrap();
    let cancel = Cancel::new();
    cancel.cancel();
    scheduler.run_until_done_with_cancel(cancel).await;
    assert_eq!((state(&scheduler, id), calls.runs()), (Cancelled, 0));
}

#[tokio::test(start_paused = true)]
async fn an_item_that_shows_as_waiting_can_be_woken_more_than_once() {
    let mut scheduler = scheduler(1);
    let (waiter, calls) =
        Probe::new("waiter", |at, _| if at == 1 { WorkOutcome::wait() } else { WorkOutcome::Success });
    scheduler.add(spec(waiter)).unwrap();
    let (sender, answers) = mpsc::channel();
    let (alarm, _) = Probe::new("alarm", move |_, ctx| {
        let handle = ctx.handle().unwrap();
        let waiter = named(&handle, "waiter");
        (0..2).for_each(|_| sender.send((handle.state(waiter), handle.wake(waiter))).unwrap());
        WorkOutcome::Success
    });
    scheduler.add(spec(alarm)).unwrap();
    assert!(scheduler.run_until_done().await.all_succeeded());
    assert_eq!(answers.try_iter().collect::<Vec<_>>(), [(Some(Waiting), true); 2]);
    assert_eq!(calls.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_no_time_takes_none() {
    let mut scheduler = scheduler(2);
    let (probe, _) = Probe::new("hasty", |at, _| {
        if at > 100 { WorkOutcome::Success } else { WorkOutcome::wait_for(Duration::ZERO) }
    });
    scheduler.add(spec(probe)).unwrap();
    let began = Stopwatch::start();
    assert!(scheduler.run_until_done().await.all_succeeded());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

// Dropped runs

#[tokio::test(start_paused = true)]
async fn the_slots_of_a_dropped_run_take_nothing_from_the_next() {
    let mut scheduler = scheduler(1);
    let gate = Arc::new(Notify::new());
    let opened = Arc::clone(&gate);
    let first = work_fn("first", move |_| {
        let gate = Arc::clone(&opened);
        async move { gate.notified().await }
    });
    scheduler.add(WorkSpec::new(first)).unwrap();
    let second = scheduler.add(WorkSpec::new(work_fn("second", async |_| pass(SECOND).await))).unwrap();
    run_and_drop(&mut scheduler, SECOND).await;
    // The old slot could go on at this moment, and with the second item if it were let.
    gate.notify_one();
    scheduler.run_until_done().await;
    assert_eq!((state(&scheduler, second), error(&scheduler, second)), (Success, String::new()));
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_lost_its_run_says_so_in_spite_of_its_children() {
    let mut scheduler = scheduler(2);
    let parent = work_fn("parent", async |ctx: WorkContext| {
        ctx.add_child(WorkSpec::new(work_fn("child", async |_| std::future::pending::<()>().await))).unwrap();
        std::future::pending::<()>().await;
    });
    let id = scheduler.add(WorkSpec::new(parent)).unwrap();
    run_and_drop(&mut scheduler, SECOND).await;
    scheduler.run_until_done().await;
    assert_eq!((state(&scheduler, id), &*error(&scheduler, id)), (Cancelled, "its run was dropped"));
}

#[tokio::test(start_paused = true)]
async fn work_that_holds_a_handle_goes_with_its_scheduler() {
    let mut scheduler = scheduler(1);
    let sentinel = Arc::new(());
    let held = (scheduler.handle(), Arc::clone(&sentinel));
    let work = work_fn("holds", move |_| {
        let _ = &held;
        async {}
    });
    scheduler.add(WorkSpec::new(work)).unwrap();
    scheduler.run_until_done().await;
    drop(scheduler);
    assert_eq!(Arc::strong_count(&sentinel), 1);
}

const QUEUED: usize = 20_000;

/// Drops a runtime while four of very many endless items run on it. The scheduler stays.
fn drop_with_a_long_queue(runtime: Runtime) -> WorkSchedulerMetrics {
    let scheduler = scheduler(4);
    let (sender, mut started) = tokio::sync::mpsc::unbounded_channel();
    for n in 0..QUEUED {
        let sender = sender.clone();
        let work = work_fn(n.to_string(), move |_| {
            sender.send(()).unwrap();
            std::future::pending::<()>()
        });
        scheduler.add(WorkSpec::new(work)).unwrap();
    }
    let handle = scheduler.handle();
    let scheduler = Arc::new(tokio::sync::Mutex::new(scheduler));
    let ours = Arc::clone(&scheduler);
    runtime.spawn(async move { ours.lock().await.run_until_done().await });
    runtime.block_on(async {
        for _ in 0..4 {
            started.recv().await.unwrap();
        }
    });
    drop(runtime);
    handle.metrics()
}

#[test]
fn a_runtime_that_goes_away_leaves_a_long_queue_as_it_is() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let metrics = drop_with_a_long_queue(runtime);
    assert_eq!((metrics.cancelled, metrics.pending, metrics.slots_used), (4, QUEUED - 4, 0));
}

// Journal

fn journalled(path: &Path) -> WorkScheduler {
    scheduler(2).with_journal(open_journal(path)).unwrap()
}

/// Keeps nothing, and is interrupted at its first sync.
struct Interrupted<F>(Option<F>);

impl<F: FnOnce() + Send> Journal for Interrupted<F> {
    fn take_records(&mut self) -> Vec<JournalRecord> {
        Vec::new()
    }

    fn append(&mut self, _: &JournalRecord) -> Result<(), JournalError> {
        Ok(())
    }

    fn sync(&mut self) -> Result<(), JournalError> {
        self.0.take().into_iter().for_each(|interrupt| interrupt());
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn an_item_added_while_the_journal_is_synced_is_left_for_the_next_run() {
    let (sender, receiver) = mpsc::channel::<WorkHandle>();
    let add_late = move || {
        let late = WorkSpec::new(work_fn("late", async |_| pass(SECOND).await));
        receiver.recv().unwrap().add(late).unwrap();
    };
    let mut scheduler = scheduler(1).with_journal(Interrupted(Some(add_late))).unwrap();
    sender.send(scheduler.handle()).unwrap();
    scheduler.add(ok("first")).unwrap();
    scheduler.run_until_done().await;
    settle().await;
    assert_eq!(state(&scheduler, named(&scheduler, "late")), Pending);
    assert!(scheduler.run_until_done().await.all_succeeded());
}

#[tokio::test(start_paused = true)]
async fn forgetting_a_finished_twin_does_not_let_a_third_in() {
    let folder = tempfile::tempdir().unwrap();
    let mut scheduler = journalled(&folder.path().join("journal"));
    let first = scheduler.add(ok("twin")).unwrap();
    scheduler.run_until_done().await;
    scheduler.add(ok("twin")).unwrap();
    let refused = Err(WorkError::DuplicateDefinition { item: "twin".into() });
    assert_eq!(scheduler.add(ok("twin")), refused);
    scheduler.forget(first).unwrap();
    assert_eq!(scheduler.add(ok("twin")), refused);
}

#[tokio::test(start_paused = true)]
async fn ready_made_json_with_line_breaks_stays_one_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut scheduler = journalled(&path);
    let (probe, _) = Probe::new("raw", |_, ctx| {
        let raw = serde_json::value::RawValue::from_string("{\n\"a\": 1}".to_owned()).unwrap();
        ctx.set_durable_output(&raw).unwrap();
        WorkOutcome::Success
    });
    scheduler.add(spec(probe)).unwrap();
    assert!(scheduler.run_until_done().await.journal_error.is_none());
    drop(scheduler);
    let outputs = open_journal(&path).take_records().into_iter().map(|record| match record {
        JournalRecord::Done { output, .. } => output,
        JournalRecord::Undone { .. } => None,
    });
    assert_eq!(outputs.collect::<Vec<_>>(), [Some(r#"{"a":1}"#.to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn an_item_that_failed_after_a_restart_is_done_again_by_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let runs = Arc::new(AtomicU32::new(0));
    let second_time_unlucky = || {
        let runs = Arc::clone(&runs);
        spec(
            Probe::new("unlucky", move |_, _| match runs.fetch_add(1, Ordering::SeqCst) {
                1 => WorkOutcome::failed("the second time"),
                _ => WorkOutcome::Success,
            })
            .0,
        )
    };
    let mut first = journalled(&path);
    let id = first.add(second_time_unlucky()).unwrap();
    first.run_until_done().await;
    first.restart(id).unwrap();
    first.run_until_done().await;
    assert_eq!(state(&first, id), Failed);
    drop(first);
    let mut next = journalled(&path);
    next.add(second_time_unlucky()).unwrap();
    assert!(next.run_until_done().await.all_succeeded());
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_defined_anew_runs_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let runs = Arc::new(AtomicU32::new(0));
    for (definition, expected) in [("two files", 2), ("two files", 2), ("the same two, newer", 4)] {
        let mut scheduler = journalled(&path);
        let runs_in = Arc::clone(&runs);
        let batch = BatchWork::new("files", 2, move || {
            ["a", "b"].map(|name| {
                let runs = Arc::clone(&runs_in);
                spec(
                    Probe::new(name, move |_, _| {
                        runs.fetch_add(1, Ordering::SeqCst);
                        WorkOutcome::Success
                    })
                    .0,
                )
            })
        });
        scheduler.add(WorkSpec::new(batch).defined_by(definition)).unwrap();
        assert!(scheduler.run_until_done().await.all_succeeded());
        assert_eq!(runs.load(Ordering::SeqCst), expected, "{definition}");
    }
}

// Events

#[tokio::test(start_paused = true)]
async fn the_last_event_of_each_run_arrives_and_accounts_for_the_missed_ones() {
    let (sender, mut receiver) = tokio::sync::mpsc::channel(3);
    let config = WorkSchedulerConfig { max_concurrency: 1, event_tx: Some(sender), ..Default::default() };
    let mut scheduler = scheduler_with(config);
    for run in 0..3 {
        (0..5).for_each(|n| _ = scheduler.add(ok(&format!("{run}.{n}"))).unwrap());
        scheduler.run_until_done().await;
        let events: Vec<_> = std::iter::from_fn(|| receiver.try_recv().ok()).collect();
        let last = events.last().map(|event| (event.name.to_string(), event.state));
        assert_eq!(last, Some((format!("{run}.4"), Success)));
        let told: u64 = events.iter().map(|event| 1 + event.missed).sum();
        assert_eq!(told, 10, "running and success of five items");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restarted_item_is_pending_in_its_attempt_zero() {
    let (mut scheduler, mut events) = watched_scheduler(1);
    scheduler.add(ok("again")).unwrap();
    let (restarts, _) = Probe::new("restarts", |_, ctx| {
        let handle = ctx.handle().unwrap();
        handle.restart(named(&handle, "again")).unwrap();
        WorkOutcome::Success
    });
    scheduler.add(spec(restarts)).unwrap();
    assert!(scheduler.run_until_done().await.all_succeeded());
    let events: Vec<_> = drain(&mut events)
        .into_iter()
        .filter(|event| event.0 == "again")
        .map(|event| (event.1, event.2))
        .collect();
    assert_eq!(events, [(Running, 1), (Success, 1), (Pending, 0), (Running, 1), (Success, 1)]);
}

// Clocks

#[tokio::test(start_paused = true)]
async fn an_idle_scheduler_does_not_look_at_the_clock() {
    let clock = Arc::new(WatchedClock::default());
    let config = WorkSchedulerConfig { max_concurrency: 4, ..Default::default() };
    let mut scheduler =
        WorkScheduler::with_ambient(config, Arc::<WatchedClock>::clone(&clock), Rng::seeded(1)).unwrap();
    // So many that they are left to one slot, and somebody looks after that.
    (0..5000).for_each(|n| _ = scheduler.add(ok(&n.to_string())).unwrap());
    let handle = scheduler.handle();
    let run = tokio::spawn(async move {
        scheduler.run(RunOptions { until: Until::Shutdown, ..Default::default() }).await
    });
    pass(SECOND).await;
    let before = clock.looks();
    pass(SECOND * 3600).await;
    assert_eq!(clock.looks() - before, 0);
    handle.shutdown();
    assert!(run.await.unwrap().all_succeeded());
}

#[test]
fn a_fake_clock_needs_no_timers_of_the_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (config, clock) = (WorkSchedulerConfig::default(), Arc::new(FakeClock::new()));
    let mut scheduler = WorkScheduler::with_ambient(config, clock, Rng::seeded(1)).unwrap();
    scheduler.add(ok("work")).unwrap();
    assert!(runtime.block_on(scheduler.run_until_done()).all_succeeded());
}

// Threads

fn two_threads() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Keeps its thread for a moment.
fn spin(turns: u64) {
    (0..turns).for_each(|_| std::hint::spin_loop());
}

/// That nothing is left to do, and nothing is held.
fn assert_at_rest(handle: &WorkHandle, round: u64) {
    let metrics = handle.metrics();
    assert_eq!((metrics.slots_used, metrics.finished()), (0, metrics.total), "round {round}");
}

#[test]
fn two_items_that_need_each_other_get_their_threads_behind_quick_ones() {
    let runtime = two_threads();
    for _ in 0..50 {
        let mut scheduler = scheduler(2);
        (0..200).for_each(|n| _ = scheduler.add(ok(&n.to_string())).unwrap());
        let meeting = Arc::new(Barrier::new(2));
        for name in ["one", "two"] {
            let meeting = Arc::clone(&meeting);
            let (probe, _) = Probe::new(name, move |_, _| {
                meeting.wait();
                WorkOutcome::Success
            });
            scheduler.add(spec(probe)).unwrap();
        }
        // On one of the two threads that the items need.
        let run = runtime.spawn(async move { scheduler.run_until_done().await });
        assert!(runtime.block_on(run).unwrap().all_succeeded());
    }
}

#[test]
fn a_runtime_of_two_threads_that_goes_away_under_a_long_queue_loses_no_item() {
    let metrics = drop_with_a_long_queue(two_threads());
    assert_eq!((metrics.cancelled, metrics.pending, metrics.slots_used), (4, QUEUED - 4, 0));
}

#[test]
fn parents_end_whenever_their_children_do() {
    let runtime = two_threads();
    for round in 0..300 {
        let mut scheduler = scheduler(4);
        for n in 0..20 {
            let (parent, _) = Probe::new("parent", move |_, ctx| {
                ctx.add_child(ok("child")).unwrap();
                // About as long as it takes another thread to take the child up.
                spin((round + n) % 20 * 100);
                WorkOutcome::Success
            });
            scheduler.add(spec(parent)).unwrap();
        }
        assert!(runtime.block_on(scheduler.run_until_done()).all_succeeded());
        assert_at_rest(&scheduler, round);
    }
}

/// Does something else at each step, until it has had enough.
struct Whim {
    name: String,
    rng: Rng,
    /// How many generations may follow.
    depth: u32,
    steps: u32,
}

impl Whim {
    const STEPS_MAX: u32 = 6;

    fn have_children(&mut self, ctx: &WorkContext) -> WorkOutcome {
        let mut before = None;
        for child in several(&mut self.rng, self.depth) {
            let child = if self.rng.chance(33) { child.after(before) } else { child };
            match ctx.add_child(child) {
                Ok(id) => before = Some(id),
                Err(error) => return WorkOutcome::failed(error),
            }
        }
        match self.rng.between(0, 4) {
            0 => WorkOutcome::wait_for_children(),
            1 => WorkOutcome::wait_for_any_child(),
            2 => WorkOutcome::failed("with children"),
            _ => WorkOutcome::Success,
        }
    }
}

#[async_trait]
impl Work for Whim {
    fn name(&self) -> &str {
        &self.name
    }

    async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
        spin(self.rng.between(0, 3000));
        self.steps += 1;
        if self.steps > Self::STEPS_MAX {
            return WorkOutcome::Success;
        }
        let moment = Duration::from_micros(self.rng.between(0, 300));
        match self.rng.between(0, 14) {
            0..=4 => WorkOutcome::Success,
            5 => WorkOutcome::failed("on a whim"),
            6 => WorkOutcome::RetryBecause { error: "on a whim".to_owned(), delay: moment },
            7 => WorkOutcome::Continue,
            8 => WorkOutcome::wait_for(moment),
            9 => {
                pass(moment).await;
                WorkOutcome::Success
            }
            10 => {
                let waker = ctx.waker();
                std::thread::spawn(move || waker.wake());
                WorkOutcome::wait_for(Duration::from_millis(20))
            }
            // A panic, without its message on the screen.
            11 => std::panic::resume_unwind(Box::new("on a whim")),
            12 => {
                tokio::task::yield_now().await;
                WorkOutcome::Success
            }
            _ => self.have_children(&ctx),
        }
    }
}

/// Some items of any kind; at depth 0 none.
fn several(rng: &mut Rng, depth: u32) -> Vec<WorkSpec> {
    let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
    (0..rng.between(0, 4)).map(|_| anything(rng, depth)).collect()
}

/// An item of any kind, with up to so many generations below it.
fn anything(rng: &mut Rng, depth: u32) -> WorkSpec {
    let mut rng = rng.fork();
    let name = format!("{:x}", rng.next_u64());
    let [weight, retries] = [rng.between(1, 3), rng.between(0, 2)].map(|number| number as u32);
    let spec = match rng.between(0, 7) {
        0 => WorkSpec::new(SequenceWork::new(name, several(&mut rng, depth))),
        1 => WorkSpec::new(SequenceWork::new(name, several(&mut rng, depth)).keep_going()),
        2 => WorkSpec::new(BatchWork::new(name, 2, move || several(&mut rng, depth))),
        3 if depth > 0 => {
            let mut looks = rng.between(1, 4);
            let condition = move || {
                looks -= 1;
                looks == 0
            };
            let conditional = ConditionalWork::new(name, condition, anything(&mut rng, depth - 1));
            WorkSpec::new(conditional.poll_every(Duration::from_micros(200)))
        }
        4 => WorkSpec::new(Whim { name, rng, depth, steps: 0 }).timeout(Duration::from_micros(200)),
        _ => WorkSpec::new(Whim { name, rng, depth, steps: 0 }),
    };
    spec.weight(weight).retries(retries)
}

/// Some items of any kind, many of them after others.
fn add_anything(scheduler: &WorkScheduler, rng: &mut Rng) {
    let mut ids: Vec<WorkId> = Vec::new();
    for _ in 0..rng.between(5, 60) {
        let mut spec = anything(rng, 2).priority(rng.between(0, 4) as i8 - 2);
        for _ in 0..rng.between(0, 2) {
            spec = spec.after(any(&ids, rng).copied());
        }
        ids.push(scheduler.add(spec).unwrap());
    }
}

fn any<'a, T>(of: &'a [T], rng: &mut Rng) -> Option<&'a T> {
    let last = of.len().checked_sub(1)?;
    of.get(rng.between(0, last as u64) as usize)
}

/// Interferes from a thread of its own, with one item after the other.
fn meddle(handle: WorkHandle, mut rng: Rng) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for _ in 0..40 {
            spin(rng.between(0, 10_000));
            let items = handle.snapshot();
            let Some(id) = any(&items, &mut rng).map(|item| item.id) else { return };
            match rng.between(0, 4) {
                0 => _ = handle.cancel(id),
                1 => _ = handle.restart(id),
                2 => _ = handle.forget(id),
                3 => _ = handle.wake(id),
                _ => _ = handle.status(id),
            }
        }
    })
}

/// Runs to the end, perhaps after a first run that is dropped early.
async fn run_somehow(scheduler: &mut WorkScheduler, rng: &mut Rng) {
    if rng.chance(25) {
        let patience = rng.between(0, 200);
        tokio::select! {
            biased;
            _ = scheduler.run_until_done() => {}
            () = async { for _ in 0..patience { tokio::task::yield_now().await } } => {}
        }
    }
    let on_failure = if rng.chance(25) { OnFailure::FailFast } else { OnFailure::KeepGoing };
    scheduler.run(RunOptions { on_failure, ..Default::default() }).await;
}

#[test]
fn whatever_items_do_and_others_do_to_them_a_run_ends() {
    let runtime = two_threads();
    for round in 0..150 {
        let mut rng = Rng::seeded(round);
        let mut scheduler = scheduler_with(WorkSchedulerConfig {
            max_concurrency: 4,
            retry_delay: Duration::from_micros(100),
            event_tx: None,
        });
        add_anything(&scheduler, &mut rng);
        let meddlers = [(); 2].map(|()| meddle(scheduler.handle(), rng.fork()));
        runtime.block_on(run_somehow(&mut scheduler, &mut rng));
        meddlers.into_iter().for_each(|meddler| meddler.join().unwrap());
        // What was restarted after the end.
        runtime.block_on(scheduler.run_until_done());
        assert_at_rest(&scheduler, round);
    }
}
