//! From the proposal of the metrics to the desired replicas: stabilization, policies, min
//! and max. Source: `normalizeDesiredReplicas*` of upstream.

use super::behavior::{Behavior, Policy, PolicyKind, ScalingRules, SelectPolicy};
use super::decision::Direction;
use super::history::{Recommendation, ScalingHistory, change_within};
use super::input::Input;
use super::reason::Reason;
use super::spec::Spec;
use super::status::{ConditionKind, Status};
use super::trace::{Step, Trace};
use crate::time::UnixMillis;
use std::time::Duration;

/// The replicas after a limit, and the limit's condition.
struct Limited {
    replicas: i32,
    reason: Reason,
    message: &'static str,
}

const WITHIN_RANGE: &str = "the desired count is within the acceptable range";
const LOWERED: &str =
    "recent recommendations were lower than current one, applying the lowest recent recommendation";
const RAISED: &str = "recent recommendations were higher than current one, applying the highest recent recommendation";

/// Limits a proposal by stabilization, policies, min and max.
pub(super) fn normalize(
    input: &Input<'_>,
    history: &mut ScalingHistory,
    status: &mut Status,
    current: i32,
    proposed: i32,
    trace: &mut impl Trace,
) -> i32 {
    let (stabilized, reason, message) = match &input.context.spec.behavior {
        None => stabilize(input, history, proposed, trace),
        Some(_) => stabilize_both_ways(input, history, current, proposed, trace),
    };
    if stabilized == proposed {
        let message = "recommended size matches current size";
        status.set_constant(
            ConditionKind::AbleToScale,
            true,
            Reason::ReadyForNewScale,
            message,
            input.context.now,
        );
    } else {
        status.set_constant(ConditionKind::AbleToScale, true, reason, message, input.context.now);
    }
    let limited = match &input.context.spec.behavior {
        None => limit(input, current, stabilized),
        Some(behavior) => limit_by_policies(input, behavior, history, current, stabilized),
    };
    if limited.replicas != stabilized {
        trace.step(Step::Limited { replicas: limited.replicas, by: limited.reason.as_str() });
    }
    status.set_constant(
        ConditionKind::ScalingLimited,
        limited.replicas != stabilized,
        limited.reason,
        limited.message,
        input.context.now,
    );
    limited.replicas
}

/// The fewest replicas that the policies of scale-down allow now.
pub(super) fn removable(input: &Input<'_>, history: &ScalingHistory, current: i32) -> i32 {
    match &input.context.spec.behavior {
        None => i32::MIN,
        Some(behavior) => {
            let now = input.context.now;
            policy_limit(&behavior.scale_down, false, history, current, now).min(current)
        }
    }
}

/// The direction in which the rate of changes limited the decision that has just set this status.
pub(super) fn rate_limited(status: &Status) -> Option<Direction> {
    let limit = status.condition(ConditionKind::ScalingLimited).filter(|limit| limit.status)?;
    let directions =
        [(Reason::ScaleUpLimit, Direction::Up), (Reason::ScaleDownLimit, Direction::Down)];
    let of = |(reason, direction)| (limit.reason == reason).then_some(direction);
    directions.into_iter().find_map(of)
}

/// The most steps in which [`release`] looks for a time, each for a change and a policy.
const MAX_RELEASE_STEPS: usize = 100_000;

/// When the policies of a direction first allow more than at `now`, because a change leaves a policy's period:
/// always later than that, and not later than `due`, when the next decision is due anyway. None if no change
/// holds them, or all for longer.
///
/// Only policies of a sync period or a multiple of it count. A change dates from the end of its write, so that
/// it would still hold the decision at the end of their period; upstream decides a sync period after the write
/// at the earliest. Others end between two decisions.
///
/// None as well where so many changes and policies are to be looked at that it would take more than
/// 100,000 steps: tenants write both. The next decision is then made a sync period after this one.
pub fn release(
    spec: &Spec,
    history: &ScalingHistory,
    direction: Direction,
    current: i32,
    now: UnixMillis,
    due: UnixMillis,
    sync_period: Duration,
) -> Option<UnixMillis> {
    let behavior = spec.behavior.as_ref()?;
    let (rules, events, up) = match direction {
        Direction::Up => (&behavior.scale_up, &history.ups, true),
        Direction::Down => (&behavior.scale_down, &history.downs, false),
    };
    // A limit beyond the present replicas holds them, however far beyond.
    let limit = |at| {
        let limit = policy_limit(rules, up, history, current, at);
        if up { limit.max(current) } else { limit.min(current) }
    };
    let changes = history.ups.len().saturating_add(history.downs.len());
    let steps = rules.policies.len().saturating_mul(changes);
    if steps > MAX_RELEASE_STEPS {
        return None;
    }
    let leaves = |policy: &Policy| {
        let period = i64::from(policy.period_seconds) * 1000;
        events.iter().map(move |event| event.time + period)
    };
    let whole = |policy: &&Policy| {
        let period = u128::from(policy.period_seconds.unsigned_abs()) * 1000;
        period.checked_rem(sync_period.as_millis()) == Some(0)
    };
    let in_time = |at: &UnixMillis| *at > now && *at <= due;
    let mut times: Vec<UnixMillis> =
        rules.policies.iter().filter(whole).flat_map(leaves).filter(in_time).collect();
    times.sort_unstable();
    times.dedup();
    // At `now`, and at each of these times.
    if steps.saturating_mul(times.len().saturating_add(1)) > MAX_RELEASE_STEPS {
        return None;
    }
    let before = limit(now);
    times.into_iter().find(|at| if up { limit(*at) > before } else { limit(*at) < before })
}

/// How far the policies of a direction let the replicas go from the present ones at a time.
pub fn allowed(
    spec: &Spec,
    history: &ScalingHistory,
    direction: Direction,
    current: i32,
    at: UnixMillis,
) -> i32 {
    match (&spec.behavior, direction) {
        (None, Direction::Up) => fastest(current),
        (None, Direction::Down) => i32::MIN,
        (Some(behavior), Direction::Up) => {
            policy_limit(&behavior.scale_up, true, history, current, at).max(current)
        }
        (Some(behavior), Direction::Down) => {
            policy_limit(&behavior.scale_down, false, history, current, at).min(current)
        }
    }
}

/// When the policies of a direction first let the replicas go further than at `now`, because a change leaves a policy's
/// period. None if no change holds them, or so many changes and policies are to be looked at that it would take more
/// than 100,000 steps.
pub fn eased(
    spec: &Spec,
    history: &ScalingHistory,
    direction: Direction,
    current: i32,
    now: UnixMillis,
) -> Option<UnixMillis> {
    let behavior = spec.behavior.as_ref()?;
    let (rules, events, up) = match direction {
        Direction::Up => (&behavior.scale_up, &history.ups, true),
        Direction::Down => (&behavior.scale_down, &history.downs, false),
    };
    let changes = history.ups.len().saturating_add(history.downs.len());
    let steps = rules.policies.len().saturating_mul(changes).max(1);
    let before = allowed(spec, history, direction, current, now);
    let mut at = now;
    for _ in 0..MAX_RELEASE_STEPS / steps {
        let leaves = |policy: &Policy| {
            let period = i64::from(policy.period_seconds) * 1000;
            events.iter().map(|event| event.time + period).filter(|time| *time > at).min()
        };
        at = rules.policies.iter().filter_map(leaves).min()?;
        let now = allowed(spec, history, direction, current, at);
        if if up { now > before } else { now < before } {
            return Some(at);
        }
    }
    None
}

/// Without `behavior`: the highest recommendation within the downscale stabilization window.
fn stabilize(
    input: &Input<'_>,
    history: &mut ScalingHistory,
    proposed: i32,
    trace: &mut impl Trace,
) -> (i32, Reason, &'static str) {
    let [_, window] = input.context.windows();
    let cutoff = input.context.now - window;
    let (mut highest, mut outdated) = (proposed, None);
    for (index, recommendation) in history.recommendations.iter().enumerate() {
        if recommendation.time < cutoff {
            outdated = Some(index);
        } else {
            highest = highest.max(recommendation.replicas);
        }
    }
    history.recommend(proposed, input.context.now, outdated);
    if highest != proposed {
        let holds = |one: &Recommendation| one.time >= cutoff && one.replicas >= highest;
        trace.step(Step::Stabilized {
            replicas: highest,
            recommended_at: last_that(history, holds),
        });
    }
    (highest, Reason::ScaleDownStabilized, RAISED)
}

/// With `behavior`: the current scale, raised to the lowest recommendation of the scale-up window, and
/// lowered to the highest of the scale-down window.
fn stabilize_both_ways(
    input: &Input<'_>,
    history: &mut ScalingHistory,
    current: i32,
    proposed: i32,
    trace: &mut impl Trace,
) -> (i32, Reason, &'static str) {
    let [up_cutoff, down_cutoff] = input.context.windows().map(|window| input.context.now - window);
    let (mut lowest, mut highest) = (proposed, proposed);
    let mut outdated = None;
    for (index, recommendation) in history.recommendations.iter().enumerate() {
        let Recommendation { replicas, time } = *recommendation;
        if time > up_cutoff {
            lowest = lowest.min(replicas);
        }
        if time > down_cutoff {
            highest = highest.max(replicas);
        }
        if time < up_cutoff && time < down_cutoff {
            outdated = Some(index);
        }
    }
    let stabilized = current.max(lowest).min(highest);
    history.recommend(proposed, input.context.now, outdated);
    if stabilized != proposed {
        let holds = |one: &Recommendation| match stabilized > proposed {
            true => one.time > down_cutoff && one.replicas >= stabilized,
            false => one.time > up_cutoff && one.replicas <= stabilized,
        };
        let recommended_at = last_that(history, holds);
        trace.step(Step::Stabilized { replicas: stabilized, recommended_at });
    }
    if proposed >= current {
        (stabilized, Reason::ScaleUpStabilized, LOWERED)
    } else {
        (stabilized, Reason::ScaleDownStabilized, RAISED)
    }
}

/// When the last recommendation was made that holds the replicas. It leaves its window last, so that they are held as
/// long. The order of recommendations says nothing: outdated ones are used again.
fn last_that(
    history: &ScalingHistory,
    holds: impl Fn(&Recommendation) -> bool,
) -> Option<UnixMillis> {
    history.recommendations.iter().filter(|one| holds(one)).map(|one| one.time).max()
}

/// The most replicas from the present ones without `behavior`.
fn fastest(current: i32) -> i32 {
    (2.0 * f64::from(current)).max(4.0) as i32
}

/// Without `behavior`: at most max(2x, 4) replicas, within min and max.
fn limit(input: &Input<'_>, current: i32, desired: i32) -> Limited {
    let (highest, reason, message) = highest_allowed(input.context.bounds.max, fastest(current));
    if desired < input.context.bounds.min {
        too_few(input.context.bounds.min)
    } else if desired > highest {
        Limited { replicas: highest, reason, message }
    } else {
        within_range(desired)
    }
}

/// With `behavior`: the limit of the direction's policies, within min and max.
fn limit_by_policies(
    input: &Input<'_>,
    behavior: &Behavior,
    history: &ScalingHistory,
    current: i32,
    desired: i32,
) -> Limited {
    if desired > current {
        let allowed = policy_limit(&behavior.scale_up, true, history, current, input.context.now);
        let (highest, reason, message) =
            highest_allowed(input.context.bounds.max, allowed.max(current));
        if desired > highest {
            return Limited { replicas: highest, reason, message };
        }
    } else if desired < current {
        let allowed =
            policy_limit(&behavior.scale_down, false, history, current, input.context.now)
                .min(current);
        if input.context.bounds.min < allowed {
            if desired < allowed {
                return Limited {
                    replicas: allowed,
                    reason: Reason::ScaleDownLimit,
                    message: "the desired replica count is decreasing faster than the maximum scale rate",
                };
            }
        } else if desired < input.context.bounds.min {
            return too_few(input.context.bounds.min);
        }
    }
    within_range(desired)
}

fn within_range(replicas: i32) -> Limited {
    Limited { replicas, reason: Reason::DesiredWithinRange, message: WITHIN_RANGE }
}

fn too_few(min_replicas: i32) -> Limited {
    Limited {
        replicas: min_replicas,
        reason: Reason::TooFewReplicas,
        message: "the desired replica count is less than the minimum replica count",
    }
}

fn highest_allowed(max_replicas: i32, fastest: i32) -> (i32, Reason, &'static str) {
    if max_replicas > fastest {
        let message = "the desired replica count is increasing faster than the maximum scale rate";
        (fastest, Reason::ScaleUpLimit, message)
    } else {
        let message = "the desired replica count is more than the maximum replica count";
        (max_replicas, Reason::TooManyReplicas, message)
    }
}

/// The limit of the scale by the policies of a direction.
fn policy_limit(
    rules: &ScalingRules,
    up: bool,
    history: &ScalingHistory,
    current: i32,
    now: UnixMillis,
) -> i32 {
    let proposals = rules.policies.iter().map(|policy| {
        let added = change_within(&history.ups, up, policy.period_seconds, now);
        let removed = change_within(&history.downs, !up, policy.period_seconds, now);
        let at_start = current.wrapping_sub(added).wrapping_add(removed);
        policy_proposal(policy, up, at_start)
    });
    let largest_change = match rules.select_policy {
        SelectPolicy::Disabled => return current,
        SelectPolicy::Max => true,
        SelectPolicy::Min => false,
    };
    if largest_change == up {
        proposals.max().unwrap_or(i32::MIN)
    } else {
        proposals.min().unwrap_or(i32::MAX)
    }
}

fn policy_proposal(policy: &Policy, up: bool, at_start: i32) -> i32 {
    let share = f64::from(policy.value) / 100.0;
    match (policy.kind, up) {
        (PolicyKind::Pods, true) => at_start.wrapping_add(policy.value),
        (PolicyKind::Pods, false) => at_start.wrapping_sub(policy.value),
        // Rounded up, or a small workload would never grow.
        (PolicyKind::Percent, true) => (f64::from(at_start) * (1.0 + share)).ceil() as i32,
        (PolicyKind::Percent, false) => (f64::from(at_start) * (1.0 - share)) as i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_released_by_the_first_change_whose_end_allows_more() {
        let policies = r#"[{"type": "Pods", "value": 4, "periodSeconds": 60},
                           {"type": "Pods", "value": 1, "periodSeconds": 15}]"#;
        let spec = format!(
            r#"{{"maxReplicas": 50, "scaleTargetRef": {{"kind": "Deployment", "name": "web"}},
                 "behavior": {{"scaleUp": {{"policies": {policies}}},
                               "scaleDown": {{"selectPolicy": "Min", "policies": {policies}}}}}}}"#
        );
        let spec = Spec::from_api(&serde_json::from_str(&spec).expect("a spec"));
        let mut history = ScalingHistory::default();
        let every = |period, history: &_, direction, now| {
            let due = now + 60_000;
            release(&spec, history, direction, 10, now, due, Duration::from_secs(period))
        };
        let at = |history: &_, direction, now| every(15, history, direction, now);
        assert_eq!(at(&history, Direction::Up, 0), None, "no change holds them");
        history.scaled(5, 7, &spec, 1_000);
        history.scaled(7, 9, &spec, 5_000);
        // Of two policies, the one that allows more at the time.
        assert_eq!(at(&history, Direction::Up, 5_000), Some(20_000));
        // 15 s end between two decisions of every 20 s, and a minute with the third.
        assert_eq!(every(20, &history, Direction::Up, 5_000), Some(61_000));
        history.scaled(9, 10, &spec, 20_000);
        assert_eq!(at(&history, Direction::Up, 20_000), Some(35_000));
        // The end of the change at 1 s allows 11, as the other policy does already.
        assert_eq!(at(&history, Direction::Up, 35_000), Some(65_000));
        assert_eq!(at(&history, Direction::Up, 80_000), None, "all have left");
        let mut history = ScalingHistory::default();
        history.scaled(15, 10, &spec, 1_000);
        // The stricter of both, which lets go last.
        assert_eq!(at(&history, Direction::Down, 1_000), Some(61_000));
    }

    #[test]
    fn policies_that_many_changes_hold_are_not_released() {
        let released = |policies: usize, changes: i32, due: i64| {
            let policy =
                serde_json::json!({"type": "Pods", "value": changes, "periodSeconds": 1800});
            let spec = serde_json::json!({"maxReplicas": 5_000,
                "scaleTargetRef": {"kind": "Deployment", "name": "web"},
                "behavior": {"scaleUp": {"policies": vec![policy; policies]}}});
            let spec = Spec::from_api(&serde_json::from_value(spec).expect("a spec"));
            let mut history = ScalingHistory::default();
            for second in 0..changes {
                history.scaled(second, second + 1, &spec, i64::from(second) * 1000);
            }
            let now = i64::from(changes) * 1000;
            release(&spec, &history, Direction::Up, changes, now, due, Duration::from_secs(1))
        };
        assert_eq!(released(2, 1_790, 1_800_000), Some(1_800_000));
        assert_eq!(released(32, 10, 1_800_000), Some(1_800_000));
        assert_eq!(released(32, 1_790, 1_800_000), None);
        // A native HPA may have any number of policies.
        assert_eq!(released(20_000, 10, 1_800_000), None);
        // The time until the next decision bounds the work, too: later changes are not looked at.
        assert_eq!(released(2, 1_000, 1_799_999), None);
        assert_eq!(released(2, 1_000, 1_810_000), Some(1_800_000));
        assert_eq!(released(2, 1_000, 3_600_000), None);
    }
}
