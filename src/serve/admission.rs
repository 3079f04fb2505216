//! Admission of requests by API Priority and Fairness: seats are shared by tenants and by
//! namespaces, so that none of them takes all. Only authenticated requests get a seat of
//! a tenant, and only authorized ones a seat of a namespace.

use super::seats::{FlowSeats, SeatPool};
use super::user::UserInfo;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// The number of requests executed at once, besides those of the control plane and of probes.
const TOTAL_SEATS: usize = 400;
/// The number of seats per tenant, and per namespace.
const SEATS_PER_FLOW: usize = 100;
/// The number of the control plane's requests executed at once.
const CONTROL_PLANE_SEATS: usize = 200;
/// How long a request waits in a queue.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(2);

/// The seats that a request occupies until this is dropped: of a flow, and of those that all share.
#[derive(Debug)]
pub struct OccupiedSeats {
    _of_flow: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
}

/// Admits requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admission(Arc<PriorityLevels>);

#[derive(Debug)]
struct PriorityLevels {
    control_plane: SeatPool,
    total: SeatPool,
    tenants: FlowSeats<String>,
    namespaces: FlowSeats<String>,
}

impl Default for Admission {
    fn default() -> Self {
        Self(Arc::new(PriorityLevels {
            control_plane: SeatPool::new(CONTROL_PLANE_SEATS),
            total: SeatPool::new(TOTAL_SEATS),
            tenants: FlowSeats::new(SEATS_PER_FLOW),
            namespaces: FlowSeats::new(SEATS_PER_FLOW),
        }))
    }
}

impl Admission {
    /// Waits for a seat of the tenant, for a request that is not authorized yet. Returns none if there
    /// is no seat in time.
    pub async fn admit(&self, user: &UserInfo) -> Option<OccupiedSeats> {
        in_time(async {
            let seats = match is_control_plane(user) {
                true => self.0.control_plane.clone(),
                false => self.0.tenants.of(tenant(user)),
            };
            Some(OccupiedSeats { _of_flow: Some(seats.acquire().await?), _of_all: None })
        })
        .await
    }

    /// Waits for a seat of the namespace, if the request has one, and for one of the total seats. The
    /// request must be authorized, as it takes seats that other tenants share. Returns none if there
    /// are no seats in time.
    pub async fn admit_authorized(
        &self,
        user: &UserInfo,
        namespace: Option<&str>,
    ) -> Option<OccupiedSeats> {
        in_time(async {
            if is_control_plane(user) {
                return Some(OccupiedSeats { _of_flow: None, _of_all: None });
            }
            let of_flow = match namespace {
                Some(namespace) => Some(self.0.namespaces.of(namespace).acquire().await?),
                None => None,
            };
            let of_all = Some(self.0.total.acquire().await?);
            Some(OccupiedSeats { _of_flow: of_flow, _of_all: of_all })
        })
        .await
    }
}

async fn in_time(seats: impl Future<Output = Option<OccupiedSeats>>) -> Option<OccupiedSeats> {
    tokio::time::timeout(QUEUE_TIMEOUT, seats).await.ok()?
}

const SERVICE_ACCOUNT_USERNAME_PREFIX: &str = "system:serviceaccount:";
const KUBE_SYSTEM_USERNAME_PREFIX: &str = "system:serviceaccount:kube-system:";
/// The users of kube-controller-manager itself, and of kube-apiserver when it checks the
/// availability of an APIService and reads its discovery.
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

/// Whether a user is a component of the control plane that reads metrics or discovery.
pub fn is_control_plane(user: &UserInfo) -> bool {
    let controller = user.name.strip_prefix(KUBE_SYSTEM_USERNAME_PREFIX);
    CONTROL_PLANE_USERS.contains(&user.name.as_str())
        || controller.is_some_and(|name| CONTROLLERS.contains(&name))
}

/// The tenant of a user: all service accounts of a namespace are one tenant.
pub fn tenant(user: &UserInfo) -> &str {
    let account = user.name.strip_prefix(SERVICE_ACCOUNT_USERNAME_PREFIX);
    match account.and_then(|account| account.split_once(':')) {
        Some((namespace, _)) => {
            &user.name[..SERVICE_ACCOUNT_USERNAME_PREFIX.len() + namespace.len()]
        }
        None => &user.name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn user(name: &str) -> UserInfo {
        UserInfo { name: name.to_owned(), ..UserInfo::default() }
    }

    /// The seats of a request that is authorized, if there are any now.
    fn admit(
        admission: &Admission,
        user: &UserInfo,
        namespace: Option<&str>,
    ) -> Option<[OccupiedSeats; 2]> {
        let of_tenant = admission.admit(user).now_or_never().flatten()?;
        Some([of_tenant, admission.admit_authorized(user, namespace).now_or_never().flatten()?])
    }

    /// The seats that 400 requests of these users get at once.
    fn flood(
        admission: &Admission,
        users: &[UserInfo],
        namespace: &str,
    ) -> Vec<[OccupiedSeats; 2]> {
        let requests = users.iter().cycle().take(400);
        requests.filter_map(|user| admit(admission, user, Some(namespace))).collect()
    }

    #[tokio::test]
    async fn a_tenant_has_its_seats_and_no_more_whatever_its_accounts() {
        let admission = Admission::default();
        let accounts: Vec<UserInfo> =
            (0..10).map(|n| user(&format!("system:serviceaccount:shop:a{n}"))).collect();
        let held = flood(&admission, &accounts, "shop");
        assert_eq!(held.len(), SEATS_PER_FLOW);
        assert!(admit(&admission, &user("alice"), Some("bank")).is_some());
    }

    #[tokio::test]
    async fn a_namespace_that_many_users_read_leaves_seats_for_others() {
        let admission = Admission::default();
        let users: Vec<UserInfo> = (0..200).map(|n| user(&format!("user-{n}"))).collect();
        let held = flood(&admission, &users, "shop");
        assert_eq!(held.len(), SEATS_PER_FLOW);
        assert!(admit(&admission, &user("alice"), Some("bank")).is_some());
    }

    #[tokio::test]
    async fn users_that_may_not_read_a_namespace_take_none_of_its_seats() {
        let admission = Admission::default();
        let outsiders =
            (0..SEATS_PER_FLOW).map(|_| admission.admit(&user("mallory")).now_or_never().flatten());
        let held: Vec<OccupiedSeats> = outsiders.flatten().collect();
        assert_eq!(held.len(), SEATS_PER_FLOW);
        assert!(admission.admit(&user("mallory")).now_or_never().flatten().is_none());
        let users: Vec<UserInfo> =
            (0..SEATS_PER_FLOW).map(|n| user(&format!("user-{n}"))).collect();
        assert_eq!(flood(&admission, &users, "bank").len(), SEATS_PER_FLOW);
    }

    #[tokio::test]
    async fn the_control_plane_has_seats_of_its_own() {
        let admission = Admission::default();
        let mut held = Vec::new();
        for n in 0..5 {
            held.extend(flood(&admission, &[user(&format!("user-{n}"))], &format!("ns-{n}")));
        }
        assert_eq!(held.len(), TOTAL_SEATS);
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
}
