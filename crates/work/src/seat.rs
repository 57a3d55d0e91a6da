//! [`Seat`]: what a slot shares with the item in it, and [`Seats`]: all of them.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use dragnet_ambient::Cancel;

use crate::machine::Slot;
use crate::pace::Pace;
use crate::shared::Shared;

/// What a slot shares with the item in it.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) scheduler: Weak<Shared>,
    cancelled: AtomicBool,
    /// Made only for items that ask for it.
    token: OnceLock<Cancel>,
    output: Mutex<Option<Output>>,
    has_output: AtomicBool,
    /// A child was added in this turn.
    has_children: AtomicBool,
    /// The turn is over: no more children.
    closed: AtomicBool,
}

/// What an item hands to its dependents.
#[derive(Clone)]
pub(crate) enum Output {
    Memory(Arc<dyn Any + Send + Sync>),
    /// As JSON.
    Durable(Arc<str>),
}

/// The seats of all slots, taken and free.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    all: Vec<Arc<Seat>>,
    free: Vec<Slot>,
    /// Slots in use whose items are [quick](crate::pace::QUICK_NS).
    quick: u32,
}

impl Seats {
    /// Gives a new slot its number and a seat in which nobody sat before.
    pub(crate) fn take(&mut self, shared: &Arc<Shared>) -> (Slot, Arc<Seat>) {
        let seat = Arc::new(Seat::new(Arc::downgrade(shared)));
        let slot = self.free.pop().unwrap_or(Slot(self.all.len() as u32));
        match self.all.get_mut(slot.0 as usize) {
            Some(place) => *place = Arc::clone(&seat),
            None => self.all.push(Arc::clone(&seat)),
        }
        (slot, seat)
    }

    /// Makes a slot's seat ready for its next item: another one, if the last has left something behind.
    pub(crate) fn renew(&mut self, slot: Slot, seat: &mut Arc<Seat>, shared: &Arc<Shared>) {
        if !seat.is_fresh() {
            *seat = Arc::new(Seat::new(Arc::downgrade(shared)));
            self.all[slot.0 as usize] = Arc::clone(seat);
        }
        seat.open();
    }

    /// Takes back the number of a slot that ends.
    pub(crate) fn free(&mut self, slot: Slot, pace: &mut Pace) {
        self.set_pace(pace, Pace::UNKNOWN);
        self.free.push(slot);
    }

    /// Asks the item in a slot to stop.
    pub(crate) fn cancel(&self, slot: Slot) {
        self.all[slot.0 as usize].cancel();
    }

    pub(crate) fn set_pace(&mut self, of: &mut Pace, pace: Pace) {
        self.quick = self.quick + u32::from(pace.is_quick()) - u32::from(of.is_quick());
        *of = pace;
    }

    /// How many slots are quick.
    pub(crate) fn quick(&self) -> u32 {
        self.quick
    }
}

impl Seat {
    fn new(scheduler: Weak<Shared>) -> Self {
        Self {
            scheduler,
            cancelled: AtomicBool::new(false),
            token: OnceLock::new(),
            output: Mutex::new(None),
            has_output: AtomicBool::new(false),
            has_children: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Whether nothing of the last item is left in it, so that the next may have it.
    fn is_fresh(self: &Arc<Self>) -> bool {
        // One reference is the slot's, one the scheduler's.
        Arc::strong_count(self) == 2
            && !self.is_cancelled()
            && self.token.get().is_none()
            && !self.has_children()
            && !self.has_output.load(Ordering::Relaxed)
    }

    fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        // Ordered against `token`: either the token sees the flag, or we see the token.
        fence(Ordering::SeqCst);
        if let Some(token) = self.token.get() {
            token.cancel();
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    pub(crate) fn has_children(&self) -> bool {
        self.has_children.load(Ordering::SeqCst)
    }

    /// The item's turn is over. Ordered against `expect_children`: either that sees the end of the turn,
    /// or whoever asks `has_children` next sees the child.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// The next turn begins. Called under the scheduler's lock, which orders it.
    fn open(&self) {
        self.closed.store(false, Ordering::Relaxed);
    }

    /// False if the turn is over.
    pub(crate) fn expect_children(&self) -> bool {
        self.has_children.store(true, Ordering::SeqCst);
        !self.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn take_output(&self) -> Option<Output> {
        if !self.has_output.swap(false, Ordering::Relaxed) {
            return None;
        }
        self.output.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn output(&self) -> Option<Output> {
        if !self.has_output.load(Ordering::Relaxed) {
            return None;
        }
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn put_output(&self, output: Output) {
        *self.output.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
        self.has_output.store(true, Ordering::Relaxed);
    }

    pub(crate) fn token(&self) -> &Cancel {
        let token = self.token.get_or_init(Cancel::new);
        fence(Ordering::SeqCst);
        if self.is_cancelled() {
            token.cancel();
        }
        token
    }
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory(_) => f.write_str("Memory(..)"),
            Self::Durable(json) => f.debug_tuple("Durable").field(json).finish(),
        }
    }
}
