//! The freeze: annotations of the Lease that stop all writes to scales. Whoever
//! freezes or thaws leaves a request, which the leader answers when it holds: no
//! write that began before is under way any more.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The annotation of the Lease that stops all writes to scales; its value says why.
pub const FREEZE: &str = "plimsoll.dev/freeze";
/// Who froze.
pub const BY: &str = "plimsoll.dev/frozen-by";
/// When (RFC 3339).
pub const SINCE: &str = "plimsoll.dev/frozen-since";
/// When the leader ends the freeze by itself, by kube-apiserver's clock (RFC 3339);
/// without it the freeze lasts until it is ended.
pub const UNTIL: &str = "plimsoll.dev/frozen-until";
/// The last request of a freeze or thaw: any text that no other request has.
pub const REQUEST: &str = "plimsoll.dev/freeze-request";
/// The last request that the leader has taken up.
pub const ACKNOWLEDGED: &str = "plimsoll.dev/freeze-acknowledged";

/// What a freeze is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freeze {
    /// Why.
    pub reason: Arc<str>,
    /// Who froze, where that is known.
    pub by: Option<String>,
    /// When, where that is known.
    pub since: Option<Timestamp>,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
}

impl Freeze {
    /// The freeze that a Lease carries. Times that can't be read are none.
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

    /// The annotations that say so.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let since = self.since.map(|time| time.to_string());
        let until = self.until.map(|time| time.to_string());
        [(BY, self.by.clone()), (SINCE, since), (UNTIL, until)]
            .into_iter()
            .chain([(FREEZE, Some(self.reason.to_string()))])
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect()
    }

    /// A merge patch of annotations from whatever there is to this, or to no freeze.
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

/// The request that the leader has not answered yet.
pub(super) fn unanswered(lease: &Lease) -> Option<&str> {
    let annotations = lease.metadata.annotations.as_ref()?;
    let request = annotations.get(REQUEST)?;
    (annotations.get(ACKNOWLEDGED) != Some(request)).then_some(request)
}

/// Answers the last request.
pub(super) fn answer(lease: &mut Lease) {
    if let Some(request) = unanswered(lease).map(str::to_owned) {
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(ACKNOWLEDGED.to_owned(), request);
    }
}

/// Ends a freeze whose time is over; whether it did.
pub(super) fn expire(lease: &mut Lease, now: Timestamp) -> bool {
    let over = Freeze::of(lease).and_then(|freeze| freeze.until).is_some_and(|until| until <= now);
    if over && let Some(annotations) = &mut lease.metadata.annotations {
        annotations.retain(|name, _| ![FREEZE, BY, SINCE, UNTIL].contains(&name.as_str()));
    }
    over
}
