//! Which events are worth a write. The same event again is counted, and written
//! again after a growing wait; what one object may have written is bounded as by
//! client-go's correlator. Plain state: time comes in as an argument.

use crate::hpa::{Event, EventKind};
use crate::watch::Subject;
use lru::LruCache;
use std::time::Duration;
use tokio::time::Instant;

/// What makes two events the same: not their text, which may name a cause that
/// changes from round to round, but for the text of what went well, such as a new size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    reason: &'static str,
    /// How many of this reason come before it in the same decision.
    place: usize,
    text: Option<String>,
}

impl Key {
    /// That of an event which so many of the same reason come before.
    pub fn of(event: &Event, place: usize) -> Self {
        let text = (event.kind == EventKind::Normal).then(|| event.message.clone());
        Self { reason: event.reason, place, text }
    }
}

/// What was said of each object lately.
pub struct Correlator {
    objects: LruCache<Subject, Object>,
}

struct Object {
    uid: String,
    /// How many writes it may have at once, and when that was so.
    tokens: f64,
    counted: Instant,
    said: Vec<Said>,
}

struct Said {
    key: Key,
    count: i32,
    at: Instant,
    /// The text that waits to be written.
    waiting: Option<String>,
    /// The name under which it was written.
    name: Option<String>,
    /// When it was written last, and how long after that it may be written again.
    written: Option<Instant>,
    wait: Duration,
}

/// An event as it is to be written now.
#[derive(Debug, PartialEq, Eq)]
pub struct Due {
    /// The name under which it is known; none where it is to be created.
    pub name: Option<String>,
    /// How often it was said.
    pub count: i32,
    /// Its latest text.
    pub message: String,
}

/// How long an event is counted up before a new one is made.
const RECENT: Duration = Duration::from_secs(600);
/// The time between the first two writes of an event, which doubles ...
const AGAIN: Duration = Duration::from_secs(60);
/// ... until it is this.
const SELDOM: Duration = Duration::from_secs(600);
/// How many events of an object are remembered; the oldest goes first.
const KEYS: usize = 8;
/// How many objects are remembered, as those that go are forgotten; the one of
/// which nothing was said for longest goes first.
const OBJECTS: usize = 65_536;
/// How many writes an object may have at once. Source: client-go's `EventSourceObjectSpamFilter`.
const BURST: f64 = 25.0;
/// How long until it may have one more. Source: the same.
const REFILL: Duration = Duration::from_secs(300);

impl Default for Correlator {
    fn default() -> Self {
        Self { objects: LruCache::unbounded() }
    }
}

impl Correlator {
    /// Counts an event; true where it is to be put into the queue now.
    pub fn say(
        &mut self,
        subject: &Subject,
        uid: &str,
        key: &Key,
        message: &str,
        now: Instant,
    ) -> bool {
        if self.objects.get(subject).is_none_or(|object| object.uid != uid) {
            let uid = uid.to_owned();
            let object = Object { uid, tokens: BURST, counted: now, said: Vec::new() };
            self.objects.put(subject.clone(), object);
            while self.objects.len() > OBJECTS {
                self.objects.pop_lru();
            }
        }
        let Some(object) = self.objects.get_mut(subject) else { return false };
        object.say(key, message, now)
    }

    /// The event as it is to be written; none where it was forgotten meanwhile.
    pub fn due(&mut self, subject: &Subject, uid: &str, key: &Key) -> Option<Due> {
        let said = self.said(subject, uid, key)?;
        let message = said.waiting.clone()?;
        Some(Due { name: said.name.clone(), count: said.count, message })
    }

    /// An event was written under a name.
    pub fn written(&mut self, subject: &Subject, uid: &str, key: &Key, name: &str, now: Instant) {
        let Some(said) = self.said(subject, uid, key) else { return };
        let before = said.written.replace(now);
        said.wait = before.map_or(AGAIN, |_| (said.wait * 2).min(SELDOM));
        said.name = Some(name.to_owned());
        said.waiting = None;
    }

    /// An event that was written is no longer there: it is to be created anew.
    pub fn lost(&mut self, subject: &Subject, uid: &str, key: &Key) {
        if let Some(said) = self.said(subject, uid, key) {
            said.name = None;
        }
    }

    /// An event is not written, and costs its object nothing; it may be queued when it
    /// is said again.
    pub fn drop(&mut self, subject: &Subject, uid: &str, key: &Key) {
        if let Some(object) = self.objects.peek_mut(subject).filter(|object| object.uid == uid)
            && let Some(said) = object.said.iter_mut().find(|said| said.key == *key)
            && said.waiting.take().is_some()
        {
            object.tokens = (object.tokens + 1.0).min(BURST);
        }
    }

    /// An object is gone.
    pub fn forget(&mut self, subject: &Subject) {
        self.objects.pop(subject);
    }

    fn said(&mut self, subject: &Subject, uid: &str, key: &Key) -> Option<&mut Said> {
        let object = self.objects.peek_mut(subject).filter(|object| object.uid == uid)?;
        object.said.iter_mut().find(|said| said.key == *key)
    }
}

impl Object {
    fn say(&mut self, key: &Key, message: &str, now: Instant) -> bool {
        self.said.retain(|said| said.waiting.is_some() || now - said.at < RECENT);
        let known = self.said.iter().position(|said| said.key == *key);
        let place = known.unwrap_or_else(|| {
            if self.said.len() == KEYS {
                let oldest = (0..KEYS).min_by_key(|place| self.said[*place].at);
                self.said.swap_remove(oldest.unwrap_or(0));
            }
            let key = key.clone();
            let (waiting, name, written) = (None, None, None);
            self.said.push(Said { key, count: 0, at: now, waiting, name, written, wait: AGAIN });
            self.said.len() - 1
        });
        let said = &mut self.said[place];
        said.count = said.count.saturating_add(1);
        said.at = now;
        if let Some(waiting) = &mut said.waiting {
            message.clone_into(waiting);
            return false;
        }
        if said.written.is_some_and(|written| now - written < said.wait) {
            return false;
        }
        let refilled = (now - self.counted).as_secs_f64() / REFILL.as_secs_f64();
        self.tokens = (self.tokens + refilled).min(BURST);
        self.counted = now;
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        self.said[place].waiting = Some(message.to_owned());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::*;

    fn warning(reason: &'static str, message: &str) -> Event {
        Event { kind: EventKind::Warning, reason, message: message.to_owned() }
    }

    /// Says an event and, where it is queued, takes it for written; whether it was.
    fn say(correlator: &mut Correlator, name: &str, event: &Event, now: Instant) -> bool {
        let (subject, key) = (fake::autoscaler(name), Key::of(event, 0));
        let queued = correlator.say(&subject, "u", &key, &event.message, now);
        if queued {
            correlator.written(&subject, "u", &key, "name", now);
        }
        queued
    }

    #[test]
    fn an_event_that_goes_on_is_written_ever_more_seldom() {
        let (mut correlator, start) = (Correlator::default(), Instant::now());
        let second = Duration::from_secs(1);
        let times = (0..3_600).filter(|n| {
            // Its text changes from round to round.
            let event = warning("FailedGetPodsMetric", &format!("cause {n}"));
            say(&mut correlator, "web", &event, start + second * *n)
        });
        assert_eq!(times.collect::<Vec<_>>(), [0, 60, 180, 420, 900, 1_500, 2_100, 2_700, 3_300]);
    }

    #[test]
    fn each_new_size_is_an_event_of_its_own_within_what_an_object_may_have() {
        let (mut correlator, start) = (Correlator::default(), Instant::now());
        let size = |n: u64| Event {
            kind: EventKind::Normal,
            reason: "SuccessfulRescale",
            message: format!("New size: {n}"),
        };
        let at = |seconds| start + Duration::from_secs(seconds);
        let written = (0..100).filter(|n| say(&mut correlator, "web", &size(*n), at(*n)));
        assert_eq!(written.count(), 25);
        assert!(say(&mut correlator, "other", &size(1), at(100)), "others have their own");
        assert!(say(&mut correlator, "web", &size(101), at(400)));
        assert!(!say(&mut correlator, "web", &size(102), at(401)));
    }

    #[test]
    fn what_waits_has_the_latest_text_and_two_metrics_have_two_events() {
        let (mut correlator, now) = (Correlator::default(), Instant::now());
        let subject = fake::autoscaler("web");
        let [first, second] = [0, 1].map(|place| Key::of(&warning("Failed", ""), place));
        assert!(correlator.say(&subject, "u", &first, "a", now));
        assert!(correlator.say(&subject, "u", &second, "b", now));
        assert!(!correlator.say(&subject, "u", &first, "c", now));
        let due = Due { name: None, count: 2, message: "c".to_owned() };
        assert_eq!(correlator.due(&subject, "u", &first), Some(due));
        // One that was made anew, and one that is gone, have nothing that waits.
        assert_eq!(correlator.due(&subject, "v", &first), None);
        correlator.forget(&subject);
        assert_eq!(correlator.due(&subject, "u", &first), None);
    }
}
