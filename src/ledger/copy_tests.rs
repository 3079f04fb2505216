//! What holds of copies of the leader's ledger.

use super::store_tests::{all, changes, ledger, list, object, restless, versions};
use super::tests::{START, autoscaler, basis, copied, decision_at};
use super::*;
use crate::watch::AutoscalerRef;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// Copies all that a leader has.
fn copy_all(leader: &Ledger, copy: &Ledger) -> CopyId {
    let id = copy.begin_copy().expect("it does not lead");
    for listed in list(leader, &Scope::default()) {
        copy.copy(id, object(&listed)).expect("it can be read");
    }
    copy.copied(id, versions(leader)).expect("it is the last");
    id
}

/// Copies what has changed, and returns the resource version.
fn copy_changes(leader: &Ledger, copy: &Ledger, id: CopyId, version: u64) -> u64 {
    let (changes, now) = changes(leader, version).expect("they are known");
    for change in changes {
        match change {
            Change::Set(listed) => copy.copy(id, object(&listed)),
            Change::Dropped { autoscaler, sequence, version, .. } => {
                let AutoscalerRef { kind, key } = (*autoscaler).clone();
                copy.copy_dropped(id, &Position { key, kind, sequence }, version)
            }
        }
        .expect("it is the last");
    }
    copy.copied(id, versions(leader)).expect("it is the last");
    now
}

#[test]
fn a_copy_shows_what_the_leader_showed() {
    let (ledger, copy) = (ledger(100_000), Ledger::new(100_000, START + 5));
    let busy = autoscaler("shop", "busy");
    let id = copy_all(&ledger, &copy);
    let mut version = versions(&ledger).last;
    let mut n = 0;
    restless(12_000, |entry| {
        ledger.record(&busy, &entry);
        n += 1;
        if n % 20 == 0 {
            version = copy_changes(&ledger, &copy, id, version);
            assert_eq!(copy.versions(), ledger.versions());
        }
    });
    let shown = |ledger: &Ledger| -> Vec<Value> {
        let all = all(ledger);
        all.iter().map(|entry| json!(decision(&busy, entry, START))).collect()
    };
    assert!(ledger.size().dropped > 0);
    let (copied, original) = (shown(&copy), shown(&ledger));
    assert_eq!(copied.len(), original.len());
    let other = copied.iter().zip(&original).find(|(a, b)| a != b);
    assert_eq!(other, None);
    assert_eq!(copy.size().entries, ledger.size().entries);
    // A replica that copies all of it now has the same.
    let late = Ledger::new(100_000, START);
    copy_all(&ledger, &late);
    assert_eq!(shown(&late), original);
    // It continues where the leader was.
    let last = all(&copy).last().map(|entry| entry.sequence);
    copy.begin_term(START + 1_000_000_000, None);
    assert_eq!(shown(&copy), original, "a failover changes nothing of that");
    copy.record(&busy, &decision_at(START + 1_000_000_000, 90, 91, 1, &basis()));
    assert_eq!(all(&copy).last().map(|entry| entry.sequence), last.map(|last| last + 1));
    assert!(copy.size().bytes <= 100_000);
}

#[test]
fn a_leader_that_dies_during_a_copy_takes_no_history_with_it() {
    let (first, copy) = (ledger(1 << 20), Ledger::new(1 << 20, START));
    let (a, b) = (autoscaler("shop", "a"), autoscaler("shop", "b"));
    for n in 0..50 {
        for one in [&a, &b] {
            first.record(one, &decision_at(START + n, n as i32, n as i32 + 1, 1, &basis()));
        }
    }
    assert_eq!(copy.versions(), Err(Behind::NotCopied));
    copy_all(&first, &copy);
    let before = list(&copy, &Scope::default());
    let watched = versions(&copy).last;
    // Another leader, of which a part is copied.
    let second = Ledger::new(1 << 20, START);
    copy_all(&first, &second);
    second.begin_term(START + 60_000, None);
    let id = copy.begin_copy().expect("it does not lead");
    for listed in &list(&second, &Scope::default())[..10] {
        copy.copy(id, object(listed)).expect("it can be read");
        assert_eq!(list(&copy, &Scope::default()), before, "what was there is shown meanwhile");
    }
    copy.begin_term(START + 120_000, None);
    assert_eq!(list(&copy, &Scope::default()), before);
    assert_eq!(copy.copy(id, object(&before[0])), Err(CopyError::Superseded));
    assert_eq!(copy.copied(id, versions(&second)), Err(CopyError::Superseded));
    assert_eq!(copy.begin_copy(), None, "it leads");
    copy.record(&a, &decision_at(START + 120_000, 50, 51, 1, &basis()));
    let names: Vec<_> = list(&copy, &Scope::default()).iter().map(Listed::position).collect();
    assert!(names.is_sorted_by(|a, b| a < b) && names.len() == 101);
    assert_eq!(changes(&copy, watched), Err(Expired), "it was of another leader");
}

#[test]
fn a_watch_from_before_a_copy_lists_again() {
    let (leader, copy) = (ledger(1 << 20), Ledger::new(1 << 20, START));
    let web = autoscaler("shop", "web");
    leader.record(&web, &decision_at(START, 1, 2, 1, &basis()));
    copy_all(&leader, &copy);
    let watched = versions(&copy).last;
    leader.record(&web, &decision_at(START + 1, 2, 3, 1, &basis()));
    copy_all(&leader, &copy);
    // It has not seen what was dropped in between.
    assert_eq!(changes(&copy, watched), Err(Expired));
    assert_eq!(changes(&copy, versions(&copy).last).map(|found| found.0), Ok(Vec::new()));
}

#[test]
fn only_the_leader_records_and_ends_runs() {
    let (leader, copy) = (ledger(1 << 20), Ledger::new(1 << 20, START));
    let web = autoscaler("shop", "web");
    for n in 0..7 {
        leader.record(&web, &decision_at(START + n * 15_000, 5, 5, 100_000, &basis()));
    }
    let id = copy_all(&leader, &copy);
    let version = versions(&leader).last;
    // The follower sees the deletion first, and a decision of its own time as the leader comes too late.
    copy.end(&web);
    copy.record(&web, &decision_at(START + 99_000, 5, 6, 100_000, &basis()));
    copy.record(&autoscaler("shop", "api"), &decision_at(START, 5, 6, 100_000, &basis()));
    leader.end(&web);
    copy_changes(&leader, &copy, id, version);
    assert_eq!(all(&copy).len(), 1);
    assert_eq!(all(&copy)[0].count, 7);
    assert_eq!((copy.size().entries, all(&leader)[0].count), (1, 7));
}

#[test]
fn the_end_of_a_run_that_was_listed_before_is_copied() {
    let (leader, copy) = (ledger(1 << 20), Ledger::new(1 << 20, START));
    let web = autoscaler("shop", "web");
    for n in 0..3 {
        leader.record(&web, &decision_at(START + n * 15_000, 5, 5, 100_000, &basis()));
    }
    let version = versions(&leader);
    let id = copy.begin_copy().expect("it does not lead");
    let listed = |leader: &Ledger| list(leader, &Scope::default());
    copy.copy(id, object(&listed(&leader)[0])).expect("it can be read");
    // The run ends between two pages of the list.
    leader.record(&web, &decision_at(START + 45_000, 5, 6, 100_000, &basis()));
    copy.copy(id, object(&listed(&leader)[1])).expect("it can be read");
    copy.copied(id, version).expect("it is the last");
    copy_changes(&leader, &copy, id, version.last);
    let counts = |ledger: &Ledger| all(ledger).iter().map(|one| one.count).collect::<Vec<_>>();
    assert_eq!(counts(&copy), [3, 1]);
    assert_eq!(counts(&copy), counts(&leader));
}

#[test]
fn what_can_not_be_read_fails_the_copy() {
    let (leader, copy) = (ledger(1 << 20), Ledger::new(1 << 20, START));
    leader.record(&autoscaler("shop", "web"), &decision_at(START, 1, 2, 1, &basis()));
    let id = copy.begin_copy().expect("it does not lead");
    let mut newer = object(&list(&leader, &Scope::default())[0]);
    newer.reason = "Prophecy".to_owned();
    let error = copy.copy(id, newer).unwrap_err();
    assert_eq!(error, CopyError::Unreadable("shop/web.autoscaler.1".to_owned()));
    assert_eq!(copy.versions(), Err(Behind::NotCopied));
}

#[test]
fn a_copy_after_a_failover_takes_no_more_memory_and_nothing_away() {
    const MAX: usize = 200_000;
    let leader = ledger(MAX);
    restless(8_000, |entry| {
        leader.record(&autoscaler("shop", "busy"), &entry);
        leader.record(&autoscaler("shop", "web"), &entry);
    });
    let copy = Ledger::new(MAX, START);
    copy_all(&leader, &copy);
    let (before, watched) = (list(&copy, &Scope::default()), versions(&copy));
    // As it is after a failover: the same, and what has changed since.
    leader.begin_term(START + 600_000_000, None);
    let last = decision_at(START + 600_000_000, 20, 21, 1, &basis());
    leader.record(&autoscaler("shop", "busy"), &last);
    let id = copy.begin_copy().expect("it does not lead");
    let all = list(&leader, &Scope::default());
    let names = |all: &[Listed]| all.iter().map(Listed::position).collect::<Vec<_>>();
    let (old, new) = (names(&before), names(&all));
    let kept: Vec<_> = old.into_iter().filter(|one| new.binary_search(one).is_ok()).collect();
    for (n, listed) in all.iter().enumerate() {
        copy.copy(id, object(listed)).expect("it can be read");
        assert!(copy.size().bytes <= MAX + MAX / 8, "{:?}", copy.size());
        if n % 1_000 == 0 {
            let shown = names(&list(&copy, &Scope::default()));
            assert!(kept.iter().all(|one| shown.binary_search(one).is_ok()), "{n}");
            assert_eq!(versions(&copy), watched);
            assert_eq!(changes(&copy, watched.last).map(|found| found.0), Ok(Vec::new()));
        }
    }
    copy.begin_term(START + 700_000_000, None);
    assert_eq!(names(&list(&copy, &Scope::default())), new);
    assert_eq!(copy.size().entries, leader.size().entries);
}

#[test]
fn a_new_replica_that_has_to_lead_keeps_what_it_has_copied() {
    let (leader, new) = (ledger(1 << 20), Ledger::new(1 << 20, START));
    for name in ["api", "web"] {
        let one = autoscaler("shop", name);
        for n in 0..30 {
            leader.record(&one, &decision_at(START + n, n as i32, n as i32 + 1, 1, &basis()));
        }
    }
    let id = new.begin_copy().expect("it does not lead");
    let all_there_is = list(&leader, &Scope::default());
    for listed in &all_there_is[..40] {
        new.copy(id, object(listed)).expect("it can be read");
    }
    assert!(new.lacks(None));
    new.begin_term(START + 60_000, None);
    let names = |all: &[Listed]| all.iter().map(Listed::position).collect::<Vec<_>>();
    assert_eq!(names(&list(&new, &Scope::default())), names(&all_there_is[..40]));
    assert_eq!(versions(&new).since, START + 60_000, "it is not all");
    assert!(versions(&new).began > versions(&leader).last);
    // The old leader has shown others of these names.
    let web = autoscaler("shop", "web");
    new.record(&web, &decision_at(START + 60_001, 10, 11, 1, &basis()));
    let last = list(&new, &Scope::default()).last().map(|one| one.entry.sequence);
    assert!(last > Some(30), "{last:?}");
}

/// It led, then another did whom it could not reach, and now it leads again.
#[tokio::test(start_paused = true)]
async fn a_leader_with_a_stale_copy_says_so_and_uses_no_name_again() {
    let (a, b) = (ledger(1 << 20), Ledger::new(1 << 20, START));
    let web = autoscaler("shop", "web");
    let decide = |ledger: &Ledger, n: i64| {
        ledger.record(&web, &decision_at(START + n * 60_000, n as i32, n as i32 + 1, 1, &basis()));
    };
    (0..50).for_each(|n| decide(&a, n));
    copy_all(&a, &b);
    a.end_term();
    b.begin_term(START + 3_000_000, None);
    (50..170).for_each(|n| decide(&b, n));
    let shown = list(&b, &Scope::default());
    // It is not behind for a short while, nor if nobody led.
    let began = Instant::now();
    tokio::time::advance(Duration::from_secs(7_200)).await;
    assert!(!a.lacks(None) && !a.lacks(Some(began + Duration::from_secs(60))));
    assert!(a.lacks(Some(Instant::now())));
    a.begin_term(START + 10_200_000, Some(Instant::now()));
    decide(&a, 170);
    assert_eq!(versions(&a).since, START + 10_200_000);
    let after = list(&a, &Scope::default());
    let names = |all: &[Listed]| all.iter().map(Listed::position).collect::<Vec<_>>();
    assert_eq!(names(&after[..50]), names(&shown[..50]));
    assert_eq!((after.len(), a.size().entries), (51, 51));
    assert!(after[50].entry.sequence > shown[169].entry.sequence);
    assert_eq!(after[50].entry.count, 1, "a run does not continue over it");
    // The other one has what the leader has, with the hole.
    b.end_term();
    copy_all(&a, &b);
    assert_eq!(b.versions(), a.versions());
    assert_eq!(names(&list(&b, &Scope::default())), names(&after));
    assert_eq!(b.size().entries, 51);
}

/// The leader's clock was ten minutes ahead of that of the replica that leads next.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_clock_is_behind_uses_no_name_again() {
    for away in [180, 86_400] {
        let (ahead, behind) = (ledger(1 << 20), Ledger::new(1 << 20, START));
        let web = autoscaler("shop", "web");
        let decide = |ledger: &Ledger, at: i64, n: i32| {
            ledger.record(&web, &decision_at(START + at, n, n + 1, 1, &basis()));
        };
        decide(&ahead, 600_000, 1);
        copy_all(&ahead, &behind);
        tokio::time::advance(Duration::from_secs(away)).await;
        for n in 2..100 {
            decide(&ahead, 600_000 + i64::from(n) * 1_000, n);
        }
        let shown = list(&ahead, &Scope::default()).last().map(|last| last.entry.sequence);
        behind.begin_term(START + 180_000, Some(Instant::now()));
        decide(&behind, 180_000, 200);
        let next = list(&behind, &Scope::default()).last().map(|last| last.entry.sequence);
        assert!(next > shown && next > Some(away * 1_000), "{away}: {next:?} after {shown:?}");
    }
}

/// Where an entry is in its history makes no difference.
#[test]
fn a_copy_has_what_the_leader_has_whatever_was_there() {
    let names = |ledger: &Ledger| {
        list(ledger, &Scope::default()).iter().map(Listed::position).collect::<Vec<_>>()
    };
    let workloads = ["a", "b", "c", "d"].map(|name| autoscaler("shop", name));
    for round in 0..10 {
        let (leader, copy) = (ledger(4 << 20), ledger(4 << 20));
        let mut random = round + 1_u64;
        let mut below = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % most
        };
        for ledger in [&leader, &copy] {
            for most in [150, 90] {
                for one in &workloads {
                    for n in 0..below(most) as i64 {
                        let (now, replicas) = (START + n, n as i32);
                        ledger.record(one, &decision_at(now, replicas, replicas + 1, 1, &basis()));
                    }
                }
                // Sequences are left out.
                if below(2) == 0 {
                    let led_until = Instant::now() + Duration::from_secs(1_000);
                    ledger.begin_term(START + 600, Some(led_until));
                }
            }
        }
        copy.end_term();
        copy_all(&leader, &copy);
        assert_eq!(names(&copy), names(&leader), "{round}");
        assert_eq!(copy.size().entries, leader.size().entries, "{round}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_does_not_hear_from_the_leader_says_so() {
    let (leader, copy) = (ledger(1 << 20), Ledger::new(1 << 20, START));
    copy.await_copy(Instant::now() + Duration::from_secs(5));
    assert!(copy.awaits_copy() && copy.size().behind.is_none());
    let id = copy_all(&leader, &copy);
    assert!(!copy.awaits_copy());
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(copy.versions(), leader.versions());
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(copy.versions(), Err(Behind::For(Duration::from_secs(120))));
    // One that is copied for long is heard from.
    let again = copy.begin_copy().expect("it does not lead");
    leader.record(&autoscaler("shop", "web"), &decision_at(START, 1, 2, 1, &basis()));
    copy.copy(again, object(&list(&leader, &Scope::default())[0])).expect("it can be read");
    assert!(copy.versions().is_ok());
    assert_eq!(copy.size().behind, Some(Duration::from_secs(120)));
    assert_eq!(copy.copied(id, versions(&leader)), Err(CopyError::Superseded));
    copy.copied(again, versions(&leader)).expect("it is the last");
    assert_eq!(copy.versions(), leader.versions());
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert!(leader.versions().is_ok(), "the leader knows");
}

#[test]
fn the_history_begins_with_the_term_if_nothing_was_copied() {
    let never = Ledger::new(1 << 20, START);
    never.begin_term(START + 864_000_000, None);
    assert_eq!(versions(&never).since, START + 864_000_000);
    let (leader, copy) = (ledger(1 << 20), Ledger::new(1 << 20, START + 5));
    copy_all(&leader, &copy);
    copy.begin_term(START + 864_000_000, None);
    assert_eq!(versions(&copy).since, START);
}

/// A scaling ends a run by the replicas. What the run shows of it goes to other replicas, too.
#[test]
fn a_run_shows_when_kube_controller_manager_scaled_last() {
    let of = |scaled| {
        let observed = Some(Observed { desired: Some(5), scaled, account: None });
        Entry { observed, ..decision_at(START, 5, 5, 100_000, &basis()) }
    };
    let (mut run, next) = (of(None), of(Some(START)));
    assert!(run.is_continued_by(&next));
    run.continue_with(&next);
    assert_eq!(copied(&run).1.observed, next.observed);
}
