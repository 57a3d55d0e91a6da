//! [`WorkState`]: where an item stands, and the complete table of legal moves between the states.

use std::fmt;

/// The lifecycle state of a work item.
///
/// ```text
/// Pending --> Running --> Success | Failed
///    |         |  ^  \
///    |         v  |   `-> Retrying --> Waiting --> Running
///    |        Waiting
///    v
/// Blocked      (any unfinished) --> Aborting --> Cancelled | Success
/// ```
///
/// `Success`, `Failed`, `Blocked` and `Cancelled` are terminal. A restart takes any of them back to
/// `Pending`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum WorkState {
    /// Not started: waits for dependencies or for a slot.
    Pending,
    /// Started. Between two steps of a stepwise item, or while it waits for the end of its children
    /// before it ends itself, it holds no slot.
    Running,
    /// Paused without a slot, until a timer, a wake-up or its children call it back.
    Waiting,
    /// An attempt has failed and another is allowed. Passed through on the way to `Waiting`.
    Retrying,
    /// Asked to stop; still winding down.
    Aborting,
    /// Ended well.
    Success,
    /// Ended badly: an error, a panic, a timeout, or retries used up.
    Failed,
    /// Never started, because a dependency did not succeed.
    Blocked,
    /// Stopped on request.
    Cancelled,
}

use WorkState::{Aborting, Blocked, Cancelled, Failed, Pending, Retrying, Running, Success, Waiting};

impl WorkState {
    /// All states, in declaration order.
    pub const ALL: [Self; 9] =
        [Pending, Running, Waiting, Retrying, Aborting, Success, Failed, Blocked, Cancelled];

    /// True for the four states in which an item stays until somebody restarts it.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Success | Failed | Blocked | Cancelled)
    }

    /// True while an item winds down after a cancel request.
    pub const fn is_aborting(self) -> bool {
        matches!(self, Aborting)
    }

    /// Whether an item in this state may move to `next`. Every move that the scheduler makes is
    /// checked against this table; an illegal one is a bug and panics with both names.
    pub const fn allows(self, next: Self) -> bool {
        match self {
            // Success: a journal says that an earlier process has done it.
            Pending => matches!(next, Running | Aborting | Blocked | Success),
            Running => matches!(next, Running | Waiting | Success | Failed | Retrying | Aborting),
            Waiting => matches!(next, Running | Aborting),
            Retrying => matches!(next, Waiting),
            // Success: the effects had happened before the request was seen.
            Aborting => matches!(next, Aborting | Cancelled | Success),
            Success | Failed | Blocked | Cancelled => matches!(next, Pending),
        }
    }

    /// The words with which a status line opens.
    pub(crate) const fn status_prefix(self) -> &'static str {
        match self {
            Pending => "Ready to run",
            Running => "Running",
            Waiting => "Waiting",
            Retrying => "Retrying",
            Aborting => "Aborting",
            Success => "Succeeded",
            Failed => "Failed",
            Blocked => "Blocked",
            Cancelled => "Aborted",
        }
    }
}

impl fmt::Display for WorkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Pending => "pending",
            Running => "running",
            Waiting => "waiting",
            Retrying => "retrying",
            Aborting => "aborting",
            Success => "success",
            Failed => "failed",
            Blocked => "blocked",
            Cancelled => "cancelled",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_these_moves_are_legal() {
        let mut legal = Vec::new();
        for from in WorkState::ALL {
            for to in WorkState::ALL.into_iter().filter(|to| from.allows(*to)) {
                legal.push((from, to));
            }
        }
        let the_sixteen_of_the_model = [
            (Pending, Running),
            (Pending, Aborting),
            (Running, Running),
            (Running, Waiting),
            (Running, Success),
            (Running, Failed),
            (Running, Retrying),
            (Running, Aborting),
            (Waiting, Running),
            (Waiting, Aborting),
            (Retrying, Waiting),
            (Success, Pending),
            (Failed, Pending),
            (Cancelled, Pending),
            (Aborting, Aborting),
            (Aborting, Cancelled),
        ];
        let ours = [(Pending, Blocked), (Blocked, Pending), (Pending, Success), (Aborting, Success)];
        let mut expected: Vec<_> = the_sixteen_of_the_model.into_iter().chain(ours).collect();
        expected.sort_unstable();
        assert_eq!(legal, expected);
    }
}
