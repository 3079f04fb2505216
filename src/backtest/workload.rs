//! The simulated workload: pods that take a time to become ready.

use crate::hpa::{Phase, Pod, Ready, Requests};
use crate::time::UnixMillis;

/// The pods of a workload, the oldest first.
#[derive(Debug)]
pub struct Workload<'a> {
    pods: Vec<Pod<'a>>,
    /// How many of them, the first ones, are ready.
    ready: usize,
    /// How long a pod takes until it is ready, in ms.
    pod_start: i64,
    requests: &'a Requests,
}

impl<'a> Workload<'a> {
    /// A workload with so many ready pods.
    pub fn new(replicas: usize, now: UnixMillis, pod_start: i64, requests: &'a Requests) -> Self {
        // Later than any time that is simulated, and sums with it are no overflow.
        let pod_start = pod_start.min(i64::MAX / 4);
        let mut workload = Self { pods: Vec::new(), ready: 0, pod_start, requests };
        workload.scale(replicas, now - pod_start);
        workload.advance(now);
        workload
    }

    /// The pods become ready whose time has come.
    pub fn advance(&mut self, now: UnixMillis) {
        while let Some(pod) = self.pods.get_mut(self.ready) {
            let ready_at = pod.start.unwrap_or(now) + self.pod_start;
            if ready_at > now {
                break;
            }
            pod.ready = Some(Ready { status: Some(true), since: ready_at });
            self.ready += 1;
        }
    }

    /// Makes or removes pods. Those that are not ready go first, and of each kind the newest: as all take the same
    /// time, the newest are those that are not ready.
    pub fn scale(&mut self, replicas: usize, now: UnixMillis) {
        let pod = Pod {
            name: "pod",
            phase: Phase::Running,
            deleting: false,
            start: Some(now),
            ready: Some(Ready { status: Some(false), since: now }),
            requests: self.requests,
        };
        self.pods.resize(replicas, pod);
        self.ready = self.ready.min(replicas);
        self.advance(now);
    }

    /// All pods.
    pub fn pods(&self) -> &[Pod<'a>] {
        &self.pods
    }

    /// How many pods are ready.
    pub fn ready(&self) -> usize {
        self.ready
    }
}
