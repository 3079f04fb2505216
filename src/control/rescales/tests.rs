use super::*;
use crate::hpa::ScaleEvent;

fn change(from: i32, to: i32, at: i64) -> Change {
    Change { from, to, at }
}

fn last(time: i64, replicas: i32) -> LastChange {
    LastChange { time: Some(time), replicas: Some(replicas) }
}

/// Merges a checkpoint with one scale-up, or scale-down if it is negative, which was made at a time.
fn merge(rescales: &mut Rescales, last: LastChange, change: i32, made: i64, now: i64) {
    let event = ScaleEvent { change: change.abs(), time: made, outdated: false, unsure: false };
    let mut history = ScalingHistory::default();
    if change > 0 { &mut history.ups } else { &mut history.downs }.push(event);
    rescales.merge_checkpoint(last, &history, now);
}

#[test]
fn a_change_is_known_whichever_of_scale_and_status_comes_first() {
    // Both at once, the scale first, the status first.
    for (scale_at, status_at) in [(1, 1), (1, 3), (3, 1)] {
        let mut rescales = Rescales::default();
        let mut heard = Vec::new();
        for now in 0..6 {
            rescales.note_scale(if now >= scale_at { 2 } else { 1 }, now);
            let last = (now >= status_at).then_some(100);
            heard.extend(rescales.note_status(last, if now >= status_at { 2 } else { 1 }, now));
        }
        let at = scale_at.min(status_at);
        assert_eq!(heard, [change(1, 2, at)], "{scale_at} {status_at}");
        assert_eq!(rescales.begin_term(), []);
    }
}

#[test]
fn changes_by_other_writers_are_not_taken_for_plimsolls() {
    let mut rescales = Rescales::default();
    rescales.note_scale(2, 0);
    assert_eq!(rescales.note_status(Some(100), 2, 0), None, "that was before");
    rescales.note_scale(5, 1);
    assert_eq!(rescales.note_status(Some(100), 2, 1), None);
    rescales.note_scale(6, 2);
    assert_eq!(rescales.note_status(Some(102), 6, 2), Some(change(5, 6, 2)));
    rescales.note_scale(9, 3);
    rescales.note_scale(9, 3 + REPORT_TIMEOUT_MS + 1);
    assert_eq!(rescales.begin_term(), [], "no status reported it for a minute");
}

#[test]
fn a_change_that_the_watch_has_not_shown_yet_counts_once() {
    let mut rescales = Rescales::default();
    rescales.note_scale_as_leader(9, true, 0);
    rescales.rescaled(9, 7, 0, Some(100));
    assert_eq!(rescales.note_scale_as_leader(9, false, 1), None);
    rescales.note_scale(9, 1);
    // The next one, which another replica made, comes with it.
    rescales.note_scale(4, 2);
    assert_eq!(rescales.begin_term(), [change(7, 4, 2)]);
    // So do two statuses that come before the scale.
    assert_eq!(rescales.note_status(Some(105), 6, 3), Some(change(4, 6, 3)));
    assert_eq!(rescales.note_status(Some(110), 8, 4), Some(change(6, 8, 4)));
    // Somebody sets it back each time before the watch shows anything.
    assert_eq!(rescales.note_status(Some(125), 8, 5), Some(change(4, 8, 5)));
}

/// A leader writes a checkpoint of its change and dies before the next evaluation of the one after it.
#[test]
fn a_change_that_a_checkpoint_has_counts_once_though_it_is_seen_afterwards() {
    for reported in [None, Some(200)] {
        let mut rescales = Rescales::default();
        rescales.note_scale(1, 0);
        rescales.note_status(None, 1, 0);
        merge(&mut rescales, last(200, 3), 2, 5_000, 10_000);
        // Its next change is no part of it.
        for (replicas, expected) in [(3, vec![]), (4, vec![change(3, 4, 15_000)])] {
            rescales.note_scale(replicas, 15_000);
            assert_eq!(rescales.note_status(reported, 3, 15_000), None);
            assert_eq!(rescales.begin_term(), expected, "{reported:?}");
        }
    }
    // A process that has just started has seen the scale after it.
    let mut rescales = Rescales::default();
    rescales.note_scale(3, 6_000);
    rescales.note_status(None, 1, 6_000);
    merge(&mut rescales, last(200, 3), 2, 5_000, 10_000);
    rescales.note_scale(4, 15_000);
    assert_eq!(rescales.begin_term(), [change(3, 4, 15_000)]);
}

/// The watch is behind for several terms, and the scale is read in each.
#[test]
fn what_was_read_is_not_set_back_by_a_watch_that_is_behind() {
    let mut rescales = Rescales::default();
    rescales.note_scale_as_leader(9, false, 0);
    rescales.note_scale_as_leader(9, true, 0);
    rescales.rescaled(9, 6, 0, Some(100));
    for now in 1..4 {
        rescales.note_scale(9, now);
        assert_eq!(rescales.begin_term(), []);
        rescales.note_scale_as_leader(9, false, now);
        rescales.note_scale_as_leader(6, true, now);
    }
    rescales.note_scale(6, 5);
    assert_eq!(rescales.begin_term(), []);
}

#[test]
fn a_watch_that_is_behind_by_several_changes_shows_none_that_is_new() {
    // This replica's own, and another's by their statuses.
    for own in [true, false] {
        let mut rescales = Rescales::default();
        rescales.note_scale_as_leader(4, false, 0);
        for (from, to, last) in [(4, 6, 100), (6, 8, 115)] {
            if own {
                rescales.rescaled(from, to, 0, Some(last));
            } else {
                rescales.note_status(None, 4, 0);
                assert_eq!(rescales.note_status(Some(last), to, 0), Some(change(from, to, 0)));
            }
        }
        for (now, shown) in [4, 6, 6, 8].into_iter().enumerate() {
            rescales.note_scale(shown, now as i64);
            assert_eq!(rescales.begin_term(), [], "{own} {shown}");
            assert_eq!(rescales.note_scale_as_leader(shown, false, now as i64), None);
            assert_eq!(rescales.note_first_read(8, now as i64), None, "{own} {shown}");
        }
        rescales.note_scale(9, 5);
        assert_eq!(rescales.begin_term(), [change(8, 9, 5)]);
    }
}

/// A term ends without a write of its own, and the status comes before the scale.
#[test]
fn a_change_that_the_first_read_of_a_term_showed_is_not_counted_by_its_status() {
    let mut rescales = Rescales::default();
    rescales.note_scale_as_leader(8, false, 0);
    rescales.note_status(None, 8, 0);
    assert_eq!(rescales.note_first_read(12, 1), Some(change(8, 12, 1)));
    rescales.note_scale_as_leader(12, true, 1);
    rescales.note_scale(8, 2);
    assert_eq!(rescales.note_status(Some(100), 12, 2), None);
    rescales.note_scale(12, 3);
    assert_eq!(rescales.begin_term(), []);
}

/// It was read from the API server, and the watch of the status is behind.
#[test]
fn a_status_of_before_is_no_change() {
    let mut rescales = Rescales::default();
    rescales.note_scale(12, 0);
    for (last, to) in [(100, 8), (200, 12), (100, 8), (200, 12)] {
        assert_eq!(rescales.note_status(Some(last), to, 0), None, "{last}");
    }
}

/// The leader dies right after the second of two equal changes, a minute after the first.
#[test]
fn a_change_after_a_checkpoint_that_is_known_is_not_one_of_it() {
    let mut rescales = Rescales::default();
    rescales.note_scale(9, 0);
    rescales.note_status(None, 9, 0);
    rescales.note_scale(7, 1);
    assert_eq!(rescales.note_status(Some(100), 7, 1), Some(change(9, 7, 1)));
    rescales.note_scale(5, 59_900);
    merge(&mut rescales, last(100, 7), -2, 0, 60_000);
    assert_eq!(rescales.begin_term(), [change(7, 5, 59_900)]);
}

/// Somebody sets back what the leader wrote before the watch shows it.
#[test]
fn what_a_watch_has_not_shown_for_long_is_no_longer_ahead() {
    let mut rescales = Rescales::default();
    rescales.note_scale_as_leader(3, true, 0);
    rescales.rescaled(3, 5, 0, Some(100));
    for now in [1, WATCH_LAG_MS + 1] {
        assert_eq!(rescales.note_scale_as_leader(3, false, now), None);
    }
    rescales.note_scale(3, WATCH_LAG_MS + 2);
    rescales.note_scale(4, WATCH_LAG_MS + 3);
    assert_eq!(rescales.begin_term(), [change(3, 4, WATCH_LAG_MS + 3)]);
}

/// The clock of the leader was set back after its first change, of which a checkpoint has the time.
#[test]
fn a_checkpoint_of_a_time_before_the_last_report_does_not_cover_it() {
    let mut rescales = Rescales::default();
    rescales.note_scale(10, 0);
    rescales.note_status(None, 10, 0);
    for (replicas, last, now) in [(12, 1_090, 1), (14, 1_015, 15_000)] {
        rescales.note_scale(replicas, now);
        assert!(rescales.note_status(Some(last), replicas, now).is_some());
    }
    assert_eq!(rescales.coverage(Some(1_090)), Coverage::Unknown);
    assert_eq!(rescales.coverage(Some(1_015)), Coverage::All);
    rescales.merge_checkpoint(last(1_090, 12), &ScalingHistory::default(), 16_000);
    assert_eq!(rescales.last_change(), last(1_015, 14));
}

/// Its leader may have gone by an old view since.
#[test]
fn the_first_status_reports_no_change() {
    let mut rescales = Rescales::default();
    rescales.note_scale(5, 0);
    assert_eq!(rescales.note_status(Some(100), 1, 0), None);
    assert_eq!(rescales.note_status(Some(107), 6, 1), Some(change(5, 6, 1)));
}

#[test]
fn a_new_leader_counts_unreported_changes() {
    let mut rescales = Rescales::default();
    rescales.note_scale(1, 0);
    rescales.note_scale(2, 5);
    assert_eq!(rescales.begin_term(), [change(1, 2, 5)]);
    // Unless the checkpoint has it.
    rescales.note_scale(3, 6);
    merge(&mut rescales, last(200, 3), 1, 5, 10_000);
    assert_eq!(rescales.begin_term(), []);
    assert_eq!(rescales.note_status(Some(200), 3, 7), None);
}

#[test]
fn the_change_of_an_indeterminate_write_counts_once_it_is_seen() {
    for (seen, expected) in [
        (&[1, 4, 4][..], [None, Some(change(1, 4, 6)), None]),
        (&[1, 7, 4], [None; 3]),
        // Another replica may have led meanwhile.
        (&[4, 4, 4], [Some(change(1, 4, 6)), None, None]),
    ] {
        let mut rescales = Rescales::default();
        rescales.note_scale_as_leader(1, true, 0);
        rescales.note_indeterminate(change(1, 4, 5));
        let heard = seen.iter().map(|replicas| rescales.note_scale_as_leader(*replicas, true, 6));
        assert_eq!(heard.collect::<Vec<_>>(), expected, "{seen:?}");
    }
    // The API server gives it up after its time limit, however late it is seen.
    let mut rescales = Rescales::default();
    rescales.note_scale_as_leader(1, true, 0);
    rescales.note_indeterminate(change(1, 4, 5));
    let heard = rescales.note_scale_as_leader(4, true, 50_000);
    assert_eq!(heard, Some(change(1, 4, 10_005)));
    let mut rescales = Rescales::default();
    rescales.note_scale_as_leader(1, true, 0);
    rescales.note_indeterminate(change(1, 4, 5));
    assert_eq!(rescales.note_scale_as_leader(1, true, 6 + REPORT_TIMEOUT_MS), None);
    assert_eq!(
        rescales.note_scale_as_leader(4, true, 7 + REPORT_TIMEOUT_MS),
        None,
        "it is another's"
    );
    // Whoever does not lead sees it as any other.
    rescales.note_scale_as_leader(1, true, 0);
    rescales.note_indeterminate(change(1, 4, 5));
    rescales.note_scale(4, 6);
    assert_eq!(rescales.begin_term(), [change(1, 4, 6)]);
    assert_eq!(rescales.note_scale_as_leader(4, true, 6), None);
}

#[test]
fn an_indeterminate_write_outlasts_a_late_watch_and_the_end_of_a_term() {
    let tried = || {
        let mut rescales = Rescales::default();
        rescales.note_scale_as_leader(8, true, 0);
        rescales.note_indeterminate(change(8, 12, 5));
        rescales
    };
    for behind in [4, 8] {
        let mut rescales = tried();
        assert_eq!(rescales.note_scale_as_leader(behind, false, 6 + REPORT_TIMEOUT_MS), None);
        let done = rescales.note_scale_as_leader(12, true, 7 + REPORT_TIMEOUT_MS);
        assert_eq!(done, Some(change(8, 12, 10_005)), "{behind}");
        // In the first evaluation of another term, too.
        let mut rescales = tried();
        rescales.note_scale(behind, 6);
        assert_eq!(rescales.note_scale_as_leader(behind, false, 6), None);
        assert_eq!(rescales.note_scale_as_leader(12, false, 7), Some(change(8, 12, 7)), "{behind}");
    }
}

#[test]
fn a_status_that_is_not_written_yet_is_no_change_back() {
    let mut rescales = Rescales::default();
    rescales.note_scale_as_leader(5, true, 0);
    rescales.note_status(Some(100), 5, 0);
    rescales.rescaled(5, 8, 0, Some(300));
    rescales.note_scale_as_leader(8, true, 1);
    for now in 2..4 {
        rescales.note_scale(8, now);
        assert_eq!(rescales.note_status(Some(100), 5, now), None);
    }
    assert_eq!(rescales.note_status(Some(300), 8, 5), None);
    rescales.note_scale(9, 6);
    assert_eq!(rescales.note_status(Some(310), 9, 6), Some(change(8, 9, 6)));
}

#[test]
fn a_status_from_before_several_changes_of_this_replica_is_no_change_back() {
    for shown in [(100, 5), (300, 8)] {
        let mut rescales = Rescales::default();
        rescales.note_scale_as_leader(5, true, 0);
        rescales.note_status(Some(100), 5, 0);
        rescales.rescaled(5, 8, 0, Some(300));
        rescales.rescaled(8, 11, 0, Some(315));
        // Its statuses are pending, and it has a new term.
        rescales.note_scale(11, 2);
        assert_eq!(rescales.note_status(Some(shown.0), shown.1, 2), None, "{shown:?}");
        assert_eq!(rescales.note_status(Some(315), 11, 3), None);
        rescales.note_scale(12, 4);
        assert_eq!(rescales.note_status(Some(320), 12, 4), Some(change(11, 12, 4)));
    }
}

/// A leader writes a checkpoint, changes the scale and dies before it could say so anywhere.
#[test]
fn a_change_after_the_checkpoint_is_not_taken_for_one_that_it_has() {
    let mut rescales = Rescales::default();
    rescales.note_scale(7, 0);
    rescales.note_status(Some(100), 7, 0);
    rescales.note_scale(8, 10_000);
    rescales.note_scale(6, 15_000);
    merge(&mut rescales, last(109, 8), 1, 9_000, 16_000);
    assert_eq!(rescales.begin_term(), [change(8, 6, 15_000)]);
}

#[test]
fn the_changes_of_this_replica_are_known() {
    let mut rescales = Rescales::default();
    rescales.note_scale_as_leader(1, true, 0);
    rescales.rescaled(1, 4, 0, Some(300));
    // Another replica leads; the watch is still behind.
    for (replicas, now) in [(1, 1), (4, 2)] {
        rescales.note_scale(replicas, now);
        assert_eq!(rescales.note_status(Some(300), 4, now), None);
    }
    assert_eq!(rescales.begin_term(), []);
}

#[test]
fn a_change_by_another_writer_is_told_once_and_no_change_of_this_replica_is() {
    let mut rescales = Rescales::default();
    let mut shows = |replicas: i32, is_read: bool, now| {
        rescales.note_scale_as_leader(replicas, is_read, now);
        rescales.take_foreign().map(|change| (change.from, change.to))
    };
    assert_eq!(shows(3, false, 0), None);
    assert_eq!(shows(5, false, 1), Some((3, 5)));
    assert_eq!(shows(5, false, 2), None);
    // A read that is ahead of the watch.
    assert_eq!(shows(2, true, 3), Some((5, 2)));
    assert_eq!(shows(5, false, 4), None);
    assert_eq!(shows(2, false, 5), None);
    rescales.rescaled(2, 7, 6, Some(0));
    rescales.note_indeterminate(Change { from: 7, to: 9, at: 7 });
    for (replicas, foreign) in [(2, None), (7, None), (9, None), (4, Some((9, 4)))] {
        rescales.note_scale_as_leader(replicas, false, 8);
        let found = rescales.take_foreign().map(|change| (change.from, change.to));
        assert_eq!(found, foreign, "{replicas}");
    }
}
