//! The machine driven by hand: no clock, no tokio, only values.

use std::time::Duration;

use dragnet_ambient::Rng;
use proptest::proptest;

use super::*;
use crate::{ChildWait, Wait, WorkError};

use WorkState::{Blocked, Cancelled, Failed, Pending, Running, Success, Waiting};

const NOW: Monotonic = Monotonic::ORIGIN;

fn after(seconds: u64) -> Monotonic {
    NOW + Duration::from_secs(seconds)
}

fn add(machine: &mut Machine, name: &str, dependencies: &[Index]) -> Result<Index, WorkError> {
    let dependencies: Vec<WorkId> = dependencies.iter().map(|index| machine.id_of(*index)).collect();
    let item = NewItem {
        name,
        dependencies: &dependencies,
        parent: None,
        retries: 1,
        weight: 1,
        priority: 0,
        extra: None,
    };
    machine.add(item)
}

fn state(machine: &Machine, index: Index) -> WorkState {
    machine.node(index).state
}

fn start(machine: &mut Machine) -> Index {
    machine.start_next().expect("something is ready").index
}

fn end(machine: &mut Machine, index: Index, ending: Ending) {
    assert_eq!(machine.apply(index, Verdict::End(ending), NOW), None);
}

#[test]
fn an_item_becomes_ready_when_its_last_dependency_succeeds() {
    let mut machine = Machine::new(4);
    let a = add(&mut machine, "a", &[]).unwrap();
    let b = add(&mut machine, "b", &[]).unwrap();
    let c = add(&mut machine, "c", &[a, b]).unwrap();
    assert_eq!([start(&mut machine), start(&mut machine)], [a, b]);
    assert!(machine.start_next().is_none());
    end(&mut machine, a, Ending::Success);
    assert!(machine.start_next().is_none());
    end(&mut machine, b, Ending::Success);
    assert_eq!(start(&mut machine), c);
}

#[test]
fn a_retry_waits_for_its_timer_and_not_longer() {
    let mut machine = Machine::new(1);
    let index = add(&mut machine, "a", &[]).unwrap();
    start(&mut machine);
    end(&mut machine, index, Ending::Retry { delay: Duration::from_secs(5), error: "no".into() });
    assert_eq!((state(&machine, index), machine.next_deadline()), (Waiting, Some(after(5))));
    machine.fire_timers(after(4));
    assert!(machine.start_next().is_none());
    machine.fire_timers(after(5));
    assert_eq!(start(&mut machine), index);
    assert_eq!((machine.node(index).attempts, machine.next_deadline()), (2, None));
}

#[test]
fn the_timer_of_an_item_that_was_woken_earlier_does_not_wake_it_again() {
    let mut machine = Machine::new(1);
    let index = add(&mut machine, "a", &[]).unwrap();
    let wait = || Verdict::Wait(Wait { timer: Some(Duration::from_secs(5)), children: ChildWait::No });
    start(&mut machine);
    assert_eq!(machine.apply(index, wait(), NOW), None);
    assert!(machine.wake(index));
    start(&mut machine);
    assert_eq!(machine.apply(index, wait(), after(1)), None);
    machine.fire_timers(after(5));
    assert!(machine.start_next().is_none(), "that timer belonged to the wait before");
    machine.fire_timers(after(6));
    assert_eq!(start(&mut machine), index);
}

#[test]
fn a_cancel_during_the_hooks_turns_the_ending_into_an_abort() {
    let mut machine = Machine::new(1);
    let index = add(&mut machine, "a", &[]).unwrap();
    start(&mut machine);
    machine.seat(index, Slot(7));
    assert!(machine.cancel(index));
    assert_eq!(machine.take_stop_signals().collect::<Vec<_>>(), [Slot(7)]);
    let refused = machine.apply(index, Verdict::End(Ending::Fail("late".into())), NOW);
    assert_eq!(refused, Some(Ending::Abort(Some("late".into()))));
    end(&mut machine, index, refused.unwrap());
    assert_eq!((state(&machine, index), machine.used()), (Cancelled, 0));
}

#[test]
fn cancelling_everything_leaves_nothing_blocked() {
    let mut machine = Machine::new(1);
    let mut before = Vec::new();
    for n in 0..10 {
        before = vec![add(&mut machine, &n.to_string(), &before).unwrap()];
    }
    machine.cancel_all();
    assert_eq!((machine.count(Cancelled), machine.count(Blocked)), (10, 0));
}

#[test]
fn a_chain_of_a_hundred_thousand_is_blocked_without_recursion() {
    let mut machine = Machine::new(1);
    let root = add(&mut machine, "root", &[]).unwrap();
    let mut before = root;
    for _ in 0..100_000 {
        before = add(&mut machine, "link", &[before]).unwrap();
    }
    start(&mut machine);
    end(&mut machine, root, Ending::Fail("no".into()));
    assert_eq!(machine.count(Blocked), 100_000);
}

#[test]
#[should_panic(expected = "bug: work item 'a' cannot go from Success to Running")]
fn an_illegal_move_names_both_states() {
    let mut machine = Machine::new(1);
    let index = add(&mut machine, "a", &[]).unwrap();
    start(&mut machine);
    end(&mut machine, index, Ending::Success);
    machine.shift(index, Running);
}

#[test]
fn restarting_a_success_makes_what_has_not_started_wait_again() {
    let mut machine = Machine::new(1);
    let a = add(&mut machine, "a", &[]).unwrap();
    let b = add(&mut machine, "b", &[a]).unwrap();
    start(&mut machine);
    end(&mut machine, a, Ending::Success);
    machine.restart(a).unwrap();
    assert_eq!(start(&mut machine), a, "b is not ready any more");
    assert!(machine.start_next().is_none());
    end(&mut machine, a, Ending::Success);
    assert_eq!(start(&mut machine), b);
}

/// Does one random thing that a driver may do.
fn random_step(machine: &mut Machine, held: &mut Vec<Index>, rng: &mut Rng, now: Monotonic) {
    let pick = |rng: &mut Rng, len: usize| rng.between(0, len as u64 - 1) as usize;
    let all: Vec<Index> = machine.indices().collect();
    match rng.between(0, 11) {
        0..=2 => {
            let dependencies: Vec<WorkId> = (0..rng.between(0, 2))
                .filter(|_| !all.is_empty())
                .map(|_| machine.id_of(all[pick(rng, all.len())]))
                .collect();
            let parent = held.first().copied().filter(|_| rng.chance(40));
            let item = NewItem {
                name: "x",
                dependencies: &dependencies,
                parent,
                retries: 2,
                weight: rng.between(1, 3) as u32,
                priority: rng.between(0, 2) as i8,
                extra: None,
            };
            // Refused if it would wait for its own parent, or the parent winds down.
            _ = machine.add(item);
        }
        3..=5 => held.extend(machine.start_next().map(|start| start.index)),
        6..=8 if !held.is_empty() => {
            let index = held.swap_remove(pick(rng, held.len()));
            finish_turn(machine, index, rng, now);
        }
        9 if !all.is_empty() => _ = machine.cancel(all[pick(rng, all.len())]),
        10 if !all.is_empty() => {
            let index = all[pick(rng, all.len())];
            _ = if rng.chance(50) { machine.wake(index) } else { machine.restart(index).is_ok() };
        }
        11 if !all.is_empty() => _ = machine.forget(all[pick(rng, all.len())]),
        _ => machine.fire_timers(now),
    }
}

fn finish_turn(machine: &mut Machine, index: Index, rng: &mut Rng, now: Monotonic) {
    let mut verdict = match rng.between(0, 6) {
        0 => Verdict::Again,
        1 => Verdict::Wait(Wait { timer: Some(Duration::from_secs(1)), children: ChildWait::All }),
        2 if machine.node(index).retries_left > 0 => {
            Verdict::End(Ending::Retry { delay: Duration::from_secs(1), error: String::new() })
        }
        3 => Verdict::End(Ending::Fail("no".into())),
        4 => Verdict::End(Ending::Abort(None)),
        _ => Verdict::End(Ending::Success),
    };
    loop {
        if let Verdict::End(ending) = verdict {
            let Some(ending) = machine.prepare(index, ending) else { return };
            verdict = Verdict::End(ending);
        }
        match machine.apply(index, verdict, now) {
            Some(ending) => verdict = Verdict::End(ending),
            None => return,
        }
    }
}

fn check(machine: &Machine, held: &[Index]) {
    let used: u32 = held.iter().map(|index| machine.node(*index).weight).sum();
    assert_eq!(machine.used(), used, "slots are counted right");
    assert!(used <= machine.capacity());
    assert!(held.iter().all(|index| !state(machine, *index).is_terminal()));
    for wanted in WorkState::ALL {
        let counted = machine.indices().filter(|index| state(machine, *index) == wanted).count();
        assert_eq!(machine.count(wanted), counted, "{wanted} is counted right");
    }
    for index in machine.indices() {
        let node = machine.node(index);
        let live =
            machine.children(index).iter().filter(|child| !state(machine, **child).is_terminal()).count();
        assert_eq!(node.live_children() as usize, live, "children are counted right");
        if node.state == Pending {
            let unmet = machine.dependencies(index).filter(|dep| state(machine, *dep) != Success).count();
            assert_eq!(machine.unmet[index.get()] as usize, unmet, "dependencies are counted right");
            assert_eq!(node.queued, unmet == 0, "what is ready is queued, and nothing else");
        }
        assert!(node.state != Failed || node.error().is_some());
    }
}

proptest! {
    #[test]
    fn the_books_are_right_after_every_step_and_everything_ends(seed: u64) {
        let (mut machine, mut rng, mut held) = (Machine::new(5), Rng::seeded(seed), Vec::new());
        for second in 0..120 {
            random_step(&mut machine, &mut held, &mut rng, after(second));
            check(&machine, &held);
        }
        machine.cancel_all();
        check(&machine, &held);
        // Whoever holds a slot notices, and whoever is queued gets its turn to wind down.
        for _ in 0..10_000 {
            held.extend(machine.start_next().map(|start| start.index));
            let Some(index) = held.pop() else { break };
            finish_turn(&mut machine, index, &mut rng, after(1000));
            check(&machine, &held);
        }
        assert_eq!((machine.unfinished(), machine.used()), (0, 0));
    }
}
