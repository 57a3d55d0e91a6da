//! [`Pace`]: how quick a slot's items are, which decides whether others should help it.

use std::time::Duration;

/// Items that take less than this are done faster by one slot alone: with two, each would mostly wait
/// for the other's lock and memory. So of all slots whose items are this quick, only one goes on, and it
/// starts no others. As soon as its item pauses, or takes longer than the
/// [`Watch`](crate::watch::Watch) likes, the others are started after all.
///
/// Two slots in each other's way need up to about this long for an item that one alone does in a tenth.
pub(crate) const QUICK_NS: u32 = 2_500;

/// The most that one item counts towards a slot's [`Pace`], so that a single late one does not look like a
/// change of the work.
const PACE_NS_MAX: u32 = 4 * QUICK_NS;

/// How long a slot's recent items took: a moving average over about eight, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace(u32);

impl Pace {
    /// Of a slot that is new or was held up: one quick item shows that it is quick.
    pub(crate) const UNKNOWN: Self = Self(QUICK_NS);

    pub(crate) fn after(self, elapsed: Duration) -> Self {
        let latest = u32::try_from(elapsed.as_nanos()).unwrap_or(u32::MAX).min(PACE_NS_MAX);
        Self(self.0 - self.0 / 8 + latest / 8)
    }

    pub(crate) fn is_quick(self) -> bool {
        self.0 < QUICK_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_quick_after_one_quick_item_and_slow_after_several_slow_ones() {
        let quick = Pace::UNKNOWN.after(Duration::from_nanos(300));
        assert!(!Pace::UNKNOWN.is_quick() && quick.is_quick());
        let steady = (0..20).fold(quick, |pace, _| pace.after(Duration::from_nanos(300)));
        assert!(steady.after(Duration::from_secs(1)).is_quick(), "one late item is an accident");
        let slow = (0..3).fold(steady, |pace, _| pace.after(Duration::from_millis(1)));
        assert!(!slow.is_quick());
    }
}
