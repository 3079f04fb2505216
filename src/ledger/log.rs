//! The decision log: each decision with all its inputs, as a line of JSON. A decision never waits for it:
//! lines are queued, and dropped where the queue is full.

use super::entry::Entry;
use super::inputs::{LoggedInputs, LoggedOutcome};
use super::{render, replay};
use crate::blocking;
use crate::watch::AutoscalerRef;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
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
    /// The file; none for standard output.
    path: Option<PathBuf>,
    max_file_bytes: u64,
}

/// The most bytes that wait to be written.
const MAX_QUEUED_BYTES: usize = 16 << 20;
/// The number of files that a log is rotated through, the present one included.
const FILES: u64 = 8;
/// The least bytes that all files of a log may have together.
pub const MIN_LOG_BYTES: u64 = FILES << 20;
/// The bytes that are written at a time.
const BATCH_BYTES: usize = 1 << 20;
/// The longest line: of a decision for about 100,000 pods.
pub const MAX_LINE_BYTES: usize = 64 << 20;
/// How long a log waits after a write that failed.
const RETRY: Duration = Duration::from_secs(1);
/// How long the end of the process waits for a log.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// A decision log to a file, or to standard output if that is `-`, and its writer. All its files together
/// have at most `max_bytes`.
pub fn decision_log(path: &Path, max_bytes: u64) -> (DecisionLog, DecisionLogWriter) {
    let (sender, decisions) = unbounded_channel();
    let shared = Arc::<Shared>::default();
    let path = (path != Path::new("-")).then(|| path.to_owned());
    let max_file_bytes = max_bytes / FILES;
    let writer = DecisionLogWriter { decisions, shared: shared.clone(), path, max_file_bytes };
    (DecisionLog { decisions: sender, shared }, writer)
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
        let Shared { written, dropped, .. } = &*self.shared;
        (written.load(Ordering::Relaxed), dropped.load(Ordering::Relaxed))
    }
}

impl DecisionLogWriter {
    /// Writes for ever. What can't be written is dropped, and counted.
    pub async fn run(mut self) {
        let mut file = None;
        while let Some(first) = self.decisions.recv().await {
            let written = blocking::run(|| self.write_queued(&mut file, first));
            if let Err(error) = written {
                let path = self.path.as_deref().unwrap_or(Path::new("-")).display();
                tracing::warn!(%error, %path, "Failed to write the decision log");
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Writes a decision, and others that wait.
    fn write_queued(&mut self, open: &mut Option<(File, u64)>, first: Logged) -> io::Result<()> {
        let (mut batch, mut next) = (Batch::default(), Some(first));
        let mut written = Ok(());
        while let Some(logged) = next {
            let line = self.line(&logged).unwrap_or_default();
            // A batch goes into one file.
            if (batch.text.len() + line.len()) as u64 > self.max_file_bytes {
                written = written.and(self.write_batch(open, std::mem::take(&mut batch)));
            }
            batch.queued += logged.bytes;
            batch.lines += u64::from(!line.is_empty());
            batch.text += &line;
            let has_room = batch.text.len() < BATCH_BYTES;
            next = has_room.then(|| self.decisions.try_recv().ok()).flatten();
        }
        written.and(self.write_batch(open, batch))
    }

    fn write_batch(&self, open: &mut Option<(File, u64)>, batch: Batch) -> io::Result<()> {
        let written = match batch.text.is_empty() {
            true => Ok(()),
            false => self.write(open, batch.text.as_bytes()),
        };
        let counter = if written.is_ok() { &self.shared.written } else { &self.shared.dropped };
        counter.fetch_add(batch.lines, Ordering::Relaxed);
        self.shared.queued.fetch_sub(batch.queued, Ordering::Relaxed);
        written
    }

    /// The line of a decision, with its end; none if it is too long, which counts as dropped.
    fn line(&self, logged: &Logged) -> Option<String> {
        let Logged { autoscaler, evaluated, entry, .. } = logged;
        let decision = render::decision(autoscaler, entry, entry.first);
        let evaluated = evaluated.as_ref().map(|(inputs, outcome)| (&**inputs, outcome));
        let line = replay::line(autoscaler, evaluated, &decision);
        let of_file = usize::try_from(self.max_file_bytes).unwrap_or(usize::MAX);
        let limit = if self.path.is_some() { of_file.min(MAX_LINE_BYTES) } else { MAX_LINE_BYTES };
        let error = match line {
            Ok(line) if line.len() < limit => return Some(line + "\n"),
            Ok(line) => format!("it takes {} bytes, at most {limit} were expected", line.len()),
            Err(error) => error.to_string(),
        };
        tracing::warn!(%autoscaler, error, "Failed to write a line of the decision log");
        self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Writes a batch whole, or nothing of it. A file that is full is rotated first, whoever filled it; where it can't
    /// be, nothing is written: the bytes of a log are bounded whatever the disk does.
    fn write(&self, open: &mut Option<(File, u64)>, batch: &[u8]) -> io::Result<()> {
        let Some(path) = &self.path else {
            return io::stdout().lock().write_all(batch);
        };
        let is_full = |size: u64| size > 0 && size + batch.len() as u64 > self.max_file_bytes;
        let mut opened = match open.take() {
            Some(opened) => opened,
            None => open_log(path)?,
        };
        if is_full(opened.1) {
            rotate(path)?;
            opened = open_log(path)?;
        }
        let (mut file, size) = opened;
        if let Err(error) = file.write_all(batch) {
            // What was written of it would be the beginning of the next line.
            let _ = file.set_len(size);
            return Err(error);
        }
        *open = Some((file, size + batch.len() as u64));
        Ok(())
    }
}

/// Opens a log to append to it, and takes off a last line that was cut off when the process or its machine ended.
/// Returns its size, too.
fn open_log(path: &Path) -> io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    options.create(true).read(true).append(true);
    // It has the queries, errors and names of all tenants.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    let size = file.metadata()?.len();
    let mut whole = size;
    let mut chunk = vec![0; 64 << 10];
    while whole > 0 {
        let start = whole.saturating_sub(chunk.len() as u64);
        let part = &mut chunk[..(whole - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(end) = part.iter().rposition(|byte| *byte == b'\n') {
            whole = start + end as u64 + 1;
            break;
        }
        whole = start;
    }
    if whole < size {
        file.set_len(whole)?;
    }
    Ok((file, whole))
}

/// Moves a full file to FILE.1, that one to FILE.2, and so on up to the first number that is free; if none is, the last
/// one is dropped. So what fails on the way leaves a free number, and no later attempt drops another file.
fn rotate(path: &Path) -> io::Result<()> {
    if !path.try_exists()? {
        // Somebody has removed it.
        return Ok(());
    }
    let numbered = |number: u64| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    let last = FILES - 1;
    let free = (1..last).find(|number| !numbered(*number).exists()).unwrap_or(last);
    for number in (1..free).rev() {
        std::fs::rename(numbered(number), numbered(number + 1))?;
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

    #[tokio::test]
    async fn a_rotation_that_can_t_end_drops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(format!("decisions.jsonl{name}"));
        let read = |name: &str| std::fs::read_to_string(file(name)).unwrap_or_default();
        let (_, writer) = decision_log(&file(""), 8 * 10);
        let mut open = None;
        (1..8).for_each(|n| std::fs::write(file(&format!(".{n}")), format!("{n}\n")).unwrap());
        writer.write(&mut open, b"removed\n").unwrap();
        // An operator removes the present file, which is open.
        std::fs::remove_file(file("")).unwrap();
        writer.write(&mut open, b"next\n").unwrap();
        assert_eq!(
            (read(""), read(".1"), read(".7")),
            ("next\n".into(), "1\n".into(), "7\n".into())
        );
        // As after a rotation that failed in the middle: what it has left free is filled.
        std::fs::remove_file(file(".4")).unwrap();
        writer.write(&mut open, b"last one\n").unwrap();
        let all: Vec<String> = (1..8).map(|n| read(&format!(".{n}"))).collect();
        assert_eq!(all, ["next\n", "1\n", "2\n", "3\n", "5\n", "6\n", "7\n"]);
    }

    /// An HPA of 3,000 metrics that all fail has a line of megabytes.
    #[tokio::test(start_paused = true)]
    async fn lines_that_wait_are_counted_by_what_they_take() {
        use crate::ledger::{Measured, MetricStatus, bounded};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        let (log, writer) = decision_log(&path, 1 << 30);
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
