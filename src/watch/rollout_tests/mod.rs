//! Rollouts as they are seen of a small model of the controllers of Deployments and StatefulSets. This process may
//! start at any time of it.

mod model;

use super::rollout::Rollout;
use model::{Change, Kind, Look, NEVER, STEP, World};
use proptest::prelude::*;
use std::time::Duration;
use tokio::time::Instant;

/// What is wrong with what a process sees that starts at one of the looks.
fn fault(looks: &[Look]) -> Option<String> {
    let start = Instant::now();
    let (mut rollout, mut before) = (Rollout::default(), None);
    let started = &looks[0];
    let is_within =
        |since: Option<u64>, seconds: u64, now| since.is_some_and(|at| now <= at + seconds);
    // What is not done then may be held for the time of a rollout that is stuck.
    let unknown =
        (started.truth.asked.is_some() && started.truth.done.is_none()).then_some(started.now);
    for Look { now, seen, truth, is_current } in looks {
        let at = start + Duration::from_secs(*now);
        // The watch shows changes.
        if before != Some(*seen) {
            rollout.note(before.replace(*seen), *seen, at);
        }
        let is_held = rollout.left(at).is_some();
        let may_be_held = match truth.done {
            Some(done) => *now <= done + 60 + STEP,
            None => is_within(truth.asked.max(unknown), 600 + 300, *now),
        };
        if is_held && !may_be_held {
            return Some(format!("held at {now}, started at {}: {seen:?}", started.now));
        }
        // One that is recreated has no old pods, and is not done before its new ones are ready.
        let is_known = truth.began.is_some_and(|at| at > started.now);
        let is_to_be_held = *is_current
            && (truth.is_under_way && truth.is_plain || is_known)
            && is_within(truth.moved.max(Some(started.now)), 500, *now);
        if is_to_be_held && !is_held {
            return Some(format!("not held at {now}, started at {}: {seen:?}", started.now));
        }
    }
    None
}

fn kinds() -> impl Strategy<Value = Kind> {
    let deployments = proptest::sample::select(vec![(1, 0), (0, 1), (3, 2), (9, 0)])
        .prop_map(|(surge, unavailable)| Kind::Deployment { surge, unavailable });
    let sets = any::<(bool, bool)>()
        .prop_map(|(is_on_delete, is_parallel)| Kind::StatefulSet { is_on_delete, is_parallel });
    let recreated = proptest::sample::select(vec![20, 120, 400, 700])
        .prop_map(|grace| Kind::Recreate { grace });
    prop_oneof![deployments, sets, recreated]
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        4 => (1..40_u64).prop_map(Change::Wait),
        1 => (130..150_u64).prop_map(Change::Wait),
        3 => (1..9_usize).prop_map(Change::Scale),
        4 => (0..20_usize).prop_map(Change::Evict),
        1 => (0..20_usize).prop_map(Change::Unready),
        1 => proptest::sample::select(vec![5, 30, 90, NEVER]).prop_map(Change::Template),
        1 => Just(Change::Undo),
        1 => (0..5_usize).prop_map(Change::Partition),
    ];
    proptest::collection::vec(change, 1..16)
}

proptest! {
    /// Neither a drain nor scaling is a rollout, and one that is under way when the process starts is held.
    #[test]
    fn a_rollout_is_held_and_nothing_else_is_whenever_the_process_starts(
        kind in kinds(), wanted in 1..7_usize, changes in changes(),
    ) {
        let mut world = World::new(kind, wanted);
        changes.into_iter().for_each(|change| world.change(change));
        world.change(Change::Wait(20));
        for started in 0..world.looks.len() {
            let is_known = started > 0 && world.looks[started - 1].seen == world.looks[started].seen;
            if !is_known {
                prop_assert_eq!(fault(&world.looks[started..]), None);
            }
        }
    }
}

/// One pod of a StatefulSet is drained two hours after a scale-up whose pods came at once.
#[test]
fn a_pod_of_a_stateful_set_that_is_drained_is_no_rollout() {
    let kind = Kind::StatefulSet { is_on_delete: false, is_parallel: false };
    let mut world = World::new(kind, 3);
    world.starts[0] = STEP;
    for change in
        [Change::Wait(2), Change::Scale(4), Change::Wait(1_440), Change::Evict(3), Change::Wait(20)]
    {
        world.change(change);
    }
    assert_eq!(fault(&world.looks), None);
}

/// Its new ReplicaSet is made when no pod is left, and only then has it another revision.
#[test]
fn a_deployment_that_is_recreated_is_held_until_its_pods_are_fresh_no_longer() {
    for grace in [20, 400] {
        let mut world = World::new(Kind::Recreate { grace }, 3);
        world.change(Change::Wait(2));
        world.change(Change::Template(180));
        world.change(Change::Wait(200));
        for started in 0..world.looks.len() {
            assert_eq!(fault(&world.looks[started..]), None);
        }
    }
}

/// Such as Plimsoll's own update by the same `helm upgrade`.
#[test]
fn a_rollout_that_is_under_way_when_the_process_starts_is_held() {
    for kind in [
        Kind::Deployment { surge: 3, unavailable: 2 },
        Kind::StatefulSet { is_on_delete: false, is_parallel: false },
    ] {
        let mut world = World::new(kind, 4);
        world.change(Change::Template(240));
        world.change(Change::Wait(6));
        let started = world.looks.len() - 1;
        world.change(Change::Wait(400));
        assert_eq!(fault(&world.looks[started..]), None);
    }
}
