use super::*;
use crate::clock::Clock;
use crate::control::fake;
use crate::watch::AutoscalerKind;
use serde_json::json;
use tokio::task::JoinHandle;

fn writer(client: &Client) -> StatusWriter {
    let events = Events::new(client.clone(), Clock::default(), Arc::default());
    StatusWriter::new(client.clone(), events, Gauge::default())
}

/// A writer to an API server that accepts each write, with a token for it and the log of the requests.
fn accepted() -> (StatusWriter, FencingToken, fake::Log) {
    let (client, log) = fake::api(|request| (200, request.object()));
    (writer(&client), fake::fencing_token(&client), log)
}

/// Writes its statuses until it is aborted.
fn run(writer: &StatusWriter) -> JoinHandle<()> {
    let writer = writer.clone();
    tokio::spawn(async move { writer.run().await })
}

fn compact(status: AutoscalerStatus) -> Arc<CompactStatus> {
    Arc::new(CompactStatus::new(AutoscalerKind::Autoscaler, status, &[]))
}

fn empty() -> Arc<CompactStatus> {
    compact(AutoscalerStatus::default())
}

#[tokio::test]
async fn a_status_is_written_to_the_object_with_its_uid() {
    let (writer, token, log) = accepted();
    let web = fake::autoscaler("web");
    writer.put(&token, &web, "uid-1", (empty(), true));
    let run = run(&writer);
    writer.finish().await;
    run.abort();
    let patches = log.of("PATCH");
    let test = json!({"op": "test", "path": "/metadata/uid", "value": "uid-1"});
    assert_eq!(patches[0].body[0], test, "{patches:?}");
    assert_eq!(patches.len(), 1, "{patches:?}");
}

#[tokio::test]
async fn fields_that_a_status_no_longer_has_are_removed_from_the_object() {
    let (client, log) = fake::api(|request| (200, request.object()));
    let token = fake::fencing_token(&client);
    let web = fake::autoscaler("web");
    let empty = AutoscalerStatus::default().to_json();
    assert!(write(&client, &token, &web, "u", &empty).await.unwrap());
    // It takes the place of the whole old one.
    let whole = json!({"op": "add", "path": "/status", "value": {}});
    assert_eq!(log.of("PATCH")[0].body[1], whole);
}

#[tokio::test]
async fn a_status_of_an_object_that_was_made_anew_is_dropped() {
    // What kube-apiserver says if a test of a JSON patch fails, and of an invalid status.
    let text = "the server rejected our request due to an error in our request";
    let (code, mut failed) = fake::failure(422, "Invalid", text);
    failed["details"] = json!({});
    let mut invalid = failed.clone();
    invalid["details"]["causes"] = json!([{"reason": "FieldValueRequired", "message": "",
        "field": "status.conditions[0].type"}]);
    for (refusal, is_dropped) in [(failed, true), (invalid, false)] {
        let (client, _) = fake::api(move |_| (code, refusal.clone()));
        let (token, writer) = (fake::fencing_token(&client), writer(&client));
        let web = fake::autoscaler("web");
        writer.put(&token, &web, "u", (empty(), true));
        writer.write(writer.take().expect("it waits")).await;
        assert_eq!(!writer.has(&web, token.term()), is_dropped);
        // What rests on a status must not be done without it.
        let recorded = writer.record(&token, &web, "u", &AutoscalerStatus::default()).await;
        assert_eq!(recorded.unwrap_err() == "the object is gone", is_dropped);
    }
}

#[tokio::test]
async fn what_is_pending_is_written_as_it_is_then() {
    let (writer, token, log) = accepted();
    let [web, api] = ["web", "api"].map(fake::autoscaler);
    writer.put(&token, &web, "u", (empty(), true));
    let newer = compact(AutoscalerStatus { current_replicas: Some(3), ..Default::default() });
    assert!(writer.renew(&token, &web, newer.clone()) && !writer.renew(&token, &api, newer));
    writer.write(writer.take().expect("it waits")).await;
    assert_eq!(log.of("PATCH")[0].body[1]["value"]["currentReplicas"], 3);
    assert!(writer.take().is_none(), "api waited for nothing");
}

/// It is not written in a later one: what is shown then is put again.
#[tokio::test]
async fn a_status_is_pending_in_its_lease_term_alone() {
    let (client, _) = fake::api(|request| (200, request.object()));
    let (token, writer) = (fake::fencing_token(&client), writer(&client));
    let web = fake::autoscaler("web");
    let pends = || [0, 1].map(|more| writer.has(&web, token.term() + more));
    assert_eq!(pends(), [false, false]);
    writer.put(&token, &web, "u", (empty(), true));
    assert_eq!(pends(), [true, false]);
    let taken = writer.take().expect("it waits");
    assert_eq!(pends(), [true, false], "it is in flight");
    writer.write(taken).await;
    assert_eq!(pends(), [false, false]);
}

#[tokio::test]
async fn a_pending_status_is_dropped_with_its_object() {
    let (writer, token, log) = accepted();
    let web = fake::autoscaler("web");
    writer.put(&token, &web, "uid-1", (empty(), true));
    writer.forget(&web);
    let run = run(&writer);
    writer.finish().await;
    run.abort();
    assert!(log.of("").is_empty(), "{:?}", log.of(""));
}

#[tokio::test]
async fn the_statuses_of_one_autoscaler_are_written_one_at_a_time() {
    let (writer, token, log) = accepted();
    let web = fake::autoscaler("web");
    let put = |desired: i32| {
        let status = AutoscalerStatus { desired_replicas: Some(desired), ..Default::default() };
        writer.put(&token, &web, "u", (compact(status), true));
    };
    put(1);
    writer.record(&token, &web, "u", &AutoscalerStatus::default()).await.unwrap();
    put(2);
    let older = writer.take().expect("it waits");
    put(3);
    assert!(writer.take().is_none(), "the older is being written");
    writer.write(older).await;
    writer.write(writer.take().expect("it waits")).await;
    assert_eq!(log.of("PATCH")[2].object()["status"]["desiredReplicas"], 3);
}

#[tokio::test(start_paused = true)]
async fn statuses_wait_for_evaluations_but_not_for_long() {
    let (writer, token, log) = accepted();
    let put = |name: String| writer.put(&token, &fake::autoscaler(&name), "u", (empty(), true));
    let run = run(&writer);
    let written = async |after: Duration| {
        tokio::time::sleep(after).await;
        log.of("PATCH").len()
    };
    writer.hold(true);
    (0..1_000).for_each(|number| put(format!("web-{number}")));
    // However often evaluations wait again.
    for _ in 0..3 {
        assert_eq!(written(MAX_HOLD / 4).await, 0);
        writer.hold(false);
        writer.hold(true);
    }
    assert_eq!(written(MAX_HOLD).await, 1_000);
    // Nor if they wait for ever, as those of one tenant may.
    put("api".to_owned());
    assert_eq!(written(Duration::from_millis(50)).await, 1_001);
    writer.hold(false);
    writer.hold(true);
    put("worker".to_owned());
    assert_eq!(written(MAX_HOLD / 2).await, 1_001);
    writer.hold(false);
    assert_eq!(written(Duration::from_millis(50)).await, 1_002);
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_api_server_gets_few_retries_and_all_statuses_in_the_end() {
    let away = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_away = away.clone();
    let (client, log) =
        fake::api(move |request| match is_away.load(std::sync::atomic::Ordering::Relaxed) {
            true => fake::failure(503, "ServiceUnavailable", "starting"),
            false => (200, request.object()),
        });
    let (token, writer) = (fake::fencing_token(&client), writer(&client));
    let (lines, _guard) = crate::fake::LogLines::keep();
    for number in 0..1_000 {
        let autoscaler = fake::autoscaler(&format!("web-{number}"));
        writer.put(&token, &autoscaler, "u", (empty(), true));
    }
    let run = run(&writer);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let tried = log.of("PATCH").len();
    assert!(tried < 100, "{tried} tries in ten minutes");
    away.store(false, std::sync::atomic::Ordering::Relaxed);
    tokio::time::sleep(MAX_BACKOFF + Duration::from_secs(10)).await;
    assert_eq!(log.of("PATCH").len() - tried, 1_000);
    assert!(!writer.has(&fake::autoscaler("web-7"), token.term()));
    lines.assert_plain();
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn a_rejected_status_backs_off_without_delaying_others() {
    let (client, log) = fake::api(|request| match request.line.contains("/bad/") {
        true => fake::failure(403, "Forbidden", "not for you"),
        false => (200, request.object()),
    });
    let (token, writer) = (fake::fencing_token(&client), writer(&client));
    for name in ["bad", "good"] {
        writer.put(&token, &fake::autoscaler(name), "u", (empty(), true));
    }
    let run = run(&writer);
    tokio::time::sleep(Duration::from_secs(1_000)).await;
    assert_eq!(log.of("PATCH").iter().filter(|r| r.line.contains("good")).count(), 1);
    let tries = log.of("PATCH").iter().filter(|r| r.line.contains("bad")).count();
    assert!((8..=12).contains(&tries), "{tries}");
    run.abort();
}

/// One tenant's statuses may change all the time.
#[tokio::test]
async fn the_statuses_of_namespaces_are_written_in_turn() {
    let (writer, token, _) = accepted();
    let of = |namespace: &str, name: &str| {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        AutoscalerRef::autoscaler(crate::watch::ObjectKey { namespace, name })
    };
    for number in 0..1_000 {
        writer.put(&token, &of("evil", &number.to_string()), "u", (empty(), true));
    }
    for name in ["web", "api"] {
        writer.put(&token, &of("shop", name), "u", (empty(), true));
    }
    let taken = || writer.take().expect("it waits").0.key.namespace.clone();
    let first: Vec<String> = (0..5).map(|_| taken()).collect();
    assert_eq!(first, ["evil", "shop", "evil", "shop", "evil"]);
}

#[tokio::test(start_paused = true)]
async fn another_decision_does_not_wait_for_minutes_as_the_rejected_status_does() {
    for (decides, waits) in [(true, false), (false, true)] {
        write_after_rejections(decides, waits).await;
    }
}

async fn write_after_rejections(decides: bool, waits: bool) {
    let is_forbidden = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let forbidden = is_forbidden.clone();
    let (client, log) =
        fake::api(move |request| match forbidden.load(std::sync::atomic::Ordering::Relaxed) {
            true => fake::failure(403, "Forbidden", "not for you"),
            false => (200, request.object()),
        });
    let (token, writer) = (fake::fencing_token(&client), writer(&client));
    let web = fake::autoscaler("web");
    writer.put(&token, &web, "u", (empty(), true));
    let run = run(&writer);
    tokio::time::sleep(Duration::from_secs(1_000)).await;
    is_forbidden.store(false, std::sync::atomic::Ordering::Relaxed);
    let newer = compact(AutoscalerStatus { current_replicas: Some(3), ..Default::default() });
    writer.put(&token, &web, "u", (newer, decides));
    tokio::time::sleep(Duration::from_secs(16)).await;
    assert_eq!(writer.has(&web, token.term()), waits);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(log.of("PATCH").last().unwrap().body[1]["value"]["currentReplicas"], 3);
    assert!(writer.queue().retries.is_empty() && writer.queue().rejected.is_empty());
    run.abort();
}
