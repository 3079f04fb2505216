//! `plimsoll replay`: decides again on the inputs of a decision log.

use crate::config::ReplayFlags;
use crate::ledger;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

/// The longest line that is read, in bytes: that of a decision for 100,000 pods is shorter.
const MAX_LINE_BYTES: u64 = 64 << 20;

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
        let mut line = String::new();
        let read = (&mut lines).take(MAX_LINE_BYTES).read_line(&mut line).map_err(failed)?;
        if read == 0 {
            break;
        }
        number += 1;
        if line.trim().is_empty() {
            continue;
        }
        replayed += 1;
        if let Err(difference) = ledger::replay_line(line.trim_end()) {
            different += 1;
            writeln!(out, "line {number}: {difference}").map_err(failed)?;
        }
    }
    writeln!(out, "{replayed} decisions were made again, {different} differ").map_err(failed)?;
    if replayed == 0 {
        return Err(format!("{}: there is no decision in it", path.display()));
    }
    Ok(different == 0)
}
