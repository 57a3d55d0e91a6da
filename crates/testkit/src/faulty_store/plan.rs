//! Which fault strikes which operation: [`Plan`], the pure core of the faulty store.
//!
//! Every operation takes the same two draws from the generator, whatever becomes of it. So the luck of
//! the n-th operation follows from the seed and from n alone: a script, a change of the percentages or an
//! operation of another kind in its place does not shift the luck of those that follow.

use std::collections::VecDeque;
use std::time::Duration;

use dragnet_ambient::Rng;

use super::fault::Call;
use super::{Calls, Fault, Faults, Injection, Step};

/// The log keeps the first so many injections. No test reads more; a simulation that runs for hours must
/// not fill the memory with them.
const INJECTIONS_KEPT_MAX: usize = 1 << 20;

/// The fate of the operations so far and of those to come.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) script: VecDeque<Step>,
    pub(super) calls: Calls,
    pub(super) injections: Vec<Injection>,
    faults: Faults,
    rng: Rng,
}

impl Plan {
    pub(super) fn new(faults: Faults, rng: Rng) -> Self {
        faults.assert_at_most_a_hundred();
        Self { script: VecDeque::new(), calls: Calls::default(), injections: Vec::new(), faults, rng }
    }

    pub(super) fn set_faults(&mut self, faults: Faults) {
        faults.assert_at_most_a_hundred();
        self.faults = faults;
    }

    /// Counts a call and decides its fate: the first step that waits for it, else the seed.
    pub(super) fn admit(&mut self, call: &Call) -> Injection {
        self.calls.count(call.operation);
        let drawn = self.draw();
        let step = self.script.iter().position(|step| step.waits_for(call));
        let scripted = step.and_then(|index| self.script.remove(index)).map(|step| step.fault());
        let seeded = Some(drawn).filter(|fault| fault.applies_to(call));
        Injection {
            nth: self.calls.total(),
            operation: call.operation,
            path: call.path.clone(),
            fault: scripted.or(seeded).unwrap_or(Fault::Pass),
        }
    }

    /// Notes that a fault struck.
    pub(super) fn record(&mut self, injection: &Injection) {
        if self.injections.len() < INJECTIONS_KEPT_MAX {
            self.injections.push(injection.clone());
        }
    }

    fn draw(&mut self) -> Fault {
        let latency_ns_max = u64::try_from(self.faults.latency_max.as_nanos()).unwrap_or(u64::MAX);
        let roll = self.rng.between(0, 99);
        // One draw of 64 bits, scaled: a draw bounded by the percentages could take a different number of
        // steps of the generator when they change.
        let latency_ns = (u128::from(self.rng.next_u64()) * u128::from(latency_ns_max)) >> 64;
        self.faults.at(roll, Duration::from_nanos(latency_ns as u64))
    }
}
