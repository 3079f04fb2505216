//! Who is due when.

use crate::watch::Subject;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// The times of the next decisions, one for each autoscaler.
#[derive(Debug, Default)]
pub struct Schedule {
    /// The times that count.
    due: HashMap<Subject, Instant>,
    /// The same in their order, and entries that no longer count.
    order: BinaryHeap<Reverse<(Instant, Subject)>>,
}

impl Schedule {
    /// Sets the time of an autoscaler's next decision.
    pub fn set(&mut self, key: Subject, at: Instant) {
        self.due.insert(key.clone(), at);
        self.order.push(Reverse((at, key)));
    }

    /// Sets the time of one's next decision, where none is set.
    pub fn set_if_none(&mut self, key: Subject, at: Instant) {
        if !self.due.contains_key(&key) {
            self.set(key, at);
        }
    }

    /// Forgets an autoscaler.
    pub fn remove(&mut self, key: &Subject) {
        self.due.remove(key);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.due.len()
    }

    /// When the next one is due.
    pub fn next(&mut self) -> Option<Instant> {
        while let Some(Reverse((at, key))) = self.order.peek() {
            if self.due.get(key) == Some(at) {
                return Some(*at);
            }
            self.order.pop();
        }
        None
    }

    /// Takes one that is due, with the time it was due at.
    pub fn take_due(&mut self, now: Instant) -> Option<(Subject, Instant)> {
        self.next().filter(|at| *at <= now)?;
        let Reverse((at, key)) = self.order.pop()?;
        self.due.remove(&key);
        Some((key, at))
    }
}

/// When in a period autoscalers are decided.
///
/// Those that ask for the same form of query are decided together, so that they
/// ask once; beyond [`TOGETHER`] in parts, by namespace, each at a time of its
/// own. Those that ask for nothing are spread evenly.
#[derive(Debug)]
pub struct Phases {
    epoch: Instant,
    /// How many ask for a form, by its hash.
    sizes: HashMap<u64, usize>,
    forms: HashMap<Subject, u64>,
}

/// How many are decided at one time, as far as they can be told apart.
const TOGETHER: usize = 1_000;
/// What the times of forms are parts of, whatever the period: periods that divide
/// it have their rounds together.
const COMMON: Duration = Duration::from_secs(15);

impl Phases {
    /// None yet; times are counted from here.
    pub fn new(epoch: Instant) -> Self {
        Self { epoch, sizes: HashMap::new(), forms: HashMap::new() }
    }

    /// Sets the form of query that an autoscaler asks for, or none.
    pub fn set(&mut self, subject: &Subject, form: Option<u64>) {
        if self.forms.get(subject) == form.as_ref() {
            return;
        }
        let before = match form {
            Some(form) => self.forms.insert(subject.clone(), form),
            None => self.forms.remove(subject),
        };
        if let Some(size) = before.and_then(|before| self.sizes.get_mut(&before)) {
            *size -= 1;
        }
        self.sizes.retain(|_, size| *size > 0);
        if let Some(form) = form {
            *self.sizes.entry(form).or_default() += 1;
        }
    }

    /// The first time after now that is an autoscaler's, with such a period.
    pub fn next(&self, subject: &Subject, period: Duration, now: Instant) -> Instant {
        let (part, of) = match self.forms.get(subject) {
            Some(form) => {
                let size = self.sizes.get(form).copied().unwrap_or(1);
                let parts = size.div_ceil(TOGETHER).next_power_of_two() as u64;
                let part = hash(&subject.key.namespace) % parts;
                (hash(form).wrapping_add(part.wrapping_mul(u64::MAX / parts)), COMMON)
            }
            None => (hash(subject), period),
        };
        let period = period.as_nanos();
        let offset = of.as_nanos() * u128::from(part) / (1 << 64) % period;
        let passed = now.duration_since(self.epoch).as_nanos();
        let wait = period - (passed + period - offset) % period;
        now + Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

/// A hash that is the same in every process, so that replicas decide at like times.
fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::ObjectKey;
    use std::collections::BTreeSet;

    fn key(name: &str) -> Subject {
        Subject::hpa(ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() })
    }

    #[test]
    fn each_is_taken_once_in_the_order_of_its_time() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        let second = Duration::from_secs(1);
        schedule.set(key("b"), start + second);
        schedule.set(key("a"), start + 2 * second);
        schedule.set(key("a"), start);
        schedule.set(key("c"), start);
        schedule.remove(&key("c"));
        assert_eq!(schedule.take_due(start), Some((key("a"), start)));
        assert_eq!(schedule.take_due(start), None);
        assert_eq!(schedule.next(), Some(start + second));
        assert_eq!(schedule.take_due(start + 5 * second), Some((key("b"), start + second)));
        assert_eq!(schedule.take_due(start + 5 * second), None);
        assert_eq!(schedule.len(), 0);
    }

    #[test]
    fn those_that_ask_for_one_form_are_decided_together() {
        let (start, period) = (Instant::now(), Duration::from_secs(15));
        let mut phases = Phases::new(start);
        let subjects: Vec<Subject> = (0..100).map(|n| key(&n.to_string())).collect();
        let times = |phases: &Phases, period| -> BTreeSet<Instant> {
            let now = start + Duration::from_secs(100);
            let times = subjects.iter().map(|subject| phases.next(subject, period, now));
            times.inspect(|at| assert!(*at > now && *at <= now + period)).collect()
        };
        // Without a form in common they are spread.
        let spread = times(&phases, period);
        assert_eq!(spread.len(), 100);
        assert!(*spread.last().unwrap() - *spread.first().unwrap() > period / 2);
        for subject in &subjects {
            phases.set(subject, Some(7));
        }
        let together = times(&phases, period);
        assert_eq!(together.len(), 1);
        let at = *together.first().unwrap();
        assert_eq!(phases.next(&subjects[0], period, at), at + period);
        // Three rounds of 5 s are one of 15 s.
        let short = Duration::from_secs(5);
        assert_eq!(phases.next(&subjects[0], short, at - short), at);
        for subject in &subjects {
            phases.set(subject, None);
        }
        assert!(phases.sizes.is_empty() && phases.forms.is_empty());
    }

    #[test]
    fn a_large_group_is_decided_in_parts_by_namespace() {
        let (start, period) = (Instant::now(), Duration::from_secs(15));
        let mut phases = Phases::new(start);
        let subject = |n: usize| {
            let namespace = format!("ns-{}", n % 100);
            Subject::hpa(ObjectKey { namespace, name: n.to_string() })
        };
        for n in 0..10 * TOGETHER {
            phases.set(&subject(n), Some(7));
        }
        let next = |n| phases.next(&subject(n), period, start);
        let times: BTreeSet<Instant> = (0..100).map(next).collect();
        assert!((8..=16).contains(&times.len()), "{}", times.len());
        assert!((0..100).all(|n| next(n) == next(n + 100)));
    }
}
