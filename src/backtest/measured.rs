//! What a decision sees of the metrics.

use super::candidate::{Candidate, Of};
use super::workload::Workload;
use crate::hpa::{AlignedSamples, Sample, Samples};
use crate::time::UnixMillis;

/// The samples of all metrics of a candidate.
#[derive(Debug)]
pub struct Measured {
    metrics: Vec<Of>,
    /// Of metrics of pods, the samples; kept from decision to decision.
    of_pods: Vec<Option<AlignedSamples>>,
    /// Of metrics of the workload, or of its object, the value in thousandths.
    totals: Vec<Option<[i64; 1]>>,
}

/// What is said of a total that is unknown.
const UNKNOWN: &str = "there is no load";

impl Measured {
    /// Of this candidate.
    pub fn new(candidate: &Candidate) -> Self {
        let metrics: Vec<Of> = candidate.metrics.iter().map(|metric| metric.of.clone()).collect();
        let of_pods = metrics.iter().map(|_| None).collect();
        let totals = vec![None; metrics.len()];
        Self { metrics, of_pods, totals }
    }

    /// Sets the value of each metric for all of the workload. Each ready pod has an equal share, others have none.
    pub fn set(
        &mut self,
        values: &[Option<f64>],
        workload: &Workload<'_>,
        time: UnixMillis,
        window_ms: i64,
    ) {
        let ready = workload.ready();
        for (index, value) in values.iter().enumerate() {
            if matches!(self.metrics[index], Of::Workload | Of::Object) {
                self.totals[index] = value.map(|value| [thousandths(value, 1)]);
                continue;
            }
            let last = self.of_pods[index].take();
            let mut of_pods = last.map(AlignedSamples::into_of_pods).unwrap_or_default();
            of_pods.clear();
            if let Some(value) = value.filter(|_| ready > 0) {
                let milli = thousandths(value, ready);
                of_pods.resize(ready, Some(Sample { milli, time, window_ms }));
            }
            of_pods.resize(workload.pods().len(), None);
            self.of_pods[index] = Some(AlignedSamples::of_pods(of_pods));
        }
    }

    /// The samples, as a decision reads them.
    pub fn samples(&self) -> Vec<Samples<'_>> {
        let metrics = self.metrics.iter().zip(&self.of_pods).zip(&self.totals);
        let metrics = metrics.map(|((of, of_pods), total)| match (of, of_pods) {
            (_, Some(samples)) => Samples::PerPod(Ok(samples.view())),
            (Of::Object, None) => Samples::Value(total.map(|[value]| value).ok_or(UNKNOWN)),
            (_, None) => Samples::Values(total.as_ref().map(<[i64; 1]>::as_slice).ok_or(UNKNOWN)),
        });
        metrics.collect()
    }
}

/// An equal share of a value in thousandths, rounded up. What floating point adds is taken out.
fn thousandths(value: f64, shares: usize) -> i64 {
    (1000.0 * value / shares as f64 - 0.001).ceil() as i64
}
