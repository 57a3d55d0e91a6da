//! [`WorkContext`]: what a running item knows of its scheduler and may ask of it.

use std::any::Any;
use std::sync::{Arc, Weak};

use dragnet_ambient::{Cancel, Monotonic};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::inner::Inner;
use crate::machine::{Extra, Index};
use crate::seat::{Output, Seat};
use crate::shared::Shared;
use crate::{OutputError, Progress, WorkEnd, WorkError, WorkHandle, WorkId, WorkOutcome, WorkSpec};

/// Handed to each call of [`Work::run`](crate::Work::run).
///
/// It may be cloned and kept longer than the call. What it can still do then is harmless: it reads, and
/// wakes; children are refused.
#[derive(Clone, Debug)]
pub struct WorkContext {
    /// The item's id.
    pub id: WorkId,
    /// The attempt, counted from 1.
    pub attempt: u32,
    pub(crate) seat: Arc<Seat>,
}

impl WorkContext {
    /// True once the item was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.seat.is_cancelled()
    }

    /// The token that is cancelled when the item is asked to stop.
    pub fn cancel_token(&self) -> &Cancel {
        self.seat.token()
    }

    /// Calls this item back from [`WorkOutcome::wait`], from anywhere, at any time.
    pub fn waker(&self) -> WorkWaker {
        WorkWaker { id: self.id, scheduler: self.seat.scheduler.clone() }
    }

    /// The time on the scheduler's clock.
    pub fn now(&self) -> Monotonic {
        self.scheduler().map_or(Monotonic::ORIGIN, |shared| shared.clock.now())
    }

    /// The scheduler, to add work that is not a child, to look around, to wait. `None` after it is gone.
    pub fn handle(&self) -> Option<WorkHandle> {
        self.scheduler().map(WorkHandle::new)
    }

    /// Adds a child. It competes for slots like any other item; this one ends after it.
    ///
    /// Usually followed by [`WorkOutcome::wait_for_children`]. Refused while this item is being aborted.
    pub fn add_child(&self, spec: WorkSpec) -> Result<WorkId, WorkError> {
        self.scheduler().ok_or(WorkError::UnknownItem(self.id))?.add(spec, Some(self))
    }

    /// Runs a finished item again, with fresh retries, as a child of this attempt.
    pub fn restart_child(&self, child: WorkId) -> Result<(), WorkError> {
        self.on_self(|inner, _| {
            let index = inner.index_of(child)?;
            let me = self.as_parent(inner, inner.machine.name(index))?;
            inner.machine.restart_child(me, index)
        })
    }

    /// This item as the parent of a new child, of which the slot learns by this. Refused when its turn is
    /// over.
    pub(crate) fn as_parent(&self, inner: &Inner, child: &str) -> Result<Index, WorkError> {
        let me = inner.index_of(self.id)?;
        if self.seat.expect_children() {
            return Ok(me);
        }
        let parent = inner.machine.name(me).to_owned();
        Err(WorkError::ParentNotRunning { item: child.to_owned(), parent })
    }

    /// The children of this attempt, in numbers.
    pub fn children(&self) -> Children {
        self.on_self(|inner, me| {
            let family = inner.machine.node(me).family();
            Ok(Children {
                total: family.total,
                unfinished: family.live,
                succeeded: family.succeeded,
                first_failure: family.first_failure,
            })
        })
        .unwrap_or_default()
    }

    /// Forgets the finished children of this attempt and says how each ended. So a parent of many sees
    /// each once, and memory stays bounded. The counts of [`children`](Self::children) stay.
    pub fn take_finished_children(&self) -> Vec<WorkEnd> {
        self.on_self(|inner, me| {
            let finished = inner.machine.disown_finished(me);
            let ends = finished.iter().map(|child| inner.end_of(*child)).collect();
            // One that something else depends on is not forgotten, but is no child any more.
            finished.into_iter().for_each(|child| _ = inner.forget(child));
            Ok(ends)
        })
        .unwrap_or_default()
    }

    /// Gives a value to the dependents, when this item succeeds. The last call counts.
    ///
    /// The value lives in memory only: a journalled run does not skip the item after a crash, because
    /// its dependents could not have the value. Where it can be written as JSON, use
    /// [`set_durable_output`](Self::set_durable_output).
    pub fn set_output<T: Any + Send + Sync>(&self, value: T) {
        self.seat.put_output(Output::Memory(Arc::new(value)));
    }

    /// Gives a value to the dependents that a journal keeps, when this item succeeds. The last call
    /// counts.
    pub fn set_durable_output<T: Serialize>(&self, value: &T) -> Result<(), OutputError> {
        let encode = || {
            let json = serde_json::to_string(value)?;
            // Only ready-made JSON brings line breaks along, and a journal has none within a record.
            if !json.contains('\n') {
                return Ok(json);
            }
            serde_json::from_str(&json).and_then(|value: serde_json::Value| serde_json::to_string(&value))
        };
        let json = encode().map_err(|error| self.encoding::<T>(self.id, &error))?;
        self.seat.put_output(Output::Durable(json.into()));
        Ok(())
    }

    /// What a finished item gave by [`set_output`](Self::set_output).
    pub fn output<T: Any + Send + Sync>(&self, of: WorkId) -> Result<Arc<T>, OutputError> {
        let wanted = std::any::type_name::<T>();
        match self.find_output(of)? {
            Output::Memory(value) => value.downcast().map_err(|_| OutputError::WrongType { id: of, wanted }),
            Output::Durable(_) => Err(OutputError::WrongType { id: of, wanted }),
        }
    }

    /// What a finished item gave by [`set_durable_output`](Self::set_durable_output), in this process or
    /// in an earlier one.
    pub fn durable_output<T: DeserializeOwned>(&self, of: WorkId) -> Result<T, OutputError> {
        match self.find_output(of)? {
            Output::Durable(json) => {
                serde_json::from_str(&json).map_err(|error| self.encoding::<T>(of, &error))
            }
            Output::Memory(_) => Err(OutputError::WrongType { id: of, wanted: std::any::type_name::<T>() }),
        }
    }

    /// Tells how far this item is.
    pub fn set_progress(&self, done: u64, total: Option<u64>) {
        self.edit(|extra| extra.progress = Some(Progress { done, total }));
    }

    /// Sets the words that stand for this item's status while it waits.
    pub fn set_note(&self, note: impl Into<String>) {
        self.edit(|extra| extra.note = Some(note.into()));
    }

    /// Shows another item's status as this item's own, until this one ends.
    pub fn show_status_of(&self, other: WorkId) {
        _ = self.on_self(|inner, me| {
            let index = inner.index_of(other)?;
            // An item cannot stand for itself, nor for one that stands for it.
            if !inner.stands_for(index, me) {
                inner.machine.node_mut(me).extra_mut().status_of = Some(other);
            }
            Ok(())
        });
    }

    fn edit(&self, change: impl FnOnce(&mut Extra)) {
        _ = self.on_self(|inner, me| {
            change(inner.machine.node_mut(me).extra_mut());
            Ok(())
        });
    }

    fn find_output(&self, of: WorkId) -> Result<Output, OutputError> {
        let found = self.on_self(|inner, _| Ok(inner.output(of)));
        found.ok().flatten().ok_or(OutputError::Missing(of))
    }

    fn encoding<T>(&self, id: WorkId, error: &serde_json::Error) -> OutputError {
        OutputError::Encoding { id, wanted: std::any::type_name::<T>(), reason: error.to_string() }
    }

    fn scheduler(&self) -> Option<Arc<Shared>> {
        self.seat.scheduler.upgrade()
    }

    fn on_self<T>(
        &self,
        change: impl FnOnce(&mut Inner, Index) -> Result<T, WorkError>,
    ) -> Result<T, WorkError> {
        let shared = self.scheduler().ok_or(WorkError::UnknownItem(self.id))?;
        shared.update(|inner| {
            let me = inner.index_of(self.id)?;
            change(inner, me)
        })
    }
}

/// The children of an item's present attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Children {
    /// Children added in this attempt.
    pub total: u32,
    /// Those that have not ended.
    pub unfinished: u32,
    /// Those that succeeded.
    pub succeeded: u32,
    /// What became of the first that did not succeed.
    pub first_failure: Option<String>,
}

impl Children {
    /// True if there is at least one.
    pub fn has_children(&self) -> bool {
        self.total > 0
    }

    /// True if none is unfinished; also if there are none.
    pub fn all_done(&self) -> bool {
        self.unfinished == 0
    }

    /// True if every one succeeded; also if there are none.
    pub fn all_successful(&self) -> bool {
        self.succeeded == self.total
    }

    /// True if one ended otherwise than well.
    pub fn any_failed(&self) -> bool {
        self.first_failure.is_some()
    }

    /// True if one is unfinished.
    pub fn any_running(&self) -> bool {
        self.unfinished > 0
    }

    /// What a parent that does nothing else returns: success if all succeeded, a failed attempt if one
    /// did not, else wait.
    pub fn status(&self) -> WorkOutcome {
        match &self.first_failure {
            Some(failure) => WorkOutcome::retry(failure),
            None if self.all_done() => WorkOutcome::Success,
            None => WorkOutcome::wait_for_children(),
        }
    }
}

/// Wakes one item. Cheap to clone, and harmless when the item or its scheduler is gone.
#[derive(Clone, Debug)]
pub struct WorkWaker {
    id: WorkId,
    scheduler: Weak<Shared>,
}

impl WorkWaker {
    /// Calls the item back. False if it neither waits nor runs, or is gone.
    pub fn wake(&self) -> bool {
        self.scheduler.upgrade().is_some_and(|shared| WorkHandle::new(shared).wake(self.id))
    }
}
