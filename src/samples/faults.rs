//! What a Prometheus that fails, lies or is slow does to the samples.

use super::flight::Answer;
use super::groups::{Groups, Run, USERS_REMEMBERED};
use super::kinds::Kinds;
use super::{Asker, MetricError, ObjectSamples, Store, Table};
use crate::config::Config;
use crate::prometheus::{Client, Error, Flow, Options};
use crate::promql::plan::Shape;
use crate::promql::query::{MetricKind, PodMetric};
use axum::Router;
use axum::extract::{RawForm, State};
use axum::http::Uri;
use futures::FutureExt;
use futures::future::join_all;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// What was asked, in order.
type Asked = Arc<Mutex<Vec<String>>>;

/// Groups whose queries are answered by a function, and what they were asked.
fn groups(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> (Arc<Groups>, Asked) {
    let asked = Asked::default();
    let (seen, answer) = (asked.clone(), Arc::new(answer));
    let run: Run = Arc::new(move |query, _| {
        let (seen, answer) = (seen.clone(), answer.clone());
        async move {
            seen.lock().unwrap().push(query.clone());
            // Long enough that all who ask at once ask for the same.
            tokio::time::sleep(Duration::from_millis(5)).await;
            answer(&query)
        }
        .boxed()
    });
    (Arc::new(Groups::new(Duration::from_secs(1), run)), asked)
}

async fn get(groups: &Arc<Groups>, query: &str) -> Answer {
    groups.get(&Shape::of(query), &Asker::of("shop")).await
}

fn of(app: usize) -> String {
    format!(r#"sum by (pod) (x{{app="a{app}"}})"#)
}

fn none() -> Answer {
    let body = br#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
    Ok(Arc::new(Table::read(body).unwrap()))
}

fn fails(error: Error) -> Answer {
    Err(error.into())
}

fn refused(answer: &Answer) -> bool {
    matches!(answer, Err(MetricError::Prometheus(Error::Refused(_))))
}

async fn all(groups: &Arc<Groups>, apps: std::ops::Range<usize>) -> Vec<Answer> {
    join_all(apps.map(async |app| get(groups, &of(app)).await)).await
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_apart_while_prometheus_was_slow_is_joined_again() {
    let slow = Arc::new(Mutex::new(true));
    let state = slow.clone();
    let (groups, asked) = groups(move |_| match *state.lock().unwrap() {
        true => fails(Error::Timeout(Duration::from_secs(10))),
        false => none(),
    });
    for _ in 0..40 {
        all(&groups, 0..60).await;
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    *slow.lock().unwrap() = false;
    for _ in 0..20 {
        all(&groups, 0..60).await;
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    asked.lock().unwrap().clear();
    assert!(all(&groups, 0..60).await.iter().all(Result::is_ok));
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_refused_is_asked_apart_from_then_on() {
    let (groups, asked) = groups(|query| match query.contains("a7\"") || query.contains("a7|") {
        true => fails(Error::Refused("many-to-many matching not allowed".to_owned())),
        false => none(),
    });
    let answers = all(&groups, 0..32).await;
    let bad: Vec<usize> = (0..32).filter(|app| refused(&answers[*app])).collect();
    assert_eq!(bad, [7]);
    tokio::time::sleep(Duration::from_secs(15)).await;
    asked.lock().unwrap().clear();
    let answers = all(&groups, 0..32).await;
    assert!(refused(&answers[7]) && answers[8].is_ok());
    let asked = asked.lock().unwrap();
    assert!(asked.len() <= 2, "{asked:#?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_spoils_what_it_is_asked_with_is_asked_apart_from_then_on() {
    for error in [
        Error::Partial("11 more warning annotations omitted".to_owned()),
        Error::Answer("it has more series than the limit".to_owned()),
    ] {
        let (said, spoils) = (error.clone(), |query: &str| query.contains("a7"));
        let (groups, asked) = groups(move |query| match spoils(query) {
            true => fails(said.clone()),
            false => none(),
        });
        let apps = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        for round in 0..40 {
            asked.lock().unwrap().clear();
            let answers = join_all(apps.map(async |app| get(&groups, &of(app)).await)).await;
            let bad: Vec<usize> = (0..10).filter(|app| answers[*app].is_err()).collect();
            assert_eq!(bad, [7], "{error}");
            let asked = asked.lock().unwrap().clone();
            assert!(round == 0 || asked.len() <= 2, "{error}: {asked:#?}");
            tokio::time::sleep(Duration::from_secs(15)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wide_answer_that_is_only_a_part_is_asked_by_name() {
    let (groups, _) = groups(|query| match query.contains("app=") {
        false => fails(Error::Partial("11 more warning annotations omitted".to_owned())),
        true => none(),
    });
    let query = |app: usize| format!(r#"sum by (pod) (x{{app="{app}",ns="n"}})"#);
    for _ in 0..3 {
        let all = join_all((0..100).map(async |app| get(&groups, &query(app)).await)).await;
        assert!(all.iter().all(Result::is_ok));
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn while_all_answers_are_partial_each_is_not_asked_for_alone_in_each_round() {
    let down = Arc::new(Mutex::new(true));
    let state = down.clone();
    let (groups, asked) = groups(move |_| match *state.lock().unwrap() {
        true => fails(Error::Partial("No StoreAPIs matched for this query".to_owned())),
        false => none(),
    });
    for _ in 0..20 {
        all(&groups, 0..60).await;
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    // Once a minute, and once in each of the other rounds.
    let many = asked.lock().unwrap().len();
    assert!(many < 5 * 120 + 20, "{many}");
    *down.lock().unwrap() = false;
    asked.lock().unwrap().clear();
    assert!(all(&groups, 0..60).await.iter().all(Result::is_ok));
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn ones_whose_answers_are_only_parts_fail_no_others_though_splitting_helped_nobody() {
    for fresh in [false, true] {
        let (groups, asked) = groups(|query| match query.contains("bad") {
            true => fails(Error::Partial("11 more warning annotations omitted".to_owned())),
            false => none(),
        });
        let mut of_good = Vec::new();
        // Two ask each second, ever the same or ever new, and the others of their form now and then.
        for second in 0..100 {
            let bad = |n: usize| {
                let n = if fresh { 2 * second + n } else { n };
                format!(r#"sum by (pod) (x{{app="bad{n}"}})"#)
            };
            asked.lock().unwrap().clear();
            let [bad, other] = [bad(0), bad(1)];
            let apps = if second > 8 && second % 7 == 3 { 2..10 } else { 0..0 };
            let of_round = apps.len();
            let (bad, other, good) =
                tokio::join!(get(&groups, &bad), get(&groups, &other), all(&groups, apps));
            assert!(bad.is_err() && other.is_err());
            assert!(good.iter().all(Result::is_ok), "at {second}, fresh: {fresh}");
            if of_round > 0 {
                of_good.push(asked.lock().unwrap().len());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // The same are soon asked for apart.
        assert!(fresh || of_good[2..].iter().all(|asked| *asked <= 3), "{of_good:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn newcomers_have_those_not_asked_alone_again_whose_answers_were_only_parts() {
    let (groups, asked) =
        groups(|_| fails(Error::Partial("No StoreAPIs matched for this query".to_owned())));
    for round in 0..20 {
        let newcomer = all(&groups, 1_000 + round..1_001 + round);
        tokio::join!(all(&groups, 0..60), newcomer);
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    // Once a minute, and with each newcomer those who were, and itself.
    let many = asked.lock().unwrap().len();
    assert!(many < 5 * 125 + 20 * 3, "{many}");
}

#[tokio::test(start_paused = true)]
async fn one_that_takes_too_long_fails_the_others_for_a_few_rounds_and_not_again() {
    let asked = Asked::default();
    let seen = asked.clone();
    let run: Run = Arc::new(move |query: String, _| {
        let seen = seen.clone();
        async move {
            seen.lock().unwrap().push(query.clone());
            let slow = query.contains("a7\"") || query.contains("a7|");
            let time = Duration::from_secs(if slow { 10 } else { 1 });
            tokio::time::sleep(time).await;
            if slow { fails(Error::Timeout(time)) } else { none() }
        }
        .boxed()
    });
    let groups = Arc::new(Groups::new(Duration::from_secs(2), run));
    let mut failed = Vec::new();
    for _ in 0..60 {
        asked.lock().unwrap().clear();
        let answers = all(&groups, 0..255).await;
        failed.push(answers.iter().filter(|answer| answer.is_err()).count());
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    // All of the first, then a quarter, and so on.
    assert_eq!(failed[0], 255);
    assert!(failed.windows(2).all(|two| two[1] <= two[0].div_ceil(3)), "{failed:?}");
    assert!(failed[5..].iter().all(|failed| *failed == 1), "{failed:?}");
    assert!(asked.lock().unwrap().len() <= 2);
}

#[tokio::test(start_paused = true)]
async fn one_for_whose_failure_there_is_no_room_is_asked_apart_all_the_same() {
    let (groups, asked) = groups(|query| match query.contains("bad") {
        true => fails(Error::Refused("many-to-many matching not allowed".to_owned())),
        false => none(),
    });
    for _ in 0..3 {
        // All that the namespace may have, to the last small thing.
        for values in [20_000, 1_000, 50, 1] {
            let own = |n: usize| {
                let shape = Shape::of(&format!(r#"sum by (pod) (x{values}_{n}{{a="v"}})"#));
                Shape { own: Arc::from([vec!["v".to_owned(); values]]), ..shape }
            };
            let ask = async |n| groups.get(&own(n), &Asker::user("greedy")).await.unwrap();
            join_all((0..40).map(ask)).await;
        }
        asked.lock().unwrap().clear();
        let bad = Shape::of(r#"sum by (pod) (x{app="bad"})"#);
        let user = Asker::user("greedy");
        let (bad, good) = tokio::join!(groups.get(&bad, &user), all(&groups, 0..10));
        assert!(refused(&bad) && good.iter().all(Result::is_ok));
        let asked = asked.lock().unwrap().clone();
        assert_eq!(asked.len(), 2, "{asked:#?}");
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}

/// Has a namespace take all that it may of what is remembered, to the last small thing, by
/// queries that are refused, and so are remembered for minutes.
async fn fill(groups: &Arc<Groups>, asker: &Asker) {
    let full = || groups.remembered(&asker.namespace);
    for values in [20_000, 1_000, 50, 1] {
        for n in 0.. {
            let query = format!(r#"sum by (pod) ({}_{values}_{n}{{a="v"}})"#, asker.namespace);
            let shape = Shape::of(&query);
            let shape = Shape { own: Arc::from([vec!["v".to_owned(); values]]), ..shape };
            let before = full();
            assert!(refused(&groups.get(&shape, asker).await));
            if full() == before {
                break;
            }
        }
    }
}

fn refuses_the_greedy(query: &str) -> Answer {
    match query.contains("greedy") {
        true => fails(Error::Refused("many-to-many matching not allowed".to_owned())),
        false => none(),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_of_users_queries_takes_no_room_from_those_of_templates() {
    let (groups, asked) = groups(refuses_the_greedy);
    for n in 0..10 {
        fill(&groups, &Asker::user(&format!("greedy_{n}"))).await;
    }
    for _ in 0..2 {
        asked.lock().unwrap().clear();
        assert!(all(&groups, 0..1_000).await.iter().all(Result::is_ok));
        let asked = asked.lock().unwrap().len();
        assert!(asked <= 4, "{asked}");
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_templates_query_that_finds_no_room_is_joined_with_those_who_wait() {
    let (groups, asked) = groups(refuses_the_greedy);
    let greedy = Asker::of("greedy");
    fill(&groups, &greedy).await;
    asked.lock().unwrap().clear();
    let ask = async |app| groups.get(&Shape::of(&of(app)), &greedy).await;
    assert!(join_all((0..100).map(ask)).await.iter().all(Result::is_ok));
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_a_good_part_do_not_wait_for_the_bad_one() {
    let run: Run = Arc::new(|query: String, _| {
        async move {
            let (bad, joined) = (query.contains("a0"), query.contains('|'));
            if bad && !joined {
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            if bad { fails(Error::Refused("bad".to_owned())) } else { none() }
        }
        .boxed()
    });
    let groups = Arc::new(Groups::new(Duration::from_secs(1), run));
    let began = tokio::time::Instant::now();
    let last = async {
        get(&groups, &of(7)).await.unwrap();
        began.elapsed()
    };
    let (_, took) = tokio::join!(all(&groups, 0..7), last);
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn who_asks_under_a_failed_query_for_all_asks_once_and_not_each_time() {
    let (groups, asked) = groups(|query| match query.contains("pod=") {
        false => fails(Error::Unavailable { status: 500, message: String::new() }),
        true => none(),
    });
    let pods = |app: usize| {
        let names: Vec<String> = (0..10).map(|pod| format!("p-{app}-{pod}")).collect();
        format!(r#"sum by (pod) (x{{ns="n",pod=~"{}"}})"#, names.join("|"))
    };
    // So many that the pod is not named, which fails.
    let many = join_all((0..100).map(async |app| get(&groups, &pods(app)).await)).await;
    assert!(many.iter().all(Result::is_err));
    asked.lock().unwrap().clear();
    let late = join_all((0..50).map(async |_| get(&groups, &pods(200)).await)).await;
    assert!(late.iter().all(Result::is_ok));
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_ever_new_things_is_forgotten_and_leaves_others_their_room() {
    let (groups, _) = groups(|_| none());
    let ask = async |namespace: &str, shape: Shape| {
        groups.get(&shape, &Asker::user(namespace)).await.unwrap();
    };
    for round in 0..5 {
        // Each a form of its own, that is never asked for again, with half a MiB of values.
        let own = |n: usize| {
            let shape = Shape::of(&format!(r#"sum by (pod) (x{round}_{n}{{a="v"}})"#));
            Shape { own: Arc::from([vec!["v".to_owned(); 20_000]]), ..shape }
        };
        join_all((0..40).map(|n| ask("greedy", own(n)))).await;
        let greedy = groups.remembered("greedy");
        assert!((3 << 20..=USERS_REMEMBERED / 2).contains(&greedy), "{greedy}");
        ask("good", Shape::of(&of(round))).await;
        assert!(groups.remembered("good") > 0);
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!((groups.remembered("greedy"), groups.remembered("good")), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_a_form_is_not_forgotten_for_one_namespaces_many() {
    let (groups, asked) = groups(|_| none());
    let form = |n: usize| Shape::of(&format!(r#"x{n}{{a!="{}"}}"#, "v".repeat(30_000)));
    let forms: Vec<Shape> = (0..1_000).map(form).collect();
    get(&groups, &of(0)).await.unwrap();
    for _ in 0..3 {
        for shape in &forms {
            groups.look(shape, &Asker::user("greedy"));
        }
    }
    asked.lock().unwrap().clear();
    get(&groups, &of(0)).await.unwrap();
    assert_eq!(asked.lock().unwrap().len(), 0);
}

/// A form of a user's own query that takes 30 KB.
fn large(name: &str) -> Shape {
    Shape::of(&format!(r#"sum by (pod) ({name}{{a!="{}",app="a"}})"#, "v".repeat(30_000)))
}

#[tokio::test(start_paused = true)]
async fn users_forms_leave_those_of_templates_half_of_the_room_however_many_namespaces_ask() {
    let (groups, asked) = groups(|_| none());
    for namespace in 0..8 {
        let asker = Asker::user(&format!("greedy-{namespace}"));
        let forms: Vec<Shape> =
            (0..300_usize >> namespace).map(|n| large(&format!("x{namespace}_{n}"))).collect();
        for _ in 0..10 {
            forms.iter().for_each(|shape| groups.look(shape, &asker));
        }
    }
    let template = Asker::of("shop");
    let forms: Vec<Shape> = (0..100).map(|n| large(&format!("y{n}"))).collect();
    for _ in 0..2 {
        join_all(forms.iter().map(|shape| groups.get(shape, &template))).await;
        groups.look(&forms[0], &template);
    }
    assert_eq!(asked.lock().unwrap().len(), forms.len());
}

#[tokio::test(start_paused = true)]
async fn a_users_form_that_finds_no_room_is_asked_for_once_a_round() {
    let (groups, asked) = groups(|_| none());
    let greedy = Asker::user("greedy");
    for n in 0..300 {
        groups.look(&large(&format!("x{n}")), &greedy);
    }
    let query =
        |app: usize| format!(r#"sum by (pod) (y{{a!="{}",app="a{app}"}})"#, "v".repeat(30_000));
    let shapes: Vec<Arc<Shape>> = (0..10).map(|app| Arc::new(Shape::of(&query(app)))).collect();
    for _ in 0..3 {
        let again: Vec<_> =
            shapes.iter().map(|shape| groups.asked(shape.clone(), greedy.clone())).collect();
        super::groups::Asked::again(&again);
        let answers = join_all(shapes.iter().map(|shape| groups.get(shape, &greedy))).await;
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(std::mem::take(&mut *asked.lock().unwrap()).len(), 1);
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_dropped_once_it_is_too_old_to_be_used() {
    let answered = Arc::new(Mutex::new(Weak::new()));
    let told = answered.clone();
    let (groups, _) = groups(move |_| {
        let answer = none();
        *told.lock().unwrap() = Arc::downgrade(answer.as_ref().unwrap());
        answer
    });
    let kept = || answered.lock().unwrap().upgrade().is_some();
    drop(get(&groups, "x").await);
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert!(kept());
    tokio::time::sleep(Duration::from_millis(110)).await;
    assert!(!kept());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_finds_no_room_among_one_namespaces_bytes_is_asked_for_by_each() {
    let run: Run = Arc::new(|_, flows: Vec<Flow>| {
        let full = flows.contains(&Flow::User("greedy".into()));
        let answer = if full { fails(Error::Memory { limit: 1 }) } else { none() };
        std::future::ready(answer).boxed()
    });
    let groups = Arc::new(Groups::new(Duration::from_secs(1), run));
    let ask = async |namespace: &str| {
        let query = format!(r#"sum by (pod) (x{{namespace="{namespace}"}})"#);
        groups.get(&Shape::of(&query), &Asker::user(namespace)).await
    };
    for _ in 0..3 {
        let (greedy, good, other) = tokio::join!(ask("greedy"), ask("good"), ask("other"));
        assert!(greedy.is_err() && good.is_ok() && other.is_ok());
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_an_answer_is_read_fails_that_metric_alone() {
    let (groups, _) = groups(|query| match query.contains("bad") {
        true => panic!("a fault of our own"),
        false => none(),
    });
    for _ in 0..2 {
        assert!(get(&groups, "bad").await.is_err());
        assert!(get(&groups, "good").await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_long_for_a_proxy_is_asked_in_parts() {
    let (groups, asked) = groups(|query| match query.len() > 200 {
        true => fails(Error::TooLong { status: 413, message: String::new() }),
        false => none(),
    });
    assert!(all(&groups, 0..100).await.iter().all(Result::is_ok));
    tokio::time::sleep(Duration::from_secs(15)).await;
    asked.lock().unwrap().clear();
    assert!(all(&groups, 0..100).await.iter().all(Result::is_ok));
    assert!(asked.lock().unwrap().iter().all(|query| query.len() <= 200));
}

/// A server that answers a path and its form as told, and what it was asked.
async fn server(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> (Client, Asked) {
    // Others may have installed it before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let asked = Asked::default();
    type Told = Arc<dyn Fn(&str) -> String + Send + Sync>;
    let told: Told = Arc::new(answer);
    let handle = async |State((asked, told)): State<(Asked, Told)>, uri: Uri, form: RawForm| {
        let text = format!("{uri} {}", String::from_utf8_lossy(&form.0));
        let text: String = reqwest::Url::parse(&format!("http://h/?{text}"))
            .map(|url| url.query_pairs().map(|(k, v)| format!("{k}={v} ")).collect())
            .unwrap_or(text);
        asked.lock().unwrap().push(text.clone());
        told(&text)
    };
    let router = Router::new().fallback(handle).with_state((asked.clone(), told));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (Client::new(Options::new(&url)).unwrap(), asked)
}

fn vector(result: &str, more: &str) -> String {
    format!(r#"{{"status":"success","data":{{"resultType":"vector","result":[{result}]}}{more}}}"#)
}

fn store(client: Client) -> Store {
    Store::new(client, Duration::from_secs(1))
}

async fn pods(store: &Store, name: &str) -> Result<ObjectSamples, MetricError> {
    let metric = PodMetric { metric: name.to_owned(), labels: Default::default(), query: None };
    store.pods(&Config::default().pod_queries, &metric, "shop", false).await
}

#[tokio::test]
async fn a_counter_is_never_read_raw_whatever_metadata_says() {
    let (client, asked) = server(|text| match text.contains("metadata") {
        true => r#"{"status":"success","data":{}}"#.to_owned(),
        false => vector("", ""),
    })
    .await;
    let store = store(client);
    for name in ["http_request_duration_seconds_count", "x_sum", "x_bucket", "x_total"] {
        asked.lock().unwrap().clear();
        pods(&store, name).await.unwrap();
        let asked = asked.lock().unwrap();
        assert!(asked.len() == 1 && asked[0].contains("rate("), "{asked:#?}");
    }
}

#[tokio::test]
async fn a_type_that_is_not_known_is_asked_for_once_a_minute_and_not_each_round() {
    let (client, asked) = server(|text| match text.contains("metadata") {
        true => r#"{"status":"success","data":{}}"#.to_owned(),
        false => vector("", ""),
    })
    .await;
    let store = store(client);
    join_all((0..20).map(async |_| pods(&store, "queue").await.unwrap())).await;
    pods(&store, "queue").await.unwrap();
    pods(&store, "job:queue:sum").await.unwrap();
    let asked = asked.lock().unwrap();
    let metadata: Vec<_> = asked.iter().filter(|text| text.contains("metadata")).collect();
    assert_eq!(metadata.len(), 1, "{metadata:#?}");
}

#[tokio::test]
async fn a_type_that_was_known_outlives_an_empty_answer_and_an_outage() {
    let says = Arc::new(Mutex::new(r#"{"data":{"hits":[{"type":"counter"}]}}"#));
    let told = says.clone();
    let (client, _) = server(move |_| told.lock().unwrap().to_string()).await;
    let kinds = Kinds::new(client);
    for answer in [None, Some(r#"{"data":{}}"#), Some("starting")] {
        if let Some(answer) = answer {
            *says.lock().unwrap() = answer;
        }
        kinds.age();
        assert_eq!(kinds.of("hits").await, Ok(Some(MetricKind::Counter)), "{answer:?}");
    }
    // What was never known can't be guessed while it can't be asked for.
    assert!(kinds.of("others").await.is_err());
}

#[tokio::test]
async fn a_part_of_an_answer_is_no_answer() {
    let series = r#"{"metric":{"pod":"a"},"value":[1700000000,"3"]}"#;
    for (more, whole) in [
        (r#","warnings":["No StoreAPIs matched for this query"]"#, false),
        (r#","isPartial":true"#, false),
        (r#","isPartial":false,"warnings":[]"#, true),
        (r#","warnings":["PromQL warning: quantile value should be between 0 and 1 (1:2)"]"#, true),
        (r#","infos":["PromQL info: metric might not be a counter (1:6)"]"#, true),
        (r#","warnings":["3 more warning annotations omitted"]"#, false),
    ] {
        let (client, _) = server(move |_| vector(series, more)).await;
        let answer = pods(&store(client), "x_total").await;
        assert_eq!(answer.is_ok(), whole, "{more}");
        if let Err(error) = answer {
            assert!(error.to_string().contains("part of"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_number_that_does_not_fit_is_no_sample() {
    let value = |value: &str| {
        format!(r#"{{"metric":{{"pod":"{value}","namespace":"shop"}},"value":[1,"{value}"]}}"#)
    };
    let all = ["1e16", "-1e16", "1e300", "1.7e18", "9e15", "5"].map(value).join(",");
    let (client, _) = server(move |_| vector(&all, "")).await;
    let found = pods(&store(client), "x_total").await.unwrap();
    let names: Vec<&str> = found.samples.iter().map(|sampled| sampled.label("pod")).collect();
    assert_eq!(names, ["9e15", "5"]);
}

#[tokio::test]
async fn a_native_histogram_is_said_to_be_one() {
    let mixed = r#"{"metric":{"pod":"a","namespace":"shop"},"value":[1,"3"]},
        {"metric":{"pod":"b","namespace":"shop"},"histogram":[1,{"count":"6","sum":"2","buckets":[]}]}"#;
    let (client, _) = server(|_| vector(mixed, "")).await;
    let error = pods(&store(client), "x_total").await.err().unwrap().to_string();
    assert!(error.contains("histogram_quantile"), "{error}");
}

#[tokio::test]
async fn a_token_that_is_refused_is_no_prometheus_that_serves() {
    use axum::http::StatusCode;
    let _ = rustls::crypto::ring::default_provider().install_default();
    for (status, serves) in [(401, false), (403, false), (302, false), (500, false), (422, true)] {
        let status = StatusCode::from_u16(status).unwrap();
        let router = Router::new().fallback(async move || (status, "no"));
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = Client::new(Options::new(&url)).unwrap();
        assert!(client.query("up", &[]).await.is_err());
        assert_eq!(client.failing_for().is_none(), serves, "{status}");
    }
}

#[tokio::test]
async fn users_queries_have_less_time_and_smaller_answers() {
    let long = format!(r#","pad":"{}""#, "x".repeat(9 << 20));
    let (client, asked) = server(move |_| vector("", &long)).await;
    assert!(client.query("up", &[Flow::Shared]).await.is_ok());
    let error = client.query("up", &[Flow::User("shop".into())]).await.err().unwrap();
    assert!(error.to_string().contains("the most of a user's own query"), "{error}");
    let asked = asked.lock().unwrap();
    assert!(asked[0].contains("timeout=30000ms") && !asked[0].contains("limit="), "{asked:?}");
    assert!(asked[1].contains("timeout=15000ms") && asked[1].contains("limit=50000"), "{asked:?}");
    assert!(asked.iter().all(|text| text.contains("partial_response=false")));
}

#[tokio::test]
async fn an_answer_as_large_as_may_be_is_read_and_leaves_others_room_while_it_is_kept() {
    let series = |n: usize| {
        let [pod, path] = [format!("pod-{n:050}"), format!("/path/{n:040}")];
        format!(r#"{{"metric":{{"pod":"{pod}","path":"{path}"}},"value":[1700000000.123,"12.5"]}}"#)
    };
    let all: Vec<String> = (0..49_000).map(series).collect();
    let body = vector(&all.join(","), "");
    assert!((7 << 20..8 << 20).contains(&body.len()), "{}", body.len());
    let small = vector(&all[..20_000].join(","), "");
    let (client, _) = server(move |text| match text.contains("small") {
        true => small.clone(),
        false => body.clone(),
    })
    .await;
    let get = async |namespace: &str, query: &str| {
        let body = client.query(query, &[Flow::User(namespace.into())]).await?;
        Table::holding(body)
    };
    let kept = get("greedy", "large").await.unwrap();
    // A second would leave others nothing.
    assert!(matches!(get("greedy", "large").await, Err(Error::Memory { .. })));
    assert_eq!(get("good", "small").await.unwrap().series(), 20_000);
    drop(kept);
    assert_eq!(get("greedy", "large").await.unwrap().series(), 49_000);
}

#[tokio::test]
async fn a_broken_query_asks_prometheus_once_what_is_wrong_with_it() {
    let queries = Config::default().pod_queries;
    let ask = async |store: &Store, query: &str| {
        let query = Some(query.to_owned());
        let metric = PodMetric { metric: "own".to_owned(), labels: Default::default(), query };
        store.pods(&queries, &metric, "shop", false).await.err().unwrap().to_string()
    };
    let (client, asked) = server(|text| match text.contains("[5m*2]") {
        true => r#"{"status":"success","data":"formatted"}"#.to_owned(),
        false => {
            r#"{"status":"error","errorType":"bad_data","error":"1:5: parse error"}"#.to_owned()
        }
    })
    .await;
    let store = store(client);
    for _ in 0..3 {
        // What our parser alone refuses is said to be so.
        let error = ask(&store, "rate(x[5m*2])").await;
        assert!(error.contains("Plimsoll's own parser"), "{error}");
        // What is out of bounds is no question for Prometheus.
        let error = ask(&store, &"-".repeat(8_000)).await;
        assert!(error.contains("1:101: the query is nested"), "{error}");
        let error = ask(&store, "info(own)").await;
        assert!(error.contains("info()"), "{error}");
        // Nor is what our lexer does not read, and is of any depth.
        let error = ask(&store, &("(".repeat(4_000) + "1_0" + &")".repeat(4_000))).await;
        assert!(error.contains("the query of own can't be run"), "{error}");
    }
    assert_eq!(asked.lock().unwrap().len(), 1, "{asked:#?}");
}

#[tokio::test]
async fn prometheus_is_not_asked_each_round_what_is_wrong_where_it_does_not_say() {
    let (client, asked) = server(|_| "x".repeat(9 << 20)).await;
    let store = store(client);
    let query = Some("rate(x[5m*2])".to_owned());
    let metric = PodMetric { metric: "own".to_owned(), labels: Default::default(), query };
    for _ in 0..3 {
        let queries = Config::default().pod_queries;
        assert!(store.pods(&queries, &metric, "shop", false).await.is_err());
    }
    assert_eq!(asked.lock().unwrap().len(), 1);
}
