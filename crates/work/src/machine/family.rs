//! Parents and children: who waits for whom, and what a child's end means to its parent.

use std::time::Duration;

use super::node::{Ending, Family};
use super::{Chore, Index, Machine};
use crate::{ChildWait, WorkError, WorkState};

impl Machine {
    /// Makes `child` a child of `parent`'s present attempt.
    pub(super) fn adopt(&mut self, parent: Index, child: Index) {
        self.node_mut(child).parent = parent;
        let extra = self.node_mut(parent).extra_mut();
        extra.children.push(child);
        extra.family.total += 1;
        extra.family.live += 1;
    }

    /// Restarts a finished item as a child of `parent`'s present attempt.
    pub(crate) fn restart_child(&mut self, parent: Index, child: Index) -> Result<(), WorkError> {
        self.check_restart(child)?;
        self.check_parent(parent, self.name(child))?;
        if let Some(path) = self.dependencies(child).find_map(|on| self.path(on, parent)) {
            return Err(self.cycle(self.name(child), &path));
        }
        self.disown(child);
        self.node_mut(child).parent = parent;
        self.node_mut(parent).extra_mut().children.push(child);
        // Counts it as a child of this attempt before it can end again.
        self.restart(child)
    }

    /// The children of the present attempt that are not forgotten.
    pub(crate) fn children(&self, parent: Index) -> &[Index] {
        self.node(parent).extra().map_or(&[], |extra| &extra.children)
    }

    /// Ends the bond with the children of the attempt before.
    pub(super) fn detach_children(&mut self, parent: Index) {
        let Some(extra) = &mut self.node_mut(parent).extra else { return };
        let children = std::mem::take(&mut extra.children);
        extra.family = Family::default();
        for child in children {
            self.node_mut(child).parent = Index::NONE;
        }
    }

    /// Lets go of all finished children of the present attempt, and says which.
    pub(crate) fn disown_finished(&mut self, parent: Index) -> Vec<Index> {
        let Some(extra) = &mut self.node_mut(parent).extra else { return Vec::new() };
        let children = std::mem::take(&mut extra.children);
        let (finished, live): (Vec<Index>, Vec<Index>) =
            children.into_iter().partition(|child| self.node(*child).state.is_terminal());
        self.node_mut(parent).extra_mut().children = live;
        finished.iter().for_each(|child| self.node_mut(*child).parent = Index::NONE);
        finished
    }

    /// Takes a finished child out of its parent's list; what it counted for stays counted.
    pub(super) fn disown(&mut self, child: Index) {
        let parent = std::mem::replace(&mut self.node_mut(child).parent, Index::NONE);
        if parent != Index::NONE
            && let Some(extra) = &mut self.node_mut(parent).extra
        {
            extra.children.retain(|other| *other != child);
        }
    }

    /// A finished child was restarted on its own: its parent has to wait for it again, or, if the
    /// parent is done, no longer cares.
    pub(super) fn child_reopened(&mut self, child: Index) {
        let parent = self.node(child).parent;
        if parent == Index::NONE {
            return;
        }
        if self.node(parent).state.is_terminal() {
            return self.disown(child);
        }
        let family = &mut self.node_mut(parent).extra_mut().family;
        family.live += 1;
        family.total += 1;
    }

    pub(super) fn child_ended(&mut self, child: Index, state: WorkState) {
        let parent = self.node(child).parent;
        if parent == Index::NONE {
            return;
        }
        let failure = (state != WorkState::Success).then(|| self.describe_end(child));
        let failed = failure.is_some();
        let node = self.node_mut(parent);
        let family = &mut node.extra_mut().family;
        family.live -= 1;
        let first_failure = failed && family.first_failure.is_none();
        match failure {
            None => family.succeeded += 1,
            Some(words) => _ = family.first_failure.get_or_insert(words),
        }
        node.child_ended = true;
        node.child_failed |= failed;
        if node.is_closing() {
            self.advance_closing(parent, first_failure);
        } else if node.state == WorkState::Waiting && !node.queued && self.children_end_the_wait(parent) {
            self.resume(parent);
        }
    }

    /// A parent that has decided how to end looks again, now that one more child is gone.
    fn advance_closing(&mut self, parent: Index, first_failure: bool) {
        let extra = self.node_mut(parent).extra_mut();
        if extra.family.live == 0 {
            self.enqueue_urgently(parent);
        } else if extra.closing == Some(Ending::Success) && first_failure {
            // Its success is out of reach: the siblings need not go on. What it ends with instead is
            // decided when the last of them has ended.
            self.cancel_children(parent);
        }
    }

    /// Whether the children of a pausing item are a reason to go on: what ended or failed since its last
    /// turn began, or that none is left.
    pub(super) fn children_end_the_wait(&self, index: Index) -> bool {
        let node = self.node(index);
        let Some(extra) = node.extra() else { return false };
        match extra.wait_children {
            None | Some(ChildWait::No) => false,
            Some(ChildWait::Any) => extra.family.live == 0 || node.child_ended,
            Some(ChildWait::All) => extra.family.live == 0 || node.child_failed,
        }
    }

    pub(super) fn cancel_children(&mut self, parent: Index) {
        let children = self.children(parent).to_vec();
        self.chores.extend(children.into_iter().rev().map(Chore::Cancel));
    }

    /// A success with a failed child is a failed attempt.
    pub(super) fn with_children_in_mind(&self, index: Index, ending: Ending) -> Ending {
        let node = self.node(index);
        let failure = node.extra().and_then(|extra| extra.family.first_failure.clone());
        match (ending, failure) {
            (Ending::Success, Some(error)) if node.state.is_aborting() => Ending::Abort(Some(error)),
            (Ending::Success, Some(error)) if node.retries_left > 0 => {
                Ending::Retry { delay: Duration::ZERO, error }
            }
            (Ending::Success, Some(error)) => Ending::Fail(error),
            (ending, _) => ending,
        }
    }

    fn describe_end(&self, child: Index) -> String {
        let (node, name) = (self.node(child), self.name(child));
        match node.error() {
            Some(error) if node.state == WorkState::Failed => format!("'{name}' failed: {error}"),
            _ => format!("'{name}' ended as {}", node.state),
        }
    }
}
