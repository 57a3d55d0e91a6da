//! What the scheduler, its handles and its slots share: the machine, the work objects, and everybody who
//! wants to hear about changes.
//!
//! One lock guards it all. It is held for table work only, never over user code, I/O or spawning.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dragnet_ambient::{Cancel, Monotonic, Rng, SharedClock};
use tokio::runtime;
use tokio::sync::Notify;

use crate::events::EventSink;
use crate::identities::Identities;
use crate::inner::Inner;
use crate::journal::{Book, Fingerprint, Journal, JournalRecord};
use crate::machine::{Ending, Index, Verdict};
use crate::pace::Pace;
use crate::seat::{Output, Seat};
use crate::slot::{Desk, Job, Occupant};
use crate::watch::Watch;
use crate::{WorkContext, WorkError, WorkId, WorkSpec};

/// The lock, and what needs none.
#[derive(Debug)]
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    pub(crate) clock: SharedClock,
    /// Tells the run to look again: all is done, or a timer was set that is due earlier.
    pub(crate) look_again: Notify,
    /// There is room for another slot and work for it, but none was started: see
    /// [`QUICK_NS`](crate::pace::QUICK_NS).
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
        let inner = Inner::new(capacity, retry_delay, events, rng);
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
            self.update(|inner| inner.seats.set_pace(pace, Pace::UNKNOWN));
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

    /// Asks whether a slot's item may end now, as [`Machine::prepare`](crate::machine::Machine::prepare)
    /// sees it. If it has to wait for its children, it is put back, and the slot gets the next one, if there
    /// is one. Both under one lock: the last child may end at any moment, and then somebody else comes for
    /// the item.
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
        inner.seats.set_pace(&mut desk.pace, pace);
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
            inner.seats.free(desk.slot, &mut desk.pace);
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
        machine.take_stop_signals().for_each(|slot| seats.cancel(slot));
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
        let leave = starting == Starting::Later && inner.seats.quick() > 0;
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
