//! A multipart upload through the faulty store: [`FaultyUpload`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use object_store::path::Path;
use object_store::{Error, MultipartUpload, PutPayload, PutResult, Result, UploadPart};

use super::fault::Call;
use super::{FaultyStore, Operation, STORE};

/// An upload whose steps pass the gate of the store that started it.
///
/// Once a part has failed the upload cannot complete, as in the clients of the real stores: otherwise a
/// fault would make an object with a hole in it, which no store does.
#[derive(Debug)]
pub(super) struct FaultyUpload {
    store: FaultyStore,
    path: Path,
    inner: Box<dyn MultipartUpload>,
    part_failed: Arc<AtomicBool>,
}

impl FaultyUpload {
    pub(super) fn new(store: FaultyStore, path: Path, inner: Box<dyn MultipartUpload>) -> Self {
        Self { store, path, inner, part_failed: Arc::default() }
    }
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    /// The fate is decided here and not when the part is awaited, so that it follows the order of the
    /// parts, whichever of them is polled first.
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let call = Call::new(Operation::MultipartPart, &self.path);
        let fate = self.store.plan().admit(&call);
        let part = self.inner.put_part(data);
        let (store, part_failed) = (self.store.clone(), Arc::clone(&self.part_failed));
        Box::pin(async move {
            let answer = store.meet(fate, &call, part).await;
            part_failed.fetch_or(answer.is_err(), Ordering::SeqCst);
            answer
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let call = Call::new(Operation::MultipartComplete, &self.path);
        if self.part_failed.load(Ordering::SeqCst) {
            return self.store.pass(call, async { Err(incomplete()) }).await;
        }
        self.store.pass(call, self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        let call = Call::new(Operation::MultipartAbort, &self.path);
        self.store.pass(call, self.inner.abort()).await
    }
}

fn incomplete() -> Error {
    Error::Generic { store: STORE, source: "a part of this upload failed: it can only be aborted".into() }
}
