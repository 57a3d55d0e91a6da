//! [`WorkScheduler`]: owns the work and runs it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use dragnet_ambient::{Cancel, Monotonic, Rng, SharedClock, SystemClock};
use tokio::sync::mpsc;

use crate::events::EventSink;
use crate::inner::{Inner, WorkEnd};
use crate::journal::Journal;
use crate::shared::{ActiveRun, Shared, Starting};
use crate::{JournalError, WorkError, WorkEvent, WorkHandle, WorkSchedulerMetrics, WorkSpec};

/// A scheduler's settings.
#[derive(Clone, Debug)]
pub struct WorkSchedulerConfig {
    /// How many slots there are. An item takes as many as its weight, while it runs.
    pub max_concurrency: usize,
    /// The pause before a retry, where neither the outcome nor the item says otherwise.
    pub retry_delay: Duration,
    /// Where events go. A full channel never holds the scheduler up: see [`WorkEvent::missed`].
    pub event_tx: Option<mpsc::Sender<WorkEvent>>,
}

impl Default for WorkSchedulerConfig {
    /// Sixteen slots, one second, no events.
    fn default() -> Self {
        Self { max_concurrency: 16, retry_delay: Duration::from_secs(1), event_tx: None }
    }
}

/// What the failure of one item means to the rest of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// Everything that does not depend on it goes on.
    #[default]
    KeepGoing,
    /// Everything else is cancelled. The failure of a child is its parent's business first.
    FailFast,
}

/// When a run ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Until {
    /// When every item has ended.
    #[default]
    Done,
    /// Only after [`WorkHandle::shutdown`] or a cancellation; until then it waits for new work.
    Shutdown,
}

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Cancelling this cancels every item; the run then ends when all have wound down.
    pub cancel: Cancel,
    /// What a failure means to the rest.
    pub on_failure: OnFailure,
    /// When the run ends by itself.
    pub until: Until,
}

/// How a run ended.
#[derive(Debug)]
pub struct RunReport {
    /// The counts at its end.
    pub metrics: WorkSchedulerMetrics,
    /// The first thing that went wrong with the journal. Items were not affected, but after a crash some
    /// may run again.
    pub journal_error: Option<JournalError>,
}

impl RunReport {
    /// True if every item succeeded.
    pub fn all_succeeded(&self) -> bool {
        self.metrics.success == self.metrics.total
    }
}

/// Runs work in the order of its dependencies, so much at a time as there are slots.
///
/// It [derefs](Deref) to its [`WorkHandle`], which adds and inspects; [`handle`](Self::handle) gives a
/// clone for others to use while this one runs. Work runs on the tokio runtime that polls the run: on
/// all its threads.
#[derive(Debug)]
pub struct WorkScheduler {
    handle: WorkHandle,
}

impl Deref for WorkScheduler {
    type Target = WorkHandle;

    fn deref(&self) -> &WorkHandle {
        &self.handle
    }
}

impl WorkScheduler {
    /// A scheduler on the system's clock.
    pub fn new(config: WorkSchedulerConfig) -> Result<Self, WorkError> {
        Self::with_ambient(config, Arc::new(SystemClock::new()), Rng::from_entropy())
    }

    /// A scheduler on a clock and a source of randomness of the caller's choice. With equal seeds, on a
    /// single-threaded runtime with paused time, equal work gives equal events.
    pub fn with_ambient(
        config: WorkSchedulerConfig,
        clock: SharedClock,
        rng: Rng,
    ) -> Result<Self, WorkError> {
        if config.max_concurrency == 0 {
            return Err(WorkError::ZeroConcurrency);
        }
        let capacity = u32::try_from(config.max_concurrency).unwrap_or(u32::MAX);
        let events = config.event_tx.map(EventSink::new);
        let shared = Shared::new(capacity, config.retry_delay, events, clock, rng);
        Ok(Self { handle: WorkHandle::new(Arc::new(shared)) })
    }

    /// Skips what the journal knows as done, and records in it what gets done.
    ///
    /// Comes before the first item, and once.
    pub fn with_journal(self, journal: impl Journal + 'static) -> Result<Self, WorkError> {
        self.shared().read(|inner| {
            if inner.is_journalled() {
                return Err(WorkError::SecondJournal);
            }
            if inner.machine.total() > 0 {
                return Err(WorkError::JournalAfterWork);
            }
            Ok(())
        })?;
        self.shared().keep_book(Box::new(journal));
        Ok(self)
    }

    /// A handle for others to use, also while this scheduler runs.
    pub fn handle(&self) -> WorkHandle {
        self.handle.clone()
    }

    /// Runs until every item has ended.
    ///
    /// Dropping the future stops the run: items that are in a slot at that moment are cancelled, with
    /// their futures dropped, unless they were just about to end; the others stay as they are, for the
    /// next run.
    pub async fn run_until_done(&mut self) -> RunReport {
        self.run(RunOptions::default()).await
    }

    /// Runs until every item has ended; when `cancel` is cancelled, asks all of them to.
    pub async fn run_until_done_with_cancel(&mut self, cancel: Cancel) -> RunReport {
        self.run(RunOptions { cancel, ..RunOptions::default() }).await
    }

    /// Adds an item, runs everything until done, and says how the item ended.
    pub async fn execute_work(&mut self, spec: WorkSpec) -> Result<WorkEnd, WorkError> {
        let id = self.add(spec)?;
        self.run_until_done().await;
        self.wait(id).await
    }

    /// Runs, with all choices open.
    pub async fn run(&mut self, options: RunOptions) -> RunReport {
        let shared = Arc::clone(self.shared());
        let mut asked_to_stop = options.cancel.is_cancelled();
        let run = Run::begin(&shared, options.on_failure, asked_to_stop);
        let mut starting = Starting::Now;
        loop {
            let now = shared.clock.now();
            let (finished, alarm) = shared.update_with(starting, |inner| {
                let alarm = look(inner, now);
                let waits_for_more = options.until == Until::Shutdown && !asked_to_stop && !inner.closed;
                let finished = inner.machine.unfinished() == 0 && !waits_for_more;
                if finished {
                    // What is added from now on is for the next run.
                    inner.run = None;
                }
                (finished, alarm)
            });
            if finished {
                break;
            }
            starting = Starting::Now;
            tokio::select! {
                biased;
                () = options.cancel.cancelled(), if !asked_to_stop => {
                    asked_to_stop = true;
                    shared.update(Inner::abort_all);
                }
                () = shared.look_again.notified() => starting = Starting::Later,
                () = sleep_until(&shared, alarm) => {}
            }
        }
        run.report()
    }
}

/// Wakes what is due and says when the next is.
fn look(inner: &mut Inner, now: Monotonic) -> Option<Monotonic> {
    inner.machine.fire_timers(now);
    let alarm = inner.machine.next_deadline();
    if let Some(run) = &mut inner.run {
        run.alarm = alarm;
    }
    alarm
}

async fn sleep_until(shared: &Shared, alarm: Option<Monotonic>) {
    match alarm {
        Some(deadline) => shared.clock.sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Whoever still has a handle learns that nothing will run any more, instead of waiting for ever; whoever
/// reads the events sees their end.
impl Drop for WorkScheduler {
    fn drop(&mut self) {
        self.shutdown();
        self.shared().update(|inner| {
            inner.machine.abandon();
            inner.drop_works();
        });
        self.shared().update(|inner| {
            inner.machine.record_all = false;
            inner.events = None;
        });
    }
}

/// The time in which slots may start. Ends when dropped, and takes the slots down with it.
struct Run<'a> {
    shared: &'a Arc<Shared>,
}

impl<'a> Run<'a> {
    fn begin(shared: &'a Arc<Shared>, on_failure: OnFailure, asked_to_stop: bool) -> Self {
        shared.update(|inner| {
            if asked_to_stop {
                inner.abort_all();
            }
            inner.machine.fail_fast = on_failure == OnFailure::FailFast;
            let runtime = tokio::runtime::Handle::current();
            inner.runs_begun += 1;
            let number = inner.runs_begun;
            inner.run = Some(ActiveRun {
                runtime,
                number,
                teardown: Cancel::new(),
                alarm: None,
                watch: None,
                doomed: false,
                told_done: false,
            });
        });
        Self { shared }
    }

    fn report(self) -> RunReport {
        let journal_error = self.shared.book().as_mut().and_then(|book| {
            book.sync();
            book.take_failure()
        });
        RunReport { metrics: WorkHandle::new(Arc::clone(self.shared)).metrics(), journal_error }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.shared.update(|inner| {
            if let Some(run) = inner.run.take() {
                run.teardown.cancel();
            }
            inner.machine.fail_fast = false;
            inner.machine.aborting = inner.closed;
            if let Some(events) = &mut inner.events {
                events.flush();
            }
        });
    }
}
