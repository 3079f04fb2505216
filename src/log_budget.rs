//! A budget for log lines: whatever fails, and for however many autoscalers, each
//! place in the code writes so many a second at most, and what is left out is counted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

/// How many lines of one place a second.
const LINES: u32 = 20;
const SECOND: Duration = Duration::from_secs(1);
/// The time between two lines that tell how many were left out.
const TOLD: Duration = Duration::from_secs(10);

/// Lets lines pass as long as their place in the code has some left. Lines of debug
/// and trace pass, as they are written only where somebody asked for them.
#[derive(Clone, Default)]
pub struct LogBudget(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// By place, as many as the code has: when its second began, and its lines since.
    places: Mutex<HashMap<Identifier, (Option<Instant>, u32)>>,
    left_out: AtomicU64,
}

impl LogBudget {
    fn allows(&self, place: Identifier, now: Instant) -> bool {
        let mut places = self.0.places.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, lines) = places.entry(place).or_default();
        if began.is_none_or(|began| now - began >= SECOND) {
            (*began, *lines) = (Some(now), 0);
        }
        *lines = lines.saturating_add(1);
        let allowed = *lines <= LINES;
        if !allowed {
            self.0.left_out.fetch_add(1, Ordering::Relaxed);
        }
        allowed
    }

    /// Tells now and then how many lines were left out, on a thread of its own.
    pub fn tell(&self) {
        let budget = self.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(TOLD);
                if let lines @ 1.. = budget.0.left_out.swap(0, Ordering::Relaxed) {
                    tracing::warn!(lines, "Left out log lines that repeat others");
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
    fn one_place_writes_so_many_lines_and_others_theirs() {
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
        assert_eq!(budget.0.left_out.load(Ordering::Relaxed), 1_000 - written as u64);
    }
}
