//! Decisions by what an Autoscaler may say beyond `autoscaling/v2`.

use super::{
    AlignedSamples, Context, ControllerConfig, Input, MetricFallback, MetricOptions, OnEmpty,
    OnError, Outcome, Phase, Pod, Ready, Reason, Requests, Sample, Samples, Scale, ScalingHistory,
    Selected, Spec, Status, WarmUp, decide, needs_samples,
};
use serde_json::json;

/// A total with the target 10 for each replica, once for each of the options.
fn spec(min: i32, options: &[MetricOptions]) -> Spec {
    let metric = json!({"type": "External", "external": {"metric": {"name": "queue"},
        "target": {"type": "AverageValue", "averageValue": "10"}}});
    let spec = json!({"scaleTargetRef": {"kind": "Deployment", "name": "web"},
        "minReplicas": min, "maxReplicas": 50, "metrics": vec![metric; options.len()],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}});
    let mut spec = Spec::from_api(&serde_json::from_value(spec).expect("a spec"));
    spec.set_options(options.iter().copied().enumerate());
    spec
}

/// The replicas after a decision on these values in thousandths, and whether it failed.
fn decided(spec: &Spec, replicas: i32, samples: &[Samples<'_>]) -> (i32, bool) {
    let config = ControllerConfig { scale_to_zero: true, ..Default::default() };
    let context = Context::new(spec, &config, 0);
    let mut status = Status::default();
    if replicas == 0 {
        let kind = super::ConditionKind::ScaledToZero;
        status.set(kind, true, Reason::ScaledToZero, format_args!(""), 0);
    }
    let input = Input {
        context,
        namespace: "shop",
        scale: Ok(Scale { spec_replicas: replicas, status_replicas: replicas }),
        selected: Selected::Pods(&[]),
        samples,
    };
    let decision = decide(&input, &mut ScalingHistory::default(), &mut status, &mut ());
    match decision.outcome {
        Outcome::Rescale { to, .. } => (to, false),
        Outcome::Hold => (replicas, false),
        Outcome::Failed => (replicas, true),
    }
}

const EMPTY: Samples<'_> = Samples::Values(Ok(&[]));
const FAILED: Samples<'_> = Samples::Values(Err("no answer"));

fn activation(milli: i64) -> MetricOptions {
    MetricOptions { activation_milli: Some(milli), ..Default::default() }
}

fn on_empty(on_empty: OnEmpty) -> MetricOptions {
    MetricOptions { on_empty, ..Default::default() }
}

#[test]
fn a_total_leaves_zero_only_above_its_activation_and_returns_below() {
    let spec = spec(0, &[activation(5_000)]);
    for (replicas, milli, expected) in
        [(0, 5_000, 0), (0, 5_001, 1), (0, 31_000, 4), (3, 5_000, 0), (3, 5_001, 1), (3, 60_000, 6)]
    {
        let decided = decided(&spec, replicas, &[Samples::Values(Ok(&[milli]))]);
        assert_eq!(decided, (expected, false), "{milli} at {replicas}");
    }
    // A minimum above zero leaves activation without an effect.
    let spec = self::spec(1, &[activation(50_000)]);
    assert_eq!(decided(&spec, 3, &[Samples::Values(Ok(&[40_000]))]), (4, false));
}

#[test]
fn one_active_total_lets_all_count() {
    let spec = spec(0, &[activation(50_000), activation(0)]);
    let [low, none, some] =
        [&[40_000][..], &[0], &[1_000]].map(|values| Samples::Values(Ok(values)));
    assert_eq!(decided(&spec, 0, &[low, none]), (0, false));
    assert_eq!(decided(&spec, 2, &[low, none]), (0, false));
    assert_eq!(decided(&spec, 0, &[low, some]), (4, false));
    // One that could not be read is not known to be inactive, nor to be active.
    assert_eq!(decided(&spec, 2, &[low, FAILED]), (4, false));
    assert_eq!(decided(&spec, 5, &[low, FAILED]), (5, true));
    assert_eq!(decided(&spec, 0, &[low, FAILED]), (0, false));
    // An active total without ready pods to divide it by still asks for a replica.
    let spec = self::spec(0, &[activation(-1_000)]);
    assert_eq!(decided(&spec, 0, &[none]), (1, false));
}

#[test]
fn an_empty_result_means_what_the_metric_says() {
    for (options, replicas, expected) in [
        (OnEmpty::Missing, 3, (3, true)),
        (OnEmpty::Zero, 3, (1, false)),
        (OnEmpty::Hold, 3, (3, false)),
        (OnEmpty::Hold, 1, (1, false)),
    ] {
        let spec = spec(1, &[on_empty(options)]);
        assert_eq!(decided(&spec, replicas, &[EMPTY]), expected, "{options:?}");
        // A query that failed is not an empty result.
        assert_eq!(decided(&spec, replicas, &[FAILED]), (replicas, true), "{options:?}");
    }
    let spec = spec(0, &[on_empty(OnEmpty::Zero)]);
    assert_eq!(decided(&spec, 3, &[EMPTY]), (0, false));
}

#[test]
fn a_metric_that_holds_keeps_others_from_removing_replicas_and_not_from_adding() {
    let spec = spec(1, &[on_empty(OnEmpty::Hold), MetricOptions::default()]);
    for (milli, expected) in [(10_000, 3), (60_000, 6)] {
        let decided = decided(&spec, 3, &[EMPTY, Samples::Values(Ok(&[milli]))]);
        assert_eq!(decided, (expected, false));
    }
    // It does not hide that another one failed, so that the fallback counts it.
    assert_eq!(decided(&spec, 3, &[EMPTY, FAILED]), (3, true));
    let one = MetricOptions::default();
    let spec = self::spec(1, &[on_empty(OnEmpty::Hold), one, one]);
    let low = Samples::Values(Ok(&[10_000]));
    assert_eq!(decided(&spec, 3, &[EMPTY, low, FAILED]), (3, true));
}

#[test]
fn a_metric_that_fails_does_what_its_on_error_says() {
    let on_error = |on_error| MetricOptions { on_error, ..Default::default() };
    let two = |one| spec(1, &[on_error(one), MetricOptions::default()]);
    let [low, high] = [&[10_000][..], &[60_000]].map(|values| Samples::Values(Ok(values)));
    for (one, other, expected) in [
        (None, low, (3, true)),
        (None, high, (6, false)),
        (Some(OnError::Hold), low, (3, false)),
        (Some(OnError::Hold), high, (6, false)),
        (Some(OnError::Ignore), low, (1, false)),
        (Some(OnError::Ignore), high, (6, false)),
        (Some(OnError::Ignore), FAILED, (3, true)),
    ] {
        assert_eq!(decided(&two(one), 3, &[FAILED, other]), expected, "{one:?}");
    }
    // Nothing is left to decide on.
    let spec = spec(1, &[on_error(Some(OnError::Ignore))]);
    assert_eq!(decided(&spec, 3, &[FAILED]), (3, true));
}

#[test]
fn what_stands_for_a_metric_is_told_before_one_that_is_ignored() {
    let on_error = |on_error| MetricOptions { on_error: Some(on_error), ..Default::default() };
    let (ignored, held) = (on_error(OnError::Ignore), on_error(OnError::Hold));
    for (options, expected) in [
        ([ignored, held, MetricOptions::default()], "OnErrorHold"),
        ([held, ignored, MetricOptions::default()], "OnErrorHold"),
        ([ignored, ignored, MetricOptions::default()], "OnErrorIgnore"),
    ] {
        let spec = spec(1, &options);
        let (mut history, mut status) = (ScalingHistory::default(), Status::default());
        let config = ControllerConfig::default();
        let samples = [FAILED, FAILED, Samples::Values(Ok(&[30_000]))];
        let input = Input {
            context: Context::new(&spec, &config, 0),
            namespace: "shop",
            scale: Ok(Scale { spec_replicas: 3, status_replicas: 3 }),
            selected: Selected::Pods(&[]),
            samples: &samples,
        };
        let decision = decide(&input, &mut history, &mut status, &mut ());
        let substitute = decision.substitute.unwrap();
        assert_eq!(substitute.reason.as_str(), expected);
        assert_eq!(
            substitute.message.matches(" failed, and ").count(),
            2,
            "{}",
            substitute.message
        );
    }
}

#[test]
fn a_metric_falls_back_once_it_has_failed_for_long() {
    let fallback = Some(MetricFallback { after_ms: 60_000, replicas: 5 });
    let options = MetricOptions { fallback, on_error: Some(OnError::Hold), ..Default::default() };
    let spec = spec(1, &[options]);
    let (mut history, mut status) = (ScalingHistory::default(), Status::default());
    let config = ControllerConfig::default();
    let some = Samples::Values(Ok(&[30_000]));
    let mut wanted = |now, sample| {
        let samples = [sample];
        let input = Input {
            context: Context::new(&spec, &config, now),
            namespace: "shop",
            scale: Ok(Scale { spec_replicas: 3, status_replicas: 3 }),
            selected: Selected::Pods(&[]),
            samples: &samples,
        };
        match decide(&input, &mut history, &mut status, &mut ()).outcome {
            Outcome::Rescale { to, .. } => to,
            Outcome::Hold => 3,
            Outcome::Failed => -1,
        }
    };
    for (now, sample, expected) in [
        (0, FAILED, 3),
        (59_999, FAILED, 3),
        (60_000, FAILED, 5),
        (75_000, some, 3),
        // It counts anew.
        (90_000, FAILED, 3),
        (149_999, FAILED, 3),
        (150_000, FAILED, 5),
    ] {
        assert_eq!(wanted(now, sample), expected, "{now}");
    }
}

/// Otherwise its fallback would count as soon as it is measured again.
#[test]
fn a_metric_does_not_fail_while_it_is_not_measured() {
    let fallback = Some(MetricFallback { after_ms: 60_000, replicas: 5 });
    let spec = spec(2, &[MetricOptions { fallback, ..Default::default() }]);
    let config = ControllerConfig::default();
    let ambiguous = Selected::Ambiguous { selector: "app=web", autoscalers: &[] };
    for (replicas, selected) in [
        (0, Selected::Pods(&[])),
        (1, Selected::Pods(&[])),
        (51, Selected::Pods(&[])),
        (3, ambiguous),
        (3, Selected::Invalid("no selector")),
    ] {
        let (mut history, mut status) = (ScalingHistory::default(), Status::default());
        let mut outcome = |now, replicas, selected| {
            let input = Input {
                context: Context::new(&spec, &config, now),
                namespace: "shop",
                scale: Ok(Scale { spec_replicas: replicas, status_replicas: replicas }),
                selected,
                samples: &[FAILED],
            };
            decide(&input, &mut history, &mut status, &mut ()).outcome
        };
        outcome(0, 3, Selected::Pods(&[]));
        outcome(15_000, replicas, selected);
        for now in [60_000, 119_999] {
            assert_eq!(outcome(now, 3, Selected::Pods(&[])), Outcome::Failed, "{replicas} {now}");
        }
        assert!(matches!(outcome(120_000, 3, Selected::Pods(&[])), Outcome::Rescale { to: 5, .. }));
    }
}

/// A pod is left out of a scale-up while it warms up: here the one of two that started 100 s ago.
#[test]
fn a_workload_that_warms_up_faster_counts_its_new_pods_sooner() {
    const NOW: i64 = 1_000_000;
    let api = json!({"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 9,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "AverageValue", "averageValue": "50m"}}}]});
    let mut spec = Spec::from_api(&serde_json::from_value(api).expect("a spec"));
    let (requests, config) = (Requests::default(), ControllerConfig::default());
    let pod = |name, start, status, since| Pod {
        name,
        phase: Phase::Running,
        deleting: false,
        start: Some(start),
        ready: Some(Ready { status: Some(status), since }),
        requests: &requests,
    };
    let sample = Some(Sample { milli: 100, time: NOW - 5_000, window_ms: 30_000 });
    let samples = AlignedSamples::of_pods(vec![sample; 2]);
    for (is_ready, since, cpu, delay, expected) in [
        // Its sample is of before it was ready.
        (true, NOW - 10_000, None, None, 2),
        (true, NOW - 10_000, Some(60_000), None, 4),
        (true, NOW - 10_000, Some(101_000), None, 2),
        // It became unready 20 s after its start.
        (false, NOW - 80_000, Some(60_000), None, 2),
        (false, NOW - 80_000, Some(60_000), Some(10_000), 4),
    ] {
        spec.warm_up = WarmUp { cpu_initialization_ms: cpu, initial_readiness_delay_ms: delay };
        let pods = [pod("a", 0, true, 5_000), pod("b", NOW - 100_000, is_ready, since)];
        let input = Input {
            context: Context::new(&spec, &config, NOW),
            namespace: "shop",
            scale: Ok(Scale { spec_replicas: 2, status_replicas: 2 }),
            selected: Selected::Pods(&pods),
            samples: &[Samples::PerPod(Ok(samples.view()))],
        };
        let mut history = ScalingHistory::default();
        let wanted = match decide(&input, &mut history, &mut Status::default(), &mut ()).outcome {
            Outcome::Rescale { to, .. } => to,
            Outcome::Hold => 2,
            Outcome::Failed => -1,
        };
        assert_eq!(wanted, expected, "{is_ready} {cpu:?} {delay:?}");
    }
}

/// With a window from 1970 on for a year.
fn scheduled(min: i32, behavior: serde_json::Value, schedule: serde_json::Value) -> Spec {
    let mut spec = spec(min, &[activation(0)]);
    let mut window =
        json!({"name": "year", "from": "1970-01-01T00:00:00Z", "until": "1971-01-01T00:00:00Z"});
    for (field, value) in schedule.as_object().expect("fields") {
        window[field] = value.clone();
    }
    spec.schedules = super::schedule::parse(&[serde_json::from_value(window).expect("a schedule")])
        .expect("it is valid");
    let hpa = json!({"scaleTargetRef": {"kind": "A", "name": "a"}, "maxReplicas": 1, "behavior": behavior});
    spec.behavior = Spec::from_api(&serde_json::from_value(hpa).expect("a spec")).behavior;
    spec
}

#[test]
fn a_schedule_brings_replicas_back_from_zero_though_the_metrics_fail() {
    let spec = scheduled(0, json!({}), json!({"minReplicas": 4}));
    assert_eq!(decided(&spec, 0, &[FAILED]), (4, false));
    assert_eq!(decided(&spec, 2, &[FAILED]), (4, false));
    assert_eq!(decided(&self::spec(0, &[activation(0)]), 0, &[FAILED]), (0, true));
}

#[test]
fn replicas_above_the_maximum_of_a_schedule_go_as_fast_as_the_policies_allow() {
    let slowly =
        json!({"scaleDown": {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]}});
    let low = Samples::Values(Ok(&[1_000]));
    let spec = scheduled(1, slowly.clone(), json!({"maxReplicas": 10}));
    assert_eq!(decided(&spec, 40, &[low]), (38, false));
    let spec = scheduled(1, json!({}), json!({"maxReplicas": 10}));
    assert_eq!(decided(&spec, 40, &[low]), (10, false));
}

#[test]
fn a_decision_that_needs_no_samples_reads_none() {
    let spec = serde_json::from_value(json!({
        "scaleTargetRef": {"kind": "Deployment", "name": "web"},
        "minReplicas": 2, "maxReplicas": 5,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": "qps"},
            "target": {"type": "AverageValue", "averageValue": "1"}}}],
    }));
    let (spec, config) = (Spec::from_api(&spec.unwrap()), ControllerConfig::default());
    let context = Context::new(&spec, &config, 0);
    for (replicas, needs, wanted) in
        [(0, false, None), (1, false, Some(2)), (9, false, Some(5)), (3, true, None)]
    {
        let scale = Scale { spec_replicas: replicas, status_replicas: replicas };
        let mut status = Status::default();
        assert_eq!(needs_samples(context, scale, &status), needs, "{replicas}");
        if needs {
            continue;
        }
        let selected = Selected::Pods(&[]);
        let input = Input { context, namespace: "shop", scale: Ok(scale), selected, samples: &[] };
        let decision = decide(&input, &mut ScalingHistory::default(), &mut status, &mut ());
        let to = match decision.outcome {
            Outcome::Rescale { to, .. } => Some(to),
            Outcome::Hold | Outcome::Failed => None,
        };
        assert_eq!(to, wanted, "{replicas}");
    }
}
