//! The one retry loop of the workspace, and the reading of `Retry-After`.
//!
//! For each operation exactly one layer retries. A crate that calls [`Retry::run`] switches the retries
//! of the client library below it off.

use std::time::{Duration, SystemTime};

use thiserror::Error;

use crate::{Backoff, Cancel, ErrorClass, RetryPolicy, Rng, SharedClock};

/// What to do about one error, as its classifier sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disposition {
    /// Whether another attempt makes sense.
    pub class: ErrorClass,
    /// The shortest pause that the other side asked for.
    pub retry_after: Option<Duration>,
}

impl From<ErrorClass> for Disposition {
    fn from(class: ErrorClass) -> Self {
        Self { class, retry_after: None }
    }
}

/// Why a retried operation has no result. Each carries the error of the last attempt, where there was one.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum GaveUp<E> {
    /// The error would come again.
    #[error("{0}")]
    Permanent(E),
    /// The policy allows no further attempt.
    #[error("{error} (gave up after {attempts} attempts)")]
    Exhausted {
        /// The last error.
        error: E,
        /// How many attempts were made.
        attempts: u32,
    },
    /// The next pause would have ended past the time budget, so it was not begun.
    #[error("{error} (the time budget of {budget:?} allows no further attempt after {attempts})")]
    OutOfTime {
        /// The last error.
        error: E,
        /// How many attempts were made.
        attempts: u32,
        /// The budget for all attempts and pauses together.
        budget: Duration,
    },
    /// The caller asked to stop. An outcome of its own, never to be taken for a failure.
    #[error("cancelled")]
    Cancelled {
        /// The error of the attempt before the pause in which the cancellation came, if any.
        last: Option<E>,
    },
}

impl<E> GaveUp<E> {
    /// The error of the last attempt.
    pub fn into_error(self) -> Option<E> {
        match self {
            Self::Permanent(error) | Self::Exhausted { error, .. } | Self::OutOfTime { error, .. } => {
                Some(error)
            }
            Self::Cancelled { last } => last,
        }
    }
}

/// Runs operations again until they succeed, fail for good, or run out of attempts or time.
#[derive(Debug)]
pub struct Retry {
    policy: RetryPolicy,
    budget: Option<Duration>,
    clock: SharedClock,
    rng: Rng,
}

impl Retry {
    /// A retrier without a time budget.
    pub fn new(policy: RetryPolicy, clock: SharedClock, rng: Rng) -> Self {
        Self { policy, budget: None, clock, rng }
    }

    /// Bounds all attempts and pauses of one [`run`](Self::run) together.
    ///
    /// A pause that would end past the budget is not begun: the operation fails at once instead. An
    /// attempt under way is not interrupted.
    pub fn with_budget(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Calls `operation` with the number of the attempt, counted from 1, until it is settled.
    ///
    /// Between attempts nothing of the operation is alive: what it held is dropped before the pause.
    /// A cancellation ends a pause at once; an attempt under way has to watch the token itself.
    pub async fn run<T, E>(
        &mut self,
        cancel: &Cancel,
        classify: impl Fn(&E) -> Disposition,
        mut operation: impl AsyncFnMut(u32) -> Result<T, E>,
    ) -> Result<T, GaveUp<E>> {
        let started = self.clock.now();
        let mut backoff = Backoff::new(self.policy);
        let mut last = None;
        loop {
            if cancel.is_cancelled() {
                return Err(GaveUp::Cancelled { last });
            }
            let error = match operation(backoff.attempts() + 1).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let Disposition { class, retry_after } = classify(&error);
            if class == ErrorClass::Permanent {
                return Err(GaveUp::Permanent(error));
            }
            let pause = backoff.next_delay(&mut self.rng, retry_after);
            let attempts = backoff.attempts();
            let Some(pause) = pause else { return Err(GaveUp::Exhausted { error, attempts }) };
            if let Some(budget) = self.budget
                && self.clock.now() + pause > started + budget
            {
                return Err(GaveUp::OutOfTime { error, attempts, budget });
            }
            last = Some(error);
            tokio::select! {
                biased;
                () = cancel.cancelled() => {}
                () = self.clock.sleep(pause) => {}
            }
        }
    }
}

/// Reads a `Retry-After` header: whole seconds, or an HTTP date seen from `now`.
///
/// A date in the past means "now". Anything else is `None`: the caller's own backoff decides.
pub fn retry_after(header: &str, now: SystemTime) -> Option<Duration> {
    let header = header.trim();
    if let Ok(seconds) = header.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(header).ok()?;
    Some(date.duration_since(now).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Clock, SystemClock};

    const MS: Duration = Duration::from_millis(1);

    fn no_jitter() -> RetryPolicy {
        RetryPolicy { jitter_pct: 0, ..RetryPolicy::default() }
    }

    fn retry() -> (Retry, SystemClock) {
        let clock = SystemClock::new();
        (Retry::new(no_jitter(), Arc::new(clock), Rng::seeded(1)), clock)
    }

    fn retryable(_: &&str) -> Disposition {
        ErrorClass::Retryable.into()
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_is_tried_until_it_succeeds() {
        let (mut retry, clock) = retry();
        let result =
            retry.run(&Cancel::new(), retryable, async |n| if n == 3 { Ok(n) } else { Err("no") }).await;
        assert_eq!(result, Ok(3));
        assert_eq!(clock.now().since_origin(), 150 * MS, "pauses of 50 and 100 ms");
    }

    #[tokio::test(start_paused = true)]
    async fn a_permanent_error_is_not_tried_again() {
        let (mut retry, clock) = retry();
        let permanent = |_: &&str| ErrorClass::Permanent.into();
        let result = retry.run(&Cancel::new(), permanent, async |_| Err::<(), _>("denied")).await;
        assert_eq!(result, Err(GaveUp::Permanent("denied")));
        assert_eq!(clock.now().since_origin(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_run_out_with_the_last_error_and_no_pause_after_it() {
        let (mut retry, clock) = retry();
        let mut tried = Vec::new();
        let result = retry
            .run(
                &Cancel::new(),
                |_| ErrorClass::Retryable.into(),
                async |n| {
                    tried.push(n);
                    Err::<(), _>(n)
                },
            )
            .await;
        assert_eq!(result, Err(GaveUp::Exhausted { error: 4, attempts: 4 }));
        assert_eq!(tried, [1, 2, 3, 4]);
        assert_eq!(clock.now().since_origin(), 350 * MS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_would_pass_the_budget_is_not_begun() {
        let (retry, clock) = retry();
        let mut retry = retry.with_budget(200 * MS);
        let result = retry.run(&Cancel::new(), retryable, async |_| Err::<(), _>("slow")).await;
        assert_eq!(result, Err(GaveUp::OutOfTime { error: "slow", attempts: 3, budget: 200 * MS }));
        assert_eq!(clock.now().since_origin(), 150 * MS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_ends_exactly_at_the_budget_is_taken() {
        let (retry, clock) = retry();
        let mut retry = retry.with_budget(350 * MS);
        let result = retry.run(&Cancel::new(), retryable, async |_| Err::<(), _>("slow")).await;
        assert_eq!(result, Err(GaveUp::Exhausted { error: "slow", attempts: 4 }));
        assert_eq!(clock.now().since_origin(), 350 * MS);
    }

    #[tokio::test(start_paused = true)]
    async fn the_servers_retry_after_is_honoured() {
        let (mut retry, clock) = retry();
        let classify = |_: &&str| Disposition { class: ErrorClass::Retryable, retry_after: Some(9_000 * MS) };
        let result =
            retry.run(&Cancel::new(), classify, async |n| if n == 2 { Ok(()) } else { Err("429") }).await;
        assert_eq!(result, Ok(()));
        assert_eq!(clock.now().since_origin(), 9_000 * MS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancellation_ends_the_pause_and_keeps_the_last_error() {
        let (mut retry, clock) = retry();
        let cancel = Cancel::new();
        let token = cancel.clone();
        let result = retry
            .run(&cancel, retryable, async |_| {
                token.cancel();
                Err::<(), _>("reset")
            })
            .await;
        assert_eq!(result, Err(GaveUp::Cancelled { last: Some("reset") }));
        assert_eq!(clock.now().since_origin(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_operation_is_not_begun() {
        let (mut retry, _) = retry();
        let cancel = Cancel::new();
        cancel.cancel();
        let result: Result<(), GaveUp<&str>> =
            retry.run(&cancel, retryable, async |_| unreachable!("it was cancelled before")).await;
        assert_eq!(result, Err(GaveUp::Cancelled { last: None }));
    }

    #[test]
    fn retry_after_reads_seconds_and_dates() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let read = |header| retry_after(header, now);
        assert_eq!(read(" 120 "), Some(Duration::from_secs(120)));
        assert_eq!(read("Sun, 06 Nov 1994 08:50:37 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(read("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO), "a past date is now");
        assert_eq!(read("soon"), None);
        assert_eq!(read("-5"), None);
    }
}
