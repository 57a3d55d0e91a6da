//! [`BatchWork`]: many children, a few at a time, made only when there is room for them.

use std::collections::HashMap;

use async_trait::async_trait;

use crate::{Work, WorkContext, WorkError, WorkId, WorkOutcome, WorkSpec};

/// An item that draws children from an iterator and keeps up to `width` of them going.
///
/// It fails when a child does, after the others have been stopped, and succeeds when the iterator is at
/// its end and every child succeeded. Finished children are forgotten, so memory is bounded by the
/// width, not by the length. A retry makes a new iterator.
///
/// ```
/// use dragnet_work::{work_fn, BatchWork, WorkSpec};
///
/// let checksums = BatchWork::new("checksums", 4, || {
///     (0..1_000_000).map(|n| WorkSpec::new(work_fn(format!("file {n}"), async |_| ())))
/// });
/// # drop(checksums);
/// ```
pub struct BatchWork<Make, Specs> {
    name: String,
    width: usize,
    make: Make,
    specs: Option<Specs>,
    /// The children in progress.
    batch: HashMap<WorkId, String>,
}

impl<Make, Specs> BatchWork<Make, Specs::IntoIter>
where
    Make: FnMut() -> Specs + Send,
    Specs: IntoIterator<Item = WorkSpec>,
{
    /// A batch of at most `width` children at a time; at least one. `make` gives the children, from the
    /// beginning each time it is called.
    pub fn new(name: impl Into<String>, width: usize, make: Make) -> Self {
        Self { name: name.into(), width: width.max(1), make, specs: None, batch: HashMap::new() }
    }
}

impl<Make, Specs> BatchWork<Make, Specs> {
    /// How many children are in progress.
    pub fn works_in_batch(&self) -> usize {
        self.batch.len()
    }

    fn add(&mut self, ctx: &WorkContext, spec: WorkSpec) -> Result<(), WorkError> {
        let name = spec.name().to_owned();
        if self.batch.values().any(|other| *other == name) {
            return Err(WorkError::DuplicateChild { item: name });
        }
        self.batch.insert(ctx.add_child(spec)?, name);
        Ok(())
    }
}

#[async_trait]
impl<Make, Specs> Work for BatchWork<Make, Specs::IntoIter>
where
    Make: FnMut() -> Specs + Send,
    Specs: IntoIterator<Item = WorkSpec>,
    Specs::IntoIter: Send,
{
    fn name(&self) -> &str {
        &self.name
    }

    async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
        for end in ctx.take_finished_children() {
            self.batch.remove(&end.id);
        }
        if let Some(failure) = ctx.children().first_failure {
            return WorkOutcome::retry(failure);
        }
        while self.batch.len() < self.width {
            let specs = self.specs.get_or_insert_with(|| (self.make)().into_iter());
            let Some(spec) = specs.next() else { break };
            if let Err(error) = self.add(&ctx, spec) {
                return WorkOutcome::failed(error);
            }
        }
        if self.batch.is_empty() { WorkOutcome::Success } else { WorkOutcome::wait_for_any_child() }
    }

    fn on_reset(&mut self) {
        self.specs = None;
        self.batch.clear();
    }
}

impl<Make, Specs> std::fmt::Debug for BatchWork<Make, Specs> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchWork")
            .field("name", &self.name)
            .field("width", &self.width)
            .finish_non_exhaustive()
    }
}
