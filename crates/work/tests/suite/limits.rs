//! Slots, weights, priorities, timeouts, backoff.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dragnet_work::{
    WorkContext, WorkError, WorkOutcome, WorkScheduler, WorkSchedulerConfig, WorkSpec, WorkState, work_fn,
};

use crate::kit::{
    Probe, Stopwatch, drain, error, pass, scheduler, scheduler_with, settle, spec, state, watched_scheduler,
};

use WorkState::{Cancelled, Failed, Success};

#[tokio::test(start_paused = true)]
async fn weights_bound_what_runs_at_the_same_time() {
    let mut scheduler = scheduler(5);
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    for n in 0..60_u32 {
        let (now, most, weight) = (Arc::clone(&now), Arc::clone(&most), n % 5 + 1);
        let work = work_fn(n.to_string(), move |_| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                most.fetch_max(now.fetch_add(weight, Ordering::SeqCst) + weight, Ordering::SeqCst);
                pass(Duration::from_millis(u64::from(n % 7))).await;
                now.fetch_sub(weight, Ordering::SeqCst);
            }
        });
        scheduler.add(WorkSpec::new(work).weight(weight)).unwrap();
    }
    assert!(scheduler.run_until_done().await.all_succeeded());
    assert_eq!(most.load(Ordering::SeqCst), 5);
}

#[tokio::test(start_paused = true)]
async fn a_heavy_item_is_not_overtaken_for_ever_by_light_ones() {
    let (mut scheduler, mut events) = watched_scheduler(2);
    let light = |n: u64| {
        let sleep = move |_| pass(Duration::from_secs(n));
        WorkSpec::new(work_fn(format!("light {n}"), sleep))
    };
    scheduler.add(light(1)).unwrap();
    scheduler.add(light(2)).unwrap();
    scheduler.add(WorkSpec::new(work_fn("heavy", async |_| ())).weight(2)).unwrap();
    (3..9).for_each(|n| _ = scheduler.add(light(n)).unwrap());
    scheduler.run_until_done().await;
    let started: Vec<_> = drain(&mut events)
        .into_iter()
        .filter(|event| event.1 == WorkState::Running)
        .map(|event| event.0)
        .collect();
    assert_eq!(started[..4], ["light 1", "light 2", "heavy", "light 3"]);
}

#[test]
fn weights_that_could_never_run_are_refused() {
    let scheduler = scheduler(3);
    let heavy = |weight| scheduler.add(WorkSpec::new(work_fn("heavy", async |_| ())).weight(weight));
    assert_eq!(
        heavy(4),
        Err(WorkError::WeightAboveCapacity { item: "heavy".into(), weight: 4, capacity: 3 })
    );
    assert_eq!(heavy(0), Err(WorkError::ZeroWeight { item: "heavy".into() }));
    assert!(heavy(3).is_ok());
}

#[tokio::test(start_paused = true)]
async fn higher_priorities_go_first() {
    let (mut scheduler, mut events) = watched_scheduler(1);
    for (name, priority) in [("low", -1), ("first", 0), ("second", 0), ("high", 5)] {
        scheduler.add(WorkSpec::new(work_fn(name, async |_| ())).priority(priority)).unwrap();
    }
    scheduler.run_until_done().await;
    let ended: Vec<_> =
        drain(&mut events).into_iter().filter(|event| event.1 == Success).map(|event| event.0).collect();
    assert_eq!(ended, ["high", "first", "second", "low"]);
}

#[tokio::test(start_paused = true)]
async fn an_item_over_its_time_is_dropped_and_retried() {
    let mut scheduler = scheduler(1);
    let slow = work_fn("slow", async |ctx: WorkContext| {
        if ctx.attempt < 3 {
            std::future::pending::<()>().await;
        }
    });
    let id = scheduler.add(WorkSpec::new(slow).retries(2).timeout(Duration::from_secs(9))).unwrap();
    let hopeless = work_fn("hopeless", async |_| std::future::pending::<()>().await);
    let hopeless = scheduler.add(WorkSpec::new(hopeless).timeout(Duration::from_secs(9))).unwrap();
    scheduler.run_until_done().await;
    let item = scheduler.inspect(id).unwrap();
    assert_eq!((item.state, item.attempts, item.elapsed), (Success, 3, Duration::from_secs(18)));
    assert_eq!(state(&scheduler, hopeless), Failed);
    assert_eq!(error(&scheduler, hopeless), "timed out after 9s (gave up after 1 attempt)");
}

#[tokio::test(start_paused = true)]
async fn exponential_backoff_grows_and_stays_in_its_ranges() {
    let mut scheduler = scheduler(1);
    let times = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&times);
    let (probe, _) = Probe::new("flaky", move |_, ctx| {
        log.lock().unwrap().push(ctx.now().since_origin().as_secs());
        WorkOutcome::retry("no")
    });
    scheduler.add(spec(probe).retries(5).exponential_backoff()).unwrap();
    scheduler.run_until_done().await;
    let pauses: Vec<u64> = times.lock().unwrap().windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses.len(), 5);
    let ranges = [1..=1, 2..=2, 3..=4, 5..=8, 9..=16];
    assert!(pauses.iter().zip(ranges).all(|(pause, range)| range.contains(pause)), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_zero_delay_stands_for_the_schedulers_own() {
    let config = WorkSchedulerConfig { retry_delay: Duration::from_secs(7), ..Default::default() };
    let mut scheduler: WorkScheduler = scheduler_with(config);
    let (probe, _) = Probe::new("flaky", |_, ctx| match ctx.attempt {
        1 => WorkOutcome::Retry { delay: Duration::ZERO },
        2 => WorkOutcome::Retry { delay: Duration::from_secs(2) },
        _ => WorkOutcome::Success,
    });
    scheduler.add(spec(probe).retries(2)).unwrap();
    let began = Stopwatch::start();
    scheduler.run_until_done().await;
    assert_eq!(began.elapsed(), Duration::from_secs(9));
}

#[tokio::test(start_paused = true)]
async fn waiting_and_retrying_items_hold_no_slot() {
    let mut scheduler = scheduler(1);
    let (waiter, _) = Probe::endless("waiter");
    let (retrier, _) = Probe::new("retrier", |_, _| WorkOutcome::Retry { delay: Duration::from_secs(999) });
    let ids = [scheduler.add(spec(waiter)).unwrap(), scheduler.add(spec(retrier).retries(9)).unwrap()];
    let quick = scheduler.add(WorkSpec::new(work_fn("quick", async |_| ()))).unwrap();
    let handle = scheduler.handle();
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    handle.wait(quick).await.unwrap();
    settle().await;
    assert_eq!((handle.metrics().slots_used, handle.metrics().waiting), (0, 2));
    handle.cancel_all();
    run.await.unwrap();
    assert_eq!(ids.map(|id| handle.state(id).unwrap()), [Cancelled, Cancelled]);
}

#[tokio::test(start_paused = true)]
async fn progress_and_status_are_told_while_an_item_runs() {
    let mut scheduler = scheduler(1);
    let (probe, _) = Probe::new("copy", |at, ctx| {
        ctx.set_progress(u64::from(at) * 10, Some(30));
        if at == 3 { WorkOutcome::Success } else { WorkOutcome::wait() }
    });
    let id = scheduler.add(spec(probe)).unwrap();
    let handle = scheduler.handle();
    assert_eq!(handle.status(id).unwrap(), "Ready to run: copy");
    let run = tokio::spawn(async move { scheduler.run_until_done().await });
    settle().await;
    assert_eq!(handle.status(id).unwrap(), "Waiting: copy (10/30)");
    handle.wake(id);
    settle().await;
    handle.wake(id);
    run.await.unwrap();
    assert_eq!(handle.status(id).unwrap(), "Succeeded: copy (30/30)");
}
