//! An object store that fails on demand: [`FaultyStore`].
//!
//! It wraps a real store, so what it persists is really there, and it can fail in the two ways that matter:
//! failed and did not persist, failed but did persist. Every operation passes one gate, which counts it,
//! decides its fate and applies it. Left out: bodies that break in the middle (the
//! [`ScriptedServer`](crate::ScriptedServer) truncates those) and faults between the pages of a listing.

mod fault;
mod operation;
mod plan;
#[cfg(test)]
mod tests;
mod upload;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use dragnet_ambient::{Rng, SharedClock};
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

pub use fault::{Fault, Faults, InjectedError, Injection, Step};
pub use operation::{Calls, Operation};

use fault::{Call, Condition};
use plan::Plan;
use upload::FaultyUpload;

/// The name that injected errors give as their store.
const STORE: &str = "FaultyStore";

/// A store that goes wrong, by a seed and by a script, in front of one that does not.
///
/// Equal seeds and equal calls in an equal order meet equal faults. Clones share one fate, one tally and
/// one log. A test that wants to see what is really persisted asks the inner store.
#[derive(Clone, Debug)]
pub struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    clock: SharedClock,
    plan: Arc<Mutex<Plan>>,
}

impl FaultyStore {
    /// Wraps `inner`. Latencies sleep on `clock`; `rng` decides whom the `faults` strike.
    ///
    /// # Panics
    /// If the percentages of `faults` sum to more than 100.
    pub fn new(inner: Arc<dyn ObjectStore>, faults: Faults, clock: SharedClock, rng: Rng) -> Self {
        Self { inner, clock, plan: Arc::new(Mutex::new(Plan::new(faults, rng))) }
    }

    /// Changes the seeded faults from here on: an outage begins, or ends.
    ///
    /// # Panics
    /// If the percentages of `faults` sum to more than 100.
    pub fn set_faults(&self, faults: Faults) {
        self.plan().set_faults(faults);
    }

    /// Appends steps to the script.
    ///
    /// An operation takes the first step that waits for it, and then no seeded fault strikes it. A step
    /// that nothing matches stays: see [`script_left`](Self::script_left).
    pub fn script(&self, steps: impl IntoIterator<Item = impl Into<Step>>) {
        self.plan().script.extend(steps.into_iter().map(Into::into));
    }

    /// The steps that no operation has taken yet.
    pub fn script_left(&self) -> Vec<Step> {
        self.plan().script.iter().cloned().collect()
    }

    /// How often each operation was asked for, so far.
    pub fn calls(&self) -> Calls {
        self.plan().calls
    }

    /// The faults that struck, in the order in which they did.
    ///
    /// A write that was to fail after it persisted, but that the inner store refused, answers with that
    /// refusal and is not in here.
    pub fn injections(&self) -> Vec<Injection> {
        self.plan().injections.clone()
    }

    /// The gate that every operation passes.
    async fn pass<T>(&self, call: Call, work: impl Future<Output = Result<T>>) -> Result<T> {
        let fate = self.plan().admit(&call);
        self.meet(fate, &call, work).await
    }

    /// Applies a fate to the operation that it was decided for.
    async fn meet<T>(
        &self,
        fate: Injection,
        call: &Call,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match fate.fault {
            Fault::Pass => return work.await,
            Fault::Latency(duration) => {
                self.plan().record(&fate);
                self.clock.sleep(duration).await;
                return work.await;
            }
            Fault::FailedNotPersisted | Fault::Conflict | Fault::BareConflict => {}
            Fault::FailedButPersisted | Fault::ServerErrorButPersisted => drop(work.await?),
        }
        self.plan().record(&fate);
        Err(call.error(fate))
    }

    fn listing(
        &self,
        prefix: Option<&Path>,
        open: impl FnOnce(&dyn ObjectStore) -> BoxStream<'static, Result<ObjectMeta>> + Send + 'static,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, call) = (self.clone(), listing_call(prefix));
        let opened = async move { store.pass(call, async { Ok(open(&*store.inner)) }).await };
        stream::once(opened).try_flatten().boxed()
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{STORE}({})", self.inner)
    }
}

/// `get_ranges` and `rename_opts` keep their default bodies, as they do in the clients of the cloud stores:
/// they come back in here as gets, copies and deletes, and each of those is counted and may fail.
#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let call = Call::new(Operation::Put, location).conditional(Condition::from(&opts.mode));
        self.pass(call, self.inner.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let call = Call::new(Operation::MultipartStart, location);
        let inner = self.pass(call, self.inner.put_multipart_opts(location, opts)).await?;
        Ok(Box::new(FaultyUpload::new(self.clone(), location.clone(), inner)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let operation = if options.head { Operation::Head } else { Operation::Get };
        self.pass(Call::new(operation, location), self.inner.get_opts(location, options)).await
    }

    /// Deletes one by one and in order, so that each has a fate of its own.
    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let delete = move |location: Result<Path>| {
            let store = store.clone();
            async move {
                let location = location?;
                let call = Call::new(Operation::Delete, &location);
                store.pass(call, store.inner.delete(&location)).await?;
                Ok(location)
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let owned = prefix.cloned();
        self.listing(prefix, move |inner| inner.list(owned.as_ref()))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (owned, offset) = (prefix.cloned(), offset.clone());
        self.listing(prefix, move |inner| inner.list_with_offset(owned.as_ref(), &offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.pass(listing_call(prefix), self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let condition = match options.mode {
            CopyMode::Overwrite => Condition::None,
            CopyMode::Create => Condition::Create,
        };
        let call = Call::new(Operation::Copy, to).conditional(condition);
        self.pass(call, self.inner.copy_opts(from, to, options)).await
    }
}

fn listing_call(prefix: Option<&Path>) -> Call {
    Call::new(Operation::List, prefix.unwrap_or(&Path::default()))
}
