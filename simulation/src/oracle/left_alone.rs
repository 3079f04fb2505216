//! How often something was left alone although its metrics propose another number.

use super::record::{LAG, Lags, MEMORY};
use super::{Oracle, Oracles};
use crate::plan::{Millis, SCRAPE};
use plimsoll::crd::{Executor, Mode};

impl Oracles {
    /// Counts a change that a workload's metrics propose while it is paused, frozen, switched off, or not
    /// Plimsoll's to scale.
    pub(super) fn count_left_alone(&mut self, at: Millis, workload: usize) {
        let leads = self.holder.is_some_and(|leader| self.replicas[leader].alive_since.is_some());
        let record = &self.records[workload];
        let (true, Some(Some(replicas))) = (leads, record.replicas.now()) else { return };
        // A deleted autoscaler is that of before.
        let Some(spec) = record.specs.during(at - MEMORY, at).flatten().last() else { return };
        let left_alone = record.specs.now().is_none_or(Option::is_none)
            || spec.api.mode == Mode::Paused
            || spec.api.executor != Executor::Embedded
            || self.frozen.now() == Some(&true)
            || record.ambiguous.now() == Some(&true)
            || (*replicas == 0 && !record.slept);
        if !left_alone {
            return;
        }
        let (min, max) = (spec.spec.min_replicas, spec.spec.max_replicas);
        // Nothing is proposed for what is switched off: it is as if it had just been scaled to zero.
        let scaled = if *replicas == 0 { 1 } else { *replicas };
        let hull = record.hull(spec, (at, Lags::all(SCRAPE + LAG)), scaled, (self.base, &[0]));
        let proposes = hull.range.is_some_and(|(low, high)| {
            low.clamp(min, max) > *replicas || high.clamp(min, max) < *replicas
        });
        if proposes {
            self.withheld_of(Oracle::LeftAlone, workload);
        }
    }
}
