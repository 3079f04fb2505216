//! Single flight, for many queries at once: those that ask for series of one
//! form at the same time are answered by joined queries, and who asks later, for
//! anything that such an answer has, is given it for a while.

use super::MetricError;
use super::table::Table;
use crate::prometheus::Error;
use crate::promql::plan::{Asking, Cover, Form, Learned, Limits, Own, Planned, Shape, join, plan};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An answer, shared by all who asked.
pub type Answer = Result<Arc<Table>, MetricError>;

/// Runs one query.
pub type Run = Arc<dyn Fn(String) -> BoxFuture<'static, Answer> + Send + Sync>;

/// Queries by their form.
///
/// Bounded: a form that nobody asked for within [`IDLE`] is forgotten, and an
/// answer is dropped once it is too old to be used.
pub struct Groups {
    max_age: Duration,
    run: Run,
    groups: Mutex<HashMap<Arc<Form>, Group>>,
}

struct Group {
    learned: Learned,
    /// The queries that several asked for together.
    joined: Vec<Flight>,
    /// Those for one alone.
    alone: HashMap<Own, Flight>,
    /// Those who wait for the next plan.
    waiting: Option<(BTreeSet<Own>, Planning)>,
    /// Who asked lately, and may ask again.
    asked: HashMap<Own, Lately>,
    used: Instant,
}

/// When somebody asked.
#[derive(Clone, Copy)]
struct Lately {
    last: Instant,
    /// How long the answer is of use.
    answered: Instant,
}

/// A query that runs, or its answers where it was split.
#[derive(Clone)]
struct Flight {
    cover: Arc<Cover>,
    began: Instant,
    answers: Shared<BoxFuture<'static, Answers>>,
}

/// What was asked, and may be asked again.
#[derive(Clone)]
pub struct Asked {
    groups: Arc<Groups>,
    pub(super) shape: Arc<Shape>,
}

impl Asked {
    /// Begins to ask all of them again, those of one form as one.
    pub fn again<'a>(all: impl IntoIterator<Item = &'a Self>) {
        let now = Instant::now();
        let mut of_stores: Vec<(&Arc<Groups>, Vec<&Shape>)> = Vec::new();
        for Self { groups, shape } in all {
            match of_stores.iter_mut().find(|(known, _)| Arc::ptr_eq(known, groups)) {
                Some((_, shapes)) => shapes.push(shape),
                None => of_stores.push((groups, vec![shape])),
            }
        }
        for (store, shapes) in of_stores {
            // Held until all have asked: nothing is planned before.
            let mut groups = store.groups.lock().unwrap_or_else(PoisonError::into_inner);
            for shape in shapes {
                let _ = store.ask(&mut groups, shape, now);
            }
        }
    }

    /// What it shares with other queries.
    pub fn form(&self) -> &Form {
        &self.shape.form
    }
}

type Answers = Arc<Vec<(Planned, Answer)>>;
type Planning = Shared<BoxFuture<'static, Arc<Vec<Flight>>>>;

/// How long those who ask wait for others who ask for the same form.
const GATHERING: Duration = Duration::from_millis(1);
/// How long a form is remembered that nobody asks for.
const IDLE: Duration = Duration::from_secs(600);
/// How many forms are remembered; beyond, only those that are in use.
const FORMS: usize = 10_000;
/// How many who asked lately are remembered of a form.
const ASKED: usize = 20_000;
/// How many joined queries of a form run at once.
const AT_ONCE: usize = 4;
/// By how much one answer changes what was learned of a form.
const NEWEST: f64 = 0.3;

impl Flight {
    fn is_fresh(&self, max_age: Duration, now: Instant) -> bool {
        // Of the time it was asked for, not of the time it came.
        self.answers.peek().is_none() || now.duration_since(self.began) <= max_age
    }

    /// What it has for a query. None where the whole would have answered it, but
    /// was split, and none of the parts does; what is wrong with a part is only
    /// for those whom it was made for.
    async fn answer(self, own: &Own) -> Option<Answer> {
        let answers = self.answers.await;
        let has = |(planned, answer): &&(Planned, Answer)| match answer {
            Ok(_) => planned.cover.contains(own),
            Err(_) => planned.of.contains(own),
        };
        answers.iter().find(has).map(|(_, answer)| answer.clone())
    }
}

impl Group {
    fn drop_old(&mut self, max_age: Duration, now: Instant) {
        self.joined.retain(|flight| flight.is_fresh(max_age, now));
        self.alone.retain(|_, flight| flight.is_fresh(max_age, now));
    }
}

impl Groups {
    /// None yet; answers are used for so long.
    pub fn new(max_age: Duration, run: Run) -> Self {
        Self { max_age, run, groups: Mutex::default() }
    }

    /// The answer that has the series of a query.
    pub async fn get(self: &Arc<Self>, shape: &Shape) -> Answer {
        let asked = {
            let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
            self.ask(&mut groups, shape, Instant::now())
        };
        let flights = match asked {
            Ok(flight) => Arc::new(vec![flight]),
            Err(planning) => planning.await,
        };
        for flight in flights.iter().filter(|flight| flight.cover.contains(&shape.own)) {
            if let Some(answer) = flight.clone().answer(&shape.own).await {
                return answer;
            }
        }
        let alone = join(&shape.form, &[&shape.own], None);
        let mut answers = self.fly(&shape.form, alone).await;
        answers.pop().expect("one query has one answer").1
    }

    /// What a query asks of these.
    pub fn asked(self: &Arc<Self>, shape: Arc<Shape>) -> Asked {
        Asked { groups: self.clone(), shape }
    }

    /// Those that have nobody to ask.
    pub fn of_nothing() -> Arc<Self> {
        let nobody = || Error::Settings("there is nobody to ask".to_owned());
        let run: Run = Arc::new(move |_| std::future::ready(Err(nobody().into())).boxed());
        Arc::new(Self::new(Duration::ZERO, run))
    }

    /// What has the answer, or else what will.
    fn ask(
        self: &Arc<Self>,
        groups: &mut HashMap<Arc<Form>, Group>,
        shape: &Shape,
        now: Instant,
    ) -> Result<Flight, Planning> {
        if !groups.contains_key(&shape.form) {
            drop_idle(groups, now);
            let group = Group {
                learned: Learned::default(),
                joined: Vec::new(),
                alone: HashMap::new(),
                waiting: None,
                asked: HashMap::new(),
                used: now,
            };
            groups.insert(shape.form.clone(), group);
        }
        let group = groups.get_mut(&shape.form).expect("it is there by now");
        group.used = now;
        let has = |flight: &&Flight| {
            flight.is_fresh(self.max_age, now) && flight.cover.contains(&shape.own)
        };
        let found = group.alone.get(&shape.own).into_iter().chain(&group.joined).find(has);
        let answered = found.map_or(now, |flight| flight.began + self.max_age);
        let lately = Lately { last: now, answered };
        if let Some(known) = group.asked.get_mut(&shape.own) {
            *known = lately;
        } else if group.asked.len() < ASKED {
            group.asked.insert(shape.own.clone(), lately);
        }
        if let Some(flight) = found {
            return Ok(flight.clone());
        }
        if let Some((waiting, planning)) = &mut group.waiting {
            waiting.insert(shape.own.clone());
            return Err(planning.clone());
        }
        let (groups, form) = (self.clone(), shape.form.clone());
        let planning = async move {
            tokio::time::sleep(GATHERING).await;
            groups.plan(&form)
        };
        let planning = planning.boxed().shared();
        group.waiting = Some((BTreeSet::from([shape.own.clone()]), planning.clone()));
        // Its own task: whoever asked first may stop waiting.
        tokio::spawn(planning.clone());
        Err(planning)
    }

    /// Starts the queries for those who wait.
    fn plan(self: &Arc<Self>, form: &Arc<Form>) -> Arc<Vec<Flight>> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(group) = groups.get_mut(form) else { return Arc::default() };
        let Some((waiting, _)) = group.waiting.take() else { return Arc::default() };
        let now = Instant::now();
        // Who asked of the last answer, now too old, is likely to ask of the next.
        let window = self.max_age.mul_f64(1.25);
        group.asked.retain(|_, lately| now.duration_since(lately.last) <= window);
        let expected = group.asked.iter().filter(|(_, lately)| lately.answered <= now);
        let asking = Asking {
            waiting: &waiting,
            expected: &expected.map(|(own, _)| own.clone()).collect(),
            lately: &group.asked.keys().cloned().collect(),
        };
        let planned = plan(form, asking, group.learned, Limits::default());
        for own in planned.iter().flat_map(|planned| &planned.of) {
            if let Some(lately) = group.asked.get_mut(own) {
                lately.answered = now + self.max_age;
            }
        }
        let slots = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
        let fly = |planned: Planned| {
            let (groups, form, slots) = (self.clone(), form.clone(), slots.clone());
            let cover = Arc::new(planned.cover.clone());
            let alone = match planned.of.as_slice() {
                [own] => Some(own.clone()),
                _ => None,
            };
            let joined = alone.is_none();
            let answers = async move {
                let _slot = match joined {
                    true => Some(slots.acquire().await.expect("it is never closed")),
                    false => None,
                };
                Arc::new(groups.fly(&form, planned).await)
            };
            let answers = answers.boxed().shared();
            tokio::spawn(answers.clone());
            (alone, Flight { cover, began: now, answers })
        };
        group.drop_old(self.max_age, now);
        let mut flights = Vec::with_capacity(planned.len());
        for (alone, flight) in planned.into_iter().map(fly) {
            flights.push(flight.clone());
            match alone {
                Some(own) => drop(group.alone.insert(own, flight)),
                None => group.joined.push(flight),
            }
        }
        // What is too old to be used is not kept until somebody asks again.
        let (groups, form, max_age) = (self.clone(), form.clone(), self.max_age);
        let landed: Vec<_> = flights.iter().map(|flight| flight.answers.clone()).collect();
        tokio::spawn(async move {
            futures::future::join_all(landed).await;
            tokio::time::sleep_until((now + max_age).into()).await;
            let mut groups = groups.groups.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(group) = groups.get_mut(&form) {
                group.drop_old(max_age, Instant::now());
            }
        });
        Arc::new(flights)
    }

    /// Runs a query; one that is joined and refused, or too large, in halves, so
    /// that one who asks for what can't be had spoils it for nobody else.
    fn fly(
        self: &Arc<Self>,
        form: &Arc<Form>,
        planned: Planned,
    ) -> BoxFuture<'static, Vec<(Planned, Answer)>> {
        let (groups, form) = (self.clone(), form.clone());
        async move {
            let answer = (groups.run)(planned.query.clone()).await;
            groups.learn(&form, &planned, &answer);
            let splittable = matches!(
                &answer,
                Err(MetricError::Prometheus(Error::Refused(_) | Error::Answer(_)))
            );
            if planned.of.len() < 2 || !splittable {
                return vec![(planned, answer)];
            }
            let mut answers = Vec::new();
            for half in planned.of.chunks(planned.of.len().div_ceil(2)) {
                let half: Vec<&Own> = half.iter().collect();
                answers.extend(groups.fly(&form, join(&form, &half, None)).await);
            }
            answers
        }
        .boxed()
    }

    fn learn(&self, form: &Arc<Form>, planned: &Planned, answer: &Answer) {
        let of = planned.of.len();
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(group) = groups.get_mut(form) else { return };
        let learned = &mut group.learned;
        let newer = |known: Option<f64>, new: f64| {
            Some(known.map_or(new, |known| known + NEWEST * (new - known)))
        };
        match (answer, planned.places) {
            (Ok(table), Some(places)) => {
                learned.wide = newer(learned.wide, table.series() as f64 / places as f64);
            }
            (Ok(table), None) => {
                learned.narrow = newer(learned.narrow, table.series() as f64 / of as f64);
                // What a wide query would cost is tried again now and then.
                learned.wide = learned.wide.map(|wide| wide * (1.0 - NEWEST / 100.0));
            }
            // Too large, too slow, or spoiled by series that nobody asked for.
            (
                Err(MetricError::Prometheus(
                    Error::Answer(_) | Error::Timeout(_) | Error::Refused(_),
                )),
                Some(_),
            ) => learned.wide = Some(Limits::default().series as f64),
            (Err(MetricError::Prometheus(Error::Timeout(_))), None) => {
                learned.most = (of / 2).max(1);
            }
            (Err(_), _) => {}
        }
        if answer.is_ok() && of > 1 {
            learned.most = learned.most.saturating_mul(2);
        }
    }
}

fn drop_idle(groups: &mut HashMap<Arc<Form>, Group>, now: Instant) {
    let busy = |group: &Group| {
        let mut flights = group.joined.iter().chain(group.alone.values());
        group.waiting.is_some() || flights.any(|flight| flight.answers.peek().is_none())
    };
    if groups.len() >= FORMS {
        groups.retain(|_, group| now.duration_since(group.used) < IDLE || busy(group));
    }
    if groups.len() >= FORMS {
        groups.retain(|_, group| busy(group));
    }
}
