//! Single flight: who asks while a query runs waits for the same answer, and
//! later ones are given it for a while.

use super::MetricError;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An answer, shared by all who asked.
pub type Answer<T> = Result<Arc<T>, MetricError>;

/// Answers by query.
///
/// Bounded: an answer that nobody asked for within [`IDLE`] is dropped.
pub struct Flights<T> {
    max_age: Duration,
    queries: Mutex<HashMap<Arc<str>, Entry<T>>>,
}

struct Entry<T> {
    asked: Instant,
    state: State<T>,
}

enum State<T> {
    Running(Shared<BoxFuture<'static, Answer<T>>>),
    Done { answer: Answer<T>, at: Instant },
}

/// How long an answer is kept that nobody asks for.
const IDLE: Duration = Duration::from_secs(60);
/// How many queries are kept; beyond, only those that run.
const QUERIES: usize = 10_000;

impl<T: Send + Sync + 'static> Flights<T> {
    /// None yet; answers are used for so long.
    pub fn new(max_age: Duration) -> Self {
        Self { max_age, queries: Mutex::default() }
    }

    /// The answer to a query, run by `run` where there is none that is young enough.
    pub async fn get<F>(self: &Arc<Self>, query: &Arc<str>, run: impl FnOnce() -> F) -> Answer<T>
    where
        F: Future<Output = Answer<T>> + Send + 'static,
    {
        let running = {
            let mut queries = self.queries.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            match queries.get_mut(query) {
                Some(Entry { asked, state: State::Running(running) }) => {
                    *asked = now;
                    running.clone()
                }
                Some(Entry { asked, state: State::Done { answer, at } })
                    if now.duration_since(*at) <= self.max_age =>
                {
                    *asked = now;
                    return answer.clone();
                }
                _ => {
                    self.drop_idle(&mut queries, now);
                    let (flights, key, answer) = (self.clone(), query.clone(), run());
                    let running = async move {
                        let answer = answer.await;
                        flights.land(&key, answer.clone(), now);
                        answer
                    };
                    let running = running.boxed().shared();
                    let state = State::Running(running.clone());
                    queries.insert(query.clone(), Entry { asked: now, state });
                    // Its own task: whoever asked first may stop waiting.
                    tokio::spawn(running.clone());
                    running
                }
            }
        };
        running.await
    }

    fn drop_idle(&self, queries: &mut HashMap<Arc<str>, Entry<T>>, now: Instant) {
        let running = |entry: &Entry<T>| matches!(entry.state, State::Running(_));
        queries.retain(|_, entry| now.duration_since(entry.asked) < IDLE || running(entry));
        if queries.len() >= QUERIES {
            queries.retain(|_, entry| running(entry));
        }
    }

    /// Keeps an answer, of the time it was asked for, not of the time it came.
    fn land(&self, query: &Arc<str>, answer: Answer<T>, at: Instant) {
        let mut queries = self.queries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = queries.get_mut(query) {
            entry.state = State::Done { answer, at };
        }
    }
}
