//! Callbacks: [`WorkWithCallback`] tells somebody how each call of another item's `run` went;
//! [`CallbackWork`] is an item that consists of a callback.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{IntoOutcome, Work, WorkContext, WorkOutcome};

/// What a [`WorkWithCallback`] calls.
pub type OutcomeCallback = Arc<dyn Fn(&WorkOutcome, &WorkContext) + Send + Sync>;

/// Wraps another work and calls back after each of its runs, with the outcome.
pub struct WorkWithCallback<W> {
    inner: W,
    callback: OutcomeCallback,
}

impl<W: Work> WorkWithCallback<W> {
    /// Calls `callback` after each run of `inner`, before the scheduler acts on the outcome.
    pub fn new(inner: W, callback: OutcomeCallback) -> Self {
        Self { inner, callback }
    }
}

#[async_trait]
impl<W: Work> Work for WorkWithCallback<W> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
        let outcome = self.inner.run(ctx.clone()).await;
        (self.callback)(&outcome, &ctx);
        outcome
    }

    fn definition(&self) -> String {
        self.inner.definition()
    }

    fn on_reset(&mut self) {
        self.inner.on_reset();
    }

    fn on_success(&mut self) {
        self.inner.on_success();
    }

    fn on_failure_retry(&mut self) {
        self.inner.on_failure_retry();
    }

    fn on_failure_raise(&mut self) {
        self.inner.on_failure_raise();
    }

    async fn on_abort(&mut self) {
        self.inner.on_abort().await;
    }
}

impl<W> std::fmt::Debug for WorkWithCallback<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkWithCallback").finish_non_exhaustive()
    }
}

/// A plain function as an item: quick, synchronous, done in one call.
///
/// It may return anything that is [an outcome](IntoOutcome): `false` and `Err` are failed attempts. For
/// async closures there is [`work_fn`](crate::work_fn).
pub struct CallbackWork<F> {
    name: String,
    callback: F,
}

impl<F, O> CallbackWork<F>
where
    F: FnMut(&WorkContext) -> O + Send,
    O: IntoOutcome,
{
    /// Calls `callback` once for each attempt.
    pub fn new(name: impl Into<String>, callback: F) -> Self {
        Self { name: name.into(), callback }
    }
}

#[async_trait]
impl<F, O> Work for CallbackWork<F>
where
    F: FnMut(&WorkContext) -> O + Send,
    O: IntoOutcome,
{
    fn name(&self) -> &str {
        &self.name
    }

    async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
        (self.callback)(&ctx).into_outcome()
    }
}

impl<F> std::fmt::Debug for CallbackWork<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallbackWork").field("name", &self.name).finish_non_exhaustive()
    }
}
