//! One after the other: [`WorkSequence`] chains items of the scheduler, [`SequenceWork`] is one item that
//! runs its elements in order.
//!
//! The chain is for a fixed list of steps that others may depend on one by one. The item is for a list
//! that succeeds, fails and is retried as a whole.

use async_trait::async_trait;

use crate::child::Child;
use crate::{Work, WorkContext, WorkError, WorkHandle, WorkId, WorkOutcome, WorkSpec, WorkState};

/// Adds items to a scheduler, each depending on the one before.
///
/// ```
/// use dragnet_work::{work_fn, WorkScheduler, WorkSchedulerConfig, WorkSequence};
///
/// # fn main() -> Result<(), dragnet_work::WorkError> {
/// let mut scheduler = WorkScheduler::new(WorkSchedulerConfig::default())?;
/// let mut sequence = WorkSequence::new();
/// sequence.push(&scheduler, Box::new(work_fn("fetch", async |_| ())), 3)?;
/// sequence.push(&scheduler, Box::new(work_fn("apply", async |_| ())), 0)?;
/// assert_eq!(sequence.ids().len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct WorkSequence {
    ids: Vec<WorkId>,
}

impl WorkSequence {
    /// An empty chain.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an item that starts after the last one pushed has succeeded.
    pub fn push(
        &mut self,
        scheduler: &WorkHandle,
        work: Box<dyn Work>,
        retries: u32,
    ) -> Result<WorkId, WorkError> {
        self.push_spec(scheduler, WorkSpec::boxed(work).retries(retries))
    }

    /// As [`push`](Self::push), with all settings of the item.
    pub fn push_spec(&mut self, scheduler: &WorkHandle, spec: WorkSpec) -> Result<WorkId, WorkError> {
        let id = scheduler.add(spec.after(self.ids.last().copied()))?;
        self.ids.push(id);
        Ok(id)
    }

    /// The ids, in order.
    pub fn ids(&self) -> &[WorkId] {
        &self.ids
    }
}

/// An item that runs its elements one at a time, as its children.
///
/// It fails at the first element that does, or, if told to [go on](Self::keep_going), at the end. A retry
/// of the sequence starts again from the first element, each with fresh retries of its own. Elements
/// that were not reached are never added to the scheduler. Its status is that of the current element.
pub struct SequenceWork {
    name: String,
    elements: Vec<Child>,
    current: usize,
    stop_at_first_failure: bool,
    /// What became of the first failed element, when going on in spite of it.
    failure: Option<String>,
}

impl SequenceWork {
    /// A sequence that stops at the first failure. Without elements it succeeds.
    pub fn new(name: impl Into<String>, elements: impl IntoIterator<Item = WorkSpec>) -> Self {
        let elements = elements.into_iter().map(Child::new).collect();
        Self { name: name.into(), elements, current: 0, stop_at_first_failure: true, failure: None }
    }

    /// Runs all elements even if some fail. The sequence still fails at the end, if one did.
    pub fn keep_going(mut self) -> Self {
        self.stop_at_first_failure = false;
        self
    }

    /// How the current element ended; `None` while it has not.
    fn end_of_current(&self, ctx: &WorkContext) -> Option<Result<(), String>> {
        let Child::Added(id) = self.elements[self.current] else { return None };
        let Some(item) = ctx.handle().and_then(|handle| handle.inspect(id)) else {
            return Some(Err(format!("its element {id} is gone")));
        };
        match item.state {
            WorkState::Success => Some(Ok(())),
            state if state.is_terminal() => {
                Some(Err(format!("'{}' {state}: {}", item.name, item.error.unwrap_or_default())))
            }
            _ => None,
        }
    }
}

#[async_trait]
impl Work for SequenceWork {
    fn name(&self) -> &str {
        &self.name
    }

    async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
        if ctx.children().has_children() {
            match self.end_of_current(&ctx) {
                None => return WorkOutcome::wait_for_any_child(),
                Some(Err(error)) if self.stop_at_first_failure => return WorkOutcome::retry(error),
                Some(Err(error)) => _ = self.failure.get_or_insert(error),
                Some(Ok(())) => {}
            }
            self.current += 1;
        }
        if self.current >= self.elements.len() {
            return self.failure.take().map_or(WorkOutcome::Success, WorkOutcome::retry);
        }
        match self.elements[self.current].start(&ctx) {
            Ok(()) => WorkOutcome::wait_for_any_child(),
            Err(error) => WorkOutcome::failed(error),
        }
    }

    fn definition(&self) -> String {
        self.elements.iter().map(Child::definition).collect()
    }

    fn on_reset(&mut self) {
        self.current = 0;
        self.failure = None;
    }
}

impl std::fmt::Debug for SequenceWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SequenceWork")
            .field("name", &self.name)
            .field("elements", &self.elements.len())
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}
