//! Changes of replicas from before the page was started, by the decision ledger: whether an autoscaler flaps.

use super::one::decisions;
use super::row::millis;
use super::rows::Rows;
use super::swings::{LOOK_BACK_MS, Swings};
use crate::time::UnixMillis;
use crate::watch::AutoscalerRef;
use futures::{StreamExt, stream};
use kube::Client;
use kube::api::ListParams;
use serde_json::Value;
use std::time::Duration;
use tokio::time::timeout;

/// The autoscalers whose decisions are read: those that scaled last.
const MAX_AUTOSCALERS: usize = 500;
/// The requests at a time.
const CONCURRENT: usize = 4;
/// How long a request may take.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// The decisions of a page, and the most of one autoscaler.
const PAGE_SIZE: u32 = 1_000;
const MAX_DECISIONS: usize = 5_000;

/// Reads the decisions of the last hour once all autoscalers are listed. What can't be read is not known, and
/// changes count from now on. Never ends.
pub async fn run(client: Client, rows: Rows) {
    while !rows.is_complete() {
        let _ = timeout(TIME_LIMIT, rows.changed()).await;
    }
    let names = rows.scaled_lately(MAX_AUTOSCALERS);
    let read = |name: AutoscalerRef| {
        let (client, rows) = (client.clone(), rows.clone());
        async move {
            let since = rows.now() - LOOK_BACK_MS;
            if let Ok(Some(swings)) = timeout(TIME_LIMIT, swings(&client, &name, since)).await {
                rows.swung(&name, swings);
            }
        }
    };
    stream::iter(names).map(read).buffer_unordered(CONCURRENT).collect::<Vec<()>>().await;
    std::future::pending().await
}

async fn swings(client: &Client, name: &AutoscalerRef, since: UnixMillis) -> Option<Swings> {
    let (api, labels) = decisions(client, name);
    let (mut swings, mut before) = (Swings::default(), None);
    let mut page = ListParams::default().labels(&labels).limit(PAGE_SIZE);
    let mut left = MAX_DECISIONS;
    // A page has fewer than were asked for where they are large.
    while left > 0 {
        let list = api.list(&page).await.ok()?;
        left = left.saturating_sub(list.items.len().max(1));
        list.items.iter().for_each(|one| take(&mut swings, &mut before, &one.data, since));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Some(swings),
        }
    }
    // Its newest decisions are not known.
    None
}

/// Takes in the next decision of an autoscaler.
fn take(swings: &mut Swings, before: &mut Option<i64>, decision: &Value, since: UnixMillis) {
    let Some(desired) = decision["desiredReplicas"].as_i64() else { return };
    let written = decision["carriedOut"]["written"] == true
        || decision["carriedOut"]["by"] == "kube-controller-manager";
    let from = before.or(decision["currentReplicas"].as_i64());
    if let Some(from) = from.filter(|from| *from != desired && written)
        && let Some(at) = millis(&decision["firstTime"]).filter(|at| *at >= since)
    {
        swings.changed(at, desired > from);
    }
    if written || before.is_none() {
        *before = Some(desired);
    } else if let Some(current) = decision["currentReplicas"].as_i64() {
        *before = Some(current);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn pages_that_are_short_are_no_reason_to_end() {
        let mut pages = 0;
        let (client, log) = crate::fake::api(move |_| {
            pages += 1;
            let metadata = json!({"continue": if pages < 9 { "more" } else { "" }});
            let version = "decisions.plimsoll.dev/v1alpha1";
            let kind = "DecisionList";
            (200, json!({"apiVersion": version, "kind": kind, "metadata": metadata, "items": []}))
        });
        let key = crate::watch::ObjectKey { namespace: "shop".to_owned(), name: "web".to_owned() };
        let found = swings(&client, &AutoscalerRef::autoscaler(key), 0).await;
        assert!(found.is_some());
        assert_eq!(log.of("GET ").len(), 9);
    }

    #[test]
    fn changes_that_were_written_within_the_hour_count() {
        let (mut swings, mut before) = (Swings::default(), None);
        let decision = |minute: i32, current: i32, desired: i32, written: bool| {
            json!({"firstTime": format!("2026-11-24T12:{minute:02}:00.000Z"),
                "currentReplicas": current, "desiredReplicas": desired,
                "carriedOut": {"written": written, "by": "plimsoll"}})
        };
        let start = millis(&"2026-11-24T12:00:00.000Z".into()).unwrap();
        for one in [
            decision(1, 2, 4, true),
            decision(2, 4, 4, false),
            decision(3, 4, 2, true),
            // A preview of a change is none.
            decision(4, 2, 4, false),
            decision(5, 2, 4, true),
        ] {
            take(&mut swings, &mut before, &one, start);
        }
        assert_eq!(swings.count(start + 600_000), 2);
    }

    /// What Plimsoll would do is no change of an HPA that is only observed.
    #[test]
    fn of_an_observed_hpa_the_replicas_count_that_there_were() {
        let start = millis(&"2026-11-24T12:00:00.000Z".into()).unwrap();
        let count = |replicas: [[i32; 2]; 5]| {
            let (mut swings, mut before) = (Swings::default(), None);
            for (minute, [current, desired]) in (1..).zip(replicas) {
                let one = json!({"firstTime": format!("2026-11-24T12:{minute:02}:00.000Z"),
                    "currentReplicas": current, "desiredReplicas": desired,
                    "carriedOut": {"written": false, "by": "kube-controller-manager"}});
                take(&mut swings, &mut before, &one, start);
            }
            swings.count(start + 600_000)
        };
        assert_eq!(count([[4, 6], [4, 4], [4, 6], [4, 4], [4, 6]]), 0);
        assert_eq!(count([[4, 4], [6, 4], [4, 4], [6, 4], [4, 4]]), 3);
    }
}
