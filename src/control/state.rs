//! The state of an autoscaler between evaluations. Plain state: the caller does the I/O.

use super::checkpoint::Checkpoint;
use super::comparison::Comparison;
use super::decision_time::DecisionTime;
use super::failures::Failures;
use super::rescales::{Change, LastChange, Rescales};
use super::schedule::hash;
use super::status::LastWrite;
use super::targets::Target;
use super::zero;
use crate::hpa::{self, Decision, Recommendation, ScalingHistory, Spec, Status, TargetRef};
use crate::samples::QueryHandle;
use crate::time::UnixMillis;
use std::time::Duration;
use tokio::time::Instant;

/// The state of an autoscaler between evaluations.
#[derive(Default)]
pub struct AutoscalerState {
    /// The scaling history, by the clock of this process.
    pub history: ScalingHistory,
    pub status: Status,
    /// The status that was written last.
    pub written: Option<LastWrite>,
    /// For how many rounds in a row the metrics have failed.
    pub failures: Failures,
    /// Whether its last evaluation in this process had its metrics.
    pub measured: bool,
    /// Since when, and until when, no replica is removed because the metrics were missing: by
    /// the clock of this process.
    pub withheld: Option<(UnixMillis, UnixMillis)>,
    /// The replicas that the last comparison of an observed HPA desired.
    pub desired: Option<i32>,
    /// The lease term in which this replica made the status. In any other the status is read
    /// from the object, because another replica may have written it.
    term: Option<u64>,
    /// Whether no evaluation in that term has known the scale yet.
    pub is_first_in_term: bool,
    /// Whether no evaluation in that term has read the scale from the API server yet.
    is_unread_in_term: bool,
    /// Whether a workload that was scaled to zero may have replicas by now, whatever the watch shows.
    pub is_zero_in_doubt: bool,
    /// The target of the last evaluation.
    target: Option<TargetRef>,
    /// The effective minimum and maximum of replicas, once known.
    bounds: Option<(i32, i32)>,
    /// When the status of a frozen autoscaler last got new desired replicas, and which.
    pub frozen_shown: Option<(Instant, i32)>,
    /// Since when fewer pods are known than the scale has replicas.
    pods_missing_since: Option<Instant>,
    /// The comparison with kube-controller-manager, for a native HPA that is observed.
    pub comparison: Comparison,
    /// When the selector of an observed HPA's target was read, if its kind is not watched.
    pub selector_read: Option<Instant>,
    /// The reason of the failure that was logged last.
    pub logged_failure: Option<String>,
    /// Which changes of the scale `history` knows of.
    pub rescales: Rescales,
    /// The queries of each metric when it was last read.
    pub queries: Vec<RepeatedQueries>,
    /// When the policies that limited the last decision first allow more, by the clock of this process.
    pub release: Option<UnixMillis>,
    /// At its phase, when the evaluation was due that was brought forward to a release.
    pub phase: Option<Instant>,
    /// Since when, by the clock of this process, an announced scale to zero is known.
    pub zero_pending_since: Option<UnixMillis>,
    /// The UID of the object: a recreated object starts without history.
    pub uid: String,
}

/// The queries of a metric.
#[derive(Default)]
pub struct RepeatedQueries {
    pub queries: Vec<QueryHandle>,
    /// When the metric was read by them.
    pub read: Option<Instant>,
}

/// How long the queries of a metric that can't be read are repeated: longer than most outages, after which all
/// autoscalers share their queries as before. The metric may have been taken out of the spec, or the rules.
const MAX_REPEATED: Duration = Duration::from_secs(600);
/// How long missing pods withhold a scale-down: longer than it takes to detect that a watch has
/// stalled. After that the kind of the target must count its replicas otherwise.
const MAX_MISSING_PODS_HOLD: Duration = Duration::from_secs(300);
/// The number of recommendations beyond which those that no window needs are dropped.
const MAX_RECOMMENDATIONS: usize = 64;

impl AutoscalerState {
    /// The queries that the next evaluation is likely to repeat.
    pub fn queries(&self) -> impl Iterator<Item = &QueryHandle> {
        let is_repeated =
            |one: &&RepeatedQueries| one.read.is_some_and(|read| read.elapsed() < MAX_REPEATED);
        self.queries.iter().filter(is_repeated).flat_map(|one| &one.queries)
    }

    /// The hash of the shape of its first query.
    pub fn shape_hash(&self) -> Option<u64> {
        self.queries().next().map(|query| hash(query.shape()))
    }

    /// The state that a checkpoint restores, at a time of this process's clock.
    pub fn restored(checkpoint: Checkpoint, now: UnixMillis) -> Self {
        let mut state = Self::default();
        state.merge_checkpoint(checkpoint, now);
        state
    }

    /// Merges the checkpoint of an earlier leader, of the object that there is, at a time of this process's clock.
    pub fn merge_checkpoint(&mut self, checkpoint: Checkpoint, now: UnixMillis) {
        if self.uid != checkpoint.uid {
            // It is of the object before.
            *self = Self { uid: checkpoint.uid, ..Self::default() };
        }
        let time = checkpoint.last_scale;
        let coverage = self.rescales.coverage(time);
        let last = LastChange { time, replicas: checkpoint.last_replicas };
        self.rescales.merge_checkpoint(last, &checkpoint.history, now);
        self.history.join(checkpoint.history, coverage);
        let until = |withheld: &(UnixMillis, UnixMillis)| withheld.1;
        self.withheld = self.withheld.into_iter().chain(checkpoint.withheld).max_by_key(until);
    }

    /// Its checkpoint, at a time of this process's clock. None if a state without history would
    /// lead to the same decision: to keep the present replicas.
    pub fn checkpoint(&self, now: UnixMillis, longest_window: i64) -> Option<Checkpoint> {
        let mut history = self.history.essential(now, longest_window);
        // Recommendations are made before minReplicas and maxReplicas are applied.
        let keeps = |(min, max): (i32, i32), one: &Recommendation| {
            one.replicas.max(min).min(max) == self.status.current_replicas
        };
        let all = &history.recommendations;
        if self.bounds.is_some_and(|bounds| all.iter().all(|one| keeps(bounds, one))) {
            history.recommendations.clear();
        }
        let LastChange { time: last_scale, replicas: last_replicas } = self.rescales.last_change();
        let withheld = self.withheld.filter(|(_, until)| now < *until);
        let says_something = !history.is_empty() || withheld.is_some();
        let uid = self.uid.clone();
        says_something.then_some(Checkpoint { uid, history, last_scale, last_replicas, withheld })
    }

    /// Sets the scaling history that a decision results in, by its wall clock.
    pub fn set_history(&mut self, history: ScalingHistory, at: DecisionTime, longest_window: i64) {
        self.history = at.to_process_clock(history);
        if self.history.recommendations.len() > MAX_RECOMMENDATIONS {
            self.history = self.history.essential(at.process, longest_window);
        }
    }

    /// Edits the scaling history by the wall clock of a decision.
    pub fn edit_history(&mut self, at: DecisionTime, change: impl FnOnce(&mut ScalingHistory)) {
        let mut history = at.to_wall_clock(std::mem::take(&mut self.history));
        change(&mut history);
        self.history = at.to_process_clock(history);
    }

    /// Whether fewer pods are known than the scale has replicas, for at most [`MAX_MISSING_PODS_HOLD`].
    pub fn lacks_pods(&mut self, known: usize, replicas: i32) -> bool {
        if usize::try_from(replicas).is_ok_and(|replicas| known < replicas) {
            let since = self.pods_missing_since.get_or_insert_with(Instant::now);
            return since.elapsed() < MAX_MISSING_PODS_HOLD;
        }
        self.pods_missing_since = None;
        false
    }

    /// Whether the status is of this object and of this lease term of this replica.
    pub fn belongs_to(&self, uid: &str, term: Option<u64>) -> bool {
        self.uid == uid && term.is_some() && self.term == term
    }

    /// Begins a lease term, or evaluations without one, with the status of the object.
    pub fn begin(&mut self, uid: &str, term: Option<u64>, status: Status) {
        if self.uid != uid {
            *self = Self { uid: uid.to_owned(), ..Self::default() };
        }
        self.status = status;
        if let Some(written) = &mut self.written {
            written.compare_soon();
        }
        let leads = term.is_some();
        (self.is_first_in_term, self.is_unread_in_term, self.is_zero_in_doubt) =
            (leads, leads, leads);
        self.zero_pending_since = None;
        self.term = term;
    }

    /// What was written to another target says nothing of this one. Recommendations and events stay, as upstream's do.
    pub fn follow_target(&mut self, target: &TargetRef, now: UnixMillis) {
        let group =
            |target: &TargetRef| hpa::parse_group(&target.api_version).ok().map(str::to_owned);
        let is_same = |last: &TargetRef| {
            (&last.kind, &last.name, group(last)) == (&target.kind, &target.name, group(target))
        };
        if self.target.replace(target.clone()).is_some_and(|last| !is_same(&last)) {
            (self.rescales, self.bounds) = (Rescales::default(), None);
            if zero::pending_since(&self.status).is_some() {
                // Whatever replicas it has: it was not this one.
                zero::resolve(&mut self.status, 1, now);
            }
        }
    }

    /// Counts the rounds in a row whose metrics failed. Returns whether those of this evaluation did.
    /// One that could not read the scale says nothing about the metrics.
    pub fn count_failure(
        &mut self,
        decision: &Decision,
        scale_is_known: bool,
        (decided, period): (UnixMillis, Duration),
    ) -> bool {
        match decision.metrics_failed {
            true => self.failures.count(decided, period),
            false if scale_is_known => self.failures = Failures::default(),
            false => {}
        }
        decision.metrics_failed
    }

    /// Notes that an evaluation had its metrics. Returns whether removals are withheld.
    ///
    /// After a gap in the metrics no replica is removed until they have been back for as long as
    /// they were missing, at most for one scale-down window: the first rates after a gap are of
    /// too few samples, and the recommendations from before it may have left the window. `before`
    /// is the last time that there were metrics.
    ///
    /// Short gaps in a row share one window, so that metrics which fail every few evaluations don't
    /// withhold removals for ever. A gap of more than half a window starts a new one, because the
    /// stabilization window has little from before it.
    pub fn withholds_removals(
        &mut self,
        before: Option<UnixMillis>,
        window: i64,
        now: UnixMillis,
    ) -> bool {
        if !std::mem::replace(&mut self.measured, true)
            && let Some(before) = before
        {
            let gap = (now - before).max(0);
            let shared = self.withheld.filter(|_| gap <= window / 2);
            let (since, until) = shared.unwrap_or((now, now));
            let longer = now.saturating_add(gap).min(since + window);
            self.withheld = Some((since, until.max(longer)));
        }
        self.withheld = self.withheld.filter(|(_, until)| now < *until);
        self.withheld.is_some()
    }

    /// Notes changes of the scale: those of other replicas, by the status and by the scale, and that of
    /// an indeterminate write of this replica.
    pub fn note_scale(&mut self, spec: &Spec, target: &Target, at: DecisionTime) {
        let replicas = target.replicas.spec_replicas;
        let now = at.process;
        self.bounds = Some((spec.min_replicas, spec.max_replicas));
        let is_read = target.object.is_some();
        if self.term.is_none() || self.is_first_in_term {
            self.rescales.note_scale(replicas, now);
            let Status { last_scale, desired_replicas, .. } = self.status;
            let reported =
                self.rescales.note_status(last_scale.map(seconds), desired_replicas, now);
            let unreported =
                std::mem::take(&mut self.is_first_in_term).then(|| self.rescales.begin_term());
            if let Some(Change { from, to, at }) = reported {
                self.history.scaled(from, to, spec, at);
            }
            for Change { from, to, at } in unreported.into_iter().flatten() {
                self.history.maybe_scaled(from, to, spec, at);
            }
        }
        if is_read
            && std::mem::take(&mut self.is_unread_in_term)
            && let Some(Change { from, to, at }) = self.rescales.note_first_read(replicas, now)
        {
            self.history.maybe_scaled(from, to, spec, at);
        }
        if self.term.is_some()
            && let Some(Change { from, to, at: done }) =
                self.rescales.note_scale_as_leader(replicas, is_read, now)
        {
            self.history.scaled(from, to, spec, done);
            let wall = at.wall - (now - done);
            (self.status.last_scale, self.status.desired_replicas) = (Some(wall), to);
            self.rescaled(from, to, at.process, wall);
            zero::note_rescale(&mut self.status, to, at.wall);
        }
    }

    /// Notes that the API server has the replicas that the watch showed.
    pub fn note_equal_read(&mut self) {
        self.is_unread_in_term = false;
    }

    /// Notes that this replica has changed the scale, at a time of the wall clock, and when that is noted, by the
    /// clock of this process.
    pub fn rescaled(&mut self, from: i32, to: i32, now: UnixMillis, wall: UnixMillis) {
        self.rescales.rescaled(from, to, now, Some(seconds(wall)));
    }
}

/// A time as a status shows it.
fn seconds(time: UnixMillis) -> i64 {
    time.div_euclid(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpa::{self, Context, Input, LONGEST_MS, Recommendation, Samples, ScaleEvent};

    fn status(last_scale: Option<UnixMillis>) -> Status {
        Status { last_scale, current_replicas: 1, desired_replicas: 1, ..Status::default() }
    }

    #[test]
    fn the_status_is_read_again_in_each_term() {
        let mut state = AutoscalerState::default();
        state.begin("u", Some(1), status(None));
        assert!(state.belongs_to("u", Some(1)), "it is this replica's own");
        // Another replica led in between, though this one did not evaluate then.
        assert!(!state.belongs_to("u", Some(2)) && !state.belongs_to("another", Some(1)));
        state.begin("u", Some(2), status(Some(9_000)));
        assert_eq!(state.status.last_scale, Some(9_000));
        assert!(state.is_first_in_term && state.written.is_none());
        for _ in 0..2 {
            state.begin("u", None, status(Some(10_000)));
            assert!(!state.belongs_to("u", None));
        }
        assert_eq!(state.status.last_scale, Some(10_000));
        state.begin("another", Some(2), status(None));
        assert_eq!(state.status.last_scale, None);
    }

    #[test]
    fn removals_are_withheld_for_the_length_of_a_gap_and_at_most_a_window() {
        let (period, window) = (15_000, 300_000);
        // How long removals are withheld after a gap, if the metrics fail again in each evaluation
        // but every nth.
        let withheld = |gap: i64, nth: i64| {
            let mut state = AutoscalerState::default();
            let mut last = None;
            assert!(!state.withholds_removals(last, window, -gap), "there was no gap before");
            (last, state.measured) = (Some(-gap), false);
            let evaluation = (0..1_000).find(|evaluation| {
                let now = evaluation * period;
                if evaluation % nth != 0 {
                    state.measured = false;
                    return false;
                }
                let withholds = state.withholds_removals(last, window, now);
                last = Some(now);
                !withholds
            });
            evaluation.expect("removals are withheld for ever") * period
        };
        assert_eq!(withheld(60_000, 1), 60_000);
        assert_eq!(withheld(600_000, 1), 300_000);
        for nth in 2..6 {
            let time = withheld(60_000, nth);
            assert!((window..window + nth * period).contains(&time), "{nth}: {time}");
        }
        // A second outage that ends after the hold of the first starts a new hold.
        let mut state = AutoscalerState::default();
        assert!(state.withholds_removals(Some(-600_000), window, 0));
        state.measured = false;
        assert!(state.withholds_removals(Some(105_000), window, 720_000), "away for 10 minutes");
        assert!(state.withholds_removals(Some(720_000), window, 735_000));
        assert!(!state.withholds_removals(Some(1_005_000), window, 1_020_000));
        let mut state = AutoscalerState::default();
        assert!(!state.withholds_removals(Some(-600_000), 0, 0), "no window");
        // Without gaps nothing is withheld.
        assert!((1..100).all(|n| !state.withholds_removals(
            Some((n - 1) * period),
            window,
            n * period
        )));
    }

    fn event(change: i32, time: UnixMillis) -> ScaleEvent {
        ScaleEvent { change, time, outdated: false, unsure: false }
    }

    /// Half an hour later, merges the checkpoint of another leader with these scale-downs and scale-ups.
    fn merge(
        state: &mut AutoscalerState,
        downs: Vec<ScaleEvent>,
        ups: Vec<ScaleEvent>,
        last_scale: i64,
    ) {
        let history = ScalingHistory { downs, ups, ..ScalingHistory::default() };
        let (uid, last_scale) = (state.uid.clone(), Some(last_scale));
        let checkpoint =
            Checkpoint { uid, history, last_scale, last_replicas: None, withheld: None };
        state.merge_checkpoint(checkpoint, 1_900_000);
    }

    /// A replica that was cut off, or whose sync period is long, sees it late.
    #[test]
    fn a_change_that_was_observed_late_is_the_one_that_the_checkpoint_ends_with() {
        let mut state = AutoscalerState { uid: "u".to_owned(), ..AutoscalerState::default() };
        state.rescales.note_status(Some(100), 7, 83_000);
        state.history.ups = vec![event(3, 83_000)];
        merge(&mut state, vec![], vec![event(3, 0)], 100);
        assert_eq!(state.history.ups, [event(3, 0)]);
    }

    /// Of two equal changes within a minute, a checkpoint has the first: the second was not observed late.
    #[test]
    fn a_checkpoint_of_the_change_before_does_not_stand_for_the_last_one() {
        let mut state = AutoscalerState { uid: "u".to_owned(), ..AutoscalerState::default() };
        state.rescaled(8, 6, 1_000, 1_000);
        state.rescaled(6, 4, 60_000, 60_000);
        state.history.downs = vec![event(2, 60_000)];
        merge(&mut state, vec![event(2, 1_100)], vec![], 1);
        assert_eq!(state.history.downs, [event(2, 60_000), event(2, 1_100)]);
        // One of a leader since then has it, and one more. Of two dates the earlier is right.
        let with = |second| vec![event(2, 1_100), event(2, second), event(1, 70_000)];
        merge(&mut state, with(61_000), vec![], 70);
        assert_eq!(state.history.downs, with(60_000));
    }

    /// Replicas don't share a wall clock: that of the leader before is two hours ahead, and its last change is
    /// half an hour ago.
    #[test]
    fn an_older_checkpoint_of_a_clock_that_is_ahead_removes_no_change() {
        let mut state = AutoscalerState { uid: "u".to_owned(), ..AutoscalerState::default() };
        state.history.ups = vec![event(1, 1_800_000)];
        state.rescaled(1, 2, 1_800_000, 1_800_000);
        merge(&mut state, vec![event(1, 0)], vec![], 7_200);
        assert_eq!(state.history.ups, [event(1, 1_800_000)]);
        // Nor does one that another has observed.
        let mut follower = AutoscalerState { uid: "u".to_owned(), ..AutoscalerState::default() };
        follower.history.ups = vec![event(1, 1_800_000)];
        follower.rescales.note_status(Some(1_800), 2, 1_800_000);
        merge(&mut follower, vec![event(1, 0)], vec![], 7_200);
        assert_eq!(follower.history.ups, [event(1, 1_800_000)]);
    }

    #[test]
    fn the_history_of_an_idle_autoscaler_needs_no_checkpoint() {
        let at = |time| Recommendation { replicas: 0, time };
        let mut state = AutoscalerState {
            bounds: Some((1, 5)),
            status: status(None),
            ..AutoscalerState::default()
        };
        assert_eq!(state.checkpoint(0, LONGEST_MS), None, "there is no history");
        // At its minimum: what was recommended is below.
        state.history.recommendations = vec![at(0), at(15_000)];
        assert_eq!(state.checkpoint(15_000, LONGEST_MS), None);
        // So it is if the metric fluctuates there.
        state.history.recommendations = vec![at(0), Recommendation { replicas: 1, time: 15_000 }];
        assert_eq!(state.checkpoint(15_000, LONGEST_MS), None);
        state.history.recommendations = vec![at(0), at(15_000)];
        // Its window holds more replicas.
        state.history.recommendations.insert(0, Recommendation { replicas: 4, time: 0 });
        assert_eq!(state.checkpoint(15_000, LONGEST_MS).unwrap().history.recommendations.len(), 2);
        // A change of its scale is checkpointed, and nothing that changes in every evaluation.
        state.history.recommendations = vec![at(15_000)];
        state.history.downs =
            vec![ScaleEvent { change: 3, time: 0, outdated: false, unsure: false }];
        let kept = state.checkpoint(15_000, LONGEST_MS).unwrap();
        assert!(kept.history.recommendations.is_empty() && kept.history.downs.len() == 1);
        assert_eq!(state.checkpoint(LONGEST_MS + 1, LONGEST_MS), None);
    }

    #[test]
    fn only_metrics_that_failed_lead_to_the_fallback() {
        let spec = serde_json::json!({"maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "metrics": [{"type": "External", "external": {"metric": {"name": "queue"},
                "target": {"type": "AverageValue", "averageValue": "1"}}}]});
        let spec = Spec::from_api(&serde_json::from_value(spec).unwrap());
        let config = hpa::ControllerConfig::default();
        let names = ["shop/a".to_owned(), "shop/b".to_owned()];
        let ambiguous = hpa::Selected::Ambiguous { selector: "app=web", autoscalers: &names };
        for (selected, failed) in
            [(ambiguous, false), (hpa::Selected::Missing, false), (hpa::Selected::Pods(&[]), true)]
        {
            let input = Input {
                context: Context { spec: &spec, config: &config, now: 0 },
                namespace: "shop",
                scale: Ok(hpa::Scale { spec_replicas: 1, status_replicas: 1 }),
                selected,
                samples: &[Samples::Values(Err("Prometheus is away"))],
            };
            let (mut history, mut status) = (ScalingHistory::default(), Status::default());
            let decision = hpa::decide(&input, &mut history, &mut status, &mut ());
            assert_eq!(
                AutoscalerState::default().count_failure(
                    &decision,
                    true,
                    (0, Duration::from_secs(15))
                ),
                failed,
                "{selected:?}"
            );
        }
    }
}
