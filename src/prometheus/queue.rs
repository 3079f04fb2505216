//! Requests to Prometheus are shared fairly: each namespace has a queue of its
//! own, and whoever has the fewest requests running for its weight is next. How
//! many run at once shrinks while Prometheus can't keep up and grows again as it
//! does; without that, queries that come too late are asked again on top of those
//! that still run, and a server that was slow for a moment stays so.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// For whom a request is made. Requests of one flow wait for one another; flows
/// share what runs at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flow {
    /// Queries that the templates and rules of the administrator give for several
    /// namespaces at once, and what all need: metadata, and listings of series.
    Shared,
    /// Queries that templates and rules give for one namespace.
    Namespace(Arc<str>),
    /// Queries in the words of a user of this namespace.
    User(Arc<str>),
}

impl Flow {
    /// Its share beside others, where all have requests waiting.
    fn weight(&self) -> usize {
        match self {
            Self::Shared => 8,
            Self::Namespace(_) => 2,
            Self::User(_) => 1,
        }
    }
}

/// The most requests at once.
const MOST: usize = 64;
/// The fewest; one that never ends must not stop all others.
const LEAST: usize = 4;
/// The most requests at once of one namespace in its users' words. Prometheus
/// itself runs 20 queries at once by default.
const USER: usize = 2;
/// The most that wait in one flow; more are refused at once.
const WAITING: usize = 2_000;
/// How far back answers are looked at to tell whether Prometheus keeps up: once to
/// twice as far, as answers are counted in two halves. About as long as a request
/// may take, so that what was answered before it hung does not count.
const HALF: Duration = Duration::from_secs(8);
/// So many in the window that came too late are no chance.
const LATE: usize = 4;

/// The requests that run, and those that wait.
#[derive(Clone, Debug, Default)]
pub struct Queue(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// How many requests may run at once.
    allowed: usize,
    running: usize,
    /// How many of those that run are in users' words.
    users: usize,
    flows: HashMap<Flow, Load>,
    /// How many have come; whoever came first is first among equals.
    arrived: u64,
    /// Which answers came in time lately, but those to users' queries.
    lately: [HashMap<Flow, Counts>; 2],
    /// When the first half of `lately` began.
    turned: Instant,
    /// Answers in time since `allowed` changed.
    answers: usize,
}

#[derive(Debug, Default)]
struct Load {
    running: usize,
    waiting: VecDeque<(u64, oneshot::Sender<Slot>)>,
}

/// Answers of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    all: usize,
    late: usize,
}

/// Room for one request, until this is dropped.
#[derive(Debug)]
pub struct Slot {
    queue: Option<Queue>,
    flow: Flow,
}

/// How a request ended, as the queue sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was answered in time, well or not.
    InTime,
    /// It was not, or Prometheus said that it can't keep up.
    Late,
    /// It says nothing of how Prometheus keeps up: the connection failed.
    Unknown,
}

/// What a late answer is a sign of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The query is too large: most others are answered in time, or no fewer
    /// requests may run at once.
    TooLarge,
    /// Too many ran at once; fewer will.
    TooMany,
}

impl Default for State {
    fn default() -> Self {
        Self {
            allowed: MOST,
            running: 0,
            users: 0,
            flows: HashMap::new(),
            arrived: 0,
            lately: Default::default(),
            turned: Instant::now(),
            answers: 0,
        }
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room in the least busy of these flows; [`Flow::Shared`] where there
    /// are none. None where too many wait already.
    pub async fn take(&self, flows: &[Flow]) -> Option<Slot> {
        let waiting = {
            let mut state = self.state();
            let flow = state.least_busy(flows);
            if state.may_start(&flow) && state.waiting(&flow) == 0 {
                state.start(&flow);
                return Some(Slot { queue: Some(self.clone()), flow });
            }
            state.arrived += 1;
            let arrived = state.arrived;
            let load = state.flows.entry(flow).or_default();
            // Those that have stopped waiting take no place.
            load.waiting.retain(|(_, sender)| !sender.is_closed());
            if load.waiting.len() >= WAITING {
                return None;
            }
            let (sender, receiver) = oneshot::channel();
            load.waiting.push_back((arrived, sender));
            receiver
        };
        waiting.await.ok()
    }

    /// Gives room to those who wait, as far as there is any.
    fn hand_out(&self, state: &mut State) {
        while let Some(flow) = state.next() {
            let load = state.flows.get_mut(&flow).expect("it has somebody waiting");
            let Some((_, sender)) = load.waiting.pop_front() else { return };
            let slot = Slot { queue: Some(self.clone()), flow: flow.clone() };
            match sender.send(slot) {
                Ok(()) => state.start(&flow),
                // It stopped waiting. The lock is held: this slot gives nothing back.
                Err(mut slot) => slot.queue = None,
            }
            state.forget_idle(&flow);
        }
    }
}

impl State {
    fn waiting(&self, flow: &Flow) -> usize {
        self.flows.get(flow).map_or(0, |load| load.waiting.len())
    }

    fn least_busy(&self, flows: &[Flow]) -> Flow {
        let busy = |flow: &&Flow| {
            self.flows.get(*flow).map_or(0, |load| load.running + load.waiting.len())
        };
        flows.iter().min_by_key(busy).cloned().unwrap_or(Flow::Shared)
    }

    /// Whether one more of a flow may run. A namespace may take as many as it
    /// leaves free, so that there is always room for the next; users' own queries
    /// have a small share each and a quarter together.
    fn may_start(&self, flow: &Flow) -> bool {
        let running = self.flows.get(flow).map_or(0, |load| load.running);
        let free = self.allowed.saturating_sub(self.running);
        free > 0
            && match flow {
                Flow::Shared => true,
                Flow::Namespace(_) => running < free,
                Flow::User(_) => running < USER && self.users < (self.allowed / 4).max(1),
            }
    }

    fn start(&mut self, flow: &Flow) {
        self.running += 1;
        self.users += usize::from(matches!(flow, Flow::User(_)));
        self.flows.entry(flow.clone()).or_default().running += 1;
    }

    /// The flow that is next: the one with the fewest running for its weight, and
    /// of those the one whose first has waited longest.
    fn next(&self) -> Option<Flow> {
        let waits =
            |(flow, load): &(&Flow, &Load)| !load.waiting.is_empty() && self.may_start(flow);
        // By running / weight, without fractions.
        let order = |(flow, load): &(&Flow, &Load)| {
            let first = load.waiting.front().map_or(0, |(arrived, _)| *arrived);
            (load.running * Flow::Shared.weight() / flow.weight(), first)
        };
        self.flows.iter().filter(waits).min_by_key(order).map(|(flow, _)| flow.clone())
    }

    fn forget_idle(&mut self, flow: &Flow) {
        if self.flows.get(flow).is_some_and(|load| load.running == 0 && load.waiting.is_empty()) {
            self.flows.remove(flow);
        }
    }

    fn end(&mut self, flow: &Flow) {
        self.running -= 1;
        self.users -= usize::from(matches!(flow, Flow::User(_)));
        if let Some(load) = self.flows.get_mut(flow) {
            load.running -= 1;
        }
        self.forget_idle(flow);
    }

    fn note(&mut self, flow: &Flow, late: bool, now: Instant) {
        let halves = now.duration_since(self.turned).as_secs() / HALF.as_secs();
        if halves > 0 {
            let first = std::mem::take(&mut self.lately[0]);
            self.lately[1] = if halves == 1 { first } else { HashMap::new() };
            self.turned = now;
        }
        let counts = self.lately[0].entry(flow.clone()).or_default();
        counts.all += 1;
        counts.late += usize::from(late);
    }

    /// Whether most come too late. The queries of several namespaces are one half
    /// of it and the namespaces alone the other, each namespace with the same vote,
    /// so that no namespace can make the room smaller for all.
    fn is_overloaded(&self) -> bool {
        let mut shares: HashMap<&Flow, Counts> = HashMap::new();
        for (flow, counts) in self.lately.iter().flatten() {
            let sum = shares.entry(flow).or_default();
            *sum = Counts { all: sum.all + counts.all, late: sum.late + counts.late };
        }
        let share = |Counts { all, late }| late as f64 / all as f64;
        let late: usize = shares.values().map(|counts| counts.late).sum();
        let shared = shares.remove(&Flow::Shared).map(share);
        let count = shares.len() as f64;
        let namespaces =
            (count > 0.0).then(|| shares.into_values().map(share).sum::<f64>() / count);
        let share = match (shared, namespaces) {
            (Some(shared), Some(namespaces)) => (shared + namespaces) / 2.0,
            (shared, namespaces) => shared.or(namespaces).unwrap_or(0.0),
        };
        late >= LATE && share > 0.5
    }
}

impl Slot {
    /// The flow that the request is counted among.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// The request has ended. Tells what a late answer is a sign of.
    pub fn ended(self, ended: Ended) -> Sign {
        let Some(queue) = &self.queue else { return Sign::TooLarge };
        let mut state = queue.state();
        // Users' own queries have a bound of their own, and no say in that of others.
        let counts = !matches!(self.flow, Flow::User(_));
        match ended {
            Ended::Unknown => Sign::TooLarge,
            Ended::InTime => {
                if counts {
                    state.note(&self.flow, false, Instant::now());
                }
                state.answers += 1;
                if state.answers >= state.allowed && state.allowed < MOST {
                    let more = (state.allowed / 4).max(1);
                    (state.allowed, state.answers) = ((state.allowed + more).min(MOST), 0);
                }
                Sign::TooLarge
            }
            Ended::Late if !counts => Sign::TooLarge,
            Ended::Late => {
                state.note(&self.flow, true, Instant::now());
                if !state.is_overloaded() {
                    return Sign::TooLarge;
                }
                // What comes next is judged by itself.
                state.lately = Default::default();
                let fewest = state.allowed == LEAST;
                (state.allowed, state.answers) = ((state.allowed / 2).max(LEAST), 0);
                if fewest { Sign::TooLarge } else { Sign::TooMany }
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        let mut state = queue.state();
        state.end(&self.flow);
        queue.hand_out(&mut state);
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

    /// The room that is there at once.
    fn taken(queue: &Queue, flow: &Flow, wanted: usize) -> Vec<Slot> {
        let take = |_| queue.take(std::slice::from_ref(flow)).now_or_never().flatten();
        (0..wanted).map_while(take).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn one_namespace_leaves_room_for_all_others() {
        let queue = Queue::default();
        let slow = taken(&queue, &user("greedy"), 24);
        assert_eq!(slow.len(), USER);
        let greedy = taken(&queue, &namespace("greedy"), 100);
        assert!(greedy.len() <= MOST / 2, "{}", greedy.len());
        assert_eq!(taken(&queue, &namespace("good"), 1).len(), 1);
        let many: Vec<_> = (0..40).flat_map(|n| taken(&queue, &user(&n.to_string()), 9)).collect();
        assert_eq!(many.len(), MOST / 4 - USER);
        assert_eq!(taken(&queue, &Flow::Shared, 1).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_namespace_waits_for_makes_the_room_smaller_for_nobody() {
        let queue = Queue::default();
        for _ in 0..100 {
            for name in ["a", "b", "c"] {
                taken(&queue, &namespace(name), 1).pop().unwrap().ended(Ended::InTime);
            }
            taken(&queue, &Flow::Shared, 1).pop().unwrap().ended(Ended::InTime);
            for slot in taken(&queue, &namespace("greedy"), 8) {
                assert_eq!(slot.ended(Ended::Late), Sign::TooLarge);
            }
            taken(&queue, &user("greedy"), 1).pop().unwrap().ended(Ended::Late);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(taken(&queue, &Flow::Shared, 1_000).len(), MOST);
    }

    #[tokio::test(start_paused = true)]
    async fn fewer_run_at_once_while_the_server_can_not_keep_up_and_soon_as_many_again() {
        let queue = Queue::default();
        let mut signs = Vec::new();
        for slot in taken(&queue, &Flow::Shared, MOST) {
            signs.push(slot.ended(Ended::Late));
        }
        assert!(signs[..LATE - 1].iter().all(|sign| *sign == Sign::TooLarge));
        assert!(signs.contains(&Sign::TooMany));
        assert_eq!(taken(&queue, &Flow::Shared, MOST).len(), LEAST);
        for _ in 0..400 {
            taken(&queue, &Flow::Shared, 1).pop().unwrap().ended(Ended::InTime);
        }
        assert_eq!(taken(&queue, &Flow::Shared, 100).len(), MOST);
        tokio::time::advance(2 * HALF).await;
        // A server that can't be reached is not one that has room for more.
        for slot in taken(&queue, &Flow::Shared, MOST) {
            slot.ended(Ended::Late);
        }
        for _ in 0..400 {
            taken(&queue, &Flow::Shared, 1).pop().unwrap().ended(Ended::Unknown);
        }
        assert_eq!(taken(&queue, &Flow::Shared, 100).len(), LEAST);
    }

    #[tokio::test(start_paused = true)]
    async fn those_with_the_least_running_are_next_and_none_is_lost() {
        let queue = Queue::default();
        let mut running = taken(&queue, &Flow::Shared, MOST);
        let wait = |flow: Flow| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.take(std::slice::from_ref(&flow)).await })
        };
        let greedy: Vec<_> = (0..5).map(|_| wait(namespace("greedy"))).collect();
        tokio::task::yield_now().await;
        let good = wait(namespace("good"));
        let gone = wait(namespace("gone"));
        tokio::task::yield_now().await;
        gone.abort();
        let _ = gone.await;
        running.truncate(MOST - 2);
        let good = good.await.unwrap().unwrap();
        assert_eq!(greedy.iter().filter(|task| task.is_finished()).count(), 1);
        drop((good, running));
        for task in greedy {
            task.await.unwrap().unwrap();
        }
        assert_eq!(taken(&queue, &Flow::Shared, 100).len(), MOST);
        assert!(queue.state().flows.len() <= 1);
    }
}
