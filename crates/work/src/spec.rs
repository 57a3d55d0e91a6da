//! [`WorkSpec`]: a work object with everything the scheduler should know about it. Also the retry
//! constants and the built-in backoff.

use std::time::Duration;

use dragnet_ambient::Rng;

use crate::{Work, WorkId};

/// No second attempt.
pub const RETRY_NEVER: u32 = 0;
/// One retry: two attempts.
pub const RETRY_ONCE: u32 = 1;
/// A handful: six attempts; with exponential backoff 20 to 31 seconds of pauses in all.
pub const RETRY_A_FEW: u32 = 5;
/// For what must get through in the end: 33 attempts; with exponential backoff 1.7 to 3.4 hours.
pub const RETRY_A_LOT: u32 = 32;

/// How long an item pauses between attempts when its outcome names no delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryBackoff {
    /// The scheduler's [`retry_delay`](crate::WorkSchedulerConfig::retry_delay), always.
    #[default]
    Fixed,
    /// 1 s, 2 s, 3-4 s, 5-8 s, and so on, doubling up to 257-512 s, at random within each range.
    Exponential,
}

impl RetryBackoff {
    /// The pause after an attempt before which there had been `retries_done` retries.
    pub fn delay(self, retries_done: u32, fixed: Duration, rng: &mut Rng) -> Duration {
        match self {
            Self::Fixed => fixed,
            Self::Exponential => {
                let (low, high) = exponential_bounds_secs(retries_done);
                Duration::from_secs(rng.between(low, high))
            }
        }
    }
}

/// Doubling stops after this many retries, at 512 s.
const DOUBLINGS_MAX: u32 = 9;

fn exponential_bounds_secs(retries_done: u32) -> (u64, u64) {
    let high = 1_u64 << retries_done.min(DOUBLINGS_MAX);
    let low = if high < 2 { 1 } else { high / 2 + 1 };
    (low, high)
}

/// An item to be added: the work, its dependencies and its limits.
///
/// ```
/// use std::time::Duration;
/// use dragnet_work::{work_fn, WorkSpec, RETRY_A_FEW};
///
/// let spec = WorkSpec::new(work_fn("fetch", async |_| ()))
///     .retries(RETRY_A_FEW)
///     .exponential_backoff()
///     .timeout(Duration::from_secs(30))
///     .weight(2)
///     .priority(1);
/// # drop(spec);
/// ```
pub struct WorkSpec {
    /// Always there until the item was added.
    pub(crate) work: Option<Box<dyn Work>>,
    pub(crate) dependencies: Vec<WorkId>,
    pub(crate) retries: u32,
    pub(crate) backoff: RetryBackoff,
    pub(crate) timeout: Option<Duration>,
    pub(crate) weight: u32,
    pub(crate) priority: i8,
    defined_by: String,
}

impl WorkSpec {
    /// An item without dependencies and retries, of weight 1 and priority 0.
    pub fn new(work: impl Work + 'static) -> Self {
        Self::boxed(Box::new(work))
    }

    /// As [`new`](Self::new), for work that is boxed already.
    pub fn boxed(work: Box<dyn Work>) -> Self {
        Self {
            work: Some(work),
            dependencies: Vec::new(),
            retries: RETRY_NEVER,
            backoff: RetryBackoff::Fixed,
            timeout: None,
            weight: 1,
            priority: 0,
            defined_by: String::new(),
        }
    }

    /// Starts only after these have succeeded. May be called repeatedly.
    pub fn after(mut self, dependencies: impl IntoIterator<Item = WorkId>) -> Self {
        if self.dependencies.is_empty() {
            // Takes a vector over as it is, which matters where there are many.
            self.dependencies = dependencies.into_iter().collect();
        } else {
            self.dependencies.extend(dependencies);
        }
        self
    }

    /// Allows so many further attempts after the first.
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Pauses longer after each failed attempt: see [`RetryBackoff::Exponential`].
    pub fn exponential_backoff(mut self) -> Self {
        self.backoff = RetryBackoff::Exponential;
        self
    }

    /// Drops a call of `run` that takes longer, and counts it as a failed attempt.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Takes so many of the scheduler's slots while it runs. An item that does not fit yet is not
    /// overtaken by lighter ones behind it.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Goes before items of lower priority that became ready at most 64 places earlier for each step of
    /// difference. The bound is the rule against starvation: nobody is overtaken for ever.
    pub fn priority(mut self, priority: i8) -> Self {
        self.priority = priority;
        self
    }

    /// The name of the work.
    pub fn name(&self) -> &str {
        self.work.as_ref().map_or("", |work| work.name())
    }

    /// Says what the item does, where its work [cannot](Work::definition): any text that changes when the
    /// meaning does. A journal skips only what has not changed.
    pub fn defined_by(mut self, text: impl Into<String>) -> Self {
        self.defined_by = text.into();
        self
    }

    /// What the item does, by its own words and by [`defined_by`](Self::defined_by).
    pub(crate) fn definition(&self) -> String {
        let own = self.work.as_ref().map(|work| work.definition()).unwrap_or_default();
        if self.defined_by.is_empty() { own } else { format!("{:?}", (own, &self.defined_by)) }
    }
}

impl std::fmt::Debug for WorkSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkSpec").field("name", &self.name()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_backoff_has_the_documented_ranges() {
        let ranges: Vec<(u64, u64)> = (0..=10).map(exponential_bounds_secs).collect();
        let expected = [
            (1, 1),
            (2, 2),
            (3, 4),
            (5, 8),
            (9, 16),
            (17, 32),
            (33, 64),
            (65, 128),
            (129, 256),
            (257, 512),
            (257, 512),
        ];
        assert_eq!(ranges, expected);
        assert_eq!(exponential_bounds_secs(u32::MAX), (257, 512));
    }

    #[test]
    fn the_totals_of_a_few_and_a_lot_are_as_documented() {
        let total = |retries| {
            (0..retries)
                .map(exponential_bounds_secs)
                .fold((0, 0), |sum, range| (sum.0 + range.0, sum.1 + range.1))
        };
        assert_eq!(total(RETRY_A_FEW), (20, 31));
        assert_eq!(total(RETRY_A_LOT), (6175, 12287));
    }

    #[test]
    fn the_exponential_backoff_reaches_both_ends_of_its_range() {
        let mut rng = Rng::seeded(5);
        let delay = |rng: &mut Rng| RetryBackoff::Exponential.delay(3, Duration::ZERO, rng).as_secs();
        let seen: std::collections::BTreeSet<u64> = (0..200).map(|_| delay(&mut rng)).collect();
        assert_eq!(seen, [5, 6, 7, 8].into());
    }
}
