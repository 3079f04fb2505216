//! The freeze: annotations of the Lease that stop all writes to scales. Each freeze or thaw
//! carries a request, which the leader acknowledges once it is in effect: no write that
//! began before is in flight any more.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The annotation of the Lease that stops all writes to scales; its value is the reason.
pub const FREEZE: &str = "plimsoll.dev/freeze";
/// The user that froze.
pub const BY: &str = "plimsoll.dev/frozen-by";
/// The time of the freeze (RFC 3339).
pub const SINCE: &str = "plimsoll.dev/frozen-since";
/// The time at which the leader ends the freeze, by kube-apiserver's clock (RFC 3339).
/// Without it, the freeze lasts until a thaw.
pub const UNTIL: &str = "plimsoll.dev/frozen-until";
/// The last request of a freeze or thaw: any text that is unique to the request.
pub const REQUEST: &str = "plimsoll.dev/freeze-request";
/// The last request that the leader has acknowledged.
pub const ACKNOWLEDGED: &str = "plimsoll.dev/freeze-acknowledged";

/// A freeze of all scales.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freeze {
    /// The reason.
    pub reason: Arc<str>,
    /// The user that froze, if known.
    pub by: Option<String>,
    /// The time of the freeze, if known.
    pub since: Option<Timestamp>,
    /// The time at which it ends by itself.
    pub until: Option<Timestamp>,
}

impl Freeze {
    /// The freeze that a Lease carries. Times that can't be parsed are ignored.
    pub fn of(lease: &Lease) -> Option<Self> {
        let annotations = lease.metadata.annotations.as_ref()?;
        let time = |name| annotations.get(name)?.parse().ok();
        Some(Self {
            reason: Arc::from(annotations.get(FREEZE)?.as_str()),
            by: annotations.get(BY).filter(|by| !by.is_empty()).cloned(),
            since: time(SINCE),
            until: time(UNTIL),
        })
    }

    /// The annotations of this freeze.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let since = self.since.map(|time| time.to_string());
        let until = self.until.map(|time| time.to_string());
        [(BY, self.by.clone()), (SINCE, since), (UNTIL, until)]
            .into_iter()
            .chain([(FREEZE, Some(self.reason.to_string()))])
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect()
    }

    /// A merge patch from any annotations to those of this freeze, or of none.
    pub fn patch(freeze: Option<&Self>, request: &str) -> Value {
        let mut annotations: Map<String, Value> = [FREEZE, BY, SINCE, UNTIL]
            .map(|name| (name.to_owned(), Value::Null))
            .into_iter()
            .collect();
        let set = freeze.map(Self::annotations).unwrap_or_default();
        annotations.extend(set.into_iter().map(|(name, value)| (name, value.into())));
        annotations.insert(REQUEST.to_owned(), request.into());
        serde_json::json!({"metadata": {"annotations": annotations}})
    }
}

impl fmt::Display for Freeze {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        let Self { by, since, until, .. } = self;
        let mut separator = " (";
        let mut add = |what: &str, value: Option<String>| match value {
            None => Ok(()),
            Some(value) => write!(f, "{}{what} {value}", std::mem::replace(&mut separator, ", ")),
        };
        add("by", by.clone())?;
        add("since", since.map(|time| time.to_string()))?;
        add("until", until.map(|time| time.to_string()))?;
        if separator == ", " { f.write_str(")") } else { Ok(()) }
    }
}

/// The request that the leader has not acknowledged yet.
pub(super) fn pending_request(lease: &Lease) -> Option<&str> {
    let annotations = lease.metadata.annotations.as_ref()?;
    let request = annotations.get(REQUEST)?;
    (annotations.get(ACKNOWLEDGED) != Some(request)).then_some(request)
}

/// Acknowledges the last request.
pub(super) fn acknowledge(lease: &mut Lease) {
    if let Some(request) = pending_request(lease).map(str::to_owned) {
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(ACKNOWLEDGED.to_owned(), request);
    }
}

/// Ends a freeze whose time is over. Returns whether it did.
pub(super) fn expire(lease: &mut Lease, now: Timestamp) -> bool {
    let over = Freeze::of(lease).and_then(|freeze| freeze.until).is_some_and(|until| until <= now);
    if over && let Some(annotations) = &mut lease.metadata.annotations {
        annotations.retain(|name, _| ![FREEZE, BY, SINCE, UNTIL].contains(&name.as_str()));
    }
    over
}
