//! Taking the Lease, keeping it, and giving it back.

use super::freeze::{self, Freeze};
use super::{ElectionSettings, Inner, LABEL, Leader, version};
use crate::prometheus;
use crate::watch::{Failures, Growing};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use std::time::{Duration, Instant, SystemTime};

/// What a Lease says of who holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    holder: String,
    term: i32,
    duration: Duration,
    renewed: Option<MicroTime>,
}

impl Seen {
    fn of(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.unwrap_or(0).max(0).unsigned_abs();
        Self {
            holder: spec.holder_identity.unwrap_or_default(),
            term: spec.lease_transitions.unwrap_or(0),
            duration: Duration::from_secs(seconds.into()),
            renewed: spec.renew_time,
        }
    }
}

/// Takes and keeps the Lease.
pub(super) struct Candidate<'a> {
    leader: &'a Leader,
    prometheus: &'a prometheus::Client,
    /// The Lease as it was last seen, what it says of its holder, and when that was news.
    seen: Option<(Lease, Seen, Instant)>,
    /// Whether a watch told of an older one since.
    unsure: bool,
    /// How long nothing is tried, and how often in a row it failed.
    waits: Waits,
    failures: Failures,
    /// Whether the Lease was handed over as Prometheus can't be reached from here.
    handed_over: bool,
}

/// The least time between two tries.
const SOON: Duration = Duration::from_millis(100);
/// How long after a first try that was not allowed the next one is made, and after many.
/// An API server that starts allows nothing before it has read the roles.
const FORBIDDEN: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];
/// How long Prometheus may fail a leader before it lets another try.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long after a try of the Lease the next one is made, at the soonest. It doubles with each
/// failure of its kind, until a try goes well.
#[derive(Default)]
struct Waits {
    now: Option<Duration>,
    failed: Option<Duration>,
    forbidden: Option<Duration>,
}

impl Waits {
    /// A try failed; it is at least as long as the first of these, and at most the second.
    fn grow(&mut self, forbidden: bool, [first, longest]: [Duration; 2]) {
        let last = if forbidden { &mut self.forbidden } else { &mut self.failed };
        *last = Some(last.map_or(first, |last| last * 2).min(longest));
        self.now = *last;
    }
}

impl Leader {
    /// Takes and keeps the Lease until `stop`, and gives it back then; follows
    /// whether writes are frozen.
    ///
    /// A leader that can't reach Prometheus hands over once, and a candidate that
    /// can't waits twice as long as others: who can decide shall lead.
    pub async fn run(&self, prometheus: &prometheus::Client, stop: impl Future<Output = ()>) {
        let Inner { api, settings, .. } = &*self.0;
        let only = watcher::Config::default().fields(&format!("metadata.name={}", settings.name));
        let (waits, progress) = Growing::new();
        let mut leases = watcher(api.clone(), only).backoff(waits).boxed();
        let mut failures = Failures::default();
        let mut candidate = Candidate::new(self, prometheus);
        let mut next = Instant::now();
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(event) = leases.next() => {
                    if !matches!(event, Ok(Event::Init) | Err(_)) {
                        progress.made();
                        failures.end();
                    }
                    match event {
                        Ok(Event::Apply(lease) | Event::InitApply(lease)) => candidate.see(lease),
                        // Others wait until whoever held it must have seen that.
                        Ok(Event::Delete(_)) => {
                            let held = candidate.holds();
                            candidate.gone();
                            next = Instant::now() + if held { SOON } else { settings.lease };
                            continue;
                        }
                        Ok(Event::Init | Event::InitDone) => continue,
                        Err(error) => {
                            if let Some(failures) = failures.one_more() {
                                tracing::warn!(%error, failures, "can't follow the Lease");
                            }
                            continue;
                        }
                    }
                    next = next.min(candidate.next());
                }
                () = tokio::time::sleep_until(next.into()) => {
                    candidate.step().await;
                    next = candidate.next().max(Instant::now() + candidate.wait());
                }
            }
        }
        candidate.release().await;
    }
}

impl<'a> Candidate<'a> {
    pub fn new(leader: &'a Leader, prometheus: &'a prometheus::Client) -> Self {
        let (waits, failures) = (Waits::default(), Failures::default());
        Self { leader, prometheus, seen: None, unsure: false, waits, failures, handed_over: false }
    }

    fn settings(&self) -> &ElectionSettings {
        &self.leader.0.settings
    }

    /// The Lease is no longer there.
    pub fn gone(&mut self) {
        self.leader.lead_no_more(None);
        (self.seen, self.unsure) = (None, false);
    }

    /// A watch tells of it. It may be behind what was read or written here; or etcd was
    /// restored, and versions have begun anew: then the Lease itself is asked.
    pub fn see(&mut self, lease: Lease) {
        self.unsure = self.is_older(&lease);
        if !self.unsure {
            self.know(lease);
        }
    }

    /// Whether more was known already; of one that was made anew, by what was frozen.
    fn is_older(&self, lease: &Lease) -> bool {
        let frozen = || super::locked(&self.leader.0.frozen).version;
        let known = self.seen.as_ref().map_or_else(frozen, |(known, ..)| version(known));
        known > version(lease)
    }

    /// It was read or written here: whatever was known before is older.
    fn know(&mut self, lease: Lease) {
        let anew = self.is_older(&lease);
        if anew {
            tracing::warn!("The resourceVersion of the Lease has gone back");
        }
        self.unsure = false;
        self.leader.see_freeze(&lease, anew);
        let now = Seen::of(&lease);
        if now.holder != self.settings().identity {
            self.leader.lead_no_more(Some(&lease));
        }
        // That somebody annotated it neither renews it nor delays a renewal.
        let since = match &self.seen {
            Some((_, before, at)) if *before == now => *at,
            _ => Instant::now(),
        };
        self.seen = Some((lease, now, since));
    }

    fn holds(&self) -> bool {
        self.seen.as_ref().is_some_and(|(_, seen, _)| seen.holder == self.settings().identity)
    }

    /// Whether a freeze or thaw waits for an answer that this replica has to give.
    fn is_asked(&self) -> bool {
        let answers = self.holds() || !self.settings().elect;
        let asked = |(lease, ..): &(Lease, _, _)| freeze::unanswered(lease).is_some();
        answers && self.seen.as_ref().is_some_and(asked)
    }

    /// When to renew the Lease, or to try to take it.
    pub fn next(&self) -> Instant {
        if self.unsure || self.is_asked() {
            return Instant::now() + SOON;
        }
        let retry = self.settings().retry;
        if !self.settings().elect {
            return Instant::now() + retry;
        }
        match &self.seen {
            Some((_, seen, at)) if seen.holder == self.settings().identity => *at + retry,
            Some((_, seen, at)) => {
                let free = if seen.holder.is_empty() { *at } else { *at + seen.duration };
                free + self.handicap()
            }
            None => Instant::now() + retry / 4,
        }
    }

    /// How long after a step the next one is made, at the soonest.
    pub fn wait(&self) -> Duration {
        self.waits.now.unwrap_or(SOON)
    }

    /// What a replica leaves to others that can do better.
    fn handicap(&self) -> Duration {
        match self.prometheus.failing_for() {
            Some(_) => self.settings().lease,
            None => Duration::ZERO,
        }
    }

    pub async fn step(&mut self) {
        let failing = self.prometheus.failing_for();
        if failing.is_none() {
            self.handed_over = false;
        } else if self.holds() && !self.handed_over && failing > Some(PATIENCE) {
            tracing::warn!(?failing, "Prometheus can't be reached from here: another may lead");
            self.handed_over = true;
            return self.release().await;
        }
        let limit = self.settings().renew_deadline / 2;
        let written = tokio::time::timeout(limit, self.write()).await;
        if let Ok(Ok(())) = written {
            (self.waits, self.failures) = Default::default();
        } else {
            self.failed(written.ok().and_then(Result::err));
        }
        if self.leader.term().is_none() {
            self.leader.lead_no_more(self.seen.as_ref().map(|(lease, ..)| lease));
        }
    }

    /// A try failed, by this error or without an answer.
    fn failed(&mut self, error: Option<kube::Error>) {
        let forbidden = matches!(&error, Some(kube::Error::Api(status)) if status.code == 403);
        // A leader tries as often as it renews, so that it still can before its term ends.
        let errors = [SOON, self.settings().retry.max(SOON)];
        self.waits.grow(forbidden, if forbidden { FORBIDDEN } else { errors });
        let Some(failures) = self.failures.one_more() else { return };
        match error {
            Some(error) => tracing::warn!(%error, failures, "could not take or renew the Lease"),
            None => tracing::warn!(failures, "the API server did not answer about the Lease"),
        }
    }

    /// Writes the Lease where it is time to.
    async fn write(&mut self) -> Result<(), kube::Error> {
        if self.unsure {
            let read = self.leader.0.api.get_opt(&self.settings().name).await?;
            // That it is gone the watch tells, too.
            self.unsure = false;
            if let Some(lease) = read {
                self.know(lease);
            }
        }
        let Some((lease, seen, since)) = &self.seen else {
            return if self.settings().elect { self.look().await } else { Ok(()) };
        };
        let (mut lease, transitions, since) = (lease.clone(), seen.term, *since);
        // A freeze holds when no write to a scale is under way that began before it; of a
        // thaw it is enough that it was heard.
        let freeze = Freeze::of(&lease);
        let holds = freeze.is_none() || self.leader.0.scales.is_none();
        let is_heard = super::locked(&self.leader.0.frozen).freeze == freeze;
        let answers = self.is_asked() && holds && is_heard;
        if answers {
            freeze::answer(&mut lease);
        }
        let server = self.leader.0.clock.server();
        let now = server.and_then(|now| Timestamp::from_millisecond(now).ok());
        let may_thaw = self.holds() || !self.settings().elect;
        let thaws = may_thaw && now.is_some_and(|now| freeze::expire(&mut lease, now));
        if !self.settings().elect {
            return if answers || thaws { self.annotate(lease).await } else { Ok(()) };
        }
        let due = if self.holds() { since + self.settings().retry } else { self.next() };
        if answers || thaws || due <= Instant::now() {
            return self.take(lease, transitions).await;
        }
        Ok(())
    }

    /// Takes the Lease, or renews it.
    async fn take(&mut self, mut lease: Lease, transitions: i32) -> Result<(), kube::Error> {
        let (begun, wall) = (Instant::now(), SystemTime::now());
        let now = Some(MicroTime(Timestamp::now()));
        let seconds = i32::try_from(self.settings().lease.as_secs()).unwrap_or(i32::MAX);
        let labels = lease.metadata.labels.get_or_insert_default();
        labels.entry(LABEL.0.to_owned()).or_insert_with(|| LABEL.1.to_owned());
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(self.settings().identity.clone());
        spec.lease_duration_seconds = Some(seconds);
        spec.renew_time = now.clone();
        if !self.holds() {
            spec.acquire_time = now;
            spec.lease_transitions = Some(transitions.saturating_add(1));
        }
        let Some(lease) = self.put(&lease).await? else { return Ok(()) };
        let ElectionSettings { renew_deadline, lease: duration, .. } = *self.settings();
        let until = (begun + renew_deadline, wall + renew_deadline);
        self.know(lease.clone());
        self.leader.lead(Seen::of(&lease).term, until, begun + duration, &lease);
        Ok(())
    }

    /// Writes annotations alone, where there is no election.
    async fn annotate(&mut self, lease: Lease) -> Result<(), kube::Error> {
        if let Some(lease) = self.put(&lease).await? {
            self.know(lease);
        }
        Ok(())
    }

    /// Reads the Lease; makes it where there is none.
    async fn look(&mut self) -> Result<(), kube::Error> {
        if let Some(lease) = self.leader.0.api.get_opt(&self.settings().name).await? {
            self.know(lease);
            return Ok(());
        }
        let freeze = super::locked(&self.leader.0.frozen).freeze.clone();
        let metadata = ObjectMeta {
            name: Some(self.settings().name.clone()),
            labels: Some([(LABEL.0.to_owned(), LABEL.1.to_owned())].into()),
            // Who deletes the Lease does not thaw by that.
            annotations: freeze.as_ref().map(Freeze::annotations),
            ..ObjectMeta::default()
        };
        let free = Lease { metadata, spec: Some(LeaseSpec::default()) };
        match self.leader.0.api.create(&PostParams::default(), &free).await {
            Ok(lease) => self.know(lease),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Writes the Lease as it was seen, with what was changed; none where another was
    /// faster, which is read then.
    async fn put(&mut self, lease: &Lease) -> Result<Option<Lease>, kube::Error> {
        let Inner { api, settings, .. } = &*self.leader.0;
        match api.replace(&settings.name, &PostParams::default(), lease).await {
            Ok(lease) => Ok(Some(lease)),
            // It is gone, or another was faster.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                self.gone();
                Ok(None)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                if let Some(lease) = api.get_opt(&settings.name).await? {
                    self.know(lease);
                } else {
                    self.gone();
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives the Lease back, so that another need not wait: once no write of this term
    /// is under way.
    pub async fn release(&mut self) {
        let held = self.leader.term().is_some();
        let lease = self.seen.as_ref().map(|(lease, ..)| lease.clone());
        self.leader.lead_no_more(lease.as_ref());
        let Some(mut lease) = lease.filter(|_| held && self.holds()) else { return };
        // Each of them is given up before the Lease may be taken anyway. What the next leader
        // acknowledges holds for a scale, too, that the API server may write yet.
        let Inner { writes, scales, .. } = &*self.leader.0;
        let none = async { tokio::join!(writes.none(), scales.none()) };
        if tokio::time::timeout(self.settings().lease, none).await.is_err() {
            return;
        }
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = None;
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        let parameters = PostParams::default();
        let given = self.leader.0.api.replace(&self.settings().name, &parameters, &lease);
        match tokio::time::timeout(self.settings().renew_deadline / 2, given).await {
            Ok(Ok(lease)) => self.know(lease),
            Ok(Err(error)) => tracing::warn!(%error, "could not give the Lease back"),
            Err(_) => tracing::warn!("could not give the Lease back in time"),
        }
    }
}
