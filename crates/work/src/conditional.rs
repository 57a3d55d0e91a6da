//! [`ConditionalWork`]: an item that waits until a condition holds, then runs another.

use std::time::Duration;

use async_trait::async_trait;

use crate::child::Child;
use crate::{Work, WorkContext, WorkOutcome, WorkSpec};

/// How often a condition is looked at, unless told otherwise.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// An item that holds no slot until its condition holds, then runs its inner item as a child and ends as
/// that one ends.
///
/// The condition must be monotonic: once true, always true. It is dropped when it first holds, with
/// everything it had captured; after a restart it is taken as still holding.
pub struct ConditionalWork {
    name: String,
    condition: Option<Box<dyn FnMut() -> bool + Send>>,
    poll_every: Duration,
    inner: Child,
}

impl ConditionalWork {
    /// Runs `inner` once `condition` holds, looking every 100 ms.
    pub fn new(
        name: impl Into<String>,
        condition: impl FnMut() -> bool + Send + 'static,
        inner: WorkSpec,
    ) -> Self {
        Self {
            name: name.into(),
            condition: Some(Box::new(condition)),
            poll_every: POLL_EVERY,
            inner: Child::new(inner),
        }
    }

    /// Looks at the condition at this interval instead.
    pub fn poll_every(mut self, interval: Duration) -> Self {
        self.poll_every = interval;
        self
    }

    fn holds(&mut self) -> bool {
        let holds = self.condition.as_mut().is_none_or(|condition| condition());
        if holds {
            self.condition = None;
        }
        holds
    }
}

#[async_trait]
impl Work for ConditionalWork {
    fn name(&self) -> &str {
        &self.name
    }

    async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
        let children = ctx.children();
        if children.has_children() {
            return children.status();
        }
        if !self.holds() {
            ctx.set_note(format!("Waiting before starting {}", self.name));
            return WorkOutcome::wait_for(self.poll_every);
        }
        match self.inner.start(&ctx) {
            Ok(()) => WorkOutcome::wait_for_children(),
            Err(error) => WorkOutcome::failed(error),
        }
    }

    fn definition(&self) -> String {
        self.inner.definition()
    }
}

impl std::fmt::Debug for ConditionalWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConditionalWork").field("name", &self.name).finish_non_exhaustive()
    }
}
