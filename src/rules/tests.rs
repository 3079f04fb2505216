//! Rules while series are not listed yet, or for metrics that do not exist.

use super::rule::{MetricName, ResourceLabels, SeriesQuery};
use super::{
    Dependencies, ListingSettings, ObjectMetric, ObjectSelection, Rule, RuleQueryError, RuleSet,
    Rules,
};
use crate::clock::{Clock, Dated, WallClock};
use crate::config::Config;
use crate::k8s::Selector;
use crate::prometheus::{BodyStream, Client, Options, Transport, TransportError};
use crate::promql::query::PodQueries;
use crate::promql::template::Template;
use crate::reload::Reloadable;
use crate::samples::{Reader, Store};
use crate::supervise::Spawner;
use crate::telemetry::Metrics;
use crate::watch::{Cluster, GroupResource, MetricRuleRecord, ObjectKey, Resources};
use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Rules for external metrics, with a server without any series, and the number of
/// listings.
async fn rules() -> (Rules, Arc<AtomicUsize>) {
    let (rules, listed, _) = rules_by(Clock::default()).await;
    (rules, listed)
}

/// The same by a clock, with the time since when series were listed last, in seconds.
async fn rules_by(clock: Clock) -> (Rules, Arc<AtomicUsize>, Arc<Mutex<Option<f64>>>) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listed = Arc::new(AtomicUsize::new(0));
    let since = Arc::new(Mutex::new(None));
    let handle = async |State((listed, since)): State<Shown>, uri: Uri| {
        let start =
            uri.query().and_then(|query| query.split('&').find_map(|p| p.strip_prefix("start=")));
        if let Some(start) = start {
            *since.lock().unwrap() = start.parse().ok();
        }
        listed.fetch_add(usize::from(uri.path().ends_with("/series")), Ordering::Relaxed);
        r#"{"status":"success","data":[]}"#
    };
    let router = Router::new().fallback(handle).with_state((listed.clone(), since.clone()));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let prometheus = Client::new(Options { get: true, ..Options::new(&url) }).unwrap();
    let rules = rules_of(prometheus, clock, &["queue"]);
    (rules, listed, since)
}

/// Rules for external metrics of a server, by a clock; of these series.
fn rules_of(prometheus: Client, clock: Clock, selectors: &[&str]) -> Rules {
    rules_in(Cluster::default(), prometheus, clock, selectors, pod_queries())
}

/// The same in a cluster.
fn rules_in(
    cluster: Cluster,
    prometheus: Client,
    clock: Clock,
    selectors: &[&str],
    pod_queries: Reloadable<PodQueries>,
) -> Rules {
    let discovery = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        let pods = serde_json::json!({"items": [{"versions": [{"version": "v1", "resources": [
            {"resource": "namespaces", "responseKind": {"kind": "Namespace"}, "scope": "Cluster"},
            {"resource": "pods", "responseKind": {"kind": "Pod"}, "scope": "Namespaced"}]}]}]});
        let body = kube::client::Body::from(pods.to_string().into_bytes());
        Ok::<_, Infallible>(http::Response::new(body))
    });
    let client = kube::Client::new(discovery, "default");
    let rule = |selector: &&str| Rule {
        series: SeriesQuery { backend: None, selector: (*selector).to_owned() },
        filters: Vec::new(),
        name: MetricName::new("", "", 1 << 20).unwrap(),
        labels: Default::default(),
        namespaced: false,
        namespace: None,
        query: Template::parse("<<.Series>>").unwrap(),
    };
    Rules::new(
        RuleSet { external: selectors.iter().map(rule).collect(), ..RuleSet::default() },
        ListingSettings {
            interval: Duration::from_secs(600),
            max_age: Duration::from_secs(600),
            sample_max_age: Duration::from_secs(1),
        },
        Dependencies {
            samples: Store::new(prometheus.clone(), Duration::from_secs(1), Spawner::unowned()),
            prometheus,
            cluster,
            resources: Resources::new(client.clone()),
            clock,
            client,
            spawner: Spawner::unowned(),
            pod_queries,
        },
    )
}

fn pod_queries() -> Reloadable<PodQueries> {
    Reloadable::new(Config::default().pod_queries)
}

type Shown = (Arc<AtomicUsize>, Arc<Mutex<Option<f64>>>);

/// A listing from a time that Prometheus has not reached yet would find no series, and so no metric.
#[tokio::test]
async fn a_wall_clock_that_is_ahead_hides_no_series() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let clock = Clock::with_wall(WallClock::new(move || now + Duration::from_secs(7_200)));
    let date = async |_: http::Request<()>| {
        http::Response::builder().header("date", "Fri, 15 Jan 2027 08:00:00 GMT").body(())
    };
    let mut service = Dated::new(tower::service_fn(date), clock.clone());
    tower::Service::call(&mut service, http::Request::new(())).await.unwrap();
    let (rules, _, since) = rules_by(clock).await;
    let _ = rules.external("shop", "nosuch", &Selector::default(), Reader::Client).await;
    let since = since.lock().unwrap().expect("series were listed");
    assert!((1_799_999_400.0..1_799_999_402.0).contains(&since), "since {since}");
}

/// A Prometheus that is away until a time, and then has one series.
#[derive(Debug)]
struct AwayUntil(Instant);

impl Transport for AwayUntil {
    fn send(
        &self,
        _: http::Request<Bytes>,
    ) -> BoxFuture<'static, Result<http::Response<BodyStream>, TransportError>> {
        let away = Instant::now() < self.0;
        async move {
            if away {
                return Err(TransportError::Unreachable("connection refused".to_owned()));
            }
            let body = r#"{"status":"success","data":[{"__name__":"queue"}]}"#;
            let body = futures::stream::once(async move { Ok(Bytes::from(body)) });
            Ok(http::Response::new(body.boxed()))
        }
        .boxed()
    }
}

/// Not at the next listing, which may be ten minutes away: until then no external metric is known.
#[tokio::test(start_paused = true)]
async fn a_listing_that_failed_is_repeated_soon() {
    let transport = Arc::new(AwayUntil(Instant::now() + Duration::from_secs(20)));
    let prometheus = Client::over(transport, Options::new("http://prometheus")).unwrap();
    let rules = rules_of(prometheus, Clock::default(), &["queue"]);
    let following = tokio::spawn(rules.clone().follow());
    let known = async {
        while rules.read(|registry| registry.external("queue").is_none()) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), known).await.is_ok());
    following.abort();
}

/// A Prometheus that refuses one selector, and the selectors that it was asked for, in order.
#[derive(Debug, Default)]
struct Refusing(Arc<Mutex<Vec<&'static str>>>);

impl Transport for Refusing {
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'static, Result<http::Response<BodyStream>, TransportError>> {
        let refused = String::from_utf8_lossy(request.body()).contains("bad");
        self.0.lock().unwrap().push(if refused { "bad" } else { "queue" });
        let (status, body) = match refused {
            true => (400, r#"{"status":"error","errorType":"bad_data","error":"no"}"#),
            false => (200, r#"{"status":"success","data":[{"__name__":"queue"}]}"#),
        };
        let body = futures::stream::once(async move { Ok(Bytes::from(body)) }).boxed();
        let response = http::Response::builder().status(status).body(body).unwrap();
        futures::future::ready(Ok(response)).boxed()
    }
}

/// Listings are expensive, and Prometheus rejects an invalid query until its rule is changed.
#[tokio::test(start_paused = true)]
async fn only_the_listings_that_failed_are_repeated_and_ever_less_often() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let transport = Arc::new(Refusing(asked.clone()));
    let prometheus = Client::over(transport, Options::new("http://prometheus")).unwrap();
    let metrics = Arc::new(Metrics::default());
    let prometheus = prometheus.counted(metrics.clone());
    let rules = rules_of(prometheus, Clock::default(), &["bad", "queue"]);
    let following = tokio::spawn(rules.clone().follow());
    let asked_after = async |seconds: u64| {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let asked = std::mem::take(&mut *asked.lock().unwrap());
        ["bad", "queue"].map(|one| asked.iter().filter(|selector| **selector == one).count())
    };
    // At once, and after 15, 45, 105, 225 and 465 s.
    assert_eq!(asked_after(590).await, [6, 1]);
    assert_eq!(rules.failing().len(), 1);
    let failing = |count: usize| {
        let (text, line) =
            (metrics.prometheus_text(), format!("plimsoll_series_listings_failing {count}\n"));
        assert!(text.contains(&line), "{line}: {text}");
    };
    failing(1);
    // From then on with all others.
    assert_eq!(asked_after(3_000).await, [5, 5]);
    let text = metrics.prometheus_text();
    for (reason, count) in [("interval", 6), ("retry", 5)] {
        let line = format!("plimsoll_series_listings_total{{reason=\"{reason}\"}} {count}");
        assert!(text.contains(&line), "{line}: {text}");
    }
    failing(1);
    rules.replace(RuleSet::default());
    tokio::time::sleep(Duration::from_secs(1)).await;
    failing(0);
    following.abort();
}

#[tokio::test]
async fn a_metric_that_does_not_exist_causes_one_listing_and_not_one_each_time() {
    let (rules, listed) = rules().await;
    for round in 0..3 {
        assert!(
            rules.external("shop", "nosuch", &Selector::default(), Reader::Client).await.is_err()
        );
        if round < 2 {
            // Longer than the least time between two listings once was.
            tokio::time::sleep(Duration::from_millis(2_100)).await;
        }
    }
    assert_eq!(listed.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn until_series_were_listed_once_it_is_not_known_which_metrics_rules_give() {
    let (rules, _) = rules().await;
    assert!(!rules.has_synced());
    let _ = rules.external("shop", "nosuch", &Selector::default(), Reader::Client).await;
    assert!(rules.has_synced());
}

/// A MetricRule in a namespace.
fn put_metric_rule(cluster: &Cluster, namespace: String) {
    let spec = serde_json::json!({"seriesQuery": "x", "metricsQuery": "<<.Series>>"});
    let record = MetricRuleRecord {
        uid: namespace.clone(),
        generation: Some(1),
        created: 0,
        spec: Ok(Arc::new(serde_json::from_value(spec).unwrap())),
        status: Default::default(),
    };
    let key = ObjectKey { namespace: namespace.clone(), name: "rule".to_owned() };
    cluster.write(|index| index.put_metric_rule(key, record));
    cluster.metric_rule_changed(namespace);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_changes_all_the_time_hides_no_change_of_the_labels() {
    let prometheus = Client::over(Arc::<Refusing>::default(), Options::new("http://prometheus"));
    let (cluster, queries, clock) = (Cluster::default(), pod_queries(), Clock::default());
    let rules = rules_in(cluster.clone(), prometheus.unwrap(), clock, &["queue"], queries.clone());
    put_metric_rule(&cluster, "team".to_owned());
    rules.resources().refresh().await;
    let following = tokio::spawn(rules.clone().follow_metric_rules());
    let administrators = tokio::spawn(rules.clone().follow());
    let is_of = |selector: &str| {
        let standings = rules.metric_rules().standings();
        standings.len() == 1 && standings[0].message.contains(selector)
    };
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(is_of("x{namespace=\"team\"}"));
    let mut other = PodQueries::clone(&queries.load());
    other.namespace_label = "ns".to_owned();
    queries.replace(other);
    for _ in 0..30 {
        cluster.metric_rule_changed("busy".to_owned());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(is_of("x{ns=\"team\"}"));
    following.abort();
    administrators.abort();
}

/// kube-apiserver may be away when Plimsoll starts, and the definition of a resource may come after its series.
#[tokio::test(start_paused = true)]
async fn metrics_are_served_as_soon_as_their_resources_are_known() {
    let prometheus = Client::over(Arc::new(SeriesOfPods), Options::new("http://prometheus"));
    let (cluster, clock) = (Cluster::default(), Clock::default());
    let rules = rules_in(cluster.clone(), prometheus.unwrap(), clock, &[], pod_queries());
    let mut set = RuleSet::clone(&rules.rules());
    set.custom.push(Rule {
        series: SeriesQuery { backend: None, selector: "hits".to_owned() },
        filters: Vec::new(),
        name: MetricName::new("", "", 1 << 20).unwrap(),
        labels: ResourceLabels::new("<<.Resource>>", BTreeMap::new(), (1 << 20, 1 << 20)).unwrap(),
        namespaced: true,
        namespace: None,
        query: Template::parse("<<.Series>>").unwrap(),
    });
    rules.replace(set);
    put_metric_rule(&cluster, "team".to_owned());
    let following = [
        tokio::spawn(rules.clone().follow_resources()),
        tokio::spawn(rules.clone().follow_metric_rules()),
        tokio::spawn(rules.clone().follow()),
    ];
    let key = ObjectMetric {
        resource: GroupResource::core("pods"),
        namespaced: true,
        metric: "hits".to_owned(),
    };
    let is_known = || rules.read(|registry| registry.custom(&key).is_some());
    tokio::time::sleep(Duration::from_secs(5)).await;
    // Nothing is said of a rule while it is not known what its labels name.
    assert!(!is_known() && rules.metric_rules().standings().is_empty());
    assert!(!rules.metric_rules().has_synced("team"));
    assert!(rules.resources().refresh().await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(is_known());
    let standings = rules.metric_rules().standings();
    assert!(
        standings[0].message.contains("a rule of the administrator serves it"),
        "{standings:?}"
    );
    following.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A Prometheus with a series of pods.
#[derive(Debug)]
struct SeriesOfPods;

impl Transport for SeriesOfPods {
    fn send(
        &self,
        _: http::Request<Bytes>,
    ) -> BoxFuture<'static, Result<http::Response<BodyStream>, TransportError>> {
        let body =
            r#"{"status":"success","data":[{"__name__":"hits","namespace":"team","pod":"a"}]}"#;
        let body = futures::stream::once(async move { Ok(Bytes::from(body)) });
        futures::future::ready(Ok(http::Response::new(body.boxed()))).boxed()
    }
}

/// A Prometheus that never answers what is narrowed to a namespace, and has one series otherwise.
#[derive(Debug)]
struct SilentToTenants;

impl Transport for SilentToTenants {
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'static, Result<http::Response<BodyStream>, TransportError>> {
        if String::from_utf8_lossy(request.body()).contains("namespace") {
            return futures::future::pending().boxed();
        }
        let body = r#"{"status":"success","data":[{"__name__":"queue"}]}"#;
        let body = futures::stream::once(async move { Ok(Bytes::from(body)) });
        futures::future::ready(Ok(http::Response::new(body.boxed()))).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn the_slow_listings_of_teams_delay_none_of_the_administrators_and_fail_nothing() {
    let prometheus = Client::over(Arc::new(SilentToTenants), Options::new("http://prometheus"));
    let (prometheus, cluster) = (prometheus.unwrap(), Cluster::default());
    let clock = Clock::default();
    let rules = rules_in(cluster.clone(), prometheus.clone(), clock, &["queue"], pod_queries());
    for namespace in (0..20).map(|n| format!("team-{n}")) {
        put_metric_rule(&cluster, namespace);
    }
    rules.resources().refresh().await;
    let following = tokio::spawn(rules.clone().follow_metric_rules());
    let administrators = tokio::spawn(rules.clone().follow());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(rules.has_synced() && rules.read(|registry| registry.external("queue").is_some()));
    assert!(!rules.metric_rules().has_synced("team-7"));
    let object = async |namespace: &str| {
        let (pods, web) = (GroupResource::core("pods"), ObjectSelection::Name("web"));
        let found =
            rules.query(namespace, &pods, web, "x", &Selector::default(), Reader::Decision).await;
        found.map(|_| ()).unwrap_err()
    };
    // It may be the rule's, and no other adapter is to be asked for it.
    assert_eq!(object("team-7").await, RuleQueryError::NotListed);
    assert_eq!(object("without-rules").await, RuleQueryError::NotFound);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(rules.metric_rules().has_synced("team-7"));
    assert_eq!(object("team-7").await, RuleQueryError::NotFound);
    let standings = rules.metric_rules().standings();
    let failed = standings.iter().filter(|one| one.message.contains("can't be listed")).count();
    assert_eq!((standings.len(), failed), (20, 20));
    assert!(rules.failing().is_empty());
    following.abort();
    administrators.abort();
}

/// A Prometheus with one series of one pod, of this value.
#[derive(Debug)]
struct OnePod(u8);

impl Transport for OnePod {
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'static, Result<http::Response<BodyStream>, TransportError>> {
        let data = match request.uri().path() {
            "/api/v1/series" => {
                r#"[{"__name__":"hits","namespace":"shop","pod":"web"}]"#.to_owned()
            }
            _ => format!(
                r#"{{"resultType":"vector","result":[{{"metric":{{"namespace":"shop","pod":"web"}},"value":[1,"{}"]}}]}}"#,
                self.0
            ),
        };
        let body = Bytes::from(format!(r#"{{"status":"success","data":{data}}}"#));
        let body = futures::stream::once(async move { Ok(body) });
        futures::future::ready(Ok(http::Response::new(body.boxed()))).boxed()
    }
}

#[tokio::test]
async fn a_query_is_of_the_server_of_its_rule_though_that_is_removed_meanwhile() {
    let server =
        |value| Client::over(Arc::new(OnePod(value)), Options::new("http://prometheus")).unwrap();
    let rules = rules_in(Cluster::default(), server(1), Clock::default(), &[], pod_queries());
    rules.resources().refresh().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let of_backend = r#"rules:
- seriesQuery: hits
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
"#;
    std::fs::write(file.path(), of_backend).unwrap();
    let mut set = Config::read(file.path()).unwrap().rules;
    set.custom[0].series.backend = Some("b".to_owned());
    set.backends.insert("b".to_owned(), server(2));
    rules.replace(set);
    let (pods, web) = (GroupResource::core("pods"), ObjectSelection::Name("web"));
    let query = rules
        .query("shop", &pods, web, "hits", &Selector::default(), Reader::Client)
        .await
        .unwrap();
    rules.replace(RuleSet::default());
    let samples = rules.samples(&query).await.unwrap();
    assert_eq!(query.values(&samples).unwrap()[0].value, "2".parse().unwrap());
}
