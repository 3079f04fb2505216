//! Which replica writes: the one that holds the Lease. All of them serve, watch
//! and decide, so that the next is warm when it takes over.
//!
//! The protocol is that of client-go's leader election. Beyond it every write is
//! fenced: it needs a [`Permit`] of the term in which it was decided, which ends
//! by this process's own clocks before another replica may take the Lease; and a
//! write to a scale is preceded by a look at the Lease itself.

use crate::prometheus;
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// The annotation of the Lease that stops all writes to scales; its value says why.
pub const FREEZE: &str = "plimsoll.dev/freeze";

/// How leadership is taken, kept and lost.
#[derive(Clone, Debug)]
pub struct ElectionSettings {
    /// Whether it is taken; without, this replica leads as long as it lives.
    pub elect: bool,
    /// The namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who this is; no other replica may have the same name.
    pub identity: String,
    /// How long others leave the Lease alone after it was renewed.
    pub lease: Duration,
    /// How long after the last renewal this replica believes that it leads; less
    /// than `lease`.
    pub renew_deadline: Duration,
    /// The time between two renewals; less than `renew_deadline`.
    pub retry: Duration,
}

impl ElectionSettings {
    /// A name that no other process has: that of the pod or machine, and the time.
    pub fn identity() -> String {
        let host = ["POD_NAME", "HOSTNAME"].iter().find_map(|name| std::env::var(name).ok());
        let host = host.or_else(|| std::fs::read_to_string("/etc/hostname").ok());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let host = host.unwrap_or_else(|| "plimsoll".to_owned());
        format!("{}_{:x}{:x}", host.trim(), now.as_nanos(), std::process::id())
    }
}

/// Tells whether this replica leads. Cheap to clone.
#[derive(Clone)]
pub struct Leader(Arc<Inner>);

struct Inner {
    /// The term that this replica has; it counts only while it is valid.
    term: Mutex<Option<Term>>,
    /// Counts changes of who leads and of what is frozen.
    changes: watch::Sender<u64>,
    frozen: Mutex<Option<Arc<str>>>,
    api: Api<Lease>,
    settings: ElectionSettings,
}

/// A time for which one replica leads.
#[derive(Clone, Copy, Debug)]
struct Term {
    /// Its number: how often the Lease had changed hands.
    number: i32,
    /// Until when it holds, by either clock: one may stand still while a machine
    /// does, the other may be set.
    until: (Instant, SystemTime),
    /// Until when no other can have taken the Lease.
    ended: Instant,
}

impl Term {
    fn is_valid(&self) -> bool {
        Instant::now() < self.until.0 && SystemTime::now() < self.until.1
    }
}

/// Leave to write, as long as the term lasts in which it was given.
#[derive(Clone)]
pub struct Permit {
    leader: Leader,
    /// None where this replica leads without election.
    term: Option<i32>,
}

/// Why a write was not done.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("this replica no longer leads")]
pub struct NotLeading;

/// The longest time for one request to the API server.
const REQUEST: Duration = Duration::from_secs(10);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Leader {
    /// One that leads once [`Leader::run`] has taken the Lease, or at once where
    /// there is no election.
    pub fn new(client: Client, settings: ElectionSettings) -> Self {
        Self(Arc::new(Inner {
            term: Mutex::default(),
            changes: watch::Sender::new(0),
            frozen: Mutex::default(),
            api: Api::namespaced(client, &settings.namespace),
            settings,
        }))
    }

    /// The namespace and name of the Lease.
    pub fn lease(&self) -> (&str, &str) {
        (&self.0.settings.namespace, &self.0.settings.name)
    }

    /// Leave to write, where this replica leads now.
    pub fn permit(&self) -> Option<Permit> {
        let term = match self.0.settings.elect {
            false => None,
            true => Some(locked(&self.0.term).filter(Term::is_valid)?.number),
        };
        Some(Permit { leader: self.clone(), term })
    }

    /// Why all writes to scales are stopped, where they are.
    pub fn frozen(&self) -> Option<Arc<str>> {
        locked(&self.0.frozen).clone()
    }

    /// Follows the changes of who leads, and of what is frozen.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn set_term(&self, term: Option<Term>) {
        let before = std::mem::replace(&mut *locked(&self.0.term), term);
        if before.map(|term| term.number) != term.map(|term| term.number) {
            match term {
                Some(term) => tracing::info!(term = term.number, "this replica leads"),
                None => tracing::warn!("this replica no longer leads"),
            }
            self.0.changes.send_modify(|changes| *changes += 1);
        }
    }

    fn set_frozen(&self, lease: &Lease) {
        let annotations = lease.metadata.annotations.as_ref();
        let now = annotations.and_then(|all| all.get(FREEZE)).map(|why| Arc::from(why.as_str()));
        let before = std::mem::replace(&mut *locked(&self.0.frozen), now.clone());
        if before != now {
            match now {
                Some(why) => tracing::warn!(why = &*why, "writes to scales are frozen"),
                None => tracing::warn!("writes to scales are no longer frozen"),
            }
            self.0.changes.send_modify(|changes| *changes += 1);
        }
    }
}

impl Permit {
    /// Whether the term still lasts.
    pub fn holds(&self) -> bool {
        self.deadline().is_some()
    }

    /// How long a write may take that begins now; none where the term is over.
    fn deadline(&self) -> Option<Duration> {
        let Some(number) = self.term else { return Some(REQUEST) };
        let term = locked(&self.leader.0.term).filter(Term::is_valid)?;
        let left = term.ended.saturating_duration_since(Instant::now());
        (term.number == number).then(|| left.min(REQUEST))
    }

    /// Does a write, if the term still lasts; it is given up before another
    /// replica may lead.
    ///
    /// # Errors
    /// Those of the write, and [`NotLeading`] as the cause of a service error.
    pub async fn write<T>(
        &self,
        write: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, kube::Error> {
        let deadline = self.deadline().ok_or_else(not_leading)?;
        match tokio::time::timeout(deadline, write).await {
            Ok(result) => result,
            Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
        }
    }

    /// Makes sure, by the Lease itself, that no other replica has taken it.
    ///
    /// # Errors
    /// Where one has, or where it can't be read.
    pub async fn confirm(&self) -> Result<(), kube::Error> {
        let Some(number) = self.term else { return Ok(()) };
        let Inner { api, settings, .. } = &*self.leader.0;
        let lease = self.write(api.get(&settings.name)).await?;
        let seen = Seen::of(&lease);
        if seen.holder == settings.identity && seen.term == number {
            return Ok(());
        }
        Err(not_leading())
    }
}

fn not_leading() -> kube::Error {
    kube::Error::Service(NotLeading.into())
}

/// What a Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    version: Option<String>,
    holder: String,
    term: i32,
    duration: Duration,
}

impl Seen {
    fn of(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.unwrap_or(0).max(0).unsigned_abs();
        Self {
            version: lease.metadata.resource_version.clone(),
            holder: spec.holder_identity.unwrap_or_default(),
            term: spec.lease_transitions.unwrap_or(0),
            duration: Duration::from_secs(seconds.into()),
        }
    }
}

/// Takes and keeps the Lease.
struct Candidate<'a> {
    leader: &'a Leader,
    prometheus: &'a prometheus::Client,
    /// The Lease as it was last seen, and when that was news.
    seen: Option<(Lease, Seen, Instant)>,
    /// Until when nothing is tried, as it is not allowed.
    forbidden: Option<Instant>,
    /// Whether the Lease was handed over as Prometheus can't be reached from here.
    handed_over: bool,
}

/// How long after a try that was not allowed the next one is made.
const FORBIDDEN: Duration = Duration::from_secs(30);
/// The least time between two tries.
const SOON: Duration = Duration::from_millis(100);
/// How long Prometheus may fail a leader before it lets another try.
const PATIENCE: Duration = Duration::from_secs(10);

impl Leader {
    /// Takes and keeps the Lease until `stop`, and gives it back then; follows
    /// whether writes are frozen.
    ///
    /// A leader that can't reach Prometheus hands over once, and a candidate that
    /// can't waits twice as long as others: who can decide shall lead.
    pub async fn run(&self, prometheus: &prometheus::Client, stop: impl Future<Output = ()>) {
        let Inner { api, settings, .. } = &*self.0;
        let only = watcher::Config::default().fields(&format!("metadata.name={}", settings.name));
        let mut leases = watcher(api.clone(), only).default_backoff().boxed();
        let mut candidate =
            Candidate { leader: self, prometheus, seen: None, forbidden: None, handed_over: false };
        let mut next = Instant::now();
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(event) = leases.next() => {
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
                            tracing::warn!(%error, "can't follow the Lease");
                            continue;
                        }
                    }
                    next = next.min(candidate.next());
                }
                () = tokio::time::sleep_until(next.into()), if settings.elect => {
                    candidate.step().await;
                    let least = candidate.forbidden.take().unwrap_or(Instant::now() + SOON);
                    next = candidate.next().max(least);
                }
            }
        }
        candidate.release().await;
    }
}

impl Candidate<'_> {
    fn settings(&self) -> &ElectionSettings {
        &self.leader.0.settings
    }

    /// The Lease is no longer there.
    fn gone(&mut self) {
        self.leader.set_term(None);
        self.seen = None;
    }

    fn see(&mut self, lease: Lease) {
        self.leader.set_frozen(&lease);
        let now = Seen::of(&lease);
        if self.seen.as_ref().is_some_and(|(_, before, _)| *before == now) {
            return;
        }
        // The watch may be behind what was read or written here.
        let version = |seen: &Seen| seen.version.as_ref()?.parse::<u64>().ok();
        if self.seen.as_ref().is_some_and(|(_, before, _)| version(before) > version(&now)) {
            return;
        }
        if now.holder != self.settings().identity {
            self.leader.set_term(None);
        }
        self.seen = Some((lease, now, Instant::now()));
    }

    fn holds(&self) -> bool {
        self.seen.as_ref().is_some_and(|(_, seen, _)| seen.holder == self.settings().identity)
    }

    /// When to renew the Lease, or to try to take it.
    fn next(&self) -> Instant {
        match &self.seen {
            Some((_, seen, at)) if seen.holder == self.settings().identity => {
                *at + self.settings().retry
            }
            Some((_, seen, at)) => {
                let free = if seen.holder.is_empty() { *at } else { *at + seen.duration };
                free + self.handicap()
            }
            None => Instant::now() + self.settings().retry / 4,
        }
    }

    /// What a replica leaves to others that can do better.
    fn handicap(&self) -> Duration {
        match self.prometheus.failing_for() {
            Some(_) => self.settings().lease,
            None => Duration::ZERO,
        }
    }

    async fn step(&mut self) {
        let failing = self.prometheus.failing_for();
        if failing.is_none() {
            self.handed_over = false;
        } else if self.holds() && !self.handed_over && failing > Some(PATIENCE) {
            tracing::warn!(?failing, "Prometheus can't be reached from here: another may lead");
            self.handed_over = true;
            return self.release().await;
        }
        if self.next() > Instant::now() && self.seen.is_some() {
            return;
        }
        let limit = self.settings().renew_deadline / 2;
        match tokio::time::timeout(limit, self.take()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                if matches!(&error, kube::Error::Api(status) if status.code == 403) {
                    self.forbidden = Some(Instant::now() + FORBIDDEN);
                }
                tracing::warn!(%error, "could not take or renew the Lease");
            }
            Err(_) => tracing::warn!(?limit, "the API server did not answer about the Lease"),
        }
        let lost = locked(&self.leader.0.term).is_some_and(|term| !term.is_valid());
        if lost {
            self.leader.set_term(None);
        }
    }

    /// Takes the Lease, or renews it.
    async fn take(&mut self) -> Result<(), kube::Error> {
        let Some((lease, seen, _)) = &self.seen else {
            return self.look().await;
        };
        let (holds, begun) = (self.holds(), Instant::now());
        let now = Some(MicroTime(Timestamp::now()));
        let mut lease = lease.clone();
        let seconds = i32::try_from(self.settings().lease.as_secs()).unwrap_or(i32::MAX);
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(self.settings().identity.clone());
        spec.lease_duration_seconds = Some(seconds);
        spec.renew_time = now.clone();
        if !holds {
            spec.acquire_time = now;
            spec.lease_transitions = Some(seen.term.saturating_add(1));
        }
        self.put(lease, begun).await
    }

    /// Reads the Lease; makes it where there is none.
    async fn look(&mut self) -> Result<(), kube::Error> {
        if let Some(lease) = self.leader.0.api.get_opt(&self.settings().name).await? {
            self.see(lease);
            return Ok(());
        }
        let frozen = self.leader.frozen();
        let metadata = ObjectMeta {
            name: Some(self.settings().name.clone()),
            // Who deletes the Lease does not thaw by that.
            annotations: frozen.map(|why| [(FREEZE.to_owned(), why.to_string())].into()),
            ..ObjectMeta::default()
        };
        let free = Lease { metadata, spec: Some(LeaseSpec::default()) };
        match self.leader.0.api.create(&PostParams::default(), &free).await {
            Ok(lease) => self.see(lease),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Writes the Lease as it was seen, with this replica in it.
    async fn put(&mut self, lease: Lease, begun: Instant) -> Result<(), kube::Error> {
        let wall = SystemTime::now();
        match self.leader.0.api.replace(&self.settings().name, &PostParams::default(), &lease).await
        {
            Ok(lease) => {
                let number = Seen::of(&lease).term;
                let ElectionSettings { renew_deadline, lease: duration, .. } = *self.settings();
                let until = (begun + renew_deadline, wall + renew_deadline);
                self.see(lease);
                self.leader.set_term(Some(Term { number, until, ended: begun + duration }));
                Ok(())
            }
            // It is gone, or another was faster.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                self.gone();
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.seen = None;
                self.look().await
            }
            Err(error) => Err(error),
        }
    }

    /// Gives the Lease back, so that another need not wait.
    async fn release(&mut self) {
        let held = self.leader.permit().is_some_and(|permit| permit.term.is_some());
        self.leader.set_term(None);
        let Some((lease, _, _)) = self.seen.as_ref().filter(|_| held && self.holds()) else {
            return;
        };
        let mut lease = lease.clone();
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = None;
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        let parameters = PostParams::default();
        let given = self.leader.0.api.replace(&self.settings().name, &parameters, &lease);
        match tokio::time::timeout(self.settings().renew_deadline / 2, given).await {
            Ok(Ok(lease)) => self.see(lease),
            Ok(Err(error)) => tracing::warn!(%error, "could not give the Lease back"),
            Err(_) => tracing::warn!("could not give the Lease back in time"),
        }
    }
}
