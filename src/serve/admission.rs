//! Who is answered now, and who waits: room for requests, shared by who asks and
//! by the namespace asked about, so that none of them takes it all. It is given
//! only to those who have shown who they are, and a namespace's to those who may
//! read it.

use super::identity::Identity;
use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many requests are answered at once, those of the control plane and health apart.
const AT_ONCE: usize = 400;
/// How many of them may be of one tenant, and how many about one namespace.
const SHARE: usize = 100;
/// How many requests of the control plane are answered at once.
const CONTROL_PLANE: usize = 200;
/// How long a request waits for its turn.
const WAIT: Duration = Duration::from_secs(2);
/// From how many shares on those without requests are forgotten.
const SHARES: usize = 1024;

/// Room for so many at once, and for some that wait, in their order.
#[derive(Clone, Debug)]
pub struct Room {
    running: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Room {
    /// Room for so many, and for as many that wait.
    pub fn new(count: usize) -> Self {
        let slots = || Arc::new(Semaphore::new(count));
        Self { running: slots(), waiting: slots() }
    }

    /// Waits for room; none where too many wait already.
    pub async fn take(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(slot) = self.running.clone().try_acquire_owned() {
            return Some(slot);
        }
        let _place = self.waiting.clone().try_acquire_owned().ok()?;
        self.running.clone().acquire_owned().await.ok()
    }

    /// Whether nobody is in it or waits.
    fn is_idle(&self, count: usize) -> bool {
        self.running.available_permits() == count && self.waiting.available_permits() == count
    }
}

/// Room of the same size for each of many.
#[derive(Debug)]
pub struct Shares<K> {
    /// How many at once, and how many that wait.
    size: usize,
    rooms: Mutex<HashMap<K, Room>>,
}

impl<K: Eq + Hash> Shares<K> {
    /// Room for so many at once, and for as many that wait, for each.
    pub fn new(count: usize) -> Self {
        Self { size: count, rooms: Mutex::default() }
    }

    /// The room of one.
    pub fn of(&self, key: K) -> Room {
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        if rooms.len() >= SHARES {
            rooms.retain(|_, room| !room.is_idle(self.size));
        }
        rooms.entry(key).or_insert_with(|| Room::new(self.size)).clone()
    }
}

/// Leave to be answered; its room is given back when it is dropped.
#[derive(Debug)]
pub struct Admitted {
    _permits: Vec<OwnedSemaphorePermit>,
}

/// The room for requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admission(Arc<Rooms>);

#[derive(Debug)]
struct Rooms {
    control_plane: Room,
    all: Room,
    tenants: Shares<String>,
    namespaces: Shares<String>,
}

impl Default for Admission {
    fn default() -> Self {
        Self(Arc::new(Rooms {
            control_plane: Room::new(CONTROL_PLANE),
            all: Room::new(AT_ONCE),
            tenants: Shares::new(SHARE),
            namespaces: Shares::new(SHARE),
        }))
    }
}

impl Admission {
    /// Waits for a tenant's room for a request of which it is not known yet whether it is
    /// allowed; none where there is no room in time.
    pub async fn admit(&self, who: &Identity) -> Option<Admitted> {
        in_time(async {
            let room = match is_control_plane(who) {
                true => self.0.control_plane.clone(),
                false => self.0.tenants.of(tenant(who).to_owned()),
            };
            Some(Admitted { _permits: vec![room.take().await?] })
        })
        .await
    }

    /// Waits for room for one that is allowed, about a namespace or about none. Only then
    /// may it take the room of others.
    pub async fn admit_allowed(&self, who: &Identity, namespace: Option<&str>) -> Option<Admitted> {
        in_time(async {
            let mut permits = Vec::new();
            if !is_control_plane(who) {
                if let Some(namespace) = namespace {
                    permits.push(self.0.namespaces.of(namespace.to_owned()).take().await?);
                }
                permits.push(self.0.all.take().await?);
            }
            Some(Admitted { _permits: permits })
        })
        .await
    }
}

async fn in_time(admitted: impl Future<Output = Option<Admitted>>) -> Option<Admitted> {
    tokio::time::timeout(WAIT, admitted).await.ok()?
}

const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
const KUBE_SYSTEM: &str = "system:serviceaccount:kube-system:";
/// kube-controller-manager's own name, and those under which kube-apiserver asks
/// whether an APIService is available and what it offers.
const CONTROL_PLANE_USERS: [&str; 4] = [
    "system:kube-controller-manager",
    "system:kube-aggregator",
    "system:aggregator",
    "system:apiserver",
];
/// The controllers that run as service accounts of kube-system and read metrics,
/// or the discovery of all groups.
const CONTROLLERS: [&str; 4] = [
    "horizontal-pod-autoscaler",
    "namespace-controller",
    "generic-garbage-collector",
    "resourcequota-controller",
];

/// Whether a user is a part of the control plane that reads metrics or discovery.
pub fn is_control_plane(who: &Identity) -> bool {
    let controller = who.name.strip_prefix(KUBE_SYSTEM);
    CONTROL_PLANE_USERS.contains(&who.name.as_str())
        || controller.is_some_and(|name| CONTROLLERS.contains(&name))
}

/// Whose share a user has: all service accounts of a namespace have one.
pub fn tenant(who: &Identity) -> &str {
    let account = who.name.strip_prefix(SERVICE_ACCOUNT);
    match account.and_then(|account| account.split_once(':')) {
        Some((namespace, _)) => &who.name[..SERVICE_ACCOUNT.len() + namespace.len()],
        None => &who.name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn user(name: &str) -> Identity {
        Identity { name: name.to_owned(), ..Identity::default() }
    }

    /// Leave for a request that is allowed, where there is room now.
    fn admit(
        admission: &Admission,
        who: &Identity,
        namespace: Option<&str>,
    ) -> Option<[Admitted; 2]> {
        let own = admission.admit(who).now_or_never().flatten()?;
        Some([own, admission.admit_allowed(who, namespace).now_or_never().flatten()?])
    }

    /// As many as are admitted at once of so many.
    fn flood(admission: &Admission, users: &[Identity], namespace: &str) -> Vec<[Admitted; 2]> {
        let asked = users.iter().cycle().take(400);
        asked.filter_map(|who| admit(admission, who, Some(namespace))).collect()
    }

    #[tokio::test]
    async fn a_tenant_has_its_share_and_no_more_whatever_its_accounts() {
        let admission = Admission::default();
        let accounts: Vec<Identity> =
            (0..10).map(|n| user(&format!("system:serviceaccount:shop:a{n}"))).collect();
        let held = flood(&admission, &accounts, "shop");
        assert_eq!(held.len(), SHARE);
        assert!(admit(&admission, &user("alice"), Some("bank")).is_some());
    }

    #[tokio::test]
    async fn a_namespace_that_many_ask_about_leaves_room_for_others() {
        let admission = Admission::default();
        let users: Vec<Identity> = (0..200).map(|n| user(&format!("user-{n}"))).collect();
        let held = flood(&admission, &users, "shop");
        assert_eq!(held.len(), SHARE);
        assert!(admit(&admission, &user("alice"), Some("bank")).is_some());
    }

    #[tokio::test]
    async fn who_may_not_read_a_namespace_takes_none_of_its_room() {
        let admission = Admission::default();
        let outsiders =
            (0..SHARE).map(|_| admission.admit(&user("mallory")).now_or_never().flatten());
        let held: Vec<Admitted> = outsiders.flatten().collect();
        assert_eq!(held.len(), SHARE);
        assert!(admission.admit(&user("mallory")).now_or_never().flatten().is_none());
        let users: Vec<Identity> = (0..SHARE).map(|n| user(&format!("user-{n}"))).collect();
        assert_eq!(flood(&admission, &users, "bank").len(), SHARE);
    }

    #[tokio::test]
    async fn the_control_plane_has_room_of_its_own() {
        let admission = Admission::default();
        let mut held = Vec::new();
        for n in 0..5 {
            held.extend(flood(&admission, &[user(&format!("user-{n}"))], &format!("ns-{n}")));
        }
        assert_eq!(held.len(), AT_ONCE);
        assert!(admit(&admission, &user("alice"), None).is_none());
        for name in [
            "system:kube-controller-manager",
            "system:serviceaccount:kube-system:horizontal-pod-autoscaler",
        ] {
            assert!(admit(&admission, &user(name), Some("ns-1")).is_some(), "{name}");
        }
        held.clear();
        assert!(admit(&admission, &user("alice"), None).is_some());
    }

    #[test]
    fn shares_without_requests_are_forgotten() {
        let shares = Shares::new(1);
        let _held: Vec<Room> = (0..3 * SHARES).map(|n| shares.of(n)).collect();
        assert!(shares.rooms.lock().unwrap().len() <= SHARES);
    }
}
