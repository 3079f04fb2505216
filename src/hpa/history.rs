//! The scaling history that one decision leaves to the next, besides the status: recommendations
//! and scale events.

use super::spec::Spec;
use crate::time::UnixMillis;

/// The recommendations and scale events of one autoscaler.
///
/// Bounded: outdated entries are reused, so there are never more than one
/// decision period leaves within the longest window.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ScalingHistory {
    /// The recommendations, before stabilization and limits.
    pub recommendations: Vec<Recommendation>,
    /// Replicas added.
    pub ups: Vec<ScaleEvent>,
    /// Replicas removed.
    pub downs: Vec<ScaleEvent>,
}

/// Which changes of a scale another history is known to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// All that are known for sure: both end with the same one, however late it was observed.
    All,
    /// All until its last one.
    UntilItsLast,
    /// Not the newest of this history, which this replica made itself.
    NotTheNewest,
    /// It is not known.
    Unknown,
}

/// A recommended number of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Recommendation {
    /// The replicas.
    pub replicas: i32,
    /// When.
    pub time: UnixMillis,
}

/// The most recommendations that are kept exactly: of an hour with a decision every 15 s they are half as many, whatever the
/// metric does.
const MAX_RECOMMENDATIONS: usize = 512;

/// The highest and the lowest recommendation of each 256th of the longest window, with the time of the last one: no window
/// holds less for it, and each up to that long more.
fn coarser(all: &[Recommendation], longest: i64) -> Vec<Recommendation> {
    let part = |one: &Recommendation| one.time.div_euclid((longest / 256).max(1));
    let parts = all.chunk_by(|a, b| part(a) == part(b));
    let bounds = parts.flat_map(|near| {
        let replicas = || near.iter().map(|one| one.replicas);
        let time = near.last().map_or(0, |one| one.time);
        let of = move |replicas: i32| Recommendation { replicas, time };
        let (lowest, highest) = (replicas().min(), replicas().max());
        lowest.into_iter().chain(highest.filter(|highest| Some(*highest) != lowest)).map(of)
    });
    bounds.collect()
}

/// A change of the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ScaleEvent {
    /// By how many replicas, as a positive number.
    pub change: i32,
    /// When.
    pub time: UnixMillis,
    /// Whether the entry is beyond every policy's period and may be reused.
    pub outdated: bool,
    /// Whether another than this autoscaler may have made it: then it limits changes in its
    /// own direction, and frees none in the other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsure: bool,
}

impl ScalingHistory {
    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.recommendations.is_empty() && self.ups.is_empty() && self.downs.is_empty()
    }

    /// The same history by a clock that is ahead by `by` milliseconds.
    #[must_use]
    pub fn shifted(mut self, by: UnixMillis) -> Self {
        for recommendation in &mut self.recommendations {
            recommendation.time = recommendation.time.saturating_add(by);
        }
        for event in self.ups.iter_mut().chain(&mut self.downs) {
            event.time = event.time.saturating_add(by);
        }
        self
    }

    /// Merges the history of another replica for the same autoscaler. All recommendations of both
    /// count. Changes of the scale count once: the other's, and those of this history that it lacks, by what it is
    /// known to cover.
    pub fn join(&mut self, other: Self, coverage: Coverage) {
        self.recommendations.extend(other.recommendations);
        let times = other.ups.iter().chain(&other.downs).map(|event| event.time);
        let is_complete = matches!(coverage, Coverage::All | Coverage::UntilItsLast);
        let end = times.max().filter(|_| is_complete).map(|last| last + OBSERVED_MS.end);
        let own = self.ups.iter().chain(&self.downs).map(|event| event.time);
        let newest = own.max().filter(|_| coverage == Coverage::NotTheNewest);
        for (events, mut others) in [(&mut self.ups, other.ups), (&mut self.downs, other.downs)] {
            if matches!(coverage, Coverage::All | Coverage::NotTheNewest) {
                keep_dates(events, &mut others, newest);
            }
            for known in &mut others {
                let later = |event: &ScaleEvent| match Some(event.time) == newest {
                    // Others observe what this replica did later, too.
                    true => known.time - event.time,
                    false => event.time - known.time,
                };
                let same = events.iter().enumerate().filter(|(_, event)| {
                    known.change == event.change && OBSERVED_MS.contains(&later(event))
                });
                // Of several the nearest: another may be as large a minute later.
                if let Some((index, _)) = same.min_by_key(|(_, event)| later(event).abs()) {
                    let own = events.remove(index);
                    if Some(own.time) == newest {
                        // They may be two changes: the later date ends no period early.
                        known.time = known.time.max(own.time);
                    }
                }
            }
            events.retain(|event| {
                let is_covered = coverage == Coverage::All && !event.unsure;
                !is_covered && end.is_none_or(|end| event.time > end)
            });
            events.extend(others);
        }
    }

    /// Whether it has a change by so many replicas that was observed at this time.
    pub fn has(&self, change: i32, observed: UnixMillis) -> bool {
        let events = if change > 0 { &self.ups } else { &self.downs };
        events.iter().any(|event| {
            event.change == change.abs() && OBSERVED_MS.contains(&(observed - event.time))
        })
    }

    /// Records that a fallback raised the scale: as a scale event
    /// for the policies, and as a recommendation for the stabilization window.
    pub fn record_fallback(&mut self, from: i32, to: i32, spec: &Spec, now: UnixMillis) {
        self.scaled(from, to, spec, now);
        self.recommend_fallback(to, now);
    }

    /// Records the replicas of a fallback for the stabilization window.
    pub fn recommend_fallback(&mut self, replicas: i32, now: UnixMillis) {
        self.recommend(replicas, now, None);
    }

    /// Records that so many replicas are kept, without a decision: in the place of recommendations of the same.
    pub fn keep(&mut self, replicas: i32, now: UnixMillis) {
        match self.recommendations.iter_mut().rfind(|made| made.replicas == replicas) {
            Some(same) => same.time = same.time.max(now),
            None => self.recommend(replicas, now, None),
        }
    }

    /// The history without entries that no later decision can see: recommendations that a
    /// later one is both as high and as low as, events beyond their periods, and
    /// entries older than the longest window, `longest` in ms. Of more than 512, those that are near
    /// to one another count until the last of them would.
    pub fn essential(&self, now: UnixMillis, longest: i64) -> Self {
        let mut recommendations: Vec<Recommendation> =
            self.recommendations.iter().copied().filter(|r| now - r.time <= longest).collect();
        recommendations.sort_by_key(|recommendation| recommendation.time);
        let (mut lowest, mut highest) = (i32::MAX, i32::MIN);
        let mut kept: Vec<Recommendation> = Vec::new();
        for recommendation in recommendations.into_iter().rev() {
            let replicas = recommendation.replicas;
            if replicas < lowest || replicas > highest {
                kept.push(recommendation);
            }
            (lowest, highest) = (lowest.min(replicas), highest.max(replicas));
        }
        kept.reverse();
        if kept.len() > MAX_RECOMMENDATIONS {
            kept = coarser(&kept, longest);
        }
        let events = |events: &[ScaleEvent]| {
            let lasts = |event: &&ScaleEvent| !event.outdated && now - event.time <= longest;
            events.iter().filter(lasts).copied().collect()
        };
        Self { recommendations: kept, ups: events(&self.ups), downs: events(&self.downs) }
    }

    /// Records the initial replicas as the first recommendation.
    pub(super) fn record_initial(&mut self, replicas: i32, now: UnixMillis) {
        if self.recommendations.is_empty() {
            self.recommendations.push(Recommendation { replicas, time: now });
        }
    }

    /// Bounds the recommendations that a decision at `now` has left: what held it back is no reason for a later one
    /// to be as high or as low.
    pub fn bound_recommendation(&mut self, now: UnixMillis, least: i32, most: i32) {
        for made in self.recommendations.iter_mut().filter(|made| made.time == now) {
            made.replicas = made.replicas.clamp(least, most);
        }
    }

    /// Records a recommendation, in place of an outdated one if there is one.
    pub(super) fn recommend(&mut self, replicas: i32, now: UnixMillis, outdated: Option<usize>) {
        let new = Recommendation { replicas, time: now };
        match outdated {
            Some(index) => self.recommendations[index] = new,
            None => self.recommendations.push(new),
        }
    }

    /// Records a change of the scale for the policies, if there are any.
    pub fn scaled(&mut self, from: i32, to: i32, spec: &Spec, now: UnixMillis) {
        self.record(from, to, spec, now, false);
    }

    /// Records a change that another writer may have made.
    pub fn maybe_scaled(&mut self, from: i32, to: i32, spec: &Spec, now: UnixMillis) {
        self.record(from, to, spec, now, true);
    }

    fn record(&mut self, from: i32, to: i32, spec: &Spec, now: UnixMillis, unsure: bool) {
        let Some(behavior) = &spec.behavior else { return };
        let (events, rules, change) = if to > from {
            (&mut self.ups, &behavior.scale_up, to.wrapping_sub(from))
        } else {
            (&mut self.downs, &behavior.scale_down, from.wrapping_sub(to))
        };
        let longest = rules.policies.iter().map(|policy| policy.period_seconds).max().unwrap_or(0);
        let cutoff = now - i64::from(longest.max(0)) * 1000;
        let mut free = None;
        for (index, event) in events.iter_mut().enumerate() {
            event.outdated |= event.time < cutoff;
            if event.outdated {
                free = Some(index);
            }
        }
        let new = ScaleEvent { change, time: now, outdated: false, unsure };
        match free {
            Some(index) => events[index] = new,
            None => events.push(new),
        }
    }
}

/// Keeps the dates of the changes that a checkpoint has, too: its own are later by what its age may be wrong. Only of
/// changes that are the same, one by one, so that none gets the date of the one before.
fn keep_dates(events: &[ScaleEvent], others: &mut [ScaleEvent], newest: Option<UnixMillis>) {
    let is_sure = |event: &ScaleEvent| !event.unsure && !event.outdated;
    let is_shared = |event: &&ScaleEvent| is_sure(event) && Some(event.time) != newest;
    let mut own: Vec<_> = events.iter().filter(is_shared).collect();
    let mut others: Vec<_> = others.iter_mut().filter(|event| is_sure(event)).collect();
    own.sort_by_key(|event| event.time);
    others.sort_by_key(|event| event.time);
    if !own.iter().map(|own| own.change).eq(others.iter().map(|other| other.change)) {
        return;
    }
    for (own, known) in own.into_iter().zip(others) {
        if (0..=YOUNGER_MS).contains(&(known.time - own.time)) {
            known.time = own.time;
        }
    }
}

/// How long after a change, by the replica that made it, another may observe it, in ms. It dates the
/// change when its write has ended. A watch may show it earlier, by twice the time limit of a request and 4 s: a
/// write that is given up after 10 s is dated when a read, of up to 10 s, has seen it, and the time between
/// two replicas is kube-apiserver's, to two seconds in each.
const OBSERVED_MS: std::ops::Range<i64> = -24_000..60_000;

/// By how much the age of a checkpoint's entry is too low, at most, in ms: what is known of kube-apiserver's time to two
/// seconds, when it is written and when it is read.
const YOUNGER_MS: i64 = 4_000;

/// The longest stabilization window and policy period of a spec, in ms. Source: the API's
/// validation of both, `MaxStabilizationWindowSeconds` and `MaxPeriodSeconds`.
pub const LONGEST_MS: i64 = 3_600_000;

/// The replicas by which the scale changed within a period, for changes in the same
/// direction or in the other.
pub(super) fn change_within(
    events: &[ScaleEvent],
    same: bool,
    period_seconds: i32,
    now: UnixMillis,
) -> i32 {
    let cutoff = now - i64::from(period_seconds) * 1000;
    events
        .iter()
        .filter(|event| event.time > cutoff && (same || !event.unsure))
        .fold(0, |sum: i32, event| sum.wrapping_add(event.change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_left_out_no_window_can_see(
            replicas in proptest::collection::vec(0..6, 1..40), window in 0_i64..700, later in 0_i64..60
        ) {
            let at = |n: usize| n as i64 * 15_000;
            let recommendations: Vec<_> = replicas
                .iter()
                .enumerate()
                .map(|(n, &replicas)| Recommendation { replicas, time: at(n) })
                .collect();
            let now = at(replicas.len() - 1);
            let history = ScalingHistory { recommendations, ..ScalingHistory::default() };
            let essential = history.essential(now, LONGEST_MS);
            let bounds = |history: &ScalingHistory| {
                let cutoff = now + later * 1000 - window * 1000;
                let seen = history.recommendations.iter().filter(|r| r.time > cutoff);
                let seen: Vec<i32> = seen.map(|r| r.replicas).collect();
                (seen.iter().min().copied(), seen.iter().max().copied())
            };
            prop_assert_eq!(bounds(&history), bounds(&essential));
            prop_assert!(essential.recommendations.len() <= 12);
            prop_assert_eq!(essential.essential(now, LONGEST_MS), essential);
        }
    }

    /// A tenant's metric may do that, in each second.
    #[test]
    fn of_thousands_of_recommendations_some_hundreds_hold_as_much_and_a_little_longer() {
        for falls in [true, false] {
            let replicas = |second: i32| if falls { 10_000 - second } else { second };
            let of = |second: i32| Recommendation {
                replicas: replicas(second),
                time: i64::from(second) * 1_000,
            };
            let mut kept = ScalingHistory::default();
            for second in 0..7_200 {
                kept.recommendations.push(of(second));
                kept = kept.essential(i64::from(second) * 1_000, LONGEST_MS);
                assert!(kept.recommendations.len() <= 516, "{}", kept.recommendations.len());
            }
            for window in [60, 300, 1_800, 3_600] {
                let seen = |window: i32| {
                    let seen = kept.recommendations.iter();
                    let seen = seen.filter(|one| one.time > i64::from(7_199 - window) * 1_000);
                    seen.map(|one| one.replicas).fold((i32::MAX, i32::MIN), |(least, most), one| {
                        (least.min(one), most.max(one))
                    })
                };
                let (least, most) = seen(window);
                let all = [7_200 - window, 7_199].map(replicas);
                let (lowest, highest) = (all[0].min(all[1]), all[0].max(all[1]));
                // Repeated, it is no coarser: a 256th of an hour is 14 s.
                assert!(least <= lowest && lowest - least <= 15, "{window}: {least} {lowest}");
                assert!(most >= highest && most - highest <= 15, "{window}: {most} {highest}");
            }
        }
    }

    /// A follower sees a change in its next evaluation, which may be when the next change is made.
    #[test]
    fn of_equal_changes_none_has_the_date_of_the_one_before() {
        let one = |time| ScaleEvent { change: 1, time, outdated: false, unsure: false };
        let of = |ups: &[_]| ScalingHistory { ups: ups.to_vec(), ..ScalingHistory::default() };
        let own = of(&[one(27_700), one(12_700)]);
        for all in [[one(15_000), one(0)], [one(0), one(15_000)]] {
            let mut history = own.clone();
            history.join(of(&all), Coverage::All);
            history.ups.sort_by_key(|event| event.time);
            assert_eq!(history.ups, [one(0), one(15_000)]);
        }
    }

    /// Nor if this history lacks one of them, or has not one of a hand.
    #[test]
    fn changes_that_only_one_history_has_shift_no_dates() {
        let one = |time, unsure| ScaleEvent { change: 1, time, outdated: false, unsure };
        let of = |ups: Vec<_>| ScalingHistory { ups, ..ScalingHistory::default() };
        let sure = |times: &[i64]| times.iter().map(|time| one(*time, false)).collect::<Vec<_>>();
        let hand = [sure(&[0, 15_000]), vec![one(25_000, true)]].concat();
        for (own, other) in
            [(&[12_700, 27_700], hand), (&[12_700, 45_000], sure(&[0, 15_000, 45_000]))]
        {
            let mut history = of(sure(own));
            history.join(of(other.clone()), Coverage::All);
            history.ups.sort_by_key(|event| event.time);
            assert_eq!(history.ups, other);
        }
    }

    /// It would end a policy's period early. The order of entries says nothing: outdated ones are used again.
    #[test]
    fn a_change_that_another_one_may_be_keeps_its_later_date() {
        let one = |time| ScaleEvent { change: 2, time, outdated: false, unsure: false };
        for (coverage, own, other) in [
            (Coverage::NotTheNewest, vec![one(60_000)], vec![one(76_000), one(60_100)]),
            (Coverage::NotTheNewest, vec![one(60_000)], vec![one(100_000)]),
            (Coverage::All, vec![one(60_100), one(130_000)], vec![one(76_000), one(60_000)]),
        ] {
            let of = |ups: Vec<_>| ScalingHistory { ups, ..ScalingHistory::default() };
            let mut history = of(own);
            let newest = other.iter().map(|event| event.time).max();
            history.join(of(other), coverage);
            assert_eq!(history.ups.iter().map(|event| event.time).max(), newest, "{history:?}");
        }
        // Of another's change before it, this replica's own newest has the date of neither.
        let mut history = ScalingHistory { ups: vec![one(76_000)], ..ScalingHistory::default() };
        let other = ScalingHistory { ups: vec![one(60_100)], ..ScalingHistory::default() };
        history.join(other, Coverage::NotTheNewest);
        assert_eq!(history.ups, [one(76_000)]);
    }

    /// Ages of a checkpoint are as young as possible: of two dates of one change the earlier is right.
    #[test]
    fn a_change_keeps_its_date_when_its_own_checkpoint_is_merged() {
        let one = |change, time| ScaleEvent { change, time, outdated: false, unsure: false };
        for (coverage, own) in [
            (Coverage::All, vec![one(1, 0), one(1, 20_000)]),
            (Coverage::NotTheNewest, vec![one(1, 0), one(1, 20_000), one(2, 40_000)]),
        ] {
            let of = |ups: Vec<_>| ScalingHistory { ups, ..ScalingHistory::default() };
            let mut history = of(own.clone());
            for younger in [2_000, 4_000] {
                history.join(of(vec![one(1, younger), one(1, 20_000 + younger)]), coverage);
                history.ups.sort_by_key(|event| event.time);
                assert_eq!(history.ups, own, "{coverage:?}");
            }
        }
    }

    #[test]
    fn a_change_that_another_may_have_made_limits_its_direction_and_frees_none_in_the_other() {
        let policy = r#"{"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}"#;
        let spec = format!(
            r#"{{"maxReplicas": 9, "scaleTargetRef": {{"kind": "Deployment", "name": "web"}},
                 "behavior": {{"scaleUp": {policy}, "scaleDown": {policy}}}}}"#
        );
        let spec = Spec::from_api(&serde_json::from_str(&spec).expect("a spec"));
        let mut history = ScalingHistory::default();
        history.maybe_scaled(5, 9, &spec, 0);
        history.maybe_scaled(9, 7, &spec, 0);
        history.scaled(7, 8, &spec, 0);
        let within = |events, same| change_within(events, same, 60, 1_000);
        assert_eq!((within(&history.ups, true), within(&history.ups, false)), (5, 1));
        assert_eq!((within(&history.downs, true), within(&history.downs, false)), (2, 0));
    }

    #[test]
    fn of_two_histories_each_change_counts_once() {
        let event = |change, time| ScaleEvent { change, time, outdated: false, unsure: false };
        let with =
            |ups: &[ScaleEvent]| ScalingHistory { ups: ups.to_vec(), ..ScalingHistory::default() };
        // One change is observed 12 s after it was made; the other history does not have the second yet.
        let mut history = with(&[event(1, 112_000), event(1, 130_000)]);
        history.join(with(&[event(1, 100_000)]), Coverage::Unknown);
        assert_eq!(history.ups, [event(1, 130_000), event(1, 100_000)]);
        // Its watch showed it before the API server had responded to the one who made it.
        let mut history = with(&[event(1, 91_000), event(1, 130_000)]);
        history.join(with(&[event(1, 100_000)]), Coverage::Unknown);
        assert_eq!(history.ups, [event(1, 130_000), event(1, 100_000)]);
        // The second is not the first, observed late.
        let mut history = with(&[event(2, 60_000), event(2, 24)]);
        history.join(with(&[event(2, 114)]), Coverage::Unknown);
        assert_eq!(history.ups, [event(2, 60_000), event(2, 114)]);
        let mut history = with(&[event(3, 112_000)]);
        history.join(with(&[event(1, 100_000), event(2, 105_000)]), Coverage::UntilItsLast);
        assert_eq!(history.ups, [event(1, 100_000), event(2, 105_000)]);
    }
}
