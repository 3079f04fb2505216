//! Faults: each sets what the network then does, or does it itself.

use super::{CALM, Task, World};
use crate::conditions::{Mishap, locked};
use crate::plan::{Fault, HOUR, LEADER, Millis, REPLICAS, SECOND};
use std::collections::BTreeMap;

impl World {
    /// A fault begins.
    pub(super) fn fault(&mut self, at: Millis, mut fault: Fault) {
        if let Some(replica) = fault.replica_mut().filter(|replica| **replica == LEADER) {
            *replica = locked(&self.oracles).holder.unwrap_or(0);
        }
        *self.faults.entry(fault.name()).or_default() += u64::from(!fault.waits());
        self.step(at, format_args!("fault: {fault:?}"));
        let mut over = None;
        let conditions = self.conditions.clone();
        let mut conditions = locked(&conditions);
        match fault {
            Fault::Crash { replica, down } => {
                drop(conditions);
                self.crash_replica(at, replica);
                return self.at(at + down, Task::StartReplica(replica));
            }
            Fault::CrashAll { down } => {
                drop(conditions);
                for replica in 0..REPLICAS {
                    self.crash_replica(at, replica);
                    self.at(at + down + replica as Millis, Task::StartReplica(replica));
                }
                return;
            }
            Fault::Stop { replica, down } => {
                drop(conditions);
                self.stop_replica(at, replica);
                // It ends within a minute.
                return self.at(at + down + 75 * SECOND, Task::StartReplica(replica));
            }
            Fault::LoseApi { replica, time } => {
                conditions.replicas[replica].api_lost.set((), at + time);
                over = Some(at + time);
            }
            Fault::LosePrometheus { replica, time } => {
                conditions.replicas[replica].prometheus_lost.set((), at + time);
                over = Some(at + time);
            }
            Fault::PrometheusAway { time } => {
                conditions.prometheus_away.set((), at + time);
                over = Some(at + time);
            }
            Fault::PrometheusSlow { latency, time } => {
                conditions.prometheus_latency.set(latency, at + time);
                over = Some(at + time);
            }
            Fault::PrometheusLies { lie, time } => {
                conditions.prometheus_lies.set(lie, at + time);
                over = Some(at + time);
            }
            Fault::Refuse { replica, code, time } => {
                conditions.replicas[replica].refused.set(code, at + time);
                over = Some(at + time);
            }
            Fault::ApiSlow { replica, latency, time } => {
                conditions.replicas[replica].api_latency.set(latency, at + time);
                over = Some(at + time);
            }
            Fault::WatchSilent { replica, time } => {
                conditions.replicas[replica].watch_silent.set((), at + time);
                over = Some(at + time);
            }
            Fault::WatchExpired { replica, time } => {
                conditions.replicas[replica].watch_refused.set((), at + time);
                over = Some(at + time);
                self.network.end_watches(Some(replica));
                self.at(at + time - 1, Task::Compact(replica));
            }
            Fault::LeaseCleared => {
                drop(conditions);
                return self.clear_lease(at);
            }
            Fault::WatchEnded => self.network.end_watches(None),
            Fault::ResponseLost(written) => {
                conditions.armed.push((written, Mishap::ResponseLost));
            }
            Fault::CrashAfter(written) => conditions.crash_after.push(written),
            Fault::LeaseTaken => conditions.lease_is_taken = true,
            Fault::Late(written) => conditions.armed.push((written, Mishap::Late)),
            Fault::Conflict(written) => conditions.armed.push((written, Mishap::Conflict)),
            Fault::Busy { workload, time } => conditions.busy[workload].set((), at + time),
            Fault::ClockStep { replica, by } => {
                // Clocks that differ by more than a day are out of what is corrected.
                let offset = conditions.replicas[replica].offset + by;
                let offset = offset.clamp(-12 * HOUR, 12 * HOUR);
                conditions.replicas[replica].offset = offset;
                locked(&self.oracles).replicas[replica].offset.set(at, offset);
            }
            Fault::ScrapeGap { workload, time } => self.exporters[workload].gap_until = at + time,
            Fault::NotANumber { workload, time } => self.exporters[workload].nan_until = at + time,
            Fault::CounterReset { workload } => self.exporters[workload].reset = true,
            Fault::PodUnready { workload, time } => {
                if let Some(pod) = self.serving_pod(workload) {
                    self.at(at, Task::PodReady(workload, pod.clone(), false));
                    self.at(at + time, Task::PodReady(workload, pod, true));
                }
            }
            Fault::PodFails { workload } => self.fail_pod(at, workload),
        }
        drop(conditions);
        self.recheck(at);
        if let Some(over) = over {
            // A timeout may still run when the fault is over, and a backoff after it.
            self.at(over, Task::Recheck);
            self.at(over + CALM, Task::Recheck);
        }
    }

    /// How many faults of each kind there were. Those that wait for a request count when they strike.
    pub fn faults(&self) -> BTreeMap<String, u64> {
        let mut all: BTreeMap<String, u64> = BTreeMap::new();
        for (name, count) in self.faults.iter().chain(&locked(&self.conditions).struck) {
            *all.entry((*name).to_owned()).or_default() += count;
        }
        all
    }

    /// The history of watches is compacted while those of a replica are away.
    pub(super) fn compact(&mut self, at: Millis, replica: usize) {
        self.step(at, format_args!("the versions of replica {replica}'s watches expire"));
        self.api.compact();
        self.network.end_watches(Some(replica));
    }

    /// Tells the oracles for whom something fails.
    pub(super) fn recheck(&mut self, at: Millis) {
        let conditions = locked(&self.conditions);
        let mut oracles = locked(&self.oracles);
        for replica in 0..REPLICAS {
            let present = conditions.trouble(replica, at);
            let mut trouble = present.or(conditions.trouble(replica, at - CALM));
            trouble.writes |= self.network.mishap_within(replica, at - CALM);
            oracles.replicas[replica].set_trouble(at, trouble);
            oracles.replicas[replica].set_unanswered(at, conditions.is_unanswered(replica, at));
        }
    }
}
