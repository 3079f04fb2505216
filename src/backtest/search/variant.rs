//! The changes of a spec that are tried.

use super::super::candidate::{Candidate, Measure};
use super::super::load::Load;
use super::super::trace::Trace;
use super::trial::{Limits, Trial, percent};
use crate::hpa::ControllerConfig;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The headroom of the targets that are tried, in percent of the target: a pod carries so much more than it.
const HEADROOM: [f64; 8] = [0.0, 2.0, 5.0, 8.0, 12.0, 16.0, 20.0, 30.0];
/// The stabilization windows of scale-down that are tried, in seconds.
const DOWN_WINDOWS: [i64; 4] = [120, 300, 600, 900];
/// The tolerances of scale-up that are tried: by default a load up to a tenth above the target changes nothing.
const UP_TOLERANCES: [f64; 2] = [0.05, 0.02];
/// The percent of the pods that may go in a minute, which are tried with [`STEPS_WINDOW`].
const DOWN_STEPS: [i64; 2] = [10, 20];
/// The stabilization window of a scale-down by steps, in seconds.
const STEPS_WINDOW: i64 = 60;
/// The windows of a schedule, in hours of UTC: each of these has its own minimum.
const SLOT_HOURS: i64 = 3;
/// The share of the time in which the load needs fewer pods than a minimum that is tried.
const LEAST_SHARE: f64 = 0.05;
/// The share of the time in which the load needs no more than a peak: what is above may be a mistake of a counter.
const PEAK_SHARE: f64 = 0.999;
/// How much more than the peak a maximum is that is tried.
const MOST_SHARE: f64 = 1.25;
/// A week, in ms.
pub const WEEK_MS: i64 = 7 * 86_400_000;
/// The digits of a target.
const DIGITS: i32 = 4;
/// A minimum is not lowered below this: one pod that fails would be all of them.
const LEAST_REPLICAS: i64 = 2;

/// A spec that is tried.
#[derive(Clone, Debug)]
pub struct Variant {
    /// What it changes, in words.
    pub label: String,
    /// Its fields.
    pub spec: Value,
    /// It changes nothing but targets.
    pub is_plain: bool,
    /// The headroom before targets were rounded, in percent.
    pub nominal: f64,
}

impl Variant {
    /// The spec of a trial.
    pub fn of(trial: &Trial) -> Self {
        let Trial { label, spec, is_plain, nominal, .. } = trial.clone();
        Self { label, spec, is_plain, nominal }
    }

    fn and(&self, what: &str, change: impl FnOnce(&mut Value)) -> Self {
        let mut spec = self.spec.clone();
        change(&mut spec);
        Self { label: format!("{}, {what}", self.label), spec, is_plain: false, ..self.clone() }
    }
}

/// Targets with more and more headroom, those of the limits among them.
///
/// # Errors
/// If a metric has no target that can be changed.
pub fn targets(present: &Candidate, spec: &Value, limits: &Limits) -> Result<Vec<Variant>, String> {
    if present.metrics.iter().all(Measure::is_constant) {
        return Err("its metrics: one whose values grow with the load was expected".to_owned());
    }
    let mut headroom: Vec<f64> =
        HEADROOM.into_iter().chain([limits.most_headroom(), limits.headroom]).collect();
    headroom.retain(|headroom| headroom.is_finite() && *headroom >= limits.headroom);
    headroom.sort_by(f64::total_cmp);
    headroom.dedup();
    let mut variants = Vec::new();
    for nominal in headroom {
        let spec = with_headroom(present, spec, nominal)?;
        let headroom = present.with_spec(spec.clone())?.headroom();
        let label = format!("{} of headroom", percent(headroom));
        variants.push(Variant { label, spec, is_plain: true, nominal });
    }
    Ok(variants)
}

/// The spec without what others are tried for besides targets: its rules of scale-down, and its tolerance of scale-up. What is
/// kept costs all of them as much.
pub fn by_default(spec: &Value, limits: &Limits) -> Value {
    let mut spec = spec.clone();
    let remove = |of: Option<&mut Value>, field: &str| {
        let _ = of.and_then(Value::as_object_mut).and_then(|of| of.remove(field));
    };
    if !limits.keep.scale_down && !is_disabled(&spec, "scaleDown") {
        remove(spec.pointer_mut("/behavior"), "scaleDown");
    }
    if !limits.keep.scale_up {
        remove(spec.pointer_mut("/behavior/scaleUp"), "tolerance");
    }
    spec
}

/// A target with other rules of scale-down, other tolerances of scale-up, and minimums by the time of day.
pub fn variants(plain: &Variant, schedules: &[Value], limits: &Limits) -> Vec<Variant> {
    let mut variants = if limits.keep.scale_down { Vec::new() } else { scale_down(plain) };
    if !schedules.is_empty() {
        variants.push(plain.and("a minimum by the time of day", |spec| {
            spec["schedules"] = Value::Array(schedules.to_vec());
        }));
    }
    let tolerances = if limits.keep.scale_up { &[] } else { UP_TOLERANCES.as_slice() };
    let tolerant = |base: &Variant, tolerance: f64| {
        base.and(&format!("scale-up tolerance {} %", 100.0 * tolerance), |spec| {
            spec["behavior"]["scaleUp"]["tolerance"] = json!(tolerance.to_string());
        })
    };
    let bases: Vec<Variant> = [plain].into_iter().chain(&variants).cloned().collect();
    for tolerance in tolerances {
        variants.extend(bases.iter().map(|base| tolerant(base, *tolerance)));
    }
    variants
}

/// Other windows of scale-down, scale-down by steps, and without policies. One that never scales down does so for a reason.
fn scale_down(plain: &Variant) -> Vec<Variant> {
    if is_disabled(&plain.spec, "scaleDown") {
        return Vec::new();
    }
    let window = |seconds: i64| {
        plain.and(&format!("scale-down window {seconds} s"), |spec| {
            spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = json!(seconds);
        })
    };
    let drop_policies = |spec: &mut Value| {
        if let Some(rules) = spec["behavior"]["scaleDown"].as_object_mut() {
            rules.retain(|field, _| !["policies", "selectPolicy"].contains(&&**field));
        }
    };
    let steps = |percent: &i64| {
        window(STEPS_WINDOW).and(&format!("{percent} % a minute"), |spec| {
            drop_policies(spec);
            spec["behavior"]["scaleDown"]["policies"] =
                json!([{"type": "Percent", "value": percent, "periodSeconds": 60}]);
        })
    };
    let rules = &plain.spec["behavior"]["scaleDown"];
    let default = ControllerConfig::default().downscale_stabilization_seconds;
    let present = rules["stabilizationWindowSeconds"].as_i64().unwrap_or(default.into());
    let others = DOWN_WINDOWS.into_iter().filter(|window| *window != present);
    let mut variants: Vec<Variant> = others.map(window).collect();
    variants.extend(DOWN_STEPS.iter().map(steps));
    if !rules["policies"].is_null() || !rules["selectPolicy"].is_null() {
        variants.push(plain.and("scale-down without policies", drop_policies));
    }
    variants
}

/// Minimums by the time of day, where the load has seen each day of a week and the spec has no schedules of its own. A workload
/// that may be at zero would never be there again.
pub fn schedules(present: &Candidate, spec: &Value, load: &Trace, limits: &Limits) -> Vec<Value> {
    let has_some = spec["schedules"].as_array().is_some_and(|some| !some.is_empty());
    let [metric] = &*present.metrics else { return Vec::new() };
    let is_week = load.last() - load.first() >= WEEK_MS;
    if has_some || limits.keep.schedules || !is_week || present.min() == 0 {
        return Vec::new();
    }
    let bounds = (present.min(), present.spec.max_replicas);
    minimums(&load.loads()[0], metric.carries(), bounds)
}

/// The maximum above what the load nearly never needs more than, if the present one is below.
pub fn maximum(base: &Variant, needs: &[i64]) -> Option<Variant> {
    let most = base.spec["maxReplicas"].as_i64()?;
    let peak = *needs.get((needs.len() as f64 * PEAK_SHARE) as usize)?;
    let peak = Some(peak).filter(|peak| *peak > most)?;
    let raised = ((peak as f64 * MOST_SHARE).ceil() as i64).min(i32::MAX.into());
    Some(base.and(&format!("maxReplicas {raised}"), |spec| spec["maxReplicas"] = json!(raised)))
}

fn is_disabled(spec: &Value, direction: &str) -> bool {
    spec["behavior"][direction]["selectPolicy"] == "Disabled"
}

/// The fields of a direction of `behavior` that say how fast it goes.
const PACE: [&str; 3] = ["policies", "selectPolicy", "stabilizationWindowSeconds"];

/// Whether rules of scale-up hold it back, or may. A tolerance does not; one that never scales up does so for a reason.
pub fn is_paced(spec: &Value) -> bool {
    let rules = &spec["behavior"]["scaleUp"];
    !is_disabled(spec, "scaleUp") && PACE.iter().any(|field| !rules[field].is_null())
}

/// Scale-up at the pace that it has by default, if the spec has another one.
pub fn scale_up(base: &Variant) -> Option<Variant> {
    if !is_paced(&base.spec) {
        return None;
    }
    Some(base.and("scale-up as by default", |spec| {
        let behavior = spec["behavior"].as_object_mut().expect("it has rules");
        let rules = behavior["scaleUp"].as_object_mut().expect("it has rules");
        rules.retain(|field, _| !PACE.contains(&&**field));
        if rules.is_empty() {
            behavior.remove("scaleUp");
        }
    }))
}

/// The minimum that the load needs nearly always.
pub fn minimum(base: &Variant, needs: &[i64]) -> Option<Variant> {
    let (present, most) =
        (base.spec["minReplicas"].as_i64().unwrap_or(1), &base.spec["maxReplicas"]);
    // From zero it is another question: whether there is load at all.
    if present == 0 {
        return None;
    }
    let need = *needs.get((needs.len() as f64 * LEAST_SHARE) as usize)?;
    let least = need.max(LEAST_REPLICAS.min(present)).min(most.as_i64()?);
    (least != present).then(|| {
        base.and(&format!("minReplicas {least}"), |spec| spec["minReplicas"] = json!(least))
    })
}

/// The spec with targets below what a pod carries by a headroom in percent.
fn with_headroom(present: &Candidate, spec: &Value, headroom: f64) -> Result<Value, String> {
    let mut changed = spec.clone();
    let places = places(spec);
    if places.len() != present.metrics.len() {
        return Err(
            "each of its metrics: an averageValue or averageUtilization was expected".into()
        );
    }
    let loads = present.metrics.iter().zip(&places).filter(|(metric, _)| !metric.is_constant());
    for (metric, place) in loads {
        let written = changed.pointer_mut(place).expect("it was found");
        if let Some(percent) = written.as_i64().filter(|_| place.ends_with("averageUtilization")) {
            let factor = (1.0 + metric.headroom() / 100.0) / (1.0 + headroom / 100.0);
            // What floating point takes away is given back.
            *written = json!(((percent as f64 * factor + 1e-6).floor() as i64).max(1));
            continue;
        }
        // Rounded down, as the decision reads whole thousandths, and a person a few digits.
        let target = 1000.0 * metric.carries() / (1.0 + headroom / 100.0);
        let unit = 10_f64.powi((target.log10().floor() as i32 + 1 - DIGITS).max(0));
        let milli = ((target / unit + 1e-9).floor() * unit).max(1.0) as i64;
        let text = match milli % 1000 {
            0 => (milli / 1000).to_string(),
            _ => format!("{milli}m"),
        };
        *written = json!(text);
    }
    Ok(changed)
}

/// Where the targets of a spec are, in the order of its metrics.
fn places(spec: &Value) -> Vec<String> {
    let mut places = Vec::new();
    let mut add = |metric: String| {
        let fields =
            ["averageValue", "averageUtilization"].map(|field| format!("{metric}/{field}"));
        places.extend(
            fields
                .into_iter()
                .find(|place| spec.pointer(place).is_some_and(|target| !target.is_null())),
        );
    };
    let count = |list: &str| 0..spec[list].as_array().map_or(0, Vec::len);
    for index in count("metrics") {
        for kind in ["pods", "object", "external", "resource", "containerResource"] {
            add(format!("/metrics/{index}/{kind}/target"));
        }
    }
    for list in ["resourceMetrics", "customMetrics"] {
        count(list).for_each(|index| add(format!("/{list}/{index}")));
    }
    places
}

/// Minimums by the time of day: for each slot of hours of which the load knows at least two days, what all but the
/// lowest quarter of the days needed at most. None where that is the same all day.
pub fn minimums(load: &Load, carries: f64, (least, most): (i32, i32)) -> Vec<Value> {
    const SLOT_MS: i64 = SLOT_HOURS * 3_600_000;
    const DAY_MS: i64 = 86_400_000;
    let slots = (DAY_MS / SLOT_MS) as usize;
    let mut peaks: Vec<BTreeMap<i64, f64>> = vec![BTreeMap::new(); slots];
    for (time, value) in load.points() {
        let slot = (time.rem_euclid(DAY_MS) / SLOT_MS) as usize;
        let peak = peaks[slot].entry(time.div_euclid(DAY_MS)).or_insert(0.0);
        *peak = peak.max(value);
    }
    let minimum = |days: &BTreeMap<i64, f64>| {
        let mut peaks: Vec<f64> = days.values().copied().collect();
        peaks.sort_by(f64::total_cmp);
        let low = peaks.get(peaks.len() / 4).filter(|_| peaks.len() >= 2)?;
        Some(((low / carries).ceil() as i64).min(most.into()).max(least.into()))
    };
    let minimums: Option<Vec<i64>> = peaks.iter().map(minimum).collect();
    let Some(minimums) = minimums else { return Vec::new() };
    if minimums.iter().all(|minimum| *minimum == minimums[0]) {
        return Vec::new();
    }
    let schedule = |(slot, minimum): (usize, &i64)| {
        let start = slot as i64 * SLOT_HOURS;
        let end = (start + SLOT_HOURS) % 24;
        json!({"name": format!("from-{start:02}"), "timeZone": "UTC",
            "start": format!("0 {start} * * *"), "end": format!("0 {end} * * *"),
            "minReplicas": minimum})
    };
    minimums.iter().enumerate().map(schedule).collect()
}
