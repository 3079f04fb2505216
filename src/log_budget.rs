//! A rate limit for log lines, per callsite, so that a failure of many autoscalers does not
//! flood the log. Suppressed lines are counted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

/// The most lines of a callsite per second.
const MAX_LINES_PER_SECOND: u32 = 20;
const SECOND: Duration = Duration::from_secs(1);
/// The interval of reports of suppressed lines.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Limits the log lines of each callsite. Lines of levels debug
/// and trace pass, as these levels are off by default.
#[derive(Clone, Default)]
pub struct LogBudget(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// By callsite: when its second began, and its lines since then. Bounded by the callsites of the code.
    callsites: Mutex<HashMap<Identifier, (Option<Instant>, u32)>>,
    suppressed: AtomicU64,
}

impl LogBudget {
    fn allows(&self, callsite: Identifier, now: Instant) -> bool {
        let mut callsites = self.0.callsites.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, lines) = callsites.entry(callsite).or_default();
        if began.is_none_or(|began| now - began >= SECOND) {
            (*began, *lines) = (Some(now), 0);
        }
        *lines = lines.saturating_add(1);
        let allowed = *lines <= MAX_LINES_PER_SECOND;
        if !allowed {
            self.0.suppressed.fetch_add(1, Ordering::Relaxed);
        }
        allowed
    }

    /// Spawns a thread that reports the number of suppressed lines at intervals.
    pub fn spawn_reporter(&self) {
        let budget = self.clone();
        std::thread::spawn(move || {
            loop {
                #[expect(clippy::disallowed_methods, reason = "the thread is its own")]
                std::thread::sleep(REPORT_INTERVAL);
                if let lines @ 1.. = budget.0.suppressed.swap(0, Ordering::Relaxed) {
                    tracing::warn!(lines, "Suppressed repeated log lines");
                }
            }
        });
    }
}

impl<S: Subscriber> Filter<S> for LogBudget {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        *metadata.level() > Level::INFO || self.allows(metadata.callsite(), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::{Layer, fmt};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_lines_of_one_callsite_are_limited_and_others_are_not_affected() {
        let (lines, budget) = (Lines::default(), LogBudget::default());
        let to = lines.clone();
        let layer = fmt::layer().with_ansi(false).with_writer(move || to.clone());
        let registry = tracing_subscriber::registry().with(layer.with_filter(budget.clone()));
        let start = Instant::now();
        tracing::subscriber::with_default(registry, || {
            for number in 0..1_000 {
                tracing::warn!(number, "it fails");
            }
            tracing::warn!("another");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let seconds = start.elapsed().as_secs() as usize + 1;
        let written = text.matches("it fails").count();
        assert!((20..=20 * seconds).contains(&written), "{written}");
        assert!(text.contains("another"), "{text}");
        assert_eq!(budget.0.suppressed.load(Ordering::Relaxed), 1_000 - written as u64);
    }
}
