//! All inputs of a decision as data, and the decision on them again.

use crate::hpa::schedule::{self, ScheduleSpec};
use crate::hpa::{
    self, ConditionKind, Context, ControllerConfig, Input, Metric, Phase, Pod, PodSamples, Ready,
    Reason, RecordedTrace, Requests, Sample, Samples, Scale, ScalingHistory, Selected, Spec,
    Status, UnselectedSamples,
};
use crate::time::UnixMillis;
use serde::{Deserialize, Serialize};
use std::io;

/// All inputs of a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoggedInputs {
    spec: Spec,
    schedules: Vec<ScheduleSpec>,
    /// The least lower bound of a schedule, where workloads are not scaled to zero.
    schedule_floor: Option<i32>,
    config: ControllerConfig,
    now: UnixMillis,
    schedule_time: UnixMillis,
    namespace: String,
    scale: Result<Scale, String>,
    pods: LoggedPods,
    samples: Vec<LoggedSamples>,
    history: ScalingHistory,
    scaled_to_zero: bool,
    /// Since when each metric fails.
    failing: Vec<Option<UnixMillis>>,
    /// Whether these times are of the metrics of this very spec.
    knows_failing: bool,
}

/// The pods that were selected, or why there are none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum LoggedPods {
    Missing,
    Invalid(String),
    Ambiguous { selector: String, autoscalers: Vec<String> },
    Unowned(String),
    Selected(Vec<LoggedPod>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LoggedPod {
    name: String,
    phase: Phase,
    deleting: bool,
    start: Option<UnixMillis>,
    ready: Option<Ready>,
    requests: Requests,
}

/// The samples of a metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum LoggedSamples {
    PerPod(Result<LoggedPodSamples, String>),
    Value(Result<i64, String>),
    Values(Result<Vec<i64>, String>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LoggedPodSamples {
    /// In the order of the pods.
    of_pods: Vec<Option<Sample>>,
    unselected: UnselectedSamples,
    items: usize,
}

/// What the algorithm makes of inputs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoggedOutcome {
    /// The replicas to write, if any.
    pub rescale: Option<i32>,
    /// The error, if there is one.
    pub error: Option<String>,
    /// The steps to it.
    pub trace: RecordedTrace,
}

impl LoggedOutcome {
    /// About how many bytes it takes.
    pub fn estimated_bytes(&self) -> usize {
        json_bytes(self)
    }
}

/// The length of a value as JSON, which is not made for that.
fn json_bytes(value: &impl Serialize) -> usize {
    struct Length(usize);
    impl io::Write for Length {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut length = Length(0);
    // What can't be written is dropped with its line.
    let _ = serde_json::to_writer(&mut length, value);
    length.0
}

impl LoggedInputs {
    /// The inputs of a decision that is about to be made.
    pub fn new(
        input: &Input<'_>,
        (schedules, schedule_floor): (&[ScheduleSpec], Option<i32>),
        history: &ScalingHistory,
        status: &Status,
    ) -> Self {
        let Context { spec, config, now, schedule_time, .. } = input.context;
        let zero = status.condition(ConditionKind::ScaledToZero);
        Self {
            spec: spec.clone(),
            schedules: schedules.to_vec(),
            schedule_floor,
            config: *config,
            now,
            schedule_time,
            namespace: input.namespace.to_owned(),
            scale: input.scale.map_err(str::to_owned),
            pods: LoggedPods::new(input.selected),
            samples: input.samples.iter().map(LoggedSamples::new).collect(),
            history: history.clone(),
            scaled_to_zero: zero.is_some_and(|zero| zero.status),
            failing: status.failing.clone(),
            knows_failing: status.metrics.is(&spec.metrics),
        }
    }

    /// The replicas that there were.
    pub fn present(&self) -> Option<i32> {
        self.scale.as_ref().ok().map(|scale| scale.spec_replicas)
    }

    /// About how many bytes they take.
    pub fn estimated_bytes(&self) -> usize {
        let pods = match &self.pods {
            LoggedPods::Selected(pods) => pods.len() * 512,
            other => json_bytes(other),
        };
        let histories =
            self.history.recommendations.len() + self.history.ups.len() + self.history.downs.len();
        let samples: usize = self.samples.iter().map(LoggedSamples::estimated_bytes).sum();
        let specs = json_bytes(&self.spec) + json_bytes(&self.schedules);
        let metrics = self.spec.metrics.len() * size_of::<Metric>();
        4096 + pods + samples + histories * 32 + 2 * specs + metrics + self.failing.len() * 16
    }

    /// Decides on them again.
    ///
    /// # Errors
    /// If a schedule is invalid.
    pub fn decide(&self) -> Result<LoggedOutcome, String> {
        let mut spec = self.spec.clone();
        let schedules = schedule::parse(&self.schedules).map_err(|error| error.to_string())?;
        spec.schedules = match self.schedule_floor {
            Some(floor) => schedules.with_floor(floor),
            None => schedules,
        };
        let context = Context::scheduled_at(&spec, &self.config, self.now, self.schedule_time);
        let mut status = Status { failing: self.failing.clone(), ..Status::default() };
        if self.knows_failing {
            status.metrics = spec.metrics.clone();
        }
        if self.scaled_to_zero {
            let text = format_args!("");
            status.set(ConditionKind::ScaledToZero, true, Reason::ScaledToZero, text, self.now);
        }
        let selected = match &self.pods {
            LoggedPods::Selected(pods) => pods.as_slice(),
            _ => &[],
        };
        let pods: Vec<Pod<'_>> = selected.iter().map(LoggedPod::view).collect();
        let samples: Vec<Samples<'_>> = self.samples.iter().map(LoggedSamples::view).collect();
        let input = Input {
            context,
            namespace: &self.namespace,
            scale: self.scale.as_ref().copied().map_err(String::as_str),
            selected: self.pods.view(&pods),
            samples: &samples,
        };
        let (mut trace, mut history) = (RecordedTrace::default(), self.history.clone());
        let decision = hpa::decide(&input, &mut history, &mut status, &mut trace);
        let rescale = match decision.outcome {
            hpa::Outcome::Rescale { to, .. } => Some(to),
            hpa::Outcome::Hold | hpa::Outcome::Failed => None,
        };
        Ok(LoggedOutcome { rescale, error: decision.error, trace })
    }
}

impl LoggedPods {
    fn new(selected: Selected<'_>) -> Self {
        match selected {
            Selected::Missing => Self::Missing,
            Selected::Invalid(error) => Self::Invalid(error.to_owned()),
            Selected::Ambiguous { selector, autoscalers } => {
                let (selector, autoscalers) = (selector.to_owned(), autoscalers.to_vec());
                Self::Ambiguous { selector, autoscalers }
            }
            Selected::Unowned(error) => Self::Unowned(error.to_owned()),
            Selected::Pods(pods) => Self::Selected(pods.iter().map(LoggedPod::new).collect()),
        }
    }

    fn view<'a>(&'a self, pods: &'a [Pod<'a>]) -> Selected<'a> {
        match self {
            Self::Missing => Selected::Missing,
            Self::Invalid(error) => Selected::Invalid(error),
            Self::Ambiguous { selector, autoscalers } => {
                Selected::Ambiguous { selector, autoscalers }
            }
            Self::Unowned(error) => Selected::Unowned(error),
            Self::Selected(_) => Selected::Pods(pods),
        }
    }
}

impl LoggedPod {
    fn new(pod: &Pod<'_>) -> Self {
        let Pod { name, phase, deleting, start, ready, requests } = *pod;
        Self { name: name.to_owned(), phase, deleting, start, ready, requests: requests.clone() }
    }

    fn view(&self) -> Pod<'_> {
        let Self { name, phase, deleting, start, ready, requests } = self;
        Pod { name, phase: *phase, deleting: *deleting, start: *start, ready: *ready, requests }
    }
}

impl LoggedSamples {
    fn new(samples: &Samples<'_>) -> Self {
        let per_pod = |samples: PodSamples<'_>| LoggedPodSamples {
            of_pods: samples.of_pods.to_vec(),
            unselected: samples.unselected,
            items: samples.items,
        };
        match *samples {
            Samples::PerPod(of) => Self::PerPod(of.map(per_pod).map_err(str::to_owned)),
            Samples::Value(value) => Self::Value(value.map_err(str::to_owned)),
            Samples::Values(of) => Self::Values(of.map(<[i64]>::to_vec).map_err(str::to_owned)),
        }
    }

    fn estimated_bytes(&self) -> usize {
        64 + match self {
            Self::PerPod(Ok(of)) => of.of_pods.len() * 64,
            Self::Values(Ok(values)) => values.len() * 8,
            Self::Value(Ok(_)) => 0,
            Self::PerPod(Err(error)) | Self::Value(Err(error)) | Self::Values(Err(error)) => {
                error.len()
            }
        }
    }

    fn view(&self) -> Samples<'_> {
        match self {
            Self::PerPod(Ok(of)) => Samples::PerPod(Ok(PodSamples {
                of_pods: &of.of_pods,
                unselected: of.unselected,
                items: of.items,
            })),
            Self::PerPod(Err(error)) => Samples::PerPod(Err(error)),
            Self::Value(value) => Samples::Value(value.as_ref().copied().map_err(String::as_str)),
            Self::Values(of) => {
                Samples::Values(of.as_ref().map(Vec::as_slice).map_err(String::as_str))
            }
        }
    }
}
