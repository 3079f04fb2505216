//! The files of a decision log: the one that is written to, and those that it was rotated to.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// The number of files that a log is rotated through, the present one included.
pub const FILES: u64 = 8;
/// How long after a file was removed to make room no other one is, unless the log itself has taken it: whatever fills the
/// disk may take that at once, and would have taken the whole log before somebody looks.
const REMOVE_INTERVAL: Duration = Duration::from_secs(600);

/// The files of a log.
pub struct LogFiles {
    /// The present file.
    pub path: PathBuf,
    /// How many bytes one may have.
    pub max_file_bytes: u64,
    /// What was removed for room on a full disk.
    pub removed: Removed,
    /// The present file, if it is open.
    open: Option<OpenLog>,
}

/// Files that were removed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Removed {
    /// How many bytes they had.
    pub bytes: u64,
    /// When the last one was removed.
    last: Option<Instant>,
    /// How many bytes it had that were not written since.
    room: u64,
    /// That made no room, and nothing was written since.
    is_in_vain: bool,
}

/// A file of a log that is open.
struct OpenLog {
    file: File,
    /// Its bytes.
    size: u64,
    /// Whether it is a file, which is rotated: a device or a pipe is not.
    is_file: bool,
}

impl LogFiles {
    /// Opens a log. All its files together have at most `max_bytes`.
    ///
    /// # Errors
    /// If the file can't be opened, or none be made beside it, for another reason than that the disk is full: that may end.
    pub fn open(path: &Path, max_bytes: u64) -> io::Result<Self> {
        let open = match open_at_start(path) {
            Err(error) if !is_storage_full(&error) => return Err(error),
            opened => opened.ok(),
        };
        let (path, removed) = (path.to_owned(), Removed::default());
        Ok(Self { path, max_file_bytes: max_bytes / FILES, removed, open })
    }

    /// Writes a batch whole, or nothing of it. On a full disk the oldest decisions make room.
    ///
    /// # Errors
    /// If it was not written.
    pub fn write(&mut self, batch: &[u8]) -> io::Result<()> {
        let (path, mut removed) = (self.path.clone(), self.removed);
        let written = with_room(&path, &mut removed, || self.append(&path, batch));
        if written.is_ok() {
            removed.room = removed.room.saturating_sub(batch.len() as u64);
        }
        self.removed = removed;
        written
    }

    /// Appends a batch to the file. One that is full is rotated first, whoever filled it; where it can't
    /// be, nothing is written: the bytes of a log are bounded whatever the disk does.
    fn append(&mut self, path: &Path, batch: &[u8]) -> io::Result<()> {
        let is_full = |open: &OpenLog| {
            open.is_file && open.size > 0 && open.size + batch.len() as u64 > self.max_file_bytes
        };
        let mut open = match self.open.take() {
            Some(open) => open,
            None => open_log(path)?,
        };
        if is_full(&open) {
            rotate(path)?;
            open = open_log(path)?;
        }
        if let Err(error) = open.file.write_all(batch) {
            // What was written of it would be the beginning of the next line.
            let _ = open.file.set_len(open.size);
            return Err(error);
        }
        open.size += batch.len() as u64;
        self.open = Some(open);
        Ok(())
    }
}

/// Whether a disk has no room, or a quota of it.
fn is_storage_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Writes to the file of a log. If the disk is full, the oldest file is removed, and it is tried once more; but only once
/// in a while, and not where the one before was removed in vain.
fn with_room(
    path: &Path,
    removed: &mut Removed,
    mut write: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let written = write();
    removed.is_in_vain &= written.is_err();
    let is_soon =
        removed.room > 0 && removed.last.is_some_and(|last| last.elapsed() < REMOVE_INTERVAL);
    if !written.as_ref().is_err_and(is_storage_full) || is_soon || removed.is_in_vain {
        return written;
    }
    let held = |path: PathBuf| {
        let found = std::fs::symlink_metadata(&path).ok()?;
        (found.is_file() && found.len() > 0).then_some((path, found.len()))
    };
    let rotated = (1..FILES).rev().map(|number| numbered(path, number));
    let Some((oldest, bytes)) = rotated.chain([path.to_owned()]).find_map(held) else {
        return written;
    };
    std::fs::remove_file(&oldest)?;
    (removed.bytes, removed.last) = (removed.bytes + bytes, Some(Instant::now()));
    removed.room = bytes;
    let path = oldest.display();
    tracing::warn!(%path, bytes, "Removed the oldest file of the decision log, as the disk is full");
    let written = write();
    removed.is_in_vain = written.is_err();
    written
}

/// Opens a log as the process starts: a file can be made beside it, as when it is rotated.
fn open_at_start(path: &Path) -> io::Result<OpenLog> {
    let open = open_log(path)?;
    if open.is_file {
        let tried = beside(path, "new");
        match OpenOptions::new().write(true).create_new(true).open(&tried) {
            // Of a start that was ended in between, unless somebody has written to it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = std::fs::metadata(&tried)?;
                if found.is_file() && found.len() > 0 {
                    return Ok(open);
                }
            }
            made => drop(made?),
        }
        std::fs::remove_file(tried)?;
    }
    Ok(open)
}

/// Opens a log to append to it, and takes off a last line that was cut off when the process or its machine ended.
fn open_log(path: &Path) -> io::Result<OpenLog> {
    let mut options = OpenOptions::new();
    options.create(true).read(true).append(true);
    // It has the queries, errors and names of all tenants.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    let found = file.metadata()?;
    let (size, is_file) = (found.len(), found.is_file());
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
    Ok(OpenLog { file, size: whole, is_file })
}

/// Moves a full file to FILE.1, that one to FILE.2, and so on up to the first number that is free; if none is, the last
/// one is dropped. So what fails on the way leaves a free number, and no later attempt drops another file.
fn rotate(path: &Path) -> io::Result<()> {
    if !path.try_exists()? {
        // Somebody has removed it.
        return Ok(());
    }
    let last = FILES - 1;
    let free = (1..last).find(|number| !numbered(path, *number).exists()).unwrap_or(last);
    for number in (1..free).rev() {
        std::fs::rename(numbered(path, number), numbered(path, number + 1))?;
    }
    std::fs::rename(path, numbered(path, 1))
}

/// A file of a log with a number.
pub fn numbered(path: &Path, number: u64) -> PathBuf {
    beside(path, &number.to_string())
}

/// The file FILE.END.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{end}"));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_rotated_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        let mut files = LogFiles::open(&path, 8 * 1000).unwrap();
        for n in 0..200 {
            files.write(format!("{n:0>99}\n").as_bytes()).unwrap();
        }
        let all: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
        let total: u64 = all.iter().map(|file| file.metadata().unwrap().len()).sum();
        assert_eq!(all.len() as u64, FILES);
        assert!(total <= 8 * 1000, "{total}");
        let newest = std::fs::read_to_string(&path).unwrap();
        assert!(newest.ends_with("199\n"), "{newest}");
    }

    #[test]
    fn a_log_that_can_t_be_rotated_does_not_grow() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        // A folder is in the way that can't be replaced by a file.
        std::fs::create_dir_all(folder.path().join("decisions.jsonl.1/full")).unwrap();
        let mut files = LogFiles::open(&path, 8 * 1000).unwrap();
        for n in 0..200 {
            let _ = files.write(format!("{n:0>99}\n").as_bytes());
        }
        assert!(std::fs::metadata(&path).unwrap().len() <= 1000);
    }

    #[test]
    fn a_rotation_that_can_t_end_drops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(format!("decisions.jsonl{name}"));
        let read = |name: &str| std::fs::read_to_string(file(name)).unwrap_or_default();
        let mut files = LogFiles::open(&file(""), 8 * 10).unwrap();
        (1..8).for_each(|n| std::fs::write(file(&format!(".{n}")), format!("{n}\n")).unwrap());
        files.write(b"removed\n").unwrap();
        // An operator removes the present file, which is open.
        std::fs::remove_file(file("")).unwrap();
        files.write(b"next\n").unwrap();
        assert_eq!(
            (read(""), read(".1"), read(".7")),
            ("next\n".into(), "1\n".into(), "7\n".into())
        );
        // As after a rotation that failed in the middle: what it has left free is filled.
        std::fs::remove_file(file(".4")).unwrap();
        files.write(b"last one\n").unwrap();
        let all: Vec<String> = (1..8).map(|n| read(&format!(".{n}"))).collect();
        assert_eq!(all, ["next\n", "1\n", "2\n", "3\n", "5\n", "6\n", "7\n"]);
    }

    /// The process was killed, or the disk full, in the middle of a line.
    #[test]
    fn a_line_that_was_cut_off_takes_no_other_line_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        for (before, expected) in
            [("whole\ncut", "whole\nnext\n"), ("cut", "next\n"), ("whole\n", "whole\nnext\n")]
        {
            std::fs::write(&path, before).unwrap();
            let mut files = LogFiles::open(&path, 8 * 1000).unwrap();
            files.write(b"next\n").unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        }
    }

    #[test]
    fn a_log_that_can_t_be_written_is_told_of_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let missing = LogFiles::open(&folder.path().join("none/decisions.jsonl"), 8 * 1000);
        assert_eq!(missing.err().map(|error| error.kind()), Some(io::ErrorKind::NotFound));
        let path = folder.path().join("decisions.jsonl");
        std::fs::create_dir(&path).unwrap();
        assert!(LogFiles::open(&path, 8 * 1000).is_err());
        // Where it can't be rotated.
        let path = folder.path().join("full");
        std::fs::create_dir_all(folder.path().join("full.new/full")).unwrap();
        assert!(LogFiles::open(&path, 8 * 1000).is_err());
        std::fs::remove_dir_all(folder.path().join("full.new")).unwrap();
        assert!(LogFiles::open(&path, 8 * 1000).is_ok());
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn on_a_full_disk_the_oldest_decisions_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        (1..4).for_each(|number| std::fs::write(numbered(&path, number), "x\n").unwrap());
        std::fs::write(&path, "").unwrap();
        let mut removed = Removed::default();
        // A disk that has room for so many files with decisions beside the one that is written.
        let mut write = |room: usize| {
            with_room(&path, &mut removed, || {
                let files = (1..FILES).filter(|number| numbered(&path, *number).exists()).count();
                match files > room {
                    true => Err(io::ErrorKind::StorageFull.into()),
                    false => Ok(()),
                }
            })
        };
        write(3).unwrap();
        assert!(numbered(&path, 3).exists());
        write(2).unwrap();
        assert!(!numbered(&path, 3).exists() && numbered(&path, 2).exists());
        // One is removed in ten minutes, whoever fills the disk.
        assert!(write(1).is_err());
        assert!(numbered(&path, 2).exists());
        tokio::time::advance(REMOVE_INTERVAL).await;
        assert!(write(0).is_err());
        assert!(!numbered(&path, 2).exists() && numbered(&path, 1).exists());
        // And none as long as that has not helped.
        tokio::time::advance(REMOVE_INTERVAL).await;
        assert!(write(0).is_err());
        assert!(numbered(&path, 1).exists());
        write(1).unwrap();
        write(0).unwrap();
        assert_eq!(removed.bytes, 6);
        tokio::time::advance(REMOVE_INTERVAL).await;
        let refused = || Err(io::ErrorKind::PermissionDenied.into());
        let other = with_room(&path, &mut removed, refused);
        assert!(other.is_err() && path.exists());
    }

    /// Another program takes what was freed at once.
    #[cfg(target_os = "linux")]
    #[tokio::test(start_paused = true)]
    async fn a_disk_that_stays_full_takes_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        (1..4).for_each(|number| std::fs::write(numbered(&path, number), "x\n").unwrap());
        let mut files = LogFiles::open(&path, 8 * 1000).unwrap();
        let left = || (1..FILES).filter(|number| numbered(&path, *number).exists()).count();
        for _ in 0..120 {
            assert!(files.write(b"next\n").is_err());
            assert_eq!(left(), 2);
            tokio::time::advance(Duration::from_secs(60)).await;
        }
    }

    /// It has the queries, errors and names of all tenants.
    #[cfg(unix)]
    #[test]
    fn a_log_is_readable_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        let mut files = LogFiles::open(&path, 8 * 1000).unwrap();
        files.write(b"a\n").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
