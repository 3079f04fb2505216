//! A wall clock of a program's own, which can be set while the program runs.

use crate::root;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The wall clock of one program. Its monotonic clock is that of the machine.
pub struct Clock {
    library: PathBuf,
    shift: PathBuf,
}

impl Clock {
    /// One that is right as yet; its files are in this folder.
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

    /// From now on it is off by so many seconds.
    pub fn set(&self, seconds: i64) {
        let file = std::fs::File::options().write(true).open(&self.shift).expect("the file");
        file.write_all_at(&seconds.to_ne_bytes(), 0).expect("eight bytes");
    }

    /// The environment of a program that has this clock.
    pub fn environment(&self) -> Vec<String> {
        let (library, shift) = (self.library.display(), self.shift.display());
        vec![format!("LD_PRELOAD={library}"), format!("CLOCK_SHIFT={shift}")]
    }
}
