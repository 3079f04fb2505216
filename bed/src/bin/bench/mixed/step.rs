//! How long it takes from a step of the load until the scale is written.

use super::mix::App;
use crate::world::World;
use bed::random::Random;
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};

/// By what the load is multiplied.
const FACTOR: f64 = 3.0;
/// The time that the steps are spread over: scrapes, rounds and steps have nothing in common.
const SPREAD: Duration = Duration::from_secs(15);
/// How long a scale may take: as long as the longest window needs to show the step, and KEDA to poll.
const LATEST: Duration = Duration::from_secs(105);
/// One of so many workloads is stepped.
const ONE_OF: usize = 10;

/// The seconds from each step to its scale, sorted; one that was not written by then counts as [`LATEST`].
#[derive(Clone, Debug, Default)]
pub struct Steps {
    pub seconds: Vec<f64>,
    pub missing: usize,
}

/// Every tenth workload in the order of kinds and windows: the same for each side.
pub fn choose(apps: &[App]) -> Vec<App> {
    let mut sorted: Vec<&App> = apps.iter().collect();
    sorted.sort_by_key(|app| (app.kind, app.window.map(|(_, seconds, _)| seconds), app.number));
    sorted.into_iter().step_by(ONE_OF).cloned().collect()
}

/// Steps the load of these workloads, each at a time of its own.
pub async fn measure(world: &World, apps: &[App], seed: u64) -> Steps {
    let mut random = Random(seed);
    let start = Instant::now();
    let at = |_: &App| start + SPREAD.mul_f64(random.below(10_000) as f64 / 10_000.0);
    let times: Vec<Instant> = apps.iter().map(at).collect();
    let places = apps.iter().enumerate().map(|(place, app)| (app.name(), place)).collect();
    let step = async |(app, at): (&App, &Instant)| {
        sleep_until(*at).await;
        raise_load(world, app).await;
    };
    let all = futures::future::join_all(apps.iter().zip(&times).map(step));
    let (written, _) = futures::join!(written(world, places, start + SPREAD + LATEST), all);
    let took = |(at, written): (&Instant, &Option<Instant>)| {
        written.map(|written| written - *at).filter(|took| *took <= LATEST)
    };
    let took: Vec<Option<Duration>> = times.iter().zip(&written).map(took).collect();
    let seconds = took.iter().map(|took| took.unwrap_or(LATEST).as_secs_f64());
    let mut seconds: Vec<f64> = seconds.collect();
    seconds.sort_unstable_by(f64::total_cmp);
    Steps { seconds, missing: took.iter().filter(|took| took.is_none()).count() }
}

/// When the scale of each of these workloads was first raised.
async fn written(
    world: &World,
    places: BTreeMap<String, usize>,
    deadline: Instant,
) -> Vec<Option<Instant>> {
    let mut times = vec![None; places.len()];
    let api: Api<Deployment> = Api::all(world.cluster.client.clone());
    let list = api.list(&ListParams::default().limit(1)).await.expect("a list");
    let from = list.metadata.resource_version.unwrap_or_default();
    let changes = api.watch(&WatchParams::default(), &from).await.expect("a watch");
    let mut changes = std::pin::pin!(changes);
    while times.contains(&None) {
        let event = match timeout_at(deadline, changes.next()).await {
            Ok(event) => event.expect("a watch that lasts").expect("an event"),
            Err(_) => break,
        };
        let WatchEvent::Modified(deployment) = event else { continue };
        let replicas = deployment.spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let place = deployment.metadata.name.and_then(|name| places.get(&name).copied());
        if let Some(place) = place.filter(|_| replicas > world.size.pods as i32) {
            times[place].get_or_insert_with(Instant::now);
        }
    }
    times
}

/// Has the scales as they were.
pub async fn reset_scales(world: &World) {
    let text = world.cluster.raw("/apis/apps/v1/deployments").await.expect("a list");
    let list: Value = serde_json::from_str(&text).expect("JSON");
    let items = list["items"].as_array().into_iter().flatten();
    let scaled: Vec<&Value> =
        items.filter(|item| item["spec"]["replicas"] != world.size.pods).collect();
    let reset = async |index: usize| {
        let of = |field: &str| scaled[index]["metadata"][field].as_str().unwrap_or_default();
        let path =
            format!("/apis/apps/v1/namespaces/{}/deployments/{}", of("namespace"), of("name"));
        world.send("PATCH", &path, json!({"spec": {"replicas": world.size.pods}})).await;
    };
    world.each("resets of scales", scaled.len(), reset).await;
}

async fn raise_load(world: &World, app: &App) {
    let (name, port) = (app.name(), world.series_port);
    let url = format!("http://127.0.0.1:{port}/load?app={name}&factor={FACTOR}");
    let response = reqwest::Client::new().put(url).send().await;
    response.and_then(reqwest::Response::error_for_status).expect("the load is set");
}

impl Steps {
    /// The time that this part of them took at most.
    pub fn quantile(&self, part: f64) -> f64 {
        let last = self.seconds.len().saturating_sub(1);
        let index = (self.seconds.len() as f64 * part) as usize;
        self.seconds.get(index.min(last)).copied().unwrap_or(f64::NAN)
    }
}
