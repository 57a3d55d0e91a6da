//! A dependency-aware async work scheduler.
//!
//! Four nouns. [`Work`] is something to be done, perhaps in several attempts. A [`WorkSpec`] says what the
//! scheduler should know about it: what it comes after, how often it may be retried, how much room it
//! needs. A [`WorkScheduler`] owns the work and runs it, so much at a time as it has slots. A
//! [`WorkHandle`] adds, cancels, wakes and inspects, from anywhere, while it runs.
//!
//! ```
//! use dragnet_work::{work_fn, WorkContext, WorkScheduler, WorkSchedulerConfig, WorkSpec, WorkState};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), dragnet_work::WorkError> {
//! let mut scheduler = WorkScheduler::new(WorkSchedulerConfig::default())?;
//!
//! let fetch = scheduler.add(WorkSpec::new(work_fn("fetch", async |ctx: WorkContext| {
//!     ctx.set_output("payload".to_owned());
//! })))?;
//! let check = scheduler.add(
//!     WorkSpec::new(work_fn("check", move |ctx: WorkContext| async move {
//!         let payload = ctx.output::<String>(fetch)?;
//!         assert_eq!(*payload, "payload");
//!         Ok::<(), dragnet_work::OutputError>(())
//!     }))
//!     .after([fetch])
//!     .retries(3),
//! )?;
//!
//! let report = scheduler.run_until_done().await;
//! assert!(report.all_succeeded());
//! assert_eq!(scheduler.state(check), Some(WorkState::Success));
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! - An item runs only after everything it depends on has succeeded, and never twice at once. If a
//!   dependency ends otherwise, the item is `Blocked`, and so is all that depends on it.
//! - Every item ends in exactly one terminal [`WorkState`]. Nothing hangs because something else failed,
//!   panicked or was cancelled.
//! - The weights of what runs never exceed the slots. Items that wait, or pause before a retry, hold none.
//! - Items of one priority start in the order in which they became ready. A higher priority overtakes a
//!   bounded number of others ([`WorkSpec::priority`]); a heavy item is not overtaken by lighter ones.
//! - [Events](WorkEvent) never hold the scheduler up; a slow reader learns how many it missed.
//! - With a [`Journal`], a run that was killed repeats no item that had succeeded.
//!
//! # Larger pieces
//!
//! [`WorkSequence`] chains items; [`SequenceWork`] is one item that runs others in order and is retried as
//! a whole; [`BatchWork`] draws many children from an iterator, a few at a time; [`ConditionalWork`] holds
//! an item back until a condition holds; [`RunCommandWork`] is a process; [`CallbackWork`] is a plain
//! function, [`WorkWithCallback`] an ear on another work. Any item can [add
//! children](WorkContext::add_child), and then ends after them.
//!
//! # Monitoring
//!
//! ```
//! use dragnet_work::{WorkScheduler, WorkSchedulerConfig};
//! use tokio::sync::mpsc;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), dragnet_work::WorkError> {
//! let (event_tx, mut event_rx) = mpsc::channel(256);
//!
//! let mut scheduler = WorkScheduler::new(WorkSchedulerConfig {
//!     event_tx: Some(event_tx),
//!     ..Default::default()
//! })?;
//!
//! // Process events in a separate task
//! tokio::spawn(async move {
//!     while let Some(event) = event_rx.recv().await {
//!         println!("[{}] {} -> {:?}", event.id, event.name, event.state);
//!     }
//! });
//!
//! let metrics = scheduler.metrics();
//! println!(
//!     "Total: {}, Success: {}, Failed: {}, Running: {}",
//!     metrics.total, metrics.success, metrics.failed, metrics.running
//! );
//!
//! for item in scheduler.snapshot() {
//!     println!(
//!         "{}: {} - {:?} (attempts: {}, deps: {:?})",
//!         item.id, item.name, item.state, item.attempts, item.deps
//!     );
//! }
//! # scheduler.run_until_done().await;
//! # Ok(())
//! # }
//! ```
//!
//! Each item also runs in a `tracing` span named `work`, and [`to_dot`] and [`to_mermaid`] draw the graph.
//!
//! # How it works
//!
//! A plain state machine, without clock and without tokio, decides everything; slots are tasks that take
//! one item after the other and run user code. `ARCHITECTURE.md` walks through it. Left out on purpose:
//! anything that knows what the work is about, and anything beyond one process.

mod work;
mod spec;
mod state;
mod scheduler;
mod handle;
mod context;
mod events;
mod snapshot;
mod journal;
mod sequence;
mod batch;
mod conditional;
mod child;
mod callback;
mod command;
mod error;
mod machine;
mod shared;
mod inner;
mod slot;
mod seat;
mod pace;
mod watch;
mod identities;

pub use batch::BatchWork;
pub use callback::{CallbackWork, OutcomeCallback, WorkWithCallback};
pub use command::RunCommandWork;
pub use conditional::ConditionalWork;
pub use context::{Children, WorkContext, WorkWaker};
pub use error::{OutputError, WorkError};
pub use events::WorkEvent;
pub use handle::WorkHandle;
pub use inner::WorkEnd;
pub use journal::{FileJournal, Fingerprint, Journal, JournalError, JournalRecord};
pub use scheduler::{OnFailure, RunOptions, RunReport, Until, WorkScheduler, WorkSchedulerConfig};
pub use sequence::{SequenceWork, WorkSequence};
pub use snapshot::{WorkDeps, WorkName, WorkSchedulerMetrics, WorkSnapshot, to_dot, to_mermaid};
pub use spec::{RETRY_A_FEW, RETRY_A_LOT, RETRY_NEVER, RETRY_ONCE, RetryBackoff, WorkSpec};
pub use state::WorkState;
pub use work::{ChildWait, FnWork, IntoOutcome, Progress, Wait, Work, WorkId, WorkOutcome, work_fn};

#[cfg(doctest)]
mod seed_samples;
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
