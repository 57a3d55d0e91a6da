//! [`Watch`]: looks after a queue that was left to one quick slot, in case the slot is not quick after all.
//!
//! It is a thread and not a task: the threads of the runtime, and its timers with them, may all be busy
//! with just the item because of which the others wait.

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::shared::Shared;

/// How long the queue is left alone before other slots are started after all.
const INTERVAL: Duration = Duration::from_millis(1);

/// Handle to the thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    bell: Arc<Bell>,
}

#[derive(Debug, Default)]
struct Bell {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    Watching,
    Over,
}

impl Watch {
    /// Starts the thread. `None` if the system has none to spare.
    pub(crate) fn start(shared: Weak<Shared>) -> Option<Self> {
        let bell = Arc::<Bell>::default();
        let theirs = Arc::clone(&bell);
        let thread = std::thread::Builder::new().name("dragnet-watch".to_owned());
        thread.spawn(move || watch(&theirs, &shared)).ok()?;
        Some(Self { bell })
    }

    /// Work was left waiting: look after it in a while.
    pub(crate) fn ring(&self) {
        self.bell.set(State::Watching);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.bell.set(State::Over);
    }
}

impl Bell {
    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.rung.notify_one();
    }
}

fn watch(bell: &Bell, shared: &Weak<Shared>) {
    let mut state = bell.state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        state = match *state {
            State::Over => return,
            State::Idle => bell.rung.wait(state).unwrap_or_else(PoisonError::into_inner),
            State::Watching => {
                *state = State::Idle;
                let waited = bell.rung.wait_timeout_while(state, INTERVAL, |state| *state != State::Over);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                let Some(shared) = shared.upgrade() else { return };
                shared.attend();
                bell.state.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
    }
}
