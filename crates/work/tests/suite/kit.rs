//! Work that does what a test tells it, and counts what is done to it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use dragnet_ambient::{Clock, Monotonic, Rng, Sleep, SystemClock};
use dragnet_work::{
    FileJournal, JournalError, Work, WorkContext, WorkEvent, WorkHandle, WorkId, WorkOutcome, WorkScheduler,
    WorkSchedulerConfig, WorkSpec, WorkState,
};
use tokio::sync::mpsc;

/// How often each method of one item was called.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) runs: AtomicU32,
    pub(crate) resets: AtomicU32,
    pub(crate) successes: AtomicU32,
    pub(crate) retries: AtomicU32,
    pub(crate) raises: AtomicU32,
    pub(crate) aborts: AtomicU32,
}

impl Calls {
    /// `[runs, successes, retries, raises, aborts]`
    pub(crate) fn counts(&self) -> [u32; 5] {
        [&self.runs, &self.successes, &self.retries, &self.raises, &self.aborts]
            .map(|counter| counter.load(Ordering::SeqCst))
    }

    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

type Step = Box<dyn FnMut(u32, &WorkContext) -> WorkOutcome + Send>;

/// An item whose every step is given by a closure that gets the number of the step within the attempt,
/// counted from 1.
pub(crate) struct Probe {
    name: String,
    step: Step,
    at: u32,
    calls: Arc<Calls>,
}

impl Probe {
    pub(crate) fn new(
        name: &str,
        step: impl FnMut(u32, &WorkContext) -> WorkOutcome + Send + 'static,
    ) -> (Self, Arc<Calls>) {
        let calls = Arc::new(Calls::default());
        (Self { name: name.to_owned(), step: Box::new(step), at: 0, calls: Arc::clone(&calls) }, calls)
    }

    /// Succeeds in the last of `steps` steps.
    pub(crate) fn steps(name: &str, steps: u32) -> (Self, Arc<Calls>) {
        Self::new(name, move |at, _| if at == steps { WorkOutcome::Success } else { WorkOutcome::Continue })
    }

    /// Fails its attempt in the last of `steps` steps.
    pub(crate) fn failing(name: &str, steps: u32) -> (Self, Arc<Calls>) {
        Self::new(
            name,
            move |at, _| {
                if at == steps { WorkOutcome::retry("no luck") } else { WorkOutcome::Continue }
            },
        )
    }

    /// Waits for ever between its steps, until it is told to stop.
    pub(crate) fn endless(name: &str) -> (Self, Arc<Calls>) {
        Self::new(name, |_, _| WorkOutcome::wait_for(Duration::from_secs(3600)))
    }
}

#[async_trait]
impl Work for Probe {
    fn name(&self) -> &str {
        &self.name
    }

    async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
        self.calls.runs.fetch_add(1, Ordering::SeqCst);
        self.at += 1;
        (self.step)(self.at, &ctx)
    }

    fn on_reset(&mut self) {
        self.calls.resets.fetch_add(1, Ordering::SeqCst);
        self.at = 0;
    }

    fn on_success(&mut self) {
        self.calls.successes.fetch_add(1, Ordering::SeqCst);
    }

    fn on_failure_retry(&mut self) {
        self.calls.retries.fetch_add(1, Ordering::SeqCst);
    }

    fn on_failure_raise(&mut self) {
        self.calls.raises.fetch_add(1, Ordering::SeqCst);
    }

    async fn on_abort(&mut self) {
        self.calls.aborts.fetch_add(1, Ordering::SeqCst);
    }
}

type Hook = Box<dyn FnMut(&'static str, &WorkContext) + Send>;

/// Other work, whose hooks are told to a closure, each with the context of the last turn.
pub(crate) struct Hooked<W> {
    work: W,
    context: Option<WorkContext>,
    hook: Hook,
}

impl<W: Work> Hooked<W> {
    pub(crate) fn new(work: W, hook: impl FnMut(&'static str, &WorkContext) + Send + 'static) -> Self {
        Self { work, context: None, hook: Box::new(hook) }
    }

    fn tell(&mut self, name: &'static str) {
        (self.hook)(name, self.context.as_ref().unwrap());
    }
}

#[async_trait]
impl<W: Work> Work for Hooked<W> {
    fn name(&self) -> &str {
        self.work.name()
    }

    async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
        self.context = Some(ctx.clone());
        self.work.run(ctx).await
    }

    fn on_success(&mut self) {
        self.tell("success");
    }

    fn on_failure_retry(&mut self) {
        self.tell("retry");
    }

    fn on_failure_raise(&mut self) {
        self.tell("raise");
    }

    async fn on_abort(&mut self) {
        self.tell("abort");
    }
}

/// A scheduler with a fixed seed.
pub(crate) fn scheduler(slots: usize) -> WorkScheduler {
    scheduler_with(WorkSchedulerConfig { max_concurrency: slots, ..Default::default() })
}

pub(crate) fn scheduler_with(config: WorkSchedulerConfig) -> WorkScheduler {
    WorkScheduler::with_ambient(config, Arc::new(SystemClock::new()), Rng::seeded(1)).unwrap()
}

/// A scheduler and the channel on which it tells everything.
pub(crate) fn watched_scheduler(slots: usize) -> (WorkScheduler, mpsc::Receiver<WorkEvent>) {
    let (sender, receiver) = mpsc::channel(100_000);
    let config = WorkSchedulerConfig { max_concurrency: slots, event_tx: Some(sender), ..Default::default() };
    (scheduler_with(config), receiver)
}

pub(crate) fn drain(events: &mut mpsc::Receiver<WorkEvent>) -> Vec<(String, WorkState, u32)> {
    std::iter::from_fn(|| events.try_recv().ok())
        .map(|event| (event.name.to_string(), event.state, event.attempt))
        .collect()
}

/// The states through which one item went.
pub(crate) fn path_of(events: &[(String, WorkState, u32)], name: &str) -> Vec<WorkState> {
    events.iter().filter(|(item, ..)| item == name).map(|(_, state, _)| *state).collect()
}

pub(crate) fn state(scheduler: &WorkScheduler, id: WorkId) -> WorkState {
    scheduler.state(id).unwrap()
}

pub(crate) fn error(scheduler: &WorkScheduler, id: WorkId) -> String {
    scheduler.inspect(id).unwrap().error.unwrap_or_default()
}

/// The item of this name.
pub(crate) fn named(handle: &WorkHandle, name: &str) -> WorkId {
    handle.snapshot().iter().find(|item| &*item.name == name).unwrap().id
}

pub(crate) fn spec(probe: Probe) -> WorkSpec {
    WorkSpec::new(probe)
}

/// Lets every other task run until it waits for something.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Lets virtual time pass.
pub(crate) async fn pass(duration: Duration) {
    let clock = SystemClock::new();
    clock.sleep_until(clock.now() + duration).await;
}

/// Measures virtual time.
pub(crate) struct Stopwatch(SystemClock);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(SystemClock::new())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.now().since_origin()
    }
}

/// The system's clock, and how often it was looked at.
#[derive(Debug, Default)]
pub(crate) struct WatchedClock(SystemClock, AtomicU64);

impl WatchedClock {
    pub(crate) fn looks(&self) -> u64 {
        self.1.load(Ordering::SeqCst)
    }
}

impl Clock for WatchedClock {
    fn now(&self) -> Monotonic {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.now()
    }

    fn wall(&self) -> SystemTime {
        self.0.wall()
    }

    fn sleep_until(&self, deadline: Monotonic) -> Sleep {
        self.0.sleep_until(deadline)
    }
}

/// A process that is being started, by another test say, has our files for a moment, and their locks.
pub(crate) fn open_journal(path: &Path) -> FileJournal {
    loop {
        match FileJournal::open(path) {
            Err(JournalError::InUse { .. }) => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}
