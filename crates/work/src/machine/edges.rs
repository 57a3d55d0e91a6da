//! The edges of the graph in one arena: twelve bytes each, no allocation per item.
//!
//! The dependencies of an item stand side by side, as they are all known when it is added. The
//! dependents of an item arrive one by one, so they form a list through the arena, newest first: a new
//! edge then touches no older one.

use super::{Index, Node, Table};

/// The dependencies of one item: a run of edges.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dependencies {
    start: u32,
    len: u32,
}

impl Dependencies {
    pub(super) fn len(self) -> usize {
        self.len as usize
    }
}

/// The dependents of one item: a list that begins with the newest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dependents(Option<Place>);

/// An edge's place in the arena, off by one so that `Option` costs nothing.
type Place = std::num::NonZeroU32;

#[derive(Clone, Copy, Debug)]
struct Edge {
    dependency: Index,
    dependent: Index,
    next: Option<Place>,
}

#[derive(Debug, Default)]
pub(super) struct Edges {
    arena: Table<Edge>,
    /// Edges of items that are forgotten or keep their dependencies elsewhere by now. Skipped by walks,
    /// dropped by a rebuild.
    dead: usize,
}

impl Edges {
    /// Appends the dependencies of `dependent`. Each of them gets it into its list.
    pub(super) fn add(
        &mut self,
        dependent: Index,
        dependencies: impl Iterator<Item = Index>,
        lists: &mut Table<Node>,
    ) -> Dependencies {
        let start = self.arena.len() as u32;
        for dependency in dependencies {
            self.append(&mut lists[dependency.get()].dependents, dependency, dependent);
        }
        Dependencies { start, len: self.arena.len() as u32 - start }
    }

    /// Adds one more dependency to an item that has `old` ones.
    pub(super) fn extend(
        &mut self,
        dependent: Index,
        old: Dependencies,
        dependency: Index,
        lists: &mut Table<Node>,
    ) -> Dependencies {
        if old.start as usize + old.len() == self.arena.len() {
            self.append(&mut lists[dependency.get()].dependents, dependency, dependent);
            return Dependencies { len: old.len + 1, ..old };
        }
        let all: Vec<Index> = self.dependencies(old).chain([dependency]).collect();
        self.kill(old);
        self.add(dependent, all.into_iter(), lists)
    }

    /// Takes an item out of the lists of dependents of all that it depends on.
    pub(super) fn kill(&mut self, dependencies: Dependencies) {
        let start = dependencies.start as usize;
        (start..start + dependencies.len()).for_each(|at| self.arena[at].dependent = Index::NONE);
        self.dead += dependencies.len();
    }

    pub(super) fn dead(&self) -> usize {
        self.dead
    }

    fn append(&mut self, list: &mut Dependents, dependency: Index, dependent: Index) {
        self.arena.push(Edge { dependency, dependent, next: list.0 });
        list.0 = Place::new(self.arena.len() as u32);
    }

    pub(super) fn dependencies(&self, of: Dependencies) -> impl ExactSizeIterator<Item = Index> + '_ {
        let start = of.start as usize;
        (start..start + of.len()).map(|at| self.arena[at].dependency)
    }

    /// Walks the dependents, newest first.
    pub(super) fn dependents(&self, of: Dependents) -> impl Iterator<Item = Index> + '_ {
        let edge = |place: Place| &self.arena[place.get() as usize - 1];
        std::iter::successors(of.0.map(edge), move |at| at.next.map(edge))
            .map(|edge| edge.dependent)
            .filter(|dependent| *dependent != Index::NONE)
    }

    pub(super) fn len(&self) -> usize {
        self.arena.len()
    }
}
