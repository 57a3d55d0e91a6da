//! What every Dragnet crate takes as a parameter instead of reaching for a global.
//!
//! Four nouns. A [`Clock`] tells the time and sleeps; [`SystemClock`] is the real one, [`FakeClock`]
//! moves only when a test says so. An [`Rng`] is seeded, so that a run can be repeated. A [`Cancel`]
//! token asks work to stop. A [`Retry`] runs an operation again under a [`RetryPolicy`]: it is the one
//! retry loop of the workspace.
//!
//! ```
//! use std::sync::Arc;
//! use dragnet_ambient::{Cancel, ErrorClass, GaveUp, Retry, RetryPolicy, Rng, SystemClock};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
//! let mut retry = Retry::new(RetryPolicy::default(), Arc::new(SystemClock::new()), Rng::seeded(7));
//! let mut calls = 0;
//! let answer = retry
//!     .run(&Cancel::new(), |_: &&str| ErrorClass::Retryable.into(), async |attempt| {
//!         calls += 1;
//!         if attempt < 3 { Err("connection reset") } else { Ok("payload") }
//!     })
//!     .await;
//! assert_eq!(answer, Ok::<_, GaveUp<&str>>("payload"));
//! assert_eq!(calls, 3);
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Left out on purpose: anything that knows a domain. A helper that only one crate needs lives there.

mod backoff;
mod clock;
mod retry;
mod rng;

pub use backoff::{Backoff, ErrorClass, InvalidPolicy, RetryPolicy};
pub use clock::{Clock, FakeClock, Monotonic, SharedClock, Sleep, SystemClock};
pub use retry::{Disposition, GaveUp, Retry, retry_after};
pub use rng::Rng;

/// Asks work to stop; cloneable, hierarchical, and observable both by polling and by awaiting.
///
/// It is tokio-util's token behind our name: its contract is exactly what we need.
pub use tokio_util::sync::CancellationToken as Cancel;
