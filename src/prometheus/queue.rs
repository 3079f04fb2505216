//! Fair queuing and congestion control of the requests to Prometheus.
//!
//! Each flow, such as a namespace, has a queue of its own, as in API Priority and Fairness. The next free seat
//! goes to the flow with the fewest requests in flight for its weight. The number of seats is limited: the limit is
//! halved while Prometheus can't keep up, and grows again while it does. Without that, queries that
//! time out would be repeated on top of those that still run, and a server that was slow for a moment would stay slow.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The flow that a request belongs to. Requests of one flow wait in one queue; flows
/// share the seats.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flow {
    /// Queries of the administrator's templates and rules for several namespaces
    /// together, and listings of series.
    Shared,
    /// Queries of templates and rules for one namespace, and the look-ups of types that it asks for first.
    Namespace(Arc<str>),
    /// Users' own queries of this namespace.
    User(Arc<str>),
}

impl Flow {
    /// Whether these are those of a request that is for users' own queries only.
    pub fn are_users(flows: &[Self]) -> bool {
        !flows.is_empty() && flows.iter().all(|flow| matches!(flow, Self::User(_)))
    }

    /// The share of seats, relative to other flows, while all have requests waiting.
    fn weight(&self) -> usize {
        match self {
            Self::Shared => 8,
            Self::Namespace(_) => 2,
            Self::User(_) => 1,
        }
    }
}

/// The highest limit of seats.
const MAX_SEATS: usize = 64;
/// The lowest limit of seats. A request that never ends must not stop all others.
const MIN_SEATS: usize = 4;
/// The most seats of one namespace's own queries. Prometheus runs 20 queries at once by default.
const MAX_USER_SEATS: usize = 2;
/// The most requests that wait in one flow; more are rejected at once.
const MAX_QUEUE_LENGTH: usize = 2_000;
/// Half of the window in which late responses are counted. The window is one to two halves long, about as
/// long as a request may take, so that responses from before Prometheus hung don't count.
const HALF_WINDOW: Duration = Duration::from_secs(8);
/// The fewest late responses in the window that count as overload. Fewer may be chance.
const MIN_LATE: usize = 4;
/// The limit grows by itself divided by this, after as many responses in time as there are seats.
const INCREASE_DIVISOR: usize = 4;
/// The limit is divided by this under overload.
const DECREASE_DIVISOR: usize = 2;

/// The requests in flight, and those that wait for a seat.
#[derive(Clone, Debug, Default)]
pub struct RequestQueue(Arc<Mutex<QueueState>>);

#[derive(Debug)]
struct QueueState {
    /// The limit of seats.
    limit: usize,
    in_flight: usize,
    /// The users' own queries in flight.
    users_in_flight: usize,
    flows: HashMap<Flow, FlowQueue>,
    /// The sequence number of the last request that had to wait. Among equals, the earlier one is first.
    arrived: u64,
    /// The responses in the window, except those to users' own queries: the current half, and the one before.
    window: [HashMap<Flow, Responses>; 2],
    /// When the current half began.
    half_began: Instant,
    /// The responses in time since the limit changed.
    in_time: usize,
}

#[derive(Debug, Default)]
struct FlowQueue {
    in_flight: usize,
    waiting: VecDeque<(u64, oneshot::Sender<Seat>)>,
}

/// The number of responses to requests of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Responses {
    all: usize,
    late: usize,
}

/// The seat of one request, freed on drop.
#[derive(Debug)]
pub struct Seat {
    queue: Option<RequestQueue>,
    flow: Flow,
}

/// How a request completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// With a response in time, or an error other than overload.
    InTime,
    /// Too late, or Prometheus said that it can't keep up.
    Late,
    /// The connection failed, which says nothing about the load of Prometheus.
    Unknown,
}

impl Default for QueueState {
    fn default() -> Self {
        Self {
            limit: MAX_SEATS,
            in_flight: 0,
            users_in_flight: 0,
            flows: HashMap::new(),
            arrived: 0,
            window: Default::default(),
            half_began: Instant::now(),
            in_time: 0,
        }
    }
}

impl RequestQueue {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a seat for the least busy of these flows, or [`Flow::Shared`] if there
    /// are none. None if too many wait already.
    pub async fn acquire(&self, flows: &[Flow]) -> Option<Seat> {
        let waiting = {
            let mut state = self.state();
            let flow = state.least_busy(flows);
            if state.may_start(&flow) && state.waiting(&flow) == 0 {
                state.start(&flow);
                return Some(Seat { queue: Some(self.clone()), flow });
            }
            state.arrived += 1;
            let arrived = state.arrived;
            let queue = state.flows.entry(flow).or_default();
            // Requests that were given up no longer count.
            queue.waiting.retain(|(_, sender)| !sender.is_closed());
            if queue.waiting.len() >= MAX_QUEUE_LENGTH {
                return None;
            }
            let (sender, receiver) = oneshot::channel();
            queue.waiting.push_back((arrived, sender));
            receiver
        };
        waiting.await.ok()
    }

    /// Gives the free seats to waiting requests.
    fn dispatch(&self, state: &mut QueueState) {
        while let Some(flow) = state.next() {
            let queue = state.flows.get_mut(&flow).expect("a request of it waits");
            let Some((_, sender)) = queue.waiting.pop_front() else { return };
            let seat = Seat { queue: Some(self.clone()), flow: flow.clone() };
            match sender.send(seat) {
                Ok(()) => state.start(&flow),
                // The request was given up. The lock is held, so that dropping the seat must not free it.
                Err(mut seat) => seat.queue = None,
            }
            state.forget_idle(&flow);
        }
    }
}

impl QueueState {
    fn waiting(&self, flow: &Flow) -> usize {
        self.flows.get(flow).map_or(0, |queue| queue.waiting.len())
    }

    fn least_busy(&self, flows: &[Flow]) -> Flow {
        let busy = |flow: &&Flow| {
            self.flows.get(*flow).map_or(0, |queue| queue.in_flight + queue.waiting.len())
        };
        flows.iter().min_by_key(busy).cloned().unwrap_or(Flow::Shared)
    }

    /// Whether a flow may have one more seat. A namespace may have as many as it
    /// leaves free, so that there is always a seat for the next. Users' own queries
    /// have few seats per namespace, and a quarter of all together.
    fn may_start(&self, flow: &Flow) -> bool {
        let in_flight = self.flows.get(flow).map_or(0, |queue| queue.in_flight);
        let free = self.limit.saturating_sub(self.in_flight);
        free > 0
            && match flow {
                Flow::Shared => true,
                Flow::Namespace(_) => in_flight < free,
                Flow::User(_) => {
                    in_flight < MAX_USER_SEATS && self.users_in_flight < (self.limit / 4).max(1)
                }
            }
    }

    fn start(&mut self, flow: &Flow) {
        self.in_flight += 1;
        self.users_in_flight += usize::from(matches!(flow, Flow::User(_)));
        self.flows.entry(flow.clone()).or_default().in_flight += 1;
    }

    /// The flow whose request is next: the one with the fewest in flight for its weight, and
    /// of equals the one whose first request has waited longest.
    fn next(&self) -> Option<Flow> {
        let waits =
            |(flow, queue): &(&Flow, &FlowQueue)| !queue.waiting.is_empty() && self.may_start(flow);
        // By in_flight / weight, without fractions.
        let order = |(flow, queue): &(&Flow, &FlowQueue)| {
            let first = queue.waiting.front().map_or(0, |(arrived, _)| *arrived);
            (queue.in_flight * Flow::Shared.weight() / flow.weight(), first)
        };
        self.flows.iter().filter(waits).min_by_key(order).map(|(flow, _)| flow.clone())
    }

    fn forget_idle(&mut self, flow: &Flow) {
        if self
            .flows
            .get(flow)
            .is_some_and(|queue| queue.in_flight == 0 && queue.waiting.is_empty())
        {
            self.flows.remove(flow);
        }
    }

    fn end(&mut self, flow: &Flow) {
        self.in_flight -= 1;
        self.users_in_flight -= usize::from(matches!(flow, Flow::User(_)));
        if let Some(queue) = self.flows.get_mut(flow) {
            queue.in_flight -= 1;
        }
        self.forget_idle(flow);
    }

    fn record(&mut self, flow: &Flow, late: bool, now: Instant) {
        let halves = now.duration_since(self.half_began).as_secs() / HALF_WINDOW.as_secs();
        if halves > 0 {
            let current = std::mem::take(&mut self.window[0]);
            self.window[1] = if halves == 1 { current } else { HashMap::new() };
            self.half_began = now;
        }
        let responses = self.window[0].entry(flow.clone()).or_default();
        responses.all += 1;
        responses.late += usize::from(late);
    }

    /// Whether most responses are late. The shared flow counts for one half,
    /// and all namespaces together for the other, each with the same vote,
    /// so that no single namespace can lower the limit for all.
    fn is_overloaded(&self) -> bool {
        // Sorted: the sum of fractions depends on their order.
        let mut by_flow: BTreeMap<&Flow, Responses> = BTreeMap::new();
        for (flow, Responses { all, late }) in self.window.iter().flatten() {
            let sum = by_flow.entry(flow).or_default();
            *sum = Responses { all: sum.all + all, late: sum.late + late };
        }
        let share = |Responses { all, late }| late as f64 / all as f64;
        let late: usize = by_flow.values().map(|responses| responses.late).sum();
        let shared = by_flow.remove(&Flow::Shared).map(share);
        let count = by_flow.len() as f64;
        let namespaces =
            (count > 0.0).then(|| by_flow.into_values().map(share).sum::<f64>() / count);
        let share = match (shared, namespaces) {
            (Some(shared), Some(namespaces)) => (shared + namespaces) / 2.0,
            (shared, namespaces) => shared.or(namespaces).unwrap_or(0.0),
        };
        late >= MIN_LATE && share > 0.5
    }
}

impl Seat {
    /// The flow of the request.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Frees the seat of a completed request. Returns whether it was late because too many requests were in
    /// flight; the limit is lower now. If not, a late query is too large: most other responses are in time, or
    /// the limit is at its lowest.
    pub fn complete(self, completion: Completion) -> bool {
        let Some(queue) = &self.queue else { return false };
        let mut state = queue.state();
        // Users' own queries have few seats of their own, and don't lower the limit of others.
        let counts = !matches!(self.flow, Flow::User(_));
        match completion {
            Completion::Unknown => false,
            Completion::InTime => {
                if counts {
                    state.record(&self.flow, false, Instant::now());
                }
                state.in_time += 1;
                if state.in_time >= state.limit && state.limit < MAX_SEATS {
                    let more = (state.limit / INCREASE_DIVISOR).max(1);
                    (state.limit, state.in_time) = ((state.limit + more).min(MAX_SEATS), 0);
                }
                false
            }
            Completion::Late if !counts => false,
            Completion::Late => {
                state.record(&self.flow, true, Instant::now());
                if !state.is_overloaded() {
                    return false;
                }
                // The new limit is judged by new responses.
                state.window = Default::default();
                let at_lowest = state.limit == MIN_SEATS;
                (state.limit, state.in_time) = ((state.limit / DECREASE_DIVISOR).max(MIN_SEATS), 0);
                !at_lowest
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        let mut state = queue.state();
        state.end(&self.flow);
        queue.dispatch(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn namespace(name: &str) -> Flow {
        Flow::Namespace(name.into())
    }

    fn user(name: &str) -> Flow {
        Flow::User(name.into())
    }

    /// The seats that are free, as many as wanted.
    fn taken(queue: &RequestQueue, flow: &Flow, wanted: usize) -> Vec<Seat> {
        let take = |_| queue.acquire(std::slice::from_ref(flow)).now_or_never().flatten();
        (0..wanted).map_while(take).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn one_namespace_leaves_seats_for_all_others() {
        let queue = RequestQueue::default();
        let slow = taken(&queue, &user("greedy"), 24);
        assert_eq!(slow.len(), MAX_USER_SEATS);
        let greedy = taken(&queue, &namespace("greedy"), 100);
        assert!(greedy.len() <= MAX_SEATS / 2, "{}", greedy.len());
        assert_eq!(taken(&queue, &namespace("good"), 1).len(), 1);
        let many: Vec<_> = (0..40).flat_map(|n| taken(&queue, &user(&n.to_string()), 9)).collect();
        assert_eq!(many.len(), MAX_SEATS / 4 - MAX_USER_SEATS);
        assert_eq!(taken(&queue, &Flow::Shared, 1).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_queries_of_one_namespace_lower_the_limit_for_no_other() {
        let queue = RequestQueue::default();
        for _ in 0..100 {
            for name in ["a", "b", "c"] {
                taken(&queue, &namespace(name), 1).pop().unwrap().complete(Completion::InTime);
            }
            taken(&queue, &Flow::Shared, 1).pop().unwrap().complete(Completion::InTime);
            for seat in taken(&queue, &namespace("greedy"), 8) {
                assert!(!seat.complete(Completion::Late));
            }
            taken(&queue, &user("greedy"), 1).pop().unwrap().complete(Completion::Late);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(taken(&queue, &Flow::Shared, 1_000).len(), MAX_SEATS);
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_falls_while_the_server_can_not_keep_up_and_recovers_soon() {
        let queue = RequestQueue::default();
        let mut overloaded = Vec::new();
        for seat in taken(&queue, &Flow::Shared, MAX_SEATS) {
            overloaded.push(seat.complete(Completion::Late));
        }
        assert!(!overloaded[..MIN_LATE - 1].contains(&true));
        assert!(overloaded.contains(&true));
        assert_eq!(taken(&queue, &Flow::Shared, MAX_SEATS).len(), MIN_SEATS);
        for _ in 0..400 {
            taken(&queue, &Flow::Shared, 1).pop().unwrap().complete(Completion::InTime);
        }
        assert_eq!(taken(&queue, &Flow::Shared, 100).len(), MAX_SEATS);
        tokio::time::advance(2 * HALF_WINDOW).await;
        // Failed connections do not raise the limit.
        for seat in taken(&queue, &Flow::Shared, MAX_SEATS) {
            seat.complete(Completion::Late);
        }
        for _ in 0..400 {
            taken(&queue, &Flow::Shared, 1).pop().unwrap().complete(Completion::Unknown);
        }
        assert_eq!(taken(&queue, &Flow::Shared, 100).len(), MIN_SEATS);
    }

    #[tokio::test(start_paused = true)]
    async fn the_flow_with_the_fewest_in_flight_is_next_and_no_request_is_lost() {
        let queue = RequestQueue::default();
        let mut running = taken(&queue, &Flow::Shared, MAX_SEATS);
        let wait = |flow: Flow| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.acquire(std::slice::from_ref(&flow)).await })
        };
        let greedy: Vec<_> = (0..5).map(|_| wait(namespace("greedy"))).collect();
        tokio::task::yield_now().await;
        let good = wait(namespace("good"));
        let gone = wait(namespace("gone"));
        tokio::task::yield_now().await;
        gone.abort();
        let _ = gone.await;
        running.truncate(MAX_SEATS - 2);
        let good = good.await.unwrap().unwrap();
        assert_eq!(greedy.iter().filter(|task| task.is_finished()).count(), 1);
        drop((good, running));
        for task in greedy {
            task.await.unwrap().unwrap();
        }
        assert_eq!(taken(&queue, &Flow::Shared, 100).len(), MAX_SEATS);
        assert!(queue.state().flows.len() <= 1);
    }
}
