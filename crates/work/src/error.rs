//! [`WorkError`]: what a scheduler refuses, each with the names of the items involved.

use thiserror::Error;

use crate::WorkId;

/// Why the scheduler refused a request. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WorkError {
    /// A scheduler without slots could never run anything.
    #[error("max_concurrency is 0: no work could ever run; use at least 1")]
    ZeroConcurrency,
    /// No item has this id: it was never given out, or the item was forgotten.
    #[error("there is no work item {0}")]
    UnknownItem(WorkId),
    /// Four thousand million items, or four gigabytes of names, are more than a scheduler can hold.
    #[error("'{item}' was not added: the scheduler is full; forget finished items")]
    Full {
        /// The item that was to be added.
        item: String,
    },
    /// A dependency names no item.
    #[error("'{item}' depends on work item {dependency}, which does not exist")]
    UnknownDependency {
        /// The item that was to be added.
        item: String,
        /// The id that nothing has.
        dependency: WorkId,
    },
    /// An item was to wait for itself.
    #[error("'{item}' cannot depend on itself")]
    SelfDependency {
        /// The item.
        item: String,
    },
    /// The dependency would close a circle, in which nothing could ever start.
    #[error("a dependency cycle: {}", path.join(" -> "))]
    Cycle {
        /// The names along the circle, each waiting for the next; the first is repeated at the end.
        path: Vec<String>,
    },
    /// An item that needs more slots than there are could never start.
    #[error("'{item}' has weight {weight}, but the scheduler has only {capacity} slots")]
    WeightAboveCapacity {
        /// The item.
        item: String,
        /// What it asks for.
        weight: u32,
        /// What there is: `max_concurrency`.
        capacity: u32,
    },
    /// An item that needs no slot would not be bounded by anything.
    #[error("'{item}' has weight 0; use at least 1")]
    ZeroWeight {
        /// The item.
        item: String,
    },
    /// The scheduler or the parent winds down and takes no more work.
    #[error("'{item}' was not added: {owner} is being aborted")]
    Aborting {
        /// The item that was to be added.
        item: String,
        /// Who winds down: the scheduler, or a parent by name.
        owner: String,
    },
    /// Children can only be added by a parent's own turn.
    #[error("'{item}' was not added: its parent '{parent}' is not running")]
    ParentNotRunning {
        /// The item that was to be added.
        item: String,
        /// The item that was to be its parent.
        parent: String,
    },
    /// A dependency can only be added to an item that has not started.
    #[error("'{item}' takes no further dependency: it has started already")]
    AlreadyStarted {
        /// The item.
        item: String,
    },
    /// Only finished items can be restarted or forgotten.
    #[error("'{item}' is not finished")]
    NotFinished {
        /// The item.
        item: String,
    },
    /// A finished item stays as long as unfinished ones depend on it.
    #[error("'{item}' is still needed by '{dependent}'")]
    StillNeeded {
        /// The item that was to be forgotten.
        item: String,
        /// An unfinished item that depends on it.
        dependent: String,
    },
    /// Two unfinished items of a journalled run cannot be told apart.
    #[error(
        "'{item}' has the same name, definition and dependencies as another item: a journal could not tell them apart"
    )]
    DuplicateDefinition {
        /// The name that both have.
        item: String,
    },
    /// A journal identifies items by their dependencies too, so those are fixed when an item is added.
    #[error("'{item}' takes no further dependency: the run is journalled")]
    Journalled {
        /// The item.
        item: String,
    },
    /// A scheduler has one journal.
    #[error("this scheduler has a journal already")]
    SecondJournal,
    /// Items added before the journal could not be recognised in it.
    #[error("the journal has to be given before the first work item")]
    JournalAfterWork,
    /// A batch gave two children of one name, at the same time.
    #[error("'{item}' is already running in this batch")]
    DuplicateChild {
        /// The name that both have.
        item: String,
    },
}

/// Why an output of another item could not be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The item gave no output, has not succeeded, or was forgotten.
    #[error("work item {0} has no output")]
    Missing(WorkId),
    /// The output is of another type.
    #[error("the output of work item {id} is not a {wanted}")]
    WrongType {
        /// The item that gave the output.
        id: WorkId,
        /// The type asked for.
        wanted: &'static str,
    },
    /// A durable output could not be written as, or read from, JSON.
    #[error("the output of work item {id} is not readable as {wanted}: {reason}")]
    Encoding {
        /// The item that gave the output.
        id: WorkId,
        /// The type asked for.
        wanted: &'static str,
        /// What the JSON reader or writer said.
        reason: String,
    },
}
