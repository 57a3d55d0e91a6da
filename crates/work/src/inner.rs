//! [`Inner`]: what stands behind the scheduler's lock. Tables and who watches them; no lock is taken here,
//! nothing is spawned, and no user code is called.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dragnet_ambient::{Monotonic, Rng};
use tokio::runtime;
use tokio::sync::oneshot;

use crate::events::{EventSink, WorkEvent};
use crate::identities::Identities;
use crate::journal::Fingerprint;
use crate::machine::{Change, Ending, Errand, Extra, Index, Machine, NewItem, Table, Verdict};
use crate::pace::Pace;
use crate::seat::{Output, Seats};
use crate::shared::{ActiveRun, Shared};
use crate::slot::{Desk, Job, Occupant};
use crate::watch::Watch;
use crate::{RetryBackoff, Work, WorkError, WorkId, WorkSpec, WorkState};

/// How an item ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkEnd {
    /// The item.
    pub id: WorkId,
    /// Its name.
    pub name: Arc<str>,
    /// One of the terminal states.
    pub state: WorkState,
    /// What went wrong, if something did.
    pub error: Option<String>,
}

/// See the module's documentation.
pub(crate) struct Inner {
    pub(crate) machine: Machine,
    works: Shelf,
    pub(crate) seats: Seats,
    pub(crate) run: Option<ActiveRun>,
    pub(crate) runs_begun: u64,
    pub(crate) events: Option<EventSink>,
    watchers: HashMap<Index, Vec<oneshot::Sender<WorkEnd>>>,
    pub(crate) outputs: HashMap<Index, Output>,
    pub(crate) identities: Option<Identities>,
    rng: Rng,
    retry_delay: Duration,
    /// Shut down for good: no new work, ever.
    pub(crate) closed: bool,
    changes: Vec<Change>,
    /// What users made and nobody needs any more. Dropped after the lock: dropping is user code, too.
    pub(crate) trash: Vec<Trash>,
}

/// The work objects, by index. A place is empty while its item is in a slot.
type Shelf = Table<Option<Box<dyn Work>>>;

/// See [`Inner::trash`]. Nothing is ever done with it but to drop it.
#[expect(dead_code, reason = "kept only to be dropped")]
pub(crate) enum Trash {
    Work(Box<dyn Work>),
    Works(Shelf),
    Output(Output),
}

impl Inner {
    pub(crate) fn new(capacity: u32, retry_delay: Duration, events: Option<EventSink>, rng: Rng) -> Self {
        let mut machine = Machine::new(capacity);
        machine.record_all = events.is_some();
        Self {
            machine,
            works: Table::default(),
            seats: Seats::default(),
            run: None,
            runs_begun: 0,
            events,
            watchers: HashMap::new(),
            outputs: HashMap::new(),
            identities: None,
            rng,
            retry_delay,
            closed: false,
            changes: Vec::new(),
            trash: Vec::new(),
        }
    }

    pub(crate) fn add(
        &mut self,
        name: &str,
        definition: &str,
        spec: &WorkSpec,
        parent: Option<Index>,
    ) -> Result<Index, WorkError> {
        let identity = self.identify(name, definition, &spec.dependencies, parent)?;
        let special = spec.timeout.is_some() || spec.backoff != RetryBackoff::Fixed;
        let extra = special.then(|| Box::new(Extra::new(spec.timeout, spec.backoff)));
        let index = self.machine.add(NewItem {
            name,
            dependencies: &spec.dependencies,
            parent,
            retries: spec.retries,
            weight: spec.weight,
            priority: spec.priority,
            extra,
        })?;
        if let (Some(identities), Some(identity)) = (&mut self.identities, identity) {
            identities.add(index, identity);
        }
        Ok(index)
    }

    /// Puts the work object of a new item on the shelf.
    pub(crate) fn place(&mut self, index: Index, work: Option<Box<dyn Work>>) {
        match self.works.get_mut(index.get()) {
            Some(place) => *place = work,
            None => self.works.push(work),
        }
    }

    /// Drops a finished item, its children with it, and all that is kept of them.
    pub(crate) fn forget(&mut self, index: Index) -> Result<(), WorkError> {
        let mut children = self.machine.children(index).to_vec();
        self.forget_one(index)?;
        while let Some(child) = children.pop() {
            let grandchildren = self.machine.children(child).to_vec();
            // One that something unfinished depends on stays, without a parent.
            if self.forget_one(child).is_ok() {
                children.extend(grandchildren);
            }
        }
        Ok(())
    }

    fn forget_one(&mut self, index: Index) -> Result<(), WorkError> {
        self.machine.forget(index)?;
        let work = self.works.get_mut(index.get()).and_then(Option::take);
        self.trash.extend(work.map(Trash::Work));
        self.drop_output(index);
        if let Some(identities) = &mut self.identities {
            identities.forget(index);
        }
        Ok(())
    }

    /// Cancels everything, and takes no more work until further notice.
    pub(crate) fn abort_all(&mut self) {
        self.machine.aborting = true;
        self.machine.cancel_all();
    }

    /// Lets go of every work object. Nobody will run them, and they may hold handles to us.
    pub(crate) fn drop_works(&mut self) {
        self.trash.push(Trash::Works(std::mem::take(&mut self.works)));
    }

    pub(crate) fn index_of(&self, id: WorkId) -> Result<Index, WorkError> {
        self.machine.index_of(id).ok_or(WorkError::UnknownItem(id))
    }

    pub(crate) fn is_journalled(&self) -> bool {
        self.identities.is_some()
    }

    pub(crate) fn end_of(&self, index: Index) -> WorkEnd {
        let node = self.machine.node(index);
        WorkEnd {
            id: self.machine.id_of(index),
            name: self.machine.name(index).into(),
            state: node.state,
            error: node.error().map(str::to_owned),
        }
    }

    /// Has the end of an item told to `watcher`, now or later.
    pub(crate) fn watch(&mut self, index: Index, watcher: oneshot::Sender<WorkEnd>) {
        if self.machine.node(index).state.is_terminal() {
            // Whoever asked may have left meanwhile.
            _ = watcher.send(self.end_of(index));
            return;
        }
        self.machine.node_mut(index).watched = true;
        let watchers = self.watchers.entry(index).or_default();
        // Those who left meanwhile make room for those who come.
        watchers.retain(|watcher| !watcher.is_closed());
        watchers.push(watcher);
    }

    pub(crate) fn output(&self, of: WorkId) -> Option<Output> {
        let index = self.machine.index_of(of)?;
        let done = self.machine.node(index).state == WorkState::Success;
        done.then(|| self.outputs.get(&index).cloned()).flatten()
    }

    /// Keeps what the slot's item has given so far. Others see it when the item succeeds.
    pub(crate) fn take_output(&mut self, desk: &Desk) {
        if let (Some(job), Some(output)) = (&desk.job, desk.seat.take_output()) {
            self.keep_output(job.index, output);
        }
    }

    fn keep_output(&mut self, of: Index, output: Output) {
        self.trash.extend(self.outputs.insert(of, output).map(Trash::Output));
    }

    pub(crate) fn drop_output(&mut self, of: Index) {
        // Most runs have no outputs at all, and even an empty map takes its time to say so.
        if !self.outputs.is_empty() {
            self.trash.extend(self.outputs.remove(&of).map(Trash::Output));
        }
    }

    /// Whether the status line of `other` is, in the end, that of `item`.
    pub(crate) fn stands_for(&self, other: Index, item: Index) -> bool {
        let next = |index: &Index| {
            let shown = self.machine.node(*index).extra().and_then(|extra| extra.status_of);
            shown.and_then(|id| self.machine.index_of(id))
        };
        std::iter::successors(Some(other), next).any(|index| index == item)
    }

    fn identify(
        &self,
        name: &str,
        definition: &str,
        dependencies: &[WorkId],
        parent: Option<Index>,
    ) -> Result<Option<Fingerprint>, WorkError> {
        let Some(identities) = &self.identities else { return Ok(None) };
        let of = |index: Index| identities.of(index);
        // An unknown dependency is reported by the machine.
        let known = |id: &WorkId| self.machine.index_of(*id).and_then(of);
        let dependencies = dependencies.iter().filter_map(known);
        let identity = Fingerprint::of(name, definition, parent.and_then(of), dependencies);
        let unfinished = |index: Index| !self.machine.node(index).state.is_terminal();
        if identities.holder(&identity).is_some_and(unfinished) {
            return Err(WorkError::DuplicateDefinition { item: name.to_owned() });
        }
        Ok(Some(identity))
    }

    /// Fills in the pause before a retry, where the item leaves it to us.
    pub(crate) fn with_delay(&mut self, index: Index, verdict: Verdict) -> Verdict {
        let Verdict::End(Ending::Retry { delay: Duration::ZERO, error }) = verdict else { return verdict };
        let node = self.machine.node(index);
        let backoff = node.extra().map(|extra| extra.backoff).unwrap_or_default();
        let retries_done = node.attempts.saturating_sub(1);
        let delay = backoff.delay(retries_done, self.retry_delay, &mut self.rng);
        Verdict::End(Ending::Retry { delay, error })
    }

    /// Puts a work object back. After the scheduler is gone there is no place for it any more.
    pub(crate) fn shelve(&mut self, job: Job) {
        match self.works.get_mut(job.index.get()) {
            Some(place) => *place = Some(job.work),
            None => self.trash.push(Trash::Work(job.work)),
        }
    }

    /// Puts the slot's item back on its shelf and takes the next.
    pub(crate) fn turn_over(&mut self, shared: &Arc<Shared>, desk: &mut Desk, now: Monotonic) {
        if let Some(job) = desk.job.take() {
            self.shelve(job);
        }
        self.seats.renew(desk.slot, &mut desk.seat, shared);
        let others_are_quick = desk.pace.is_quick() && self.seats.quick() > 1;
        // A slot of a run that is over must not take items of the next one down with it.
        let outlived = self.run.as_ref().is_none_or(|run| run.number != desk.run_number);
        let stops = others_are_quick || outlived;
        desk.job = if stops { None } else { self.next_job(now) };
        match &desk.job {
            Some(job) => self.machine.seat(job.index, desk.slot),
            None => self.seats.free(desk.slot, &mut desk.pace),
        }
    }

    /// Has the queue looked after. False if that cannot be done.
    pub(crate) fn ring_watch(&mut self, shared: &Arc<Shared>) -> bool {
        let Some(run) = &mut self.run else { return false };
        if run.runtime.metrics().num_workers() == 1 {
            // Nothing could run beside the slot that is there.
            return true;
        }
        if run.watch.is_none() {
            run.watch = Watch::start(Arc::downgrade(shared));
        }
        run.watch.as_ref().inspect(|watch| watch.ring()).is_some()
    }

    pub(crate) fn runtime(&self) -> Option<runtime::Handle> {
        self.run.as_ref().map(|run| run.runtime.clone())
    }

    pub(crate) fn could_start(&self) -> bool {
        let room = self.machine.used() < self.machine.capacity();
        room && self.machine.has_queued() && self.run.is_some()
    }

    pub(crate) fn start_slots(&mut self, shared: &Arc<Shared>) -> Vec<Occupant> {
        let (mut started, journalled) = (Vec::new(), self.is_journalled());
        let now = shared.clock.now();
        while let Some(job) = self.next_job(now) {
            let Some(run) = &self.run else { break };
            let (teardown, run_number) = (run.teardown.clone(), run.number);
            let (slot, seat) = self.seats.take(shared);
            self.machine.seat(job.index, slot);
            let desk = Desk { slot, seat, job: Some(job), pace: Pace::UNKNOWN, run_number, journalled };
            started.push(Occupant { shared: Arc::clone(shared), desk, teardown });
        }
        started
    }

    fn next_job(&mut self, now: Monotonic) -> Option<Job> {
        if self.run.as_ref().is_none_or(|run| run.doomed) {
            return None;
        }
        if self.identities.is_some() {
            self.skip_known();
        }
        let start = self.machine.start_next()?;
        let work = self.works[start.index.get()].take();
        let Some(work) = work else { unreachable!("bug: a ready item is in other hands") };
        if matches!(start.errand, Errand::Run { first: true }) {
            // What it gave before a restart is not what it gives now.
            self.drop_output(start.index);
        }
        let node = self.machine.node(start.index);
        Some(Job {
            index: start.index,
            id: self.machine.id_of(start.index),
            attempt: node.attempts,
            retries_left: node.retries_left,
            timeout: node.extra().and_then(|extra| extra.timeout),
            has_children: node.has_children(),
            errand: start.errand,
            started: now,
            work,
        })
    }

    /// Ends the items at the head of the queue that an earlier process has done.
    fn skip_known(&mut self) {
        while let Some(index) = self.machine.next_unstarted() {
            let known = self.identities.as_mut().and_then(|identities| identities.take_known(index));
            let Some(output) = known else { return };
            if let Some(json) = output {
                self.keep_output(index, Output::Durable(json.into()));
            }
            self.machine.skip(index);
        }
    }

    pub(crate) fn publish(&mut self) {
        let mut changes = std::mem::take(&mut self.changes);
        self.machine.take_changes(&mut changes);
        for change in &changes {
            let node = self.machine.node(change.index);
            if let Some(events) = &mut self.events {
                events.send(WorkEvent {
                    id: self.machine.id_of(change.index),
                    name: self.machine.name(change.index).into(),
                    state: change.state,
                    attempt: change.attempt,
                    missed: 0,
                });
            }
            if change.state.is_terminal() && node.watched {
                self.machine.node_mut(change.index).watched = false;
                for watcher in self.watchers.remove(&change.index).unwrap_or_default() {
                    // Whoever asked may have left meanwhile.
                    _ = watcher.send(self.end_of(change.index));
                }
            }
        }
        changes.clear();
        self.changes = changes;
    }

    pub(crate) fn wants_attention(&mut self) -> bool {
        let done = self.machine.unfinished() == 0;
        let Some(run) = &mut self.run else { return false };
        if std::mem::replace(&mut run.told_done, done) != done && done {
            return true;
        }
        let alarm = run.alarm;
        self.machine.next_deadline().is_some_and(|deadline| alarm.is_none_or(|alarm| deadline < alarm))
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("items", &self.machine.total()).finish_non_exhaustive()
    }
}
