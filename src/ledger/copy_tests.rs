//! What holds of copies of the leader's ledger.

use super::store_tests::{all, changes, ledger, list, object, restless, versions};
use super::tests::{START, autoscaler, basis, decision_at};
use super::*;
use crate::watch::AutoscalerRef;
use serde_json::{Value, json};
use std::time::Duration;

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
    copy.begin_term(START + 1_000_000_000);
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
    second.begin_term(START + 60_000);
    let id = copy.begin_copy().expect("it does not lead");
    for listed in &list(&second, &Scope::default())[..10] {
        copy.copy(id, object(listed)).expect("it can be read");
        assert_eq!(list(&copy, &Scope::default()), before, "what was there is shown until then");
    }
    copy.begin_term(START + 120_000);
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
fn a_copy_is_bounded_though_there_are_two_for_a_while() {
    let leader = ledger(1_000_000);
    restless(40_000, |entry| leader.record(&autoscaler("shop", "busy"), &entry));
    let copy = Ledger::new(1_000_000, START);
    copy_all(&leader, &copy);
    let id = copy.begin_copy().expect("it does not lead");
    for listed in list(&leader, &Scope::default()) {
        copy.copy(id, object(&listed)).expect("it can be read");
        assert!(copy.size().bytes <= 1_650_000, "{:?}", copy.size());
    }
    copy.copied(id, versions(&leader)).expect("it is the last");
    assert_eq!(all(&copy).len(), all(&leader).len());
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_does_not_hear_from_the_leader_says_so() {
    let (leader, copy) = (ledger(1 << 20), Ledger::new(1 << 20, START));
    copy.await_copy(Duration::from_secs(5));
    assert!(copy.awaits_copy() && copy.size().behind.is_none());
    let id = copy_all(&leader, &copy);
    assert!(!copy.awaits_copy());
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(copy.versions(), leader.versions());
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(copy.versions(), Err(Behind::For(Duration::from_secs(120))));
    assert_eq!(copy.size().behind, Some(Duration::from_secs(120)));
    copy.copied(id, versions(&leader)).expect("it is the last");
    assert_eq!(copy.versions(), leader.versions());
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert!(leader.versions().is_ok(), "the leader knows");
}

#[test]
fn the_history_begins_with_the_term_if_nothing_was_copied() {
    let never = Ledger::new(1 << 20, START);
    never.begin_term(START + 864_000_000);
    assert_eq!(versions(&never).since, START + 864_000_000);
    let (leader, copy) = (ledger(1 << 20), Ledger::new(1 << 20, START + 5));
    copy_all(&leader, &copy);
    copy.begin_term(START + 864_000_000);
    assert_eq!(versions(&copy).since, START);
}
