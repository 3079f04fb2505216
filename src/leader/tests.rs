use super::election::Candidate;
use super::freeze::{ACKNOWLEDGED, FREEZE, Freeze, REQUEST, UNTIL};
use super::permit::REQUEST as REQUEST_TIME;
use super::*;
use crate::clock::Dated;
use crate::prometheus;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use std::pin::pin;
use tower::service_fn;

/// An API server that has Leases and events alone.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Objects>>);

#[derive(Default)]
struct Objects {
    lease: Option<Value>,
    version: u64,
    events: Vec<String>,
    /// The code of every answer, if there is one, and how often the Lease itself was asked for.
    failing: Option<u16>,
    asked: usize,
}

impl Server {
    fn client(&self, clock: Clock) -> Client {
        let server = self.clone();
        let answer = service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let (code, value) = server.answer(&parts.method, parts.uri.path(), &body);
                let answer = Response::builder().status(code);
                let answer = answer.header("date", "Sat, 21 Nov 2026 22:00:00 GMT");
                let body = http_body_util::Full::new(bytes(&value));
                Ok::<_, kube::Error>(answer.body(body).expect("an answer"))
            }
        });
        Client::new(Dated::new(answer, clock), "plimsoll")
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let failure = |code: u16, reason: &str| {
            let status = json!({"kind": "Status", "status": "Failure", "code": code,
                                "reason": reason, "message": reason});
            (code, status)
        };
        let sent = || serde_json::from_slice::<Value>(body).expect("JSON");
        let mut objects = locked(&self.0);
        objects.asked += usize::from(path.ends_with("/leases/plimsoll"));
        if let Some(code) = objects.failing {
            return failure(code, "it fails");
        }
        if path.ends_with("/events") {
            let event = sent();
            objects.events.push(format!("{}: {}", event["reason"], event["message"]));
            return (201, event);
        }
        match (method, &objects.lease) {
            (&Method::GET, Some(lease)) => (200, lease.clone()),
            (&Method::GET, None) => failure(404, "NotFound"),
            (&Method::POST, None) => (201, objects.store(sent())),
            (&Method::PUT, Some(lease)) => {
                let sent = sent();
                let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
                match version(&sent) == version(lease) {
                    true => (200, objects.store(sent)),
                    false => failure(409, "Conflict"),
                }
            }
            (&Method::PUT, None) => failure(404, "NotFound"),
            _ => failure(405, "MethodNotAllowed"),
        }
    }

    /// As it is now.
    fn lease(&self) -> Lease {
        serde_json::from_value(locked(&self.0).lease.clone().expect("a Lease")).expect("a Lease")
    }

    fn annotation(&self, name: &str) -> Option<String> {
        self.lease().metadata.annotations?.get(name).cloned()
    }

    /// What an administrator does.
    fn annotate(&self, annotations: &[(&str, &str)]) {
        let mut objects = locked(&self.0);
        let mut lease = objects.lease.clone().expect("a Lease");
        for (name, value) in annotations {
            lease["metadata"]["annotations"][name] = (*value).into();
        }
        objects.store(lease);
    }
}

impl Objects {
    fn store(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.lease = Some(lease.clone());
        lease
    }
}

fn bytes(value: &Value) -> bytes::Bytes {
    serde_json::to_vec(value).expect("JSON").into()
}

fn settings(identity: &str) -> ElectionSettings {
    ElectionSettings {
        elect: true,
        namespace: "plimsoll".to_owned(),
        name: "plimsoll".to_owned(),
        identity: identity.to_owned(),
        lease: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry: Duration::from_secs(2),
    }
}

fn nobody() -> prometheus::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    prometheus::Client::new(prometheus::Options::new("http://127.0.0.1:1")).expect("a client")
}

fn leader(server: &Server, identity: &str) -> Leader {
    leader_with(server, settings(identity))
}

fn leader_with(server: &Server, settings: ElectionSettings) -> Leader {
    let clock = Clock::default();
    let client = server.client(clock.clone());
    Leader::new(client, settings, clock, Arc::default())
}

/// One that has taken the Lease.
async fn elected<'a>(leader: &'a Leader, prometheus: &'a prometheus::Client) -> Candidate<'a> {
    let mut candidate = Candidate::new(leader, prometheus);
    candidate.step().await;
    candidate.step().await;
    assert!(leader.permit().is_some(), "it leads");
    candidate
}

/// A write to a scale that must not be begun.
async fn never() -> Result<(), kube::Error> {
    panic!("a scale is written")
}

const REASON: [(&str, &str); 2] = [(FREEZE, "incident 42"), (REQUEST, "r1")];

#[tokio::test]
async fn a_late_view_of_the_lease_does_not_undo_a_freeze() {
    let (server, prometheus) = (Server::default(), nobody());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let late = server.lease();
    server.annotate(&REASON);
    candidate.see(server.lease());
    assert_eq!(leader.frozen().as_deref(), Some("incident 42"));
    let changes = *leader.changes().borrow();
    candidate.see(late);
    assert_eq!(leader.frozen().as_deref(), Some("incident 42"));
    assert_eq!(*leader.changes().borrow(), changes);
    assert!(leader.permit().is_some());
}

/// As after a backup of etcd was restored.
#[tokio::test]
async fn a_lease_whose_version_has_gone_back_is_led_by_and_heard() {
    for elect in [true, false] {
        let (server, prometheus) = (Server::default(), nobody());
        let retry = Duration::ZERO;
        let leader = leader_with(&server, ElectionSettings { elect, retry, ..settings("a") });
        let other = leader_with(&server, settings("a"));
        let mut maker = elected(&other, &prometheus).await;
        let mut candidate = Candidate::new(&leader, &prometheus);
        for team in ["x", "y", "z"] {
            server.annotate(&[("team", team)]);
            candidate.see(server.lease());
        }
        maker.see(server.lease());
        locked(&server.0).version = 1;
        // By a renewal, which needs no watch.
        if elect {
            server.annotate(&[("team", "x")]);
            for _ in 0..3 {
                candidate.step().await;
            }
            let renewed = server.lease().metadata.resource_version;
            assert_ne!(renewed.as_deref(), Some("2"), "it is renewed");
            assert!(leader.permit().is_some());
            locked(&server.0).version = 1;
        }
        server.annotate(&REASON);
        candidate.see(server.lease());
        for _ in 0..3 {
            candidate.step().await;
        }
        assert_eq!(leader.frozen().as_deref(), Some("incident 42"), "{elect}");
        assert_eq!(server.annotation(ACKNOWLEDGED).as_deref(), Some("r1"), "{elect}");
        drop(maker);
    }
}

#[tokio::test]
async fn the_lease_is_asked_for_a_freeze_before_each_write_to_a_scale() {
    let (server, prometheus) = (Server::default(), nobody());
    let leader = leader(&server, "a");
    let _candidate = elected(&leader, &prometheus).await;
    let permit = leader.permit().expect("it leads");
    permit.write_scale(async { Ok(()) }).await.expect("it is not frozen");
    // No watch has told of it yet.
    server.annotate(&REASON);
    let error = permit.write_scale(never()).await.unwrap_err();
    assert!(error.to_string().contains("frozen: incident 42"), "{error}");
    assert!(leader.frozen().is_some());
}

#[tokio::test]
async fn a_freeze_is_acknowledged_once_no_write_to_a_scale_is_under_way() {
    let (server, prometheus) = (Server::default(), nobody());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let permit = leader.permit().expect("it leads");
    let (begin, begun) = tokio::sync::oneshot::channel::<()>();
    let (finish, finished) = tokio::sync::oneshot::channel::<()>();
    let writer = permit.clone();
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
    candidate.see(server.lease());
    candidate.step().await;
    assert_eq!(server.annotation(ACKNOWLEDGED), None);
    finish.send(()).expect("it waits");
    write.await.expect("no panic").expect("it was begun before the freeze");
    candidate.step().await;
    assert_eq!(server.annotation(ACKNOWLEDGED).as_deref(), Some("r1"));
    permit.write_scale(never()).await.unwrap_err();
    assert!(locked(&server.0).events.iter().any(|event| event.contains("Frozen")));
}

/// A failure as the API server, or a load balancer before it, tells it.
fn api_error(code: u16) -> kube::Error {
    let status = json!({"kind": "Status", "status": "Failure", "code": code,
                        "reason": "", "message": ""});
    kube::Error::Api(Box::new(serde_json::from_value(status).expect("a Status")))
}

#[tokio::test(start_paused = true)]
async fn a_write_to_a_scale_without_an_answer_may_be_carried_out_before_a_freeze_holds() {
    let broken = || kube::Error::Service(std::io::Error::other("connection reset").into());
    for (error, may_be_done) in [
        (None, true),
        (Some(broken()), true),
        (Some(api_error(504)), true),
        (Some(api_error(403)), false),
        (Some(Refused::NotLeading.into()), false),
    ] {
        let (server, prometheus) = (Server::default(), nobody());
        let maker = leader(&server, "a");
        let _made = elected(&maker, &prometheus).await;
        let leader = leader_with(&server, ElectionSettings { elect: false, ..settings("b") });
        let mut candidate = Candidate::new(&leader, &prometheus);
        let permit = leader.permit().expect("it leads without election");
        let case = format!("{error:?}");
        let write = async {
            match error {
                Some(error) => Err::<(), _>(error),
                None => std::future::pending().await,
            }
        };
        permit.write_scale(write).await.unwrap_err();
        server.annotate(&REASON);
        candidate.see(server.lease());
        candidate.step().await;
        assert_eq!(server.annotation(ACKNOWLEDGED).is_none(), may_be_done, "{case}");
        tokio::time::sleep(REQUEST_TIME + Duration::from_millis(1)).await;
        candidate.step().await;
        assert_eq!(server.annotation(ACKNOWLEDGED).as_deref(), Some("r1"), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_not_given_back_while_a_scale_may_be_written_yet() {
    let (server, prometheus) = (Server::default(), nobody());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let permit = leader.permit().expect("it leads");
    permit.write_scale(async { Err::<(), _>(api_error(504)) }).await.unwrap_err();
    let begun = tokio::time::Instant::now();
    candidate.release().await;
    assert!(begun.elapsed() >= REQUEST_TIME, "{:?}", begun.elapsed());
    assert_eq!(server.lease().spec.and_then(|spec| spec.holder_identity), None);
}

#[tokio::test]
async fn a_thaw_is_acknowledged_while_scales_are_written() {
    let (server, prometheus) = (Server::default(), nobody());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let permit = leader.permit().expect("it leads");
    let mut write = pin!(permit.write_scale(std::future::pending::<Result<(), _>>()));
    assert!(futures::poll!(&mut write).is_pending());
    server.annotate(&[(REQUEST, "thaw")]);
    candidate.see(server.lease());
    candidate.step().await;
    assert_eq!(server.annotation(ACKNOWLEDGED).as_deref(), Some("thaw"));
}

#[tokio::test]
async fn a_term_that_ran_out_is_followed_by_another() {
    let (server, prometheus) = (Server::default(), nobody());
    let leader = leader_with(&server, ElectionSettings { retry: Duration::ZERO, ..settings("a") });
    let mut candidate = elected(&leader, &prometheus).await;
    let before = leader.permit().expect("it leads");
    let changes = *leader.changes().borrow();
    candidate.step().await;
    assert!(before.holds(), "it is renewed");
    assert_eq!(*leader.changes().borrow(), changes);
    locked(&leader.0.terms).now.as_mut().expect("a term").until.0 = Instant::now();
    assert!(leader.permit().is_none());
    candidate.step().await;
    let now = leader.permit().expect("it leads again");
    assert!(now.term() > before.term() && !before.holds());
    assert!(*leader.changes().borrow() > changes, "who follows it is told");
}

#[tokio::test]
async fn after_failed_tries_the_lease_is_left_alone_for_longer_and_longer() {
    let (server, prometheus) = (Server::default(), nobody());
    let leader = leader(&server, "a");
    let mut candidate = Candidate::new(&leader, &prometheus);
    let mut waits = async |code, count| {
        locked(&server.0).failing = code;
        let mut waits = Vec::new();
        for _ in 0..count {
            candidate.step().await;
            waits.push(candidate.wait().as_millis());
        }
        waits
    };
    assert_eq!(waits(Some(500), 7).await, [100, 200, 400, 800, 1600, 2000, 2000]);
    // What is not allowed now may be once the API server has read the roles.
    let forbidden = waits(Some(403), 8).await;
    assert_eq!(forbidden, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
    assert_eq!(waits(Some(500), 1).await, [2000]);
    assert_eq!(waits(None, 1).await, [100]);
}

#[tokio::test]
async fn an_api_server_that_fails_is_not_asked_ten_times_a_second() {
    let (server, prometheus) = (Server::default(), nobody());
    let retry = Duration::from_millis(500);
    let leader = leader_with(&server, ElectionSettings { retry, ..settings("a") });
    let asked = async {
        while leader.permit().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        (locked(&server.0).failing, locked(&server.0).asked) = (Some(500), 0);
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        let asked = locked(&server.0).asked;
        // As at the end of an outage: the leader renews its Lease in time.
        locked(&server.0).failing = None;
        tokio::time::sleep(2 * retry).await;
        assert!(leader.permit().is_some());
        asked
    };
    tokio::select! {
        asked = asked => assert!((3..=6).contains(&asked), "{asked}"),
        () = leader.run(&prometheus, std::future::pending()) => {}
    }
}

#[tokio::test]
async fn a_lease_made_anew_with_a_lower_version_is_heard() {
    for elect in [true, false] {
        let (server, prometheus) = (Server::default(), nobody());
        let leader = leader_with(&server, ElectionSettings { elect, ..settings("a") });
        let maker = leader_with(&server, settings("b"));
        let mut candidate = Candidate::new(&leader, &prometheus);
        let mut other = elected(&maker, &prometheus).await;
        for team in ["x", "y", "z"] {
            server.annotate(&[("team", team)]);
            candidate.see(server.lease());
        }
        (locked(&server.0).lease, locked(&server.0).version) = (None, 0);
        candidate.gone();
        other.gone();
        if elect {
            candidate.step().await;
            candidate.step().await;
            assert!(leader.permit().is_some());
        } else {
            other.step().await;
        }
        server.annotate(&REASON);
        candidate.see(server.lease());
        for _ in 0..2 {
            candidate.step().await;
        }
        assert_eq!(leader.frozen().as_deref(), Some("incident 42"), "{elect}");
        assert_eq!(server.annotation(ACKNOWLEDGED).as_deref(), Some("r1"), "{elect}");
    }
}

#[tokio::test]
async fn a_freeze_ends_at_its_time_by_the_clock_of_the_api_server() {
    let (server, prometheus) = (Server::default(), nobody());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    server.annotate(&[(FREEZE, "a while"), (UNTIL, "2026-11-21T22:30:00Z")]);
    candidate.see(server.lease());
    candidate.step().await;
    assert!(leader.frozen().is_some(), "there is half an hour left");
    server.annotate(&[(UNTIL, "2026-11-21T21:59:59Z")]);
    candidate.see(server.lease());
    candidate.step().await;
    assert_eq!((leader.frozen(), server.annotation(FREEZE)), (None, None));
}

#[tokio::test]
async fn the_lease_is_not_given_back_while_a_write_is_under_way() {
    let (server, prometheus) = (Server::default(), nobody());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let permit = leader.permit().expect("it leads");
    let (finish, finished) = tokio::sync::oneshot::channel::<()>();
    let mut write = pin!(permit.write(async {
        let _ = finished.await;
        Ok(())
    }));
    assert!(futures::poll!(&mut write).is_pending());
    let holder = || server.lease().spec.and_then(|spec| spec.holder_identity);
    {
        let mut released = pin!(candidate.release());
        assert!(futures::poll!(&mut released).is_pending());
        assert_eq!(holder().as_deref(), Some("a"));
        assert!(permit.write(never()).await.is_err(), "none is begun any more");
        finish.send(()).expect("it waits");
        write.await.expect("it was begun in the term");
        released.await;
    }
    assert_eq!(holder(), None);
}

#[tokio::test]
async fn a_permit_of_a_term_does_not_fit_one_of_a_lease_that_was_made_anew() {
    let (server, prometheus) = (Server::default(), nobody());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let before = leader.permit().expect("it leads");
    locked(&server.0).lease = None;
    candidate.gone();
    candidate.step().await;
    candidate.step().await;
    let now = leader.permit().expect("it leads again");
    assert!(now.holds() && !before.holds());
    assert!(now.term() > before.term());
}

#[tokio::test]
async fn an_annotation_neither_renews_the_lease_nor_delays_its_renewal() {
    let (server, prometheus) = (Server::default(), nobody());
    let leader = leader(&server, "a");
    let mut candidate = elected(&leader, &prometheus).await;
    let before = candidate.next();
    server.annotate(&[("team", "x")]);
    candidate.see(server.lease());
    assert_eq!(candidate.next(), before);
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
