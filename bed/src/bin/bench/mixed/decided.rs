//! Whether a side decides for all autoscalers, by all of their metrics.

use super::side::Side;
use crate::world::World;
use bed::eventually;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long after its start a side may take.
const DECIDED: Duration = Duration::from_secs(180);

/// Waits until each autoscaler has a value of its metric and wants the replicas that there are; those
/// of workloads whose load was stepped before may want more. Panics with what is wrong otherwise.
pub async fn wait(world: &World, side: Side, stepped: &BTreeSet<String>) {
    let what = format!("{} decides for all autoscalers", side.name());
    eventually(&what, DECIDED, async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let text = world.cluster.raw(side.path()).await?;
        let list: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        if items.len() != world.size.autoscalers {
            return Err(format!("there are {} of {}", items.len(), world.size.autoscalers));
        }
        let wrong: Vec<String> = items
            .iter()
            .filter_map(|item| {
                let name = item["spec"]["scaleTargetRef"]["name"].as_str().unwrap_or_default();
                let wrong = wrong(&item["status"], world.size.pods, stepped.contains(name))?;
                Some(format!("{name}: {wrong}; {}", item["spec"]))
            })
            .collect();
        match wrong.as_slice() {
            [] => Ok(()),
            wrong => {
                let first: Vec<&str> = wrong.iter().take(5).map(String::as_str).collect();
                Err(format!("{} do not, such as:\n{}", wrong.len(), first.join("\n")))
            }
        }
    })
    .await;
}

/// What is wrong with the status of an autoscaler.
fn wrong(status: &Value, pods: usize, was_stepped: bool) -> Option<String> {
    for kind in ["AbleToScale", "ScalingActive"] {
        let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        match conditions.iter().find(|condition| condition["type"] == kind) {
            Some(condition) if condition["status"] == "True" => {}
            Some(condition) => return Some(condition.to_string()),
            None => return Some(format!("no condition {kind}")),
        }
    }
    let desired = status["desiredReplicas"].as_u64().unwrap_or(0);
    let as_is = desired == pods as u64 || was_stepped && desired > pods as u64;
    (!as_is || status["currentMetrics"][0].is_null())
        .then(|| format!("it wants {desired} replicas by {}", status["currentMetrics"]))
}
