//! Time as a parameter: [`Clock`], the real [`SystemClock`] and the test's [`FakeClock`].
//!
//! Monotonic time is a distance from the clock's own origin ([`Monotonic`]), so that pure code can
//! compute with it and a fake can make it up. Wall time exists only to name things (an hour bucket, a
//! log line); nothing may decide safety by it.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Add;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

/// A future that ends when its clock reaches a point in time.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A clock that many owners share.
pub type SharedClock = Arc<dyn Clock>;

/// Tells the time and sleeps.
///
/// Contract: `now` never goes back; a [`Sleep`] ends at the first moment at which `now() >= deadline`,
/// and at once if that moment has passed; dropping a sleep forgets it.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The monotonic time, as a distance from this clock's origin.
    fn now(&self) -> Monotonic;

    /// The time of day. May jump in both directions.
    fn wall(&self) -> SystemTime;

    /// Sleeps until `deadline` on the monotonic scale.
    fn sleep_until(&self, deadline: Monotonic) -> Sleep;

    /// Sleeps for `duration` from now.
    fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }
}

/// A point in monotonic time: the distance from the origin of the clock that told it.
///
/// Points of different clocks do not compare meaningfully.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(Duration);

impl Monotonic {
    /// Where every clock starts.
    pub const ORIGIN: Self = Self(Duration::ZERO);

    /// The point `distance` after the origin.
    pub const fn from_origin(distance: Duration) -> Self {
        Self(distance)
    }

    /// The distance from the origin.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// The time that passed since `earlier`; zero if `earlier` is the later one.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Adds a duration; stops at the end of time instead of overflowing.
impl Add<Duration> for Monotonic {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

/// The machine's clock, on tokio's timers.
///
/// Under a runtime whose time is paused it follows the paused time, so virtual seconds are reported
/// as seconds.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: tokio::time::Instant,
}

/// Sleeps past this are cut to it: tokio's timer wheel ends after about two years, and nobody who
/// asked for longer will notice a spurious end before the process is long gone.
const SLEEP_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

impl SystemClock {
    /// A clock whose origin is this moment.
    #[expect(clippy::disallowed_methods, reason = "the home of the monotonic clock")]
    pub fn new() -> Self {
        Self { origin: tokio::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the home of the monotonic clock")]
    fn now(&self) -> Monotonic {
        Monotonic(tokio::time::Instant::now().saturating_duration_since(self.origin))
    }

    #[expect(clippy::disallowed_methods, reason = "the home of the wall clock")]
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    #[expect(clippy::disallowed_methods, reason = "the home of sleeping")]
    fn sleep_until(&self, deadline: Monotonic) -> Sleep {
        let left = deadline.since(self.now()).min(SLEEP_MAX);
        let wake_at = tokio::time::Instant::now() + left;
        Box::pin(tokio::time::sleep_until(wake_at))
    }
}

/// A clock that stands still until [`advance`](FakeClock::advance) moves it.
///
/// Clones share one time. Sleepers wake in the order of their deadlines, ties in the order in which
/// they were first polled, and each sees `now()` at exactly its deadline when it is woken.
#[derive(Clone, Default)]
pub struct FakeClock {
    shared: Arc<Mutex<FakeState>>,
}

#[derive(Default)]
struct FakeState {
    now: Monotonic,
    wall_offset: Duration,
    next_sleeper: u64,
    sleepers: BTreeMap<(Monotonic, u64), Waker>,
}

impl FakeClock {
    /// A clock at its origin, whose time of day is the Unix epoch.
    pub fn new() -> Self {
        Self::default()
    }

    /// A clock at its origin, whose time of day starts `since_epoch` after the Unix epoch.
    pub fn starting_at(since_epoch: Duration) -> Self {
        let clock = Self::new();
        clock.state().wall_offset = since_epoch;
        clock
    }

    /// Moves time forward by `duration`, waking every sleeper that falls due on the way.
    ///
    /// Woken tasks run when their executor next polls them, after this call.
    pub fn advance(&self, duration: Duration) {
        let target = self.now() + duration;
        while let Some(deadline) = self.next_deadline().filter(|deadline| *deadline <= target) {
            self.wake_all_due(deadline);
        }
        self.wake_all_due(target);
    }

    /// Moves time to the earliest deadline and wakes its sleepers; false when nobody sleeps.
    pub fn advance_to_next_sleeper(&self) -> bool {
        let Some(deadline) = self.next_deadline() else { return false };
        self.wake_all_due(deadline);
        true
    }

    /// How many sleeps are waiting. A test waits for its subject to fall asleep by this.
    pub fn sleepers(&self) -> usize {
        self.state().sleepers.len()
    }

    fn next_deadline(&self) -> Option<Monotonic> {
        self.state().sleepers.keys().next().map(|(deadline, _)| *deadline)
    }

    fn wake_all_due(&self, moment: Monotonic) {
        let due = {
            let mut state = self.state();
            state.now = state.now.max(moment);
            let later = state.sleepers.split_off(&(moment, u64::MAX));
            std::mem::replace(&mut state.sleepers, later)
        };
        due.into_values().for_each(Waker::wake);
    }

    fn state(&self) -> std::sync::MutexGuard<'_, FakeState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for FakeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("FakeClock").field("now", &state.now).field("sleepers", &state.sleepers.len()).finish()
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Monotonic {
        self.state().now
    }

    fn wall(&self) -> SystemTime {
        let state = self.state();
        SystemTime::UNIX_EPOCH + state.wall_offset + state.now.since_origin()
    }

    fn sleep_until(&self, deadline: Monotonic) -> Sleep {
        Box::pin(FakeSleep { clock: self.clone(), deadline, ticket: None })
    }
}

/// One sleep on a [`FakeClock`]; registered at its first poll, forgotten on drop.
struct FakeSleep {
    clock: FakeClock,
    deadline: Monotonic,
    ticket: Option<u64>,
}

impl Future for FakeSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let clock = self.clock.clone();
        let mut state = clock.state();
        if state.now >= self.deadline {
            return Poll::Ready(());
        }
        let ticket = *self.ticket.get_or_insert_with(|| {
            state.next_sleeper += 1;
            state.next_sleeper
        });
        state.sleepers.insert((self.deadline, ticket), cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for FakeSleep {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.clock.state().sleepers.remove(&(self.deadline, ticket));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Wake, Waker};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Polls a sleep by hand, so that the tests need no runtime.
    fn is_over(sleep: &mut Sleep) -> bool {
        sleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_fake_clock_moves_only_when_told() {
        let clock = FakeClock::starting_at(SECOND * 100);
        assert_eq!(clock.now(), Monotonic::ORIGIN);
        clock.advance(SECOND * 3);
        assert_eq!(clock.now().since_origin(), SECOND * 3);
        assert_eq!(clock.wall(), SystemTime::UNIX_EPOCH + SECOND * 103);
    }

    #[test]
    fn a_sleep_ends_at_its_deadline_and_not_before() {
        let clock = FakeClock::new();
        let mut sleep = clock.sleep(SECOND * 2);
        assert!(!is_over(&mut sleep));
        clock.advance(SECOND * 2 - Duration::from_nanos(1));
        assert!(!is_over(&mut sleep));
        clock.advance(Duration::from_nanos(1));
        assert!(is_over(&mut sleep));
        assert!(is_over(&mut clock.sleep(Duration::ZERO)), "a passed deadline ends at once");
    }

    #[test]
    fn sleepers_wake_in_order_and_see_their_own_deadline() {
        struct Log(&'static str, FakeClock, Arc<Mutex<Vec<(&'static str, Duration)>>>);
        impl Wake for Log {
            fn wake(self: Arc<Self>) {
                self.2.lock().unwrap().push((self.0, self.1.now().since_origin()));
            }
        }
        let (clock, log) = (FakeClock::new(), Arc::default());
        let mut sleeps = Vec::new();
        for (name, seconds) in [("late", 5), ("early", 1), ("also early", 1)] {
            let waker = Waker::from(Arc::new(Log(name, clock.clone(), Arc::clone(&log))));
            let mut sleep = clock.sleep(SECOND * seconds);
            assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            sleeps.push(sleep);
        }
        clock.advance(SECOND * 60);
        assert_eq!(*log.lock().unwrap(), [("early", SECOND), ("also early", SECOND), ("late", SECOND * 5)]);
        assert_eq!(clock.now().since_origin(), SECOND * 60);
    }

    #[test]
    fn a_dropped_sleep_is_forgotten() {
        let clock = FakeClock::new();
        let mut sleep = clock.sleep(SECOND);
        assert!(!is_over(&mut sleep));
        assert_eq!(clock.sleepers(), 1);
        drop(sleep);
        assert_eq!(clock.sleepers(), 0);
        assert!(!clock.advance_to_next_sleeper());
    }

    #[tokio::test(start_paused = true)]
    async fn the_system_clock_follows_paused_time() {
        let clock = SystemClock::new();
        clock.sleep(SECOND * 10).await;
        assert_eq!(clock.now().since_origin(), SECOND * 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_to_the_end_of_time_does_not_overflow() {
        let clock = SystemClock::new();
        let mut sleep = clock.sleep(Duration::MAX);
        assert!(!is_over(&mut sleep));
    }
}
