//! How long to wait between attempts: [`RetryPolicy`] and its [`Backoff`]. Pure; nothing sleeps here.

use std::time::Duration;

use thiserror::Error;

use crate::Rng;

/// Whether an error may go away by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// A later attempt may succeed: a timeout, a reset, a throttled request.
    Retryable,
    /// Another attempt gives the same answer: forbidden, malformed, not found.
    Permanent,
}

/// How often an operation is tried and how long the pauses are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts in all, the first one included.
    pub max_attempts: u32,
    /// The pause after the first attempt; it doubles after each further one.
    pub base_delay: Duration,
    /// Growth stops here. Jitter is applied afterwards.
    pub max_delay: Duration,
    /// A pause is spread uniformly over plus and minus this share of itself.
    pub jitter_pct: u32,
}

/// A policy that cannot be honoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidPolicy {
    /// `max_attempts` is 0.
    #[error("max_attempts is 0: nothing would ever be tried; use at least 1")]
    NoAttempts,
    /// `base_delay` is above `max_delay`.
    #[error("base_delay {base:?} is above max_delay {max:?}")]
    BaseAboveMax {
        /// The first pause.
        base: Duration,
        /// The cap that it exceeds.
        max: Duration,
    },
    /// `jitter_pct` is above 100.
    #[error("jitter_pct is {0}: above 100 a pause could be negative")]
    JitterAboveHundred(u32),
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 4,
            base_delay: Duration::from_millis(50),
            max_delay: Duration::from_secs(2),
            jitter_pct: 20,
        }
    }
}

impl RetryPolicy {
    /// Checks the policy, once, where it enters the program.
    pub fn validate(&self) -> Result<(), InvalidPolicy> {
        if self.max_attempts == 0 {
            return Err(InvalidPolicy::NoAttempts);
        }
        if self.base_delay > self.max_delay {
            return Err(InvalidPolicy::BaseAboveMax { base: self.base_delay, max: self.max_delay });
        }
        if self.jitter_pct > 100 {
            return Err(InvalidPolicy::JitterAboveHundred(self.jitter_pct));
        }
        Ok(())
    }

    /// The pause after attempt `attempt` (counted from 1), before jitter.
    pub fn nominal_delay(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(u32::BITS - 1);
        self.base_delay.saturating_mul(1 << doublings).min(self.max_delay)
    }
}

/// The pauses of one operation, in order.
#[derive(Clone, Debug)]
pub struct Backoff {
    policy: RetryPolicy,
    attempts: u32,
}

impl Backoff {
    /// Starts before the first attempt.
    pub fn new(policy: RetryPolicy) -> Self {
        Self { policy, attempts: 0 }
    }

    /// How many attempts have failed so far.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Counts a failed attempt and tells the pause before the next, or `None` if that was the last.
    ///
    /// `retry_after` is the server's own wish: the pause is never shorter, and no jitter shortens it.
    pub fn next_delay(&mut self, rng: &mut Rng, retry_after: Option<Duration>) -> Option<Duration> {
        self.attempts = self.attempts.saturating_add(1);
        if self.attempts >= self.policy.max_attempts {
            return None;
        }
        let delay = self.jittered(self.policy.nominal_delay(self.attempts), rng);
        Some(delay.max(retry_after.unwrap_or(Duration::ZERO)))
    }

    fn jittered(&self, nominal: Duration, rng: &mut Rng) -> Duration {
        let nominal_ns = u64::try_from(nominal.as_nanos()).unwrap_or(u64::MAX);
        let percent = u128::from(self.policy.jitter_pct.min(100));
        let spread_ns = (u128::from(nominal_ns) * percent / 100) as u64;
        Duration::from_nanos(rng.between(nominal_ns - spread_ns, nominal_ns.saturating_add(spread_ns)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert, proptest};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_default_policy_is_four_attempts_from_50_ms_to_2_s_with_20_percent() {
        let expected =
            RetryPolicy { max_attempts: 4, base_delay: 50 * MS, max_delay: 2000 * MS, jitter_pct: 20 };
        assert_eq!(RetryPolicy::default(), expected);
    }

    #[test]
    fn delays_double_and_stop_at_the_cap() {
        let policy = RetryPolicy::default();
        let nominal: Vec<u128> =
            [1, 2, 3, 6, 7, 40, u32::MAX].iter().map(|n| policy.nominal_delay(*n).as_millis()).collect();
        assert_eq!(nominal, [50, 100, 200, 1600, 2000, 2000, 2000]);
    }

    #[test]
    fn four_attempts_have_three_pauses() {
        let mut backoff = Backoff::new(RetryPolicy { jitter_pct: 0, ..RetryPolicy::default() });
        let mut rng = Rng::seeded(1);
        let pauses: Vec<_> = std::iter::from_fn(|| backoff.next_delay(&mut rng, None)).collect();
        assert_eq!(pauses, [50 * MS, 100 * MS, 200 * MS]);
        assert_eq!(backoff.attempts(), 4);
    }

    #[test]
    fn jitter_reaches_both_bounds_exactly_and_never_passes_them() {
        // Ten nanoseconds with 20 %: the only legal pauses are 8, 9, 10, 11 and 12 ns.
        let policy = RetryPolicy {
            max_attempts: 2,
            base_delay: Duration::from_nanos(10),
            max_delay: MS,
            jitter_pct: 20,
        };
        let mut rng = Rng::seeded(3);
        let seen: std::collections::BTreeSet<u128> = (0..500)
            .filter_map(|_| Backoff::new(policy).next_delay(&mut rng, None))
            .map(|delay| delay.as_nanos())
            .collect();
        assert_eq!(seen, [8, 9, 10, 11, 12].into());
    }

    #[test]
    fn retry_after_lengthens_a_pause_but_never_shortens_it() {
        let policy = RetryPolicy { jitter_pct: 0, ..RetryPolicy::default() };
        let mut rng = Rng::seeded(1);
        let pause = |after, rng: &mut Rng| Backoff::new(policy).next_delay(rng, Some(after));
        assert_eq!(pause(7000 * MS, &mut rng), Some(7000 * MS));
        assert_eq!(pause(10 * MS, &mut rng), Some(50 * MS));
    }

    #[test]
    fn a_policy_that_cannot_be_honoured_is_named() {
        let good = RetryPolicy::default();
        assert_eq!(good.validate(), Ok(()));
        assert_eq!(RetryPolicy { max_attempts: 0, ..good }.validate(), Err(InvalidPolicy::NoAttempts));
        assert_eq!(
            RetryPolicy { base_delay: 3000 * MS, ..good }.validate(),
            Err(InvalidPolicy::BaseAboveMax { base: 3000 * MS, max: 2000 * MS })
        );
        assert_eq!(
            RetryPolicy { jitter_pct: 101, ..good }.validate(),
            Err(InvalidPolicy::JitterAboveHundred(101))
        );
    }

    proptest! {
        #[test]
        fn every_pause_lies_within_the_jitter_of_its_nominal_delay(
            seed: u64, base_ms in 0_u64..5_000, max_ms in 0_u64..100_000, jitter_pct in 0_u32..=100,
        ) {
            let policy = RetryPolicy {
                max_attempts: 12, base_delay: MS * base_ms as u32,
                max_delay: MS * base_ms.max(max_ms) as u32, jitter_pct,
            };
            let (mut backoff, mut rng) = (Backoff::new(policy), Rng::seeded(seed));
            while let Some(pause) = backoff.next_delay(&mut rng, None) {
                let nominal = policy.nominal_delay(backoff.attempts()).as_nanos();
                let spread = nominal * u128::from(jitter_pct) / 100;
                prop_assert!((nominal - spread..=nominal + spread).contains(&pause.as_nanos()));
            }
        }
    }
}
