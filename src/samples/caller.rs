//! The caller that a query is charged to.

use crate::prometheus::Flow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Who reads the result of a query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reader {
    /// A decision: it reads a result once in a period, and its query is started with those of others
    /// ([`QueryHandle::prefetch`](super::QueryHandle::prefetch)).
    #[default]
    Decision,
    /// A client of the API. It is shown when values were measured. A result that is read shortly before it
    /// expires is asked for anew, so that the next request does not wait for Prometheus.
    Client,
}

/// On whose behalf a query is sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Caller {
    /// The namespace; empty for the whole cluster.
    pub namespace: Arc<str>,
    /// Whether a user wrote the query, rather than a template or rule of the administrator.
    pub user: bool,
    /// Who reads the result.
    pub reader: Reader,
}

impl Caller {
    /// The caller of a template's or rule's query.
    pub fn of(namespace: &str) -> Self {
        Self { namespace: namespace.into(), user: false, reader: Reader::default() }
    }

    /// The caller of a user's own query.
    pub fn user(namespace: &str) -> Self {
        Self { user: true, ..Self::of(namespace) }
    }

    /// The same, for this reader.
    #[must_use]
    pub fn read_by(self, reader: Reader) -> Self {
        Self { reader, ..self }
    }
}

/// The flows that a query for these callers may be charged to.
///
/// A batch of users' own queries is charged to any one of the users. A template's query for several
/// namespaces is charged to none of them.
pub fn flows<'a>(callers: impl Iterator<Item = &'a Caller> + Clone) -> Vec<Flow> {
    let namespaces: BTreeSet<&Arc<str>> = callers.clone().map(|caller| &caller.namespace).collect();
    if callers.clone().all(|caller| caller.user) {
        return namespaces.into_iter().cloned().map(Flow::User).collect();
    }
    match namespaces.into_iter().collect::<Vec<_>>()[..] {
        [one] if !one.is_empty() => vec![Flow::Namespace(one.clone())],
        _ => vec![Flow::Shared],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_charged_to_its_callers() {
        let flows = |callers: &[Caller]| flows(callers.iter());
        let user = |name: &str| Flow::User(name.into());
        assert_eq!(flows(&[Caller::of("a"), Caller::of("a")]), [Flow::Namespace("a".into())]);
        assert_eq!(flows(&[Caller::of("a"), Caller::of("b")]), [Flow::Shared]);
        assert_eq!(flows(&[Caller::of("")]), [Flow::Shared]);
        assert_eq!(flows(&[Caller::user("a"), Caller::user("b")]), [user("a"), user("b")]);
        assert_eq!(flows(&[Caller::user("a"), Caller::of("a")]), [Flow::Namespace("a".into())]);
    }
}
