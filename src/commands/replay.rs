//! `plimsoll replay`: decides again on the inputs of a decision log.

use super::story::plain;
use crate::config::ReplayFlags;
use crate::ledger::{self, Difference, MAX_LINE_BYTES};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

/// The lines that can't be read which are told of. As many at the beginning are those of another file.
const MAX_UNREADABLE: u64 = 10;

/// How many lines there are of each kind.
#[derive(Default)]
struct Lines {
    /// The decisions that were made again.
    replayed: u64,
    /// Those of them that differ.
    different: u64,
    /// The decisions that can't be read.
    unreadable: u64,
    /// Those of them that are of another version.
    of_other_versions: u64,
    /// Those of a log, which are left out.
    others: u64,
}

/// Replays a decision log, and writes which lines differ. Returns whether none differs, and all decisions can be read.
/// Lines of Plimsoll's own log are left out, as `kubectl logs` has both.
///
/// # Errors
/// If the file can't be read or has no decision, or nothing can be written, but for a reader that has gone.
pub fn run(flags: &ReplayFlags, out: &mut impl Write) -> Result<bool, String> {
    let path = &flags.file;
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let mut file: Box<dyn BufRead> = match path == Path::new("-") {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(path).map_err(failed)?)),
    };
    let (mut number, mut lines) = (0_u64, Lines::default());
    while let Some(line) = next_line(&mut file).map_err(failed)? {
        number += 1;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let difference = lines.count(ledger::replay_line(line.trim_ascii()));
        if let Some(difference) = difference
            && !tell(out, &format!("line {number}: {}", plain(&difference.to_string())))?
        {
            return Ok(false);
        }
        if lines.replayed == 0 && lines.unreadable == MAX_UNREADABLE {
            break;
        }
    }
    if lines.replayed == 0 {
        let why = match lines.unreadable {
            0 => "there is no decision in it",
            _ if lines.of_other_versions > 0 => {
                "its decisions are of another version: replay them with that one"
            }
            _ => "not a decision log: there is no decision in it",
        };
        return Err(format!("{}: {why}", path.display()));
    }
    tell(out, &lines.to_string())?;
    Ok(lines.different + lines.unreadable == 0)
}

/// The next line, or the beginning of one that is too long: the rest of it is no other line.
fn next_line(file: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let (mut line, limit) = (Vec::new(), MAX_LINE_BYTES as u64);
    let read = file.by_ref().take(limit).read_until(b'\n', &mut line)?;
    if read as u64 == limit && !line.ends_with(b"\n") {
        file.skip_until(b'\n')?;
    }
    Ok((read > 0).then_some(line))
}

/// Writes a line of the result. Returns whether anybody reads it.
fn tell(out: &mut impl Write, line: &str) -> Result<bool, String> {
    match writeln!(out, "{line}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(format!("the result can't be written: {error}")),
        Ok(()) => Ok(true),
    }
}

impl Lines {
    /// Counts a line. Returns its difference, if that is to be told.
    fn count(&mut self, replayed: Result<(), Difference>) -> Option<Difference> {
        let difference = replayed.err();
        match &difference {
            Some(Difference::NoDecision) => self.others += 1,
            Some(Difference::Unreadable(_)) => self.unreadable += 1,
            Some(Difference::OtherVersion { .. }) => {
                self.unreadable += 1;
                self.of_other_versions += 1;
            }
            Some(_) => (self.replayed, self.different) = (self.replayed + 1, self.different + 1),
            None => self.replayed += 1,
        }
        difference.filter(|difference| match difference {
            Difference::NoDecision => false,
            Difference::Unreadable(_) | Difference::OtherVersion { .. } => {
                self.unreadable <= MAX_UNREADABLE
            }
            _ => true,
        })
    }
}

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replayed, different, .. } = self;
        write!(f, "{replayed} decisions were made again, {different} differ")?;
        match self.unreadable {
            0 => {}
            1 => write!(f, "; 1 line can't be read")?,
            more => write!(f, "; {more} lines can't be read")?,
        }
        match self.others {
            0 => Ok(()),
            1 => write!(f, "; 1 line is no decision"),
            more => write!(f, "; {more} lines are no decisions"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing was decided.
    const DECISION: &str = r#"{"inputs": null, "outcome": null, "digest": "sha256:924f123f43b7dd5490350961ff150b17058b3c9eb1a4adc4d1a2d9dc6ca05cb1"}"#;

    fn replay(lines: &[&str]) -> (Result<bool, String>, String) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines.join("\n")).unwrap();
        let (flags, mut out) = (ReplayFlags { file: file.path().to_owned() }, Vec::new());
        let result = run(&flags, &mut out);
        (result, String::from_utf8(out).unwrap())
    }

    /// What `kubectl logs` gives of `--decision-log=-`, by both formats of logs, and of a panic.
    const LOG: [&str; 5] = [
        "2026-11-25T17:00:00.000000Z  INFO plimsoll::app: Started serving version=\"0.1.0\" address=[::]:6443",
        "2026-11-25T17:00:01.000000Z  WARN plimsoll::control::events: Failed to read autoscaler=shop/web error=it {fails}",
        r#"{"timestamp":"2026-11-25T17:00:01.000000Z","level":"WARN","message":"it fails","autoscaler":"shop/web","target":"plimsoll"}"#,
        "thread 'main' panicked at src/main.rs:7:9:",
        "7",
    ];

    #[test]
    fn lines_of_a_log_are_left_out_and_counted() {
        let (result, out) = replay(&[DECISION, "", DECISION]);
        assert_eq!((result, &*out), (Ok(true), "2 decisions were made again, 0 differ\n"));
        let (result, out) = replay(&[&LOG[..], &[DECISION], &LOG, &LOG, &[DECISION]].concat());
        let counted = "2 decisions were made again, 0 differ; 15 lines are no decisions\n";
        assert_eq!((result, &*out), (Ok(true), counted));
        let (result, _) = replay(&LOG);
        assert!(result.unwrap_err().contains("there is no decision in it"));
    }

    #[test]
    fn a_decision_that_is_damaged_is_none_of_a_log() {
        let half = &DECISION[..DECISION.len() / 2];
        let (rest, within) = (&DECISION[20..], format!("[pod/plimsoll-0/plimsoll] {DECISION}"));
        let first = DECISION.replacen('{', "x", 1);
        for damaged in [half, rest, &within, &first, "{}", "{\"a"] {
            let (result, out) = replay(&[LOG[0], DECISION, damaged, DECISION]);
            assert_eq!(result, Ok(false), "{damaged}: {out}");
            assert!(out.starts_with("line 3: not a complete line of a decision log"), "{out}");
            let end = "2 decisions were made again, 0 differ; 1 line can't be read; 1 line is no decision\n";
            assert!(out.ends_with(end), "{out}");
        }
    }

    #[test]
    fn decisions_of_another_version_are_not_called_damaged() {
        let other = r#"{"version": "9.0.0", "inputs": {"later": 1}, "outcome": {}, "digest": ""}"#;
        let (result, out) = replay(&[DECISION, other]);
        assert_eq!(result, Ok(false), "{out}");
        assert!(out.starts_with("line 2: it is of Plimsoll 9.0.0, whose inputs "), "{out}");
        let (result, _) = replay(&[other; 20]);
        assert!(result.unwrap_err().ends_with("another version: replay them with that one"));
    }

    #[test]
    fn another_file_is_an_error_after_a_few_lines() {
        for count in [1, 1_000] {
            let (result, out) = replay(&vec!["{\"kind\": \"Autoscaler\"}"; count]);
            let error = result.unwrap_err();
            assert!(error.contains("not a decision log"), "{error}");
            assert_eq!(out.lines().count(), count.min(10), "{out}");
        }
        let (result, out) = replay(&[&[DECISION][..], &["{}"; 1_000][..]].concat());
        assert_eq!((result, out.lines().count()), (Ok(false), 11));
        assert!(out.contains("1000 lines can't be read"), "{out}");
        assert!(replay(&[]).0.is_err());
        assert!(replay(&["kind: Autoscaler"; 1_000]).0.is_err());
    }

    /// As `plimsoll replay FILE | head -1` in a script with `pipefail`.
    #[test]
    fn what_differs_counts_though_nobody_reads_it() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let changed = DECISION.replace("null, \"digest", "1, \"digest");
        for (lines, expected) in [([DECISION, DECISION], true), ([&*changed, DECISION], false)] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), lines.join("\n")).unwrap();
            let flags = ReplayFlags { file: file.path().to_owned() };
            assert_eq!(run(&flags, &mut Closed), Ok(expected));
        }
    }

    #[test]
    fn texts_of_the_log_are_written_plain() {
        let line = DECISION.replace("null, \"digest", "\"\u{9b}31m \u{202e}\", \"digest");
        let (result, out) = replay(&[&line]);
        assert_eq!(result, Ok(false));
        assert!(out.contains("\\u{9b}31m \\u{202e}") && !out.contains('\u{202e}'), "{out}");
    }
}
