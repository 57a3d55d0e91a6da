//! [`WorkEvent`]s and the way they leave the scheduler without ever holding it up.

use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{OwnedPermit, Sender};

use crate::{WorkId, WorkState};

/// One change of state of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkEvent {
    /// The item.
    pub id: WorkId,
    /// Its name.
    pub name: Arc<str>,
    /// The state it has just entered.
    pub state: WorkState,
    /// The attempt, counted from 1; 0 before the first.
    pub attempt: u32,
    /// How many events were left out directly before this one, because the reader was too slow.
    pub missed: u64,
}

/// Sends events into a bounded channel and never waits.
///
/// While the channel is full, the newest event waits in a pocket and older ones are counted as missed.
/// One place of the channel is set aside for the pocket at the end of a run, whenever there is one, so
/// that the last event arrives, and with it the number of those that did not.
#[derive(Debug)]
pub(crate) struct EventSink {
    sender: Sender<WorkEvent>,
    pocket: Option<WorkEvent>,
    last_place: Option<OwnedPermit<WorkEvent>>,
    pub(crate) missed_total: u64,
}

impl EventSink {
    pub(crate) fn new(sender: Sender<WorkEvent>) -> Self {
        Self { sender, pocket: None, last_place: None, missed_total: 0 }
    }

    pub(crate) fn send(&mut self, mut event: WorkEvent) {
        // In a channel of one, nothing could be set aside without giving up all the rest.
        if self.last_place.is_none() && self.sender.max_capacity() > 1 {
            self.last_place = self.sender.clone().try_reserve_owned().ok();
        }
        if let Some(waiting) = self.pocket.take()
            && let Err(TrySendError::Full(waiting)) = self.sender.try_send(waiting)
        {
            self.missed_total += 1;
            event.missed = waiting.missed + 1;
            self.pocket = Some(event);
            return;
        }
        if let Err(TrySendError::Full(event)) = self.sender.try_send(event) {
            self.pocket = Some(event);
        }
    }

    /// The run ends: the last event goes out on the place that was kept for it.
    pub(crate) fn flush(&mut self) {
        let Some(event) = self.pocket.take() else { return };
        match self.last_place.take() {
            Some(place) => _ = place.send(event),
            None => self.pocket = self.sender.try_send(event).err().map(TrySendError::into_inner),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    fn event(attempt: u32) -> WorkEvent {
        let id = WorkId::from_parts(0, 0);
        WorkEvent { id, name: "x".into(), state: WorkState::Running, attempt, missed: 0 }
    }

    fn drain(receiver: &mut mpsc::Receiver<WorkEvent>) -> Vec<(u32, u64)> {
        std::iter::from_fn(|| receiver.try_recv().ok()).map(|event| (event.attempt, event.missed)).collect()
    }

    #[test]
    fn a_slow_reader_learns_how_many_it_missed() {
        let (sender, mut receiver) = mpsc::channel(3);
        let mut sink = EventSink::new(sender);
        (1..=10).for_each(|n| sink.send(event(n)));
        assert_eq!(drain(&mut receiver), [(1, 0), (2, 0)]);
        sink.send(event(11));
        assert_eq!(drain(&mut receiver), [(10, 7), (11, 0)]);
        assert_eq!(sink.missed_total, 7);
    }

    #[test]
    fn the_last_event_always_arrives() {
        let (sender, mut receiver) = mpsc::channel(3);
        let mut sink = EventSink::new(sender);
        (1..=10).for_each(|n| sink.send(event(n)));
        sink.flush();
        assert_eq!(drain(&mut receiver), [(1, 0), (2, 0), (10, 7)]);
        sink.send(event(11));
        sink.flush();
        assert_eq!(drain(&mut receiver), [(11, 0)]);
    }

    #[test]
    fn a_reader_that_left_does_no_harm() {
        let (sender, receiver) = mpsc::channel(2);
        let mut sink = EventSink::new(sender);
        drop(receiver);
        (1..=10).for_each(|n| sink.send(event(n)));
        sink.flush();
        assert_eq!(sink.missed_total, 0);
    }
}
