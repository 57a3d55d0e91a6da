//! [`WorkHandle`]: everything one may ask of a scheduler while it runs.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::inner::WorkEnd;
use crate::shared::Shared;
use crate::snapshot::{snapshot, status_line};
use crate::{Work, WorkError, WorkId, WorkSchedulerMetrics, WorkSnapshot, WorkSpec, WorkState};

/// A cloneable handle to a [`WorkScheduler`](crate::WorkScheduler).
///
/// Adds, cancels, wakes, inspects and waits, from any task or thread, before, during and after a run.
/// After the scheduler itself was dropped it refuses new work.
#[derive(Clone, Debug)]
pub struct WorkHandle {
    shared: Arc<Shared>,
}

impl WorkHandle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Adds an item that starts after all of `deps` have succeeded and may be retried `retries` times.
    ///
    /// Refused, with the reason, if it could never run: see [`WorkError`].
    pub fn add_work(
        &self,
        work: Box<dyn Work>,
        deps: Vec<WorkId>,
        retries: u32,
    ) -> Result<WorkId, WorkError> {
        self.add(WorkSpec::boxed(work).after(deps).retries(retries))
    }

    /// Adds an item with all its settings.
    pub fn add(&self, spec: WorkSpec) -> Result<WorkId, WorkError> {
        self.shared.add(spec, None)
    }

    /// Makes an item that has not started wait for one more.
    pub fn add_dependency(&self, item: WorkId, dependency: WorkId) -> Result<(), WorkError> {
        self.shared.update(|inner| {
            if inner.is_journalled() {
                let index = inner.index_of(item)?;
                return Err(WorkError::Journalled { item: inner.machine.name(index).to_owned() });
            }
            inner.machine.add_dependency(item, dependency)
        })
    }

    /// Asks an item, and its children, to stop. False if it has ended, was asked before or is unknown.
    ///
    /// An item that has not started is cancelled at once. One that runs is told by its
    /// [context](crate::WorkContext::is_cancelled) and stays `Aborting` until it has wound down; if it
    /// still succeeds, it has succeeded. What depends on it is blocked.
    pub fn cancel(&self, id: WorkId) -> bool {
        self.shared.update(|inner| inner.index_of(id).is_ok_and(|index| inner.machine.cancel(index)))
    }

    /// Asks every unfinished item to stop. The scheduler goes on and takes new work.
    pub fn cancel_all(&self) {
        self.shared.update(|inner| inner.machine.cancel_all());
    }

    /// Cancels everything and takes no more work, for good. A run that serves ends when all has ended.
    pub fn shutdown(&self) {
        self.shared.update(|inner| {
            inner.closed = true;
            inner.abort_all();
        });
        // Also when there was nothing to cancel.
        self.shared.look_again.notify_one();
    }

    /// Calls a waiting item back, be it from a wait of its own or from the pause before a retry. If it
    /// runs at this moment, its next wait ends at once. False if it does neither.
    pub fn wake(&self, id: WorkId) -> bool {
        self.shared.update(|inner| inner.index_of(id).is_ok_and(|index| inner.machine.wake(index)))
    }

    /// Runs a finished item again, with fresh retries. Items that were blocked only by it become
    /// pending again.
    pub fn restart(&self, id: WorkId) -> Result<(), WorkError> {
        self.shared.update(|inner| {
            let index = inner.index_of(id)?;
            inner.machine.restart(index)
        })
    }

    /// Drops a finished item and its memory, with its children. Their ids are void from then on. Refused
    /// while something unfinished depends on it, or has it as a child.
    pub fn forget(&self, id: WorkId) -> Result<(), WorkError> {
        self.shared.update(|inner| {
            let index = inner.index_of(id)?;
            inner.forget(index)
        })
    }

    /// Drops every finished item that no unfinished one depends on, and says how many. A scheduler that
    /// serves for long calls this now and then.
    pub fn forget_finished(&self) -> usize {
        self.shared.update(|inner| {
            let finished = |index: &_| inner.machine.node(*index).state.is_terminal();
            let all: Vec<_> = inner.machine.indices().filter(finished).collect();
            let before = inner.machine.total();
            // Some are still needed, and some go with their parents.
            all.into_iter().for_each(|index| _ = inner.forget(index));
            before - inner.machine.total()
        })
    }

    /// Where an item stands; `None` if there is no such item.
    pub fn state(&self, id: WorkId) -> Option<WorkState> {
        self.shared.read(|inner| Some(inner.machine.node(inner.machine.index_of(id)?).state))
    }

    /// An item's status in one line for people: `Retrying in 3 sec: fetch`, `Waiting: merge : 2/5
    /// children completed`.
    pub fn status(&self, id: WorkId) -> Option<String> {
        let now = self.shared.clock.now();
        self.shared.read(|inner| Some(status_line(&inner.machine, inner.machine.index_of(id)?, now)))
    }

    /// The time until an item's next attempt, while it pauses between two.
    pub fn retry_eta(&self, id: WorkId) -> Option<std::time::Duration> {
        let now = self.shared.clock.now();
        self.shared.read(|inner| {
            let node = inner.machine.node(inner.machine.index_of(id)?);
            Some(node.retry_at()?.since(now))
        })
    }

    /// Counts over all items, in constant time.
    pub fn metrics(&self) -> WorkSchedulerMetrics {
        self.shared.read(|inner| {
            let missed = inner.events.as_ref().map_or(0, |events| events.missed_total);
            WorkSchedulerMetrics::of(&inner.machine, missed)
        })
    }

    /// All items at this moment, oldest place first.
    pub fn snapshot(&self) -> Vec<WorkSnapshot> {
        self.shared.read(|inner| snapshot(&inner.machine, inner.machine.indices()))
    }

    /// One item at this moment.
    pub fn inspect(&self, id: WorkId) -> Option<WorkSnapshot> {
        self.shared.read(|inner| {
            let index = inner.machine.index_of(id)?;
            snapshot(&inner.machine, std::iter::once(index)).pop()
        })
    }

    /// The scheduler as if it were an item: `Waiting` when idle, `Running` when something runs or could,
    /// `Aborting` and `Cancelled` after a shutdown.
    pub fn scheduler_state(&self) -> WorkState {
        self.shared.update(|inner| match (inner.closed, inner.machine.unfinished()) {
            (true, 0) => WorkState::Cancelled,
            (true, _) => WorkState::Aborting,
            (false, _) if inner.machine.is_active() => WorkState::Running,
            (false, _) => WorkState::Waiting,
        })
    }

    /// Waits for an item to end and says how. Needs somebody to run the scheduler.
    ///
    /// An item that waits like this within its `run` keeps its slot; where slots are few, let it have
    /// children or dependencies instead.
    pub async fn wait(&self, id: WorkId) -> Result<WorkEnd, WorkError> {
        let (sender, receiver) = oneshot::channel();
        self.shared.update(|inner| {
            let index = inner.index_of(id)?;
            inner.watch(index, sender);
            Ok(())
        })?;
        // The sender goes away unused only with the scheduler and every item in it.
        receiver.await.map_err(|_| WorkError::UnknownItem(id))
    }

    /// Adds an item and waits for its end. Needs somebody to run the scheduler; to run it as well, use
    /// [`WorkScheduler::execute_work`](crate::WorkScheduler::execute_work).
    pub async fn execute_work(&self, spec: WorkSpec) -> Result<WorkEnd, WorkError> {
        let id = self.add(spec)?;
        self.wait(id).await
    }
}
