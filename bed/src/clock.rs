//! A wall clock for one program, which can be set while the program runs.

use crate::parts::root;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The wall clock of one program. The monotonic clock is not affected.
pub struct Clock {
    library: PathBuf,
    shift: PathBuf,
}

impl Clock {
    /// A clock that is right until it is set; its files are in this folder.
    pub fn new(folder: &Path, name: &str) -> Self {
        let source = root().join("bed/parts/clock.c");
        let library = folder.join(format!("{name}-clock.so"));
        let mut build = Command::new("cc");
        build.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(&source);
        assert!(build.status().expect("a C compiler").success(), "cc {}", source.display());
        let clock = Self { library, shift: folder.join(format!("{name}-clock")) };
        std::fs::write(&clock.shift, 0_i64.to_ne_bytes()).expect("a file");
        clock
    }

    /// Shifts the clock by these seconds from the real time.
    pub fn set(&self, seconds: i64) {
        let file = std::fs::File::options().write(true).open(&self.shift).expect("the file");
        file.write_all_at(&seconds.to_ne_bytes(), 0).expect("eight bytes");
    }

    /// The environment variables of a program that has this clock.
    pub fn environment(&self) -> Vec<String> {
        let (library, shift) = (self.library.display(), self.shift.display());
        vec![format!("LD_PRELOAD={library}"), format!("CLOCK_SHIFT={shift}")]
    }
}
