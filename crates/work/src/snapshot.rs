//! Looking in from outside: [`WorkSchedulerMetrics`], [`WorkSnapshot`], and the graph as DOT or Mermaid.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use dragnet_ambient::Monotonic;

use crate::machine::{Index, Machine, Node};
use crate::{Progress, WorkId, WorkState};

/// Counts over all items. Kept up to date as items move, so reading them costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkSchedulerMetrics {
    /// Items in all, forgotten ones excepted.
    pub total: usize,
    /// Items that have not started.
    pub pending: usize,
    /// Items in progress. Stepwise items between two turns count, though they hold no slot.
    pub running: usize,
    /// Items that pause: by their own wish, or between two attempts.
    pub waiting: usize,
    /// Items that wind down.
    pub aborting: usize,
    /// Items that ended well.
    pub success: usize,
    /// Items that failed.
    pub failed: usize,
    /// Items that a dependency kept from starting.
    pub blocked: usize,
    /// Items that were stopped.
    pub cancelled: usize,
    /// Attempts begun, over all items.
    pub attempts: u64,
    /// Retries that items could still use.
    pub retries_left: u64,
    /// Slots in use, by weight.
    pub slots_used: u32,
    /// Slots in all: `max_concurrency`.
    pub slots: u32,
    /// Events that a slow reader missed.
    pub events_missed: u64,
}

impl WorkSchedulerMetrics {
    pub(crate) fn of(machine: &Machine, events_missed: u64) -> Self {
        Self {
            total: machine.total(),
            pending: machine.count(WorkState::Pending),
            running: machine.count(WorkState::Running),
            waiting: machine.count(WorkState::Waiting) + machine.count(WorkState::Retrying),
            aborting: machine.count(WorkState::Aborting),
            success: machine.count(WorkState::Success),
            failed: machine.count(WorkState::Failed),
            blocked: machine.count(WorkState::Blocked),
            cancelled: machine.count(WorkState::Cancelled),
            attempts: machine.attempts(),
            retries_left: machine.retries_left(),
            slots_used: machine.used(),
            slots: machine.capacity(),
            events_missed,
        }
    }

    /// Items that have ended, in whatever way.
    pub fn finished(&self) -> usize {
        self.success + self.failed + self.blocked + self.cancelled
    }
}

/// One item at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkSnapshot {
    /// Its id.
    pub id: WorkId,
    /// Its name.
    pub name: WorkName,
    /// Where it stands.
    pub state: WorkState,
    /// Attempts begun since it was added or restarted.
    pub attempts: u32,
    /// Retries it could still use.
    pub retries_left: u32,
    /// What it depends on.
    pub deps: WorkDeps,
    /// Whose child it is.
    pub parent: Option<WorkId>,
    /// The last error.
    pub error: Option<String>,
    /// Time spent in slots, over all attempts.
    pub elapsed: Duration,
    /// How far it says it is.
    pub progress: Option<Progress>,
    /// Slots it needs.
    pub weight: u32,
    /// Its priority.
    pub priority: i8,
}

/// The dependencies of one item of a snapshot: a slice of ids.
///
/// All items of a snapshot share one list of them, which spares an allocation for each.
#[derive(Clone)]
pub struct WorkDeps {
    all: Arc<Vec<WorkId>>,
    start: u32,
    end: u32,
}

impl std::ops::Deref for WorkDeps {
    type Target = [WorkId];

    fn deref(&self) -> &[WorkId] {
        &self.all[self.start as usize..self.end as usize]
    }
}

impl std::fmt::Debug for WorkDeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl PartialEq for WorkDeps {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for WorkDeps {}

/// The name of one item of a snapshot: a part of a text that all its items share.
#[derive(Clone)]
pub struct WorkName {
    all: Arc<String>,
    start: u32,
    end: u32,
}

impl std::ops::Deref for WorkName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.all[self.start as usize..self.end as usize]
    }
}

impl std::fmt::Display for WorkName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self)
    }
}

impl std::fmt::Debug for WorkName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl PartialEq for WorkName {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for WorkName {}

/// All of `indices`, in their order.
pub(crate) fn snapshot(machine: &Machine, indices: impl Iterator<Item = Index> + Clone) -> Vec<WorkSnapshot> {
    let most = indices.clone().map(|index| machine.dependencies_at_most(index)).sum();
    let (mut ids, mut names, mut ends) = (Vec::with_capacity(most), String::new(), Vec::new());
    for index in indices.clone() {
        ids.extend(machine.dependencies(index).map(|dep| machine.id_of(dep)));
        names.push_str(machine.name(index));
        ends.push((ids.len() as u32, names.len() as u32));
    }
    let (ids, names, mut start) = (Arc::new(ids), Arc::new(names), (0, 0));
    let mut items = Vec::with_capacity(ends.len());
    for (index, end) in indices.zip(ends) {
        let deps = WorkDeps { all: Arc::clone(&ids), start: start.0, end: end.0 };
        let name = WorkName { all: Arc::clone(&names), start: start.1, end: end.1 };
        items.push(WorkSnapshot::of(machine, index, name, deps));
        start = end;
    }
    items
}

impl WorkSnapshot {
    fn of(machine: &Machine, index: Index, name: WorkName, deps: WorkDeps) -> Self {
        let node = machine.node(index);
        let extra = node.extra();
        Self {
            id: machine.id_of(index),
            name,
            state: node.state,
            attempts: node.attempts,
            retries_left: node.retries_left,
            deps,
            parent: node.parent().map(|parent| machine.id_of(parent)),
            error: extra.and_then(|extra| extra.error.clone()),
            elapsed: Duration::from_nanos(node.busy_ns),
            progress: extra.and_then(|extra| extra.progress),
            weight: node.weight,
            priority: node.priority,
        }
    }
}

/// An item's status in one line, as people read it: `Retrying in 3 sec: fetch`.
pub(crate) fn status_line(machine: &Machine, index: Index, now: Monotonic) -> String {
    let node = machine.node(index);
    let extra = node.extra();
    let shown = extra.and_then(|extra| extra.status_of).and_then(|id| machine.index_of(id));
    if let Some(other) = shown.filter(|_| !node.state.is_terminal()) {
        return status_line(machine, other, now);
    }
    let mut line = match (node.retry_at(), extra.and_then(|extra| extra.note.as_deref())) {
        (Some(at), _) => format!("Retrying in {} sec: {}", at.since(now).as_secs(), machine.name(index)),
        (None, Some(note)) if node.state == WorkState::Waiting => note.to_owned(),
        _ => format!("{}: {}", node.state.status_prefix(), machine.name(index)),
    };
    append_details(&mut line, node);
    line
}

fn append_details(line: &mut String, node: &Node) {
    if let Some(Progress { done, total }) = node.extra().and_then(|extra| extra.progress) {
        _ = match total {
            Some(total) => write!(line, " ({done}/{total})"),
            None => write!(line, " ({done})"),
        };
    }
    if node.has_children() {
        let family = node.family();
        _ = write!(line, " : {}/{} children completed", family.total - family.live, family.total);
    }
}

/// The graph in Graphviz's DOT language: an arrow leads from what comes first to what comes after it, a
/// dashed one from a parent to its child; the colour tells the state.
pub fn to_dot(items: &[WorkSnapshot]) -> String {
    let mut out =
        String::from("digraph work {\n  rankdir=LR;\n  node [shape=box, style=\"rounded,filled\"];\n");
    for item in items {
        let label = format!("{}\n{}", item.name, item.state).replace('\\', "\\\\").replace('"', "\\\"");
        let label = label.replace('\n', "\\n");
        _ = writeln!(out, "  \"{}\" [label=\"{label}\", fillcolor=\"{}\"];", item.id, colour(item.state));
        for dep in item.deps.iter() {
            _ = writeln!(out, "  \"{dep}\" -> \"{}\";", item.id);
        }
        if let Some(parent) = item.parent {
            _ = writeln!(out, "  \"{parent}\" -> \"{}\" [style=dashed];", item.id);
        }
    }
    out.push_str("}\n");
    out
}

/// The graph as a Mermaid flowchart, for Markdown pages; arrows and colours as in [`to_dot`].
pub fn to_mermaid(items: &[WorkSnapshot]) -> String {
    let mut out = String::from("flowchart LR\n");
    for item in items {
        let label =
            item.name.replace('&', "#amp;").replace('"', "#quot;").replace('<', "#lt;").replace('\n', " ");
        let node = mermaid_name(item.id);
        _ = writeln!(out, "  {node}[\"{label}<br/>{}\"]:::{}", item.state, item.state);
        for dep in item.deps.iter() {
            _ = writeln!(out, "  {} --> {node}", mermaid_name(*dep));
        }
        if let Some(parent) = item.parent {
            _ = writeln!(out, "  {} -.-> {node}", mermaid_name(parent));
        }
    }
    for state in WorkState::ALL.into_iter().filter(|state| items.iter().any(|item| item.state == *state)) {
        _ = writeln!(out, "  classDef {state} fill:{}", colour(state));
    }
    out
}

fn mermaid_name(id: WorkId) -> String {
    format!("w{}_{}", id.index(), id.generation())
}

const fn colour(state: WorkState) -> &'static str {
    match state {
        WorkState::Pending => "#eceff1",
        WorkState::Running => "#bbdefb",
        WorkState::Waiting | WorkState::Retrying => "#fff9c4",
        WorkState::Aborting => "#ffe0b2",
        WorkState::Success => "#c8e6c9",
        WorkState::Failed => "#ffcdd2",
        WorkState::Blocked => "#d7ccc8",
        WorkState::Cancelled => "#e1bee7",
    }
}
