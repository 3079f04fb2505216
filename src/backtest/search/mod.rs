//! Looks for a better spec of an autoscaler on recorded load: it is chosen on the first part, and shown on the rest.

mod choice;
mod doubt;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_doubt;
mod trial;
mod variant;

use super::candidate::Candidate;
use super::run::Options;
use super::trace::Trace;
use choice::{Choice, Weeks};
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use variant::Variant;

pub use trial::{Keep, Limits, Recommendation, Trial};

/// The part of the load that is tuned on.
const TUNED_SHARE: f64 = 2.0 / 3.0;

/// Looks for a spec that is better than the present one. `spec` has the fields of the candidate.
///
/// # Errors
/// If the load is too short, or the spec can't be tried.
pub fn search(
    present: &Candidate,
    spec: &Value,
    trace: &Trace,
    options: &Options,
    limits: Limits,
) -> Result<Recommendation, String> {
    if let Some(budget) = limits.budget.filter(|budget| limits.headroom > *budget) {
        return Err(format!(
            "--min-headroom {}: at most --budget {budget} was expected, as it costs more",
            limits.headroom
        ));
    }
    let length = trace.last() - trace.first();
    let split = trace.first() + (length as f64 * TUNED_SHARE) as i64;
    let parts = [trace.between(None, Some(split)), trace.between(Some(split), None)];
    let [Ok(tuned), Ok(later)] = parts else {
        return Err(
            "the load is too short to be tuned on and to be shown: days were expected".to_owned()
        );
    };
    if tuned.known_ms() == 0 || later.known_ms() == 0 {
        return Err(
            "of the first two thirds of the load, or of the rest, nothing is known".to_owned()
        );
    }
    let weeks = |part: &Trace| part.known_ms() as f64 / 604_800_000.0;
    let weeks = Weeks { tuned: weeks(&tuned), later: weeks(&later) };
    let on = |part: &Trace, spec: &Value| {
        Ok::<_, String>(part.run(&present.with_spec(spec.clone())?, options)?.figures)
    };
    let try_one = |variant: &Variant| -> Result<Trial, String> {
        Ok(Trial {
            label: variant.label.clone(),
            spec: variant.spec.clone(),
            headroom: present.with_spec(variant.spec.clone())?.headroom(),
            is_plain: variant.is_plain,
            nominal: variant.nominal,
            tuned: on(&tuned, &variant.spec)?,
            later: None,
            ruled_out: None,
        })
    };
    // What an autoscaler may not have, such as schedules of one that another executor decides, is not tried; nor is
    // what can't be simulated.
    let try_all = |variants: Vec<Variant>| -> Vec<Trial> {
        in_parallel(&variants, try_one).into_iter().flatten().collect()
    };
    let mut now = try_one(&Variant {
        label: "present".to_owned(),
        spec: spec.clone(),
        is_plain: true,
        nominal: present.headroom(),
    })?;
    now.later = Some(on(&later, spec)?);
    let needs = tuned.needs(present, options);
    // What only targets cost is known of the rest, too.
    let try_plain = |targets: Vec<Variant>| {
        let mut trials = try_all(targets);
        for trial in &mut trials {
            trial.later = on(&later, &trial.spec).ok();
        }
        trials
    };
    let plain = variant::targets(present, spec, &limits)?;
    let mut trials = try_plain(plain.clone());
    // What is recommended once is no reason to allow more the next time.
    let by_default = variant::by_default(spec, &limits);
    let references = match by_default == *spec {
        true => trials.clone(),
        false => try_plain(variant::targets(present, &by_default, &limits)?),
    };
    let mut doubts = doubt::doubts(present, trace, [&tuned, &later], options)?;
    doubts.extend(limits.doubt.map(str::to_owned));
    let choice = Choice::new(now.clone(), &references, limits, weeks, &doubts);
    // Those that cost far too much by their target are not tried with more.
    let affordable = plain.into_iter().filter(|plain| {
        trials.iter().any(|trial| trial.label == plain.label && choice.is_nearly_affordable(trial))
    });
    let schedules = variant::schedules(present, spec, &tuned, &limits);
    let variants = affordable.flat_map(|plain| variant::variants(&plain, &schedules, &limits));
    trials.extend(try_all(variants.collect()));
    // Bounds and policies of the best so far, one after the other.
    for further in [Further::Maximum, Further::ScaleUp, Further::Minimum] {
        let bases = match choice.best(&trials) {
            Some(best) => vec![trials[best].clone()],
            // What is not enough by itself may be with another.
            None => trials.iter().filter(|trial| trial.is_plain).chain([&now]).cloned().collect(),
        };
        let is_kept = match further {
            Further::Maximum => limits.keep.max,
            Further::ScaleUp => limits.keep.scale_up,
            Further::Minimum => limits.keep.min || choice.doubt.is_some(),
        };
        if is_kept {
            continue;
        }
        let variant = |base: &Trial| match further {
            Further::Maximum if !base.is_capped() => None,
            Further::Maximum => variant::maximum(&Variant::of(base), &needs),
            Further::ScaleUp => variant::scale_up(&Variant::of(base)),
            Further::Minimum => variant::minimum(&Variant::of(base), &needs),
        };
        trials.extend(try_all(bases.iter().filter_map(variant).collect()));
    }
    // Trials that could not be made are left out, but not those that were not waited for.
    present.stop.check()?;
    if let Some(best) = choice.best(&trials) {
        trials[best].later = Some(on(&later, &trials[best].spec)?);
    }
    let most_needed = needs.last().copied().unwrap_or_default();
    Ok(choice.recommend(trials, split, most_needed))
}

/// What is tried on the best of all targets, rules of scale-down, tolerances and schedules.
#[derive(Clone, Copy, Debug)]
enum Further {
    Maximum,
    ScaleUp,
    Minimum,
}

/// Runs something for each of these on all cores, in their order.
fn in_parallel<T: Sync, R: Send>(all: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
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
