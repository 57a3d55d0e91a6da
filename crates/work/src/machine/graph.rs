//! Adding items and edges, finding cycles, restarting and forgetting finished items.

use std::collections::HashMap;

use super::edges::{Dependents, Edges};
use super::names::Name;
use super::node::{Extra, Node, Slot};
use super::{Chore, Index, Machine};
use crate::{WorkError, WorkId, WorkState};

/// Forgotten items keep their place until there are this many of them (and more than live ones), so
/// that rebuilding the edges costs a constant per item.
const COMPACT_AT_LEAST: usize = 1024;

/// An item to be added, already separated from its work object.
#[derive(Debug)]
pub(crate) struct NewItem<'a> {
    pub(crate) name: &'a str,
    pub(crate) dependencies: &'a [WorkId],
    pub(crate) parent: Option<Index>,
    pub(crate) retries: u32,
    pub(crate) weight: u32,
    pub(crate) priority: i8,
    pub(crate) extra: Option<Box<Extra>>,
}

/// What an unstarted item has to expect of its dependencies.
#[derive(Debug, Default)]
struct Outlook {
    /// How many have not succeeded.
    unmet: u32,
    /// One that ended without success.
    blocked_by: Option<Index>,
}

impl Outlook {
    fn note(&mut self, dependency: Index, state: WorkState) {
        if state != WorkState::Success {
            self.unmet += 1;
            self.blocked_by = self.blocked_by.or(state.is_terminal().then_some(dependency));
        }
    }
}

impl Machine {
    /// Adds an item. Fails, with nothing changed, if it could never run.
    pub(crate) fn add(&mut self, item: NewItem<'_>) -> Result<Index, WorkError> {
        let outlook = self.check_new(&item)?;
        let index = self.place(&item);
        let on = item.dependencies.iter().map(|id| Index(id.index()));
        let dependencies = self.edges.add(index, on, &mut self.nodes);
        let node = self.node_mut(index);
        node.dependencies = dependencies;
        node.extra = item.extra;
        self.unmet[index.get()] = outlook.unmet;
        if let Some(parent) = item.parent {
            self.adopt(parent, index);
        }
        self.act_on(index, &outlook);
        self.run_chores();
        Ok(index)
    }

    /// Makes an unstarted item wait for one more.
    pub(crate) fn add_dependency(&mut self, item: WorkId, dependency: WorkId) -> Result<(), WorkError> {
        let index = self.index_of(item).ok_or(WorkError::UnknownItem(item))?;
        let name = || self.name(index).to_owned();
        let on = self
            .index_of(dependency)
            .ok_or_else(|| WorkError::UnknownDependency { item: name(), dependency })?;
        if index == on {
            return Err(WorkError::SelfDependency { item: name() });
        }
        if self.node(index).state != WorkState::Pending {
            return Err(WorkError::AlreadyStarted { item: name() });
        }
        if let Some(path) = self.path(on, index) {
            return Err(self.cycle(&name(), &path[..path.len() - 1]));
        }
        let old = self.node(index).dependencies;
        self.node_mut(index).dependencies = self.edges.extend(index, old, on, &mut self.nodes);
        if self.edges.dead() >= COMPACT_AT_LEAST.max(self.edges.len() / 2) {
            self.rebuild_edges();
        }
        self.recount(index);
        self.run_chores();
        Ok(())
    }

    /// Takes a finished item back to `Pending`, with fresh retries. Items that were blocked by it, and
    /// are by nothing else, become `Pending` again too.
    pub(crate) fn restart(&mut self, index: Index) -> Result<(), WorkError> {
        self.check_restart(index)?;
        self.reopen(index);
        let mut reopened = vec![index];
        while let Some(index) = reopened.pop() {
            for dependent in self.dependents_of(index) {
                match self.node(dependent).state {
                    WorkState::Pending => self.recount(dependent),
                    WorkState::Blocked if self.could_reopen(dependent) => {
                        self.reopen(dependent);
                        reopened.push(dependent);
                    }
                    _ => {}
                }
            }
        }
        self.run_chores();
        Ok(())
    }

    /// Drops a finished item. Its id is void from now on; its place is reused in time.
    pub(crate) fn forget(&mut self, index: Index) -> Result<(), WorkError> {
        let node = self.node(index);
        if node.forgotten {
            return Err(WorkError::UnknownItem(self.id_of(index)));
        }
        self.check_finished(index)?;
        let unfinished = |dependent: &Index| !self.node(*dependent).state.is_terminal();
        let needed_by = self.edges.dependents(node.dependents).chain(node.parent()).find(unfinished);
        if let Some(dependent) = needed_by {
            let (item, dependent) = (self.name(index).to_owned(), self.name(dependent).to_owned());
            return Err(WorkError::StillNeeded { item, dependent });
        }
        self.drop_item(index);
        Ok(())
    }

    fn drop_item(&mut self, index: Index) {
        self.disown(index);
        self.detach_children(index);
        let dependencies = std::mem::take(&mut self.node_mut(index).dependencies);
        self.edges.kill(dependencies);
        let node = self.node_mut(index);
        node.forgotten = true;
        node.queued = false;
        node.extra = None;
        let (state, retries_left) = (node.state, node.retries_left);
        self.counts[state as usize] -= 1;
        self.retries_left -= u64::from(retries_left);
        self.gone.push(index);
        if self.gone.len() >= COMPACT_AT_LEAST.max(self.total()) {
            self.rebuild_edges();
            self.rebuild_names();
            self.generations.resize(self.nodes.len(), 0);
            for index in std::mem::take(&mut self.gone) {
                self.generations[index.get()] += 1;
                self.free.push(index);
            }
        }
    }

    /// Refuses what could never run. Looks at each dependency once: they may be many.
    fn check_new(&self, item: &NewItem<'_>) -> Result<Outlook, WorkError> {
        let name = || item.name.to_owned();
        if self.nodes.len() >= Index::NONE.get() || !self.names.has_room_for(item.name) {
            return Err(WorkError::Full { item: name() });
        }
        if item.weight == 0 {
            return Err(WorkError::ZeroWeight { item: name() });
        }
        if item.weight > self.capacity {
            let (weight, capacity) = (item.weight, self.capacity);
            return Err(WorkError::WeightAboveCapacity { item: name(), weight, capacity });
        }
        self.check_open(item)?;
        let mut outlook = Outlook::default();
        for dependency in item.dependencies {
            let Some(on) = self.index_of(*dependency) else {
                return Err(WorkError::UnknownDependency { item: name(), dependency: *dependency });
            };
            if let Some(path) = item.parent.and_then(|parent| self.path(on, parent)) {
                // The new child closes the circle: it would wait for `on`, and its parent for it.
                return Err(self.cycle(item.name, &path));
            }
            outlook.note(on, self.node(on).state);
        }
        Ok(outlook)
    }

    fn check_open(&self, item: &NewItem<'_>) -> Result<(), WorkError> {
        self.check_not_aborting(item.name)?;
        item.parent.map_or(Ok(()), |parent| self.check_parent(parent, item.name))
    }

    /// Refuses to restart what is not finished, or could never run again.
    pub(super) fn check_restart(&self, index: Index) -> Result<(), WorkError> {
        self.check_finished(index)?;
        self.check_not_aborting(self.name(index))?;
        match self.dependencies(index).find_map(|on| self.path(on, index)) {
            Some(path) => Err(self.cycle(self.name(index), &path[..path.len() - 1])),
            None => Ok(()),
        }
    }

    fn check_finished(&self, index: Index) -> Result<(), WorkError> {
        if self.node(index).state.is_terminal() {
            return Ok(());
        }
        Err(WorkError::NotFinished { item: self.name(index).to_owned() })
    }

    fn check_not_aborting(&self, item: &str) -> Result<(), WorkError> {
        if !self.aborting {
            return Ok(());
        }
        Err(WorkError::Aborting { item: item.to_owned(), owner: "the scheduler".to_owned() })
    }

    /// Refuses children to a parent that winds down or is not in its turn.
    pub(super) fn check_parent(&self, parent: Index, child: &str) -> Result<(), WorkError> {
        let (node, name) = (self.node(parent), self.name(parent));
        if node.state.is_aborting() {
            return Err(WorkError::Aborting { item: child.to_owned(), owner: format!("'{name}'") });
        }
        if !node.held {
            let (item, parent) = (child.to_owned(), name.to_owned());
            return Err(WorkError::ParentNotRunning { item, parent });
        }
        Ok(())
    }

    /// The items along which `from` waits for `to`, through dependencies or through children; both
    /// ends included.
    pub(super) fn path(&self, from: Index, to: Index) -> Option<Vec<Index>> {
        let mut came_from = HashMap::from([(from, from)]);
        let mut stack = vec![from];
        while let Some(mut at) = stack.pop() {
            if at == to {
                let mut path = vec![at];
                while at != from {
                    at = came_from[&at];
                    path.push(at);
                }
                path.reverse();
                return Some(path);
            }
            for next in self.dependencies(at).chain(self.children(at).iter().copied()) {
                let waits = next == to || !self.node(next).state.is_terminal();
                if waits && !came_from.contains_key(&next) {
                    came_from.insert(next, at);
                    stack.push(next);
                }
            }
        }
        None
    }

    pub(super) fn cycle(&self, item: &str, path: &[Index]) -> WorkError {
        let between = path.iter().map(|index| self.name(*index).to_owned());
        let ends = || std::iter::once(item.to_owned());
        WorkError::Cycle { path: ends().chain(between).chain(ends()).collect() }
    }

    fn place(&mut self, item: &NewItem<'_>) -> Index {
        let node = Node {
            name: self.names.add(item.name),
            extra: None,
            busy_ns: 0,
            dependencies: Default::default(),
            dependents: Dependents::default(),
            weight: item.weight,
            attempts: 0,
            retries_max: item.retries,
            retries_left: item.retries,
            parent: Index::NONE,
            slot: Slot::default(),
            state: WorkState::Pending,
            priority: item.priority,
            held: false,
            queued: false,
            woken: false,
            child_ended: false,
            child_failed: false,
            retry_due: false,
            watched: false,
            forgotten: false,
        };
        self.counts[WorkState::Pending as usize] += 1;
        self.retries_left += u64::from(item.retries);
        if let Some(index) = self.free.pop() {
            *self.node_mut(index) = node;
            return index;
        }
        self.nodes.push(node);
        self.unmet.push(0);
        Index(self.nodes.len() as u32 - 1)
    }

    /// Writes the arena anew, without dead edges and those of forgotten items.
    fn rebuild_edges(&mut self) {
        let old = std::mem::take(&mut self.edges);
        let mut edges = Edges::default();
        self.nodes.iter_mut().for_each(|node| node.dependents = Dependents::default());
        for index in (0..self.nodes.len() as u32).map(Index) {
            let alive = |on: &Index| !self.node(*on).forgotten;
            let kept: Vec<Index> = old.dependencies(self.node(index).dependencies).filter(alive).collect();
            self.node_mut(index).dependencies = edges.add(index, kept.into_iter(), &mut self.nodes);
        }
        self.edges = edges;
    }

    /// Writes the names anew, without those of forgotten items.
    fn rebuild_names(&mut self) {
        let old = std::mem::take(&mut self.names);
        for node in self.nodes.iter_mut() {
            node.name = if node.forgotten { Name::default() } else { self.names.add(old.get(node.name)) };
        }
    }

    /// Counts anew what an unstarted item waits for, after its dependencies changed under it.
    fn recount(&mut self, index: Index) {
        let mut outlook = Outlook::default();
        self.dependencies(index).for_each(|on| outlook.note(on, self.node(on).state));
        self.unmet[index.get()] = outlook.unmet;
        let node = self.node_mut(index);
        if outlook.unmet > 0 {
            node.queued = false;
        }
        if !node.queued {
            self.act_on(index, &outlook);
        }
    }

    fn act_on(&mut self, index: Index, outlook: &Outlook) {
        match outlook.blocked_by {
            Some(by) => self.chores.push(Chore::Block { index, by }),
            None if outlook.unmet == 0 => self.enqueue(index),
            None => {}
        }
    }

    fn reopen(&mut self, index: Index) {
        self.shift(index, WorkState::Pending);
        self.detach_children(index);
        let node = self.node_mut(index);
        let spent = node.retries_max - node.retries_left;
        node.retries_left = node.retries_max;
        node.attempts = 0;
        node.busy_ns = 0;
        if let Some(extra) = &mut node.extra {
            extra.error = None;
            extra.progress = None;
            extra.note = None;
            extra.status_of = None;
        }
        self.retries_left += u64::from(spent);
        self.child_reopened(index);
        self.recount(index);
    }

    /// Whether nothing that a blocked item depends on keeps it from running, or waits for it.
    fn could_reopen(&self, index: Index) -> bool {
        !self.dependencies(index).any(|on| self.ended_badly(on) || self.path(on, index).is_some())
    }

    fn dependents_of(&self, index: Index) -> Vec<Index> {
        self.edges.dependents(self.node(index).dependents).collect()
    }

    fn ended_badly(&self, index: Index) -> bool {
        let state = self.node(index).state;
        state.is_terminal() && state != WorkState::Success
    }
}
