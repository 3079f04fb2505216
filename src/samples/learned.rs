//! What answers to one form of query taught: how many series they have, and how
//! much may be asked at once. What failed is tried again after a wait, which grows
//! where it fails again: what was learned while Prometheus was slow is unlearned.

use crate::promql::plan::{Learned, Limits, Planned};
use std::time::Duration;
use tokio::time::Instant;

/// By how much one answer changes what was learned of the series.
const NEWEST: f64 = 0.3;
/// The first wait before something larger is tried again.
const FIRST: Duration = Duration::from_secs(15);
/// The longest.
const LONGEST: Duration = Duration::from_secs(600);
/// Into how many parts a query that was too large is split. Until the parts are small, a caller
/// that asks for too much delays all callers of the joined query.
const PARTS: usize = 4;
/// By how much more is tried at a time, and how often.
const GROWS: usize = 4;
const GROWS_EACH: Duration = Duration::from_secs(1);

/// What is learned of a form.
#[derive(Debug, Default)]
pub struct Learning {
    /// The series of an exact answer, for each of its queries.
    narrow: Option<f64>,
    /// The series of a wide answer, for each of its places.
    wide: Option<f64>,
    /// Since a joined query was too large.
    joined: Option<Bound>,
    /// Since a wide one was.
    wide_failed: Option<Backoff>,
}

/// How many queries may be joined.
#[derive(Debug)]
struct Bound {
    most: usize,
    backoff: Backoff,
}

/// When something that failed is tried again.
#[derive(Debug)]
struct Backoff {
    wait: Duration,
    again: Instant,
    /// Whether it was tried again since it failed last.
    tried: bool,
}

impl Backoff {
    fn new(now: Instant) -> Self {
        Self { wait: FIRST, again: now + FIRST, tried: false }
    }

    /// It failed: the wait is longer where it had been tried again.
    fn failed(&mut self, now: Instant) {
        if self.tried {
            let long_ago = now.duration_since(self.again) > LONGEST;
            self.wait = if long_ago { FIRST } else { (self.wait * 2).min(LONGEST) };
        }
        (self.again, self.tried) = (now + self.wait, false);
    }
}

impl Learning {
    /// What a plan goes by now.
    pub fn now(&self, now: Instant) -> Learned {
        let failed = self.wide_failed.as_ref().is_some_and(|backoff| now < backoff.again);
        Learned {
            narrow: self.narrow,
            wide: if failed { Some(Limits::default().series as f64) } else { self.wide },
            most: self.joined.as_ref().map_or(usize::MAX, |bound| bound.most),
        }
    }

    /// A query was answered with so many series.
    pub fn answered(&mut self, planned: &Planned, series: usize, now: Instant) {
        let newer = |known: Option<f64>, new: f64| {
            Some(known.map_or(new, |known| known + NEWEST * (new - known)))
        };
        match planned.places {
            Some(places) => {
                self.wide = newer(self.wide, series as f64 / places as f64);
            }
            None => {
                self.narrow = newer(self.narrow, series as f64 / planned.of.len() as f64);
                // What a wide query would cost is tried again now and then.
                self.wide = self.wide.map(|wide| wide * (1.0 - NEWEST / 100.0));
            }
        }
        if let Some(Bound { most, backoff }) = &mut self.joined
            && now >= backoff.again
            && *most < usize::MAX
        {
            *most = most.saturating_mul(GROWS);
            (backoff.again, backoff.tried) = (now + GROWS_EACH, true);
        }
    }

    /// A query was too large or too slow. One that was not joined teaches nothing:
    /// nothing smaller can be asked.
    pub fn too_large(&mut self, planned: &Planned, now: Instant) {
        if planned.places.is_some() {
            self.wide_refused(now);
            return;
        }
        let of = planned.of.len();
        if of < 2 {
            return;
        }
        let fewer = (of / PARTS).max(1);
        match &mut self.joined {
            Some(Bound { most, backoff }) => {
                *most = fewer.min(*most);
                backoff.failed(now);
            }
            none => *none = Some(Bound { most: fewer, backoff: Backoff::new(now) }),
        }
    }

    /// A wide query failed by series that nobody asked for.
    pub fn wide_refused(&mut self, now: Instant) {
        match &mut self.wide_failed {
            Some(backoff) => {
                backoff.tried = now >= backoff.again;
                backoff.failed(now);
            }
            none => *none = Some(Backoff::new(now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promql::plan::{Own, Shape, join};

    fn planned(of: usize) -> Planned {
        let shape = Shape::of(r#"sum by (pod) (x{a="1"})"#);
        let owns: Vec<Own> = (0..of).map(|n| Own::from([vec![n.to_string()]].to_vec())).collect();
        join(&shape.form, &owns.iter().collect::<Vec<_>>(), None)
    }

    #[test]
    fn what_failed_is_tried_again_and_the_wait_grows() {
        let (mut learning, start) = (Learning::default(), Instant::now());
        let mut waits = Vec::new();
        let mut now = start;
        for _ in 0..8 {
            learning.too_large(&planned(100), now);
            assert_eq!(learning.now(now).most, 25);
            let failed = now;
            while learning.now(now).most < 100 {
                now += Duration::from_secs(1);
                learning.answered(&planned(25), 25, now);
            }
            waits.push((now - failed).as_secs());
        }
        assert_eq!(waits, [15, 30, 60, 120, 240, 480, 600, 600]);
        // One that is alone can't be asked in parts, and says nothing of others.
        learning.too_large(&planned(1), now);
        assert_eq!(learning.now(now).most, 100);
    }

    #[test]
    fn an_outage_is_unlearned_within_a_minute() {
        let (mut learning, mut now) = (Learning::default(), Instant::now());
        for of in [1000, 250, 62, 15, 3] {
            learning.too_large(&planned(of), now);
            now += Duration::from_secs(15);
        }
        assert_eq!(learning.now(now).most, 1);
        let back = now;
        while learning.now(now).most < 1000 {
            now += Duration::from_secs(5);
            learning.answered(&planned(1), 1, now);
        }
        assert!(now - back < Duration::from_secs(60), "{:?}", now - back);
    }
}
