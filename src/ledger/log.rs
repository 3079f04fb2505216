//! The decision log: each decision with all its inputs, as a line of JSON. A decision never waits for it:
//! lines are queued, and dropped where the queue is full.

use super::entry::Entry;
use super::inputs::{LoggedInputs, LoggedOutcome};
use super::{render, replay};
use crate::blocking;
use crate::watch::AutoscalerRef;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Takes the lines of the decision log. Cheap to clone.
#[derive(Clone)]
pub struct DecisionLog {
    lines: UnboundedSender<String>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queued: AtomicUsize,
    written: AtomicU64,
    dropped: AtomicU64,
}

/// Writes the lines of a decision log.
pub struct DecisionLogWriter {
    lines: UnboundedReceiver<String>,
    shared: Arc<Shared>,
    /// The file; none for standard output.
    path: Option<PathBuf>,
    max_bytes: u64,
}

/// The most bytes that wait to be written.
const MAX_QUEUED_BYTES: usize = 16 << 20;
/// The number of files that a log is rotated through, the present one included.
const FILES: u64 = 8;
/// The bytes that are written at a time.
const BATCH_BYTES: usize = 1 << 20;
/// How long a log waits after a write that failed.
const RETRY: Duration = Duration::from_secs(1);

/// A decision log to a file, or to standard output if that is `-`, and its writer. All its files together
/// have at most `max_bytes`.
pub fn decision_log(path: &Path, max_bytes: u64) -> (DecisionLog, DecisionLogWriter) {
    let (sender, lines) = unbounded_channel();
    let shared = Arc::<Shared>::default();
    let path = (path != Path::new("-")).then(|| path.to_owned());
    let writer = DecisionLogWriter { lines, shared: shared.clone(), path, max_bytes };
    (DecisionLog { lines: sender, shared }, writer)
}

impl DecisionLog {
    /// Queues the line of a decision, or drops it.
    pub fn write(
        &self,
        autoscaler: &AutoscalerRef,
        inputs: &LoggedInputs,
        outcome: &LoggedOutcome,
        entry: &Entry,
    ) {
        // Under a full queue no line is even made.
        if self.shared.queued.load(Ordering::Relaxed) >= MAX_QUEUED_BYTES {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let decision = render::decision(autoscaler, entry, entry.first);
        let line = match replay::line(autoscaler, inputs, outcome, &decision) {
            Ok(line) => line,
            Err(error) => {
                tracing::warn!(%autoscaler, %error, "Failed to write a line of the decision log");
                self.shared.dropped.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        self.shared.queued.fetch_add(line.len(), Ordering::Relaxed);
        let _ = self.lines.send(line);
    }

    /// How many lines were written, and how many were dropped.
    pub fn counts(&self) -> (u64, u64) {
        let Shared { written, dropped, .. } = &*self.shared;
        (written.load(Ordering::Relaxed), dropped.load(Ordering::Relaxed))
    }
}

impl DecisionLogWriter {
    /// Writes for ever. What can't be written is dropped, and counted.
    pub async fn run(mut self) {
        let mut file = None;
        while let Some(first) = self.lines.recv().await {
            let (mut batch, mut count) = (first, 1);
            batch.push('\n');
            while batch.len() < BATCH_BYTES
                && let Ok(line) = self.lines.try_recv()
            {
                batch.push_str(&line);
                batch.push('\n');
                count += 1;
            }
            let written = blocking::run(|| self.write(&mut file, batch.as_bytes()));
            self.shared.queued.fetch_sub(batch.len() - count as usize, Ordering::Relaxed);
            let counter = match &written {
                Ok(()) => &self.shared.written,
                Err(_) => &self.shared.dropped,
            };
            counter.fetch_add(count, Ordering::Relaxed);
            if let Err(error) = written {
                let path = self.path.as_deref().unwrap_or(Path::new("-")).display();
                tracing::warn!(%error, %path, "Failed to write the decision log");
                file = None;
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    fn write(&self, open: &mut Option<(File, u64)>, batch: &[u8]) -> io::Result<()> {
        let Some(path) = &self.path else {
            return io::stdout().lock().write_all(batch);
        };
        let limit = self.max_bytes / FILES;
        if open.as_ref().is_some_and(|(_, size)| *size > 0 && size + batch.len() as u64 > limit) {
            *open = None;
            rotate(path)?;
        }
        if open.is_none() {
            let file = OpenOptions::new().create(true).append(true).open(path)?;
            let size = file.metadata()?.len();
            *open = Some((file, size));
        }
        let Some((file, size)) = open else { return Ok(()) };
        file.write_all(batch)?;
        *size += batch.len() as u64;
        Ok(())
    }
}

/// Moves a full file to FILE.1, that one to FILE.2, and so on; the last one is dropped.
fn rotate(path: &Path) -> io::Result<()> {
    let numbered = |number: u64| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    for number in (1..FILES - 1).rev() {
        match std::fs::rename(numbered(number), numbered(number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    std::fs::rename(path, numbered(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_log_is_rotated_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        let (_, writer) = decision_log(&path, 8 * 1000);
        let mut open = None;
        for n in 0..200 {
            writer.write(&mut open, format!("{n:0>99}\n").as_bytes()).unwrap();
        }
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
        let total: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
        assert_eq!(files.len() as u64, FILES);
        assert!(total <= 8 * 1000, "{total}");
        let newest = std::fs::read_to_string(&path).unwrap();
        assert!(newest.ends_with("199\n"), "{newest}");
    }

    #[tokio::test]
    async fn a_log_that_can_t_be_rotated_does_not_grow() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        // A folder is in the way that can't be replaced by a file.
        std::fs::create_dir_all(folder.path().join("decisions.jsonl.1/full")).unwrap();
        let (_, writer) = decision_log(&path, 8 * 1000);
        let mut open = None;
        for n in 0..200 {
            let _ = writer.write(&mut open, format!("{n:0>99}\n").as_bytes());
        }
        assert!(std::fs::metadata(&path).unwrap().len() <= 1000);
    }

    /// The process was killed, or the disk full, in the middle of a line.
    #[tokio::test]
    async fn a_line_that_was_cut_off_takes_no_other_line_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        for (before, expected) in
            [("whole\ncut", "whole\nnext\n"), ("cut", "next\n"), ("whole\n", "whole\nnext\n")]
        {
            std::fs::write(&path, before).unwrap();
            let (_, writer) = decision_log(&path, 8 * 1000);
            writer.write(&mut None, b"next\n").unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        }
    }

    /// It has the queries, errors and names of all tenants.
    #[cfg(unix)]
    #[tokio::test]
    async fn a_log_is_readable_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        let (_, writer) = decision_log(&path, 8 * 1000);
        writer.write(&mut None, b"a\n").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
