//! Moving items: start, end, retry, wait, wake, cancel, block.

use std::time::Duration;

use dragnet_ambient::Monotonic;

use super::node::{Ending, Slot, Verdict};
use super::ready::Head;
use super::{Chore, Errand, Index, Machine, Start, add_nanos};
use crate::{Wait, WorkState};

/// The error of an item whose future was dropped under it.
const DROPPED: &str = "its run was dropped";

/// Whose turn it is, and in which queue it stands.
pub(super) enum Next {
    Urgent(Index),
    Ready(Head),
}

impl Next {
    fn index(&self) -> Index {
        match self {
            Self::Urgent(index) => *index,
            Self::Ready(head) => head.index,
        }
    }
}

impl Machine {
    /// Gives the next item its slot, if one is ready and there is room for it.
    ///
    /// The item at the head of the queue is never overtaken because it is heavy: the room it needs is
    /// kept free for it, so heavy items do not starve among light ones.
    pub(crate) fn start_next(&mut self) -> Option<Start> {
        let next = self.next_in_line()?;
        let (index, room) = (next.index(), self.capacity - self.used);
        if self.node(index).weight > room {
            return None;
        }
        match next {
            Next::Urgent(_) => _ = self.urgent.pop_front(),
            Next::Ready(head) => self.ready.take(head),
        }
        let node = self.node_mut(index);
        node.queued = false;
        node.held = true;
        node.woken = false;
        node.child_ended = false;
        node.child_failed = false;
        let weight = node.weight;
        let errand = self.errand(index);
        self.used += weight;
        Some(Start { index, errand })
    }

    /// Notes in which slot an item runs, so that a cancel request finds it.
    pub(crate) fn seat(&mut self, index: Index, slot: Slot) {
        self.node_mut(index).slot = slot;
    }

    /// Whether an attempt may end now. If children of the item are still there, the ending is kept and
    /// the slot is freed: the item comes back with [`Errand::Finish`] when the last of them has ended.
    ///
    /// An ending other than success first cancels the children; success waits for them, and becomes a
    /// failure if one of them did not succeed.
    pub(crate) fn prepare(&mut self, index: Index, ending: Ending) -> Option<Ending> {
        let ending = self.with_children_in_mind(index, ending);
        if self.node(index).live_children() > 0 && ending != Ending::Success {
            if matches!(ending, Ending::Abort(_)) && !self.node(index).state.is_aborting() {
                self.shift(index, WorkState::Aborting);
            }
            self.cancel_children(index);
            self.run_chores();
        }
        if self.node(index).live_children() == 0 {
            return Some(ending);
        }
        self.node_mut(index).extra_mut().closing = Some(ending);
        self.release(index);
        None
    }

    /// Carries out what became of an item in its slot, and frees the slot.
    ///
    /// `Some` refuses: a cancel request came in between. The caller ends the item so instead.
    #[must_use]
    pub(crate) fn apply(&mut self, index: Index, verdict: Verdict, now: Monotonic) -> Option<Ending> {
        match verdict {
            Verdict::End(Ending::Success) => {
                self.release(index);
                self.end(index, WorkState::Success, None);
            }
            Verdict::End(Ending::Abort(error)) => {
                self.release(index);
                if !self.node(index).state.is_aborting() {
                    self.shift(index, WorkState::Aborting);
                }
                self.end(index, WorkState::Cancelled, error);
            }
            Verdict::End(ending) if self.node(index).state.is_aborting() => {
                return Some(Ending::Abort(ending.into_error()));
            }
            Verdict::Again | Verdict::Wait(_) if self.node(index).state.is_aborting() => {
                return Some(Ending::Abort(None));
            }
            Verdict::End(Ending::Fail(error)) => {
                self.release(index);
                self.end(index, WorkState::Failed, Some(error));
            }
            Verdict::End(Ending::Retry { delay, error }) => self.schedule_retry(index, delay, error, now),
            Verdict::Again => {
                self.release(index);
                self.shift(index, WorkState::Running);
                self.enqueue(index);
            }
            Verdict::Wait(wait) => self.pause(index, wait, now),
        }
        self.run_chores();
        None
    }

    /// The item at the head of the queue, if it has not been started yet.
    pub(crate) fn next_unstarted(&mut self) -> Option<Index> {
        let index = self.next_in_line()?.index();
        (self.node(index).state == WorkState::Pending).then_some(index)
    }

    /// Ends an item that a journal knows as done, without running it.
    pub(crate) fn skip(&mut self, index: Index) {
        self.node_mut(index).queued = false;
        self.end(index, WorkState::Success, None);
        self.run_chores();
    }

    /// Ends an item whose slot was torn down under it: its future is gone, its effects are unknown.
    pub(crate) fn forfeit(&mut self, index: Index) {
        self.release(index);
        if !self.node(index).state.is_aborting() {
            self.shift(index, WorkState::Aborting);
        }
        self.cancel_children(index);
        self.run_chores();
        if self.node(index).live_children() > 0 {
            self.node_mut(index).extra_mut().closing = Some(Ending::Abort(Some(DROPPED.to_owned())));
            return;
        }
        self.end(index, WorkState::Cancelled, Some(DROPPED.to_owned()));
        self.run_chores();
    }

    /// Calls an item back from its pause, or makes its next one end at once. False if it neither
    /// pauses nor runs.
    pub(crate) fn wake(&mut self, index: Index) -> bool {
        let node = self.node_mut(index);
        match node.state {
            // It may have been called already, and wait for a slot.
            WorkState::Waiting if node.queued => {}
            WorkState::Waiting => self.resume(index),
            WorkState::Running if node.held => node.woken = true,
            _ => return false,
        }
        true
    }

    /// Wakes every item whose timer has come.
    pub(crate) fn fire_timers(&mut self, now: Monotonic) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            if let Some(std::cmp::Reverse((_, _, index))) = self.timers.pop() {
                self.resume(index);
            }
        }
    }

    /// Asks an item, and all below it, to stop. False if it had ended or was asked before.
    pub(crate) fn cancel(&mut self, index: Index) -> bool {
        let state = self.node(index).state;
        if state.is_terminal() || state.is_aborting() {
            return false;
        }
        self.chores.push(Chore::Cancel(index));
        self.run_chores();
        true
    }

    /// Asks every unfinished item to stop.
    pub(crate) fn cancel_all(&mut self) {
        self.chores.push(Chore::CancelEverything);
        self.run_chores();
    }

    /// Ends every unfinished item that is in no slot, without hooks: nobody will run anything any more.
    pub(crate) fn abandon(&mut self) {
        self.cancel_all();
        let in_no_slot = |index: &Index| {
            let node = self.node(*index);
            !node.held && !node.state.is_terminal()
        };
        let left: Vec<Index> = self.indices().filter(in_no_slot).collect();
        for index in left.into_iter().rev() {
            self.end(index, WorkState::Cancelled, Some("its scheduler was dropped".to_owned()));
        }
        self.run_chores();
    }

    /// Counts time spent in a slot.
    pub(crate) fn add_busy(&mut self, index: Index, elapsed: Duration) {
        let node = self.node_mut(index);
        node.busy_ns = add_nanos(node.busy_ns, elapsed);
    }

    pub(super) fn enqueue(&mut self, index: Index) {
        let node = &mut self.nodes[index.get()];
        node.queued = true;
        self.ready.push(index, node.priority);
    }

    pub(super) fn enqueue_urgently(&mut self, index: Index) {
        self.node_mut(index).queued = true;
        self.urgent.push_back(index);
    }

    pub(super) fn run_chores(&mut self) {
        while let Some(chore) = self.chores.pop() {
            match chore {
                Chore::Block { index, by } => self.block(index, by),
                Chore::Cancel(index) if self.node(index).state.is_terminal() => {}
                Chore::Cancel(index) => {
                    self.chores.push(Chore::AbortSelf(index));
                    self.cancel_children(index);
                }
                Chore::AbortSelf(index) => self.abort_self(index),
                Chore::CancelEverything => self.cancel_everything(),
            }
        }
    }

    pub(super) fn next_in_line(&mut self) -> Option<Next> {
        while let Some(index) = self.urgent.front() {
            if self.nodes[index.get()].queued {
                return Some(Next::Urgent(*index));
            }
            self.urgent.pop_front();
        }
        let nodes = &self.nodes;
        self.ready.next(|index| nodes[index.get()].queued).map(Next::Ready)
    }

    fn errand(&mut self, index: Index) -> Errand {
        let node = self.node_mut(index);
        if let Some(ending) = node.extra.as_mut().and_then(|extra| extra.closing.take()) {
            return Errand::Finish(Box::new(ending));
        }
        let first = node.state == WorkState::Pending;
        if node.state.is_aborting() {
            return Errand::Finish(Box::new(Ending::Abort(None)));
        }
        if first || node.retry_due {
            node.retry_due = false;
            node.attempts += 1;
            self.attempts += 1;
        }
        if self.node(index).state != WorkState::Running {
            self.shift(index, WorkState::Running);
        }
        Errand::Run { first }
    }

    /// Frees the slot of an item.
    fn release(&mut self, index: Index) {
        let node = self.node_mut(index);
        debug_assert!(node.held, "only an item in a slot can leave it");
        node.held = false;
        let weight = node.weight;
        self.used -= weight;
    }

    fn schedule_retry(&mut self, index: Index, delay: Duration, error: String, now: Monotonic) {
        self.release(index);
        self.shift(index, WorkState::Retrying);
        self.detach_children(index);
        let node = self.node_mut(index);
        node.retries_left -= 1;
        node.retry_due = true;
        let extra = node.extra_mut();
        extra.error = Some(error);
        extra.retrying = true;
        extra.status_of = None;
        self.retries_left -= 1;
        self.shift(index, WorkState::Waiting);
        self.set_timer(index, now + delay);
    }

    fn pause(&mut self, index: Index, wait: Wait, now: Monotonic) {
        self.release(index);
        self.shift(index, WorkState::Waiting);
        let node = self.node_mut(index);
        node.extra_mut().wait_children = Some(wait.children);
        if node.woken || self.children_end_the_wait(index) {
            self.resume(index);
        } else if let Some(delay) = wait.timer {
            self.set_timer(index, now + delay);
        }
    }

    /// Queues a paused item for its next turn.
    pub(super) fn resume(&mut self, index: Index) {
        self.node_mut(index).clear_wait();
        self.enqueue(index);
    }

    /// The one place where items become terminal.
    fn end(&mut self, index: Index, to: WorkState, error: Option<String>) {
        self.shift(index, to);
        let node = self.node_mut(index);
        node.clear_wait();
        node.queued = false;
        if error.is_some() {
            node.extra_mut().error = error;
        } else if to == WorkState::Success
            && let Some(extra) = &mut node.extra
        {
            extra.error = None;
        }
        if to == WorkState::Success {
            self.release_dependents(index);
        } else {
            self.block_dependents(index);
        }
        self.child_ended(index, to);
        let node = self.node(index);
        if to == WorkState::Failed && self.fail_fast && node.parent == Index::NONE {
            self.chores.push(Chore::CancelEverything);
        }
    }

    fn release_dependents(&mut self, index: Index) {
        let Self { nodes, edges, unmet, released, .. } = self;
        for dependent in edges.dependents(nodes[index.get()].dependents) {
            let unmet = &mut unmet[dependent.get()];
            if *unmet > 0 {
                *unmet -= 1;
                if *unmet == 0 && nodes[dependent.get()].state == WorkState::Pending {
                    released.push(dependent);
                }
            }
        }
        // The walk is newest first; they shall start in the order in which they were added.
        while let Some(dependent) = self.released.pop() {
            self.enqueue(dependent);
        }
    }

    fn block_dependents(&mut self, index: Index) {
        // The walk is newest first, and the last chore is done first.
        let dependents = self.edges.dependents(self.nodes[index.get()].dependents);
        self.chores.extend(dependents.map(|dependent| Chore::Block { index: dependent, by: index }));
    }

    fn block(&mut self, index: Index, by: Index) {
        if self.node(index).state != WorkState::Pending {
            return;
        }
        let (name, state) = (self.name(by), self.node(by).state);
        let reason = format!("'{name}' ended as {state}");
        self.end(index, WorkState::Blocked, Some(reason));
    }

    fn abort_self(&mut self, index: Index) {
        let node = self.node_mut(index);
        if node.state.is_terminal() || node.state.is_aborting() {
            return;
        }
        let unstarted = node.state == WorkState::Pending;
        node.queued = false;
        node.clear_wait();
        self.shift(index, WorkState::Aborting);
        let node = self.node_mut(index);
        if unstarted {
            self.end(index, WorkState::Cancelled, None);
        } else if node.held {
            let slot = node.slot;
            self.stop_signals.push(slot);
        } else if node.live_children() > 0 {
            node.extra_mut().closing = Some(Ending::Abort(None));
        } else {
            node.extra_mut().closing = None;
            self.enqueue_urgently(index);
        }
    }

    /// Cancels all. Unstarted items are ended newest first, so that they end as cancelled and not as
    /// blocked by one another.
    fn cancel_everything(&mut self) {
        let unfinished = |index: &Index| !self.node(*index).state.is_terminal();
        let all: Vec<Index> = self.indices().filter(unfinished).collect();
        for index in all.into_iter().rev() {
            self.abort_self(index);
        }
    }
}
