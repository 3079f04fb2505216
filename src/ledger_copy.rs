//! Copies the leader's ledger, by a watch over the product's own port: so that whichever replica is
//! asked shows the same, and what was shown before a failover is shown after it.

use crate::config::ServeFlags;
use crate::connect;
use crate::leader::{LeaderAddress, LeaderElector};
use crate::ledger::api::{Decision, GROUP, LEADERSHIP_ANNOTATION, SINCE_ANNOTATION, VERSION};
use crate::ledger::{Ledger, Versions, parse_time, position};
use crate::watch::{FailureLog, ResettableBackoff};
use futures::StreamExt;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::core::WatchEvent;
use kube::{Api, Client};
use serde_json::Value;
use std::time::Duration;

/// What a copy needs.
pub struct LedgerCopy {
    /// The copy.
    pub ledger: Ledger,
    /// Says who leads.
    pub leader: LeaderElector,
    /// A client of kube-apiserver.
    pub api: Client,
    /// How to authenticate, and by which name to verify the leader.
    pub flags: ServeFlags,
}

/// How long the leader may take to accept a watch.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a watch of the leader has ended.
enum Ended {
    /// It went on, and may be continued.
    Continue,
    /// What was copied is not known to the leader: it is to be copied again.
    Again,
}

impl LedgerCopy {
    /// Copies the ledger of whoever leads, unless that is this replica, for ever.
    pub async fn run(self) {
        let mut leaders = self.leader.leaders();
        let mut failures = FailureLog::default();
        let (mut backoff, progress) = ResettableBackoff::new();
        let mut known: Option<LeaderAddress> = None;
        loop {
            let leader = leaders.borrow_and_update().clone();
            let Some(leader) = leader.filter(|leader| !self.leader.is(leader)) else {
                known = None;
                if leaders.changed().await.is_err() {
                    return std::future::pending().await;
                }
                continue;
            };
            if known.as_ref() != Some(&leader) {
                known = None;
            }
            let copied = tokio::select! {
                copied = self.copy(&leader, known.is_some()) => copied,
                changed = leaders.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return std::future::pending().await,
                },
            };
            match copied {
                Ok(ended) => {
                    progress.made();
                    failures.succeeded();
                    known = matches!(ended, Ended::Continue).then_some(leader);
                }
                Err(error) => {
                    if let Some(failures) = failures.failed() {
                        let (leader, address) = (&leader.identity, &leader.address);
                        tracing::warn!(
                            error,
                            failures,
                            leader,
                            address,
                            "Failed to copy the leader's decisions"
                        );
                    }
                }
            }
            let wait = backoff.next().unwrap_or(CONNECT_TIMEOUT);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                changed = leaders.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
            }
        }
    }

    /// Watches a leader until that ends. `continues` says that what there is was copied from it.
    async fn copy(&self, leader: &LeaderAddress, continues: bool) -> Result<Ended, String> {
        let client = self.client(leader).await?;
        let path = format!("/apis/{GROUP}/{VERSION}/decisions?watch=1&allowWatchBookmarks=true");
        let version = self.ledger.versions();
        let continues = continues && version.is_complete;
        let path = match continues {
            true => format!("{path}&resourceVersion={}", version.last),
            false => format!("{path}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
        };
        let request =
            http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
        let events = client.request_events::<Value>(request);
        let events = match tokio::time::timeout(CONNECT_TIMEOUT, events).await {
            Ok(Ok(events)) => events,
            Ok(Err(kube::Error::Api(status))) if status.code == 410 => return Ok(Ended::Again),
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("no response within {CONNECT_TIMEOUT:?}")),
        };
        if !continues {
            self.ledger.begin_copy();
        }
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event.map_err(|error| error.to_string())? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let version = version_of(&object);
                    let decision: Decision =
                        serde_json::from_value(object).map_err(|error| error.to_string())?;
                    self.ledger.copy([decision], version);
                }
                WatchEvent::Deleted(object) => {
                    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
                    if let Some(position) = position(text("namespace"), text("name")) {
                        self.ledger.copy_dropped(&position, version_of(&object));
                    }
                }
                WatchEvent::Bookmark(bookmark) => {
                    let of = |name: &str| bookmark.metadata.annotations.get(name);
                    let began = of(LEADERSHIP_ANNOTATION).and_then(|began| began.parse().ok());
                    let since = of(SINCE_ANNOTATION).and_then(|since| parse_time(since));
                    let last = bookmark.metadata.resource_version.parse().ok();
                    let (Some(began), Some(since), Some(last)) = (began, since, last) else {
                        return Err("the leader's bookmarks do not say which leadership".to_owned());
                    };
                    self.ledger.complete_copy(Versions { last, began, since, is_complete: true });
                }
                WatchEvent::Error(status) if status.code == 410 => return Ok(Ended::Again),
                WatchEvent::Error(status) => return Err(status.message),
            }
        }
        Ok(Ended::Continue)
    }

    /// A client of the leader, which authenticates as at kube-apiserver and trusts the CAs of the APIService:
    /// those that kube-apiserver itself trusts.
    async fn client(&self, leader: &LeaderAddress) -> Result<Client, String> {
        let services: Api<APIService> = Api::all(self.api.clone());
        let name = format!("{VERSION}.{GROUP}");
        let service = services.get(&name);
        let service = tokio::time::timeout(CONNECT_TIMEOUT, service).await;
        let service = service
            .map_err(|_| format!("no response within {CONNECT_TIMEOUT:?}"))?
            .map_err(|error| format!("the APIService {name} can't be read: {error}"))?;
        let bundle = service.spec.and_then(|spec| spec.ca_bundle);
        let bundle = bundle.ok_or_else(|| format!("the APIService {name} has no caBundle"))?;
        let flags = &self.flags;
        let host = format!("{}.{}.svc", flags.service_name, flags.service_namespace());
        let client = connect::peer(flags, &leader.address, host, &bundle.0).await;
        client.map_err(|error| error.to_string())
    }
}

fn version_of(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}
