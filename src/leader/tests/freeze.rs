//! Freezes and thaws.

use super::super::freeze::{ACKNOWLEDGED, FREEZE, Freeze, REQUEST, UNTIL};
use super::*;
use std::pin::pin;

#[tokio::test]
async fn a_late_view_of_the_lease_does_not_undo_a_freeze() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let late = server.lease();
    server.annotate(&REASON);
    candidate.observe(server.lease());
    assert_eq!(leader.frozen().as_deref(), Some("incident 42"));
    let changes = *leader.changes().borrow();
    candidate.observe(late);
    assert_eq!(leader.frozen().as_deref(), Some("incident 42"));
    assert_eq!(*leader.changes().borrow(), changes);
    assert!(leader.fencing_token().is_some());
}

#[tokio::test]
async fn the_lease_is_read_for_a_freeze_before_each_write_to_a_scale() {
    for elect in [true, false] {
        let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
        let leader = leader_with(&server, ElectionSettings { elect, ..settings("a") });
        if !elect {
            let token = leader.fencing_token().expect("it leads without election");
            token.write_scale(async { Ok(()) }).await.expect("there is no Lease");
        }
        let maker = self::leader(&server, "a");
        let _candidate = elected(if elect { &leader } else { &maker }, &prometheus).await;
        let token = leader.fencing_token().expect("it leads");
        token.write_scale(async { Ok(()) }).await.expect("it is not frozen");
        // It is not in the watch cache yet.
        server.annotate(&REASON);
        let error = token.write_scale(never()).await.unwrap_err();
        assert!(error.to_string().contains("frozen: incident 42"), "{elect}: {error}");
        assert!(leader.frozen().is_some());
    }
}

/// The watch may be silent, or restart after a deletion without sending it.
#[tokio::test]
async fn without_election_the_lease_is_polled() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let maker = leader(&server, "a");
    let _made = elected(&maker, &prometheus).await;
    let leader = leader_with(&server, ElectionSettings { elect: false, ..settings("b") });
    let mut candidate = Candidate::new(&leader.0, &prometheus);
    candidate.observe(server.lease());
    server.annotate(&REASON);
    candidate.attempt().await;
    assert_eq!(leader.frozen().as_deref(), Some("incident 42"));
    locked(&server.0).lease = None;
    candidate.attempt().await;
    assert_eq!(server.annotation(FREEZE).as_deref(), Some("incident 42"), "it can be thawed");
    locked(&server.0).lease.as_mut().expect("a Lease")["metadata"]["annotations"] = json!({});
    server.annotate(&[(REQUEST, "thaw")]);
    candidate.attempt().await;
    assert_eq!(leader.frozen(), None);
    assert_eq!(server.annotation(ACKNOWLEDGED).as_deref(), Some("thaw"));
}

#[tokio::test]
async fn a_freeze_is_acknowledged_once_no_write_to_a_scale_is_in_flight() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let token = leader.fencing_token().expect("it leads");
    let (begin, begun) = tokio::sync::oneshot::channel::<()>();
    let (finish, finished) = tokio::sync::oneshot::channel::<()>();
    let writer = token.clone();
    let write = tokio::spawn(async move {
        let put = async {
            begin.send(()).expect("it is waited for");
            let _ = finished.await;
            Ok(())
        };
        writer.write_scale(put).await
    });
    begun.await.expect("it begins");
    server.annotate(&REASON);
    candidate.observe(server.lease());
    candidate.attempt().await;
    assert_eq!(server.annotation(ACKNOWLEDGED), None);
    finish.send(()).expect("it waits");
    write.await.expect("no panic").expect("it was begun before the freeze");
    candidate.attempt().await;
    assert_eq!(server.annotation(ACKNOWLEDGED).as_deref(), Some("r1"));
    token.write_scale(never()).await.unwrap_err();
    assert!(locked(&server.0).events.iter().any(|event| event.contains("Frozen")));
}

#[tokio::test(start_paused = true)]
async fn a_write_to_a_scale_without_a_response_may_be_applied_before_a_freeze_is_in_effect() {
    let broken = || kube::Error::Service(std::io::Error::other("connection reset").into());
    for (error, is_indeterminate) in [
        (None, true),
        (Some(broken()), true),
        (Some(api_error(504)), true),
        // These are of the only attempt that the API server has handled.
        (Some(api_error(403)), false),
        (Some(api_error(409)), false),
        (Some(api_error(429)), false),
        (Some(WriteRefused::NotLeading.into()), false),
    ] {
        let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
        let maker = leader(&server, "a");
        let _made = elected(&maker, &prometheus).await;
        let leader = leader_with(&server, ElectionSettings { elect: false, ..settings("b") });
        let mut candidate = Candidate::new(&leader.0, &prometheus);
        forget_indeterminate_writes(&leader);
        let token = leader.fencing_token().expect("it leads without election");
        let case = format!("{error:?}");
        let write = async {
            match error {
                Some(error) => Err::<(), _>(error),
                None => std::future::pending().await,
            }
        };
        token.write_scale(write).await.unwrap_err();
        server.annotate(&REASON);
        candidate.observe(server.lease());
        candidate.attempt().await;
        assert_eq!(server.annotation(ACKNOWLEDGED).is_none(), is_indeterminate, "{case}");
        tokio::time::sleep(REQUEST_TIMEOUT + Duration::from_millis(1)).await;
        candidate.attempt().await;
        assert_eq!(server.annotation(ACKNOWLEDGED).as_deref(), Some("r1"), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_to_a_scale_that_is_given_up_may_be_applied_before_a_freeze_is_in_effect() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let token = leader.fencing_token().expect("it leads");
    {
        let mut write = pin!(token.write_scale(std::future::pending::<Result<(), _>>()));
        let sent = tokio::time::timeout(Duration::from_millis(10), &mut write).await;
        assert!(sent.is_err(), "it waits for its response");
    }
    server.annotate(&REASON);
    candidate.observe(server.lease());
    candidate.attempt().await;
    assert_eq!(server.annotation(ACKNOWLEDGED), None);
    tokio::time::sleep(REQUEST_TIMEOUT).await;
    candidate.attempt().await;
    assert_eq!(server.annotation(ACKNOWLEDGED).as_deref(), Some("r1"));
}

/// What an administrator, or a backup of etcd, makes of a Lease.
fn edit_lease(server: &FakeApiServer, what: &str) {
    let mut objects = locked(&server.0);
    let (name, value) = match what {
        "its holder was deleted" => ("holderIdentity", Value::Null),
        "its holder was set to the next one" => ("holderIdentity", json!("b")),
        "its duration was set to a second" => ("leaseDurationSeconds", json!(1)),
        "released for an hour" => ("leaseDurationSeconds", json!(3600)),
        "its Lease was deleted and recreated" => {
            objects.store(json!({"metadata": {"name": "plimsoll"}, "spec": {}}));
            return;
        }
        "etcd was restored from when it was free" => {
            objects.version = 0;
            let spec = json!({"leaseTransitions": 1, "leaseDurationSeconds": 1});
            objects.store(json!({"metadata": {"name": "plimsoll"}, "spec": spec}));
            return;
        }
        _ => return,
    };
    objects.lease.as_mut().expect("a Lease")["spec"][name] = value;
}

/// A write of the leader before may be applied after the next one has begun.
#[tokio::test(start_paused = true)]
async fn a_leader_acknowledges_no_freeze_while_the_one_before_it_may_still_write() {
    // What becomes of the leader before, and for how many seconds it may write.
    for (what, seconds) in [
        ("killed", 10),
        ("killed, and the next one's response is lost", 10),
        ("killed, without election", 10),
        ("released", 0),
        ("released soon after a takeover", 7),
        ("released soon after a takeover, 3 seconds ago", 4),
        ("released for an hour", 30),
        ("released after a write without a response", 10),
        ("released after such a write, soon after its Lease was recreated", 25),
        ("its Lease was deleted", 25),
        ("its Lease was deleted and recreated", 25),
        ("its holder was deleted", 25),
        ("its holder was set to the next one", 25),
        ("its duration was set to a second", 24),
        ("etcd was restored from when it was free", 25),
    ] {
        let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
        let before = leader(&server, "a");
        let mut former = elected(&before, &prometheus).await;
        let elect = !what.ends_with("without election");
        let retry_period = Duration::ZERO;
        let next = leader_with(&server, ElectionSettings { elect, retry_period, ..settings("b") });
        if elect {
            // It has run for a while.
            forget_indeterminate_writes(&next);
        }
        let mut candidate = Candidate::new(&next.0, &prometheus);
        candidate.observe(server.lease());
        if what.contains("soon after a takeover") {
            before.0.expect_indeterminate_writes(Duration::from_secs(7));
        }
        if what.ends_with("soon after its Lease was recreated") {
            before.0.expect_indeterminate_writes(Duration::from_secs(25));
        }
        if what.contains("write") {
            let token = before.fencing_token().expect("it leads");
            let written = token.write_scale(async { Err::<(), _>(api_error(504)) }).await;
            assert!(matches!(written, Err(kube::Error::Api(status)) if status.code == 504));
        }
        let begun = tokio::time::Instant::now();
        if what.starts_with("released") {
            former.release().await;
            assert!(begun.elapsed() < Duration::from_secs(1), "{what}: it hands over at once");
        }
        if what.starts_with("its Lease was deleted") {
            locked(&server.0).lease = None;
            candidate.lease_deleted();
        }
        locked(&server.0).loses_response = what.ends_with("is lost");
        edit_lease(&server, what);
        if locked(&server.0).lease.is_some() {
            candidate.observe(server.lease());
        }
        // Until the next one may acquire it, or comes to it.
        let until = match what {
            _ if what.starts_with("killed") && elect => before.0.settings.lease_duration,
            "its Lease was deleted" => before.0.settings.lease_duration,
            "its duration was set to a second" => Duration::from_secs(1),
            _ if what.ends_with("3 seconds ago") => Duration::from_secs(3),
            _ => Duration::ZERO,
        };
        tokio::time::sleep(until).await;
        let acquiring = tokio::time::Instant::now();
        for _ in 0..4 {
            candidate.attempt().await;
        }
        let token = next.fencing_token().expect("it leads");
        token.write_scale(async { Ok(()) }).await.expect("it may write at once");
        server.annotate(&REASON);
        candidate.observe(server.lease());
        let is_acknowledged = async |candidate: &mut Candidate<'_>, after: Duration| {
            tokio::time::sleep_until(acquiring + after).await;
            candidate.attempt().await;
            server.annotation(ACKNOWLEDGED).is_some()
        };
        let expected = Duration::from_secs(seconds);
        if seconds > 0 {
            let early = expected - Duration::from_secs(1);
            assert!(!is_acknowledged(&mut candidate, early).await, "{what}");
        }
        let late = expected + Duration::from_millis(100);
        assert!(is_acknowledged(&mut candidate, late).await, "{what}");
    }
}

/// By an administrator, in a term whose number this replica has used itself.
#[tokio::test(start_paused = true)]
async fn a_leader_made_by_hand_waits_for_the_one_before_it_though_it_knows_the_term() {
    for what in ["it lost the race for it", "it led then, and another was set since"] {
        let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
        let (other, next) = (leader(&server, "a"), leader(&server, "b"));
        let set_holder = |name: &str| {
            let lease = &mut locked(&server.0).lease;
            lease.as_mut().expect("a Lease")["spec"]["holderIdentity"] = name.into();
        };
        let mut candidate = Candidate::new(&next.0, &prometheus);
        if what == "it lost the race for it" {
            locked(&server.0).store(json!({"metadata": {"name": "plimsoll"}, "spec": {}}));
            candidate.observe(server.lease());
            let _winner = elected(&other, &prometheus).await;
            candidate.attempt().await;
        } else {
            candidate = elected(&next, &prometheus).await;
            set_holder("a");
            candidate.observe(server.lease());
        }
        assert!(next.fencing_token().is_none() && !candidate.holds_lease(), "{what}");
        forget_indeterminate_writes(&next);
        set_holder("b");
        candidate.observe(server.lease());
        assert_eq!(next.0.indeterminate_writes_left(), Duration::from_secs(25), "{what}");
    }
}

/// Nothing was sent: the failure of a read tells nothing of the scale.
#[tokio::test]
async fn a_lease_that_cannot_be_read_refuses_writes_to_scales_and_makes_none_indeterminate() {
    for (elect, code) in [(true, 503), (false, 503), (false, 403)] {
        let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
        let leader = leader_with(&server, ElectionSettings { elect, ..settings("a") });
        let maker = self::leader(&server, "a");
        let _candidate = elected(if elect { &leader } else { &maker }, &prometheus).await;
        let token = leader.fencing_token().expect("it leads");
        locked(&server.0).failing = Some(code);
        let error = token.write_scale(never()).await.unwrap_err();
        assert!(!is_indeterminate(&error), "{elect} {code}: {error}");
        assert!(error.to_string().contains("the Lease can't be read: it fails"), "{error}");
        locked(&server.0).failing = None;
        token.write_scale(async { Ok(()) }).await.expect("it can be read again");
    }
}

/// Each attempt without election reads the Lease.
#[tokio::test(start_paused = true)]
async fn without_election_the_lease_is_not_polled_faster_while_a_freeze_has_to_wait() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let maker = leader(&server, "a");
    let _made = elected(&maker, &prometheus).await;
    let leader = leader_with(&server, ElectionSettings { elect: false, ..settings("b") });
    let mut candidate = Candidate::new(&leader.0, &prometheus);
    server.annotate(&REASON);
    candidate.observe(server.lease());
    let wait = |candidate: &Candidate<'_>| candidate.next_attempt() - tokio::time::Instant::now();
    assert_eq!(wait(&candidate), Duration::from_secs(2), "it may be in effect in 10 s");
    forget_indeterminate_writes(&leader);
    assert_eq!(wait(&candidate), Duration::from_millis(100));
    let _in_flight = leader.0.scale_writes.begin();
    assert_eq!(wait(&candidate), Duration::from_millis(500));
}

#[tokio::test]
async fn a_freeze_whose_lease_was_deleted_ends_without_election_too() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let maker = leader(&server, "a");
    let _made = elected(&maker, &prometheus).await;
    let leader = leader_with(&server, ElectionSettings { elect: false, ..settings("b") });
    let mut candidate = Candidate::new(&leader.0, &prometheus);
    server.annotate(&[(FREEZE, "a while"), (UNTIL, "2026-11-21T22:30:00Z")]);
    candidate.observe(server.lease());
    locked(&server.0).lease = None;
    candidate.lease_deleted();
    candidate.attempt().await;
    assert_eq!(server.annotation(FREEZE).as_deref(), Some("a while"), "there is a Lease to thaw");
    server.annotate(&[(UNTIL, "2026-11-21T21:59:59Z")]);
    candidate.observe(server.lease());
    candidate.attempt().await;
    assert_eq!((leader.frozen(), server.annotation(FREEZE)), (None, None));
    locked(&server.0).lease = None;
    candidate.lease_deleted();
    candidate.attempt().await;
    assert!(locked(&server.0).lease.is_none(), "none is made without a freeze");
}

#[tokio::test]
async fn a_thaw_is_acknowledged_while_scales_are_written() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let token = leader.fencing_token().expect("it leads");
    let mut write = pin!(token.write_scale(std::future::pending::<Result<(), _>>()));
    assert!(futures::poll!(&mut write).is_pending());
    server.annotate(&[(REQUEST, "thaw")]);
    candidate.observe(server.lease());
    candidate.attempt().await;
    assert_eq!(server.annotation(ACKNOWLEDGED).as_deref(), Some("thaw"));
}

#[tokio::test]
async fn a_freeze_ends_at_its_time_by_the_clock_of_the_api_server() {
    let (server, prometheus) = (FakeApiServer::default(), unreachable_prometheus());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    server.annotate(&[(FREEZE, "a while"), (UNTIL, "2026-11-21T22:30:00Z")]);
    candidate.observe(server.lease());
    candidate.attempt().await;
    assert!(leader.frozen().is_some(), "there is half an hour left");
    server.annotate(&[(UNTIL, "2026-11-21T21:59:59Z")]);
    candidate.observe(server.lease());
    candidate.attempt().await;
    assert_eq!((leader.frozen(), server.annotation(FREEZE)), (None, None));
}

#[test]
fn a_freeze_says_who_and_until_when() {
    let lease = |annotations: &[(&str, &str)]| {
        let mut lease = Lease::default();
        let pairs = annotations.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        lease.metadata.annotations = Some(pairs.collect());
        lease
    };
    let freeze = Freeze::of(&lease(&[(FREEZE, "x")])).expect("one by hand");
    assert_eq!(freeze.to_string(), "x");
    assert_eq!(Freeze::of(&lease(&[(UNTIL, "2026-11-21T22:30:00Z")])), None);
    let full = Freeze {
        reason: "x".into(),
        by: Some("jane".to_owned()),
        since: None,
        until: Some("2026-11-21T22:30:00Z".parse().expect("a time")),
    };
    let annotations = full.annotations();
    let pairs: Vec<_> = annotations.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(Freeze::of(&lease(&pairs)), Some(full.clone()));
    assert_eq!(full.to_string(), "x (by jane, until 2026-11-21T22:30:00Z)");
}
