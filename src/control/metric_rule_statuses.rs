//! Writes the statuses of MetricRules, at a limited rate.

use super::requests::message;
use super::status::replace_status;
use crate::clock::Clock;
use crate::crd::{MetricRule, MetricRuleStatus};
use crate::leader::{FencingToken, LeaderElector};
use crate::rules::{MetricRules, Standing};
use crate::watch::{Cluster, MetricRuleRecord, ObjectKey};
use kube::Client;
use kube::core::ApiResource;
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often it is looked for statuses that differ.
const INTERVAL: Duration = Duration::from_millis(500);
/// The least time between two writes: at most 20 per second.
const WRITE_INTERVAL: Duration = Duration::from_millis(50);
/// The most writes before it is looked again what they are.
const MAX_WRITES: usize = 100;
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
/// The rules whose objects have the status that they are to have.
type UpToDate = HashMap<ObjectKey, (Arc<Standing>, Arc<MetricRuleRecord>)>;

impl MetricRuleStatuses {
    /// Writes the statuses that differ from those of the objects, for ever.
    pub async fn run(self) {
        let (mut written, mut up_to_date) = (Written::new(), UpToDate::new());
        loop {
            tokio::time::sleep(INTERVAL).await;
            let Some(token) = self.leader.fencing_token() else {
                written.clear();
                up_to_date.clear();
                continue;
            };
            written.retain(|_, (_, at)| at.elapsed() < RETRY);
            up_to_date = self.write_outdated(&token, &mut written, &up_to_date).await;
        }
    }

    /// Writes the statuses that differ, and returns the others.
    async fn write_outdated(
        &self,
        token: &FencingToken,
        written: &mut Written,
        before: &UpToDate,
    ) -> UpToDate {
        let mut up_to_date = UpToDate::new();
        let mut writes = 0;
        for standing in self.rules.standings() {
            let key = &standing.key;
            let record = self.cluster.read(|index| index.metric_rule(key).cloned());
            let Some(record) = record.filter(|record| record.uid == standing.uid) else { continue };
            let is_known = before.get(key).is_some_and(|(known, of)| {
                Arc::ptr_eq(known, &standing) && Arc::ptr_eq(of, &record)
            });
            // The watch may be behind what was written.
            let last = written.get(key).map_or(&record.status, |(status, _)| status);
            let status = (!is_known).then(|| standing.status(last, self.clock.wall_ms()));
            match status.filter(|status| status != last) {
                Some(status) if writes < MAX_WRITES => {
                    self.write(token, &standing, &status).await;
                    written.insert(key.clone(), (status, Instant::now()));
                    writes += 1;
                    tokio::time::sleep(WRITE_INTERVAL).await;
                }
                None if !written.contains_key(key) => {
                    up_to_date.insert(key.clone(), (standing, record));
                }
                _ => {}
            }
        }
        up_to_date
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
