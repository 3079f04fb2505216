//! A workload for which the algorithm itself decides, from [`hpa::decide`] by the ledger to the story: what is told so is
//! only what the product can say.

use super::super::{Account, Changes, Subject, story};
use super::NOW;
use crate::hpa::{
    self, AlignedSamples, Context, ControllerConfig, Input, MetricSource, Outcome, Phase, Pod,
    PodContainer, Ready, Reason, Requests, Sample, Samples, Scale, ScalingHistory, Selected, Spec,
    Status,
};
use crate::ledger::account::{self, Facts};
use crate::ledger::api::Decision;
use crate::ledger::{DecisionTrace, Entry, MetricBasis, Observed};
use crate::watch::{AutoscalerRef, ObjectKey};
use serde_json::{Value, json};
use std::sync::Arc;

/// What a metric has at a decision.
#[derive(Clone, Copy)]
pub enum Has {
    /// Each ready pod has so many thousandths.
    EachPod(i64),
    /// The total, in thousandths.
    Total(i64),
    /// It fails.
    Fails(&'static str),
    /// The query gives nothing.
    Nothing,
}

/// What is done with decisions.
#[derive(Clone, Copy, PartialEq)]
pub enum Done {
    Written,
    Frozen,
    Preview,
    Observed,
    WriteFails,
}

/// A workload and its autoscaler.
pub struct Workload {
    spec: Spec,
    config: ControllerConfig,
    history: ScalingHistory,
    status: Status,
    metrics: Arc<[MetricBasis]>,
    entries: Vec<Entry>,
    pub now: i64,
    pub replicas: i32,
    /// The pods that are pending, and those without a sample.
    pub pending: usize,
    pub missing: usize,
    pub done: Done,
    /// What holds the replicas: more, and fewer.
    pub holds: [Option<&'static str>; 2],
    /// The fallback of the Autoscaler.
    pub fallback: Option<i32>,
    /// The autoscalers that select the same pods, if several do.
    pub rivals: &'static [&'static str],
}

/// A metric of pods with a target of ten, by the name that the product generates.
pub fn requests() -> Value {
    json!({"type": "Pods", "pods": {"metric": {"name": "http_requests_total_820193bd2d60_shop_web"},
        "target": {"type": "AverageValue", "averageValue": "10"}}})
}

/// A total with a target of ten for each pod.
pub fn queue() -> Value {
    json!({"type": "External", "external": {"metric": {"name": "queue_length"},
        "target": {"type": "AverageValue", "averageValue": "10"}}})
}

impl Workload {
    /// One of so many replicas, whose last decision is to be made two seconds before [`NOW`].
    pub fn new(replicas: i32, metrics: &[Value], fields: Value) -> Self {
        let mut spec = json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 2, "maxReplicas": 8, "metrics": metrics});
        super::merge(&mut spec, &fields);
        let spec = Spec::from_api(&serde_json::from_value(spec).unwrap());
        let query =
            "sum by (namespace,pod) (rate(http_requests_total{namespace=\"shop\",pod!=\"\"}[2m]))";
        let metrics = spec.metrics.iter();
        let metrics = metrics.map(|metric| account::metric_basis(metric, Some(query.into())));
        Self {
            metrics: metrics.collect(),
            spec,
            config: ControllerConfig { scale_to_zero: true, ..ControllerConfig::default() },
            history: ScalingHistory::default(),
            status: Status::default(),
            entries: Vec::new(),
            now: NOW - 2_000,
            replicas,
            pending: 0,
            missing: 0,
            done: Done::Written,
            holds: [None; 2],
            fallback: None,
            rivals: &[],
        }
    }

    /// Changes the options of a metric.
    pub fn with_options(mut self, change: impl Fn(&mut hpa::MetricOptions)) -> Self {
        let mut metrics = self.spec.metrics.to_vec();
        metrics.iter_mut().for_each(|metric| change(&mut metric.options));
        self.spec.metrics = metrics.into();
        let all = self.spec.metrics.iter().zip(&*self.metrics);
        self.metrics =
            all.map(|(metric, of)| account::metric_basis(metric, of.query.clone())).collect();
        self
    }

    /// With schedules.
    pub fn with_schedules(mut self, schedules: Value) -> Self {
        let schedules: Vec<_> = serde_json::from_value(schedules).unwrap();
        self.spec.schedules = hpa::schedule::parse(&schedules).unwrap();
        self
    }

    /// Decides so many times, each 15 s, the last time two seconds before [`NOW`] if nothing follows.
    pub fn decides(&mut self, times: i64, values: &[Has]) -> &mut Self {
        self.now -= (times - 1) * 15_000;
        for entry in &mut self.entries {
            entry.first -= times * 15_000;
            entry.last -= times * 15_000;
            entry.constraints.iter_mut().for_each(|one| {
                one.until = one.until.map(|until| until - times * 15_000);
            });
            entry.limits.iter_mut().flatten().for_each(|limit| {
                limit.from = limit.from.map(|from| from - times * 15_000);
            });
            entry.metrics.iter_mut().for_each(|one| {
                one.queried = one.queried.map(|queried| queried - times * 15_000);
            });
        }
        self.history = std::mem::take(&mut self.history).shifted(-times * 15_000);
        self.status.shift_failing(-times * 15_000);
        for n in 0..times {
            if n > 0 {
                self.now += 15_000;
            }
            self.decide(values);
        }
        self
    }

    fn decide(&mut self, values: &[Has]) {
        let containers = ["app", "sidecar"].map(|name| PodContainer {
            name: name.to_owned(),
            requests: [("cpu".to_owned(), crate::k8s::Quantity::from_milli(100))].into(),
        });
        let requests = Requests::new(containers.into(), Vec::new(), &[].into(), &[].into());
        let names: Vec<String> = (0..self.replicas).map(|n| format!("web-{n}")).collect();
        let pods: Vec<Pod<'_>> = { names.iter().enumerate() }
            .map(|(n, name)| Pod {
                name,
                phase: if n < self.pending { Phase::Pending } else { Phase::Running },
                deleting: false,
                start: Some(0),
                ready: Some(Ready { status: Some(n >= self.pending), since: 0 }),
                requests: &requests,
            })
            .collect();
        let without = self.pending + self.missing;
        let of_pod = |milli: i64, n: usize| {
            (n >= without).then_some(Sample { milli, time: self.now - 40, window_ms: 0 })
        };
        let aligned = values.iter().map(|has| match *has {
            Has::EachPod(milli) => (0..pods.len()).map(|n| of_pod(milli, n)).collect(),
            _ => vec![None; pods.len()],
        });
        let aligned: Vec<AlignedSamples> = aligned.map(AlignedSamples::of_pods).collect();
        let totals: Vec<Vec<i64>> = { values.iter() }
            .map(|has| match *has {
                Has::Total(milli) => vec![milli],
                _ => Vec::new(),
            })
            .collect();
        let samples = values.iter().zip(&*self.spec.metrics).enumerate();
        let samples: Vec<Samples<'_>> = samples
            .map(|(index, (has, metric))| match (*has, &metric.source) {
                (Has::Fails(error), MetricSource::External { .. }) => Samples::Values(Err(error)),
                (Has::Fails(error), MetricSource::Object { .. }) => Samples::Value(Err(error)),
                (Has::Fails(error), _) => Samples::PerPod(Err(error)),
                (Has::Total(_), _) | (Has::Nothing, MetricSource::External { .. }) => {
                    Samples::Values(Ok(&totals[index]))
                }
                (Has::EachPod(_) | Has::Nothing, _) => Samples::PerPod(Ok(aligned[index].view())),
            })
            .collect();
        let context = Context::new(&self.spec, &self.config, self.now);
        let current = self.replicas;
        let rivals: Vec<String> = self.rivals.iter().map(|one| (*one).to_owned()).collect();
        let input = Input {
            context,
            namespace: "shop",
            scale: Ok(Scale { spec_replicas: current, status_replicas: current }),
            selected: match self.rivals {
                [] => Selected::Pods(&pods),
                _ => Selected::Ambiguous { selector: "app=web", autoscalers: &rivals },
            },
            samples: &samples,
        };
        let mut trace = DecisionTrace::default();
        let mut status = std::mem::take(&mut self.status);
        let mut decision = hpa::decide(&input, &mut self.history, &mut status, &mut trace);
        let mut wanted = None;
        if let Outcome::Rescale { from, to, .. } = decision.outcome {
            wanted = Some(to);
            let held = match self.done {
                Done::Frozen => Some(Reason::FrozenByAdministrator),
                Done::Preview => Some(Reason::PreviewBySpec),
                Done::Observed | Done::Written | Done::WriteFails => {
                    let held = self.holds[usize::from(to < from)];
                    held.and_then(|name| {
                        Reason::ALL.iter().copied().find(|one| one.as_str() == name)
                    })
                }
            };
            if let Some(reason) = held {
                (decision.outcome, decision.held_back) = (Outcome::Hold, Some((reason, to)));
            } else if self.done != Done::Observed {
                let written = match self.done {
                    Done::WriteFails => Err("exceeded quota"),
                    _ => Ok(()),
                };
                let history = &mut self.history;
                hpa::complete_rescale(context, &mut decision, written, history, &mut status);
                if written.is_ok() {
                    self.replicas = to;
                }
            }
        }
        let fallback = self.fallback.filter(|_| decision.metrics_failed);
        let raised = fallback.filter(|raised| *raised > current);
        if let Some(fallback) = fallback {
            let kind = hpa::ConditionKind::FallbackActive;
            let why = format_args!("metrics fail");
            status.set(kind, true, Reason::MetricsFailed, why, self.now);
            self.replicas = self.replicas.max(fallback);
        }
        let is_observed = self.done == Done::Observed;
        // It has scaled whenever there are others than before.
        let scaled = self.entries.last().and_then(|last| match last.current == Some(current) {
            true => last.observed.as_ref()?.scaled,
            false => Some(self.now),
        });
        let observed = is_observed.then(|| Observed {
            desired: Some(current),
            scaled,
            account: (wanted.is_some_and(|wanted| wanted != current))
                .then(|| Box::new(("14".to_owned(), "AbleToScale is True (Ready): ok".to_owned()))),
        });
        let facts = Facts {
            context,
            at: self.now,
            generation: (!is_observed).then_some(3),
            scale: Ok(current),
            decision: &decision,
            status: &status,
            wanted,
            raised,
            ahead: 0,
            holds: self.holds,
            is_preview: self.done == Done::Preview,
            is_frozen: self.done == Done::Frozen,
            observed: observed.clone(),
        };
        let times = vec![[Some(self.now - 40), Some(self.now - 40)]; values.len()];
        let basis = account::basis(context, &status, self.metrics.clone());
        let mut entry = account::entry(&facts, &self.history, &trace, &times, Arc::new(basis));
        entry.observed = observed;
        self.status = status;
        for one in &entry.constraints {
            use crate::ledger::ConstraintKind::*;
            let bound = match one.kind {
                TooFewReplicas | ScheduleMinReplicas => entry.basis.min,
                TooManyReplicas | ScheduleMaxReplicas => entry.basis.max,
                _ => continue,
            };
            assert_eq!(one.after, bound, "{one:?}");
        }
        match self.entries.last_mut().filter(|last| last.is_continued_by(&entry)) {
            Some(last) => last.continue_with(&entry),
            None => {
                entry.sequence = self.entries.len() as u64 + 1;
                self.entries.push(entry);
            }
        }
    }

    /// Lets time go by without a decision.
    pub fn later(&mut self, ms: i64) -> &mut Self {
        for entry in &mut self.entries {
            (entry.first, entry.last) = (entry.first - ms, entry.last - ms);
        }
        self
    }

    /// Its decisions as the API shows them.
    pub fn decisions(&self) -> Vec<Decision> {
        let key = ObjectKey { namespace: "shop".to_owned(), name: "web".to_owned() };
        let autoscaler = match self.done {
            Done::Observed => AutoscalerRef::hpa(key),
            _ => AutoscalerRef::autoscaler(key),
        };
        let since = NOW - 30 * super::HOUR;
        self.entries
            .iter()
            .map(|entry| crate::ledger::decision(&autoscaler, entry, since))
            .collect()
    }

    /// The reason and message of `ScalingActive`, where it is False.
    pub fn faults(&self) -> Vec<(String, String)> {
        let active = self.status.condition(hpa::ConditionKind::ScalingActive);
        let fault = active.filter(|active| !active.status);
        fault.map(|one| (one.reason.to_string(), one.message.to_string())).into_iter().collect()
    }

    /// The last of them.
    pub fn last(&self) -> Decision {
        self.decisions().pop().unwrap()
    }

    /// The story of the last one.
    pub fn story(&self) -> String {
        self.story_at(super::subject(), NOW)
    }

    /// The story of the last one at a time.
    pub fn story_at(&self, mut subject: Subject, at: i64) -> String {
        let (mut changes, mut change) = (Changes::new(subject.period), None);
        let decisions = self.decisions();
        for decision in &decisions {
            change = changes.next(decision).last().or(change.take());
        }
        let change = changes.finish().or(change);
        if self.done == Done::Observed {
            subject.kind = "HorizontalPodAutoscaler".to_owned();
        }
        let decision = decisions.last().unwrap().clone();
        let text = story(&Account {
            subject,
            decision,
            change,
            since: self.entries[0].first,
            at,
            now: NOW,
        });
        assert!(text.lines().count() < 25, "{text}");
        text
    }
}
