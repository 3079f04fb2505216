//! Changes of replicas from before the page was started, by the decision ledger: whether an autoscaler flaps.

use super::super::operate::decisions::{Wanted, labels, read};
use super::rows::Rows;
use super::swings::{LOOK_BACK_MS, Swings};
use crate::ledger::api::Decision;
use crate::ledger::{CarriedOut, parse_time};
use crate::time::UnixMillis;
use crate::watch::AutoscalerRef;
use futures::{StreamExt, stream};
use kube::Client;
use std::time::Duration;
use tokio::time::timeout;

/// The autoscalers whose decisions are read: those that scaled last.
const MAX_AUTOSCALERS: usize = 500;
/// The requests at a time.
const CONCURRENT: usize = 4;
/// How long a request may take.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// The most decisions of one autoscaler, in thousands.
const THOUSANDS: usize = 5;
/// Who scales an HPA that is only observed.
const KUBE_CONTROLLER_MANAGER: &str = CarriedOut::Observed.by();

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
    let labels = labels(&name.key.name, name.kind);
    let (mut swings, mut before) = (Swings::default(), None);
    let namespace = Some(&*name.key.namespace);
    let wanted = Wanted { namespace, labels: &labels, since: Some(since), thousands: THOUSANDS };
    let is_whole = read(client, wanted, |decision| {
        take(&mut swings, &mut before, &decision, since);
        true
    })
    .await
    .ok()?;
    // If not, its newest decisions are not known.
    is_whole.then_some(swings)
}

/// Takes in the next decision of an autoscaler: what it has written, or for an HPA that is only observed, to which replicas
/// kube-controller-manager has scaled it since the one `before`.
fn take(swings: &mut Swings, before: &mut Option<i32>, decision: &Decision, since: UnixMillis) {
    let Some(current) = decision.current_replicas else { return };
    let (from, to) = match (decision.desired_replicas, &decision.carried_out) {
        (_, carried) if carried.by == KUBE_CONTROLLER_MANAGER => {
            (before.unwrap_or(current), current)
        }
        (Some(desired), carried) if carried.written => (current, desired),
        _ => (current, current),
    };
    *before = Some(to);
    let at = parse_time(&decision.first_time).filter(|at| *at >= since);
    if let Some(at) = at.filter(|_| from != to) {
        swings.changed(at, to > from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{self, Basis, Entry};
    use crate::watch::ObjectKey;
    use serde_json::json;
    use std::sync::Arc;

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
        let key = ObjectKey { namespace: "shop".to_owned(), name: "web".to_owned() };
        let found = swings(&client, &AutoscalerRef::autoscaler(key), 0).await;
        assert!(found.is_some());
        assert_eq!(log.of("GET ").len(), 9);
    }

    const START: UnixMillis = 1_795_489_510_000;

    /// The reversals of decisions, each a minute after the one before: the replicas before, those decided on, and what
    /// was done.
    fn reversals(decisions: &[(i32, i32, CarriedOut)]) -> usize {
        let basis = Arc::new(Basis::fake([]));
        let (mut swings, mut before) = (Swings::default(), None);
        for (minute, &(current, desired, carried)) in (1..).zip(decisions) {
            let mut entry = Entry::at(START + minute * 60_000, basis.clone());
            (entry.current, entry.desired) = (Some(current), Some(desired));
            entry.carried = carried;
            let key = ObjectKey { namespace: "shop".to_owned(), name: "web".to_owned() };
            let one = ledger::decision(&AutoscalerRef::autoscaler(key), &entry, 0);
            take(&mut swings, &mut before, &one, START);
        }
        swings.count(START + 600_000)
    }

    #[test]
    fn changes_that_were_written_within_the_hour_count() {
        use CarriedOut::{Preview, Unchanged, Written};
        // A preview of a change is none.
        let all =
            [(2, 4, Written), (4, 4, Unchanged), (4, 2, Written), (2, 4, Preview), (2, 4, Written)];
        assert_eq!(reversals(&all), 2);
    }

    /// What Plimsoll would do is no change of an HPA that is only observed.
    #[test]
    fn of_an_observed_hpa_the_replicas_count_that_there_were() {
        let observed = |replicas: [(i32, i32); 5]| {
            reversals(&replicas.map(|(current, desired)| (current, desired, CarriedOut::Observed)))
        };
        assert_eq!(observed([(4, 6), (4, 4), (4, 6), (4, 4), (4, 6)]), 0);
        assert_eq!(observed([(4, 4), (6, 4), (4, 4), (6, 4), (4, 4)]), 3);
    }
}
