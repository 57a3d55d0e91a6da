//! Parents, children and composites, beyond the model's own tests: its weaknesses are not ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use dragnet_work::{
    BatchWork, CallbackWork, ConditionalWork, RETRY_ONCE, RunCommandWork, SequenceWork, WorkContext,
    WorkError, WorkOutcome, WorkSpec, WorkState, work_fn,
};

use crate::kit::{Probe, drain, error, path_of, scheduler, settle, spec, state, watched_scheduler};

use WorkState::{Cancelled, Failed, Running, Success, Waiting};

fn ok(name: &str) -> WorkSpec {
    WorkSpec::new(work_fn(name, async |_| ()))
}

#[tokio::test(start_paused = true)]
async fn success_waits_for_the_children_that_are_still_running() {
    let (mut scheduler, mut events) = watched_scheduler(4);
    let (parent, calls) = Probe::new("parent", |_, ctx| {
        let (child, _) = Probe::new("child", |at, _| match at {
            1 => WorkOutcome::wait_for(Duration::from_secs(5)),
            _ => WorkOutcome::Success,
        });
        ctx.add_child(spec(child)).unwrap();
        WorkOutcome::Success
    });
    let id = scheduler.add(spec(parent)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, id), Success);
    assert_eq!(calls.counts(), [1, 1, 0, 0, 0]);
    let events = drain(&mut events);
    let end = |name: &str| events.iter().position(|event| event.0 == name && event.1 == Success).unwrap();
    assert!(end("child") < end("parent"));
    assert_eq!(path_of(&events, "parent"), [Running, Success]);
}

#[tokio::test(start_paused = true)]
async fn success_with_a_failed_child_is_a_failed_attempt() {
    let mut scheduler = scheduler(4);
    let (sibling, sibling_calls) = Probe::endless("sibling");
    let mut sibling = Some(sibling);
    let (parent, calls) = Probe::new("parent", move |_, ctx| {
        match sibling.take() {
            Some(sibling) => {
                ctx.add_child(spec(sibling)).unwrap();
                ctx.add_child(WorkSpec::new(work_fn("bad", async |_| WorkOutcome::failed("x")))).unwrap();
            }
            None => _ = ctx.add_child(ok("good")).unwrap(),
        }
        WorkOutcome::Success
    });
    let id = scheduler.add(spec(parent).retries(RETRY_ONCE)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, id), Success);
    assert_eq!(calls.counts(), [2, 1, 1, 0, 0]);
    assert_eq!(sibling_calls.counts()[4], 1, "the endless sibling was stopped");
    assert_eq!(scheduler.inspect(id).unwrap().attempts, 2);
}

#[tokio::test(start_paused = true)]
async fn a_child_cancelled_on_its_own_does_not_stall_its_parent() {
    let mut scheduler = scheduler(4);
    let (parent, _) = Probe::new("parent", |at, ctx| {
        if at == 1 {
            ctx.add_child(spec(Probe::endless("child").0)).unwrap();
        }
        ctx.children().status()
    });
    let id = scheduler.add(spec(parent)).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    settle().await;
    let child = handle.snapshot().into_iter().find(|item| item.parent == Some(id)).unwrap();
    assert_eq!(handle.status(id).unwrap(), "Waiting: parent : 0/1 children completed");
    handle.cancel(child.id);
    run.await.unwrap();
    assert_eq!(handle.state(id), Some(Failed));
    assert_eq!(
        handle.inspect(id).unwrap().error.unwrap(),
        "'child' ended as cancelled (gave up after 1 attempt)"
    );
}

#[tokio::test(start_paused = true)]
async fn a_sequence_element_cancelled_on_its_own_fails_the_sequence() {
    let mut scheduler = scheduler(4);
    let sequence = SequenceWork::new("sequence", [spec(Probe::endless("first").0), ok("second")]);
    let id = scheduler.add(WorkSpec::new(sequence)).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    settle().await;
    let element = handle.snapshot().into_iter().find(|item| item.parent == Some(id)).unwrap();
    handle.cancel(element.id);
    run.await.unwrap();
    assert_eq!(handle.state(id), Some(Failed));
}

#[tokio::test(start_paused = true)]
async fn a_sequence_told_to_keep_going_runs_all_and_fails_at_the_end() {
    let mut scheduler = scheduler(4);
    let (last, calls) = Probe::steps("last", 1);
    let elements = [spec(Probe::failing("first", 1).0), spec(last)];
    let id = scheduler.add(WorkSpec::new(SequenceWork::new("sequence", elements).keep_going())).unwrap();
    scheduler.run_until_done().await;
    assert_eq!((state(&scheduler, id), calls.runs()), (Failed, 1));
}

#[tokio::test(start_paused = true)]
async fn a_conditional_can_be_restarted_after_its_condition_was_dropped() {
    let mut scheduler = scheduler(4);
    let (inner, calls) = Probe::steps("inner", 1);
    let asked = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&asked);
    let condition = move || counter.fetch_add(1, Ordering::SeqCst) >= 2;
    let conditional = ConditionalWork::new("if", condition, spec(inner)).poll_every(Duration::from_secs(1));
    let id = scheduler.add(WorkSpec::new(conditional)).unwrap();
    scheduler.run_until_done().await;
    scheduler.restart(id).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, id), Success);
    assert_eq!(calls.runs(), 2);
    assert_eq!(asked.load(Ordering::SeqCst), 3, "once true, it is not asked again");
}

#[tokio::test(start_paused = true)]
async fn a_conditional_fails_as_its_inner_item_fails() {
    let mut scheduler = scheduler(4);
    let inner = WorkSpec::new(work_fn("inner", async |_| WorkOutcome::failed("broken")));
    let id = scheduler.add(WorkSpec::new(ConditionalWork::new("if", || true, inner))).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(error(&scheduler, id), "'inner' failed: broken (gave up after 1 attempt)");
}

#[tokio::test(start_paused = true)]
async fn children_completed_are_counted_anew_in_each_attempt() {
    let mut scheduler = scheduler(4);
    let (parent, _) = Probe::new("parent", |at, ctx| {
        if at == 1 {
            (0..2).for_each(|n| _ = ctx.add_child(ok(&format!("{}.{n}", ctx.attempt))).unwrap());
            return WorkOutcome::wait_for_children();
        }
        let children = ctx.children();
        assert_eq!((children.total, children.succeeded, children.all_successful()), (2, 2, true));
        if ctx.attempt == 3 { WorkOutcome::Success } else { WorkOutcome::retry("again") }
    });
    let id = scheduler.add(spec(parent).retries(2)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(error(&scheduler, id), "");
    assert_eq!(scheduler.status(id).unwrap(), "Succeeded: parent : 2/2 children completed");
}

#[tokio::test(start_paused = true)]
async fn a_child_may_not_wait_for_its_own_ancestors() {
    let mut scheduler = scheduler(4);
    let sink = Arc::new(std::sync::Mutex::new(Vec::new()));
    let refusals = Arc::clone(&sink);
    let (parent, _) = Probe::new("parent", move |_, ctx| {
        let dependent = ctx.handle().unwrap().add(ok("dependent").after([ctx.id])).unwrap();
        for on in [ctx.id, dependent] {
            refusals.lock().unwrap().push(ctx.add_child(ok("child").after([on])).unwrap_err().to_string());
        }
        WorkOutcome::Success
    });
    scheduler.add(spec(parent)).unwrap();
    assert!(scheduler.run_until_done().await.all_succeeded());
    assert_eq!(
        *sink.lock().unwrap(),
        [
            "a dependency cycle: child -> parent -> child",
            "a dependency cycle: child -> dependent -> parent -> child"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn children_may_depend_on_each_other_and_block_their_parent_by_failing() {
    let mut scheduler = scheduler(4);
    let (parent, _) = Probe::new("parent", |at, ctx| {
        if at == 1 {
            let bad = WorkSpec::new(work_fn("bad", async |_| WorkOutcome::failed("x")));
            let bad = ctx.add_child(bad).unwrap();
            ctx.add_child(ok("after").after([bad])).unwrap();
        }
        match ctx.children().all_done() {
            true => WorkOutcome::failed(ctx.children().first_failure.unwrap()),
            false => WorkOutcome::wait_for_any_child(),
        }
    });
    let id = scheduler.add(spec(parent)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(error(&scheduler, id), "'bad' failed: x");
}

#[tokio::test(start_paused = true)]
async fn a_context_that_outlives_its_turn_adds_no_children() {
    let mut scheduler = scheduler(4);
    let (sender, receiver) = std::sync::mpsc::channel();
    let (parent, _) = Probe::new("parent", move |_, ctx| {
        sender.send(ctx.clone()).unwrap();
        WorkOutcome::Success
    });
    scheduler.add(spec(parent)).unwrap();
    scheduler.run_until_done().await;
    let kept = receiver.recv().unwrap();
    let refused = kept.add_child(ok("late"));
    assert_eq!(refused, Err(WorkError::ParentNotRunning { item: "late".into(), parent: "parent".into() }));
}

#[tokio::test(start_paused = true)]
async fn a_failed_child_fails_its_batch_and_a_retry_begins_from_the_start() {
    let mut scheduler = scheduler(8);
    let made = Arc::new(AtomicU32::new(0));
    let healed = Arc::new(AtomicBool::new(false));
    let (counter, flag) = (Arc::clone(&made), Arc::clone(&healed));
    let batch = BatchWork::new("batch", 2, move || {
        let (counter, flag) = (Arc::clone(&counter), Arc::clone(&flag));
        (0..10_u32).map(move |n| {
            counter.fetch_add(1, Ordering::SeqCst);
            let flag = Arc::clone(&flag);
            WorkSpec::new(CallbackWork::new(format!("child {n}"), move |_: &WorkContext| {
                if n == 4 { flag.swap(true, Ordering::SeqCst) } else { true }
            }))
        })
    });
    let id = scheduler.add(WorkSpec::new(batch).retries(1)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(state(&scheduler, id), Success);
    let made = made.load(Ordering::SeqCst);
    assert!((10 + 5..=10 + 6).contains(&made), "five or six of the first try, ten of the second: {made}");
    assert!(scheduler.metrics().total <= 2, "at most the sibling of the failed child is remembered");
}

#[tokio::test(start_paused = true)]
async fn a_batch_refuses_two_children_of_one_name_at_a_time() {
    let mut scheduler = scheduler(8);
    let batch = BatchWork::new("batch", 4, || (0..3).map(|_| ok("twin")));
    let id = scheduler.add(WorkSpec::new(batch)).unwrap();
    scheduler.run_until_done().await;
    assert_eq!(error(&scheduler, id), "'twin' is already running in this batch");
}

#[tokio::test(start_paused = true)]
async fn an_empty_batch_succeeds() {
    let mut scheduler = scheduler(8);
    let batch = BatchWork::new("batch", 4, Vec::new);
    assert_eq!(scheduler.execute_work(WorkSpec::new(batch)).await.unwrap().state, Success);
}

#[tokio::test(start_paused = true)]
async fn a_long_batch_keeps_few_items_in_memory() {
    let mut scheduler = scheduler(8);
    let handle = scheduler.handle();
    let most = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&most);
    let batch = BatchWork::new("batch", 4, move || {
        let (handle, seen) = (handle.clone(), Arc::clone(&seen));
        (0..20_000).map(move |n| {
            let (handle, seen) = (handle.clone(), Arc::clone(&seen));
            WorkSpec::new(CallbackWork::new(n.to_string(), move |_: &WorkContext| {
                seen.fetch_max(handle.metrics().total as u32, Ordering::SeqCst);
            }))
        })
    });
    assert_eq!(scheduler.execute_work(WorkSpec::new(batch)).await.unwrap().state, Success);
    assert!(most.load(Ordering::SeqCst) <= 6, "{most:?}");
}

#[tokio::test(start_paused = true)]
async fn cancelling_a_parent_cancels_its_children_first() {
    let (mut scheduler, mut events) = watched_scheduler(8);
    let (parent, _) = Probe::new("parent", |_, ctx| {
        (0..2).for_each(|n| _ = ctx.add_child(spec(Probe::endless(&format!("child {n}")).0)).unwrap());
        WorkOutcome::wait_for_children()
    });
    let id = scheduler.add(spec(parent)).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    settle().await;
    assert_eq!(handle.state(id), Some(Waiting));
    handle.cancel(id);
    run.await.unwrap();
    let cancelled: Vec<_> =
        drain(&mut events).into_iter().filter(|event| event.1 == Cancelled).map(|event| event.0).collect();
    assert_eq!(cancelled, ["child 0", "child 1", "parent"]);
}

#[tokio::test]
async fn the_error_of_a_command_ends_with_what_it_said() {
    let mut scheduler = scheduler(2);
    let work = RunCommandWork::new("sh", "sh", ["-c", "echo first >&2; echo last words >&2; exit 3"]);
    let end = scheduler.execute_work(WorkSpec::new(work)).await.unwrap();
    assert_eq!(end.error.unwrap(), "exit status: 3: first\nlast words (gave up after 1 attempt)");
}

#[tokio::test]
async fn a_command_is_done_when_it_ends_though_others_hold_its_output_open() {
    let mut scheduler = scheduler(2);
    let work = RunCommandWork::new("sh", "sh", ["-c", "sleep 3 & exit 0"]);
    let end = scheduler.execute_work(WorkSpec::new(work)).await.unwrap();
    assert_eq!(end.state, Success);
}
