//! Random graphs, random outcomes, random interference: what must hold whatever happens.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dragnet_ambient::Rng;
use dragnet_work::{
    OnFailure, RunOptions, WorkContext, WorkId, WorkOutcome, WorkSchedulerMetrics, WorkSpec, WorkState,
    work_fn,
};
use proptest::prelude::{ProptestConfig, prop};
use proptest::{prop_assert, prop_assert_eq, prop_assume, proptest};

use crate::kit::{drain, pass, watched_scheduler};

/// What one call of an item does.
#[derive(Clone, Copy, Debug)]
enum Act {
    Succeed,
    Fail,
    Retry,
    Step,
    Wait(u64),
    Sleep(u64),
    Panic,
    Adopt,
}

const ACTS: [Act; 12] = [
    Act::Succeed,
    Act::Succeed,
    Act::Succeed,
    Act::Succeed,
    Act::Fail,
    Act::Retry,
    Act::Step,
    Act::Wait(3),
    Act::Sleep(2),
    Act::Sleep(7),
    Act::Panic,
    Act::Adopt,
];

/// What happened, as the items themselves saw it.
#[derive(Debug, Default)]
struct World {
    running: HashMap<String, u32>,
    weight_in_use: u32,
    weight_most: u32,
    succeeded: Vec<WorkId>,
    violations: Vec<String>,
}

struct Outcome {
    world: World,
    events: Vec<(String, WorkState, u32)>,
    metrics: WorkSchedulerMetrics,
    ends: Vec<WorkState>,
}

const SLOTS: u32 = 4;

struct Entered {
    world: Arc<Mutex<World>>,
    name: String,
    weight: u32,
}

impl Entered {
    fn new(world: &Arc<Mutex<World>>, name: &str, weight: u32, needs: &[WorkId], ctx: &WorkContext) -> Self {
        let handle = ctx.handle().unwrap();
        let mut inner = world.lock().unwrap();
        // Both what the scheduler says and what the item itself said.
        let is_met = |need: &&WorkId| {
            handle.state(**need) == Some(WorkState::Success) && inner.succeeded.contains(need)
        };
        if let Some(missing) = needs.iter().find(|need| !is_met(need)) {
            let violation = format!("{name} ran before {missing} had succeeded");
            inner.violations.push(violation);
        }
        let at_once = inner.running.entry(name.to_owned()).or_default();
        *at_once += 1;
        if *at_once > 1 {
            inner.violations.push(format!("{name} ran twice at once"));
        }
        inner.weight_in_use += weight;
        inner.weight_most = inner.weight_most.max(inner.weight_in_use);
        drop(inner);
        Self { world: Arc::clone(world), name: name.to_owned(), weight }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut inner = self.world.lock().unwrap();
        *inner.running.get_mut(&self.name).unwrap() -= 1;
        inner.weight_in_use -= self.weight;
    }
}

fn item(
    name: String,
    seed: u64,
    weight: u32,
    needs: Vec<WorkId>,
    world: &Arc<Mutex<World>>,
    depth: u32,
) -> WorkSpec {
    let (world, mut rng) = (Arc::clone(world), Rng::seeded(seed));
    let retries = rng.between(0, 2) as u32;
    let label = name.clone();
    let work = work_fn(name, move |ctx: WorkContext| {
        let entered = Entered::new(&world, &label, weight, &needs, &ctx);
        let act = ACTS[rng.between(0, ACTS.len() as u64 - 1) as usize];
        let (world, label, child_seed) = (Arc::clone(&world), label.clone(), rng.next_u64());
        async move {
            let outcome = perform(act, &ctx, &world, &label, child_seed, depth).await;
            if outcome == WorkOutcome::Success {
                world.lock().unwrap().succeeded.push(ctx.id);
            }
            drop(entered);
            outcome
        }
    });
    WorkSpec::new(work).weight(weight).retries(retries)
}

async fn perform(
    act: Act,
    ctx: &WorkContext,
    world: &Arc<Mutex<World>>,
    label: &str,
    seed: u64,
    depth: u32,
) -> WorkOutcome {
    match act {
        Act::Succeed => WorkOutcome::Success,
        Act::Fail => WorkOutcome::failed("by design"),
        Act::Retry => WorkOutcome::retry("by design"),
        Act::Step => WorkOutcome::Continue,
        Act::Wait(seconds) => WorkOutcome::wait_for(Duration::from_secs(seconds)),
        Act::Sleep(seconds) => tokio::select! {
            biased;
            () = ctx.cancel_token().cancelled() => WorkOutcome::Cancelled,
            () = pass(Duration::from_secs(seconds)) => WorkOutcome::Success,
        },
        Act::Panic => panic!("by design"),
        Act::Adopt if depth == 0 => WorkOutcome::Success,
        Act::Adopt => {
            for n in 0..2 {
                let name = format!("{label}/{seed:x}.{n}");
                if ctx.add_child(item(name, seed ^ n, 1, Vec::new(), world, depth - 1)).is_err() {
                    return WorkOutcome::Cancelled;
                }
            }
            WorkOutcome::wait_for_children()
        }
    }
}

/// Items panic on purpose here; only the other panics are worth a word.
fn silence_panics_by_design() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload().downcast_ref::<&str>() != Some(&"by design") {
                report(panic);
            }
        }));
    });
}

/// Builds and runs one random graph. `shape` gives, for each item, which earlier ones it depends on.
fn simulate(
    shape: &[Vec<prop::sample::Index>],
    seed: u64,
    cancels: &[(usize, u64)],
    on_failure: OnFailure,
) -> Outcome {
    silence_panics_by_design();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (mut scheduler, mut events) = watched_scheduler(SLOTS as usize);
        let (world, mut rng) = (Arc::new(Mutex::new(World::default())), Rng::seeded(seed));
        let mut ids: Vec<WorkId> = Vec::new();
        for (n, dependencies) in shape.iter().enumerate() {
            let on: Vec<usize> =
                dependencies.iter().filter(|_| n > 0).map(|dep| dep.index(n.max(1))).collect();
            let needs: Vec<WorkId> = on.iter().map(|dep| ids[*dep]).collect();
            let weight = rng.between(1, u64::from(SLOTS)) as u32;
            let priority = rng.between(0, 4) as i8 - 2;
            let spec = item(n.to_string(), rng.next_u64(), weight, needs.clone(), &world, 2);
            let spec = spec.after(needs).priority(priority);
            ids.push(scheduler.add(spec).unwrap());
        }
        let handle = scheduler.handle();
        let victims: Vec<_> = cancels.iter().map(|(n, at)| (ids[n % ids.len()], *at)).collect();
        let canceller = tokio::spawn(async move {
            for (id, seconds) in victims {
                pass(Duration::from_secs(seconds)).await;
                handle.cancel(id);
            }
        });
        let report = scheduler.run(RunOptions { on_failure, ..Default::default() }).await;
        canceller.abort();
        let ends = ids.iter().map(|id| scheduler.state(*id).unwrap()).collect();
        let events = drain(&mut events);
        drop(scheduler);
        let world = std::mem::take(&mut *world.lock().unwrap());
        Outcome { world, events, metrics: report.metrics, ends }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn whatever_happens_the_rules_hold(
        shape in prop::collection::vec(prop::collection::vec(proptest::arbitrary::any::<prop::sample::Index>(), 0..4), 1..30),
        seed: u64,
        cancels in prop::collection::vec((0..30_usize, 0..5_u64), 0..6),
        fail_fast: bool,
    ) {
        let on_failure = if fail_fast { OnFailure::FailFast } else { OnFailure::KeepGoing };
        let outcome = simulate(&shape, seed, &cancels, on_failure);
        prop_assert_eq!(&outcome.world.violations, &Vec::<String>::new());
        prop_assert!(outcome.world.weight_most <= SLOTS);
        prop_assert!(outcome.ends.iter().all(|state| state.is_terminal()));
        prop_assert_eq!(outcome.metrics.finished(), outcome.metrics.total);
        prop_assert_eq!(outcome.metrics.slots_used, 0);
        prop_assert_eq!(outcome.world.weight_in_use, 0);
        let mut last = HashMap::new();
        for (name, state, _) in &outcome.events {
            let before = last.insert(name.clone(), *state).unwrap_or(WorkState::Pending);
            prop_assert!(before.allows(*state), "{} went from {} to {}", name, before, state);
            prop_assert!(!before.is_terminal(), "{} ended twice", name);
        }
        prop_assert!(last.values().all(|state| state.is_terminal()));
    }

    #[test]
    fn equal_seeds_give_equal_event_logs(
        shape in prop::collection::vec(prop::collection::vec(proptest::arbitrary::any::<prop::sample::Index>(), 0..3), 1..20),
        seed: u64,
        cancels in prop::collection::vec((0..20_usize, 0..5_u64), 0..4),
    ) {
        let first = simulate(&shape, seed, &cancels, OnFailure::KeepGoing);
        let second = simulate(&shape, seed, &cancels, OnFailure::KeepGoing);
        prop_assert_eq!(first.events, second.events);
    }

    #[test]
    fn without_interference_an_item_is_blocked_exactly_if_a_dependency_did_not_succeed(
        shape in prop::collection::vec(prop::collection::vec(proptest::arbitrary::any::<prop::sample::Index>(), 0..4), 1..30),
        seed: u64,
    ) {
        let outcome = simulate(&shape, seed, &[], OnFailure::KeepGoing);
        for (n, dependencies) in shape.iter().enumerate().skip(1) {
            let all = dependencies.iter().all(|dep| outcome.ends[dep.index(n)] == WorkState::Success);
            prop_assert_eq!(outcome.ends[n] == WorkState::Blocked, !all);
        }
        prop_assume!(!outcome.events.is_empty());
    }
}
