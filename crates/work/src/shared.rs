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
use crate::identities::Identities;
use crate::journal::{Book, Fingerprint, Journal, JournalRecord};
use crate::machine::{Change, Ending, Errand, Extra, Index, Machine, NewItem, Slot, Table, Verdict};
use crate::pace::Pace;
use crate::slot::{Desk, Job, Occupant};
use crate::watch::Watch;
use crate::{RetryBackoff, Work, WorkContext, WorkError, WorkId, WorkSpec, WorkState};

/// The lock, and what needs none.
#[derive(Debug)]
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    pub(crate) clock: SharedClock,
    /// Tells the run to look again: all is done, or a timer was set that is due earlier.
    pub(crate) look_again: Notify,
    /// There is room for another slot and work for it, but none was started: see [`QUICK_NS`](crate::pace::QUICK_NS).
    unattended: AtomicBool,
    journalled: AtomicBool,
    book: Mutex<Option<Book>>,
}

/// When to start slots for work that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Starting {
    Now,
    /// Only if the slot that is there turns out not to be quick.
    Later,
    /// Not from here.
    Not,
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
    works: Shelf,
    seats: Vec<Arc<Seat>>,
    free_seats: Vec<Slot>,
    /// Slots in use whose items are [quick](crate::pace::QUICK_NS).
    quick_slots: u32,
    pub(crate) run: Option<ActiveRun>,
    pub(crate) runs_begun: u64,
    pub(crate) events: Option<EventSink>,
    watchers: HashMap<Index, Vec<oneshot::Sender<WorkEnd>>>,
    outputs: HashMap<Index, Output>,
    identities: Option<Identities>,
    rng: Rng,
    retry_delay: Duration,
    /// Shut down for good: no new work, ever.
    pub(crate) closed: bool,
    changes: Vec<Change>,
    /// What users made and nobody needs any more. Dropped after the lock: dropping is user code, too.
    trash: Vec<Trash>,
}

/// The work objects, by index. A place is empty while its item is in a slot.
type Shelf = Table<Option<Box<dyn Work>>>;

/// See [`Inner::trash`]. Nothing is ever done with it but to drop it.
#[expect(dead_code, reason = "kept only to be dropped")]
enum Trash {
    Work(Box<dyn Work>),
    Works(Shelf),
    Output(Output),
}

/// Present while somebody drives the scheduler.
#[derive(Debug)]
pub(crate) struct ActiveRun {
    pub(crate) runtime: runtime::Handle,
    /// Tells this run from others.
    pub(crate) number: u64,
    /// Cancelled when the run is dropped, to take the slots down with it.
    pub(crate) teardown: Cancel,
    /// The deadline for which the run has set its alarm.
    pub(crate) alarm: Option<Monotonic>,
    /// Started when it is first needed.
    pub(crate) watch: Option<Watch>,
    /// Its runtime is going away: what would be started now would be lost at once.
    pub(crate) doomed: bool,
    /// The run has been told that all is done; it need not be told again until there is more.
    pub(crate) told_done: bool,
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
        };
        Self {
            inner: Mutex::new(inner),
            clock,
            look_again: Notify::new(),
            unattended: AtomicBool::new(false),
            journalled: AtomicBool::new(false),
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

    /// The item of a slot pauses, so others cannot rely on the slot to come back soon.
    pub(crate) fn slow_down(self: &Arc<Self>, pace: &mut Pace) {
        if pace.is_quick() {
            self.update(|inner| inner.set_pace(pace, Pace::UNKNOWN));
        }
    }

    /// Starts slots for work that was left waiting.
    pub(crate) fn attend(self: &Arc<Self>) {
        if self.is_unattended() {
            self.update(|_| ());
        }
    }

    /// Adds an item, as a child of the item whose context this is, if one is given.
    ///
    /// What only the item's own code can tell is asked before the lock, and what is refused is dropped
    /// after it: both are user code.
    pub(crate) fn add(
        self: &Arc<Self>,
        mut spec: WorkSpec,
        parent: Option<&WorkContext>,
    ) -> Result<WorkId, WorkError> {
        let definition = if self.is_journalled() { spec.definition() } else { String::new() };
        let name = spec.name();
        let mut inner = self.lock();
        let added = match parent {
            None => inner.add(name, &definition, &spec, None),
            Some(ctx) => {
                ctx.as_parent(&inner, name).and_then(|me| inner.add(name, &definition, &spec, Some(me)))
            }
        };
        let id = added.map(|index| {
            inner.place(index, spec.work.take());
            inner.machine.id_of(index)
        });
        self.follow_up(inner, Starting::Now);
        id
    }

    pub(crate) fn is_journalled(&self) -> bool {
        self.journalled.load(Ordering::Relaxed)
    }

    /// Turns the journal on.
    pub(crate) fn keep_book(&self, mut journal: Box<dyn Journal>) {
        let identities = Identities::new(journal.take_records());
        self.lock().identities = Some(identities);
        self.journalled.store(true, Ordering::Relaxed);
        *self.book() = Some(Book::new(journal));
    }

    /// The journal. Never locked while the state is: it writes to disk.
    pub(crate) fn book(&self) -> MutexGuard<'_, Option<Book>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a journal should know of an item that succeeds: who it is, and what it gives.
    pub(crate) fn for_the_record(&self, index: Index, seat: &Seat) -> (Option<Fingerprint>, Option<Output>) {
        self.read(|inner| {
            let identity = inner.identities.as_ref().and_then(|identities| identities.of(index).copied());
            (identity, seat.output().or_else(|| inner.outputs.get(&index).cloned()))
        })
    }

    /// Who an item is, if the journal says of it that it is done. Asked before it is done again.
    pub(crate) fn take_recorded(&self, index: Index) -> Option<Fingerprint> {
        self.lock().identities.as_mut()?.take_recorded(index)
    }

    pub(crate) fn write_journal(&self, record: &JournalRecord) {
        if let Some(book) = self.book().as_mut() {
            book.append(record);
        }
        if let Some(identities) = &mut self.lock().identities {
            identities.note(record);
        }
    }

    /// Asks whether a slot's item may end now: see [`Machine::prepare`]. If it has to wait for its children,
    /// it is put back, and the slot gets the next one, if there is one. Both under one lock: the last
    /// child may end at any moment, and then somebody else comes for the item.
    pub(crate) fn prepare(self: &Arc<Self>, desk: &mut Desk, ending: Ending) -> Option<Ending> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let job = desk.job.as_ref()?;
        let ready = inner.machine.prepare(job.index, ending);
        if ready.is_none() {
            inner.machine.add_busy(job.index, now.since(job.started));
            inner.take_output(desk);
            inner.turn_over(self, desk, now);
        }
        self.follow_up(inner, Starting::Now);
        ready
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
        let failed = matches!(verdict, Verdict::End(Ending::Retry { .. } | Ending::Fail(_)));
        let verdict = inner.with_delay(index, verdict);
        if let Some(ending) = inner.machine.apply(index, verdict, now) {
            return Some(ending);
        }
        inner.take_output(desk);
        if failed {
            inner.drop_output(index);
        }
        let pace = desk.pace.after(elapsed);
        inner.set_pace(&mut desk.pace, pace);
        let starting = if desk.pace.is_quick() { Starting::Later } else { Starting::Now };
        inner.turn_over(self, desk, now);
        self.follow_up(inner, starting);
        None
    }

    /// A slot is torn down with its item in it.
    pub(crate) fn forfeit(self: &Arc<Self>, job: Job, desk: &mut Desk) {
        // No new slots: they would be torn down like this one, each from within the one before.
        let index = job.index;
        let by_a_panic = std::thread::panicking();
        self.update_with(Starting::Not, |inner| {
            inner.shelve(job);
            inner.vacate(desk);
            if let Some(run) = &mut inner.run
                && run.number == desk.run_number
            {
                // Torn down, though nobody has ended the run: its runtime is going away.
                run.doomed = !by_a_panic;
            }
            inner.machine.forfeit(index);
        });
        // If there is a next run already, it has room for another slot now.
        self.look_again.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow_up(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>, starting: Starting) {
        let Inner { machine, seats, .. } = &mut *inner;
        machine.take_stop_signals().for_each(|slot| seats[slot.0 as usize].cancel());
        let started = self.start_or_leave(&mut inner, starting);
        if inner.machine.has_changes() {
            inner.publish();
        }
        let wakes_run = inner.wants_attention();
        let runtime = (wakes_run || !started.is_empty()).then(|| inner.runtime()).flatten();
        let trash = std::mem::take(&mut inner.trash);
        // A runtime that shuts down drops what is spawned on it at once, and dropping takes the lock.
        drop(inner);
        drop(trash);
        let Some(runtime) = runtime else { return };
        if wakes_run {
            self.look_again.notify_one();
        }
        for occupant in started {
            let teardown = occupant.teardown.clone();
            runtime.spawn(teardown.run_until_cancelled_owned(occupant.work_off()));
        }
        make_stealable(&runtime);
    }

    /// Starts slots for what is queued, or leaves that to the quick slot that is there.
    fn start_or_leave(self: &Arc<Self>, inner: &mut Inner, starting: Starting) -> Vec<Occupant> {
        let leave = starting == Starting::Later && inner.quick_slots > 0;
        if starting == Starting::Not || !inner.could_start() {
            self.unattended.store(false, Ordering::Relaxed);
            return Vec::new();
        }
        if leave && (self.is_unattended() || inner.ring_watch(self)) {
            self.unattended.store(true, Ordering::Relaxed);
            return Vec::new();
        }
        self.unattended.store(false, Ordering::Relaxed);
        inner.start_slots(self)
    }
}

/// Lets other threads take the task that this one has just woken.
///
/// Of all tasks that a thread of the runtime wakes, it keeps the newest to itself. If our caller is a slot
/// whose next item computes for long, that task would have to wait for it, although other threads are
/// idle. An empty task takes its place.
fn make_stealable(runtime: &runtime::Handle) {
    if runtime.metrics().num_workers() > 1 {
        runtime.spawn(std::future::ready(()));
    }
}

impl Inner {
    fn add(
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
    fn place(&mut self, index: Index, work: Option<Box<dyn Work>>) {
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
    fn take_output(&mut self, desk: &Desk) {
        if let (Some(job), Some(output)) = (&desk.job, desk.seat.take_output()) {
            self.keep_output(job.index, output);
        }
    }

    fn keep_output(&mut self, of: Index, output: Output) {
        self.trash.extend(self.outputs.insert(of, output).map(Trash::Output));
    }

    fn drop_output(&mut self, of: Index) {
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
    fn with_delay(&mut self, index: Index, verdict: Verdict) -> Verdict {
        let Verdict::End(Ending::Retry { delay: Duration::ZERO, error }) = verdict else { return verdict };
        let node = self.machine.node(index);
        let backoff = node.extra().map(|extra| extra.backoff).unwrap_or_default();
        let retries_done = node.attempts.saturating_sub(1);
        let delay = backoff.delay(retries_done, self.retry_delay, &mut self.rng);
        Verdict::End(Ending::Retry { delay, error })
    }

    /// Puts a work object back. After the scheduler is gone there is no place for it any more.
    fn shelve(&mut self, job: Job) {
        match self.works.get_mut(job.index.get()) {
            Some(place) => *place = Some(job.work),
            None => self.trash.push(Trash::Work(job.work)),
        }
    }

    /// Puts the slot's item back on its shelf and takes the next.
    fn turn_over(&mut self, shared: &Arc<Shared>, desk: &mut Desk, now: Monotonic) {
        if let Some(job) = desk.job.take() {
            self.shelve(job);
        }
        if !desk.seat.is_fresh() {
            desk.seat = Arc::new(Seat::new(Arc::downgrade(shared)));
            self.seats[desk.slot.0 as usize] = Arc::clone(&desk.seat);
        }
        let others_are_quick = desk.pace.is_quick() && self.quick_slots > 1;
        // A slot of a run that is over must not take items of the next one down with it.
        let outlived = self.run.as_ref().is_none_or(|run| run.number != desk.run_number);
        let stops = others_are_quick || outlived;
        desk.seat.open();
        desk.job = if stops { None } else { self.next_job(now) };
        match &desk.job {
            Some(job) => self.machine.seat(job.index, desk.slot),
            None => self.vacate(desk),
        }
    }

    fn set_pace(&mut self, of: &mut Pace, pace: Pace) {
        self.quick_slots = self.quick_slots + u32::from(pace.is_quick()) - u32::from(of.is_quick());
        *of = pace;
    }

    fn vacate(&mut self, desk: &mut Desk) {
        self.set_pace(&mut desk.pace, Pace::UNKNOWN);
        self.free_seats.push(desk.slot);
    }

    /// Has the queue looked after. False if that cannot be done.
    fn ring_watch(&mut self, shared: &Arc<Shared>) -> bool {
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

    fn runtime(&self) -> Option<runtime::Handle> {
        self.run.as_ref().map(|run| run.runtime.clone())
    }

    fn could_start(&self) -> bool {
        let room = self.machine.used() < self.machine.capacity();
        room && self.machine.has_queued() && self.run.is_some()
    }

    fn start_slots(&mut self, shared: &Arc<Shared>) -> Vec<Occupant> {
        let (mut started, journalled) = (Vec::new(), self.is_journalled());
        let now = shared.clock.now();
        while let Some(job) = self.next_job(now) {
            let Some(run) = &self.run else { break };
            let (teardown, run_number) = (run.teardown.clone(), run.number);
            let slot = self.take_seat(shared);
            self.machine.seat(job.index, slot);
            let seat = Arc::clone(&self.seats[slot.0 as usize]);
            let desk = Desk { slot, seat, job: Some(job), pace: Pace::UNKNOWN, run_number, journalled };
            started.push(Occupant { shared: Arc::clone(shared), desk, teardown });
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

    fn publish(&mut self) {
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
