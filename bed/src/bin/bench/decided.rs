//! Whether a side decides for all autoscalers, by all of their metrics.

use crate::world::World;
use bed::eventually;
use serde_json::Value;
use std::time::Duration;

/// The paths of the objects that say what was decided.
pub const HPAS: &str = "/apis/autoscaling/v2/horizontalpodautoscalers";
pub const AUTOSCALERS: &str = "/apis/plimsoll.dev/v1alpha1/autoscalers";

/// How long after its start a side may take.
const DECIDED: Duration = Duration::from_secs(180);

/// Waits until each autoscaler at a path has a value of its metric, and wants this number of replicas where one is
/// given. Panics with what is wrong otherwise.
pub async fn wait(world: &World, side: &str, path: &str, replicas: Option<usize>) {
    eventually(&format!("{side} decides for all autoscalers"), DECIDED, async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let text = world.cluster.raw(path).await?;
        let list: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        if items.len() != world.size.autoscalers {
            return Err(format!("there are {} of {}", items.len(), world.size.autoscalers));
        }
        let wrong: Vec<String> = items
            .iter()
            .filter_map(|item| {
                let wrong = wrong(item, replicas)?;
                Some(format!("{}: {wrong}; {}", item["metadata"]["name"], item["spec"]))
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
fn wrong(autoscaler: &Value, replicas: Option<usize>) -> Option<String> {
    let status = &autoscaler["status"];
    // kube-controller-manager does not write it.
    let observed = &status["observedGeneration"];
    if !observed.is_null() && *observed != autoscaler["metadata"]["generation"] {
        return Some(format!("generation {observed} was observed"));
    }
    for kind in ["AbleToScale", "ScalingActive"] {
        let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        match conditions.iter().find(|condition| condition["type"] == kind) {
            Some(condition) if condition["status"] == "True" => {}
            Some(condition) => return Some(condition.to_string()),
            None => return Some(format!("no condition {kind}")),
        }
    }
    let desired = status["desiredReplicas"].as_u64().unwrap_or(0) as usize;
    let as_wanted = replicas.is_none_or(|replicas| desired == replicas);
    (!as_wanted || status["currentMetrics"][0].is_null())
        .then(|| format!("it wants {desired} replicas by {}", status["currentMetrics"]))
}
