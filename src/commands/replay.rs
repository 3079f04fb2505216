//! `plimsoll replay`: decides again on the inputs of a decision log.

use super::story::plain;
use crate::config::ReplayFlags;
use crate::ledger::{self, MAX_LINE_BYTES};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

/// Replays a decision log, and writes which lines differ. Returns whether none does.
///
/// # Errors
/// If the file can't be read, or nothing can be written.
pub fn run(flags: &ReplayFlags, out: &mut impl Write) -> Result<bool, String> {
    let path = &flags.file;
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let mut lines: Box<dyn BufRead> = match path == Path::new("-") {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(path).map_err(failed)?)),
    };
    let (mut number, mut replayed, mut different) = (0_u64, 0_u64, 0_u64);
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
        replayed += 1;
        if let Err(difference) = ledger::replay_line(line.trim_ascii()) {
            different += 1;
            // A line has texts of others.
            writeln!(out, "line {number}: {}", plain(&difference.to_string())).map_err(failed)?;
        }
    }
    writeln!(out, "{replayed} decisions were made again, {different} differ").map_err(failed)?;
    if replayed == 0 {
        return Err(format!("{}: there is no decision in it", path.display()));
    }
    Ok(different == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_line_controls_the_terminal() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let line = r#"{"digest":"","inputs":null,"outcome":"\u009b31m \u202e evil"}"#;
        std::fs::write(file.path(), line).expect("it is written");
        let mut out = Vec::new();
        let flags = ReplayFlags { file: file.path().to_owned() };
        assert_eq!(run(&flags, &mut out), Ok(false));
        let text = String::from_utf8(out).expect("a text");
        assert!(text.contains("evil") && !text.contains(['\u{9b}', '\u{202e}']), "{text}");
    }
}
