//! Rules while series are not listed yet, or for metrics that do not exist.

use super::{Dependencies, ListingSettings, MetricName, Rule, RuleSet, Rules, SeriesQuery};
use crate::clock::Clock;
use crate::k8s::Selector;
use crate::prometheus::{Client, Options};
use crate::promql::template::Template;
use crate::samples::Store;
use crate::supervise::Spawner;
use crate::watch::{Cluster, Resources};
use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Rules for external metrics, with a server without any series, and the number of
/// listings.
async fn rules() -> (Rules, Arc<AtomicUsize>) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listed = Arc::new(AtomicUsize::new(0));
    let handle = async |State(listed): State<Arc<AtomicUsize>>, uri: Uri| {
        listed.fetch_add(usize::from(uri.path().ends_with("/series")), Ordering::Relaxed);
        r#"{"status":"success","data":[]}"#
    };
    let router = Router::new().fallback(handle).with_state(listed.clone());
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let prometheus = Client::new(Options::new(&url)).unwrap();
    let nothing = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Ok::<_, Infallible>(http::Response::new(kube::client::Body::empty()))
    });
    let client = kube::Client::new(nothing, "default");
    let rule = Rule {
        series: SeriesQuery { backend: None, selector: "queue".to_owned() },
        filters: Vec::new(),
        name: MetricName::new("", "").unwrap(),
        labels: Default::default(),
        namespaced: false,
        namespace: None,
        query: Template::parse("<<.Series>>").unwrap(),
    };
    let rules = Rules::new(
        RuleSet { external: vec![rule], ..RuleSet::default() },
        ListingSettings {
            interval: Duration::from_secs(600),
            max_age: Duration::from_secs(600),
            sample_max_age: Duration::from_secs(1),
        },
        Dependencies {
            samples: Store::new(prometheus.clone(), Duration::from_secs(1), Spawner::unowned()),
            prometheus,
            cluster: Cluster::default(),
            resources: Resources::new(client.clone()),
            clock: Clock::default(),
            client,
            spawner: Spawner::unowned(),
        },
    );
    (rules, listed)
}

#[tokio::test]
async fn a_metric_that_does_not_exist_causes_one_listing_and_not_one_each_time() {
    let (rules, listed) = rules().await;
    for round in 0..3 {
        assert!(rules.external("shop", "nosuch", &Selector::default()).await.is_err());
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
    let _ = rules.external("shop", "nosuch", &Selector::default()).await;
    assert!(rules.has_synced());
}
