//! The scheduler's decisions as a plain state machine: no clock, no tokio, no work objects.
//!
//! [`Machine`] knows the graph, the state of each item, who is ready, and which timers run. The driver
//! tells it what happened (an item was added, ended, woken, cancelled; the time is now so late) and asks
//! what to start next. Time comes in as a parameter, randomness as ready-made delays.
//!
//! Files, in reading order: [`node`] is one item; [`graph`] adds and forgets items; [`advance`] moves
//! them; [`family`] is the bond between parents and children; `ready`, `edges`, `names` and `table`
//! are the data structures below.

mod node;
mod graph;
mod advance;
mod family;
mod ready;
mod edges;
mod names;
mod table;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use dragnet_ambient::Monotonic;

use self::edges::Edges;
pub(crate) use self::graph::NewItem;
use self::names::Names;
pub(crate) use self::node::{Ending, Extra, Node, Slot, Verdict};
use self::ready::ReadyQueue;
pub(crate) use self::table::Table;
use crate::{WorkId, WorkState};

/// A place in the node table. Reused after an item was forgotten; a [`WorkId`] adds the generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Index(u32);

impl Index {
    /// Stands for "no item" where an `Option` would double the size.
    const NONE: Self = Self(u32::MAX);

    pub(crate) fn get(self) -> usize {
        self.0 as usize
    }
}

/// An item that has just been given a slot, and what to do with it.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) index: Index,
    pub(crate) errand: Errand,
}

/// What a slot does with an item.
#[derive(Debug)]
pub(crate) enum Errand {
    /// Call `run`. `first` says that the item was never started since it was added or restarted.
    Run { first: bool },
    /// Call the hooks that belong to this ending, then apply it. Boxed, as it is rare.
    Finish(Box<Ending>),
}

/// One change of state, for whoever watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) index: Index,
    pub(crate) state: WorkState,
    pub(crate) attempt: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Machine {
    nodes: Table<Node>,
    /// How many of its dependencies an unstarted item still waits for, by index. Apart from the rest, as
    /// each end of an item counts many of these down and looks at nothing else.
    unmet: Table<u32>,
    names: Names,
    /// How often each place was reused. Empty until the first time, and most never are.
    generations: Vec<u32>,
    free: Vec<Index>,
    /// Forgotten items that still occupy their place, until the edges are rebuilt.
    gone: Vec<Index>,
    edges: Edges,
    ready: ReadyQueue,
    /// Items to be wound down: they go before all others, since they free things.
    urgent: VecDeque<Index>,
    timers: BinaryHeap<Reverse<(Monotonic, u64, Index)>>,
    timers_set: u64,
    capacity: u32,
    used: u32,
    counts: [usize; WorkState::ALL.len()],
    attempts: u64,
    retries_left: u64,
    /// What follows from a change and must not recurse: a deep graph would overflow the stack.
    chores: Vec<Chore>,
    /// Scratch space for those whose last dependency has just succeeded.
    released: Vec<Index>,
    changes: Vec<Change>,
    /// Slots whose items were asked to stop.
    stop_signals: Vec<Slot>,
    /// Record every change; else only the ends of watched items.
    pub(crate) record_all: bool,
    /// The failure of a top-level item cancels all others.
    pub(crate) fail_fast: bool,
    /// Set while everything is being cancelled: no new work.
    pub(crate) aborting: bool,
}

#[derive(Clone, Copy, Debug)]
enum Chore {
    Block { index: Index, by: Index },
    Cancel(Index),
    AbortSelf(Index),
    CancelEverything,
}

impl Machine {
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            nodes: Table::default(),
            unmet: Table::default(),
            names: Names::default(),
            generations: Vec::new(),
            free: Vec::new(),
            gone: Vec::new(),
            edges: Edges::default(),
            ready: ReadyQueue::default(),
            urgent: VecDeque::new(),
            timers: BinaryHeap::new(),
            timers_set: 0,
            capacity,
            used: 0,
            counts: [0; WorkState::ALL.len()],
            attempts: 0,
            retries_left: 0,
            chores: Vec::new(),
            released: Vec::new(),
            changes: Vec::new(),
            stop_signals: Vec::new(),
            record_all: false,
            fail_fast: false,
            aborting: false,
        }
    }

    pub(crate) fn index_of(&self, id: WorkId) -> Option<Index> {
        let index = Index(id.index());
        let node = self.nodes.get(index.get())?;
        (self.generation(index) == id.generation() && !node.forgotten).then_some(index)
    }

    pub(crate) fn id_of(&self, index: Index) -> WorkId {
        WorkId::from_parts(index.0, self.generation(index))
    }

    fn generation(&self, index: Index) -> u32 {
        self.generations.get(index.get()).copied().unwrap_or(0)
    }

    pub(crate) fn node(&self, index: Index) -> &Node {
        &self.nodes[index.get()]
    }

    pub(crate) fn name(&self, index: Index) -> &str {
        self.names.get(self.node(index).name)
    }

    pub(crate) fn node_mut(&mut self, index: Index) -> &mut Node {
        &mut self.nodes[index.get()]
    }

    /// All items that are not forgotten, oldest place first.
    pub(crate) fn indices(&self) -> impl Iterator<Item = Index> + Clone + '_ {
        (0..self.nodes.len() as u32).map(Index).filter(|index| !self.node(*index).forgotten)
    }

    /// What an item depends on, except for what was forgotten.
    pub(crate) fn dependencies(&self, index: Index) -> impl Iterator<Item = Index> + '_ {
        // Edges to forgotten items are there only until the next rebuild, and mostly there are none.
        let all_there = self.gone.is_empty();
        let is_there = move |on: &Index| all_there || !self.node(*on).forgotten;
        self.edges.dependencies(self.node(index).dependencies).filter(is_there)
    }

    /// How many there are at most, forgotten ones included.
    pub(crate) fn dependencies_at_most(&self, index: Index) -> usize {
        self.node(index).dependencies.len()
    }

    pub(crate) fn count(&self, state: WorkState) -> usize {
        self.counts[state as usize]
    }

    pub(crate) fn total(&self) -> usize {
        self.counts.iter().sum()
    }

    pub(crate) fn unfinished(&self) -> usize {
        WorkState::ALL.iter().filter(|state| !state.is_terminal()).map(|state| self.count(*state)).sum()
    }

    pub(crate) fn attempts(&self) -> u64 {
        self.attempts
    }

    pub(crate) fn retries_left(&self) -> u64 {
        self.retries_left
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// True when a slot could start something now: there is an entry in a queue. It may prove stale.
    pub(crate) fn has_queued(&self) -> bool {
        !self.urgent.is_empty() || !self.ready.is_empty()
    }

    /// True when something runs, winds down, or waits for nothing but a slot.
    pub(crate) fn is_active(&mut self) -> bool {
        self.count(WorkState::Running) + self.count(WorkState::Aborting) > 0 || self.next_in_line().is_some()
    }

    /// The changes since the last call, in order.
    pub(crate) fn take_changes(&mut self, into: &mut Vec<Change>) {
        into.append(&mut self.changes);
    }

    pub(crate) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// The slots whose items were asked to stop since the last call.
    pub(crate) fn take_stop_signals(&mut self) -> impl Iterator<Item = Slot> + '_ {
        self.stop_signals.drain(..)
    }

    /// When the next timer falls due.
    pub(crate) fn next_deadline(&mut self) -> Option<Monotonic> {
        while let Some(Reverse((deadline, ticket, index))) = self.timers.peek() {
            if self.node(*index).timer() == Some(*ticket) {
                return Some(*deadline);
            }
            self.timers.pop();
        }
        None
    }

    fn set_timer(&mut self, index: Index, deadline: Monotonic) {
        self.timers_set += 1;
        self.timers.push(Reverse((deadline, self.timers_set, index)));
        let ticket = self.timers_set;
        let extra = self.node_mut(index).extra_mut();
        extra.timer = Some(ticket);
        extra.wake_at = Some(deadline);
    }

    /// Moves an item to another state. The only place that writes `state`.
    fn shift(&mut self, index: Index, to: WorkState) {
        let node = &mut self.nodes[index.get()];
        let from = node.state;
        assert!(
            from.allows(to),
            "bug: work item '{}' cannot go from {from:?} to {to:?}",
            self.names.get(node.name)
        );
        node.state = to;
        self.counts[from as usize] -= 1;
        self.counts[to as usize] += 1;
        if self.record_all || (node.watched && to.is_terminal()) {
            let attempt = if to == WorkState::Pending { 0 } else { node.attempts };
            self.changes.push(Change { index, state: to, attempt });
        }
    }
}

/// Adds `elapsed` to a stored count of nanoseconds.
fn add_nanos(total: u64, elapsed: Duration) -> u64 {
    total.saturating_add(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}
