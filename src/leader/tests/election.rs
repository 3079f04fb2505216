//! Terms, renewals and the release of the Lease.

use super::super::freeze::ACKNOWLEDGED;
use super::*;
use crate::clock::WallClock;
use std::pin::pin;
use std::time::SystemTime;
use tokio::time::Instant;

/// As after a backup of etcd was restored.
#[tokio::test]
async fn a_lease_whose_version_has_gone_back_is_renewed_and_observed() {
    for elect in [true, false] {
        let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
        let retry_period = Duration::ZERO;
        let leader =
            leader_with(&server, ElectionSettings { elect, retry_period, ..settings("a") });
        let other = leader_with(&server, settings("a"));
        let mut maker = elected(&other, &prometheus).await;
        let mut candidate = Candidate::new(&leader.0, &prometheus);
        for team in ["x", "y", "z"] {
            server.annotate(&[("team", team)]);
            candidate.observe(server.lease());
        }
        maker.observe(server.lease());
        locked(&server.0).version = 1;
        // By a renewal, which needs no watch.
        if elect {
            server.annotate(&[("team", "x")]);
            for _ in 0..3 {
                candidate.attempt().await;
            }
            forget_indeterminate_writes(&leader);
            let renewed = server.lease().metadata.resource_version;
            assert_ne!(renewed.as_deref(), Some("2"), "it is renewed");
            assert!(leader.fencing_token().is_some());
            locked(&server.0).version = 1;
        }
        server.annotate(&REASON);
        candidate.observe(server.lease());
        candidate.attempt().await;
        forget_indeterminate_writes(&leader);
        for _ in 0..2 {
            candidate.attempt().await;
        }
        assert_eq!(leader.frozen().as_deref(), Some("incident 42"), "{elect}");
        assert_eq!(server.annotation(ACKNOWLEDGED).as_deref(), Some("r1"), "{elect}");
        drop(maker);
    }
}

/// A new replica that is copying the decisions of the leader would take them with it.
#[tokio::test(start_paused = true)]
async fn a_candidate_that_lacks_the_history_lets_others_lead_first() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let [a, fresh, warm] = ["a", "b", "c"].map(|identity| leader(&server, identity));
    for lacking in [&a, &fresh] {
        lacking.yield_while(|_| true);
    }
    // Nobody has led before: there is nothing to lack.
    let mut a = elected(&a, &prometheus).await;
    let mut new = Candidate::new(&fresh.0, &prometheus);
    let mut other = Candidate::new(&warm.0, &prometheus);
    for candidate in [&mut new, &mut other] {
        candidate.observe(server.lease());
    }
    assert!(warm.led_by_others().is_some());
    a.release().await;
    for _ in 0..3 {
        new.observe(server.lease());
        new.attempt().await;
        tokio::time::advance(settings("").retry_period).await;
        tokio::time::advance(Duration::ZERO).await;
        if !other.holds_lease() {
            other.observe(server.lease());
            other.attempt().await;
        }
        assert!(fresh.fencing_token().is_none() && warm.fencing_token().is_some());
    }
    // There is no other any more.
    other.release().await;
    new.observe(server.lease());
    new.attempt().await;
    assert!(fresh.fencing_token().is_none());
    tokio::time::advance(2 * settings("").retry_period).await;
    new.attempt().await;
    assert!(fresh.fencing_token().is_some());
}

#[tokio::test]
async fn a_term_that_ran_out_is_followed_by_another() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let leader =
        leader_with(&server, ElectionSettings { retry_period: Duration::ZERO, ..settings("a") });
    let mut candidate = elected(&leader, &prometheus).await;
    let before = leader.fencing_token().expect("it leads");
    let changes = *leader.changes().borrow();
    candidate.attempt().await;
    assert!(before.is_valid(), "it is renewed");
    assert_eq!(*leader.changes().borrow(), changes);
    locked(&leader.0.terms).current.as_mut().expect("a term").renew_deadline.0 = Instant::now();
    assert!(leader.fencing_token().is_none());
    candidate.attempt().await;
    let now = leader.fencing_token().expect("it leads again");
    assert!(now.term() > before.term() && !before.is_valid());
    assert!(*leader.changes().borrow() > changes, "who follows it is told");
}

#[tokio::test(start_paused = true)]
async fn a_term_ends_by_the_clock_that_is_ahead() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let settings = ElectionSettings { retry_period: Duration::ZERO, ..settings("a") };
    let deadline = settings.renew_deadline;
    let ahead = Arc::new(Mutex::new(Duration::ZERO));
    let set = ahead.clone();
    let wall = WallClock::new(move || SystemTime::UNIX_EPOCH + *locked(&set));
    let clock = Clock::with_wall(wall);
    let leader = LeaderElector::new(
        server.client(clock.clone()),
        settings,
        clock,
        Arc::default(),
        Spawner::unowned(),
    );
    let mut candidate = elected(&leader, &prometheus).await;
    for (wall, monotonic) in [(deadline, Duration::ZERO), (Duration::ZERO, deadline)] {
        candidate.attempt().await;
        assert!(leader.fencing_token().is_some());
        *locked(&ahead) += wall;
        tokio::time::advance(monotonic).await;
        assert!(leader.fencing_token().is_none(), "{wall:?}, {monotonic:?}");
        candidate.attempt().await;
        assert!(leader.fencing_token().is_some(), "it leads again");
        // Set back: the next term ends by the monotonic clock.
        *locked(&ahead) = Duration::ZERO;
    }
}

#[tokio::test]
async fn after_failed_attempts_the_election_backs_off() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let leader = leader(&server, "a");
    let mut candidate = Candidate::new(&leader.0, &prometheus);
    let mut backoffs = async |code, count| {
        locked(&server.0).failing = code;
        let mut backoffs = Vec::new();
        for _ in 0..count {
            candidate.attempt().await;
            backoffs.push(candidate.backoff().as_millis());
        }
        backoffs
    };
    assert_eq!(backoffs(Some(500), 7).await, [100, 200, 400, 800, 1600, 2000, 2000]);
    // What is not allowed now may be once the API server has read the roles.
    let forbidden = backoffs(Some(403), 8).await;
    assert_eq!(forbidden, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
    assert_eq!(backoffs(Some(500), 1).await, [2000]);
    assert_eq!(backoffs(None, 1).await, [100]);
}

#[tokio::test]
async fn a_failing_api_server_is_not_called_ten_times_a_second() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let retry_period = Duration::from_millis(500);
    let leader = leader_with(&server, ElectionSettings { retry_period, ..settings("a") });
    let count_requests = async {
        while leader.fencing_token().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        (locked(&server.0).failing, locked(&server.0).lease_requests) = (Some(500), 0);
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        let lease_requests = locked(&server.0).lease_requests;
        // As at the end of an outage: the leader renews its Lease in time.
        locked(&server.0).failing = None;
        tokio::time::sleep(2 * retry_period).await;
        assert!(leader.fencing_token().is_some());
        lease_requests
    };
    tokio::select! {
        lease_requests = count_requests => assert!((3..=6).contains(&lease_requests), "{lease_requests}"),
        () = leader.run(&prometheus, std::future::pending()) => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_recreated_lease_with_a_lower_version_is_observed() {
    for elect in [true, false] {
        let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
        let leader = leader_with(&server, ElectionSettings { elect, ..settings("a") });
        let maker = leader_with(&server, settings("b"));
        let mut candidate = Candidate::new(&leader.0, &prometheus);
        let mut other = elected(&maker, &prometheus).await;
        for team in ["x", "y", "z"] {
            server.annotate(&[("team", team)]);
            candidate.observe(server.lease());
        }
        (locked(&server.0).lease, locked(&server.0).version) = (None, 0);
        candidate.lease_deleted();
        other.lease_deleted();
        if elect {
            tokio::time::sleep(maker.0.settings.lease_duration).await;
            candidate.attempt().await;
            candidate.attempt().await;
            assert!(leader.fencing_token().is_some());
        } else {
            other.attempt().await;
        }
        server.annotate(&REASON);
        candidate.observe(server.lease());
        candidate.attempt().await;
        forget_indeterminate_writes(&leader);
        candidate.attempt().await;
        assert_eq!(leader.frozen().as_deref(), Some("incident 42"), "{elect}");
        assert_eq!(server.annotation(ACKNOWLEDGED).as_deref(), Some("r1"), "{elect}");
    }
}

#[tokio::test]
async fn the_lease_is_not_released_while_a_write_is_in_flight() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let token = leader.fencing_token().expect("it leads");
    let (finish, finished) = tokio::sync::oneshot::channel::<()>();
    let mut write = pin!(token.write(async {
        let _ = finished.await;
        Ok(())
    }));
    assert!(futures::poll!(&mut write).is_pending());
    let holder = || server.lease().spec.and_then(|spec| spec.holder_identity);
    {
        let mut released = pin!(candidate.release());
        assert!(futures::poll!(&mut released).is_pending());
        assert_eq!(holder().as_deref(), Some("a"));
        assert!(token.write(never()).await.is_err(), "none is begun any more");
        finish.send(()).expect("it waits");
        write.await.expect("it was begun in the term");
        released.await;
    }
    assert_eq!(holder(), None);
}

/// As an operator freezes while the leader stops.
#[tokio::test(start_paused = true)]
async fn a_release_is_tried_again_until_the_lease_is_free() {
    for what in ["annotated", "its term has run out", "a failure"] {
        let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
        let leader = leader(&server, "a");
        let mut candidate = elected(&leader, &prometheus).await;
        match what {
            "annotated" => server.annotate(&REASON),
            "a failure" => locked(&server.0).failing = Some(500),
            _ => {
                let term = &mut locked(&leader.0.terms).current;
                term.as_mut().expect("a term").renew_deadline.0 = Instant::now();
            }
        }
        let recover = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            locked(&server.0).failing = None;
        };
        tokio::join!(candidate.release(), recover);
        let spec = server.lease().spec.expect("a spec");
        assert_eq!(spec.holder_identity, None, "{what}");
        assert_eq!(leader.frozen().is_some(), what == "annotated", "and the freeze is kept");
        assert_eq!(server.annotation(FREEZE).is_some(), what == "annotated");
    }
}

#[tokio::test]
async fn a_leader_that_cannot_reach_prometheus_tries_to_hand_over_until_it_has() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    lose_prometheus(&mut candidate, &prometheus).await;
    locked(&server.0).failing = Some(500);
    candidate.attempt().await;
    assert!(leader.fencing_token().is_none());
    locked(&server.0).failing = None;
    candidate.attempt().await;
    assert_eq!(server.lease().spec.and_then(|spec| spec.holder_identity), None);
    // Once: it leads again if no other replica does.
    tokio::time::sleep(Duration::from_secs(60)).await;
    for _ in 0..2 {
        candidate.attempt().await;
        assert!(leader.fencing_token().is_some());
    }
}

#[tokio::test]
async fn a_deletion_that_is_told_late_does_not_end_the_term_of_the_lease_made_since() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let first = server.lease();
    locked(&server.0).lease = None;
    candidate.lease_deleted();
    for _ in 0..2 {
        candidate.attempt().await;
    }
    let token = leader.fencing_token().expect("it leads again");
    candidate.observe_deletion(&first);
    assert!(token.is_valid());
    candidate.observe_deletion(&server.lease());
    let wait = candidate.next_attempt() - Instant::now();
    assert!(wait < Duration::from_secs(1) && !token.is_valid(), "{wait:?}");
}

#[tokio::test]
async fn a_fencing_token_of_a_term_is_not_valid_for_a_recreated_lease() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let before = leader.fencing_token().expect("it leads");
    locked(&server.0).lease = None;
    candidate.lease_deleted();
    candidate.attempt().await;
    candidate.attempt().await;
    let now = leader.fencing_token().expect("it leads again");
    assert!(now.is_valid() && !before.is_valid());
    assert!(now.term() > before.term());
}

#[tokio::test]
async fn an_annotation_neither_renews_the_lease_nor_delays_its_renewal() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let before = candidate.next_attempt();
    server.annotate(&[("team", "x")]);
    candidate.observe(server.lease());
    assert_eq!(candidate.next_attempt(), before);
}

/// Its own renewal may be told first, and the watch then.
#[tokio::test]
async fn a_leader_that_finds_its_lease_deleted_recreates_it_at_once() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let leader =
        leader_with(&server, ElectionSettings { retry_period: Duration::ZERO, ..settings("a") });
    let mut candidate = elected(&leader, &prometheus).await;
    let deleted = server.lease();
    locked(&server.0).lease = None;
    candidate.attempt().await;
    assert!(leader.fencing_token().is_none(), "its renewal was refused");
    candidate.observe_deletion(&deleted);
    let wait = candidate.next_attempt() - Instant::now();
    assert!(wait < Duration::from_secs(1), "{wait:?}");
}

/// The term of its holder may last, whoever tells of the deletion first.
#[tokio::test(start_paused = true)]
async fn a_follower_that_reads_that_the_lease_was_deleted_waits_for_the_end_of_the_term() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let (former, next) = (leader(&server, "a"), leader(&server, "b"));
    let _former = elected(&former, &prometheus).await;
    let older = server.lease();
    server.annotate(&[("team", "x")]);
    let mut candidate = Candidate::new(&next.0, &prometheus);
    candidate.observe(server.lease());
    // The watch is behind, so that the next attempt reads.
    candidate.observe(older.clone());
    locked(&server.0).lease = None;
    candidate.attempt().await;
    candidate.observe_deletion(&older);
    tokio::time::sleep(Duration::from_secs(14)).await;
    candidate.attempt().await;
    assert!(locked(&server.0).lease.is_none(), "the former leader may write");
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..2 {
        candidate.attempt().await;
    }
    assert!(next.fencing_token().is_some());
}

#[tokio::test]
async fn a_hand_over_that_fails_backs_off_like_a_renewal() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    lose_prometheus(&mut candidate, &prometheus).await;
    (locked(&server.0).failing, locked(&server.0).lease_requests) = (Some(403), 0);
    for backoff in [500, 1000] {
        candidate.attempt().await;
        assert_eq!(candidate.backoff().as_millis(), backoff);
    }
    assert_eq!(locked(&server.0).lease_requests, 2);
}

/// Or the replica would be killed before it has ended, if its times are long.
#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_long_for_a_release_that_fails() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let (lease_duration, renew_deadline) = (Duration::from_secs(60), Duration::from_secs(40));
    let long = ElectionSettings { lease_duration, renew_deadline, ..settings("a") };
    let leader = leader_with(&server, long);
    let leads = async {
        while leader.fencing_token().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        locked(&server.0).failing = Some(500);
    };
    let begun = Instant::now();
    leader.run(&prometheus, leads).await;
    assert!(begun.elapsed() < Duration::from_secs(17), "{:?}", begun.elapsed());
}
