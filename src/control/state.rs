//! The state of an autoscaler between evaluations. Plain state: the caller does the I/O.

use super::checkpoint::Checkpoint;
use super::comparison::Comparison;
use super::decision_time::DecisionTime;
use super::failures::Failures;
use super::noted::Described;
use super::rescales::{Change, LastChange, Rescales};
use super::schedule::hash;
use super::status::LastWrite;
use super::targets::Target;
use super::warnings::Warnings;
use super::zero;
use crate::hpa::{
    self, ConditionKind, Context, Decision, Recommendation, ScalingHistory, Spec, Status, TargetRef,
};
use crate::samples::QueryHandle;
use crate::time::UnixMillis;
use std::time::Duration;
use tokio::time::Instant;

/// The state of an autoscaler between evaluations. There are thousands: what few have is boxed.
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
    /// Whether no status was written or found written in that term yet.
    pub is_unsaid_in_term: bool,
    /// Whether a workload that was scaled to zero may have replicas by now, whatever the watch shows.
    pub is_zero_in_doubt: bool,
    /// When the last evaluation was, by the clock of this process.
    evaluated: Option<UnixMillis>,
    /// The group, kind and name of the target of the last evaluation.
    target: Option<Box<str>>,
    /// The effective minimum and maximum of replicas, once known, if no schedule moves them.
    bounds: Option<(i32, i32)>,
    /// When the status of a frozen autoscaler last got new desired replicas, and which.
    pub frozen_shown: Option<Box<(Instant, i32)>>,
    /// Since when fewer pods are known than the scale has replicas.
    pods_missing_since: Option<Instant>,
    /// The comparison with kube-controller-manager, for a native HPA that is observed.
    pub comparison: Option<Box<Comparison>>,
    /// When the selector of an observed HPA's target was read, if its kind is not watched.
    pub selector_read: Option<Instant>,
    /// The reason of the failure that was logged last.
    pub logged_failure: Option<Box<str>>,
    /// Which changes of the scale `history` knows of.
    pub rescales: Rescales,
    /// The change of a fallback whose write was indeterminate, until it is known what came of it.
    pub open_fallback: Option<Change>,
    /// What is probably a mistake in the configuration around it.
    pub warnings: Warnings,
    /// The schedules that were active at the last decision, if there was one, and since when.
    pub active: Option<Vec<(String, UnixMillis)>>,
    /// The queries of each metric when it was last read.
    pub queries: Vec<RepeatedQueries>,
    /// Whether a scale was written that no decision asked for: a checkpoint is due.
    pub is_unsaved: bool,
    /// When the policies that limited the last decision first allow more, by the clock of this process.
    pub release: Option<UnixMillis>,
    /// At its phase, when the evaluation was due that was brought forward to a release.
    pub phase: Option<Instant>,
    /// Since when, by the clock of this process, an announced scale to zero is known.
    pub zero_pending_since: Option<UnixMillis>,
    /// What the last decision was based on.
    pub described: Option<Box<Described>>,
    /// The turn of this evaluation.
    pub turn: Option<i64>,
    /// The turn in which a replica that does not lead last read all metrics, and the replicas, if it was at rest then.
    pub followed: Option<(i64, i32)>,
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

    /// Those of the next one, in a lease term or without.
    pub fn next_queries(&self, term: Option<u64>) -> impl Iterator<Item = &QueryHandle> {
        self.queries().filter(move |_| term.is_some() || self.followed_at().is_none())
    }

    /// The replicas at which a replica that does not lead has read its metrics in this turn, at rest.
    pub fn followed_at(&self) -> Option<i32> {
        self.followed.filter(|(turn, _)| Some(*turn) == self.turn).map(|(_, replicas)| replicas)
    }

    /// Whether a decision at these replicas needs no history: within its windows the newest recommendation keeps them, and
    /// none asks for more. One for fewer would count only once the newest has left the window, which it leaves before.
    pub fn is_at_rest(&self, context: Context<'_>, replicas: i32, now: UnixMillis) -> bool {
        let [up, down] = context.windows();
        // What was not recommended must not delay a scale-up.
        if up > 0 || self.withheld.is_some() {
            return false;
        }
        let bounded = |one: &Recommendation| {
            (one.time, one.replicas.max(context.bounds.min).min(context.bounds.max))
        };
        let within = self.history.recommendations.iter().filter(|one| now - one.time <= down);
        let newest = within.clone().map(bounded).max_by_key(|(time, _)| *time);
        newest.is_none_or(|(_, newest)| newest == replicas)
            && within.map(bounded).all(|(_, one)| one <= replicas)
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
        self.history.recommendations.shrink_to_fit();
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
            *self = Self { uid: uid.to_owned(), turn: self.turn, ..Self::default() };
        }
        let before = std::mem::replace(&mut self.status, status);
        self.status.note_failing(&before);
        if let Some(written) = &mut self.written {
            written.compare_soon();
        }
        let leads = term.is_some();
        (self.is_first_in_term, self.is_unread_in_term, self.is_zero_in_doubt) =
            (leads, leads, leads);
        self.is_unsaid_in_term = leads;
        self.warnings.begin_term();
        self.zero_pending_since = None;
        self.term = term;
    }

    /// What was written to another target says nothing of this one. Recommendations and events stay, as upstream's do.
    pub fn follow_target(&mut self, target: &TargetRef, now: UnixMillis) {
        let group = hpa::parse_group(&target.api_version).ok();
        let named = format!("{group:?} {} {}", target.kind, target.name);
        let last = self.target.replace(named.as_str().into());
        if last.is_some_and(|last| *last != *named) {
            (self.rescales, self.bounds) = (Rescales::default(), None);
            self.warnings = Warnings::default();
            self.status.end(ConditionKind::ConfigurationWarning, "the target is another", now);
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

    /// Notes an evaluation at this time. A metric does not fail in the time before one that could not read the scale,
    /// as such an evaluation counts for no fallback.
    pub fn note_evaluation(&mut self, scale_is_known: bool, now: UnixMillis) {
        if let Some(before) = self.evaluated.replace(now).filter(|_| !scale_is_known) {
            self.status.shift_failing((now - before).max(0));
        }
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
        // The window may have been set shorter since.
        let within = self.withheld.map(|(since, until)| (since, until.min(since + window)));
        self.withheld = within.filter(|(_, until)| now < *until);
        self.withheld.is_some()
    }

    /// Notes changes of the scale: those of other replicas, by the status and by the scale, and that of
    /// an indeterminate write of this replica. If Plimsoll does not scale it, what raises it has reasons of its own.
    pub fn note_scale(&mut self, spec: &Spec, target: &Target, at: DecisionTime, scaled: bool) {
        let replicas = target.replicas.spec_replicas;
        let now = at.process;
        // Those of a schedule change, and may let a recommendation count that these hide.
        let has_fixed = spec.schedules.is_empty();
        self.bounds = has_fixed.then_some((spec.min_replicas, spec.max_replicas));
        let is_read = target.object.is_some();
        // A recommendation also counts in a window for scaling up, where a replica that does not lead has read each period.
        let keeps = scaled && spec.scale_up_window() == 0;
        // A watch that is behind may show any number.
        self.open_fallback =
            self.open_fallback.filter(|open| !is_read || [open.from, open.to].contains(&replicas));
        let came = self.open_fallback.and_then(|open| self.rescales.came(open, replicas, now));
        if let Some(came) = came {
            // Whoever leads by now.
            self.open_fallback = None;
            self.history.recommend_fallback(replicas, came);
            self.is_unsaved = true;
        }
        if self.term.is_none() || self.is_first_in_term {
            self.rescales.note_scale(replicas, now);
            let Status { last_scale, desired_replicas, .. } = self.status;
            let reported =
                self.rescales.note_status(last_scale.map(seconds), desired_replicas, now);
            let unreported =
                std::mem::take(&mut self.is_first_in_term).then(|| self.rescales.begin_term());
            if let Some(change) = reported {
                let Change { from, to, at } = change;
                self.history.scaled(from, to, spec, at);
                self.keep_raised(change, keeps);
            }
            for change in unreported.into_iter().flatten() {
                let Change { from, to, at } = change;
                self.history.maybe_scaled(from, to, spec, at);
                self.keep_raised(change, keeps);
            }
        }
        if is_read
            && std::mem::take(&mut self.is_unread_in_term)
            && let Some(change) = self.rescales.note_first_read(replicas, now)
        {
            let Change { from, to, at } = change;
            self.history.maybe_scaled(from, to, spec, at);
            self.keep_raised(change, keeps);
        }
        if self.term.is_some()
            && let Some(change) = self.rescales.note_scale_as_leader(replicas, is_read, now)
        {
            let Change { from, to, at: done } = change;
            if change.may_be_of_another_writer(now) {
                self.history.maybe_scaled(from, to, spec, done);
                // Zero may be the other writer's, who alone ends it then.
                if to > 0 {
                    zero::note_rescale(&mut self.status, to, at.wall);
                }
                return;
            }
            self.history.scaled(from, to, spec, done);
            let wall = at.wall - (now - done);
            (self.status.last_scale, self.status.desired_replicas) = (Some(wall), to);
            self.rescaled(from, to, at.process, wall);
            zero::note_rescale(&mut self.status, to, at.wall);
        }
    }

    /// Counts what another replica raised the scale to as recommended then, as that one did: it may have seen a load that
    /// this one has not. Before a status says whose change it is, it may be another writer's.
    fn keep_raised(&mut self, Change { from, to, at }: Change, keeps: bool) {
        if keeps && to > from {
            self.history.keep(to, at);
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
mod tests;
