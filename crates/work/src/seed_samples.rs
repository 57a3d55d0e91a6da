//! The samples of the design that this crate grew from, as doc tests. They are written as they were
//! there, but for three things: what may be refused returns a `Result`, so there is a `?`; `run` returns a
//! [`WorkOutcome`], so an error in it is matched and not passed on with `?`; and a closure that is named
//! before it is passed on needs its types.
//!
//! # The scheduler
//! ```
//! # use std::time::Duration;
//! # use dragnet_work::*;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), WorkError> {
//! # let [work1, work2] = ["one", "two"].map(|name| work_fn(name, async |_| ()));
//! let mut scheduler = WorkScheduler::new(WorkSchedulerConfig {
//!     max_concurrency: 4,
//!     retry_delay: Duration::from_secs(1),
//!     event_tx: None,
//! })?;
//!
//! // Add work items with dependencies
//! let id1 = scheduler.add_work(Box::new(work1), vec![], 3)?;  // 3 retries
//! let id2 = scheduler.add_work(Box::new(work2), vec![id1], 0)?;  // depends on id1
//!
//! // Run until all work completes or is blocked
//! scheduler.run_until_done().await;
//!
//! // Check results
//! assert_eq!(scheduler.state(id1), Some(WorkState::Success));
//! # assert_eq!(scheduler.state(id2), Some(WorkState::Success));
//! # Ok(()) }
//! ```
//!
//! # A sequence
//! ```
//! # use dragnet_work::*;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), WorkError> {
//! # let mut scheduler = WorkScheduler::new(WorkSchedulerConfig::default())?;
//! # let [step1, step2, step3] = ["1", "2", "3"].map(|name| work_fn(name, async |_| ()));
//! let mut sequence = WorkSequence::new();
//! sequence.push(&mut scheduler, Box::new(step1), 0)?;
//! sequence.push(&mut scheduler, Box::new(step2), 0)?;
//! sequence.push(&mut scheduler, Box::new(step3), 0)?;
//! // Execution order: step1 -> step2 -> step3
//!
//! // Access all IDs in the sequence
//! let all_ids = sequence.ids();
//! # assert_eq!(all_ids.len(), 3);
//! # scheduler.run_until_done().await;
//! # Ok(()) }
//! ```
//!
//! # A callback
//! ```
//! # use std::sync::Arc;
//! # use dragnet_work::*;
//! # fn main() -> Result<(), WorkError> {
//! # let scheduler = WorkScheduler::new(WorkSchedulerConfig::default())?;
//! # let my_work = work_fn("mine", async |_| ());
//! let callback = Arc::new(|outcome: &WorkOutcome, ctx: &WorkContext| {
//!     println!("Work {} finished: {:?}", ctx.id, outcome);
//! });
//! let wrapped = WorkWithCallback::new(my_work, callback);
//! scheduler.add_work(Box::new(wrapped), vec![], 0)?;
//! # Ok(()) }
//! ```
//!
//! # Cancelling
//! ```
//! # use std::time::Duration;
//! # use dragnet_ambient::Cancel as CancellationToken;
//! # use dragnet_work::*;
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), WorkError> {
//! # let mut scheduler = WorkScheduler::new(WorkSchedulerConfig::default())?;
//! # let id = scheduler.add(WorkSpec::new(work_fn("one", async |_| ())))?;
//! // Cancel a specific work item
//! let cancelled = scheduler.cancel(id);
//! # assert!(cancelled);
//!
//! // Cancel all registered work items
//! scheduler.cancel_all();
//!
//! # scheduler.add(WorkSpec::new(work_fn("endless", async |ctx: WorkContext| ctx.cancel_token().cancelled().await)))?;
//! let cancel_token = CancellationToken::new();
//! let token_clone = cancel_token.clone();
//!
//! // Trigger cancellation from another task
//! tokio::spawn(async move {
//!     tokio::time::sleep(Duration::from_secs(30)).await;
//!     token_clone.cancel();
//! });
//!
//! // Run with external cancellation control
//! scheduler.run_until_done_with_cancel(cancel_token).await;
//! # Ok(()) }
//! ```
//!
//! # Work that looks at its token
//! ```
//! # use async_trait::async_trait;
//! # use dragnet_work::*;
//! # struct Chunks { data: Vec<u8> }
//! # impl Chunks { async fn process_chunk(&self, _: &[u8]) -> Result<(), std::io::Error> { Ok(()) } }
//! # #[async_trait]
//! # impl Work for Chunks {
//! # fn name(&self) -> &str { "chunks" }
//! async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
//!     for chunk in self.data.chunks(1000) {
//!         // Check for cancellation between chunks
//!         if ctx.is_cancelled() {
//!             return WorkOutcome::Cancelled;
//!         }
//!         if let Err(error) = self.process_chunk(chunk).await {
//!             return WorkOutcome::Failed(error.to_string());
//!         }
//!     }
//!     WorkOutcome::Success
//! }
//! # }
//! # struct Long;
//! # impl Long { async fn long_running_operation(&self) -> Result<(), std::io::Error> { Ok(()) } }
//! # #[async_trait]
//! # impl Work for Long {
//! # fn name(&self) -> &str { "long" }
//!
//! async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
//!     tokio::select! {
//!         _ = ctx.cancel_token().cancelled() => WorkOutcome::Cancelled,
//!         result = self.long_running_operation() => {
//!             match result {
//!                 Ok(_) => WorkOutcome::Success,
//!                 Err(e) => WorkOutcome::Failed(e.to_string()),
//!             }
//!         }
//!     }
//! }
//! # }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), WorkError> {
//! # let mut scheduler = WorkScheduler::new(WorkSchedulerConfig::default())?;
//! # scheduler.add(WorkSpec::new(Chunks { data: vec![0; 5000] }))?;
//! # scheduler.add(WorkSpec::new(Long))?;
//! # assert!(scheduler.run_until_done().await.all_succeeded());
//! # Ok(()) }
//! ```
//!
//! # Parallel downloads with verification
//! ```
//! # use dragnet_work::*;
//! # struct DownloadWork; struct VerifyWork;
//! # impl DownloadWork { fn new(file: &str) -> impl Work + use<> { work_fn(file, async |_| ()) } }
//! # impl VerifyWork { fn new(_: &[&str]) -> impl Work + use<> { work_fn("verify", async |_| ()) } }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), WorkError> {
//! # let mut scheduler = WorkScheduler::new(WorkSchedulerConfig::default())?;
//! # let files = ["a", "b"];
//! // Download files in parallel
//! let downloads: Vec<WorkId> = files
//!     .iter()
//!     .map(|file| scheduler.add_work(Box::new(DownloadWork::new(file)), vec![], 3))
//!     .collect::<Result<_, _>>()?;
//!
//! // Verify after all downloads complete
//! let verify_id = scheduler.add_work(
//!     Box::new(VerifyWork::new(&files)),
//!     downloads,  // depends on all downloads
//!     0,
//! )?;
//!
//! scheduler.run_until_done().await;
//! # assert_eq!(scheduler.state(verify_id), Some(WorkState::Success));
//! # Ok(()) }
//! ```
//!
//! # Retry with exponential backoff
//! ```
//! # use std::time::Duration;
//! # use async_trait::async_trait;
//! # use dragnet_work::*;
//! struct BackoffWork {
//!     base_delay: Duration,
//! }
//!
//! # impl BackoffWork { async fn try_operation(&self) -> Result<(), std::io::Error> { Ok(()) } }
//! #[async_trait]
//! impl Work for BackoffWork {
//! #   fn name(&self) -> &str { "backoff" }
//!     async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
//!         match self.try_operation().await {
//!             Ok(_) => WorkOutcome::Success,
//!             Err(_) => {
//!                 // Exponential backoff: 1s, 2s, 4s, 8s...
//!                 let delay = self.base_delay * 2u32.pow(ctx.attempt - 1);
//!                 WorkOutcome::Retry { delay }
//!             }
//!         }
//!     }
//! }
//! # fn main() { let _ = BackoffWork { base_delay: Duration::from_secs(1) }; }
//! ```
//!
//! # A pipeline
//! ```
//! # use dragnet_work::*;
//! # macro_rules! stage { ($($name:ident),*) => { $(struct $name; impl $name {
//! #     fn new() -> impl Work { work_fn(stringify!($name), async |_| ()) } })* } }
//! # stage!(FetchStage, ParseStage, ValidateStage, ApplyStage);
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), WorkError> {
//! # let mut scheduler = WorkScheduler::new(WorkSchedulerConfig::default())?;
//! let mut pipeline = WorkSequence::new();
//!
//! // Each stage depends on the previous
//! pipeline.push(&mut scheduler, Box::new(FetchStage::new()), 3)?;
//! pipeline.push(&mut scheduler, Box::new(ParseStage::new()), 0)?;
//! pipeline.push(&mut scheduler, Box::new(ValidateStage::new()), 0)?;
//! pipeline.push(&mut scheduler, Box::new(ApplyStage::new()), 0)?;
//!
//! scheduler.run_until_done().await;
//! # assert_eq!(scheduler.metrics().success, 4);
//! # Ok(()) }
//! ```
