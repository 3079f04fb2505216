//! Looks for a better spec of an autoscaler on recorded load: it is chosen on the first part, and shown on the rest.

use super::candidate::Candidate;
use super::figures::Figures;
use super::load::Load;
use super::run::{Options, run};
use crate::time::UnixMillis;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The headroom of the targets that are tried, in percent of the target: a pod carries so much more than it.
const HEADROOM: [f64; 8] = [0.0, 2.0, 5.0, 8.0, 12.0, 16.0, 20.0, 30.0];
/// The stabilization windows of scale-down that are tried, in seconds.
const DOWN_WINDOWS: [i64; 4] = [120, 300, 600, 900];
/// The part of the load that is tuned on.
const TUNED_SHARE: f64 = 2.0 / 3.0;
/// A gain that is less than this share of what is short is none.
const GAIN: f64 = 0.05;
/// How much targets that are rounded to thousandths may change the headroom, in percent.
const ROUNDING: f64 = 0.1;
/// The windows of a schedule, in hours of UTC: each of these has its own minimum.
const SLOT_HOURS: i64 = 3;

/// What a spec may cost and risk.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The replica-hours may be those of a target with this much headroom, in percent, at most.
    pub budget: f64,
    /// The minutes of a week in which fewer pods are ready than the load needs, at most.
    pub under_minutes: Option<f64>,
    /// The least headroom of the target, in percent.
    pub headroom: f64,
}

/// A spec that was tried.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trial {
    /// What it changes, in words.
    pub label: String,
    /// Its fields.
    pub spec: Value,
    /// How much more a pod carries than the target, in percent.
    pub headroom: f64,
    /// The same before the target was rounded to thousandths.
    #[serde(skip)]
    pub nominal: f64,
    /// It changes nothing but the target.
    pub is_plain: bool,
    /// On the part that was tuned on.
    pub tuned: Figures,
    /// On the rest.
    pub later: Figures,
    /// What ruled it out; none for the one that is recommended.
    pub ruled_out: Option<String>,
}

/// The result of a search.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Recommendation {
    /// The present spec.
    pub present: Trial,
    /// What is recommended in its place; none to keep it.
    pub recommended: Option<Trial>,
    /// Why.
    pub reason: String,
    /// All others that were tried.
    pub others: Vec<Trial>,
    /// The end of the part that was tuned on.
    pub split: UnixMillis,
}

/// Looks for a spec that is better than the present one, on the metric of one autoscaler.
///
/// # Errors
/// If the load is too short, or the spec can't be tried.
pub fn search(
    (name, namespace): (&str, &str),
    spec: &Value,
    pod_carries: Option<f64>,
    load: &Load,
    options: &Options,
    limits: Limits,
) -> Result<Recommendation, String> {
    let present = Candidate::new(name, namespace, spec.clone())?;
    let metric = present.only_metric()?;
    let carries = pod_carries.unwrap_or(metric.carries());
    let length = load.last() - load.first();
    let split = load.first() + (length as f64 * TUNED_SHARE) as i64;
    let parts = [load.between(None, Some(split)), load.between(Some(split), None)];
    let [Ok(tuned), Ok(later)] = parts else {
        return Err(
            "the load is too short to be tuned on and to be shown: days were expected".to_owned()
        );
    };
    let parts = [tuned, later];
    let mut specs = vec![(String::from("present"), spec.clone(), true, 0.0)];
    let bounds = (present.min().max(1), present.spec.max_replicas);
    let schedules = schedules(&parts[0], carries, bounds);
    for nominal in HEADROOM {
        let target = carries / (1.0 + nominal / 100.0);
        let targeted = with_target(spec, target)?;
        // Targets are whole thousandths.
        let target = Candidate::new(name, namespace, targeted.clone())?.only_metric()?.carries();
        let headroom = (carries / target - 1.0) * 100.0;
        let label = match (headroom - headroom.round()).abs() < 0.05 {
            true => format!("{:.0} % of headroom", headroom.abs()),
            false => format!("{headroom:.1} % of headroom"),
        };
        specs.push((label.clone(), targeted.clone(), true, nominal));
        for window in DOWN_WINDOWS {
            let mut windowed = targeted.clone();
            windowed["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = json!(window);
            specs.push((
                format!("{label}, scale-down window {window} s"),
                windowed,
                false,
                nominal,
            ));
        }
        if !schedules.is_empty() && spec["schedules"].as_array().is_none_or(Vec::is_empty) {
            let mut scheduled = targeted;
            scheduled["schedules"] = Value::Array(schedules.clone());
            specs.push((
                format!("{label}, a minimum by the time of day"),
                scheduled,
                false,
                nominal,
            ));
        }
    }
    // What an autoscaler may not have, such as schedules of one that another executor decides, is not tried.
    let is_valid = |spec: &Value| Candidate::new(name, namespace, spec.clone()).is_ok();
    specs.retain(|(_, spec, ..)| is_valid(spec));
    let try_one =
        |(label, spec, is_plain, nominal): &(String, Value, bool, f64)| -> Result<Trial, String> {
            let mut candidate = Candidate::new(name, namespace, spec.clone())?;
            let target = candidate.only_metric()?.carries();
            candidate.metrics[0].pod_carries = Some(carries);
            let [tuned, later] = [&parts[0], &parts[1]].map(|part| run(&candidate, part, options));
            Ok(Trial {
                label: label.clone(),
                spec: spec.clone(),
                headroom: (carries / target - 1.0) * 100.0,
                is_plain: *is_plain,
                nominal: *nominal,
                tuned: tuned?.figures,
                later: later?.figures,
                ruled_out: None,
            })
        };
    let mut trials = in_parallel(&specs, try_one)?;
    let present = trials.remove(0);
    let weeks = |part: &Load| (part.last() - part.first()) as f64 / 604_800_000.0;
    let weeks = Weeks { tuned: weeks(&parts[0]), later: weeks(&parts[1]) };
    Ok(choose(present, trials, limits, weeks, split))
}

/// Runs something for each of these on all cores, in their order.
fn in_parallel<T: Sync, R: Send>(
    all: &[T],
    each: impl Fn(&T) -> Result<R, String> + Sync,
) -> Result<Vec<R>, String> {
    let threads = std::thread::available_parallelism().map_or(1, Into::into).min(all.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((index, one)) = Some(next.fetch_add(1, Ordering::Relaxed))
            .and_then(|index| all.get(index).map(|one| (index, one)))
        {
            done.push((index, each(one)));
        }
        done
    };
    let mut results = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().flat_map(|one| one.join().expect("no panic")).collect::<Vec<_>>()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

fn choose(
    present: Trial,
    mut trials: Vec<Trial>,
    limits: Limits,
    weeks: Weeks,
    split: UnixMillis,
) -> Recommendation {
    let plain = trials.iter().filter(|trial| trial.is_plain);
    let budget = plain.filter(|trial| trial.nominal <= limits.budget);
    let budget = budget.map(|trial| trial.tuned.replica_hours);
    let budget = budget.fold(present.tuned.replica_hours, f64::max);
    for trial in &mut trials {
        trial.ruled_out = ruled_out(trial, limits, budget, weeks.tuned);
    }
    let short = |trial: &Trial| trial.tuned.under_pod_minutes;
    let better = |trial: &Trial| gains(&present.tuned, &trial.tuned, limits, weeks.tuned);
    let allowed = || {
        let allowed = trials.iter().enumerate();
        allowed.filter(|(_, trial)| trial.ruled_out.is_none() && better(trial))
    };
    let least = allowed().map(|(_, trial)| short(trial)).fold(f64::INFINITY, f64::min);
    // Of those that are about as good, or as good as they shall be, the cheapest, and of these one that changes the
    // target alone.
    let near = |trial: &Trial| {
        limits.under_minutes.is_some() || short(trial) <= least * (1.0 + GAIN) + 1.0
    };
    let cost = |trial: &Trial| trial.tuned.replica_hours * if trial.is_plain { 0.995 } else { 1.0 };
    let best = allowed()
        .filter(|(_, trial)| near(trial))
        .min_by(|(_, one), (_, other)| cost(one).total_cmp(&cost(other)))
        .map(|(index, _)| index);
    for (index, trial) in trials.iter_mut().enumerate() {
        if Some(index) != best && trial.ruled_out.is_none() {
            trial.ruled_out = Some(match short(trial) > least * (1.0 + GAIN) + 1.0 {
                true => format!("short of more pods: {:.0} pod-minutes", short(trial)),
                false => "no better, or it costs or changes more".to_owned(),
            });
        }
    }
    let keep = |reason: &str, others: Vec<Trial>| Recommendation {
        present: present.clone(),
        recommended: None,
        reason: reason.to_owned(),
        others,
        split,
    };
    let Some(best) = best else {
        return keep("nothing that was tried, and is not ruled out, is better", trials);
    };
    let mut chosen = trials.remove(best);
    if !gains(&present.later, &chosen.later, limits, weeks.later) {
        let reason = "what is better where it was tuned on is not better on the rest";
        chosen.ruled_out = Some(reason.to_owned());
        trials.insert(0, chosen);
        return keep(reason, trials);
    }
    let reason = "it is better where it was tuned on, and on the rest".to_owned();
    Recommendation { present, recommended: Some(chosen), reason, others: trials, split }
}

/// Whether fewer pods are short, or as many are at less cost. Where a limit says how long they may be, it is whether
/// that is kept, at less cost if it was kept before.
fn gains(present: &Figures, other: &Figures, limits: Limits, weeks: f64) -> bool {
    let is_cheaper = other.replica_hours < present.replica_hours * 0.99;
    if let Some(most) = limits.under_minutes {
        let keeps = |figures: &Figures| minutes_a_week(figures, weeks) <= most;
        return keeps(other) && (is_cheaper || !keeps(present));
    }
    let (before, after) = (present.under_pod_minutes, other.under_pod_minutes);
    after < before * (1.0 - GAIN) - 1.0 || (after <= before && is_cheaper)
}

/// In how many minutes of a week pods are short.
fn minutes_a_week(figures: &Figures, weeks: f64) -> f64 {
    figures.under_minutes / weeks.max(f64::MIN_POSITIVE)
}

/// How many weeks the parts of the load are.
#[derive(Clone, Copy, Debug)]
struct Weeks {
    tuned: f64,
    later: f64,
}

/// The limit that rules a trial out, if one does.
fn ruled_out(trial: &Trial, limits: Limits, budget: f64, weeks: f64) -> Option<String> {
    let cost = trial.tuned.replica_hours;
    if cost > budget * 1.000_001 {
        let above = (cost / budget - 1.0) * 100.0;
        return Some(format!(
            "it costs {above:.1} % more than {} % of headroom: --budget",
            limits.budget
        ));
    }
    if trial.headroom < limits.headroom - ROUNDING {
        return Some(format!(
            "{:.1} % of headroom: --min-headroom {}",
            trial.headroom, limits.headroom
        ));
    }
    let minutes = minutes_a_week(&trial.tuned, weeks);
    let most = limits.under_minutes.filter(|most| minutes > *most)?;
    Some(format!("short of pods for {minutes:.0} minutes a week: --max-under-minutes {most}"))
}

/// The spec with another target of its only metric.
fn with_target(spec: &Value, target: f64) -> Result<Value, String> {
    let mut spec = spec.clone();
    let places = [
        "/customMetrics/0/averageValue",
        "/metrics/0/pods/target/averageValue",
        "/metrics/0/external/target/averageValue",
    ];
    let place = places.into_iter().find(|place| spec.pointer(place).is_some());
    let place = place.ok_or("its metric has no averageValue")?;
    // Rounded down, as the decision reads whole thousandths.
    let milli = (target * 1000.0).floor().max(1.0) as i64;
    let text = match milli % 1000 {
        0 => (milli / 1000).to_string(),
        _ => format!("{milli}m"),
    };
    *spec.pointer_mut(place).expect("it was found") = json!(text);
    Ok(spec)
}

/// Minimums by the time of day: for each slot of hours of which the load knows at least two days, what all but the
/// lowest quarter of the days needed at most. None where that is the same all day.
fn schedules(load: &Load, carries: f64, (least, most): (i32, i32)) -> Vec<Value> {
    const SLOT_MS: i64 = SLOT_HOURS * 3_600_000;
    const DAY_MS: i64 = 86_400_000;
    let slots = (DAY_MS / SLOT_MS) as usize;
    let mut peaks: Vec<std::collections::BTreeMap<i64, f64>> = vec![Default::default(); slots];
    for (time, value) in load.points() {
        let slot = (time.rem_euclid(DAY_MS) / SLOT_MS) as usize;
        let peak = peaks[slot].entry(time.div_euclid(DAY_MS)).or_insert(0.0);
        *peak = peak.max(value);
    }
    let minimum = |days: &std::collections::BTreeMap<i64, f64>| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn spec() -> Value {
        json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1, "maxReplicas": 100,
            "customMetrics": [{"metricName": "requests", "averageValue": "10"}],
        })
    }

    fn options() -> Options {
        Options {
            pod_start: Duration::from_secs(60),
            window: Duration::from_secs(60),
            scrape_interval: Duration::from_secs(15),
            warm_up: Duration::ZERO,
            period: Some(Duration::from_secs(60)),
        }
    }

    const LIMITS: Limits = Limits { budget: 8.0, under_minutes: None, headroom: 0.0 };

    fn searched(load: &Load, limits: Limits) -> Recommendation {
        search(("web", "shop"), &spec(), None, load, &options(), limits).unwrap()
    }

    /// Twelve days of waves with some noise.
    fn waves() -> Load {
        Load::of((0..12 * 1_440).map(|minute: i64| {
            let noise = ((minute * 7_919) % 101) as f64 / 100.0 - 0.5;
            let wave = (minute as f64 / 1_440.0 * std::f64::consts::TAU).sin();
            (minute * 60_000, 120.0 + 80.0 * wave + 12.0 * noise, false)
        }))
    }

    #[test]
    fn what_is_recommended_is_better_on_both_parts_and_within_the_budget() {
        let found = searched(&waves(), LIMITS);
        let chosen = found.recommended.expect("headroom is better");
        assert!(chosen.tuned.under_pod_minutes < found.present.tuned.under_pod_minutes * 0.5);
        assert!(chosen.later.under_pod_minutes < found.present.later.under_pod_minutes * 0.5);
        assert!(chosen.tuned.replica_hours < found.present.tuned.replica_hours * 1.09);
        assert!(found.others.iter().all(|trial| trial.ruled_out.is_some()));
        let reasons: Vec<_> = found.others.iter().filter_map(|t| t.ruled_out.as_deref()).collect();
        assert!(reasons.iter().any(|reason| reason.contains("--budget")), "{reasons:?}");
        assert!(chosen.spec["customMetrics"][0]["averageValue"] != "10");
        Candidate::new("web", "shop", chosen.spec).expect("it can be applied");
    }

    #[test]
    fn limits_rule_out_and_are_named() {
        let limits = Limits { headroom: 12.0, ..LIMITS };
        let found = searched(&waves(), limits);
        assert!(found.recommended.is_none(), "{:?}", found.recommended);
        let ruled_out = |text: &str| {
            found.others.iter().any(|t| t.ruled_out.as_ref().is_some_and(|why| why.contains(text)))
        };
        assert!(ruled_out("--min-headroom 12") && ruled_out("--budget"));
        let limits = Limits { budget: 30.0, under_minutes: Some(0.0), ..LIMITS };
        let found = searched(&waves(), limits);
        let why = found.others.iter().filter_map(|trial| trial.ruled_out.as_ref());
        assert!(why.into_iter().any(|why| why.contains("--max-under-minutes 0")));
    }

    #[test]
    fn a_spec_that_is_never_short_and_as_cheap_as_can_be_is_kept() {
        let flat = Load::of((0..6 * 1_440).map(|minute| (minute * 60_000, 95.0, false)));
        let found = searched(&flat, LIMITS);
        assert!(found.recommended.is_none(), "{:?}", found.recommended);
        assert_eq!(found.present.tuned.under_pod_minutes, 0.0);
    }

    #[test]
    fn what_is_cheaper_and_good_enough_is_found() {
        // Pods carry far more than the present target.
        let found = |limits: Limits| {
            search(("web", "shop"), &spec(), Some(14.0), &waves(), &options(), limits).unwrap()
        };
        let chosen = found(LIMITS).recommended.expect("a target with less headroom is as good");
        assert!(chosen.headroom < 35.0 && chosen.tuned.under_pod_minutes <= 1.0, "{chosen:?}");
        let limits = Limits { under_minutes: Some(200.0), ..LIMITS };
        let cheaper = found(limits).recommended.expect("less will do");
        assert!(cheaper.tuned.replica_hours < chosen.tuned.replica_hours, "{cheaper:?}");
        assert!(cheaper.tuned.under_minutes > 0.0);
    }

    #[test]
    fn minimums_by_the_time_of_day_are_within_the_bounds() {
        let schedules = schedules(&waves(), 10.0, (8, 15));
        let minimums: Vec<i64> =
            schedules.iter().filter_map(|one| one["minReplicas"].as_i64()).collect();
        assert_eq!(minimums.len(), 8);
        assert_eq!(minimums.iter().min().zip(minimums.iter().max()), Some((&8, &15)));
        let mut scheduled = spec();
        scheduled["schedules"] = Value::Array(schedules);
        Candidate::new("web", "shop", scheduled).expect("valid schedules");
    }

    #[test]
    fn nothing_of_the_part_that_is_shown_enters_the_choice() {
        let load = waves();
        let first = searched(&load, LIMITS).recommended.expect("one");
        // The rest is another load: what would be chosen is the same, or the present spec is kept.
        let changed = load.points().map(|(time, value)| {
            let later = time > load.last() * 2 / 3;
            (time, if later { 200.0 - value / 2.0 } else { value }, false)
        });
        let second = searched(&Load::of(changed), LIMITS);
        let chosen = second.recommended.unwrap_or_else(|| second.others[0].clone());
        assert_eq!(chosen.label, first.label);
    }
}
