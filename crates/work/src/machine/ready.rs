//! The queue of items that wait for nothing but a slot.
//!
//! **The rule of order.** Items of one priority start in the order in which they became ready. A step
//! of priority is worth [`PLACES_PER_PRIORITY`] places in the queue, no more: whoever became ready so
//! many places earlier goes first even against the higher priority. So every item is overtaken by a
//! bounded number of later ones, and none starves.

use std::collections::VecDeque;

use super::Index;

/// How many places in the queue one step of priority is worth. Large enough that a priority is felt
/// on any real queue, small enough that the lowest item waits for thousands of others, not for ever.
pub(crate) const PLACES_PER_PRIORITY: u64 = 64;

/// Queued items, one first-in-first-out queue for each priority in use.
///
/// Entries are never taken out of the middle: an item that was cancelled meanwhile is skipped when its
/// turn comes. The caller's `is_queued` tells which.
#[derive(Debug, Default)]
pub(super) struct ReadyQueue {
    classes: Vec<Class>,
    arrivals: u64,
}

#[derive(Debug)]
struct Class {
    priority: i8,
    entries: VecDeque<Entry>,
}

/// The low half of the place is enough next to the queue's own count, and halves the entry.
#[derive(Clone, Copy, Debug)]
struct Entry {
    index: Index,
    place_low: u32,
}

/// The head of one class, as [`ReadyQueue::next`] found it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) index: Index,
    class: usize,
}

impl ReadyQueue {
    pub(super) fn push(&mut self, index: Index, priority: i8) {
        self.arrivals += 1;
        let entry = Entry { index, place_low: self.arrivals as u32 };
        let class = match self.classes.iter().position(|class| class.priority == priority) {
            Some(at) => &mut self.classes[at],
            None => {
                self.classes.push(Class { priority, entries: VecDeque::new() });
                let last = self.classes.len() - 1;
                &mut self.classes[last]
            }
        };
        class.entries.push_back(entry);
    }

    /// True when not even a stale entry is left.
    pub(super) fn is_empty(&self) -> bool {
        self.classes.iter().all(|class| class.entries.is_empty())
    }

    /// The item whose turn it is.
    pub(super) fn next(&mut self, is_queued: impl Fn(Index) -> bool) -> Option<Head> {
        let arrivals = self.arrivals as u32;
        let mut best: Option<((i64, i8), Head)> = None;
        for (at, Class { priority, entries }) in self.classes.iter_mut().enumerate() {
            while entries.front().is_some_and(|entry| !is_queued(entry.index)) {
                entries.pop_front();
            }
            let Some(entry) = entries.front() else { continue };
            // How long ago it arrived, in places; the queue never holds 2^32 entries.
            let age = i64::from(arrivals.wrapping_sub(entry.place_low));
            let rank = i64::from(*priority) * PLACES_PER_PRIORITY as i64 + age;
            // At equal rank the higher priority goes first.
            if best.is_none_or(|(best, _)| (rank, *priority) > best) {
                best = Some(((rank, *priority), Head { index: entry.index, class: at }));
            }
        }
        best.map(|(_, head)| head)
    }

    /// Takes what [`next`](Self::next) found.
    pub(super) fn take(&mut self, head: Head) {
        self.classes[head.class].entries.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pop(queue: &mut ReadyQueue, is_queued: impl Fn(Index) -> bool) -> Option<u32> {
        let head = queue.next(is_queued)?;
        queue.take(head);
        Some(head.index.0)
    }

    fn drain(queue: &mut ReadyQueue) -> Vec<u32> {
        std::iter::from_fn(|| pop(queue, |_| true)).collect()
    }

    #[test]
    fn equal_priorities_start_in_order_of_arrival() {
        let mut queue = ReadyQueue::default();
        (0..5).for_each(|i| queue.push(Index(i), 0));
        assert_eq!(drain(&mut queue), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_higher_priority_overtakes_a_bounded_number_of_places() {
        let places = PLACES_PER_PRIORITY as u32;
        let mut queue = ReadyQueue::default();
        (0..2 * places).for_each(|i| queue.push(Index(i), 0));
        queue.push(Index(9999), 1);
        let order = drain(&mut queue);
        let position = order.iter().position(|i| *i == 9999);
        assert_eq!(position, Some(places as usize), "it overtakes 64 of the 128 that were there before it");
    }

    #[test]
    fn a_low_priority_item_starts_although_higher_ones_keep_coming() {
        let mut queue = ReadyQueue::default();
        queue.push(Index(7), -1);
        let mut overtakers = 0;
        loop {
            queue.push(Index(1), 0);
            if pop(&mut queue, |_| true) == Some(7) {
                break;
            }
            overtakers += 1;
        }
        assert_eq!(overtakers, PLACES_PER_PRIORITY);
    }

    #[test]
    fn items_that_left_the_queue_are_skipped() {
        let mut queue = ReadyQueue::default();
        (0..4).for_each(|i| queue.push(Index(i), 0));
        assert_eq!(pop(&mut queue, |index| index.0 >= 2), Some(2));
        assert_eq!(pop(&mut queue, |_| true), Some(3));
        assert!(queue.is_empty());
    }
}
