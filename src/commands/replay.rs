//! `plimsoll replay`: decides again on the inputs of a decision log.

use super::story::plain;
use crate::config::ReplayFlags;
use crate::ledger::{self, Difference, MAX_LINE_BYTES};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

/// The lines that are no decisions which are told of. As many at the beginning are those of another file.
const MAX_UNREADABLE: u64 = 10;

/// Replays a decision log, and writes which lines differ. Returns whether all are decisions, and none differs.
///
/// # Errors
/// If the file can't be read or is no decision log, or nothing can be written.
pub fn run(flags: &ReplayFlags, out: &mut impl Write) -> Result<bool, String> {
    let path = &flags.file;
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let unwritten = |error: io::Error| format!("the result can't be written: {error}");
    let mut lines: Box<dyn BufRead> = match path == Path::new("-") {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(path).map_err(failed)?)),
    };
    let (mut number, mut replayed, mut different, mut unreadable) = (0_u64, 0_u64, 0_u64, 0_u64);
    loop {
        let mut line = Vec::new();
        let limit = MAX_LINE_BYTES as u64;
        let read = (&mut lines).take(limit).read_until(b'\n', &mut line).map_err(failed)?;
        if read == 0 {
            break;
        }
        number += 1;
        if read as u64 == limit && !line.ends_with(b"\n") {
            // The rest of it is no other line.
            lines.skip_until(b'\n').map_err(failed)?;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let difference = ledger::replay_line(line.trim_ascii()).err();
        match &difference {
            Some(Difference::Unreadable(_)) => unreadable += 1,
            Some(_) => (replayed, different) = (replayed + 1, different + 1),
            None => replayed += 1,
        }
        let is_told = |one: &Difference| match one {
            Difference::Unreadable(_) => unreadable <= MAX_UNREADABLE,
            _ => true,
        };
        if let Some(difference) = difference.filter(is_told) {
            let difference = difference.to_string();
            writeln!(out, "line {number}: {}", plain(&difference)).map_err(unwritten)?;
        }
        if replayed == 0 && unreadable == MAX_UNREADABLE {
            break;
        }
    }
    if replayed == 0 {
        let no_log = if unreadable > 0 { "it is no decision log: " } else { "" };
        return Err(format!("{}: {no_log}there is no decision in it", path.display()));
    }
    let others = match unreadable {
        0 => String::new(),
        1 => "; 1 line is no decision".to_owned(),
        more => format!("; {more} lines are no decisions"),
    };
    writeln!(out, "{replayed} decisions were made again, {different} differ{others}")
        .map_err(unwritten)?;
    Ok(different + unreadable == 0)
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
            assert!(out.starts_with("line 3: it is no whole line of a decision log"), "{out}");
            let end = "2 decisions were made again, 0 differ; 1 line can't be read; 1 line is no decision\n";
            assert!(out.ends_with(end), "{out}");
        }
    }

    #[test]
    fn another_file_is_an_error_after_a_few_lines() {
        for count in [1, 1_000] {
            let (result, out) = replay(&vec!["{\"kind\": \"Autoscaler\"}"; count]);
            let error = result.unwrap_err();
            assert!(error.contains("it is no decision log"), "{error}");
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
