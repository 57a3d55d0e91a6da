//! What a user writes: the [`Work`] trait, its [`WorkOutcome`], and closures as work.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::WorkContext;

/// The name of one work item within one scheduler.
///
/// Ids are given out in order. After an item was forgotten, its number may be used again with another
/// generation, so an old id never names a new item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkId {
    generation: u32,
    index: u32,
}

impl WorkId {
    pub(crate) const fn from_parts(index: u32, generation: u32) -> Self {
        Self { generation, index }
    }

    pub(crate) const fn index(self) -> u32 {
        self.index
    }

    pub(crate) const fn generation(self) -> u32 {
        self.generation
    }
}

impl fmt::Display for WorkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.generation {
            0 => write!(f, "#{}", self.index),
            generation => write!(f, "#{}.{generation}", self.index),
        }
    }
}

/// Something to be done, by one scheduler, perhaps in several attempts.
///
/// An item keeps its state between attempts: the same object is run again. The hooks are called by the
/// scheduler, never at the same time as `run`, and in this order:
///
/// | what happens | hooks |
/// |---|---|
/// | first start, or start after a restart | `on_reset`, then `run` |
/// | success | `on_success` |
/// | a failed attempt with retries left | `on_failure_retry`, `on_reset`, then the pause |
/// | a failed attempt without | `on_failure_raise`, `on_reset` |
/// | cancelled after it had started | `on_abort`, `on_reset` |
///
/// While a hook runs, the item's state still reads as it was before; only the first `on_reset` sees
/// `Running`, since the item has its slot by then. No hook is called for an item that is cancelled before
/// it ever started, as there is nothing to clean up, nor for one whose run was dropped, as there is nobody
/// to call it. A cancel request that arrives while the hooks of a failure run is followed by `on_abort`.
#[async_trait]
pub trait Work: Send {
    /// A stable name, for people and for the journal.
    fn name(&self) -> &str;

    /// Makes one attempt, or one step of it, and says what became of it.
    ///
    /// Long work looks at [`WorkContext::is_cancelled`] between its pieces, or selects on
    /// [`WorkContext::cancel_token`]. A panic is caught and fails the item.
    async fn run(&mut self, ctx: WorkContext) -> WorkOutcome;

    /// What the item does, in any text that changes when its meaning changes: parameters, a version, a
    /// hash of its input. A journal skips an item only if name, definition and dependencies are as they
    /// were. What cannot know it by itself, a closure say, gets it by
    /// [`WorkSpec::defined_by`](crate::WorkSpec::defined_by).
    fn definition(&self) -> String {
        String::new()
    }

    /// Go back to the initial state: an attempt begins, or the last one has left things behind.
    fn on_reset(&mut self) {}

    /// The item has succeeded.
    fn on_success(&mut self) {}

    /// The attempt has failed and there will be another.
    fn on_failure_retry(&mut self) {}

    /// The item has failed for good.
    fn on_failure_raise(&mut self) {}

    /// The item was cancelled: put away what is half done. It does not end before this returns.
    async fn on_abort(&mut self) {}
}

/// What became of one call of [`Work::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkOutcome {
    /// Done. Dependents may start. If children are still running, the item ends when they have ended,
    /// and only succeeds if they all did.
    Success,
    /// The attempt failed; make another after `delay`, if retries are left. A zero delay stands for the
    /// item's backoff.
    Retry {
        /// The pause before the next attempt.
        delay: Duration,
    },
    /// As [`Retry`](Self::Retry), with the reason. When retries run out, it is part of the item's error.
    RetryBecause {
        /// What went wrong.
        error: String,
        /// The pause before the next attempt.
        delay: Duration,
    },
    /// Failed for good, whatever retries are left. Dependents are blocked. Children that are still
    /// running are cancelled first.
    Failed(String),
    /// Stopped early, as asked.
    Cancelled,
    /// One step is done and there are more: the item gives its slot to whoever is next and goes to the
    /// end of the queue. So stepwise items take turns.
    Continue,
    /// Nothing to do for now: the item gives its slot back and is run again when it is called.
    Wait(Wait),
}

impl WorkOutcome {
    /// The attempt failed; make another after the item's backoff, if retries are left.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::RetryBecause { error: error.to_string(), delay: Duration::ZERO }
    }

    /// Failed for good.
    pub fn failed(error: impl fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// Wait until somebody calls [`WorkWaker::wake`](crate::WorkWaker::wake) or
    /// [`WorkHandle::wake`](crate::WorkHandle::wake). A wake-up that came during this call of `run`
    /// counts: it is never lost.
    pub fn wait() -> Self {
        Self::Wait(Wait { timer: None, children: ChildWait::No })
    }

    /// Wait for a time, or until somebody wakes the item.
    pub fn wait_for(duration: Duration) -> Self {
        Self::Wait(Wait { timer: Some(duration), children: ChildWait::No })
    }

    /// Wait until all children have ended, or until one did not succeed.
    pub fn wait_for_children() -> Self {
        Self::Wait(Wait { timer: None, children: ChildWait::All })
    }

    /// Wait until any child has ended.
    pub fn wait_for_any_child() -> Self {
        Self::Wait(Wait { timer: None, children: ChildWait::Any })
    }
}

/// What calls a waiting item back. A wake-up from outside always does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// At the latest after this time.
    pub timer: Option<Duration>,
    /// When children end.
    pub children: ChildWait,
}

/// Which ends of children call a waiting parent back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChildWait {
    /// None.
    #[default]
    No,
    /// Each.
    Any,
    /// The last one, and each that does not succeed.
    All,
}

/// How far an item has come, in units of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Units done.
    pub done: u64,
    /// Units in all, where known.
    pub total: Option<u64>,
}

/// A closure as work: see [`work_fn`].
#[derive(Debug)]
pub struct FnWork<F> {
    name: String,
    function: F,
}

/// Makes work of an async closure. It is called again for each attempt, and may return anything that
/// is [an outcome](IntoOutcome): nothing, a `bool`, a `Result`, a [`WorkOutcome`].
///
/// ```
/// use dragnet_work::{work_fn, WorkContext};
///
/// let work = work_fn("count", async |ctx: WorkContext| {
///     ctx.set_output(42_u64);
///     Ok::<(), std::io::Error>(())
/// });
/// # let _: Box<dyn dragnet_work::Work> = Box::new(work);
/// ```
pub fn work_fn<F, Fut, O>(name: impl Into<String>, function: F) -> FnWork<F>
where
    F: FnMut(WorkContext) -> Fut + Send,
    Fut: Future<Output = O> + Send,
    O: IntoOutcome,
{
    FnWork { name: name.into(), function }
}

#[async_trait]
impl<F, Fut, O> Work for FnWork<F>
where
    F: FnMut(WorkContext) -> Fut + Send,
    Fut: Future<Output = O> + Send,
    O: IntoOutcome,
{
    fn name(&self) -> &str {
        &self.name
    }

    async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
        let future = (self.function)(ctx);
        future.await.into_outcome()
    }
}

/// What a closure may return.
pub trait IntoOutcome {
    /// The outcome it stands for.
    fn into_outcome(self) -> WorkOutcome;
}

impl IntoOutcome for WorkOutcome {
    fn into_outcome(self) -> WorkOutcome {
        self
    }
}

/// Nothing to report is success.
impl IntoOutcome for () {
    fn into_outcome(self) -> WorkOutcome {
        WorkOutcome::Success
    }
}

/// `false` is a failed attempt, which is retried while retries are left.
impl IntoOutcome for bool {
    fn into_outcome(self) -> WorkOutcome {
        if self { WorkOutcome::Success } else { WorkOutcome::retry("it returned false") }
    }
}

/// An error is a failed attempt, which is retried while retries are left.
impl<T: IntoOutcome, E: fmt::Display> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> WorkOutcome {
        match self {
            Ok(value) => value.into_outcome(),
            Err(error) => WorkOutcome::retry(error),
        }
    }
}
