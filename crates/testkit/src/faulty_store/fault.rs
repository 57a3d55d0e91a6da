//! How an operation goes wrong: [`Fault`], the seeded [`Faults`], a scripted [`Step`], and the traces that
//! a test reads afterwards ([`Injection`], [`InjectedError`]).

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use object_store::PutMode;
use object_store::path::Path;

use super::Operation;

/// What happens to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: it goes through. Holds a place in a script, as in "the third put fails".
    Pass,
    /// It goes through, after a sleep on the store's clock.
    Latency(Duration),
    /// The connection resets before the request reaches the store. Nothing is persisted.
    FailedNotPersisted,
    /// The write is persisted, then the connection resets. Writes only.
    FailedButPersisted,
    /// The write is persisted, then the store answers 503. Writes only.
    ServerErrorButPersisted,
    /// The store answers that the condition does not hold, though it does, and nothing is written:
    /// `AlreadyExists` to a create (409), `Precondition` to an update (412). Conditional writes only.
    Conflict,
    /// A 409 that the client library passes on as it came, with nothing written: `AlreadyExists`, to an
    /// update too. S3 answers so to racing updates once the client's own retries are off or used up.
    /// Conditional writes only.
    BareConflict,
}

impl Fault {
    /// This fault, for the next operation of one kind.
    pub fn on(self, operation: Operation) -> Step {
        Step::from(self).on(operation)
    }

    /// This fault, for the next operation on a path that starts with `prefix`.
    pub fn under(self, prefix: impl Into<String>) -> Step {
        Step::from(self).under(prefix)
    }

    pub(super) fn applies_to(self, call: &Call) -> bool {
        match self {
            Self::Pass | Self::Latency(_) | Self::FailedNotPersisted => true,
            Self::FailedButPersisted | Self::ServerErrorButPersisted => call.operation.is_write(),
            Self::Conflict | Self::BareConflict => call.condition != Condition::None,
        }
    }
}

/// One line of a script: a fault, and the operations that it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    fault: Fault,
    operation: Option<Operation>,
    prefix: String,
}

impl From<Fault> for Step {
    fn from(fault: Fault) -> Self {
        Self { fault, operation: None, prefix: String::new() }
    }
}

impl Step {
    /// Waits for an operation of this kind.
    pub fn on(self, operation: Operation) -> Self {
        Self { operation: Some(operation), ..self }
    }

    /// Waits for an operation on a path that starts with `prefix`, character by character. The path of a
    /// listing is its prefix, that of a copy is its target.
    pub fn under(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    pub(super) fn fault(&self) -> Fault {
        self.fault
    }

    pub(super) fn waits_for(&self, call: &Call) -> bool {
        self.operation.is_none_or(|operation| operation == call.operation)
            && call.path.as_ref().starts_with(&self.prefix)
            && self.fault.applies_to(call)
    }
}

/// How often each fault strikes, in percent of all operations; together at most 100.
///
/// One draw decides each operation, so at most one fault strikes it. A fault that does not apply to the
/// operation it is drawn for does not strike: reads have no conflicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Share of [`Fault::FailedNotPersisted`].
    pub failed_not_persisted_pct: u32,
    /// Share of [`Fault::FailedButPersisted`].
    pub failed_but_persisted_pct: u32,
    /// Share of [`Fault::ServerErrorButPersisted`].
    pub server_error_but_persisted_pct: u32,
    /// Share of [`Fault::Conflict`].
    pub conflict_pct: u32,
    /// Share of [`Fault::BareConflict`].
    pub bare_conflict_pct: u32,
    /// Share of [`Fault::Latency`].
    pub latency_pct: u32,
    /// A latency is uniform between zero and this.
    pub latency_max: Duration,
}

impl Faults {
    /// A healthy store.
    pub const NONE: Self = Self {
        failed_not_persisted_pct: 0,
        failed_but_persisted_pct: 0,
        server_error_but_persisted_pct: 0,
        conflict_pct: 0,
        bare_conflict_pct: 0,
        latency_pct: 0,
        latency_max: Duration::ZERO,
    };

    /// A store that answers nothing.
    pub const OUTAGE: Self = Self { failed_not_persisted_pct: 100, ..Self::NONE };

    /// The fault whose band `roll`, in `0..100`, falls into.
    pub(super) fn at(&self, roll: u64, latency: Duration) -> Fault {
        let mut end = 0;
        let bands = self.bands(latency);
        let hit = bands.into_iter().find(|(pct, _)| {
            end += u64::from(*pct);
            roll < end
        });
        hit.map_or(Fault::Pass, |(_, fault)| fault)
    }

    pub(super) fn assert_at_most_a_hundred(&self) {
        let total: u64 = self.bands(Duration::ZERO).iter().map(|(pct, _)| u64::from(*pct)).sum();
        assert!(total <= 100, "the shares of {self:?} are {total} % together; at most 100 can strike");
    }

    fn bands(&self, latency: Duration) -> [(u32, Fault); 6] {
        [
            (self.failed_not_persisted_pct, Fault::FailedNotPersisted),
            (self.failed_but_persisted_pct, Fault::FailedButPersisted),
            (self.server_error_but_persisted_pct, Fault::ServerErrorButPersisted),
            (self.conflict_pct, Fault::Conflict),
            (self.bare_conflict_pct, Fault::BareConflict),
            (self.latency_pct, Fault::Latency(latency)),
        ]
    }
}

/// A fault that struck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injection {
    /// Which operation of the store it was, counted from 1 over all kinds.
    pub nth: u64,
    /// Its kind.
    pub operation: Operation,
    /// Its path; for a listing the prefix, for a copy the target.
    pub path: Path,
    /// What was done to it.
    pub fault: Fault,
}

/// The source of every error that is injected, to tell it from an error of the store below.
#[derive(Debug)]
pub struct InjectedError {
    injection: Injection,
    answer: Answer,
}

/// What the client got for an answer.
#[derive(Debug)]
enum Answer {
    Reset(io::Error),
    Status(u16),
}

impl InjectedError {
    /// Finds the injected error among the causes of `error`.
    pub fn find(error: &object_store::Error) -> Option<&Self> {
        let mut next: Option<&(dyn Error + 'static)> = Some(error);
        while let Some(cause) = next {
            if let Some(found) = cause.downcast_ref() {
                return Some(found);
            }
            next = cause.source();
        }
        None
    }

    /// What was injected, and where.
    pub fn injection(&self) -> &Injection {
        &self.injection
    }

    /// The HTTP status that a server would have sent; `None` where the connection broke instead.
    pub fn status(&self) -> Option<u16> {
        match self.answer {
            Answer::Reset(_) => None,
            Answer::Status(status) => Some(status),
        }
    }
}

impl fmt::Display for InjectedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Injection { operation, path, fault, .. } = &self.injection;
        write!(f, "injected {fault:?} into the {operation} of '{path}': ")?;
        match &self.answer {
            Answer::Reset(error) => write!(f, "{error}"),
            Answer::Status(status) => write!(f, "status {status}"),
        }
    }
}

impl Error for InjectedError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.answer {
            Answer::Reset(error) => Some(error),
            Answer::Status(_) => None,
        }
    }
}

/// One operation as it enters the store.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) operation: Operation,
    pub(super) path: Path,
    pub(super) condition: Condition,
}

/// What has to hold for a write to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    None,
    Create,
    Update,
}

impl From<&PutMode> for Condition {
    fn from(mode: &PutMode) -> Self {
        match mode {
            PutMode::Overwrite => Self::None,
            PutMode::Create => Self::Create,
            PutMode::Update(_) => Self::Update,
        }
    }
}

impl Call {
    pub(super) fn new(operation: Operation, path: &Path) -> Self {
        Self { operation, path: path.clone(), condition: Condition::None }
    }

    pub(super) fn conditional(self, condition: Condition) -> Self {
        Self { condition, ..self }
    }

    /// The error that a client library would make of this fault.
    pub(super) fn error(&self, injection: Injection) -> object_store::Error {
        let (fault, path) = (injection.fault, self.path.to_string());
        let source = Box::new(InjectedError { injection, answer: self.answer(fault) });
        match (fault, self.condition) {
            (Fault::Conflict, Condition::Update) => object_store::Error::Precondition { path, source },
            (Fault::Conflict | Fault::BareConflict, _) => object_store::Error::AlreadyExists { path, source },
            _ => object_store::Error::Generic { store: super::STORE, source },
        }
    }

    fn answer(&self, fault: Fault) -> Answer {
        match (fault, self.condition) {
            (Fault::ServerErrorButPersisted, _) => Answer::Status(503),
            (Fault::Conflict, Condition::Update) => Answer::Status(412),
            (Fault::Conflict | Fault::BareConflict, _) => Answer::Status(409),
            _ => Answer::Reset(io::ErrorKind::ConnectionReset.into()),
        }
    }
}
