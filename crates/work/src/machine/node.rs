//! One item as the machine sees it. Kept small: a graph may have millions.

use std::time::Duration;

use dragnet_ambient::Monotonic;

use super::Index;
use super::edges::{Dependencies, Dependents};
use super::names::Name;
use crate::{ChildWait, Progress, RetryBackoff, Wait, WorkId, WorkState};

/// The number of the slot in which an item runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u32);

/// How a stay in a slot ends, as far as the item itself can tell.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// One step is done, there are more: back to the end of the queue.
    Again,
    /// Nothing to do for now.
    Wait(Wait),
    /// The attempt is over.
    End(Ending),
}

/// How an attempt ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Success,
    /// Try again after `delay`.
    Retry {
        delay: Duration,
        error: String,
    },
    Fail(String),
    /// Wind down, with the error that came after the cancel request, if any.
    Abort(Option<String>),
}

impl Ending {
    pub(super) fn into_error(self) -> Option<String> {
        match self {
            Self::Success => None,
            Self::Retry { error, .. } | Self::Fail(error) => Some(error),
            Self::Abort(error) => error,
        }
    }
}

/// An item. What most items never need lives in [`Extra`].
#[derive(Debug)]
pub(crate) struct Node {
    pub(super) name: Name,
    pub(super) extra: Option<Box<Extra>>,
    /// Time spent in slots, over all attempts.
    pub(crate) busy_ns: u64,
    pub(super) dependencies: Dependencies,
    pub(super) dependents: Dependents,
    pub(crate) weight: u32,
    pub(crate) attempts: u32,
    pub(super) retries_max: u32,
    pub(crate) retries_left: u32,
    pub(super) parent: Index,
    pub(super) slot: Slot,
    pub(crate) state: WorkState,
    pub(crate) priority: i8,
    /// Occupies a slot.
    pub(super) held: bool,
    /// Stands in one of the queues.
    pub(super) queued: bool,
    /// A wake-up came while it ran; the next wait ends at once.
    pub(super) woken: bool,
    /// A child ended since its last turn began.
    pub(super) child_ended: bool,
    /// A child ended otherwise than well since its last turn began.
    pub(super) child_failed: bool,
    /// The next run is a new attempt, not the continuation of one.
    pub(super) retry_due: bool,
    /// Somebody waits for its end.
    pub(crate) watched: bool,
    pub(super) forgotten: bool,
}

/// What only some items need.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    pub(crate) error: Option<String>,
    pub(crate) progress: Option<Progress>,
    pub(crate) note: Option<String>,
    pub(crate) status_of: Option<WorkId>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) backoff: RetryBackoff,
    pub(super) children: Vec<Index>,
    pub(crate) family: Family,
    /// What it waits for beside a timer; `Some` exactly while it is paused by its own wish.
    pub(super) wait_children: Option<ChildWait>,
    pub(super) timer: Option<u64>,
    pub(super) wake_at: Option<Monotonic>,
    /// The pause is one between attempts.
    pub(super) retrying: bool,
    /// Decided, but its children have not ended yet.
    pub(super) closing: Option<Ending>,
}

/// The children of one attempt, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Family {
    pub(crate) total: u32,
    pub(crate) live: u32,
    pub(crate) succeeded: u32,
    /// The first child that ended otherwise, in words.
    pub(crate) first_failure: Option<String>,
}

impl Extra {
    pub(crate) fn new(timeout: Option<Duration>, backoff: RetryBackoff) -> Self {
        Self { timeout, backoff, ..Self::default() }
    }
}

impl Node {
    pub(crate) fn extra(&self) -> Option<&Extra> {
        self.extra.as_deref()
    }

    pub(crate) fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    pub(crate) fn error(&self) -> Option<&str> {
        self.extra()?.error.as_deref()
    }

    pub(crate) fn parent(&self) -> Option<Index> {
        (self.parent != Index::NONE).then_some(self.parent)
    }

    pub(crate) fn has_children(&self) -> bool {
        self.extra().is_some_and(|extra| extra.family.total > 0)
    }

    pub(crate) fn family(&self) -> Family {
        self.extra().map(|extra| extra.family.clone()).unwrap_or_default()
    }

    /// When the pause between two attempts ends, while there is one.
    pub(crate) fn retry_at(&self) -> Option<Monotonic> {
        self.extra().filter(|extra| extra.retrying).and_then(|extra| extra.wake_at)
    }

    pub(super) fn timer(&self) -> Option<u64> {
        self.extra().and_then(|extra| extra.timer)
    }

    pub(super) fn live_children(&self) -> u32 {
        self.extra().map_or(0, |extra| extra.family.live)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.extra().is_some_and(|extra| extra.closing.is_some())
    }

    /// Forgets every reason to wait.
    pub(super) fn clear_wait(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.timer = None;
            extra.wake_at = None;
            extra.retrying = false;
            extra.wait_children = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_stays_within_its_budget_of_bytes() {
        assert!(size_of::<Node>() <= 80, "{}", size_of::<Node>());
    }
}
