//! The progress of long work, on the standard error.

use std::io::{IsTerminal, Write};
use std::time::Duration;
use tokio::time::Instant;

/// The width of the bar.
const WIDTH: usize = 24;
/// The least time between two lines where there is no terminal.
const LINES: Duration = Duration::from_secs(15);

/// How many of a number of things are done, and about how long the others will take.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    all: usize,
    done: usize,
    began: Instant,
    shown: Instant,
    is_terminal: bool,
}

impl Progress {
    /// None of so many is done.
    pub fn new(what: &'static str, all: usize) -> Self {
        let now = Instant::now();
        let is_terminal = std::io::stderr().is_terminal();
        let progress = Self { what, all, done: 0, began: now, shown: now, is_terminal };
        progress.show();
        progress
    }

    /// One more is done.
    pub fn one(&mut self) {
        self.done += 1;
        if self.is_terminal || self.shown.elapsed() >= LINES {
            self.shown = Instant::now();
            self.show();
        }
    }

    fn show(&self) {
        let Self { what, all, done, .. } = self;
        let left = match done {
            0 => String::new(),
            _ => {
                let each = self.began.elapsed() / u32::try_from(*done).unwrap_or(u32::MAX);
                let left = each * u32::try_from(all - done).unwrap_or(u32::MAX);
                format!(", about {} s left", left.as_secs())
            }
        };
        let full = WIDTH * done / (*all).max(1);
        let bar = format!("[{}{}]", "#".repeat(full), "-".repeat(WIDTH - full));
        let mut stderr = std::io::stderr();
        // Nobody waits for it: what can't be written is left out.
        let _ = match self.is_terminal {
            true => write!(stderr, "\r\x1b[K{bar} {done} of {all} {what}{left}"),
            false if *done > 0 => writeln!(stderr, "{done} of {all} {what}{left}"),
            false => Ok(()),
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
