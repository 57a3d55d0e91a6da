//! What the scheduler, its handles and its slots share: the machine, the work objects, and everybody who
//! wants to hear about changes.
//!
//! One lock guards it all. It is held for table work only, never over user code, I/O or spawning.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dragnet_ambient::{Cancel, Monotonic, Rng, SharedClock};
use tokio::runtime;
use tokio::sync::{Notify, oneshot};

use crate::context::{Output, Seat};
use crate::events::{EventSink, WorkEvent};
use crate::journal::{Book, Fingerprint, Journal};
use crate::machine::{Change, Ending, Extra, Index, Machine, NewItem, Slot, Table, Verdict};
use crate::slot::{Desk, Job, Occupant};
use crate::{RetryBackoff, Work, WorkError, WorkId, WorkSpec, WorkState};

/// Items that take less than this are done faster by one slot alone: with two, each would mostly wait
/// for the other's lock and memory. So of all slots whose items are this quick, only one goes on, and it
/// starts no others. As soon as its item pauses, or takes longer than the run's
/// [`WATCH_INTERVAL`](crate::scheduler::WATCH_INTERVAL), the others are started after all.
///
/// Two slots in each other's way need up to about this long for an item that one alone does in a tenth.
const QUICK_NS: u32 = 2_500;

/// The most that one item counts towards a slot's [`Pace`], so that a single late one does not look like a
/// change of the work.
const PACE_NS_MAX: u32 = 4 * QUICK_NS;

/// How long a slot's recent items took: a moving average over about eight, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace(u32);

impl Pace {
    /// Of a new slot: two quick items show that it is quick.
    const UNKNOWN: Self = Self(QUICK_NS);

    fn after(self, elapsed: Duration) -> Self {
        let latest = u32::try_from(elapsed.as_nanos()).unwrap_or(u32::MAX).min(PACE_NS_MAX);
        Self(self.0 - self.0 / 8 + latest / 8)
    }

    fn is_quick(self) -> bool {
        self.0 < QUICK_NS
    }
}

/// The lock, and what needs none.
#[derive(Debug)]
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    pub(crate) clock: SharedClock,
    /// Tells the run to look again: all is done, a timer was set that is due earlier, or the queue is
    /// unattended.
    pub(crate) look_again: Notify,
    /// There is room for another slot and work for it, but none was started: see [`QUICK_NS`].
    unattended: AtomicBool,
    book: Mutex<Option<Book>>,
}

/// When to start slots for work that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Starting {
    Now,
    /// When the slot that is there turns out not to be quick enough.
    Later,
}

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
    /// By index. Empty while the item is in a slot.
    works: Table<Option<Box<dyn Work>>>,
    seats: Vec<Arc<Seat>>,
    free_seats: Vec<Slot>,
    /// Slots in use whose items are [quick](QUICK_NS).
    quick_slots: u32,
    pub(crate) run: Option<ActiveRun>,
    pub(crate) events: Option<EventSink>,
    watchers: HashMap<Index, Vec<oneshot::Sender<WorkEnd>>>,
    outputs: HashMap<Index, Output>,
    identities: Option<Identities>,
    rng: Rng,
    retry_delay: Duration,
    /// Shut down for good: no new work, ever.
    pub(crate) closed: bool,
    changes: Vec<Change>,
}

/// Present while somebody drives the scheduler.
#[derive(Debug)]
pub(crate) struct ActiveRun {
    pub(crate) runtime: runtime::Handle,
    /// Cancelled when the run is dropped, to take the slots down with it.
    pub(crate) teardown: Cancel,
    /// The deadline for which the run has set its alarm.
    pub(crate) alarm: Option<Monotonic>,
    /// The run has been told that all is done; it need not be told again until there is more.
    pub(crate) told_done: bool,
}

/// Who is who in a journalled run.
#[derive(Debug)]
struct Identities {
    /// What earlier processes have done, with its durable output. Each entry is used once: whoever
    /// restarts an item wants it done again.
    known: HashMap<Fingerprint, Option<String>>,
    of: HashMap<Index, Fingerprint>,
    holder: HashMap<Fingerprint, Index>,
}

impl Shared {
    pub(crate) fn new(
        capacity: u32,
        retry_delay: Duration,
        events: Option<EventSink>,
        clock: SharedClock,
        rng: Rng,
    ) -> Self {
        let mut machine = Machine::new(capacity);
        machine.record_all = events.is_some();
        let inner = Inner {
            machine,
            works: Table::default(),
            seats: Vec::new(),
            free_seats: Vec::new(),
            quick_slots: 0,
            run: None,
            events,
            watchers: HashMap::new(),
            outputs: HashMap::new(),
            identities: None,
            rng,
            retry_delay,
            closed: false,
            changes: Vec::new(),
        };
        Self {
            inner: Mutex::new(inner),
            clock,
            look_again: Notify::new(),
            unattended: AtomicBool::new(false),
            book: Mutex::new(None),
        }
    }

    /// Reads the state.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Inner) -> T) -> T {
        read(&self.lock())
    }

    /// Changes the state, then does what follows from the change: slots start, watchers hear.
    pub(crate) fn update<T>(self: &Arc<Self>, change: impl FnOnce(&mut Inner) -> T) -> T {
        self.update_with(Starting::Now, change)
    }

    /// As [`update`](Self::update), with a choice when slots start.
    pub(crate) fn update_with<T>(
        self: &Arc<Self>,
        starting: Starting,
        change: impl FnOnce(&mut Inner) -> T,
    ) -> T {
        let mut inner = self.lock();
        let result = change(&mut inner);
        self.follow_up(inner, starting);
        result
    }

    /// Whether work waits although there is room for it.
    pub(crate) fn is_unattended(&self) -> bool {
        self.unattended.load(Ordering::Relaxed)
    }

    /// Starts slots for work that was left waiting.
    pub(crate) fn attend(self: &Arc<Self>) {
        if self.is_unattended() {
            self.update(|_| ());
        }
    }

    /// Turns the journal on.
    pub(crate) fn keep_book(&self, mut journal: Box<dyn Journal>) {
        let known = journal.take_records().into_iter().map(|record| (record.fingerprint, record.output));
        let identities = Identities { known: known.collect(), of: HashMap::new(), holder: HashMap::new() };
        self.lock().identities = Some(identities);
        *self.book() = Some(Book::new(journal));
    }

    /// The journal. Never locked while the state is: it writes to disk.
    pub(crate) fn book(&self) -> MutexGuard<'_, Option<Book>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn identity(&self, index: Index) -> Option<Fingerprint> {
        self.read(|inner| inner.identities.as_ref()?.of.get(&index).copied())
    }

    /// Asks whether an item may end now: see [`Machine::prepare`].
    pub(crate) fn prepare(self: &Arc<Self>, index: Index, ending: Ending) -> Option<Ending> {
        self.update(|inner| inner.machine.prepare(index, ending))
    }

    /// A slot reports what became of its item and gets the next one, if there is one. The hot path: one
    /// lock, one look at the clock.
    ///
    /// `Some` refuses: the item was cancelled meanwhile, and the slot has to end it so.
    #[must_use]
    pub(crate) fn exchange(self: &Arc<Self>, desk: &mut Desk, verdict: Verdict) -> Option<Ending> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let job = desk.job.as_mut()?;
        let (index, elapsed) = (job.index, now.since(job.started));
        inner.machine.add_busy(index, elapsed);
        job.started = now;
        let succeeded = matches!(verdict, Verdict::End(Ending::Success));
        let verdict = inner.with_delay(index, verdict);
        if let Some(ending) = inner.machine.apply(index, verdict, now) {
            return Some(ending);
        }
        if succeeded && let Some(output) = desk.seat.output() {
            inner.outputs.insert(index, output);
        }
        inner.set_pace(desk, desk.pace.after(elapsed));
        let starting = if desk.pace.is_quick() { Starting::Later } else { Starting::Now };
        inner.turn_over(self, desk, now);
        self.follow_up(inner, starting);
        None
    }

    /// A slot hands back an item that waits for its children, and gets the next one, if there is one.
    pub(crate) fn lay_aside(self: &Arc<Self>, desk: &mut Desk) {
        let now = self.clock.now();
        let mut inner = self.lock();
        if let Some(job) = &desk.job {
            inner.machine.add_busy(job.index, now.since(job.started));
        }
        inner.turn_over(self, desk, now);
        self.follow_up(inner, Starting::Now);
    }

    /// A slot is torn down with its item in it.
    pub(crate) fn forfeit(self: &Arc<Self>, job: Job, desk: &mut Desk) {
        self.update(|inner| {
            inner.works[job.index.get()] = Some(job.work);
            inner.vacate(desk);
            inner.machine.forfeit(job.index);
        });
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow_up(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>, starting: Starting) {
        let Inner { machine, seats, .. } = &mut *inner;
        machine.take_stop_signals().for_each(|slot| seats[slot.0 as usize].cancel());
        let started = match starting {
            _ if !inner.could_start() => Vec::new(),
            Starting::Now => {
                self.unattended.store(false, Ordering::Relaxed);
                inner.start_slots(self)
            }
            Starting::Later => {
                if !self.unattended.swap(true, Ordering::Relaxed) {
                    self.look_again.notify_one();
                }
                Vec::new()
            }
        };
        if inner.machine.has_changes() {
            inner.publish();
        }
        if inner.wants_attention() {
            self.look_again.notify_one();
        }
        let runtime =
            (!started.is_empty()).then(|| inner.run.as_ref().map(|run| run.runtime.clone())).flatten();
        // A runtime that shuts down drops what is spawned on it at once, and dropping takes the lock.
        drop(inner);
        if let Some(runtime) = runtime {
            for (occupant, teardown) in started {
                runtime.spawn(teardown.run_until_cancelled_owned(occupant.work_off()));
            }
        }
    }
}

impl Inner {
    /// Adds an item, with its work object beside it.
    pub(crate) fn add(&mut self, spec: WorkSpec, parent: Option<Index>) -> Result<Index, WorkError> {
        let identity = self.identify(&spec, parent)?;
        let special = spec.timeout.is_some() || spec.backoff != RetryBackoff::Fixed;
        let extra = special.then(|| Box::new(Extra::new(spec.timeout, spec.backoff)));
        let index = self.machine.add(NewItem {
            name: spec.work.name().into(),
            dependencies: &spec.dependencies,
            parent,
            retries: spec.retries,
            weight: spec.weight,
            priority: spec.priority,
            extra,
        })?;
        if self.works.len() <= index.get() {
            self.works.push(Some(spec.work));
        } else {
            self.works[index.get()] = Some(spec.work);
        }
        if let (Some(identities), Some(identity)) = (&mut self.identities, identity) {
            identities.of.insert(index, identity);
            identities.holder.insert(identity, index);
        }
        Ok(index)
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
        self.works[index.get()] = None;
        self.outputs.remove(&index);
        if let Some(identities) = &mut self.identities
            && let Some(identity) = identities.of.remove(&index)
        {
            identities.holder.remove(&identity);
        }
        Ok(())
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
            name: Arc::clone(&node.name),
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
        self.watchers.entry(index).or_default().push(watcher);
    }

    pub(crate) fn output(&self, of: WorkId) -> Option<Output> {
        let index = self.machine.index_of(of)?;
        let done = self.machine.node(index).state == WorkState::Success;
        done.then(|| self.outputs.get(&index).cloned()).flatten()
    }

    /// Whether the status line of `other` is, in the end, that of `item`.
    pub(crate) fn stands_for(&self, other: Index, item: Index) -> bool {
        let next = |index: &Index| self.machine.node(*index).extra().and_then(|extra| extra.status_of);
        std::iter::successors(Some(other), next).any(|index| index == item)
    }

    fn identify(&self, spec: &WorkSpec, parent: Option<Index>) -> Result<Option<Fingerprint>, WorkError> {
        let Some(identities) = &self.identities else { return Ok(None) };
        let of = |index: Index| identities.of.get(&index);
        // An unknown dependency is reported by the machine.
        let dependencies = spec.dependencies.iter().filter_map(|id| self.machine.index_of(*id).and_then(of));
        let parent = parent.and_then(of);
        let identity = Fingerprint::of(spec.name(), &spec.work.definition(), parent, dependencies);
        let unfinished = |index: &&Index| !self.machine.node(**index).state.is_terminal();
        if identities.holder.get(&identity).filter(unfinished).is_some() {
            return Err(WorkError::DuplicateDefinition { item: spec.name().to_owned() });
        }
        Ok(Some(identity))
    }

    /// Fills in the pause before a retry, where the item leaves it to us.
    fn with_delay(&mut self, index: Index, verdict: Verdict) -> Verdict {
        let Verdict::End(Ending::Retry { delay: Duration::ZERO, error }) = verdict else { return verdict };
        let node = self.machine.node(index);
        let backoff = node.extra().map(|extra| extra.backoff).unwrap_or_default();
        let retries_done = node.attempts.saturating_sub(1);
        let delay = backoff.delay(retries_done, self.retry_delay, &mut self.rng);
        Verdict::End(Ending::Retry { delay, error })
    }

    /// Puts the slot's item back on its shelf and takes the next.
    fn turn_over(&mut self, shared: &Arc<Shared>, desk: &mut Desk, now: Monotonic) {
        if let Some(job) = desk.job.take() {
            self.works[job.index.get()] = Some(job.work);
        }
        if !desk.seat.is_fresh() {
            desk.seat = Arc::new(Seat::new(Arc::downgrade(shared)));
            self.seats[desk.slot.0 as usize] = Arc::clone(&desk.seat);
        }
        let others_are_quick = desk.pace.is_quick() && self.quick_slots > 1;
        desk.job = if others_are_quick { None } else { self.next_job(now) };
        match &desk.job {
            Some(job) => self.machine.seat(job.index, desk.slot),
            None => self.vacate(desk),
        }
    }

    fn set_pace(&mut self, desk: &mut Desk, pace: Pace) {
        self.quick_slots = self.quick_slots + u32::from(pace.is_quick()) - u32::from(desk.pace.is_quick());
        desk.pace = pace;
    }

    fn vacate(&mut self, desk: &mut Desk) {
        self.set_pace(desk, Pace::UNKNOWN);
        self.free_seats.push(desk.slot);
    }

    fn could_start(&self) -> bool {
        let room = self.machine.used() < self.machine.capacity();
        room && self.machine.has_queued() && self.run.is_some()
    }

    fn start_slots(&mut self, shared: &Arc<Shared>) -> Vec<(Occupant, Cancel)> {
        let mut started = Vec::new();
        let now = shared.clock.now();
        while let Some(job) = self.next_job(now) {
            let Some(run) = &self.run else { break };
            let teardown = run.teardown.clone();
            let slot = self.take_seat(shared);
            self.machine.seat(job.index, slot);
            let seat = Arc::clone(&self.seats[slot.0 as usize]);
            let desk =
                Desk { slot, seat, job: Some(job), pace: Pace::UNKNOWN, journalled: self.is_journalled() };
            started.push((Occupant { shared: Arc::clone(shared), desk }, teardown));
        }
        started
    }

    fn take_seat(&mut self, shared: &Arc<Shared>) -> Slot {
        if let Some(slot) = self.free_seats.pop() {
            // Its last occupant may have left something behind, if it was torn down.
            self.seats[slot.0 as usize] = Arc::new(Seat::new(Arc::downgrade(shared)));
            return slot;
        }
        self.seats.push(Arc::new(Seat::new(Arc::downgrade(shared))));
        Slot(self.seats.len() as u32 - 1)
    }

    fn next_job(&mut self, now: Monotonic) -> Option<Job> {
        self.run.as_ref()?;
        if self.identities.is_some() {
            self.skip_known();
        }
        let start = self.machine.start_next()?;
        let node = self.machine.node(start.index);
        let work = self.works[start.index.get()].take()?;
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
            let Some(identities) = &mut self.identities else { return };
            let known = identities.of.get(&index).and_then(|identity| identities.known.remove(identity));
            let Some(output) = known else { return };
            if let Some(json) = output {
                self.outputs.insert(index, Output::Durable(json.into()));
            }
            self.machine.skip(index);
        }
    }

    fn publish(&mut self) {
        let mut changes = std::mem::take(&mut self.changes);
        self.machine.take_changes(&mut changes);
        for change in &changes {
            let node = self.machine.node(change.index);
            if let Some(events) = &mut self.events {
                events.send(WorkEvent {
                    id: self.machine.id_of(change.index),
                    name: Arc::clone(&node.name),
                    state: change.state,
                    attempt: node.attempts,
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

    fn wants_attention(&mut self) -> bool {
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
