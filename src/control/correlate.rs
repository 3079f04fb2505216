//! Event correlation, as in client-go: a repeated event is aggregated into a count and written again
//! at increasing intervals, and the rate of writes per object is limited. Plain state: time is an
//! argument.

use crate::hpa::{Event, EventKind, Reason};
use crate::watch::AutoscalerRef;
use lru::LruCache;
use std::time::Duration;
use tokio::time::Instant;

/// By what events are aggregated: the reason, not the message, which may name a cause that changes
/// from evaluation to evaluation. For a normal event, such as a new size, the message counts, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventKey {
    reason: Reason,
    /// The number of events of this reason before it in the same evaluation.
    index: usize,
    text: Option<String>,
}

impl EventKey {
    /// The key of an event.
    pub fn of(event: &Event, index: usize) -> Self {
        let text = (event.kind == EventKind::Normal).then(|| event.message.clone());
        Self { reason: event.reason, index, text }
    }
}

/// Aggregates events, and limits their rate per object.
pub struct Correlator {
    objects: LruCache<AutoscalerRef, ObjectEvents>,
}

/// The recent events of an object.
struct ObjectEvents {
    uid: String,
    /// The tokens of its rate limit, and when they were counted.
    tokens: f64,
    counted: Instant,
    seen: Vec<RecentEvent>,
}

/// An event that was published recently.
struct RecentEvent {
    key: EventKey,
    count: i32,
    at: Instant,
    /// The message to be written.
    pending: Option<String>,
    /// The name of the API object, once it was written.
    name: Option<String>,
    /// When it was written last, and after which interval it may be written again.
    written: Option<Instant>,
    interval: Duration,
}

/// The content of a write.
#[derive(Debug, PartialEq, Eq)]
pub struct EventWrite {
    /// The name of the API object; none if it is to be created.
    pub name: Option<String>,
    /// How often it was published.
    pub count: i32,
    /// Its latest message.
    pub message: String,
}

/// How long a repeated event increments the count of an existing one.
const AGGREGATION_WINDOW: Duration = Duration::from_secs(600);
/// The interval between the first two writes of an event, which doubles ...
const MIN_INTERVAL: Duration = Duration::from_secs(60);
/// ... up to this one.
const MAX_INTERVAL: Duration = Duration::from_secs(600);
/// The maximum of events remembered per object; the oldest goes first.
const MAX_EVENTS: usize = 8;
/// The maximum of objects remembered; the least recently used goes first.
const MAX_OBJECTS: usize = 65_536;
/// The burst of writes per object. Source: client-go's `EventSourceObjectSpamFilter`.
const BURST: f64 = 25.0;
/// The time until one more write is allowed. Source: the same.
const REFILL: Duration = Duration::from_secs(300);

impl Default for Correlator {
    fn default() -> Self {
        Self { objects: LruCache::unbounded() }
    }
}

impl Correlator {
    /// Counts an event; returns whether it is to be queued now.
    pub fn observe(
        &mut self,
        autoscaler: &AutoscalerRef,
        uid: &str,
        key: &EventKey,
        message: &str,
        now: Instant,
    ) -> bool {
        if self.objects.get(autoscaler).is_none_or(|object| object.uid != uid) {
            let uid = uid.to_owned();
            let object = ObjectEvents { uid, tokens: BURST, counted: now, seen: Vec::new() };
            self.objects.put(autoscaler.clone(), object);
            while self.objects.len() > MAX_OBJECTS {
                self.objects.pop_lru();
            }
        }
        let Some(object) = self.objects.get_mut(autoscaler) else { return false };
        object.observe(key, message, now)
    }

    /// The content to be written; none if the event was forgotten meanwhile.
    pub fn due(
        &mut self,
        autoscaler: &AutoscalerRef,
        uid: &str,
        key: &EventKey,
    ) -> Option<EventWrite> {
        let seen = self.seen(autoscaler, uid, key)?;
        let message = seen.pending.clone()?;
        Some(EventWrite { name: seen.name.clone(), count: seen.count, message })
    }

    /// Notes that an event was written under a name.
    pub fn written(
        &mut self,
        autoscaler: &AutoscalerRef,
        uid: &str,
        key: &EventKey,
        name: &str,
        now: Instant,
    ) {
        let Some(seen) = self.seen(autoscaler, uid, key) else { return };
        let before = seen.written.replace(now);
        seen.interval = before.map_or(MIN_INTERVAL, |_| (seen.interval * 2).min(MAX_INTERVAL));
        seen.name = Some(name.to_owned());
        seen.pending = None;
    }

    /// Notes that an event has expired in the cluster: it is to be created again.
    pub fn expired(&mut self, autoscaler: &AutoscalerRef, uid: &str, key: &EventKey) {
        if let Some(seen) = self.seen(autoscaler, uid, key) {
            seen.name = None;
        }
    }

    /// Notes that an event was not written: its object gets the token back, and the event may be queued
    /// when it is published again.
    pub fn drop(&mut self, autoscaler: &AutoscalerRef, uid: &str, key: &EventKey) {
        if let Some(object) = self.objects.peek_mut(autoscaler).filter(|object| object.uid == uid)
            && let Some(seen) = object.seen.iter_mut().find(|seen| seen.key == *key)
            && seen.pending.take().is_some()
        {
            object.tokens = (object.tokens + 1.0).min(BURST);
        }
    }

    /// Forgets an object that is gone.
    pub fn forget(&mut self, autoscaler: &AutoscalerRef) {
        self.objects.pop(autoscaler);
    }

    fn seen(
        &mut self,
        autoscaler: &AutoscalerRef,
        uid: &str,
        key: &EventKey,
    ) -> Option<&mut RecentEvent> {
        let object = self.objects.peek_mut(autoscaler).filter(|object| object.uid == uid)?;
        object.seen.iter_mut().find(|seen| seen.key == *key)
    }
}

impl ObjectEvents {
    fn observe(&mut self, key: &EventKey, message: &str, now: Instant) -> bool {
        self.seen.retain(|seen| seen.pending.is_some() || now - seen.at < AGGREGATION_WINDOW);
        let known = self.seen.iter().position(|seen| seen.key == *key);
        let index = known.unwrap_or_else(|| {
            if self.seen.len() == MAX_EVENTS {
                let oldest = (0..MAX_EVENTS).min_by_key(|index| self.seen[*index].at);
                self.seen.swap_remove(oldest.unwrap_or(0));
            }
            let key = key.clone();
            let (pending, name, written) = (None, None, None);
            self.seen.push(RecentEvent {
                key,
                count: 0,
                at: now,
                pending,
                name,
                written,
                interval: MIN_INTERVAL,
            });
            self.seen.len() - 1
        });
        let seen = &mut self.seen[index];
        seen.count = seen.count.saturating_add(1);
        seen.at = now;
        if let Some(waiting) = &mut seen.pending {
            message.clone_into(waiting);
            return false;
        }
        if seen.written.is_some_and(|written| now - written < seen.interval) {
            return false;
        }
        let refilled = (now - self.counted).as_secs_f64() / REFILL.as_secs_f64();
        self.tokens = (self.tokens + refilled).min(BURST);
        self.counted = now;
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        self.seen[index].pending = Some(message.to_owned());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::*;

    fn warning(reason: Reason, message: &str) -> Event {
        Event { kind: EventKind::Warning, reason, message: message.to_owned() }
    }

    /// Publishes an event, and marks it as written if it is queued. Returns whether it was.
    fn publish(correlator: &mut Correlator, name: &str, event: &Event, now: Instant) -> bool {
        let (autoscaler, key) = (fake::autoscaler(name), EventKey::of(event, 0));
        let queued = correlator.observe(&autoscaler, "u", &key, &event.message, now);
        if queued {
            correlator.written(&autoscaler, "u", &key, "name", now);
        }
        queued
    }

    #[test]
    fn a_repeated_event_is_written_at_increasing_intervals() {
        let (mut correlator, start) = (Correlator::default(), Instant::now());
        let second = Duration::from_secs(1);
        let times = (0..3_600).filter(|n| {
            // Its text changes from evaluation to evaluation.
            let event = warning(Reason::FailedGetPodsMetric, &format!("cause {n}"));
            publish(&mut correlator, "web", &event, start + second * *n)
        });
        assert_eq!(times.collect::<Vec<_>>(), [0, 60, 180, 420, 900, 1_500, 2_100, 2_700, 3_300]);
    }

    #[test]
    fn each_new_size_is_a_separate_event_within_the_rate_limit_of_its_object() {
        let (mut correlator, start) = (Correlator::default(), Instant::now());
        let size = |n: u64| Event {
            kind: EventKind::Normal,
            reason: Reason::SuccessfulRescale,
            message: format!("New size: {n}"),
        };
        let at = |seconds| start + Duration::from_secs(seconds);
        let written = (0..100).filter(|n| publish(&mut correlator, "web", &size(*n), at(*n)));
        assert_eq!(written.count(), 25);
        assert!(publish(&mut correlator, "other", &size(1), at(100)), "the limit is per object");
        assert!(publish(&mut correlator, "web", &size(101), at(400)));
        assert!(!publish(&mut correlator, "web", &size(102), at(401)));
    }

    #[test]
    fn a_pending_event_has_the_latest_message_and_two_metrics_have_two_events() {
        let (mut correlator, now) = (Correlator::default(), Instant::now());
        let autoscaler = fake::autoscaler("web");
        let [first, second] =
            [0, 1].map(|index| EventKey::of(&warning(Reason::FailedRescale, ""), index));
        assert!(correlator.observe(&autoscaler, "u", &first, "a", now));
        assert!(correlator.observe(&autoscaler, "u", &second, "b", now));
        assert!(!correlator.observe(&autoscaler, "u", &first, "c", now));
        let due = EventWrite { name: None, count: 2, message: "c".to_owned() };
        assert_eq!(correlator.due(&autoscaler, "u", &first), Some(due));
        // A recreated object and a deleted one have no pending event.
        assert_eq!(correlator.due(&autoscaler, "v", &first), None);
        correlator.forget(&autoscaler);
        assert_eq!(correlator.due(&autoscaler, "u", &first), None);
    }
}
