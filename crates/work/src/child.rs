//! [`Child`]: one item that a composite runs as its child, again in each attempt.

use crate::{WorkContext, WorkId, WorkSpec};

pub(crate) enum Child {
    Fresh(Box<WorkSpec>),
    Added(WorkId),
    /// It could not be started, and if it was fresh, it went with the refusal.
    Refused(String),
}

impl Child {
    pub(crate) fn new(spec: WorkSpec) -> Self {
        Self::Fresh(Box::new(spec))
    }

    /// Adds it, or restarts it, and shows its status as the parent's own.
    pub(crate) fn start(&mut self, ctx: &WorkContext) -> Result<(), String> {
        let started = match std::mem::replace(self, Self::Refused("it is being added".to_owned())) {
            Self::Added(id) => ctx.restart_child(id).map(|()| id).map_err(|error| error.to_string()),
            Self::Fresh(spec) => ctx.add_child(*spec).map_err(|error| error.to_string()),
            Self::Refused(reason) => Err(reason),
        };
        match started {
            Ok(id) => {
                *self = Self::Added(id);
                ctx.show_status_of(id);
                Ok(())
            }
            Err(reason) => {
                *self = Self::Refused(reason.clone());
                Err(reason)
            }
        }
    }

    /// What it does, for the definition of the composite; empty once it was added.
    pub(crate) fn definition(&self) -> String {
        match self {
            Self::Fresh(spec) => format!("{:?}", (spec.name(), spec.definition())),
            Self::Added(_) | Self::Refused(_) => String::new(),
        }
    }
}
