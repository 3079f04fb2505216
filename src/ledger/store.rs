//! The ledger of a replica: what it decided as the leader, or a copy of what the leader did.

use super::api::{Decision, Metadata};
use super::changes::Expired;
use super::content::{ChangesAfter, Content, Page, Scope, Sequences};
use super::entry::{Entry, Position};
use super::render;
use crate::time::UnixMillis;
use crate::watch::AutoscalerRef;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// The decisions of all autoscalers, as the leader made them. Cheap to clone.
#[derive(Clone)]
pub struct Ledger(Arc<Shared>);

struct Shared {
    /// Without any nothing is kept.
    max_bytes: usize,
    state: Mutex<State>,
    /// The resource version, for those who watch.
    changes: watch::Sender<u64>,
    /// Whether the process ends, and nothing more is recorded.
    closed: watch::Sender<bool>,
}

struct State {
    content: Content,
    role: Role,
    /// How many roles there were: what is meant for another one comes too late.
    epoch: u64,
    /// When it last had all of the leader's; none if it never had.
    synced: Option<Instant>,
    /// When it last heard from the leader.
    heard: Instant,
    /// Until when the first copy is waited for.
    awaited: Option<Instant>,
}

enum Role {
    /// This replica decides.
    Leads,
    /// Another one does, or none.
    Follows,
    /// Another one does, whose decisions are not all here yet.
    Copies(Copying),
}

/// How far a copy is: the leader's list is taken over in its order.
#[derive(Default)]
struct Copying {
    /// The last decision of the list that was taken over.
    place: Option<Position>,
    /// The highest resource version of these.
    version: u64,
}

/// A copy of the leader's ledger, until another begins or this replica leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyId(u64);

/// Why a copy can't continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// This replica leads, or another copy has begun.
    #[error("this replica leads, or copies another leader's decisions")]
    Superseded,
    /// The leader is of another version.
    #[error("the leader's decision {0} can't be read: is it of another version?")]
    Unreadable(String),
}

/// The resource versions of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The last one.
    pub last: u64,
    /// The one with which the present leadership began.
    pub began: u64,
    /// Since when the entries are all that were made, but for what was dropped.
    pub since: UnixMillis,
}

/// This replica does not know what the leader knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Behind {
    /// Nobody is to keep decisions.
    #[error("decisions are not kept: --decision-ledger-bytes is 0")]
    Off,
    /// It never did.
    #[error("this replica does not have the leader's decisions yet; try again")]
    NotCopied,
    /// It has not heard from the leader for so long.
    #[error("this replica has not heard from the leader for {} s; try again", .0.as_secs())]
    For(Duration),
}

/// What the ledger holds, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Size {
    /// The approximate memory in bytes.
    pub bytes: usize,
    /// The number of entries.
    pub entries: usize,
    /// How many entries were dropped so far.
    pub dropped: u64,
    /// Since when the entries are all that were made, but for what was dropped.
    pub since: UnixMillis,
    /// For how long it has not known all of the leader's; none if it never did.
    pub behind: Option<Duration>,
}

/// For how long a replica answers that does not hear from the leader: two bookmarks are missing.
const MAX_BEHIND: Duration = Duration::from_secs(75);
/// How long a request waits for a resource version that is not known here yet, as at kube-apiserver.
const VERSION_TIMEOUT: Duration = Duration::from_secs(3);
/// How long one waits for an entry: more than a copy is behind as a rule.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(1);

impl Ledger {
    /// An empty ledger of at most `max_bytes`, which began at `now`. One of no bytes keeps nothing, and copies nothing.
    pub fn new(max_bytes: usize, now: UnixMillis) -> Self {
        let version = first_version(now);
        let state = State {
            content: Content::new(version, now, max_bytes),
            role: Role::Follows,
            epoch: 0,
            synced: None,
            heard: Instant::now(),
            awaited: None,
        };
        let (changes, closed) = (watch::Sender::new(version), watch::Sender::new(false));
        Self(Arc::new(Shared { max_bytes, state: Mutex::new(state), changes, closed }))
    }

    /// Whether it keeps decisions.
    pub fn is_on(&self) -> bool {
        self.0.max_bytes > 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of a resource version.
    fn changed(&self, version: u64) {
        self.0.changes.send_if_modified(|last| std::mem::replace(last, version) != version);
    }

    /// Changes the state, and tells of it.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let changed = change(&mut state);
        let version = state.content.changes.version();
        drop(state);
        self.0.changes.send_modify(|last| *last = version);
        changed
    }

    /// A leadership of this replica begins: its decisions follow those that it has. If it lacks some that others made,
    /// who led until `led_until`, the history counts from now, and no name of theirs is used again.
    pub fn begin_term(&self, now: UnixMillis, led_until: Option<Instant>) {
        self.change(|state| {
            let copied = match &state.role {
                Role::Copies(copying) => copying.version,
                Role::Leads | Role::Follows => 0,
            };
            let last = state.content.changes.version().max(copied);
            let version = first_version(now).max(last + 1);
            state.content.changes.restart(version);
            state.content.began = version;
            if state.lacks(led_until) {
                let unknown = state.synced.map_or(Duration::ZERO, |synced| synced.elapsed());
                state.content.skip(now, unknown);
            }
            state.begin(Role::Leads);
            state.synced = Some(Instant::now());
        });
    }

    /// Whether decisions of other leaders are missing, of whom one led until then: a replica that has them leads better.
    pub fn lacks(&self, led_until: Option<Instant>) -> bool {
        self.is_on() && self.state().lacks(led_until)
    }

    /// Another replica leads: what it decides is not here yet.
    pub fn end_term(&self) {
        self.change(|state| {
            if let Role::Leads = state.role {
                state.begin(Role::Follows);
                state.heard = Instant::now();
                state.synced = Some(state.heard);
            }
        });
    }

    /// Records a decision of this replica, if it still leads.
    pub fn record(&self, autoscaler: &AutoscalerRef, decision: &Entry) {
        self.edit(|content| {
            content.newest = decision.last;
            content.edit(autoscaler, |history, changes| history.record(decision, changes));
        });
    }

    /// The autoscaler is gone: its last run ends, if this replica leads.
    pub fn end(&self, autoscaler: &AutoscalerRef) {
        self.edit(|content| {
            content.edit(autoscaler, |history, changes| history.end(changes));
        });
    }

    fn edit(&self, change: impl FnOnce(&mut Content)) {
        let mut state = self.state();
        if matches!(state.role, Role::Leads) && self.is_on() {
            change(&mut state.content);
            state.content.make_room(self.0.max_bytes, true);
        }
        let version = state.content.changes.version();
        drop(state);
        self.changed(version);
    }

    /// A copy of the ledger of a leader begins; none while this replica leads, or nothing is kept. What there is, is replaced as it comes,
    /// so that nothing is missing meanwhile, also if this replica has to lead before it is complete.
    pub fn begin_copy(&self) -> Option<CopyId> {
        let mut state = self.state();
        if matches!(state.role, Role::Leads) || !self.is_on() {
            return None;
        }
        state.begin(Role::Copies(Copying::default()));
        Some(CopyId(state.epoch))
    }

    /// Takes over a decision that the leader shows: in the order of its list, and then in that of changes.
    ///
    /// # Errors
    /// If the copy has been superseded, or the decision can't be read.
    pub fn copy(&self, id: CopyId, decision: Decision) -> Result<(), CopyError> {
        let Metadata { namespace, name, .. } = &decision.metadata;
        let full_name = format!("{namespace}/{name}");
        let position = render::position(namespace, name);
        self.of_copy(id, |content, copying| {
            let known = position.as_ref().and_then(|Position { kind, key, .. }| {
                content.basis(&AutoscalerRef { kind: *kind, key: key.clone() }).cloned()
            });
            let (autoscaler, entry) =
                render::entry(decision, known).ok_or(CopyError::Unreadable(full_name))?;
            let (sequence, version) = (entry.sequence, entry.version);
            content.newest = content.newest.max(entry.last);
            let is_live = copying.is_none();
            if let Some(copying) = copying {
                if copying.place < position {
                    content.drop_between(copying.place.as_ref(), position.as_ref());
                    copying.place = position;
                }
                copying.version = copying.version.max(version);
            }
            content.edit(&autoscaler, |history, changes| match history.copy(entry) {
                true if is_live => changes.note(version, &history.of, sequence, None),
                _ => {}
            });
            if is_live {
                content.changes.reach(version);
            }
            Ok(())
        })?
    }

    /// Drops an entry, and those before it, as the leader did.
    ///
    /// # Errors
    /// If the copy has been superseded.
    pub fn copy_dropped(
        &self,
        id: CopyId,
        position: &Position,
        version: u64,
    ) -> Result<(), CopyError> {
        let Position { kind, key, sequence } = position;
        let autoscaler = AutoscalerRef { kind: *kind, key: key.clone() };
        self.of_copy(id, |content, _| {
            if let Some(entry) = content.get(&autoscaler, *sequence) {
                content.edit(&autoscaler, |history, changes| {
                    history.drop_all_of(&(0..=*sequence));
                    changes.note(version, &history.of, *sequence, Some(entry.first));
                });
            }
            content.changes.reach(version);
        })
    }

    /// The copy has all that the leader had at this resource version.
    ///
    /// # Errors
    /// If the copy has been superseded.
    pub fn copied(&self, id: CopyId, versions: Versions) -> Result<(), CopyError> {
        self.change(|state| {
            if state.epoch != id.0 {
                return Err(CopyError::Superseded);
            }
            if let Role::Copies(copying) = std::mem::replace(&mut state.role, Role::Follows) {
                state.content.drop_between(copying.place.as_ref(), None);
                state.content.changes.restart(versions.last);
            }
            state.content.changes.reach(versions.last);
            (state.content.began, state.content.since) = (versions.began, versions.since);
            state.heard = Instant::now();
            state.synced = Some(state.heard);
            Ok(())
        })
    }

    /// Changes what a copy has; the closure is told how far it is, unless it is complete.
    fn of_copy<T>(
        &self,
        id: CopyId,
        change: impl FnOnce(&mut Content, Option<&mut Copying>) -> T,
    ) -> Result<T, CopyError> {
        let mut state = self.state();
        let State { content, role, epoch, synced, heard, .. } = &mut *state;
        if *epoch != id.0 {
            return Err(CopyError::Superseded);
        }
        *heard = Instant::now();
        let changed = match role {
            Role::Copies(copying) => change(content, Some(copying)),
            Role::Leads | Role::Follows => {
                *synced = Some(*heard);
                change(content, None)
            }
        };
        // The leader says what is dropped, but whatever it says, the memory is bounded.
        content.make_room(self.0.max_bytes + self.0.max_bytes / 8, false);
        let version = state.content.changes.version();
        drop(state);
        self.changed(version);
        Ok(changed)
    }

    /// Waits for the first copy before this replica is ready, until then at most.
    pub fn await_copy(&self, until: Instant) {
        self.state().awaited = Some(until);
    }

    /// Whether the first copy is waited for.
    pub fn awaits_copy(&self) -> bool {
        let State { awaited, synced, .. } = *self.state();
        synced.is_none() && awaited.is_some_and(|until| Instant::now() < until)
    }

    /// Ends all watches when they have told of all that was recorded: the process ends.
    pub fn close(&self) {
        self.0.closed.send_replace(true);
    }

    /// Whether nothing more is recorded, as the process ends.
    pub fn is_closed(&self) -> bool {
        *self.0.closed.borrow()
    }

    /// Waits until nothing more is recorded.
    pub async fn closed(&self) {
        let mut closed = self.0.closed.subscribe();
        let _ = closed.wait_for(|closed| *closed).await;
    }

    /// The resource versions.
    ///
    /// # Errors
    /// If this replica does not know what the leader knows, or nothing is kept.
    pub fn versions(&self) -> Result<Versions, Behind> {
        if !self.is_on() {
            return Err(Behind::Off);
        }
        let state = self.state();
        match state.behind() {
            None => Err(Behind::NotCopied),
            Some(_) if state.unheard() > MAX_BEHIND => Err(Behind::For(state.unheard())),
            Some(_) => {
                let Content { changes, began, since, .. } = &state.content;
                Ok(Versions { last: changes.version(), began: *began, since: *since })
            }
        }
    }

    /// The resource version, whether or not this replica knows what the leader knows.
    pub fn version(&self) -> u64 {
        self.state().content.changes.version()
    }

    /// Waits a little until a resource version is known here: another replica may have told of it.
    pub async fn reached(&self, version: u64) {
        let mut changes = self.0.changes.subscribe();
        let _ = timeout(VERSION_TIMEOUT, changes.wait_for(|last| *last >= version)).await;
    }

    /// Tells of changes: the value is the resource version.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// What it holds.
    pub fn size(&self) -> Size {
        let state = self.state();
        let content = &state.content;
        Size {
            bytes: content.bytes(),
            entries: content.entries,
            dropped: content.dropped,
            since: content.since,
            behind: state.behind(),
        }
    }

    /// Entries after a place that are selected, in their order: about 64 KiB of them, at least one.
    pub fn list(
        &self,
        scope: &Scope,
        after: Option<&Position>,
        select: impl Fn(&AutoscalerRef) -> Sequences,
    ) -> Page {
        self.state().content.list(scope, after, select)
    }

    /// One entry. Waits a little for one after those that are known here, of which another replica may have told.
    pub async fn get(&self, position: &Position) -> Option<Entry> {
        let mut changes = self.0.changes.subscribe();
        let autoscaler = AutoscalerRef { kind: position.kind, key: position.key.clone() };
        let find = || {
            let State { content, role, .. } = &*self.state();
            let may_come =
                !matches!(role, Role::Leads) && position.sequence > content.sequence(&autoscaler);
            (content.get(&autoscaler, position.sequence), may_come)
        };
        let arrived = async {
            loop {
                let (found, may_come) = find();
                if found.is_some() || !may_come || changes.changed().await.is_err() {
                    return found;
                }
            }
        };
        timeout(ARRIVAL_TIMEOUT, arrived).await.ok().flatten()
    }

    /// What has changed after a resource version, in the order of versions: about 64 KiB of it.
    ///
    /// # Errors
    /// If these changes are not known any more, or another leadership has begun since.
    pub fn changes_after(
        &self,
        version: u64,
        select: impl Fn(&AutoscalerRef) -> Sequences,
    ) -> Result<ChangesAfter, Expired> {
        self.state().content.changes_after(version, select)
    }
}

impl State {
    /// Takes another role.
    fn begin(&mut self, role: Role) {
        self.role = role;
        self.epoch += 1;
    }

    /// For how long it has not known all of the leader's.
    fn behind(&self) -> Option<Duration> {
        match self.role {
            Role::Leads => Some(Duration::ZERO),
            Role::Follows | Role::Copies(_) => self.synced.map(|at| at.elapsed()),
        }
    }

    /// For how long it has not heard from the leader.
    fn unheard(&self) -> Duration {
        match self.role {
            Role::Leads => Duration::ZERO,
            Role::Follows | Role::Copies(_) => self.heard.elapsed(),
        }
    }

    /// Whether it lacks decisions of other leaders, of whom one led until then. Who follows one has all of what was
    /// decided before the last bookmark.
    fn lacks(&self, led_until: Option<Instant>) -> bool {
        self.synced.is_none_or(|synced| {
            let missed = led_until.map(|until| until.saturating_duration_since(synced));
            missed.is_some_and(|missed| missed > MAX_BEHIND)
        })
    }
}

/// The first resource version of a leadership that begins at a time: later ones begin with a greater one, for there
/// are fewer than 16 million changes a second.
fn first_version(now: UnixMillis) -> u64 {
    u64::try_from(now / 1000).unwrap_or(0) << 24
}
