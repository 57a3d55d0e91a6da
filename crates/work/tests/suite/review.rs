//! Review: each test states what should hold; the failing ones are findings.
#![allow(warnings, clippy::all)]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use dragnet_ambient::{Cancel, Clock, FakeClock, Monotonic, Rng, SystemClock};
use dragnet_work::*;
use tokio::sync::{Notify, mpsc};

use crate::kit::*;

const S: Duration = Duration::from_secs(1);

async fn within<F: Future>(secs: u64, f: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(secs), f).await.expect("hang")
}

// 1. output set in an earlier step, or before children end
#[tokio::test(start_paused = true)]
async fn r01_output_survives_a_later_step() {
    let mut s = scheduler(2);
    let mut step = 0;
    let a = s
        .add(WorkSpec::new(work_fn("a", move |ctx: WorkContext| {
            step += 1;
            let n = step;
            async move {
                if n == 1 {
                    ctx.set_output(7_u32);
                    WorkOutcome::Continue
                } else {
                    WorkOutcome::Success
                }
            }
        })))
        .unwrap();
    let got = Arc::new(Mutex::new(None));
    let g = got.clone();
    s.add(
        WorkSpec::new(work_fn("b", move |ctx: WorkContext| {
            *g.lock().unwrap() = Some(ctx.output::<u32>(a).map(|v| *v));
            async {}
        }))
        .after([a]),
    )
    .unwrap();
    within(10, s.run_until_done()).await;
    assert_eq!(*got.lock().unwrap(), Some(Ok(7)));
}

#[tokio::test(start_paused = true)]
async fn r02_output_survives_success_with_live_children() {
    let mut s = scheduler(2);
    let a = s
        .add(WorkSpec::new(work_fn("a", |ctx: WorkContext| async move {
            ctx.add_child(WorkSpec::new(work_fn("child", async |_| ()))).unwrap();
            ctx.set_output(7_u32);
            WorkOutcome::Success
        })))
        .unwrap();
    let got = Arc::new(Mutex::new(None));
    let g = got.clone();
    s.add(
        WorkSpec::new(work_fn("b", move |ctx: WorkContext| {
            *g.lock().unwrap() = Some(ctx.output::<u32>(a).map(|v| *v));
            async {}
        }))
        .after([a]),
    )
    .unwrap();
    within(10, s.run_until_done()).await;
    assert_eq!(*got.lock().unwrap(), Some(Ok(7)));
}

// 2. stale output after restart
#[tokio::test(start_paused = true)]
async fn r03_a_restart_drops_the_old_output() {
    let mut s = scheduler(2);
    let mut n = 0;
    let a = s
        .add(WorkSpec::new(work_fn("a", move |ctx: WorkContext| {
            n += 1;
            if n == 1 {
                ctx.set_output(7_u32)
            }
            async {}
        })))
        .unwrap();
    s.run_until_done().await;
    s.restart(a).unwrap();
    s.run_until_done().await;
    let got = Arc::new(Mutex::new(None));
    let g = got.clone();
    s.add(
        WorkSpec::new(work_fn("b", move |ctx: WorkContext| {
            *g.lock().unwrap() = Some(ctx.output::<u32>(a).map(|v| *v));
            async {}
        }))
        .after([a]),
    )
    .unwrap();
    within(10, s.run_until_done()).await;
    assert_eq!(*got.lock().unwrap(), Some(Err(OutputError::Missing(a))));
}

// 3. old context adds a child in a later turn
#[tokio::test(start_paused = true)]
async fn r04_a_parent_waits_for_a_child_added_through_an_older_context() {
    let mut s = scheduler(2);
    let mut kept: Option<WorkContext> = None;
    let p = s
        .add(WorkSpec::new(work_fn("p", move |ctx: WorkContext| {
            let out = match kept.take() {
                None => {
                    kept = Some(ctx);
                    WorkOutcome::Continue
                }
                Some(old) => {
                    old.add_child(WorkSpec::new(work_fn("child", async |_| {
                        pass(S).await;
                        WorkOutcome::failed("x")
                    })))
                    .unwrap();
                    WorkOutcome::Success
                }
            };
            async move { out }
        })))
        .unwrap();
    within(10, s.run_until_done()).await;
    assert_eq!(state(&s, p), WorkState::Failed);
}

// 4. restart after shutdown
#[tokio::test(start_paused = true)]
async fn r05_restart_is_refused_after_shutdown_or_ends() {
    let mut s = scheduler(2);
    let a = s.add(WorkSpec::new(work_fn("a", async |_| ()))).unwrap();
    s.run_until_done().await;
    let h = s.handle();
    drop(s);
    if h.restart(a).is_ok() {
        within(100, h.wait(a)).await.unwrap();
    }
}

// 5. dropping scheduler with paused items
#[tokio::test(start_paused = true)]
async fn r06_waiters_learn_when_the_scheduler_is_dropped() {
    let mut s = scheduler(2);
    let (p, _) = Probe::endless("e");
    let a = s.add(spec(p)).unwrap();
    let h = s.handle();
    _ = tokio::time::timeout(S, s.run_until_done()).await;
    assert_eq!(h.state(a), Some(WorkState::Waiting));
    drop(s);
    within(100, h.wait(a)).await.unwrap();
}

// 6. restart-made cycle
#[tokio::test(start_paused = true)]
async fn r07_a_restart_cannot_close_a_cycle() {
    let mut s = scheduler(2);
    let ok = |n: &'static str| WorkSpec::new(work_fn(n, async |_| ()));
    let i = s.add(ok("i")).unwrap();
    let d = s.add(ok("d").after([i])).unwrap();
    s.run_until_done().await;
    s.restart(i).unwrap();
    let e = s.add(ok("e").after([d])).unwrap();
    s.add_dependency(i, e).unwrap();
    _ = s.restart(d);
    within(100, s.run_until_done()).await;
}

#[tokio::test(start_paused = true)]
async fn r08_restart_child_cannot_close_a_cycle() {
    let mut s = scheduler(2);
    let c_id = Arc::new(Mutex::new(None::<WorkId>));
    let c2 = c_id.clone();
    let p = s
        .add(WorkSpec::new(work_fn("p", move |ctx: WorkContext| {
            let c = *c2.lock().unwrap();
            async move {
                if ctx.children().has_children() {
                    return ctx.children().status();
                }
                if let Some(c) = c
                    && ctx.handle().unwrap().state(c) == Some(WorkState::Success)
                {
                    if let Err(e) = ctx.restart_child(c) {
                        return WorkOutcome::failed(e);
                    }
                    return WorkOutcome::wait_for_children();
                }
                WorkOutcome::Success
            }
        })))
        .unwrap();
    let c = s.add(WorkSpec::new(work_fn("c", async |_| ())).after([p])).unwrap();
    *c_id.lock().unwrap() = Some(c);
    s.run_until_done().await;
    s.restart(p).unwrap();
    within(100, s.run_until_done()).await;
}

// 7. forget_finished vs sequence/batch
#[tokio::test]
async fn r09_forget_finished_does_not_hang_a_sequence() {
    let mut s = scheduler(1);
    let e = |n: &'static str| WorkSpec::new(work_fn(n, async |_| ()));
    let seq = s.add(WorkSpec::new(SequenceWork::new("seq", [e("e1"), e("e2")]))).unwrap();
    // steps between, forgetting finished things each time
    let mut n = 0;
    s.add(WorkSpec::new(work_fn("janitor", move |ctx: WorkContext| {
        n += 1;
        ctx.handle().unwrap().forget_finished();
        let out = if n == 200 { WorkOutcome::Success } else { WorkOutcome::Continue };
        async move { out }
    })))
    .unwrap();
    if tokio::time::timeout(S, s.run_until_done()).await.is_err() {
        panic!("hang")
    }
}

#[tokio::test]
async fn r10_forget_finished_does_not_hang_a_batch() {
    let mut s = scheduler(1);
    let seq = s
        .add(WorkSpec::new(BatchWork::new("batch", 2, || {
            (0..5).map(|n| WorkSpec::new(work_fn(format!("b{n}"), async |_| ())))
        })))
        .unwrap();
    let mut n = 0;
    s.add(WorkSpec::new(work_fn("janitor", move |ctx: WorkContext| {
        n += 1;
        ctx.handle().unwrap().forget_finished();
        let out = if n == 200 { WorkOutcome::Success } else { WorkOutcome::Continue };
        async move { out }
    })))
    .unwrap();
    if tokio::time::timeout(S, s.run_until_done()).await.is_err() {
        panic!("hang")
    }
}

// 8. batch with a dependent of its child that also depends on the batch
#[tokio::test]
async fn r11_a_dependent_of_a_batch_child_does_not_hang_the_batch() {
    let mut s = scheduler(2);
    let batch_id = Arc::new(Mutex::new(None::<WorkId>));
    let b2 = batch_id.clone();
    let b = s
        .add(WorkSpec::new(BatchWork::new("batch", 2, move || {
            let b3 = b2.clone();
            (0..1).map(move |n| {
                let b3 = b3.clone();
                WorkSpec::new(work_fn(format!("b{n}"), move |ctx: WorkContext| {
                    let b = b3.lock().unwrap().unwrap();
                    ctx.handle()
                        .unwrap()
                        .add(WorkSpec::new(work_fn("y", async |_| ())).after([ctx.id, b]))
                        .unwrap();
                    async {}
                }))
            })
        })))
        .unwrap();
    *batch_id.lock().unwrap() = Some(b);
    if tokio::time::timeout(S, s.run_until_done()).await.is_err() {
        panic!("hang")
    }
}

// 9. sequence restarted after a refused element
#[tokio::test]
async fn r12_a_sequence_with_a_refused_element_can_be_restarted() {
    let mut s = scheduler(1);
    let seq = s
        .add(WorkSpec::new(SequenceWork::new(
            "seq",
            [WorkSpec::new(work_fn("heavy", async |_| ())).weight(9)],
        )))
        .unwrap();
    s.run_until_done().await;
    assert_eq!(state(&s, seq), WorkState::Failed);
    s.restart(seq).unwrap();
    if tokio::time::timeout(S, s.run_until_done()).await.is_err() {
        panic!("hang")
    }
}

// 10. quadratic cancel
fn rss_mb() -> u64 {
    let t = std::fs::read_to_string("/proc/self/status").unwrap();
    t.lines()
        .find(|l| l.starts_with("VmHWM"))
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        / 1024
}
#[tokio::test]
async fn r13_a_failed_child_among_many_is_cheap() {
    let before = rss_mb();
    let started = std::time::Instant::now();
    let mut s = scheduler(1);
    let p = s
        .add(WorkSpec::new(work_fn("p", |ctx: WorkContext| async move {
            for n in 0..10_000 {
                ctx.add_child(WorkSpec::new(work_fn(format!("c{n}"), async |_| WorkOutcome::failed("x"))))
                    .unwrap();
            }
            WorkOutcome::Success
        })))
        .unwrap();
    s.run_until_done().await;
    let (mb, t) = (rss_mb() - before, started.elapsed());
    assert!(mb < 100 && t < S, "{mb} MB, {t:?}");
}

#[tokio::test]
async fn r14_taking_many_finished_children_is_cheap() {
    let mut s = scheduler(4);
    let took = Arc::new(Mutex::new(Duration::ZERO));
    let t2 = took.clone();
    let p = s
        .add(WorkSpec::new(work_fn("p", move |ctx: WorkContext| {
            let t2 = t2.clone();
            async move {
                if ctx.children().has_children() {
                    let t = std::time::Instant::now();
                    ctx.take_finished_children();
                    *t2.lock().unwrap() = t.elapsed();
                    return WorkOutcome::Success;
                }
                for n in 0..std::env::var("N").map_or(10_000, |n| n.parse().unwrap()) {
                    ctx.add_child(WorkSpec::new(work_fn("c", async |_| ()))).unwrap();
                }
                WorkOutcome::wait_for_children()
            }
        })))
        .unwrap();
    s.run_until_done().await;
    let t = *took.lock().unwrap();
    assert!(t < Duration::from_millis(300), "{t:?}");
}

// 11. unattended stuck -> 1ms polling
#[derive(Debug)]
struct Counting(SystemClock, AtomicU64);
impl Clock for Counting {
    fn now(&self) -> Monotonic {
        self.1.fetch_add(1, SeqCst);
        self.0.now()
    }
    fn wall(&self) -> std::time::SystemTime {
        self.0.wall()
    }
    fn sleep_until(&self, d: Monotonic) -> dragnet_ambient::Sleep {
        self.0.sleep_until(d)
    }
}
#[tokio::test(start_paused = true)]
async fn r15_an_idle_scheduler_does_not_poll() {
    let clock = Arc::new(Counting(SystemClock::new(), AtomicU64::new(0)));
    let mut s = WorkScheduler::with_ambient(
        WorkSchedulerConfig { max_concurrency: 4, ..Default::default() },
        clock.clone(),
        Rng::seeded(1),
    )
    .unwrap();
    for n in 0..5000 {
        s.add(WorkSpec::new(work_fn("q", async |_| ()))).unwrap();
    }
    let h = s.handle();
    let t =
        tokio::spawn(async move { s.run(RunOptions { until: Until::Shutdown, ..Default::default() }).await });
    pass(S).await;
    let before = clock.1.load(SeqCst);
    pass(S * 10).await;
    let polls = clock.1.load(SeqCst) - before;
    h.shutdown();
    t.await.unwrap();
    assert!(polls < 10, "{polls} looks in 10 idle seconds");
}

// 12. old occupant takes an item of the new run
#[tokio::test(start_paused = true)]
async fn r16_a_new_run_is_not_hurt_by_the_slots_of_the_old() {
    let mut s = scheduler(1);
    let go = Arc::new(Notify::new());
    let g = go.clone();
    s.add(WorkSpec::new(work_fn("a", move |_| {
        let g = g.clone();
        async move {
            g.notified().await;
        }
    })))
    .unwrap();
    let b = s.add(WorkSpec::new(work_fn("b", async |_| pass(S).await))).unwrap();
    _ = tokio::time::timeout(S, s.run_until_done()).await;
    go.notify_one();
    within(100, s.run_until_done()).await;
    assert_eq!(state(&s, b), WorkState::Success, "{}", error(&s, b));
}

// 13. added at the end of a run
struct SlowSync(Box<dyn FnMut() + Send>);
impl Journal for SlowSync {
    fn take_records(&mut self) -> Vec<JournalRecord> {
        Vec::new()
    }
    fn append(&mut self, _: &JournalRecord) -> Result<(), JournalError> {
        Ok(())
    }
    fn sync(&mut self) -> Result<(), JournalError> {
        (self.0)();
        Ok(())
    }
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_an_item_added_while_the_journal_is_synced_is_left_for_the_next_run() {
    let handle: Arc<Mutex<Option<WorkHandle>>> = Arc::default();
    let h2 = handle.clone();
    let added: Arc<Mutex<Option<WorkId>>> = Arc::default();
    let a2 = added.clone();
    let mut s = scheduler(1)
        .with_journal(SlowSync(Box::new(move || {
            if a2.lock().unwrap().is_some() {
                return;
            }
            let h = h2.lock().unwrap().clone().unwrap();
            *a2.lock().unwrap() = Some(
                h.add(WorkSpec::new(work_fn("late", async |_| {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                })))
                .unwrap(),
            );
        })))
        .unwrap();
    *handle.lock().unwrap() = Some(s.handle());
    s.add(WorkSpec::new(work_fn("a", async |_| ()))).unwrap();
    s.run_until_done().await;
    within(5, s.run_until_done()).await;
    let id = added.lock().unwrap().unwrap();
    assert_eq!(state(&s, id), WorkState::Success, "{}", error(&s, id));
}

// 14. hooks of a cancelled parent
#[tokio::test(start_paused = true)]
async fn r18_a_cancelled_parent_gets_only_the_abort_hooks() {
    let mut s = scheduler(2);
    let log: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    struct P(Arc<Mutex<Vec<&'static str>>>);
    #[async_trait]
    impl Work for P {
        fn name(&self) -> &str {
            "p"
        }
        async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
            ctx.add_child(WorkSpec::new(work_fn("c", |ctx: WorkContext| async move {
                ctx.cancel_token().cancelled().await;
                WorkOutcome::Cancelled
            })))
            .unwrap();
            ctx.cancel_token().cancelled().await;
            WorkOutcome::Success
        }
        fn on_failure_raise(&mut self) {
            self.0.lock().unwrap().push("raise")
        }
        fn on_failure_retry(&mut self) {
            self.0.lock().unwrap().push("retry")
        }
        async fn on_abort(&mut self) {
            self.0.lock().unwrap().push("abort")
        }
    }
    let p = s.add(WorkSpec::new(P(log.clone())).retries(1)).unwrap();
    let h = s.handle();
    tokio::spawn(async move {
        pass(S).await;
        h.cancel(p);
    });
    within(100, s.run_until_done()).await;
    assert_eq!((state(&s, p), log.lock().unwrap().clone()), (WorkState::Cancelled, vec!["abort"]));
}

// 15. run after cancel
#[tokio::test(start_paused = true)]
async fn r19_run_is_not_called_after_a_cancel() {
    let mut s = scheduler(2);
    let b_id: Arc<Mutex<Option<WorkId>>> = Arc::default();
    let b2 = b_id.clone();
    s.add(WorkSpec::new(work_fn("a", move |ctx: WorkContext| {
        assert!(ctx.handle().unwrap().cancel(b2.lock().unwrap().unwrap()));
        async {}
    })))
    .unwrap();
    let (b, calls) = Probe::steps("b", 1);
    let b = s.add(spec(b)).unwrap();
    *b_id.lock().unwrap() = Some(b);
    s.run_until_done().await;
    assert_eq!((state(&s, b), calls.runs()), (WorkState::Cancelled, 0));
}
#[tokio::test(start_paused = true)]
async fn r20_a_run_that_is_cancelled_from_the_start_starts_nothing() {
    let mut s = scheduler(2);
    let (b, calls) = Probe::steps("b", 1);
    let b = s.add(spec(b)).unwrap();
    let c = Cancel::new();
    c.cancel();
    s.run_until_done_with_cancel(c).await;
    assert_eq!((state(&s, b), calls.runs()), (WorkState::Cancelled, 0));
}

// 16. user code under the lock
struct Noisy(WorkHandle, WorkId);
impl Drop for Noisy {
    fn drop(&mut self) {
        self.0.state(self.1);
    }
}
#[test]
fn r21_dropping_work_may_use_the_handle() {
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        rt.block_on(async {
            let mut s = scheduler(1);
            let a = s.add(WorkSpec::new(work_fn("a", async |_| ()))).unwrap();
            let guard = Noisy(s.handle(), a);
            let b = s
                .add(WorkSpec::new(work_fn("b", move |_| {
                    let _ = &guard;
                    async {}
                })))
                .unwrap();
            s.run_until_done().await;
            s.forget(b).unwrap();
        });
        tx.send(()).unwrap();
    });
    rx.recv_timeout(S * 3).expect("deadlock");
}
#[test]
fn r22_dropping_an_output_may_use_the_handle() {
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        rt.block_on(async {
            let mut s = scheduler(1);
            let b = s
                .add(WorkSpec::new(work_fn("b", move |ctx: WorkContext| {
                    ctx.set_output(Noisy(ctx.handle().unwrap(), ctx.id));
                    drop(ctx);
                    async { WorkOutcome::failed("x") }
                })))
                .unwrap();
            s.run_until_done().await;
        });
        tx.send(()).unwrap();
    });
    rx.recv_timeout(S * 3).expect("deadlock");
}

// 17. status of forgotten
#[tokio::test(start_paused = true)]
async fn r23_the_status_does_not_show_a_forgotten_item() {
    let mut s = scheduler(2);
    let child: Arc<Mutex<Option<WorkId>>> = Arc::default();
    let c2 = child.clone();
    let p = s
        .add(WorkSpec::new(work_fn("p", move |ctx: WorkContext| {
            if c2.lock().unwrap().is_none() {
                let id = ctx.add_child(WorkSpec::new(work_fn("c", async |_| ()))).unwrap();
                *c2.lock().unwrap() = Some(id);
                ctx.show_status_of(id);
            }
            async { WorkOutcome::wait_for(S * 100) }
        })))
        .unwrap();
    let h = s.handle();
    tokio::spawn(async move { s.run_until_done().await });
    pass(S).await;
    h.forget(child.lock().unwrap().unwrap()).unwrap();
    assert_eq!(h.status(p).unwrap(), "Waiting: p : 1/1 children completed");
}
#[tokio::test(start_paused = true)]
async fn r24_a_sequence_between_attempts_says_so() {
    let mut s = scheduler(2);
    let seq = s
        .add(
            WorkSpec::new(SequenceWork::new(
                "seq",
                [WorkSpec::new(work_fn("e", async |_| WorkOutcome::failed("x")))],
            ))
            .retries(1)
            .exponential_backoff(),
        )
        .unwrap();
    let h = s.handle();
    tokio::spawn(async move { s.run_until_done().await });
    pass(Duration::from_millis(100)).await;
    assert_eq!(h.state(seq), Some(WorkState::Waiting));
    assert!(h.status(seq).unwrap().starts_with("Retrying in"), "{}", h.status(seq).unwrap());
}

// 18. restart with forgotten failed dependency
#[tokio::test(start_paused = true)]
async fn r25_restart_after_the_dependency_was_forgotten() {
    let mut s = scheduler(2);
    let x = s.add(WorkSpec::new(work_fn("x", async |_| WorkOutcome::failed("no")))).unwrap();
    let d = s.add(WorkSpec::new(work_fn("d", async |_| ())).after([x])).unwrap();
    s.run_until_done().await;
    s.forget(x).unwrap();
    s.restart(d).unwrap();
    s.run_until_done().await;
    let now = (state(&s, d), error(&s, d), s.inspect(d).unwrap().deps.len());
    // churn: 1100 forgotten
    for _ in 0..1100 {
        s.add(WorkSpec::new(work_fn("n", async |_| ()))).unwrap();
    }
    s.run_until_done().await;
    for item in s.snapshot() {
        if &*item.name == "n" {
            s.forget(item.id).unwrap();
        }
    }
    s.restart(d).unwrap();
    s.run_until_done().await;
    let later = (state(&s, d), error(&s, d), s.inspect(d).unwrap().deps.len());
    assert_eq!(now, later);
}

// 19. identities holder
#[tokio::test(start_paused = true)]
async fn r26_forgetting_an_old_twin_keeps_the_check_for_duplicates() {
    let folder = tempfile::tempdir().unwrap();
    let mut s = scheduler(2).with_journal(FileJournal::open(folder.path().join("j")).unwrap()).unwrap();
    let mk = || WorkSpec::new(work_fn("x", async |_| ()));
    let x = s.add(mk()).unwrap();
    s.run_until_done().await;
    let _y = s.add(mk()).unwrap();
    assert!(s.add(mk()).is_err());
    s.forget(x).unwrap();
    assert!(s.add(mk()).is_err());
}

// 20. raw value newline in the journal
#[tokio::test(start_paused = true)]
async fn r27_a_raw_json_output_with_a_newline_does_not_corrupt_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let mut s = scheduler(2).with_journal(FileJournal::open(&path).unwrap()).unwrap();
    s.add(WorkSpec::new(work_fn("x", async |ctx: WorkContext| {
        let raw = serde_json::value::RawValue::from_string("{\n\"a\":1}".into()).unwrap();
        ctx.set_durable_output(&raw).unwrap();
    })))
    .unwrap();
    let report = s.run_until_done().await;
    assert!(report.journal_error.is_none());
    drop(s);
    FileJournal::open(&path).unwrap();
}

// 21. last event of a second run
#[tokio::test(start_paused = true)]
async fn r28_the_last_event_of_each_run_arrives() {
    let (tx, mut rx) = mpsc::channel(3);
    let mut s =
        scheduler_with(WorkSchedulerConfig { max_concurrency: 1, event_tx: Some(tx), ..Default::default() });
    for n in 0..3 {
        for _ in 0..5 {
            s.add(WorkSpec::new(work_fn(format!("r{n}"), async |_| ()))).unwrap();
        }
        s.run_until_done().await;
        let got = drain(&mut rx);
        assert_eq!(
            got.last().map(|e| (e.0.clone(), e.1)),
            Some((format!("r{n}"), WorkState::Success)),
            "run {n}: {got:?}"
        );
        assert_eq!(s.metrics().finished(), 5 * (n + 1));
    }
    // and the count adds up
}
#[tokio::test(start_paused = true)]
async fn r29_events_plus_missed_add_up_in_the_last_event_of_each_run() {
    let (tx, mut rx) = mpsc::channel(3);
    let mut s =
        scheduler_with(WorkSchedulerConfig { max_concurrency: 1, event_tx: Some(tx), ..Default::default() });
    let mut seen = 0;
    for n in 0..3_u64 {
        for _ in 0..5 {
            s.add(WorkSpec::new(work_fn(format!("r{n}"), async |_| ()))).unwrap();
        }
        s.run_until_done().await;
        while let Ok(e) = rx.try_recv() {
            seen += 1 + e.missed;
        }
        assert_eq!(seen, (n + 1) * 10, "run {n}");
    }
}

// 22. event attempt at restart
#[tokio::test(start_paused = true)]
async fn r30_the_pending_event_of_a_restart_has_attempt_zero() {
    let (mut s, mut rx) = watched_scheduler(2);
    let a = s.add(WorkSpec::new(work_fn("a", async |_| ()))).unwrap();
    let h = s.handle();
    s.add(WorkSpec::new(work_fn("r", move |_| {
        let h = h.clone();
        async move {
            pass(S).await;
            h.restart(a).unwrap();
        }
    })))
    .unwrap();
    s.run_until_done().await;
    let ev: Vec<_> = drain(&mut rx).into_iter().filter(|e| e.0 == "a").map(|e| (e.1, e.2)).collect();
    assert_eq!(
        ev,
        [
            (WorkState::Running, 1),
            (WorkState::Success, 1),
            (WorkState::Pending, 0),
            (WorkState::Running, 1),
            (WorkState::Success, 1)
        ]
    );
}

// 23. runtime without time and a fake clock
#[test]
fn r31_a_fake_clock_needs_no_timers_of_tokio() {
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    rt.block_on(async {
        let mut s =
            WorkScheduler::with_ambient(Default::default(), Arc::new(FakeClock::new()), Rng::seeded(1))
                .unwrap();
        s.add(WorkSpec::new(work_fn("a", async |_| ()))).unwrap();
        s.run_until_done().await;
    });
}

// 24. chatty grandchild
#[tokio::test]
async fn r32_a_chatty_grandchild_does_not_keep_a_command_alive() {
    let mut s = scheduler(1);
    let c = s.add(WorkSpec::new(RunCommandWork::new("c", "sh", ["-c", "yes >&2 & exit 0"]))).unwrap();
    let r = tokio::time::timeout(S * 5, s.run_until_done()).await;
    let st = state(&s, c);
    drop(s);
    _ = std::process::Command::new("true").status();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(r.is_ok(), "still {st}");
}

// 25. runtime shutdown with a long queue
#[test]
fn r33_a_runtime_that_goes_away_with_a_long_queue() {
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let s = scheduler(4);
    let h = s.handle();
    for n in 0..200_000 {
        h.add(WorkSpec::new(work_fn("w", async |_| {
            tokio::time::sleep(S * 1000).await;
        })))
        .unwrap();
    }
    let s = Arc::new(tokio::sync::Mutex::new(s));
    let s2 = s.clone();
    rt.spawn(async move { s2.lock().await.run_until_done().await });
    std::thread::sleep(Duration::from_millis(300));
    drop(rt);
    let m = h.metrics();
    assert_eq!((m.cancelled, m.pending), (4, 199_996));
}

// 26. handle captured by work leaks
#[tokio::test(start_paused = true)]
async fn r34_work_that_holds_a_handle_does_not_leak_the_scheduler() {
    let sentinel = Arc::new(());
    {
        let mut s = scheduler(1);
        let (h, c) = (s.handle(), sentinel.clone());
        s.add(WorkSpec::new(work_fn("a", move |_| {
            let _ = (&h, &c);
            async {}
        })))
        .unwrap();
        s.run_until_done().await;
    }
    assert_eq!(Arc::strong_count(&sentinel), 1);
}

// 27. a child added in on_success
#[tokio::test(start_paused = true)]
async fn r35_a_child_added_in_a_hook_is_refused_or_waited_for() {
    struct P(Option<WorkContext>, Arc<Mutex<Option<Result<WorkId, WorkError>>>>);
    #[async_trait]
    impl Work for P {
        fn name(&self) -> &str {
            "p"
        }
        async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
            self.0 = Some(ctx);
            WorkOutcome::Success
        }
        fn on_success(&mut self) {
            *self.1.lock().unwrap() =
                Some(self.0.take().unwrap().add_child(WorkSpec::new(work_fn("c", async |_| {
                    pass(S).await;
                    WorkOutcome::failed("x")
                }))));
        }
    }
    let mut s = scheduler(2);
    let got = Arc::new(Mutex::new(None));
    let p = s.add(WorkSpec::new(P(None, got.clone()))).unwrap();
    s.run_until_done().await;
    let added = got.lock().unwrap().clone().unwrap();
    assert!(added.is_err() || state(&s, p) == WorkState::Failed, "{added:?}, parent {}", state(&s, p));
}

// 28. on_success panic: same hooks journalled or not
#[tokio::test(start_paused = true)]
async fn r36_a_panicking_success_hook_has_the_same_effects_with_and_without_a_journal() {
    struct P(Arc<Mutex<Vec<&'static str>>>);
    #[async_trait]
    impl Work for P {
        fn name(&self) -> &str {
            "p"
        }
        async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
            WorkOutcome::Success
        }
        fn on_success(&mut self) {
            panic!("boo")
        }
        fn on_failure_raise(&mut self) {
            self.0.lock().unwrap().push("raise")
        }
    }
    let mut results = Vec::new();
    for journalled in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut s = scheduler(2);
        if journalled {
            s = s.with_journal(FileJournal::open(folder.path().join("j")).unwrap()).unwrap();
        }
        let log = Arc::default();
        let p = s.add(WorkSpec::new(P(Arc::clone(&log)))).unwrap();
        s.run_until_done().await;
        results.push((error(&s, p), log.lock().unwrap().clone()));
    }
    assert_eq!(results[0], results[1]);
}

// 29. restart_child through a kept context while aborting
#[tokio::test(start_paused = true)]
async fn r37_restart_child_is_refused_while_the_parent_aborts() {
    struct P(Arc<Mutex<Option<Result<(), WorkError>>>>, Option<(WorkContext, WorkId)>);
    #[async_trait]
    impl Work for P {
        fn name(&self) -> &str {
            "p"
        }
        async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
            if self.1.is_none() {
                let c = ctx.add_child(WorkSpec::new(work_fn("c", async |_| ()))).unwrap();
                self.1 = Some((ctx, c));
            }
            WorkOutcome::wait()
        }
        async fn on_abort(&mut self) {
            let (ctx, c) = self.1.take().unwrap();
            *self.0.lock().unwrap() = Some(ctx.restart_child(c));
        }
    }
    let mut s = scheduler(2);
    let got = Arc::new(Mutex::new(None));
    let p = s.add(WorkSpec::new(P(got.clone(), None))).unwrap();
    let h = s.handle();
    tokio::spawn(async move {
        pass(S).await;
        h.cancel(p);
    });
    within(1000, s.run_until_done()).await;
    assert!(matches!(*got.lock().unwrap(), Some(Err(_))), "{:?}", got.lock().unwrap());
}

// 30. wait_for(0) and zero retry delay under virtual time
#[tokio::test(start_paused = true)]
async fn r38_a_zero_wait_takes_no_time() {
    let mut s = scheduler(2);
    let w = Stopwatch::start();
    let mut n = 0;
    s.add(WorkSpec::new(work_fn("a", move |_| {
        n += 1;
        let o = if n > 100 { WorkOutcome::Success } else { WorkOutcome::wait_for(Duration::ZERO) };
        async move { o }
    })))
    .unwrap();
    s.run_until_done().await;
    assert!(w.elapsed() < Duration::from_millis(10), "{:?}", w.elapsed());
}

// 31. race: prepare / lay_aside
#[test]
fn r40_a_parent_whose_last_child_ends_while_it_is_laid_aside() {
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    rt.block_on(async {
        for round in 0..3000 {
            let mut s = scheduler(4);
            for _ in 0..20 {
                s.add(WorkSpec::new(work_fn("p", |ctx: WorkContext| async move {
                    ctx.add_child(WorkSpec::new(work_fn("c", async |_| ()))).unwrap();
                    // As long as it takes another thread to take the child up.
                    for _ in 0..(ctx.id.to_string().len() * 400) {
                        std::hint::spin_loop();
                    }
                    WorkOutcome::Success
                })))
                .unwrap();
            }
            let h = s.handle();
            if tokio::time::timeout(S * 5, s.run_until_done()).await.is_err() {
                panic!("round {round}: hang: {:?}", h.metrics());
            }
            assert_eq!(h.metrics().slots_used, 0);
        }
    });
}

// 32. stress
fn node(rng: &mut Rng, depth: u32, known: &Arc<Mutex<Vec<WorkId>>>) -> WorkSpec {
    let seed = rng.next_u64();
    let known = Arc::clone(known);
    let mut r = Rng::seeded(seed);
    if depth > 0 && std::env::var_os("COMPOSITE").is_some() {
        let n = r.between(0, 4);
        let retries = r.between(0, 2) as u32;
        match r.between(0, 5) {
            0 => {
                let e: Vec<_> = (0..n).map(|_| node(&mut r, depth - 1, &known)).collect();
                let s = SequenceWork::new(format!("s{seed:x}"), e);
                return WorkSpec::new(if seed % 2 == 0 { s.keep_going() } else { s }).retries(retries);
            }
            1 => {
                let (k, sd) = (known.clone(), r.next_u64());
                return WorkSpec::new(BatchWork::new(format!("b{seed:x}"), 2, move || {
                    let mut r = Rng::seeded(sd);
                    (0..n).map(|_| node(&mut r, depth - 1, &k)).collect::<Vec<_>>()
                }))
                .retries(retries);
            }
            2 => {
                let mut left = n;
                return WorkSpec::new(
                    ConditionalWork::new(
                        format!("c{seed:x}"),
                        move || {
                            left = left.saturating_sub(1);
                            left == 0
                        },
                        node(&mut r, depth - 1, &known),
                    )
                    .poll_every(Duration::from_micros(200)),
                )
                .retries(retries);
            }
            _ => {}
        }
    }
    let weight = r.between(1, 3) as u32;
    let retries = r.between(0, 2) as u32;
    let prio = r.between(0, 4) as i8 - 2;
    let mut steps = 0;
    let work = work_fn(format!("n{seed:x}"), move |ctx: WorkContext| {
        steps += 1;
        let known2 = Arc::clone(&known);
        known.lock().unwrap().push(ctx.id);
        let roll = if steps > 6 { 0 } else { r.between(0, 14) };
        let kids = r.between(1, 4);
        let mut child_rng = Rng::seeded(r.next_u64());
        let sleep = r.between(0, 300);
        let spin = r.between(0, 3000);
        async move {
            for _ in 0..spin {
                std::hint::spin_loop();
            }
            match roll {
                0..=4 => WorkOutcome::Success,
                5 => WorkOutcome::failed("x"),
                6 => WorkOutcome::RetryBecause { error: "r".into(), delay: Duration::from_micros(sleep) },
                7 => WorkOutcome::Continue,
                8 => WorkOutcome::wait_for(Duration::from_micros(sleep)),
                9 => {
                    tokio::time::sleep(Duration::from_micros(sleep)).await;
                    WorkOutcome::Success
                }
                10 => {
                    let w = ctx.waker();
                    std::thread::spawn(move || {
                        w.wake();
                    });
                    WorkOutcome::wait_for(Duration::from_millis(20))
                }
                11 => panic!("by design"),
                12 => {
                    tokio::task::yield_now().await;
                    WorkOutcome::Success
                }
                _ => {
                    if depth > 0 {
                        let mut prev = None;
                        for _ in 0..kids {
                            let mut spec = node(&mut child_rng, depth - 1, &known2);
                            if child_rng.between(0, 2) == 0 {
                                spec = spec.after(prev);
                            }
                            match ctx.add_child(spec) {
                                Ok(id) => prev = Some(id),
                                Err(e) => return WorkOutcome::failed(e),
                            }
                        }
                    }
                    match child_rng.between(0, 4) {
                        0 => WorkOutcome::wait_for_children(),
                        1 => WorkOutcome::wait_for_any_child(),
                        2 => WorkOutcome::failed("with children"),
                        _ => WorkOutcome::Success,
                    }
                }
            }
        }
    });
    let spec = WorkSpec::new(work).weight(weight).retries(retries).priority(prio);
    if seed % 5 == 0 { spec.timeout(Duration::from_micros(200)) } else { spec }
}

#[test]
fn r41_stress() {
    std::panic::set_hook(Box::new(|i| {
        let m = i.to_string();
        if !m.contains("by design") {
            eprintln!("{m}")
        }
    }));
    let secs: u64 = std::env::var("STRESS").map_or(15, |s| s.parse().unwrap());
    let mode: u64 = std::env::var("MODE").map_or(7, |s| s.parse().unwrap());
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(secs);
    let mut round = std::env::var("SEED").map_or(0, |s| s.parse().unwrap());
    let mut hangs = 0;
    let (mut total, mut rounds) = (0, 0);
    while std::time::Instant::now() < end {
        round += 1;
        rounds += 1;
        let mut rng = Rng::seeded(round);
        let known: Arc<Mutex<Vec<WorkId>>> = Arc::default();
        let mut s = WorkScheduler::with_ambient(
            WorkSchedulerConfig {
                max_concurrency: 4,
                retry_delay: Duration::from_micros(100),
                event_tx: None,
            },
            Arc::new(SystemClock::new()),
            Rng::seeded(round),
        )
        .unwrap();
        let mut ids: Vec<WorkId> = Vec::new();
        for _ in 0..rng.between(5, 60) {
            let mut spec = node(&mut rng, 2, &known);
            for _ in 0..rng.between(0, 2) {
                if !ids.is_empty() {
                    spec = spec.after([ids[rng.between(0, ids.len() as u64 - 1) as usize]]);
                }
            }
            ids.push(s.add(spec).unwrap());
        }
        let h = s.handle();
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..2)
            .map(|t| {
                let (h, stop, known, mut r) =
                    (h.clone(), stop.clone(), known.clone(), Rng::seeded(round * 7 + t));
                std::thread::spawn(move || {
                    for _ in 0..40 {
                        if stop.load(SeqCst) {
                            break;
                        }
                        let id = {
                            let k = known.lock().unwrap();
                            if k.is_empty() {
                                drop(k);
                                std::thread::yield_now();
                                continue;
                            } else {
                                k[r.between(0, k.len() as u64 - 1) as usize]
                            }
                        };
                        match r.between(0, 5) {
                            0 if mode & 1 != 0 => _ = h.cancel(id),
                            1 if mode & 2 != 0 => _ = h.restart(id),
                            2 if mode & 4 != 0 => _ = h.forget(id),
                            3 => _ = h.wake(id),
                            4 => {
                                _ = h.status(id);
                                if mode & 8 != 0 && r.between(0, 20) == 0 {
                                    h.cancel_all()
                                }
                            }
                            _ => _ = h.snapshot(),
                        }
                        std::thread::sleep(Duration::from_micros(r.between(0, 100)));
                    }
                })
            })
            .collect();
        let fail_fast = rng.between(0, 3) == 0;
        let drop_early = rng.between(0, 3) == 0;
        let ok = rt.block_on(async {
            if drop_early {
                _ = tokio::time::timeout(Duration::from_micros(rng.between(0, 500)), s.run_until_done())
                    .await;
            }
            tokio::time::timeout(
                S * 6,
                s.run(RunOptions {
                    on_failure: if fail_fast { OnFailure::FailFast } else { OnFailure::KeepGoing },
                    ..Default::default()
                }),
            )
            .await
            .is_ok()
        });
        stop.store(true, SeqCst);
        threads.into_iter().for_each(|t| t.join().unwrap());
        if !ok {
            hangs += 1;
            eprintln!("round {round}: HANG drop_early={drop_early} ff={fail_fast} {:?}", h.metrics());
            for i in h.snapshot() {
                if !i.state.is_terminal() {
                    eprintln!(
                        "   {} {} parent {:?} deps {:?} attempts {} {:?}",
                        i.id, i.state, i.parent, i.deps, i.attempts, i.error
                    );
                }
            }
            std::mem::forget(s);
            if hangs > 3 {
                break;
            }
            continue;
        }
        rt.block_on(async {
            _ = tokio::time::timeout(S * 6, s.run_until_done()).await;
        });
        let m = h.metrics();
        total += m.attempts;
        assert_eq!((m.slots_used, m.finished()), (0, m.total), "round {round}");
    }
    eprintln!("{rounds} rounds, {total} attempts, {hangs} hangs");
    assert_eq!(hangs, 0);
}

#[tokio::test(start_paused = true)]
async fn r42_a_restart_leaves_forgotten_dependents_alone() {
    let mut s = scheduler(2);
    let x = s.add(WorkSpec::new(work_fn("x", async |_| WorkOutcome::failed("no")))).unwrap();
    let d = s.add(WorkSpec::new(work_fn("d", async |_| ())).after([x])).unwrap();
    s.run_until_done().await;
    s.forget(d).unwrap();
    s.restart(x).unwrap();
    within(100, s.run_until_done()).await;
    assert_eq!(s.metrics().total, 1);
}

#[test]
fn r43_blocking_items_behind_quick_ones_run_side_by_side() {
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut worst = Duration::ZERO;
    for _ in 0..10 {
        let mut s = scheduler(2);
        for _ in 0..200 {
            s.add(WorkSpec::new(work_fn("q", async |_| ()))).unwrap();
        }
        for _ in 0..2 {
            s.add(WorkSpec::new(work_fn("b", async |_| std::thread::sleep(Duration::from_millis(100)))))
                .unwrap();
        }
        let t = std::time::Instant::now();
        rt.block_on(async {
            tokio::spawn(async move {
                s.run_until_done().await;
            })
            .await
            .unwrap()
        });
        worst = worst.max(t.elapsed());
    }
    assert!(worst < Duration::from_millis(170), "{worst:?}");
}

#[tokio::test(start_paused = true)]
async fn r44_an_item_that_failed_after_a_restart_is_done_again_by_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let runs = Arc::new(AtomicU32::new(0));
    for process in 0..2 {
        let mut s = scheduler(2).with_journal(FileJournal::open(&path).unwrap()).unwrap();
        let r = runs.clone();
        let x = s
            .add(WorkSpec::new(work_fn("x", move |_| {
                let n = r.fetch_add(1, SeqCst);
                async move { if n == 1 { WorkOutcome::failed("x") } else { WorkOutcome::Success } }
            })))
            .unwrap();
        s.run_until_done().await;
        if process == 0 {
            s.restart(x).unwrap();
            s.run_until_done().await;
            assert_eq!(state(&s, x), WorkState::Failed);
        }
    }
    assert_eq!(runs.load(SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn r45_a_journalled_batch_with_other_children_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let runs = Arc::new(AtomicU32::new(0));
    for count in [2, 4] {
        let mut s = scheduler(2).with_journal(FileJournal::open(&path).unwrap()).unwrap();
        let r = runs.clone();
        s.add(WorkSpec::new(BatchWork::new("files", 2, move || {
            let r = r.clone();
            (0..count).map(move |n| {
                let r = r.clone();
                WorkSpec::new(work_fn(format!("f{n}"), move |_| {
                    r.fetch_add(1, SeqCst);
                    async {}
                }))
            })
        })))
        .unwrap();
        s.run_until_done().await;
    }
    assert_eq!(runs.load(SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn r46_a_child_may_be_restarted_and_then_succeed() {
    // fan of watchers abandoned
    let mut s = scheduler(2);
    let (p, _) = Probe::endless("e");
    let a = s.add(spec(p)).unwrap();
    let h = s.handle();
    let before = rss_mb();
    for _ in 0..500_000 {
        let mut f = Box::pin(h.wait(a));
        _ = f.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    }
    let grown = rss_mb() - before;
    assert!(grown < 20, "{grown} MB kept by abandoned waits");
}

#[tokio::test(start_paused = true)]
async fn r47_a_forfeited_parent_says_why() {
    let mut s = scheduler(2);
    let p = s
        .add(WorkSpec::new(work_fn("p", |ctx: WorkContext| async move {
            ctx.add_child(WorkSpec::new(work_fn("c", async |_| pass(S * 100).await))).unwrap();
            pass(S * 100).await;
        })))
        .unwrap();
    _ = tokio::time::timeout(S, s.run_until_done()).await;
    within(100, s.run_until_done()).await;
    assert_eq!((state(&s, p), error(&s, p)), (WorkState::Cancelled, "its run was dropped".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn r48_forgetting_a_needed_child_reports_it() {
    // `wake` of an item whose state reads Waiting returns true
    let mut s = scheduler(1);
    let (w, _) = Probe::new("w", |at, _| if at == 1 { WorkOutcome::wait() } else { WorkOutcome::Success });
    let w = s.add(spec(w)).unwrap();
    let h = s.handle();
    let got = Arc::new(Mutex::new(Vec::new()));
    let g = got.clone();
    s.add(WorkSpec::new(work_fn("k", move |_| {
        for _ in 0..2 {
            let st = h.state(w).unwrap();
            g.lock().unwrap().push((st, h.wake(w)));
        }
        async {}
    })))
    .unwrap();
    s.run_until_done().await;
    assert_eq!(*got.lock().unwrap(), [(WorkState::Waiting, true), (WorkState::Waiting, true)]);
}

#[tokio::test]
async fn r49_a_failed_command_leaves_nothing_of_its_group_behind() {
    let mut s = scheduler(1);
    let f = tempfile::tempdir().unwrap();
    let pidfile = f.path().join("pid");
    let c = s
        .add(WorkSpec::new(RunCommandWork::new(
            "c",
            "sh",
            ["-c".to_owned(), format!("sleep 30 & echo $! > {}; exit 3", pidfile.display())],
        )))
        .unwrap();
    within(5, s.run_until_done()).await;
    let pid = std::fs::read_to_string(&pidfile).unwrap().trim().to_owned();
    let alive = std::path::Path::new(&format!("/proc/{pid}")).exists();
    _ = std::process::Command::new("kill").arg(&pid).status();
    assert!(!alive, "sleep {pid} survived its failed leader");
}
