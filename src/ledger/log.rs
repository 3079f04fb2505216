//! The decision log: each decision with all its inputs, as a line of JSON. A decision never waits for it:
//! lines are queued, and dropped where the queue is full.

use super::entry::Entry;
use super::inputs::{LoggedInputs, LoggedOutcome};
use super::log_files::{FILES, LogFiles};
use super::{render, replay};
use crate::blocking;
use crate::watch::{AutoscalerRef, FailureLog};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Takes what is written to the decision log. Cheap to clone.
#[derive(Clone)]
pub struct DecisionLog {
    decisions: UnboundedSender<Logged>,
    shared: Arc<Shared>,
}

/// A decision that is to be written.
struct Logged {
    autoscaler: AutoscalerRef,
    /// None if there was no decision, of which the entry says why.
    evaluated: Option<(Box<LoggedInputs>, LoggedOutcome)>,
    entry: Entry,
    /// About how many bytes it takes.
    bytes: usize,
}

#[derive(Default)]
struct Shared {
    queued: AtomicUsize,
    written: AtomicU64,
    dropped: AtomicU64,
    removed_bytes: AtomicU64,
}

/// Lines that are written at once.
#[derive(Default)]
struct Batch {
    text: String,
    lines: u64,
    /// What they are counted by while they wait.
    queued: usize,
}

/// Writes the lines of a decision log.
pub struct DecisionLogWriter {
    decisions: UnboundedReceiver<Logged>,
    shared: Arc<Shared>,
    /// Its files; none for standard output.
    files: Option<LogFiles>,
}

/// The most bytes that wait to be written.
pub const MAX_QUEUED_BYTES: usize = 16 << 20;
/// The least bytes that all files of a log may have together.
pub const MIN_LOG_BYTES: u64 = FILES << 20;
/// The bytes that are written at a time.
pub const BATCH_BYTES: usize = 1 << 20;
/// The longest line: of a decision for about 100,000 pods.
pub const MAX_LINE_BYTES: usize = 64 << 20;
/// How long a log waits after a write that failed.
const RETRY: Duration = Duration::from_secs(1);
/// How long the end of the process waits for a log.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// A decision log to a file, or to standard output if that is `-`, and its writer. All its files together
/// have at most `max_bytes`.
///
/// # Errors
/// If the file can't be opened, or none be made beside it, for another reason than that the disk is full: that may end.
pub fn decision_log(path: &Path, max_bytes: u64) -> io::Result<(DecisionLog, DecisionLogWriter)> {
    let (sender, decisions) = unbounded_channel();
    let shared = Arc::<Shared>::default();
    let files = (path != Path::new("-")).then(|| LogFiles::open(path, max_bytes)).transpose()?;
    let writer = DecisionLogWriter { decisions, shared: shared.clone(), files };
    Ok((DecisionLog { decisions: sender, shared }, writer))
}

impl DecisionLog {
    /// Whether a decision would be queued. If not, its inputs need not be kept.
    pub fn has_room(&self) -> bool {
        self.shared.queued.load(Ordering::Relaxed) < MAX_QUEUED_BYTES
    }

    /// Queues a decision, or drops it if too many wait; or that there was none, without inputs and outcome. Its line is
    /// made when it is written.
    pub fn write(
        &self,
        autoscaler: &AutoscalerRef,
        evaluated: Option<(Box<LoggedInputs>, LoggedOutcome)>,
        entry: &Entry,
    ) {
        if !self.has_room() {
            return self.drop_one();
        }
        let of_evaluation = evaluated
            .as_ref()
            .map_or(0, |(inputs, outcome)| inputs.estimated_bytes() + outcome.estimated_bytes());
        let bytes = 1024 + of_evaluation + entry.bytes() + entry.basis.bytes();
        let (autoscaler, entry) = (autoscaler.clone(), entry.clone());
        self.shared.queued.fetch_add(bytes, Ordering::Relaxed);
        let _ = self.decisions.send(Logged { autoscaler, evaluated, entry, bytes });
    }

    /// A decision is not written: its inputs were not kept, as too many waited.
    pub fn drop_one(&self) {
        self.shared.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until all that was queued is written, or can't be: a few seconds at most, as the process ends.
    pub async fn finish(&self) {
        let queued = || self.shared.queued.load(Ordering::Relaxed);
        let written = async {
            while queued() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(FINISH_TIMEOUT, written).await.is_err() {
            tracing::warn!(bytes = queued(), "Stopped before the decision log was written");
        }
    }

    /// How many lines were written, and how many were dropped.
    pub fn counts(&self) -> (u64, u64) {
        self.shared.counts()
    }

    /// How many bytes of written lines were removed, as the disk was full.
    pub fn removed_bytes(&self) -> u64 {
        self.shared.removed_bytes.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn counts(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.dropped.load(Ordering::Relaxed))
    }
}

impl DecisionLogWriter {
    /// Writes for ever. What can't be written is dropped, and counted.
    pub async fn run(mut self) {
        let mut failures = FailureLog::default();
        while let Some(first) = self.decisions.recv().await {
            let Err(error) = blocking::run(|| self.write_queued(first)) else {
                failures.succeeded();
                continue;
            };
            if let Some(failures) = failures.failed() {
                let path =
                    self.files.as_ref().map_or(Path::new("-"), |files| &files.path).display();
                let (_, dropped) = self.shared.counts();
                tracing::warn!(error = error.to_string(), %path, failures, dropped, "Failed to write the decision log");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Writes a decision, and others that wait.
    fn write_queued(&mut self, first: Logged) -> io::Result<()> {
        let (mut batch, mut next) = (Batch::default(), Some(first));
        let mut written = Ok(());
        while let Some(logged) = next {
            let line = self.line(&logged).unwrap_or_default();
            // A batch goes into one file.
            if batch.text.len() + line.len() > self.file_bytes() {
                written = written.and(self.write_batch(std::mem::take(&mut batch)));
            }
            batch.queued += logged.bytes;
            batch.lines += u64::from(!line.is_empty());
            batch.text += &line;
            let has_room = batch.text.len() < BATCH_BYTES;
            next = has_room.then(|| self.decisions.try_recv().ok()).flatten();
        }
        written.and(self.write_batch(batch))
    }

    fn write_batch(&mut self, batch: Batch) -> io::Result<()> {
        let written = match batch.text.is_empty() {
            true => Ok(()),
            false => match &mut self.files {
                Some(files) => {
                    let written = files.write(batch.text.as_bytes());
                    self.shared.removed_bytes.store(files.removed.bytes, Ordering::Relaxed);
                    written
                }
                None => io::stdout().lock().write_all(batch.text.as_bytes()),
            },
        };
        let counter = if written.is_ok() { &self.shared.written } else { &self.shared.dropped };
        counter.fetch_add(batch.lines, Ordering::Relaxed);
        self.shared.queued.fetch_sub(batch.queued, Ordering::Relaxed);
        written
    }

    /// How many bytes a file may have.
    fn file_bytes(&self) -> usize {
        let files =
            self.files.as_ref().and_then(|files| usize::try_from(files.max_file_bytes).ok());
        files.unwrap_or(usize::MAX)
    }

    /// The line of a decision, with its end; none if it is too long, which counts as dropped.
    fn line(&self, logged: &Logged) -> Option<String> {
        let Logged { autoscaler, evaluated, entry, .. } = logged;
        let decision = render::decision(autoscaler, entry, entry.first);
        let evaluated = evaluated.as_ref().map(|(inputs, outcome)| (&**inputs, outcome));
        let line = replay::line(autoscaler, evaluated, &decision);
        let limit = self.file_bytes().min(MAX_LINE_BYTES);
        let error = match line {
            Ok(line) if line.len() < limit => return Some(line + "\n"),
            Ok(line) => format!("it takes {} bytes, at most {limit} were expected", line.len()),
            Err(error) => error.to_string(),
        };
        tracing::warn!(%autoscaler, error, "Failed to write a line of the decision log");
        self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::log_files::numbered;

    /// An HPA of 3,000 metrics that all fail has a line of megabytes.
    #[tokio::test(start_paused = true)]
    async fn lines_that_wait_are_counted_by_what_they_take() {
        use crate::ledger::{Measured, MetricStatus, bounded};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        let (log, writer) = decision_log(&path, 1 << 30).unwrap();
        let basis = crate::ledger::tests::basis();
        let mut entry = Entry::at(0, basis);
        let cause = || Some(Box::new((String::new(), bounded(&"x".repeat(600)))));
        let failed = || Measured { failure: cause(), ..Measured::of(MetricStatus::Invalid) };
        entry.metrics = (0..3_000).map(|_| failed()).collect();
        let web = crate::ledger::tests::autoscaler("shop", "web");
        (0..100).for_each(|_| log.write(&web, None, &entry));
        let waiting = 100 - log.counts().1;
        assert!((1..10).contains(&waiting), "{waiting}");
        // What waits when the process ends is written.
        let writing = tokio::spawn(writer.run());
        log.finish().await;
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count() as u64, waiting);
        assert_eq!(log.counts(), (waiting, 100 - waiting));
        writing.abort();
        // It does not wait for ever.
        log.write(&web, None, &entry);
        log.finish().await;
    }

    /// `/dev/full` has no room for any byte.
    #[cfg(target_os = "linux")]
    #[tokio::test(start_paused = true)]
    async fn what_a_full_disk_drops_is_counted_and_told_of_at_each_doubling() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        std::fs::write(numbered(&path, 7), "old\n").unwrap();
        let (lines, _guard) = crate::fake::LogLines::keep();
        let (log, writer) = decision_log(&path, MIN_LOG_BYTES).unwrap();
        let writing = tokio::spawn(writer.run());
        let entry = Entry::at(0, crate::ledger::tests::basis());
        let web = crate::ledger::tests::autoscaler("shop", "web");
        for _ in 0..20 {
            log.write(&web, None, &entry);
            tokio::time::sleep(2 * RETRY).await;
        }
        assert_eq!(log.counts(), (0, 20));
        let text = lines.text();
        assert_eq!(text.matches("Failed to write the decision log").count(), 5, "{text}");
        assert!(text.contains("No space left on device"), "{text}");
        assert!(!numbered(&path, 7).exists());
        assert_eq!(log.removed_bytes(), 4);
        // A device is no file of the log, which could be dropped or rotated.
        assert!(path.is_symlink() && !numbered(&path, 1).exists());
        writing.abort();
    }
}
