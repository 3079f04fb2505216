//! What is seen of the story: a table that moves in a terminal, else a line now
//! and then.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// One look at a workload.
#[derive(Clone, Debug, Default)]
pub struct Look {
    pub requests: f64,
    pub replicas: i64,
    pub ready: i64,
    pub per_pod: f64,
    pub targets: String,
}

/// Shows looks as they come.
pub struct Screen {
    start: Instant,
    terminal: bool,
    drawn: usize,
    last_line: Option<Instant>,
    history: Vec<Look>,
    title: String,
    target: f64,
}

/// How many looks a chart holds.
const WIDTH: usize = 64;
/// How often a line is printed where there is no terminal.
const LINE: Duration = Duration::from_secs(3);

impl Screen {
    /// One for a workload whose metric has a target.
    pub fn new(target: f64) -> Self {
        Self {
            start: Instant::now(),
            terminal: std::io::stdout().is_terminal(),
            drawn: 0,
            last_line: None,
            history: Vec::new(),
            title: String::new(),
            target,
        }
    }

    /// A new chapter of the story.
    pub fn chapter(&mut self, title: &str) {
        self.leave();
        println!("\n[{:5.1} s] {title}", self.start.elapsed().as_secs_f64());
        title.clone_into(&mut self.title);
        self.last_line = None;
    }

    /// A look at the workload.
    pub fn look(&mut self, look: Look) {
        self.history.push(look.clone());
        if self.terminal {
            self.draw(&look);
        } else if self.last_line.is_none_or(|at| at.elapsed() >= LINE) {
            self.last_line = Some(Instant::now());
            println!("[{:5.1} s]   {}", self.start.elapsed().as_secs_f64(), self.row(&look));
        }
    }

    /// Prints something below the table; a new table begins after it.
    pub fn say(&mut self, text: &str) {
        self.leave();
        println!("{text}");
    }

    fn row(&self, look: &Look) -> String {
        let bar = "#".repeat(usize::try_from(look.replicas).unwrap_or(0).min(20));
        format!(
            "{:6.1} requests/s   {:5.1} a pod (target {:.0})   {:2} replicas, {:2} ready  {bar}",
            look.requests, look.per_pod, self.target, look.replicas, look.ready
        )
    }

    fn draw(&mut self, look: &Look) {
        let from = self.history.len().saturating_sub(WIDTH);
        let recent = &self.history[from..];
        let chart = |value: fn(&Look) -> f64, most: f64| -> String {
            const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
            let block = |look: &Look| BLOCKS[((value(look) / most * 8.0).ceil() as usize).min(8)];
            recent.iter().map(block).collect()
        };
        let lines = [
            format!(
                "  requests/s  {:>6.1} │{:<WIDTH$}│",
                look.requests,
                chart(|l| l.requests, 180.0)
            ),
            format!(
                "  a pod       {:>6.1} │{:<WIDTH$}│ target {:.0}",
                look.per_pod,
                chart(|l| l.per_pod, 60.0),
                self.target
            ),
            format!(
                "  replicas    {:>6} │{:<WIDTH$}│",
                look.replicas,
                chart(|l| l.replicas as f64, 10.0)
            ),
            format!("  ready       {:>6}   autoscaler shows {}", look.ready, look.targets),
        ];
        let mut out = std::io::stdout().lock();
        if self.drawn > 0 {
            let _ = write!(out, "\x1b[{}A", self.drawn);
        }
        for line in &lines {
            let _ = writeln!(out, "\x1b[2K{line}");
        }
        let _ = out.flush();
        self.drawn = lines.len();
    }

    /// Leaves the table standing as it is.
    fn leave(&mut self) {
        self.drawn = 0;
    }
}
