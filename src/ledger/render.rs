//! From entries to decisions as the API shows them, and back.

use super::api::{
    AUTOSCALER_LABEL, ApiBasis, ApiCarriedOut, ApiConstraint, ApiLimit, ApiObserved, Decision,
    GROUP, KIND_LABEL, Limits, Metadata, Metric, Pods, SINCE_ANNOTATION, Turn, Until, VERSION,
    WouldChange,
};
use super::basis::{Basis, MetricBasis, Target};
use super::entry::{
    CarriedOut, Constraint, ConstraintKind, Entry, Limit, Measured, MetricStatus, Observed,
    Position, Reason,
};
use super::would_change::{Prevented, Turning, would_change};
use crate::hpa::OnError;
use crate::k8s::Quantity;
use crate::time::UnixMillis;
use crate::watch::{AutoscalerKind, AutoscalerRef, ObjectKey};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A time in RFC 3339, to the millisecond.
pub fn time(time: UnixMillis) -> String {
    let time = Timestamp::from_millisecond(time).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

fn seconds(time: UnixMillis) -> String {
    Timestamp::from_second(time.div_euclid(1000)).unwrap_or_default().to_string()
}

/// A time as [`time`] writes it.
pub fn parse_time(text: &str) -> Option<UnixMillis> {
    text.parse::<Timestamp>().ok().map(Timestamp::as_millisecond)
}

/// The name of an entry.
pub fn name(autoscaler: &AutoscalerRef, sequence: u64) -> String {
    let kind = autoscaler.kind.as_str().to_ascii_lowercase();
    format!("{}.{kind}.{sequence}", autoscaler.key.name)
}

/// The place of the entry with a name.
pub fn position(namespace: &str, name: &str) -> Option<Position> {
    let (rest, sequence) = name.rsplit_once('.')?;
    let (autoscaler, kind) = rest.rsplit_once('.')?;
    let is = |known: &AutoscalerKind| known.as_str().to_ascii_lowercase() == kind;
    let kind = [AutoscalerKind::Autoscaler, AutoscalerKind::Hpa].into_iter().find(is)?;
    // One entry has one name: no leading zero or sign.
    let number: u64 =
        sequence.parse().ok().filter(|number: &u64| number.to_string() == sequence)?;
    let key = ObjectKey { namespace: namespace.to_owned(), name: autoscaler.to_owned() };
    Some(Position { key: key.into(), kind, sequence: number })
}

/// The value of [`AUTOSCALER_LABEL`]: the name of the autoscaler. One that is too long for a label is cut, and has a hash.
pub fn autoscaler_label(name: &str) -> Cow<'_, str> {
    const MAX: usize = 63;
    if name.len() <= MAX {
        return name.into();
    }
    let hash = Sha256::digest(name);
    let hex: String = hash.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    // A label value has a letter or digit at either end. Names are ASCII: a character is a byte.
    let kept: String = name.chars().take(MAX - hex.len() - 1).collect();
    format!("{kept}-{hex}").into()
}

/// The metadata of an entry.
pub fn metadata(
    autoscaler: &AutoscalerRef,
    (sequence, first, version): (u64, UnixMillis, u64),
    since: UnixMillis,
) -> Metadata {
    let AutoscalerRef { kind, key } = autoscaler;
    let name = name(autoscaler, sequence);
    let hash = Sha256::digest(format!("{}/{name}/{first}", key.namespace));
    let hex: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let uid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
    let label = autoscaler_label(&key.name);
    let labels = [(AUTOSCALER_LABEL, &*label), (KIND_LABEL, kind.as_str())];
    Metadata {
        name,
        namespace: key.namespace.clone(),
        uid,
        resource_version: version.to_string(),
        creation_timestamp: seconds(first),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        annotations: BTreeMap::from([(SINCE_ANNOTATION.to_owned(), time(since))]),
    }
}

fn number(value: i64, target: Target) -> String {
    match target {
        Target::Utilization(_) => format!("{value}%"),
        _ => Quantity::from_milli(value).to_string(),
    }
}

fn parse_number(text: &str) -> Option<i64> {
    match text.strip_suffix('%') {
        Some(percent) => percent.parse().ok(),
        None => text.parse::<Quantity>().ok().map(Quantity::milli),
    }
}

/// A decision as the API shows it; `since` is when the history began.
pub fn decision(autoscaler: &AutoscalerRef, entry: &Entry, since: UnixMillis) -> Decision {
    let basis = &*entry.basis;
    let stamps = (entry.sequence, entry.first, entry.version);
    let metrics = entry.metrics.iter().enumerate();
    let constraints: Vec<ApiConstraint> =
        entry.constraints.iter().map(|one| constraint(one, basis)).collect();
    let window = |window: &ApiConstraint| {
        Some(Until { window: window.kind.clone(), time: window.until.clone()? })
    };
    let mut until: Vec<Until> = constraints.iter().filter_map(window).collect();
    until.extend(
        basis.bounds_until.map(|end| Until { window: "Schedule".to_owned(), time: time(end) }),
    );
    Decision {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: "Decision".to_owned(),
        metadata: metadata(autoscaler, stamps, since),
        time: time(entry.last),
        count: entry.count,
        first_time: time(entry.first),
        last_time: time(entry.last),
        observed_generation: entry.generation,
        current_replicas: entry.current,
        recommended_replicas: entry.recommended,
        desired_replicas: entry.desired,
        reason: entry.reason.as_str().to_owned(),
        message: entry.message.as_deref().map(str::to_owned),
        metrics: metrics.map(|(index, one)| metric(index, one, basis.metrics.get(index))).collect(),
        constraints,
        limits: {
            let [scale_up, scale_down] = entry.limits.map(|limit| limit.map(api_limit));
            Limits { scale_up, scale_down }
        },
        until,
        would_change: would_change(entry).map(|(metric_index, [more, fewer])| {
            let target = basis.metrics[metric_index].target;
            WouldChange {
                metric_index,
                more: turn(more, target, "maxReplicas"),
                fewer: turn(fewer, target, "minReplicas"),
            }
        }),
        carried_out: ApiCarriedOut {
            written: entry.carried == CarriedOut::Written,
            by: entry.carried.by().to_owned(),
            reason: entry.carried.as_str().to_owned(),
        },
        observed: entry.observed.as_ref().map(|observed| {
            let (values, conditions) = observed.account.as_deref().cloned().unzip();
            ApiObserved {
                desired_replicas: observed.desired,
                last_scale_time: observed.scaled.map(time),
                values,
                conditions,
            }
        }),
        basis: ApiBasis {
            min_replicas: basis.min,
            max_replicas: basis.max,
            min_replicas_schedule: basis.schedules[0].as_deref().map(str::to_owned),
            max_replicas_schedule: basis.schedules[1].as_deref().map(str::to_owned),
            bounds_until: basis.bounds_until.map(time),
            scale_up_stabilization_seconds: basis.windows[0] / 1000,
            scale_down_stabilization_seconds: basis.windows[1] / 1000,
            scale_up_tolerance: basis.tolerance[1],
            scale_down_tolerance: basis.tolerance[0],
            scale_up_disabled: basis.disabled[0],
            scale_down_disabled: basis.disabled[1],
        },
    }
}

fn turn(turning: Result<Turning, Prevented>, target: Target, bound: &str) -> Turn {
    let prevented = match turning {
        Ok(turning) => {
            return Turn {
                replicas: Some(turning.replicas),
                value: Some(number(turning.value, target)),
                earliest: Some(time(turning.earliest)),
                ..Turn::default()
            };
        }
        Err(prevented) => prevented,
    };
    let by = match prevented {
        Prevented::Bound => bound,
        Prevented::SelectPolicy => "selectPolicy",
        Prevented::Tolerance => "tolerance",
        Prevented::Metric(_) => "metric",
        Prevented::Held(kind) => kind.as_str(),
        Prevented::CarriedOut(carried) => carried.as_str(),
    };
    let prevented_by_metric = match prevented {
        Prevented::Metric(index) => Some(index),
        _ => None,
    };
    Turn { prevented_by: Some(by.to_owned()), prevented_by_metric, ..Turn::default() }
}

fn api_limit(limit: Limit) -> ApiLimit {
    let Limit { kind, replicas, from } = limit;
    ApiLimit { kind: kind.as_str().to_owned(), replicas, from: from.map(time) }
}

fn limit(limit: &ApiLimit) -> Option<Limit> {
    let from = limit.from.as_deref().and_then(parse_time);
    Some(Limit { kind: constraint_kind(&limit.kind)?, replicas: limit.replicas, from })
}

fn constraint_kind(name: &str) -> Option<ConstraintKind> {
    ConstraintKind::ALL.into_iter().find(|kind| kind.as_str() == name)
}

fn constraint(constraint: &Constraint, basis: &Basis) -> ApiConstraint {
    let schedule = match constraint.kind {
        ConstraintKind::ScheduleMinReplicas => basis.schedules[0].as_deref(),
        ConstraintKind::ScheduleMaxReplicas => basis.schedules[1].as_deref(),
        _ => None,
    };
    ApiConstraint {
        kind: constraint.kind.as_str().to_owned(),
        replicas_before: constraint.before,
        replicas_after: constraint.after,
        schedule: schedule.map(str::to_owned),
        until: constraint.until.map(time),
    }
}

fn on_error_name(on_error: OnError) -> &'static str {
    match on_error {
        OnError::Hold => "Hold",
        OnError::Ignore => "Ignore",
    }
}

fn metric(index: usize, measured: &Measured, of: Option<&MetricBasis>) -> Metric {
    let target = of.map_or(Target::Invalid, |of| of.target);
    let text = |value: Option<i64>| value.map(|value| number(value, target));
    let (least, most) = measured.range.unzip();
    let target_type = match target {
        Target::Average(_) => Some("AverageValue"),
        Target::Value(_) => Some("Value"),
        Target::Utilization(_) => Some("Utilization"),
        Target::Invalid => None,
    };
    let [ready, unready, missing, ignored] = measured.pods;
    let (reason, message) = measured.failure.as_deref().cloned().unzip();
    Metric {
        metric_index: index,
        name: of.map(|of| of.name.to_string()).unwrap_or_default(),
        scope: of.and_then(|of| of.scope.as_deref()).map(str::to_owned),
        query: of.and_then(|of| of.query.as_deref()).map(str::to_owned),
        queried_at: measured.queried.map(time),
        newest_sample_age: measured.age.map(|age| {
            let sign = if age < 0 { "-" } else { "" };
            let age = age.unsigned_abs();
            format!("{sign}{}.{:03}s", age / 1000, age % 1000)
        }),
        value: text(measured.value),
        min_value: text(least),
        max_value: text(most),
        target: target_type.map(|_| number(target.number(), target)),
        target_type: target_type.map(str::to_owned),
        ratio: measured.ratio.map(|millionths| millionths as f64 / 1e6),
        weighted_ratio: measured.weighted.map(|millionths| millionths as f64 / 1e6),
        pods: Pods { ready, unready, missing, ignored },
        proposed_replicas: measured.proposed,
        status: measured.status.as_str().to_owned(),
        reason,
        message,
        activation: of
            .and_then(|of| of.activation)
            .map(|milli| Quantity::from_milli(milli).to_string()),
        on_error: of.and_then(|of| of.on_error).map(|on_error| on_error_name(on_error).to_owned()),
    }
}

/// The entry of a decision that another replica shows, and whose it is. `known` is what the entry before it is based
/// on, which is shared where it is the same. None if it is not one of this version.
pub fn entry(decision: Decision, known: Option<Arc<Basis>>) -> Option<(AutoscalerRef, Entry)> {
    let Metadata { name, namespace, resource_version, .. } = &decision.metadata;
    let Position { key, kind, sequence } = position(namespace, name)?;
    let basis = basis(&decision)?;
    let basis = known.filter(|known| **known == basis).unwrap_or_else(|| Arc::new(basis));
    let version = resource_version.parse().ok()?;
    let find =
        |all: &[Reason]| all.iter().copied().find(|reason| reason.as_str() == decision.reason);
    let entry = Entry {
        sequence,
        added: version,
        version,
        first: parse_time(&decision.first_time)?,
        last: parse_time(&decision.last_time)?,
        count: decision.count,
        generation: decision.observed_generation,
        current: decision.current_replicas,
        recommended: decision.recommended_replicas,
        desired: decision.desired_replicas,
        reason: find(&Reason::ALL)?,
        constraints: decision
            .constraints
            .iter()
            .map(|one| {
                Some(Constraint {
                    kind: constraint_kind(&one.kind)?,
                    before: one.replicas_before,
                    after: one.replicas_after,
                    until: one.until.as_deref().and_then(parse_time),
                })
            })
            .collect::<Option<_>>()?,
        limits: {
            let Limits { scale_up, scale_down } = &decision.limits;
            [scale_up, scale_down].map(|one| one.as_ref().and_then(limit))
        },
        carried: {
            let is = |carried: &&CarriedOut| carried.as_str() == decision.carried_out.reason;
            *CarriedOut::ALL.iter().find(is)?
        },
        metrics: decision.metrics.into_iter().map(measured).collect::<Option<_>>()?,
        message: decision.message.map(Into::into),
        observed: decision.observed.map(|observed| Observed {
            desired: observed.desired_replicas,
            scaled: observed.last_scale_time.as_deref().and_then(parse_time),
            account: observed.values.zip(observed.conditions).map(Box::new),
        }),
        basis,
    };
    Some((AutoscalerRef { kind, key }, entry))
}

fn basis(decision: &Decision) -> Option<Basis> {
    let of = &decision.basis;
    let target = |metric: &Metric| {
        let number = metric.target.as_deref().and_then(parse_number);
        Some(match metric.target_type.as_deref() {
            Some("AverageValue") => Target::Average(number?),
            Some("Value") => Target::Value(number?),
            Some("Utilization") => Target::Utilization(i32::try_from(number?).ok()?),
            _ => Target::Invalid,
        })
    };
    let metric = |metric: &Metric| {
        let query = metric.query.as_deref().map(Into::into);
        let of = MetricBasis::new(&metric.name, query, target(metric)?);
        Some(MetricBasis {
            activation: metric.activation.as_deref().and_then(parse_number),
            on_error: [OnError::Hold, OnError::Ignore]
                .into_iter()
                .find(|known| metric.on_error.as_deref() == Some(on_error_name(*known))),
            ..of.with_scope(metric.scope.as_deref())
        })
    };
    let schedules = [&of.min_replicas_schedule, &of.max_replicas_schedule];
    Some(Basis {
        min: of.min_replicas,
        max: of.max_replicas,
        schedules: schedules.map(|name| name.as_deref().map(Into::into)),
        bounds_until: of.bounds_until.as_deref().and_then(parse_time),
        windows: [of.scale_up_stabilization_seconds, of.scale_down_stabilization_seconds]
            .map(|seconds| seconds.saturating_mul(1000)),
        tolerance: [of.scale_down_tolerance, of.scale_up_tolerance],
        disabled: [of.scale_up_disabled, of.scale_down_disabled],
        metrics: decision.metrics.iter().map(metric).collect::<Option<_>>()?,
    })
}

fn measured(metric: Metric) -> Option<Measured> {
    let value = |text: &Option<String>| text.as_deref().and_then(parse_number);
    let Pods { ready, unready, missing, ignored } = metric.pods;
    let age = |text: &str| {
        let (seconds, millis) = text.strip_suffix('s')?.split_once('.')?;
        let total = seconds.trim_start_matches('-').parse::<i64>().ok()?.checked_mul(1000)?;
        let total = total.checked_add(millis.parse::<i64>().ok()?)?;
        Some(if seconds.starts_with('-') { -total } else { total })
    };
    Some(Measured {
        status: *MetricStatus::ALL.iter().find(|status| status.as_str() == metric.status)?,
        proposed: metric.proposed_replicas,
        value: value(&metric.value),
        range: value(&metric.min_value).zip(value(&metric.max_value)),
        ratio: metric.ratio.map(|ratio| (ratio * 1e6).round() as i64),
        weighted: metric.weighted_ratio.map(|ratio| (ratio * 1e6).round() as i64),
        queried: metric.queried_at.as_deref().and_then(parse_time),
        age: metric.newest_sample_age.as_deref().and_then(age),
        pods: [ready, unready, missing, ignored],
        failure: metric.reason.map(|reason| Box::new((reason, metric.message.unwrap_or_default()))),
    })
}
