//! Single flight, for many queries at once: those that ask for series of one
//! form at the same time are answered by joined queries, and who asks later, for
//! anything that such an answer has, is given it for a while.

use super::MetricError;
use super::flight::{Answer, Asker, Flight, Landed, flows};
use super::learned::Learning;
use crate::cache;
use crate::prometheus::{Error, Flow};
use crate::promql::plan::{Asking, Form, Learned, Limits, Own, Planned, Shape, join, plan};
use crate::shares::{Share, Shares};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Runs one query for some flows.
pub type Run = Arc<dyn Fn(String, Vec<Flow>) -> BoxFuture<'static, Answer> + Send + Sync>;

/// Queries by their form. A form that nobody asked for within [`IDLE`] is
/// forgotten, and an answer is dropped once it is too old to be used.
pub struct Groups {
    max_age: Duration,
    run: Run,
    forms: moka::sync::Cache<Arc<Form>, Arc<Group>>,
    /// The bytes of those among them that users' own queries have, by namespace.
    users: Arc<Shares>,
    /// Those of users' own that found no room, as long as somebody waits for them.
    passing: Arc<Passing>,
    /// The bytes of all that is remembered of who asked.
    remembered: Arc<Remembered>,
}

/// The bytes that are remembered of who asked, by namespace. Those of users' own queries,
/// which may be as large and as many as a user likes, take none from templates and rules.
struct Remembered {
    users: Shares,
    others: Shares,
}

impl Remembered {
    fn of(&self, asker: &Asker) -> &Shares {
        if asker.user { &self.users } else { &self.others }
    }

    fn take(&self, asker: &Asker, bytes: usize) -> bool {
        self.of(asker).take(&asker.namespace, bytes)
    }

    fn give(&self, asker: &Asker, bytes: usize) {
        self.of(asker).give(&asker.namespace, bytes);
    }
}

/// Groups that are not kept, found by those who ask while others do.
type Passing = Mutex<HashMap<Arc<Form>, Weak<Group>>>;

/// The queries of one form.
struct Group {
    form: Arc<Form>,
    state: Mutex<State>,
    /// Room for its joined queries.
    slots: Semaphore,
    remembered: Arc<Remembered>,
    room: Room,
}

/// What keeps a group.
enum Room {
    /// The room of all forms.
    Forms,
    /// That of users' own, of which it has this.
    Users { _share: Share },
    /// None: it is among these.
    Passing(Arc<Passing>),
}

#[derive(Default)]
struct State {
    learning: Learning,
    /// The queries that several asked for together.
    joined: Vec<Flight>,
    /// Those for one alone.
    alone: HashMap<Own, Flight>,
    /// Those who wait for the next plan.
    waiting: Option<(BTreeMap<Own, Waiting>, Planning)>,
    /// Those who wait for plans that are being made.
    planned: Vec<(Arc<BTreeMap<Own, Waiting>>, Planning)>,
    /// Who asked lately, and may ask again; and who is asked for apart.
    asked: HashMap<Own, Lately>,
    /// Whether anybody's query failed alone since the last answer came.
    suspects: bool,
    /// When the last answer came.
    succeeded: Option<Instant>,
    /// When parts of a query were last asked for because its answer was only a part, where
    /// not all whom it was for are remembered.
    divided: Option<Instant>,
    /// How often in a row no answer came.
    failures: u32,
}

/// A query that waits for a plan.
struct Waiting {
    asker: Asker,
    /// Whether the query is not to be joined with others.
    apart: bool,
}

/// When somebody asked.
struct Lately {
    asker: Asker,
    last: Instant,
    /// How long the answer is of use.
    answered: Instant,
    /// How the query failed, where it was asked for alone.
    failed: Option<Failed>,
}

/// How a query failed that was asked for alone.
#[derive(Clone, Copy)]
struct Failed {
    last: Instant,
    /// How long it is not asked for again.
    wait: Duration,
    /// Whether it is asked for apart: Prometheus refused it, or answered others meanwhile.
    apart: bool,
    /// Whether its answer was only a part.
    partial: bool,
}

impl Lately {
    fn is_apart(&self) -> bool {
        self.failed.is_some_and(|failed| failed.apart)
    }

    /// Whether its answer alone was only a part, a while ago.
    fn is_partial(&self, now: Instant) -> bool {
        let is_new = |failed: Failed| now.duration_since(failed.last) <= REFUSED;
        self.failed.is_some_and(|failed| failed.partial && is_new(failed))
    }
}

type Planning = Shared<BoxFuture<'static, Arc<Vec<Flight>>>>;

/// How long those who ask wait for others who ask for the same form.
const GATHERING: Duration = Duration::from_millis(1);
/// How long a form is remembered that nobody asks for.
const IDLE: Duration = Duration::from_secs(600);
/// The bytes of forms that are remembered.
pub const FORMS: usize = 16 << 20;
/// The part of them that those of users' own queries may take. No namespace takes more of it
/// than it leaves free.
const USERS_FORMS: usize = FORMS / 2;
/// The bytes that are remembered of who asked, of all forms. No namespace takes more of
/// them than it leaves free.
pub const REMEMBERED: usize = 32 << 20;
/// The part of them that is for users' own queries.
pub(super) const USERS_REMEMBERED: usize = REMEMBERED / 4;
/// What a form takes beside its text.
const GROUP: usize = size_of::<Group>() + 512;
/// How many joined queries of a form run at once.
const AT_ONCE: usize = 4;
/// How long a query that failed alone is run apart from others.
const APART: Duration = Duration::from_secs(300);
/// The longest that a refusal is believed.
const REFUSED: Duration = Duration::from_secs(60);
/// The longest that a failure is not asked for again.
const HOLD: Duration = Duration::from_secs(8);

/// What was asked, and may be asked again.
#[derive(Clone)]
pub struct Asked {
    groups: Arc<Groups>,
    asker: Asker,
    pub(super) shape: Arc<Shape>,
}

impl Asked {
    /// Begins to ask all of them again, those of one form as one.
    pub fn again<'a>(all: impl IntoIterator<Item = &'a Self>) {
        let now = Instant::now();
        let mut of_forms: HashMap<(*const Groups, &Form), Vec<&Self>> = HashMap::new();
        for asked in all {
            let key = (Arc::as_ptr(&asked.groups), &*asked.shape.form);
            of_forms.entry(key).or_default().push(asked);
        }
        for asked in of_forms.into_values() {
            let Some(first) = asked.first() else { continue };
            let Self { groups, shape, .. } = first;
            // Nobody would find what is asked of one that is not kept.
            let Some(group) = groups.kept(&shape.form, &first.asker) else { continue };
            // Held until all have asked: nothing is planned before.
            let mut state = group.state();
            for Self { asker, shape, .. } in asked {
                let _ = groups.ask(&group, &mut state, &shape.own, asker, now);
            }
        }
    }

    /// What it shares with other queries.
    pub fn form(&self) -> &Form {
        &self.shape.form
    }
}

/// What there is for whoever asks.
enum Found {
    Flight(Flight),
    Planning(Planning),
}

impl Group {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn drop_old(&mut self, max_age: Duration, now: Instant) {
        self.joined.retain(|flight| flight.is_fresh(max_age, now));
        self.alone.retain(|_, flight| flight.is_fresh(max_age, now));
    }

    /// Forgets failures that are old, and who has not asked for so long, unless it is kept out of
    /// others' queries or is being asked for alone: that query may still fail.
    fn forget(&mut self, of: &Remembered, asked: Duration, now: Instant) {
        let runs = |flight: &Flight| flight.landed.peek().is_none();
        self.asked.retain(|own, known| {
            known.failed.take_if(|failed| now.duration_since(failed.last) > APART);
            let keep = now.duration_since(known.last) <= asked
                || known.is_apart()
                || known.is_partial(now)
                || self.alone.get(own).is_some_and(runs);
            if !keep {
                of.give(&known.asker, bytes(own));
            }
            keep
        });
    }

    /// An answer came for these, to a query that began then: whose query failed alone meanwhile
    /// is asked for apart, and what failed for them before counts no more.
    fn succeeded(&mut self, of: &[Own], began: Instant, now: Instant) {
        let is_past = |failed: &mut Failed| !failed.apart && failed.last < began;
        if self.asked.values_mut().filter_map(|known| known.failed.as_mut()).any(is_past) {
            for own in of {
                if let Some(known) = self.asked.get_mut(own) {
                    known.failed.take_if(is_past);
                }
            }
        }
        (self.failures, self.succeeded) = (0, Some(now));
        if std::mem::take(&mut self.suspects) {
            for failed in self.asked.values_mut().filter_map(|known| known.failed.as_mut()) {
                failed.apart |= failed.last >= began;
            }
        }
    }

    /// Whether somebody's answer alone was only a part a while ago, and nobody was answered since.
    /// A store that is down makes all answers partial: what helped nobody is not done again
    /// in each round. Those who did not fail so yet don't pay for those who did.
    fn is_partial(&self, own: &Own, now: Instant) -> bool {
        let unhelped = |since: Instant| self.succeeded.is_none_or(|at| at < since);
        let Some(known) = self.asked.get(own) else {
            // The parts of one query, and of those asked beside it, come within the hold.
            let between = |age: Duration| age > HOLD && age <= REFUSED;
            let divided = |since: Instant| between(now.duration_since(since)) && unhelped(since);
            return self.divided.is_some_and(divided);
        };
        known.is_partial(now) && known.failed.is_some_and(|failed| unhelped(failed.last))
    }

    /// The parts in which a query is asked for whose answer was only a part; none where it is
    /// not: who failed so alone already, and the others.
    fn divide(&mut self, of: &[Own], now: Instant) -> Option<[Vec<Own>; 2]> {
        let (partial, others): (Vec<Own>, Vec<Own>) =
            of.iter().cloned().partition(|own| self.is_partial(own, now));
        if others.is_empty() {
            return None;
        }
        let is_old = |since: Instant| now.duration_since(since) > HOLD;
        if others.iter().any(|own| !self.asked.contains_key(own)) && self.divided.is_none_or(is_old)
        {
            self.divided = Some(now);
        }
        Some(if partial.is_empty() { halves(of) } else { [partial, others] })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut state = self.state();
        for (own, lately) in state.asked.drain() {
            self.remembered.give(&lately.asker, bytes(&own));
        }
        if let Room::Passing(passing) = &self.room {
            let mut passing = passing.lock().unwrap_or_else(PoisonError::into_inner);
            // Another may have its place by now.
            if passing.get(&self.form).is_some_and(|group| group.strong_count() == 0) {
                passing.remove(&self.form);
            }
        }
    }
}

impl Groups {
    /// None yet; answers are used for so long.
    pub fn new(max_age: Duration, run: Run) -> Self {
        let users = Shares::new(USERS_REMEMBERED);
        let others = Shares::new(REMEMBERED - USERS_REMEMBERED);
        Self::with(max_age, run, Arc::new(Remembered { users, others }))
    }

    /// None yet, of another server; they share the bytes that are remembered.
    pub fn beside(&self, max_age: Duration, run: Run) -> Self {
        Self::with(max_age, run, self.remembered.clone())
    }

    fn with(max_age: Duration, run: Run, remembered: Arc<Remembered>) -> Self {
        let forms = moka::sync::Cache::builder()
            .max_capacity(FORMS as u64)
            .weigher(|form: &Arc<Form>, _: &Arc<Group>| cache::weight(GROUP + form.bytes()))
            .time_to_idle(IDLE)
            .build();
        let users = Arc::new(Shares::new(USERS_FORMS));
        Self { max_age, run, forms, users, passing: Arc::default(), remembered }
    }

    fn new_group(&self, form: &Arc<Form>, room: Room) -> Arc<Group> {
        Arc::new(Group {
            form: form.clone(),
            state: Mutex::default(),
            slots: Semaphore::new(AT_ONCE),
            remembered: self.remembered.clone(),
            room,
        })
    }

    /// The group of a form, which is kept; none where it is a user's own that finds no room,
    /// and pushes none of others out.
    fn kept(&self, form: &Arc<Form>, asker: &Asker) -> Option<Arc<Group>> {
        if let Some(known) = self.forms.get(form) {
            return Some(known);
        }
        let room = match asker.user {
            true => {
                let bytes = cache::weight(GROUP + form.bytes()) as usize;
                Room::Users { _share: self.users.share(&asker.namespace, bytes)? }
            }
            false => Room::Forms,
        };
        Some(self.forms.get_with_by_ref(form, || self.new_group(form, room)))
    }

    /// The group of a form, kept or not.
    fn group(&self, form: &Arc<Form>, asker: &Asker) -> Arc<Group> {
        if let Some(kept) = self.kept(form, asker) {
            return kept;
        }
        let mut passing = self.passing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = passing.get(form).and_then(Weak::upgrade) {
            return known;
        }
        let new = self.new_group(form, Room::Passing(self.passing.clone()));
        passing.insert(form.clone(), Arc::downgrade(&new));
        new
    }

    /// The answer that has the series of a query.
    pub async fn get(self: &Arc<Self>, shape: &Shape, asker: &Asker) -> Answer {
        let group = self.group(&shape.form, asker);
        let own = &shape.own;
        let found = self.ask(&group, &mut group.state(), own, asker, Instant::now());
        let flights = match found {
            Found::Flight(flight) => Arc::new(vec![flight]),
            Found::Planning(planning) => planning.await,
        };
        for flight in flights.iter().filter(|flight| flight.cover.contains(own)) {
            if let Some(answer) = flight.clone().answer(own).await {
                return answer;
            }
        }
        // What covers it failed, and was not made for it.
        let alone = self.alone(&group, &mut group.state(), own, asker, Instant::now());
        let fault = || Err(Error::Answer("it was asked for in vain".to_owned()).into());
        alone.answer(own).await.unwrap_or_else(fault)
    }

    /// The bytes that are remembered of a namespace.
    #[cfg(test)]
    pub(super) fn remembered(&self, namespace: &str) -> usize {
        self.remembered.users.of(namespace) + self.remembered.others.of(namespace)
    }

    /// Looks up the group of a query, as [`get`](Self::get) does.
    #[cfg(test)]
    pub(super) fn look(&self, shape: &Shape, asker: &Asker) {
        drop(self.group(&shape.form, asker));
        self.forms.run_pending_tasks();
    }

    /// What a query asks of these.
    pub fn asked(self: &Arc<Self>, shape: Arc<Shape>, asker: Asker) -> Asked {
        Asked { groups: self.clone(), asker, shape }
    }

    /// Those that have nobody to ask.
    pub fn of_nothing() -> Arc<Self> {
        let nobody = || Error::Settings("there is nobody to ask".to_owned());
        let run: Run = Arc::new(move |_, _| std::future::ready(Err(nobody().into())).boxed());
        Arc::new(Self::new(Duration::ZERO, run))
    }

    /// What has the answer, or else what will.
    fn ask(
        self: &Arc<Self>,
        group: &Arc<Group>,
        state: &mut State,
        own: &Own,
        asker: &Asker,
        now: Instant,
    ) -> Found {
        let has =
            |flight: &&Flight| flight.is_fresh(self.max_age, now) && flight.cover.contains(own);
        let found = state.alone.get(own).into_iter().chain(&state.joined).find(has).cloned();
        let answered = found.as_ref().map_or(now, |flight| flight.ends(self.max_age));
        let apart = self.remember(state, own, asker, now, answered);
        if let Some(flight) = found {
            return Found::Flight(flight);
        }
        if let Some((_, planning)) = state.planned.iter().find(|(of, _)| of.contains_key(own)) {
            return Found::Planning(planning.clone());
        }
        let waits = Waiting { asker: asker.clone(), apart };
        if let Some((waiting, planning)) = &mut state.waiting {
            waiting.insert(own.clone(), waits);
            return Found::Planning(planning.clone());
        }
        let (groups, of) = (self.clone(), group.clone());
        let planning = async move {
            tokio::time::sleep(GATHERING).await;
            groups.plan(&of)
        };
        let planning = planning.boxed().shared();
        state.waiting = Some((BTreeMap::from([(own.clone(), waits)]), planning.clone()));
        // Its own task: whoever asked first may stop waiting.
        tokio::spawn(planning.clone());
        Found::Planning(planning)
    }

    /// Remembers who asked, as far as there is room; whether the query is asked for apart.
    /// A user's own for which there is no room is: if it failed, that would not be remembered
    /// either. Those of templates and rules, of which a crowd may ask, are joined all the same.
    fn remember(
        &self,
        state: &mut State,
        own: &Own,
        asker: &Asker,
        last: Instant,
        answered: Instant,
    ) -> bool {
        if let Some(known) = state.asked.get_mut(own) {
            (known.last, known.answered) = (last, answered);
            return known.is_apart();
        }
        let room = self.remembered.take(asker, bytes(own));
        if room {
            let lately = Lately { asker: asker.clone(), last, answered, failed: None };
            state.asked.insert(own.clone(), lately);
        }
        !room && asker.user
    }

    /// Starts the queries for those who wait. They are planned without a lock: that
    /// is work for some milliseconds where many ask for many values.
    fn plan(self: &Arc<Self>, group: &Arc<Group>) -> Arc<Vec<Flight>> {
        let (waiting, expected, lately, learned) = {
            let mut state = group.state();
            let Some((waiting, planning)) = state.waiting.take() else { return Arc::default() };
            let (waiting, now) = (Arc::new(waiting), Instant::now());
            state.planned.push((waiting.clone(), planning));
            state.forget(&self.remembered, lately(self.max_age), now);
            let asks = |known: &Lately| now.duration_since(known.last) <= lately(self.max_age);
            let asked = state.asked.iter().filter(|(_, known)| !known.is_apart() && asks(known));
            let lately: BTreeMap<Own, Asker> =
                asked.clone().map(|(own, lately)| (own.clone(), lately.asker.clone())).collect();
            let expected: BTreeSet<Own> = asked
                .filter(|(_, lately)| lately.answered <= now)
                .map(|(own, _)| own.clone())
                .collect();
            (waiting, expected, lately, state.learning.now(now))
        };
        let of = |apart: bool| waiting.iter().filter(move |(_, waits)| waits.apart == apart);
        let good: BTreeSet<Own> = of(false).map(|(own, _)| own.clone()).collect();
        let planned = AssertUnwindSafe(|| {
            let recent = lately.keys().cloned().collect();
            let asking = Asking { waiting: &good, expected: &expected, lately: &recent };
            let mut planned = match good.is_empty() {
                true => Vec::new(),
                false => plan(&group.form, asking, learned, Limits::default()),
            };
            planned.extend(of(true).map(|(own, _)| join(&group.form, &[own], None)));
            planned
        });
        // Those whom no flight covers ask alone.
        let planned = std::panic::catch_unwind(planned).unwrap_or_default();
        let mut state = group.state();
        state.planned.retain(|(of, _)| !Arc::ptr_eq(of, &waiting));
        let (now, mut flights) = (Instant::now(), Vec::with_capacity(planned.len()));
        for planned in planned {
            let of = planned.of.iter();
            let asker =
                |own| waiting.get(own).map(|waits| &waits.asker).or_else(|| lately.get(own));
            let askers = of.filter_map(asker);
            let flows = flows(askers);
            for own in &planned.of {
                if let Some(lately) = state.asked.get_mut(own) {
                    lately.answered = now + self.max_age;
                }
            }
            flights.push(self.launch(group, &mut state, planned, flows, now));
        }
        Arc::new(flights)
    }

    /// The query for one alone: the one that runs, or a new one.
    fn alone(
        self: &Arc<Self>,
        group: &Arc<Group>,
        state: &mut State,
        own: &Own,
        asker: &Asker,
        now: Instant,
    ) -> Flight {
        let known = state.alone.get(own).filter(|flight| flight.is_fresh(self.max_age, now));
        if let Some(flight) = known {
            return flight.clone();
        }
        let planned = join(&group.form, &[own], None);
        self.launch(group, state, planned, flows(std::iter::once(asker)), now)
    }

    /// Starts a query, where those who ask for what it covers find it.
    fn launch(
        self: &Arc<Self>,
        group: &Arc<Group>,
        state: &mut State,
        planned: Planned,
        flows: Vec<Flow>,
        now: Instant,
    ) -> Flight {
        let (cover, of) = (planned.cover.clone(), planned.of.clone());
        let alone = match of.as_slice() {
            [own] if planned.places.is_none() => Some(own.clone()),
            _ => None,
        };
        let hold = Arc::new(OnceLock::new());
        let (groups, of_group, held) = (self.clone(), group.clone(), hold.clone());
        let landed = async move { Arc::new(groups.fly(&of_group, planned, flows, &held).await) };
        let landed = landed.boxed().shared();
        let flight = Flight::new(cover, of, hold, now, landed.clone());
        state.drop_old(self.max_age, now);
        match alone {
            Some(own) => drop(state.alone.insert(own, flight.clone())),
            None => state.joined.push(flight.clone()),
        }
        // What is too old to be used is not kept until somebody asks again.
        let (of_group, max_age, ended) = (Arc::downgrade(group), self.max_age, flight.clone());
        tokio::spawn(async move {
            landed.await;
            // The flight has the answer, and is not to be kept while this sleeps.
            let ends = ended.ends(max_age);
            drop(ended);
            tokio::time::sleep_until(ends + GATHERING).await;
            let Some(group) = of_group.upgrade() else { return };
            group.state().drop_old(max_age, Instant::now());
            drop(group);
            // Nor are those who asked for it, where none of them asks again.
            tokio::time::sleep(lately(max_age) + GATHERING).await;
            let Some(group) = of_group.upgrade() else { return };
            group.state().forget(&group.remembered, lately(max_age), Instant::now());
        });
        flight
    }

    /// Runs a query. A joined query that is refused, too large, partially answered, or beyond the
    /// bytes of the namespace that is charged for it is split, so that one caller's faulty query
    /// fails for no other caller.
    async fn fly(
        self: &Arc<Self>,
        group: &Arc<Group>,
        planned: Planned,
        flows: Vec<Flow>,
        hold: &OnceLock<Instant>,
    ) -> Landed {
        let (answer, began) = {
            let _slot = match planned.of.len() {
                1 => None,
                _ => Some(group.slots.acquire().await.expect("it is never closed")),
            };
            let began = Instant::now();
            let run = async { (self.run)(planned.query.clone(), flows.clone()).await };
            let answer = AssertUnwindSafe(run).catch_unwind().await.unwrap_or_else(|_| {
                let fault = "reading it failed by a fault of Plimsoll's own; see its log";
                Err(Error::Answer(fault.to_owned()).into())
            });
            (answer, began)
        };
        let now = Instant::now();
        let mut state = group.state();
        let wait = self.learn(&mut state, &planned, &answer, began, now);
        let joined = planned.of.len() > 1;
        let of = &planned.of;
        let parts = match &answer {
            Err(MetricError::Prometheus(error)) if joined => match error {
                Error::Refused(_) | Error::Answer(_) | Error::TooLong { .. } => Some(halves(of)),
                Error::Partial(_) => state.divide(of, now),
                Error::Memory { .. } => (flows.len() > 1).then(|| halves(of)),
                _ => None,
            },
            _ => None,
        };
        let Some(parts) = parts else {
            if let Some(wait) = wait {
                let _ = hold.set(now + wait);
            }
            return Landed::Whole(answer);
        };
        let learned = state.learning.now(now);
        drop(state);
        let parts = plan_parts(&group.form, parts, learned);
        let mut state = group.state();
        let launch = |part: Planned| {
            let askers = part.of.iter().map(|own| state.asked.get(own).map(|known| &known.asker));
            // Where not all of them are remembered, it is any of theirs.
            let flows = match askers.collect::<Option<Vec<_>>>() {
                Some(askers) => super::flight::flows(askers.into_iter()),
                None => flows.clone(),
            };
            self.launch(group, &mut state, part, flows, now)
        };
        Landed::Parts(parts.into_iter().map(launch).collect())
    }

    /// Learns of an answer; how long one that failed is not asked for again.
    fn learn(
        &self,
        state: &mut State,
        planned: &Planned,
        answer: &Answer,
        began: Instant,
        now: Instant,
    ) -> Option<Duration> {
        let error = match answer {
            Ok(table) => {
                state.learning.answered(planned, table.series(), now);
                state.succeeded(&planned.of, began, now);
                return None;
            }
            Err(MetricError::Prometheus(error)) => error,
            Err(_) => return None,
        };
        match error {
            Error::Timeout(_) | Error::TooLong { .. } => state.learning.too_large(planned, now),
            // Too large, or spoiled by series that nobody asked for.
            Error::Answer(_) | Error::Refused(_) | Error::Partial(_)
                if planned.places.is_some() =>
            {
                state.learning.wide_refused(now);
            }
            _ => {}
        }
        if let ([own], None) = (planned.of.as_slice(), planned.places)
            && let Some(longest) = longest(error)
            && let Some(known) = state.asked.get_mut(own)
        {
            let before = known.failed.filter(|failed| failed.apart);
            let wait = before.map_or(self.max_age, |failed| failed.wait * 2).min(longest);
            let partial = matches!(error, Error::Partial(_));
            // Or others were since its answer was only a part before, and it was not.
            let since = known.failed.filter(|failed| partial && failed.partial);
            let since = since.map_or(began, |failed| failed.last.min(began));
            let others = state.succeeded.is_some_and(|at| at >= since);
            let apart = before.is_some() || others || matches!(error, Error::Refused(_));
            known.failed = Some(Failed { last: now, wait, apart, partial });
            state.suspects |= !apart;
            if apart {
                return Some(wait);
            }
        }
        state.failures = state.failures.saturating_add(1);
        Some((self.max_age * 2_u32.pow(state.failures.min(8) - 1)).min(HOLD))
    }
}

/// The longest that an error is not asked for again; none where it says nothing of the query.
fn longest(error: &Error) -> Option<Duration> {
    match error {
        Error::Refused(_) => Some(REFUSED),
        Error::Timeout(_)
        | Error::TooLong { .. }
        | Error::Answer(_)
        | Error::Partial(_)
        | Error::Memory { .. } => Some(HOLD),
        Error::Settings(_)
        | Error::Crowded(_)
        | Error::Unreachable(_)
        | Error::Unavailable { .. } => None,
    }
}

/// The two halves of those whom a query was made for.
fn halves(of: &[Own]) -> [Vec<Own>; 2] {
    let (first, second) = of.split_at(of.len().div_ceil(2));
    [first.to_vec(), second.to_vec()]
}

/// The queries for the parts of those whom one was made for, each as few as they can be.
fn plan_parts(form: &Form, parts: [Vec<Own>; 2], learned: Learned) -> Vec<Planned> {
    let learned = Learned { wide: Some(Limits::default().series as f64), ..learned };
    let plan_part = |part: Vec<Own>| {
        let part: BTreeSet<Own> = part.into_iter().collect();
        let nobody = BTreeSet::new();
        let asking = Asking { waiting: &part, expected: &nobody, lately: &part };
        plan(form, asking, learned, Limits::default())
    };
    parts.into_iter().flat_map(plan_part).collect()
}

/// For how long somebody is remembered who asked: who asked of the last answer, now too
/// old, is likely to ask of the next.
fn lately(max_age: Duration) -> Duration {
    max_age.mul_f64(1.25)
}

/// What it takes to remember something of a query.
fn bytes(own: &Own) -> usize {
    let values = own.iter().flatten();
    let texts: usize = values.map(|value| size_of::<String>() + value.len()).sum();
    texts + size_of::<(Own, Lately)>() + 64
}
