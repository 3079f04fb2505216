//! The format of the corpus (`tests/data/FORMAT.md`).

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerSpec;
use plimsoll::k8s::LabelSet;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scenario {
    pub title: Option<String>,
    #[serde(default)]
    pub gates: Vec<String>,
    pub config: ScenarioConfig,
    pub namespace: String,
    pub name: String,
    #[serde(default)]
    pub other_autoscalers: Vec<OtherAutoscaler>,
    #[serde(default)]
    pub pod_labels: LabelSet,
    #[serde(default)]
    pub templates: HashMap<String, Template>,
    pub ticks: Vec<Tick>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScenarioConfig {
    pub tolerance: f64,
    pub downscale_stabilization_seconds: i32,
    pub cpu_initialization_seconds: i64,
    pub initial_readiness_delay_seconds: i64,
}

#[derive(Deserialize)]
pub struct OtherAutoscaler {
    pub name: String,
    pub selector: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    #[serde(default)]
    pub containers: Vec<TemplateContainer>,
    pub pod_requests: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
pub struct TemplateContainer {
    pub name: String,
    #[serde(default)]
    pub requests: BTreeMap<String, String>,
    #[serde(default)]
    pub sidecar: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tick {
    pub t: i64,
    pub spec: Option<HorizontalPodAutoscalerSpec>,
    pub scale: TickScale,
    pub pods: Option<Vec<TickPod>>,
    pub resource: Option<Response<ResourceItem>>,
    #[serde(default)]
    pub custom: HashMap<String, Response<CustomItem>>,
    #[serde(default)]
    pub object: HashMap<String, ObjectResponse>,
    #[serde(default)]
    pub external: HashMap<String, ExternalResponse>,
    pub update_scale_error: Option<String>,
    pub update_status_error: Option<String>,
    pub out: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TickScale {
    #[serde(default)]
    pub spec_replicas: i32,
    #[serde(default)]
    pub status_replicas: i32,
    #[serde(default)]
    pub selector: String,
    pub error: Option<String>,
}

#[derive(Deserialize)]
pub struct TickPod {
    pub name: String,
    pub template: Option<String>,
    pub labels: Option<LabelSet>,
    pub phase: Option<String>,
    pub start: Option<i64>,
    pub ready: Option<TickReady>,
    #[serde(default)]
    pub deleting: bool,
}

#[derive(Deserialize)]
pub struct TickReady {
    pub status: String,
    pub since: i64,
}

#[derive(Deserialize)]
pub struct Response<T> {
    pub items: Option<Vec<T>>,
    pub error: Option<String>,
}

#[derive(Deserialize)]
pub struct ResourceItem {
    pub pod: String,
    pub time: i64,
    #[serde(default)]
    pub window: i64,
    pub containers: Option<Vec<ResourceContainer>>,
}

#[derive(Deserialize)]
pub struct ResourceContainer {
    pub name: String,
    #[serde(default)]
    pub usage: BTreeMap<String, String>,
}

#[derive(Deserialize)]
pub struct CustomItem {
    pub pod: String,
    pub value: String,
    pub time: i64,
    pub window: Option<i64>,
}

#[derive(Deserialize)]
pub struct ObjectResponse {
    pub value: Option<String>,
    pub error: Option<String>,
}

#[derive(Deserialize)]
pub struct ExternalResponse {
    pub values: Option<Vec<String>>,
    pub error: Option<String>,
}
