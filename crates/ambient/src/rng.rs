//! Randomness with a seed, so that every run that used it can be repeated.
//!
//! Not for secrets: the generator is fast and small, not cryptographic.

/// A seeded generator of uniform numbers.
///
/// Equal seeds give equal sequences. Cloning copies the position; [`Rng::fork`] derives an
/// independent stream instead, which is what a second user of the same seed wants.
#[derive(Clone, Debug)]
pub struct Rng(fastrand::Rng);

impl Rng {
    /// A generator whose whole sequence follows from `seed`.
    pub fn seeded(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// A generator seeded by the operating system.
    ///
    /// Falls back to the address-space and hasher entropy of the standard library where the system's
    /// source cannot be read; jitter must not be a reason to refuse to start.
    #[expect(clippy::disallowed_methods, reason = "the home of entropy")]
    pub fn from_entropy() -> Self {
        let mut seed = [0; 8];
        match getrandom::fill(&mut seed) {
            Ok(()) => Self::seeded(u64::from_le_bytes(seed)),
            Err(_) => Self(fastrand::Rng::new()),
        }
    }

    /// An independent stream, derived from this one.
    pub fn fork(&mut self) -> Self {
        Self(self.0.fork())
    }

    /// The next 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A uniform number in `low..=high`.
    ///
    /// # Panics
    /// If `low > high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.u64(low..=high)
    }

    /// True with a probability of `percent` in a hundred; 100 and more is always.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.0.u32(0..100) < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_sequences() {
        let draw = |seed| {
            let mut rng = Rng::seeded(seed);
            std::array::from_fn::<u64, 8, _>(|_| rng.next_u64())
        };
        assert_eq!(draw(42), draw(42));
        assert_ne!(draw(42), draw(43));
    }

    #[test]
    fn between_reaches_both_ends() {
        let mut rng = Rng::seeded(1);
        let seen: std::collections::BTreeSet<u64> = (0..200).map(|_| rng.between(3, 5)).collect();
        assert_eq!(seen, [3, 4, 5].into());
    }

    #[test]
    fn chance_is_never_at_zero_and_always_at_a_hundred() {
        let mut rng = Rng::seeded(1);
        assert!((0..200).all(|_| !rng.chance(0)));
        assert!((0..200).all(|_| rng.chance(100)));
    }

    #[test]
    fn a_fork_is_a_stream_of_its_own() {
        let mut rng = Rng::seeded(9);
        let mut fork = rng.fork();
        assert_ne!(fork.next_u64(), rng.next_u64());
    }
}
