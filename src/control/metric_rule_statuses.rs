//! Writes the statuses of MetricRules, at a limited rate.

use super::requests::message;
use super::status::replace_status;
use crate::clock::Clock;
use crate::crd::{MetricRule, MetricRuleStatus};
use crate::leader::{FencingToken, LeaderElector};
use crate::rules::{MetricRules, Standing};
use crate::watch::{Cluster, ObjectKey};
use kube::Client;
use kube::core::ApiResource;
use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// How often it is looked for statuses that differ.
const INTERVAL: Duration = Duration::from_millis(500);
/// The least time between two writes: at most 20 per second.
const WRITE_INTERVAL: Duration = Duration::from_millis(50);
/// How long a status is not written again: the watch may be behind, or the API server refuses it.
const RETRY: Duration = Duration::from_secs(15);

/// Writes the statuses of MetricRules while this replica leads.
pub struct MetricRuleStatuses {
    /// A client of the API server.
    pub client: Client,
    /// Who leads.
    pub leader: LeaderElector,
    /// The index with the objects.
    pub cluster: Cluster,
    /// The rules.
    pub rules: MetricRules,
    /// The clock of conditions.
    pub clock: Clock,
}

/// The statuses that were written last, and when.
type Written = HashMap<ObjectKey, (MetricRuleStatus, Instant)>;

impl MetricRuleStatuses {
    /// Writes the statuses that differ from those of the objects, for ever.
    pub async fn run(self) {
        let mut written = Written::new();
        loop {
            tokio::time::sleep(INTERVAL).await;
            let Some(token) = self.leader.fencing_token() else {
                written.clear();
                continue;
            };
            written.retain(|_, (_, at)| at.elapsed() < RETRY);
            for standing in self.rules.standings() {
                if let Some(status) = self.outdated(&standing, &written) {
                    self.write(&token, &standing, &status).await;
                    written.insert(standing.key, (status, Instant::now()));
                    tokio::time::sleep(WRITE_INTERVAL).await;
                }
            }
        }
    }

    /// The status of a rule, if its object has another one.
    fn outdated(&self, standing: &Standing, written: &Written) -> Option<MetricRuleStatus> {
        let record = self.cluster.read(|index| index.metric_rule(&standing.key).cloned())?;
        let last = written.get(&standing.key).map(|(status, _)| status);
        let before = last.unwrap_or(&record.status);
        let status = standing.status(before, self.clock.wall_ms());
        (record.uid == standing.uid && status != *before).then_some(status)
    }

    async fn write(&self, token: &FencingToken, standing: &Standing, status: &MetricRuleStatus) {
        let resource = ApiResource::erase::<MetricRule>(&());
        let Standing { key, uid, .. } = standing;
        let status = json!(status);
        let written = replace_status(&self.client, token, &resource, key, uid, &status).await;
        if let Err(error) = written
            && token.is_valid()
        {
            let error = message(&error);
            tracing::warn!(metric_rule = %key, error, "Failed to write the status of a MetricRule");
        }
    }
}
