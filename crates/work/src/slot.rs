//! A slot: a task that takes one item after the other, as long as there are any, and runs user code.
//!
//! The slot is the only place where a work object is called. It turns what happened there (an outcome, a
//! panic, a timeout) into a verdict, calls the hooks that belong to it, writes the journal, and hands
//! the item back.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use dragnet_ambient::{Cancel, Monotonic};
use tracing::Instrument as _;

use crate::journal::JournalRecord;
use crate::machine::{Ending, Errand, Index, Slot, Verdict};
use crate::pace::Pace;
use crate::seat::{Output, Seat};
use crate::shared::Shared;
use crate::{Work, WorkContext, WorkId, WorkOutcome};

/// An item in a slot, with what the slot needs to know of it.
pub(crate) struct Job {
    pub(crate) index: Index,
    pub(crate) id: WorkId,
    pub(crate) attempt: u32,
    pub(crate) retries_left: u32,
    pub(crate) timeout: Option<Duration>,
    pub(crate) has_children: bool,
    pub(crate) errand: Errand,
    pub(crate) started: Monotonic,
    pub(crate) work: Box<dyn Work>,
}

impl Job {
    fn name(&self) -> String {
        self.work.name().to_owned()
    }
}

/// One busy slot. If it is dropped with an item in it, the item is given up: its future is gone.
pub(crate) struct Occupant {
    pub(crate) shared: Arc<Shared>,
    pub(crate) desk: Desk,
    /// Cancelled with the run that the slot belongs to.
    pub(crate) teardown: Cancel,
}

/// Where one item lies after the other.
pub(crate) struct Desk {
    pub(crate) slot: Slot,
    pub(crate) seat: Arc<Seat>,
    pub(crate) job: Option<Job>,
    pub(crate) pace: Pace,
    /// The run that the slot belongs to.
    pub(crate) run_number: u64,
    pub(crate) journalled: bool,
}

/// The time for which a slot keeps its thread, if its items let it.
///
/// Longer than the runtime's own budget, since a task that gives its thread away often wakes up on
/// another one, where nothing of what it needs is at hand.
#[derive(Clone, Copy, Debug, Default)]
struct Stint {
    items: u32,
    began: Monotonic,
}

impl Stint {
    const ITEMS_MAX: u32 = 1024;
    const TIME_MAX: Duration = Duration::from_micros(200);

    fn is_over(&self, now: Monotonic) -> bool {
        self.items >= Self::ITEMS_MAX || (self.items > 0 && now.since(self.began) >= Self::TIME_MAX)
    }
}

impl Occupant {
    /// Works until there is nothing to do. Whoever makes an item ready later starts a new occupant.
    pub(crate) async fn work_off(mut self) {
        let mut stint = Stint::default();
        while let Some(job) = &mut self.desk.job {
            if stint.is_over(job.started) {
                // Items that never wait must not keep the thread from other tasks.
                step_aside().await;
                stint = Stint::default();
            }
            if stint.items == 0 {
                // Not the time at which it was given the slot: the thread was busy elsewhere meanwhile.
                job.started = self.shared.clock.now();
                stint.began = job.started;
            }
            stint.items += 1;
            let errand = std::mem::replace(&mut job.errand, Errand::Run { first: false });
            let verdict = match errand {
                Errand::Finish(ending) => Verdict::End(*ending),
                Errand::Run { .. } if self.desk.seat.is_cancelled() => Verdict::End(Ending::Abort(None)),
                Errand::Run { first } => {
                    if first && self.desk.journalled {
                        announce_rerun(job, &self.shared);
                    }
                    let (seat, pace) = (&self.desk.seat, &mut self.desk.pace);
                    let result = run(job, first, &self.shared, seat, pace).await;
                    judge(result, self.desk.seat.is_cancelled(), job)
                }
            };
            if let Some(verdict) = self.settle_quickly(verdict) {
                // Boxed, so that the rare cases do not weigh on the common one.
                Box::pin(self.settle(verdict)).await;
            }
        }
    }

    /// Hands back an item for which nothing but a success hook has to be called, and takes the next.
    /// Returns what it cannot settle.
    fn settle_quickly(&mut self, verdict: Verdict) -> Option<Verdict> {
        let job = self.desk.job.as_mut()?;
        // From here on no children are accepted, so the answer below stays true.
        self.desk.seat.close();
        let plain = !self.desk.journalled && !job.has_children && !self.desk.seat.has_children();
        match verdict {
            Verdict::End(Ending::Success) if plain => {
                if let Err(panic) = guarded(|| job.work.on_success()) {
                    let ending = Ending::Fail(hook_panicked(&panic));
                    return self.shared.exchange(&mut self.desk, Verdict::End(ending)).map(Verdict::End);
                }
            }
            Verdict::End(_) => return Some(verdict),
            Verdict::Again | Verdict::Wait(_) => {}
        }
        self.shared.exchange(&mut self.desk, verdict).map(Verdict::End)
    }

    async fn settle(&mut self, mut verdict: Verdict) {
        // The hooks may pause.
        self.shared.slow_down(&mut self.desk.pace);
        loop {
            if let Verdict::End(ending) = verdict {
                let Some(ending) = self.close(ending).await else { return };
                verdict = Verdict::End(ending);
            }
            match self.shared.exchange(&mut self.desk, verdict) {
                Some(ending) => verdict = Verdict::End(ending),
                None => return,
            }
        }
    }

    /// Calls the hooks and writes the journal, if the children are out of the way. `None`: they are not,
    /// and the slot has gone on to something else.
    async fn close(&mut self, ending: Ending) -> Option<Ending> {
        let has_children = self.desk.job.as_ref()?.has_children || self.desk.seat.has_children();
        let ending = if has_children { self.shared.prepare(&mut self.desk, ending)? } else { ending };
        let job = self.desk.job.as_mut()?;
        let ending = call_hooks(job.work.as_mut(), ending).await;
        if ending == Ending::Success && self.desk.journalled {
            self.record();
        }
        Some(ending)
    }

    /// The point at which an item counts as done for later processes: its effects are there, its state
    /// is not yet. A crash in between skips it next time, which is right.
    fn record(&self) {
        let Some(job) = &self.desk.job else { return };
        let (identity, output) = self.shared.for_the_record(job.index, &self.desk.seat);
        let Some(fingerprint) = identity else { return };
        let output = match output {
            None => None,
            Some(Output::Durable(json)) => Some(json.to_string()),
            // Its dependents could not have this value after a restart, so it has to run again.
            Some(Output::Memory(_)) => return,
        };
        self.shared.write_journal(&JournalRecord::Done { fingerprint, name: job.name(), output });
    }
}

impl Drop for Occupant {
    fn drop(&mut self) {
        if let Some(job) = self.desk.job.take() {
            self.shared.forfeit(job, &mut self.desk);
        }
    }
}

/// An item that was done and is to be done again counts as not done until it is: if this process dies
/// meanwhile, the next one must not skip it.
fn announce_rerun(job: &Job, shared: &Shared) {
    if let Some(fingerprint) = shared.take_recorded(job.index) {
        shared.write_journal(&JournalRecord::Undone { fingerprint, name: job.name() });
    }
}

type Running<'a> = Pin<Box<dyn Future<Output = WorkOutcome> + Send + 'a>>;

async fn run(
    job: &mut Job,
    first: bool,
    shared: &Arc<Shared>,
    seat: &Arc<Seat>,
    pace: &mut Pace,
) -> Result<WorkOutcome, String> {
    let running = guarded(|| start(job, first, shared, seat))?;
    guarded_future(running, || shared.slow_down(pace)).await
}

/// Calls `run`, with everything around it that the item asks for.
fn start<'a>(job: &'a mut Job, first: bool, shared: &'a Shared, seat: &Arc<Seat>) -> Running<'a> {
    if first {
        job.work.on_reset();
    }
    let span = tracing::info_span!("work", id = %job.id, name = job.work.name(), attempt = job.attempt);
    let context = WorkContext { id: job.id, attempt: job.attempt, seat: Arc::clone(seat) };
    let mut running = job.work.run(context);
    if let Some(timeout) = job.timeout {
        running = Box::pin(async move {
            tokio::select! {
                biased;
                outcome = running => outcome,
                () = shared.clock.sleep(timeout) => WorkOutcome::retry(format!("timed out after {timeout:?}")),
            }
        });
    }
    if !span.is_disabled() {
        running = Box::pin(running.instrument(span));
    }
    running
}

/// What an outcome, or a panic's message, means, given what has been asked of the item meanwhile.
///
/// Success stays success after a cancel request: the effects have happened.
fn judge(result: Result<WorkOutcome, String>, cancelled: bool, job: &Job) -> Verdict {
    let (error, delay) = match result {
        Ok(WorkOutcome::Success) => return Verdict::End(Ending::Success),
        Ok(WorkOutcome::Cancelled) => return Verdict::End(Ending::Abort(None)),
        Ok(WorkOutcome::Continue | WorkOutcome::Wait(_)) if cancelled => {
            return Verdict::End(Ending::Abort(None));
        }
        Ok(WorkOutcome::Continue) => return Verdict::Again,
        Ok(WorkOutcome::Wait(wait)) => return Verdict::Wait(wait),
        Ok(WorkOutcome::Failed(error)) if cancelled => return Verdict::End(Ending::Abort(Some(error))),
        Ok(WorkOutcome::Failed(error)) => return Verdict::End(Ending::Fail(error)),
        Ok(WorkOutcome::Retry { delay }) => (String::new(), delay),
        Ok(WorkOutcome::RetryBecause { error, delay }) => (error, delay),
        Err(panic) => {
            let error = format!("panicked: {panic}");
            return Verdict::End(if cancelled { Ending::Abort(Some(error)) } else { Ending::Fail(error) });
        }
    };
    Verdict::End(if cancelled {
        Ending::Abort(Some(error).filter(|error| !error.is_empty()))
    } else if job.retries_left > 0 {
        Ending::Retry { delay, error }
    } else {
        Ending::Fail(exhausted(&error, job.attempt))
    })
}

fn exhausted(error: &str, attempts: u32) -> String {
    let plural = if attempts == 1 { "" } else { "s" };
    if error.is_empty() {
        format!("gave up after {attempts} attempt{plural}")
    } else {
        format!("{error} (gave up after {attempts} attempt{plural})")
    }
}

/// Calls the hooks of an ending, in their order. A hook that panics changes the ending.
async fn call_hooks(work: &mut dyn Work, ending: Ending) -> Ending {
    let result = match &ending {
        Ending::Success => guarded(|| work.on_success()),
        Ending::Retry { .. } => guarded(|| {
            work.on_failure_retry();
            work.on_reset();
        }),
        Ending::Fail(_) => guarded(|| {
            work.on_failure_raise();
            work.on_reset();
        }),
        Ending::Abort(_) => match guarded_future(async { work.on_abort().await }, || ()).await {
            Ok(()) => guarded(|| work.on_reset()),
            panic => panic,
        },
    };
    match (result, ending) {
        (Ok(()), ending) => ending,
        (Err(panic), Ending::Abort(_)) => Ending::Abort(Some(hook_panicked(&panic))),
        (Err(panic), _) => Ending::Fail(hook_panicked(&panic)),
    }
}

fn hook_panicked(panic: &str) -> String {
    format!("a hook panicked: {panic}")
}

/// Lets other tasks go first.
///
/// The runtime's own way to yield keeps the task with its thread, and if that thread is then kept busy by
/// another task, the item in this slot would wait for it. Woken like this, any thread can take it.
async fn step_aside() {
    let mut stepped = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut stepped, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Runs user code and turns a panic into its message.
fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(panic_message)
}

async fn guarded_future<F: Future>(future: F, mut on_pause: impl FnMut()) -> Result<F::Output, String> {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| match guarded(|| future.as_mut().poll(cx)) {
        Ok(Poll::Pending) => {
            on_pause();
            Poll::Pending
        }
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

fn panic_message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().map_or("no message", |text| text).to_owned(),
    }
}
