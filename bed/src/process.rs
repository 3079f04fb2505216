//! Child processes that never outlive this one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// A program under a guard (`fleet guard`): it ends when this value is dropped, or this process
/// ends in any way.
pub struct Process {
    guard: Child,
    /// The guard ends the program when this is closed.
    alive: Option<ChildStdin>,
    keep: bool,
    /// The file of its output.
    pub log: PathBuf,
}

impl Process {
    /// Starts a program; its output goes to `NAME.log` in a folder.
    pub fn start(
        parts: &Path,
        folder: &Path,
        keep: bool,
        name: &str,
        program: &Path,
        arguments: &[String],
    ) -> Self {
        let log = folder.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log).expect("a log file");
        let mut command = Command::new(parts.join("fleet"));
        command.arg("guard");
        if keep {
            command.arg("-keep");
        }
        command
            .arg(program)
            .args(arguments)
            .env("POD_NAMESPACE", "plimsoll")
            .env("POD_NAME", name)
            .stdout(output.try_clone().expect("a log file"))
            .stderr(output)
            .stdin(Stdio::piped());
        let mut guard = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let alive = guard.stdin.take();
        if keep {
            let pids = File::options().create(true).append(true).open(folder.join("pids"));
            use std::io::Write;
            writeln!(pids.expect("a file of pids"), "{}", guard.id()).expect("a line");
        }
        Self { guard, alive, keep, log }
    }

    /// The process id of the guard: it changes if the program was restarted.
    pub fn id(&self) -> u32 {
        self.guard.id()
    }

    /// The process id of the program itself.
    pub fn program_id(&self) -> u32 {
        let guard = self.guard.id();
        let start = Instant::now();
        loop {
            if let Some(program) = child(guard) {
                return program;
            }
            assert!(start.elapsed() < Duration::from_secs(5), "no program under {guard}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        self.guard.try_wait().is_ok_and(|ended| ended.is_none())
    }

    /// Sends the program a signal, such as `STOP`.
    pub fn signal(&self, signal: &str) {
        let arguments = [format!("-{signal}"), self.program_id().to_string()];
        let sent = Command::new("kill").args(arguments).status().expect("kill can be run");
        assert!(sent.success(), "kill -{signal}");
    }

    /// Asks the program to stop (SIGTERM), and does not wait.
    pub fn ask_to_stop(&mut self) {
        drop(self.alive.take());
    }

    /// Stops the program and waits until it has ended; kills it after 8 s.
    pub fn stop(&mut self) {
        self.ask_to_stop();
        let start = Instant::now();
        while self.is_running() {
            if start.elapsed() > Duration::from_secs(8) {
                let _ = self.guard.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The last lines of its output.
    pub fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.keep {
            self.stop();
        }
    }
}

/// A process that another one has started, such as the program of a guard.
pub fn child(process: u32) -> Option<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    let children = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    children.flat_map(|children| children.split_whitespace().next()?.parse().ok()).next()
}

/// The standard output of a finished command, or its standard error if it failed.
pub fn printed(done: &std::process::Output) -> Result<String, String> {
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()),
    }
}
