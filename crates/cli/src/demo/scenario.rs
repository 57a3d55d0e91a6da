//! What the demo does, and how each part of it must end.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use dragnet_ambient::{Clock as _, SystemClock};
use dragnet_work::{
    BatchWork, ConditionalWork, WorkContext, WorkError, WorkHandle, WorkId, WorkOutcome, WorkSnapshot,
    WorkSpec, WorkState, work_fn,
};
use tokio::sync::Notify;

/// One beat of the demo: long enough to be seen.
const BEAT: Duration = Duration::from_millis(250);

/// How an item must end.
struct Expectation {
    state: WorkState,
    attempts: u32,
    why: &'static str,
}

pub(crate) struct Scenario {
    expected: Vec<(WorkId, Expectation)>,
    /// Waits for a wake-up from outside.
    waiter: WorkId,
    /// Is cancelled while it runs, and stops.
    victim: Begun,
    /// Is cancelled while it runs, and succeeds nevertheless.
    finisher: Begun,
}

/// An item, and the moment at which it begins.
#[derive(Clone)]
struct Begun {
    id: WorkId,
    signal: Arc<Notify>,
}

impl Scenario {
    /// Adds all items to a scheduler.
    pub(crate) fn plan(scheduler: &WorkHandle) -> Result<Self, WorkError> {
        let mut plan = Plan { scheduler, expected: Vec::new() };
        use WorkState::{Blocked, Cancelled, Failed, Success};

        let list = plan.add(listing(), Success, 1, "lists three objects")?;
        let fetch_a = plan.add(fetch("fetch a").after([list]), Success, 1, "works at once")?;
        let fetch_b =
            plan.add(flaky("fetch b").after([list]).retries(3), Success, 3, "is reset twice, then works")?;
        let fetch_c = plan.add(denied("fetch c").after([list]), Failed, 1, "is denied: no retry helps")?;
        let scan_a =
            plan.add(scan("scan a", fetch_a).after([fetch_a]), Success, 1, "reads what fetch a got")?;
        let scan_b =
            plan.add(scan("scan b", fetch_b).after([fetch_b]), Success, 1, "reads what fetch b got")?;
        let scan_c = plan.add(scan("scan c", fetch_c).after([fetch_c]), Blocked, 0, "has nothing to read")?;
        plan.add(quick("report all").after([scan_a, scan_b, scan_c]), Blocked, 0, "blocked, transitively")?;
        plan.add(quick("report some").after([scan_a, scan_b]), Success, 1, "needs only what worked")?;
        let waiter = plan.add(waiting("wait for quota"), Success, 1, "sleeps without a slot until woken")?;
        plan.add(conditional(waiter, scheduler), Success, 1, "starts once the quota is there")?;
        plan.add(batch(), Success, 1, "six children, two at a time")?;
        plan.add(hopeless("hopeless").retries(2), Failed, 3, "uses up its retries")?;
        plan.add(panicking(), Failed, 1, "a panic is caught")?;
        let (work, signal) = endless("endless", WorkOutcome::Cancelled);
        let victim = Begun { id: plan.add(work, Cancelled, 1, "cancelled by us")?, signal };
        let (work, signal) = endless("too late", WorkOutcome::Success);
        let finisher = Begun { id: plan.add(work, Success, 1, "cancelled, but it had finished")?, signal };
        Ok(Self { expected: plan.expected, waiter, victim, finisher })
    }

    /// Interferes from outside, as a user would. What an earlier run has done already never begins, so none
    /// of this waits for the rest.
    pub(crate) fn meddle(&self, handle: WorkHandle) -> impl Future<Output = ()> + Send + use<> {
        let (waiter, victim, finisher) = (self.waiter, self.victim.clone(), self.finisher.clone());
        async move {
            let cancel = async |item: Begun| {
                item.signal.notified().await;
                handle.cancel(item.id);
            };
            let wake = async {
                until(|| handle.state(waiter) == Some(WorkState::Waiting)).await;
                handle.wake(waiter);
            };
            tokio::join!(cancel(victim), cancel(finisher), wake);
        }
    }

    /// What each item did and why, as a table.
    pub(crate) fn table(&self, snapshot: &[WorkSnapshot]) -> String {
        let items: HashMap<WorkId, &WorkSnapshot> = snapshot.iter().map(|item| (item.id, item)).collect();
        let mut table = format!("{:<18}{:<12}{:<10}{}\n", "ITEM", "ENDED AS", "ATTEMPTS", "WHY");
        for (id, expected) in &self.expected {
            if let Some(item) = items.get(id) {
                let attempts =
                    if is_from_journal(item) { "journal".to_owned() } else { item.attempts.to_string() };
                _ = writeln!(
                    table,
                    "{:<18}{:<12}{attempts:<10}{}",
                    item.name,
                    item.state.to_string(),
                    expected.why
                );
            }
        }
        table
    }

    /// Where the end differs from what was expected.
    pub(crate) fn differences(&self, snapshot: &[WorkSnapshot]) -> Vec<String> {
        let items: HashMap<WorkId, &WorkSnapshot> = snapshot.iter().map(|item| (item.id, item)).collect();
        let difference = |(id, expected): &(WorkId, Expectation)| {
            let Some(item) = items.get(id) else { return Some(format!("item {id} is gone")) };
            let as_expected = item.attempts == expected.attempts || is_from_journal(item);
            (item.state != expected.state || !as_expected).then(|| {
                format!(
                    "'{}' ended as {} after {} attempts, not as {} after {}",
                    item.name, item.state, item.attempts, expected.state, expected.attempts
                )
            })
        };
        self.expected.iter().filter_map(difference).collect()
    }
}

/// An item that an earlier run has done, and this one skipped.
fn is_from_journal(item: &WorkSnapshot) -> bool {
    item.state == WorkState::Success && item.attempts == 0
}

struct Plan<'a> {
    scheduler: &'a WorkHandle,
    expected: Vec<(WorkId, Expectation)>,
}

impl Plan<'_> {
    fn add(
        &mut self,
        spec: WorkSpec,
        state: WorkState,
        attempts: u32,
        why: &'static str,
    ) -> Result<WorkId, WorkError> {
        let id = self.scheduler.add(spec)?;
        self.expected.push((id, Expectation { state, attempts, why }));
        Ok(id)
    }
}

/// Takes `beats` beats, or stops when asked to. False if it was asked to.
async fn take_time(ctx: &WorkContext, beats: u64) -> bool {
    for done in 0..beats {
        ctx.set_progress(done, Some(beats));
        tokio::select! {
            biased;
            () = ctx.cancel_token().cancelled() => return false,
            () = SystemClock::new().sleep(BEAT) => {}
        }
    }
    ctx.set_progress(beats, Some(beats));
    true
}

async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        SystemClock::new().sleep(BEAT / 10).await;
    }
}

fn listing() -> WorkSpec {
    WorkSpec::new(work_fn("list", async |ctx: WorkContext| done(take_time(&ctx, 2).await)))
}

fn fetch(name: &'static str) -> WorkSpec {
    WorkSpec::new(work_fn(name, move |ctx: WorkContext| async move {
        let in_time = take_time(&ctx, 4).await;
        deliver(&ctx, name, in_time)
    }))
}

fn flaky(name: &'static str) -> WorkSpec {
    WorkSpec::new(work_fn(name, move |ctx: WorkContext| async move {
        let in_time = take_time(&ctx, 1).await;
        if ctx.attempt < 3 { WorkOutcome::retry("connection reset") } else { deliver(&ctx, name, in_time) }
    }))
}

/// Hands the name on as output, where the journal keeps it.
fn deliver(ctx: &WorkContext, name: &str, in_time: bool) -> WorkOutcome {
    match ctx.set_durable_output(&format!("what {name} got")) {
        Ok(()) => done(in_time),
        Err(error) => WorkOutcome::failed(error),
    }
}

fn denied(name: &'static str) -> WorkSpec {
    WorkSpec::new(work_fn(name, async |ctx: WorkContext| {
        if take_time(&ctx, 1).await { WorkOutcome::failed("403 forbidden") } else { WorkOutcome::Cancelled }
    }))
}

fn scan(name: &'static str, source: WorkId) -> WorkSpec {
    WorkSpec::new(work_fn(name, move |ctx: WorkContext| async move {
        if let Err(error) = ctx.durable_output::<String>(source) {
            return WorkOutcome::failed(error);
        }
        done(take_time(&ctx, 2).await)
    }))
}

fn quick(name: &'static str) -> WorkSpec {
    WorkSpec::new(work_fn(name, async |_| ()))
}

fn waiting(name: &'static str) -> WorkSpec {
    let mut asked = false;
    WorkSpec::new(work_fn(name, move |_| {
        let first = !std::mem::replace(&mut asked, true);
        async move { if first { WorkOutcome::wait() } else { WorkOutcome::Success } }
    }))
}

fn conditional(on: WorkId, scheduler: &WorkHandle) -> WorkSpec {
    let handle = scheduler.clone();
    let granted = move || handle.state(on) == Some(WorkState::Success);
    let work = ConditionalWork::new("spend quota", granted, quick("spending"));
    WorkSpec::new(work.poll_every(BEAT / 2))
}

fn batch() -> WorkSpec {
    WorkSpec::new(BatchWork::new("batch", 2, || {
        (1..=6).map(|n| {
            let work = work_fn(format!("child {n}"), async |ctx: WorkContext| done(take_time(&ctx, 1).await));
            WorkSpec::new(work)
        })
    }))
}

fn hopeless(name: &'static str) -> WorkSpec {
    WorkSpec::new(work_fn(name, async |_| WorkOutcome::retry("no route to host")))
}

fn panicking() -> WorkSpec {
    WorkSpec::new(work_fn("panicking", async |_| -> () {
        std::panic::resume_unwind(Box::new("index out of bounds"))
    }))
}

/// Says when it begins, runs until it is asked to stop, and then ends with `outcome`.
fn endless(name: &'static str, outcome: WorkOutcome) -> (WorkSpec, Arc<Notify>) {
    let signal = Arc::new(Notify::new());
    let begun = Arc::clone(&signal);
    let work = work_fn(name, move |ctx: WorkContext| {
        begun.notify_one();
        let outcome = outcome.clone();
        async move {
            ctx.cancel_token().cancelled().await;
            outcome
        }
    });
    (WorkSpec::new(work), signal)
}

fn done(in_time: bool) -> WorkOutcome {
    if in_time { WorkOutcome::Success } else { WorkOutcome::Cancelled }
}
