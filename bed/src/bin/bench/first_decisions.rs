//! When each autoscaler was decided on for the first time.

use crate::decided::AUTOSCALERS;
use crate::load;
use crate::world::World;
use jiff::{Timestamp, Unit};
use serde_json::Value;
use std::collections::HashMap;

/// When the last autoscaler was decided on for the first time, in seconds after the start: by the ledger, or at the
/// latest by the statuses where there is none. Else why it is not known.
pub async fn last(world: &World, port: u16, begun: Timestamp) -> Result<f64, String> {
    let (first, latest) = match of_ledger(world, port).await {
        Some(first) => (first, 0.0),
        // Their times are rounded down to a second.
        None => (of_statuses(world).await?, 1.0),
    };
    if first.len() != world.size.autoscalers {
        return Err(format!("{} of {} have a decision", first.len(), world.size.autoscalers));
    }
    let last = first.into_values().max().ok_or("there are no autoscalers")?;
    let after = (last - begun).total(Unit::Second).map_err(|error| error.to_string())?;
    Ok(after + latest)
}

/// The first decision of each in the ledger of the replica at a port; none if there is no ledger.
async fn of_ledger(world: &World, port: u16) -> Option<HashMap<String, Timestamp>> {
    let path = "/apis/decisions.plimsoll.dev/v1alpha1/decisions?limit=1000";
    let (client, mut first) = (load::client(world), HashMap::new());
    let mut token = String::new();
    loop {
        let url = format!("https://127.0.0.1:{port}{path}&continue={token}");
        let response = client.get(url).send().await.ok()?.error_for_status().ok()?;
        let list: Value = response.text().await.ok()?.parse().ok()?;
        for decision in list["items"].as_array()? {
            let metadata = &decision["metadata"];
            let name = format!("{} {}", metadata["namespace"], metadata["labels"]);
            let time: Timestamp = decision["firstTime"].as_str()?.parse().ok()?;
            let known = first.entry(name).or_insert(time);
            *known = time.min(*known);
        }
        match list["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
            Some(next) => token = next.replace('/', "%2F"),
            None => return Some(first),
        }
    }
}

/// When the first condition of each was set, which is at its first decision.
async fn of_statuses(world: &World) -> Result<HashMap<String, Timestamp>, String> {
    let text = world.cluster.raw(AUTOSCALERS).await?;
    let list: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let of = |item: &Value| {
        let conditions = item["status"]["conditions"].as_array()?.iter();
        let times = conditions.filter_map(|condition| condition["lastTransitionTime"].as_str());
        let first = times.filter_map(|time| time.parse().ok()).min()?;
        Some((format!("{} {}", item["metadata"]["namespace"], item["metadata"]["name"]), first))
    };
    Ok(list["items"].as_array().into_iter().flatten().filter_map(of).collect())
}
