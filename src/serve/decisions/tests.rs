use super::*;
use crate::ledger::{Basis, Entry, MetricBasis, Target};
use crate::watch::ObjectKey;
use axum::body::{Body, BodyDataStream};
use axum::http::{Request, Response, StatusCode, header};
use futures::{FutureExt, StreamExt};
use serde_json::Value;
use std::time::Duration;

const START: i64 = 1_800_000_000_000;

/// The decisions of a leader, of which each of `web`, `web.2` and `api` in two namespaces has so many.
fn decisions(of_each: i64) -> Decisions {
    decisions_within(8 << 20, of_each)
}

fn decisions_within(max_bytes: usize, of_each: i64) -> Decisions {
    let ledger = Ledger::new(max_bytes, START);
    ledger.begin_term(START, None);
    for namespace in ["bank", "shop"] {
        for name in ["api", "web", "web.2"] {
            (0..of_each).for_each(|n| record(&ledger, namespace, name, n));
        }
    }
    Decisions::new(ledger, Arc::default())
}

fn record(ledger: &Ledger, namespace: &str, name: &str, n: i64) {
    record_with(ledger, namespace, name, n, None);
}

fn record_with(ledger: &Ledger, namespace: &str, name: &str, n: i64, message: Option<String>) {
    let query = format!("sum(rate({}[2m]))", "x".repeat(200)).into();
    let metric = MetricBasis::new("http_requests", Some(query), Target::Average(1));
    let basis = Basis::fake([metric]);
    let mut entry = Entry::at(START + n * 1000, Arc::new(basis));
    (entry.generation, entry.message) = (Some(n), message.map(Into::into));
    let key = ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() };
    ledger.record(&AutoscalerRef::autoscaler(key), &entry);
}

fn parts(uri: &str, accept: &str) -> Parts {
    let request = Request::get(uri).header(header::ACCEPT, accept);
    request.body(()).expect("a request").into_parts().0
}

fn options(query: &str) -> DecisionOptions {
    let uri = format!("/?{query}").parse().expect("a URI");
    axum::extract::Query::try_from_uri(&uri).expect("parameters").0
}

fn response(content: ResponseContent) -> Response<Body> {
    match content {
        ResponseContent::Response(response) => response,
        other => panic!("{other:?}"),
    }
}

async fn text(decisions: &Decisions, query: &str, accept: &str) -> Result<String, ApiError> {
    let parts = parts(&format!("/?{query}"), accept);
    let body = response(decisions.list(None, &options(query), &parts).await?).into_body();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.expect("a body");
    Ok(String::from_utf8(bytes.to_vec()).expect("UTF-8"))
}

async fn list(decisions: &Decisions, query: &str) -> Result<Value, ApiError> {
    let text = text(decisions, query, "application/json").await?;
    Ok(serde_json::from_str(&text).expect("JSON"))
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().expect("items");
    let name = |one: &Value| {
        let of = |field: &str| one["metadata"][field].as_str().unwrap_or_default().to_owned();
        format!("{}/{}", of("namespace"), of("name"))
    };
    items.iter().map(name).collect()
}

fn code(result: Result<impl Sized, ApiError>) -> StatusCode {
    result.err().map_or(StatusCode::OK, |error| error.code)
}

/// The events of a watch.
struct Events(BodyDataStream, Vec<u8>);

impl Events {
    async fn of(decisions: &Decisions, query: &str, user: &str) -> Result<Self, ApiError> {
        let user = UserInfo { name: user.to_owned(), ..UserInfo::default() };
        let parts = parts("/", "application/json");
        let watch = decisions.watch(None, &options(query), &parts, Some(&user)).await?;
        Ok(Self(response(watch).into_body().into_data_stream(), Vec::new()))
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.1.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.1.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("an event"));
            }
            self.1.extend_from_slice(&self.0.next().await?.expect("data"));
        }
    }

    /// The events that there are now.
    fn now(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.next().now_or_never().flatten()).collect()
    }
}

#[tokio::test]
async fn a_request_for_decisions_says_that_none_are_kept() {
    let decisions = decisions_within(0, 3);
    let listed = list(&decisions, "resourceVersion=9").await.err();
    let watched = Events::of(&decisions, "", "jane").await.err();
    for error in [listed, watched].map(|error| error.expect("an error")) {
        assert_eq!((error.code, error.retry_after), (StatusCode::METHOD_NOT_ALLOWED, None));
        assert_eq!(error.message, "decisions are not kept: --decision-ledger-bytes is 0");
    }
}

#[tokio::test]
async fn a_list_without_a_limit_has_all() {
    let decisions = decisions(1_000);
    let all = list(&decisions, "").await.expect("a list");
    assert_eq!((all["kind"].as_str(), names(&all).len()), (Some("DecisionList"), 6_000));
    assert_eq!(all["metadata"].get("continue"), None);
    // However long it is, it is made a page at a time.
    let parts = parts("/", "application/json");
    let listed = decisions.list(None, &DecisionOptions::default(), &parts).await.expect("a list");
    let mut pages = response(listed).into_body().into_data_stream();
    let mut count = 0;
    while let Some(page) = pages.next().await {
        assert!(page.expect("data").len() < 300_000);
        count += 1;
    }
    assert!(count > 20, "{count}");
}

#[tokio::test]
async fn pages_continue_at_the_resource_version_of_the_first() {
    let decisions = decisions(10);
    let first = list(&decisions, "limit=7").await.expect("a list");
    let (mut token, mut found) = (first["metadata"]["continue"].clone(), names(&first));
    while let Some(text) = token.as_str() {
        record(&decisions.ledger, "aaa", "late", found.len() as i64);
        let page = list(&decisions, &format!("limit=7&continue={text}")).await.expect("a page");
        assert_eq!(page["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
        found.extend(names(&page));
        token = page["metadata"]["continue"].clone();
    }
    let all = list(&decisions, "").await.expect("a list");
    assert_eq!((found.len(), &found[..]), (60, &names(&all)[names(&all).len() - 60..]));
    let sixty = list(&decisions, "limit=60&fieldSelector=metadata.namespace!%3Daaa").await;
    let sixty = sixty.expect("a list");
    assert_eq!((names(&sixty).len(), sixty["metadata"].get("continue")), (60, None));
    assert_eq!(code(list(&decisions, "continue=x").await), StatusCode::BAD_REQUEST);
    let old = first["metadata"]["continue"].as_str().expect("a token");
    decisions.ledger.begin_term(START + 60_000, None);
    assert_eq!(code(list(&decisions, &format!("continue={old}")).await), StatusCode::GONE);
}

#[tokio::test]
async fn a_list_with_a_limit_continues_after_some_megabytes() {
    let decisions = decisions_within(64 << 20, 0);
    for n in 0..100 {
        record_with(&decisions.ledger, "shop", "web", n, Some("x".repeat(100_000)));
    }
    let (mut counts, mut next) = (Vec::new(), Some(String::new()));
    while let Some(token) = next {
        let page = list(&decisions, &format!("limit=500&continue={token}")).await.expect("a page");
        counts.push(names(&page).len());
        next = page["metadata"]["continue"].as_str().map(str::to_owned);
    }
    assert_eq!(counts, [42, 42, 16]);
}

#[tokio::test]
async fn a_list_is_written_as_the_client_accepts() {
    let decisions = decisions(2);
    let json = list(&decisions, "").await.expect("a list");
    let pretty = text(&decisions, "pretty=true", "application/json").await.expect("a list");
    assert_eq!(serde_json::from_str::<Value>(&pretty).expect("JSON"), json);
    let whole = serde_json::to_string_pretty(&json).expect("JSON");
    assert_eq!(pretty.lines().count(), whole.lines().count(), "{pretty}");
    let yaml = text(&decisions, "", "application/yaml").await.expect("a list");
    let yaml: Value = serde_saphyr::from_str(&yaml).expect("YAML");
    assert_eq!(yaml, json);
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let rows = text(&decisions, "", table).await.expect("a table");
    let rows: Value = serde_json::from_str(&rows).expect("JSON");
    assert_eq!(rows["kind"], "Table");
    assert_eq!(rows["rows"].as_array().map(Vec::len), Some(12));
    assert_eq!(rows["rows"][0]["cells"][0], json["items"][0]["metadata"]["name"]);
    assert_eq!(rows["metadata"], json["metadata"]);
    // Without any, and without a choice.
    for accept in ["application/json", "application/yaml", table] {
        let none = text(&decisions, "labelSelector=plimsoll.dev/autoscaler%3Dno", accept).await;
        let none: Value = serde_saphyr::from_str(&none.expect("a list")).expect("YAML");
        let items = none.get("items").or(none.get("rows")).and_then(Value::as_array);
        assert_eq!(items.map(Vec::len), Some(0), "{accept}: {none}");
    }
    assert_eq!(code(text(&decisions, "", "text/html").await), StatusCode::NOT_ACCEPTABLE);
}

#[tokio::test]
async fn selectors_select() {
    let decisions = decisions(3);
    let selected = async |query: &str| names(&list(&decisions, query).await.expect("a list"));
    let label = selected("labelSelector=plimsoll.dev/autoscaler%3Dweb").await;
    assert_eq!(label.len(), 6);
    let one = selected("fieldSelector=metadata.name%3Dweb.2.autoscaler.3").await;
    assert_eq!(one, ["bank/web.2.autoscaler.3", "shop/web.2.autoscaler.3"]);
    let one = selected("fieldSelector=metadata.name%3Dweb.autoscaler.3,metadata.namespace%3Dshop");
    assert_eq!(one.await, ["shop/web.autoscaler.3"]);
    let none = selected("fieldSelector=metadata.name%3Dweb.autoscaler.3,metadata.name%3Dx").await;
    assert_eq!(none, Vec::<String>::new());
    let others = selected("fieldSelector=metadata.name!%3Dweb.autoscaler.3").await;
    assert_eq!(others.len(), 16);
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_what_is_added_changed_and_dropped() {
    let decisions = decisions_within(1 << 20, 1);
    let query = "allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut events = Events::of(&decisions, query, "ann").await.expect("a watch");
    let initial = events.now();
    assert_eq!(initial.len(), 7);
    let bookmark = &initial[6]["object"]["metadata"];
    assert_eq!(bookmark["annotations"]["k8s.io/initial-events-end"], "true");
    let from = bookmark["resourceVersion"].as_str().expect("a version").to_owned();
    record(&decisions.ledger, "shop", "web", 1);
    let added = events.next().await.expect("an event");
    assert_eq!(
        (&added["type"], &added["object"]["observedGeneration"]),
        (&"ADDED".into(), &1.into())
    );
    // A run is shown again after a minute.
    record(&decisions.ledger, "shop", "web", 1);
    let mut run = Entry::at(START + 70_000, Arc::new(basis_of(&decisions)));
    run.generation = Some(1);
    let key = ObjectKey { namespace: "shop".to_owned(), name: "web".to_owned() };
    decisions.ledger.record(&AutoscalerRef::autoscaler(key), &run);
    let changed = events.next().await.expect("an event");
    assert_eq!((&changed["type"], &changed["object"]["count"]), (&"MODIFIED".into(), &3.into()));
    // One that resumes did not see it added.
    let resumed = format!("resourceVersion={from}");
    let mut resumed = Events::of(&decisions, &resumed, "ann").await.expect("a watch");
    let event = resumed.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["count"]), (&"ADDED".into(), &3.into()));
    // What is dropped is the object that was shown: the oldest of the namespace that takes most.
    let uid = initial[3]["object"]["metadata"]["uid"].clone();
    for n in 0..60_000 {
        record(&decisions.ledger, "shop", "web", n + 5);
        if n % 100 == 0
            && let Some(dropped) = events.now().iter().find(|one| one["type"] == "DELETED")
        {
            assert_eq!(dropped["object"]["metadata"]["uid"], uid);
            return;
        }
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    panic!("nothing was dropped");
}

fn basis_of(decisions: &Decisions) -> Basis {
    let position = ledger::position("shop", "web.autoscaler.2").expect("a name");
    let entry = decisions.ledger.get(&position).now_or_never().flatten();
    (*entry.expect("it is there").basis).clone()
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_one_is_sent_no_others_and_holds_no_queue() {
    let decisions = decisions(1);
    let from = decisions.versions().expect("it leads").last;
    let query = format!("resourceVersion={from}&fieldSelector=metadata.namespace%3Dbank");
    let mut watch = Events::of(&decisions, &query, "ann").await.expect("a watch");
    // Nobody reads: what is behind it is not kept for it.
    let mut stuck =
        Events::of(&decisions, &format!("resourceVersion={from}"), "ann").await.unwrap();
    (0..5_000).for_each(|n| record(&decisions.ledger, "shop", "web", n + 5));
    record(&decisions.ledger, "bank", "web", 5);
    let page = stuck.0.next().await.expect("a page").expect("data");
    assert!(page.len() < 300_000, "{}", page.len());
    let event = watch.next().await.expect("an event");
    assert_eq!(event["object"]["metadata"]["namespace"], "bank");
    assert!(watch.now().is_empty());
    // It ends though it was stuck.
    tokio::time::advance(Duration::from_secs(601)).await;
    stuck.1.clear();
    assert_eq!((stuck.0.next().await.is_none(), watch.next().await), (true, None));
}

#[tokio::test(start_paused = true)]
async fn a_version_of_another_replica_is_waited_for() {
    let decisions = decisions(1);
    let wanted = decisions.versions().expect("it leads").last + 1;
    let query = format!("resourceVersion={wanted}");
    assert_eq!(code(list(&decisions, &query).await), StatusCode::GATEWAY_TIMEOUT);
    let query = format!("watch=1&resourceVersion={wanted}");
    let (watch, ()) = tokio::join!(Events::of(&decisions, &query, "ann"), async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        record(&decisions.ledger, "shop", "web", 7);
    });
    assert_eq!(code(watch), StatusCode::OK);
    decisions.ledger.begin_term(START + 60_000, None);
    let mut expired = Events::of(&decisions, &query, "ann").await.expect("a watch");
    let event = expired.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["code"]), (&"ERROR".into(), &410.into()));
    assert_eq!(expired.next().await, None);
    let never = Decisions::new(Ledger::new(1 << 20, START), Arc::default());
    assert_eq!(code(list(&never, "").await), StatusCode::SERVICE_UNAVAILABLE);
}

/// A replica that copies the decisions of a leader.
struct Follower(Decisions, ledger::CopyId);

impl Follower {
    fn of(leader: &Decisions) -> Self {
        let ledger = Ledger::new(8 << 20, START);
        let id = ledger.begin_copy().expect("it does not lead");
        let follower = Self(Decisions::new(ledger, Arc::default()), id);
        follower.copy(leader);
        follower
    }

    /// Copies what the leader has now.
    fn copy(&self, leader: &Decisions) {
        let mut after = None;
        loop {
            let page =
                leader.ledger.list(&Scope::default(), after.as_ref(), |_| Some((0, u64::MAX)));
            for listed in &page.found {
                self.0.ledger.copy(self.1, options::rendered(listed, START)).expect("it is read");
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        self.0.ledger.copied(self.1, leader.versions().expect("it leads")).expect("the last");
    }
}

#[tokio::test(start_paused = true)]
async fn pages_continue_on_a_replica_that_is_a_moment_behind() {
    let leader = decisions(10);
    let follower = Follower::of(&leader);
    record(&leader.ledger, "shop", "web", 77);
    let first = list(&leader, "limit=7").await.expect("a list");
    let next = format!("limit=100&continue={}", first["metadata"]["continue"].as_str().unwrap());
    let late = async || {
        tokio::time::sleep(Duration::from_millis(300)).await;
        follower.copy(&leader);
    };
    let (second, ()) = tokio::join!(list(&follower.0, &next), late());
    let second = second.expect("it continues");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert_eq!(names(&first).len() + names(&second).len(), 61);
    // It never learns of that.
    record(&leader.ledger, "shop", "web", 78);
    let first = list(&leader, "limit=7").await.expect("a list");
    let next = format!("limit=100&continue={}", first["metadata"]["continue"].as_str().unwrap());
    assert_eq!(code(list(&follower.0, &next).await), StatusCode::GATEWAY_TIMEOUT);
    // Another leader, of whom the other replica does not know yet.
    leader.ledger.begin_term(START + 60_000, None);
    let newer = list(&leader, "limit=7").await.expect("a list");
    let newer = format!("continue={}", newer["metadata"]["continue"].as_str().unwrap());
    assert_eq!(code(list(&follower.0, &newer).await), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(code(list(&leader, &next).await), StatusCode::GONE);
}

#[tokio::test(start_paused = true)]
async fn a_decision_of_which_another_replica_has_told_is_waited_for() {
    let leader = decisions(1);
    let follower = Follower::of(&leader);
    let none = DecisionOptions::default();
    let get = async |decisions: &Decisions, name: &str| {
        let begun = tokio::time::Instant::now();
        let found = code(decisions.get("shop", name, &none).await);
        (found, begun.elapsed() < Duration::from_millis(500))
    };
    record(&leader.ledger, "shop", "web", 7);
    let (found, ()) = tokio::join!(get(&follower.0, "web.autoscaler.2"), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        follower.copy(&leader);
    });
    assert_eq!(found, (StatusCode::OK, true));
    assert_eq!(get(&follower.0, "web.autoscaler.3").await, (StatusCode::NOT_FOUND, false));
    // The leader knows, and so does each of what comes before the last.
    assert_eq!(get(&leader, "web.autoscaler.3").await, (StatusCode::NOT_FOUND, true));
    assert_eq!(get(&follower.0, "web.autoscaler.0").await, (StatusCode::NOT_FOUND, true));
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_of_the_last_decisions_before_the_process_ends() {
    let decisions = decisions(1);
    let from = decisions.versions().expect("it leads").last;
    let mut watch =
        Events::of(&decisions, &format!("resourceVersion={from}"), "ann").await.unwrap();
    record(&decisions.ledger, "shop", "web", 1);
    assert_eq!(watch.next().await.expect("an event")["type"], "ADDED");
    // It has just looked.
    record(&decisions.ledger, "shop", "web", 2);
    assert!(watch.now().is_empty());
    decisions.ledger.close();
    let last = watch.next().now_or_never().flatten().expect("an event");
    assert_eq!(last["object"]["observedGeneration"], 2);
    assert_eq!(watch.next().now_or_never(), Some(None), "and it ends");
    // One that begins ends, too.
    for query in ["", "resourceVersion="] {
        let from = decisions.versions().expect("it leads").last;
        let query = if query.is_empty() { String::new() } else { format!("{query}{from}") };
        let mut late = Events::of(&decisions, &query, "ann").await.unwrap();
        assert_eq!(late.next().now_or_never(), Some(None), "{query}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_tables_has_whole_rows_and_the_columns_once() {
    let decisions = decisions_within(1 << 20, 1);
    let from = decisions.versions().expect("it leads").last;
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let query = options(&format!("resourceVersion={from}"));
    let watch = decisions.watch(None, &query, &parts("/", accept), None).await.expect("a watch");
    let mut events = Events(response(watch).into_body().into_data_stream(), Vec::new());
    let (mut all, mut dropped) = (Vec::new(), 0);
    for n in 0..20_000 {
        record(&decisions.ledger, "shop", "web", n + 5);
        if n % 100 == 0 {
            all.extend(events.now());
            tokio::time::advance(Duration::from_millis(300)).await;
        }
        dropped = decisions.ledger.size().dropped;
    }
    assert!(dropped > 1_000 && all.len() > 10_000, "{dropped} {}", all.len());
    let columns = |event: &Value| event["object"]["columnDefinitions"].as_array().map(Vec::len);
    assert_eq!((columns(&all[0]), columns(&all[1])), (Some(12), Some(0)));
    let is_whole = |event: &Value| {
        let cells = &event["object"]["rows"][0]["cells"];
        event["type"] == "ADDED" && cells[4] == "RecommendationFailed" && cells[6] == 1
    };
    let other = all.iter().find(|event| !is_whole(event));
    assert_eq!(other, None);
}

#[tokio::test]
async fn tenants_do_not_take_the_watches_of_the_replicas() {
    let decisions = decisions(1);
    let own = "system:serviceaccount:plimsoll:plimsoll";
    decisions.own_name.set(own.to_owned()).expect("it is not known yet");
    let mut held = Vec::new();
    for tenant in 0..12 {
        for _ in 0..60 {
            held.extend(Events::of(&decisions, "", &format!("user-{tenant}")).await);
        }
        assert_eq!(held.len(), MAX_WATCHES.min((tenant + 1) * MAX_WATCHES_OF_TENANT));
    }
    assert_eq!(code(Events::of(&decisions, "", "ann").await), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(code(Events::of(&decisions, "", own).await), StatusCode::OK);
    drop(held);
    assert_eq!(code(Events::of(&decisions, "", "ann").await), StatusCode::OK);
}

#[tokio::test]
async fn a_watch_takes_the_best_form_that_it_can_have() {
    let decisions = decisions(1);
    for (accept, expected) in [
        ("application/vnd.kubernetes.protobuf,application/json", StatusCode::OK),
        ("application/yaml, */*", StatusCode::OK),
        ("application/yaml", StatusCode::NOT_ACCEPTABLE),
    ] {
        let parts = parts("/", accept);
        let watch = decisions.watch(None, &DecisionOptions::default(), &parts, None).await;
        assert_eq!(code(watch), expected, "{accept}");
    }
}

#[test]
fn options_that_exclude_each_other_are_refused() {
    let match_ = "resourceVersionMatch=NotOlderThan";
    for (query, is_watch, expected) in [
        ("".to_owned(), false, 200),
        (match_.to_owned(), false, 422),
        (format!("{match_}&resourceVersion=7"), false, 200),
        (format!("{match_}&resourceVersion=7&continue=x"), false, 422),
        ("resourceVersionMatch=Exact&resourceVersion=0".to_owned(), false, 422),
        ("resourceVersionMatch=Near&resourceVersion=7".to_owned(), false, 422),
        ("continue=x&resourceVersion=7".to_owned(), false, 400),
        ("continue=x&resourceVersion=0".to_owned(), false, 200),
        ("sendInitialEvents=true".to_owned(), false, 422),
        ("sendInitialEvents=true".to_owned(), true, 422),
        (format!("sendInitialEvents=true&{match_}"), true, 200),
        ("sendInitialEvents=true&resourceVersionMatch=Exact".to_owned(), true, 422),
        (format!("{match_}&resourceVersion=7"), true, 422),
    ] {
        let checked = code(options(&query).check(is_watch));
        assert_eq!(checked.as_u16(), expected, "{query} {is_watch}");
    }
}
