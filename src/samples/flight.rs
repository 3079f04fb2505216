//! A query that runs, and who gets its answer.

use super::MetricError;
use super::table::Table;
use crate::prometheus::Flow;
use crate::promql::plan::{Cover, Own};
use futures::future::{BoxFuture, Shared};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// An answer, shared by all who asked.
pub type Answer = Result<Arc<Table>, MetricError>;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asker {
    /// The namespace that it is asked for; empty for the whole cluster.
    pub namespace: Arc<str>,
    /// Whether the query is in the words of a user, not those of a template or rule.
    pub user: bool,
}

impl Asker {
    /// One who asks by a template or rule.
    pub fn of(namespace: &str) -> Self {
        Self { namespace: namespace.into(), user: false }
    }

    /// One who asks in a user's words.
    pub fn user(namespace: &str) -> Self {
        Self { namespace: namespace.into(), user: true }
    }
}

/// The flows that a query for these may be counted among. Users' queries that are
/// asked as one are those of any of them; what a template asks for several
/// namespaces is nobody's own.
pub fn flows<'a>(askers: impl Iterator<Item = &'a Asker> + Clone) -> Vec<Flow> {
    let namespaces: BTreeSet<&Arc<str>> = askers.clone().map(|asker| &asker.namespace).collect();
    if askers.clone().all(|asker| asker.user) {
        return namespaces.into_iter().cloned().map(Flow::User).collect();
    }
    match namespaces.into_iter().collect::<Vec<_>>()[..] {
        [one] if !one.is_empty() => vec![Flow::Namespace(one.clone())],
        _ => vec![Flow::Shared],
    }
}

/// A query that runs, or was answered.
#[derive(Clone)]
pub struct Flight {
    /// What its answer has.
    pub cover: Arc<Cover>,
    /// Those it was made for. What is wrong with it is for them alone.
    of: Arc<[Own]>,
    began: Instant,
    /// Until when a failure is not asked for again.
    hold: Arc<OnceLock<Instant>>,
    /// How it ends.
    pub landed: Shared<BoxFuture<'static, Arc<Landed>>>,
}

/// How a query ended.
pub enum Landed {
    /// With this answer.
    Whole(Answer),
    /// It could not be answered, and is asked in parts.
    Parts(Vec<Flight>),
}

impl Flight {
    /// A query that begins now.
    pub fn new(
        cover: Cover,
        of: Vec<Own>,
        hold: Arc<OnceLock<Instant>>,
        began: Instant,
        landed: Shared<BoxFuture<'static, Arc<Landed>>>,
    ) -> Self {
        Self { cover: Arc::new(cover), of: of.into(), began, hold, landed }
    }

    /// When its answer is too old to be used.
    pub fn ends(&self, max_age: Duration) -> Instant {
        // Of the time it was asked for, not of the time it came.
        let ends = self.began + max_age;
        self.hold.get().map_or(ends, |hold| ends.max(*hold))
    }

    /// Whether whoever asks now is given its answer.
    pub fn is_fresh(&self, max_age: Duration, now: Instant) -> bool {
        self.landed.peek().is_none() || now <= self.ends(max_age)
    }

    /// What it has for a query. None where it failed, and was not made for it.
    pub async fn answer(self, own: &Own) -> Option<Answer> {
        let mut flight = self;
        loop {
            let landed = flight.landed.clone().await;
            match &*landed {
                Landed::Whole(answer) => {
                    let own = answer.is_ok() || flight.of.contains(own);
                    return own.then(|| answer.clone());
                }
                Landed::Parts(parts) => {
                    flight = parts.iter().find(|part| part.cover.contains(own))?.clone();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_counted_among_those_it_is_for() {
        let flows = |askers: &[Asker]| flows(askers.iter());
        let user = |name: &str| Flow::User(name.into());
        assert_eq!(flows(&[Asker::of("a"), Asker::of("a")]), [Flow::Namespace("a".into())]);
        assert_eq!(flows(&[Asker::of("a"), Asker::of("b")]), [Flow::Shared]);
        assert_eq!(flows(&[Asker::of("")]), [Flow::Shared]);
        assert_eq!(flows(&[Asker::user("a"), Asker::user("b")]), [user("a"), user("b")]);
        assert_eq!(flows(&[Asker::user("a"), Asker::of("a")]), [Flow::Namespace("a".into())]);
    }
}
