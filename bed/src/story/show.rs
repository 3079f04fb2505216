//! Shows the state of the workload: a live chart on a terminal, else a line every few seconds.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The state of the workload at one time.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    pub requests: f64,
    pub replicas: i64,
    pub ready: i64,
    pub per_pod: f64,
    pub targets: String,
}

/// Shows observations as they come.
pub struct Screen {
    start: Instant,
    terminal: bool,
    drawn: usize,
    last_line: Option<Instant>,
    history: Vec<Observation>,
    title: String,
    target: f64,
}

/// The columns of a chart: one per observation.
const WIDTH: usize = 64;
/// The interval of lines without a terminal.
const LINE: Duration = Duration::from_secs(3);

impl Screen {
    /// A screen for a workload with this target per pod.
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

    /// Starts a new chapter.
    pub fn chapter(&mut self, title: &str) {
        self.leave();
        println!("\n[{:5.1} s] {title}", self.start.elapsed().as_secs_f64());
        title.clone_into(&mut self.title);
        self.last_line = None;
    }

    /// Shows an observation.
    pub fn show(&mut self, observation: Observation) {
        self.history.push(observation.clone());
        if self.terminal {
            self.draw(&observation);
        } else if self.last_line.is_none_or(|at| at.elapsed() >= LINE) {
            self.last_line = Some(Instant::now());
            println!("[{:5.1} s]   {}", self.start.elapsed().as_secs_f64(), self.row(&observation));
        }
    }

    /// Prints a text below the chart; the next chart begins after it.
    pub fn say(&mut self, text: &str) {
        self.leave();
        println!("{text}");
    }

    fn row(&self, observation: &Observation) -> String {
        let bar = "#".repeat(usize::try_from(observation.replicas).unwrap_or(0).min(20));
        format!(
            "{:6.1} requests/s   {:5.1} per pod (target {:.0})   {:2} replicas, {:2} ready  {bar}",
            observation.requests,
            observation.per_pod,
            self.target,
            observation.replicas,
            observation.ready
        )
    }

    fn draw(&mut self, observation: &Observation) {
        let from = self.history.len().saturating_sub(WIDTH);
        let recent = &self.history[from..];
        let chart = |value: fn(&Observation) -> f64, most: f64| -> String {
            const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
            let block = |observation: &Observation| {
                BLOCKS[((value(observation) / most * 8.0).ceil() as usize).min(8)]
            };
            recent.iter().map(block).collect()
        };
        let lines = [
            format!(
                "  requests/s  {:>6.1} │{:<WIDTH$}│",
                observation.requests,
                chart(|l| l.requests, 180.0)
            ),
            format!(
                "  per pod     {:>6.1} │{:<WIDTH$}│ target {:.0}",
                observation.per_pod,
                chart(|l| l.per_pod, 60.0),
                self.target
            ),
            format!(
                "  replicas    {:>6} │{:<WIDTH$}│",
                observation.replicas,
                chart(|l| l.replicas as f64, 10.0)
            ),
            format!(
                "  ready       {:>6}   autoscaler shows {}",
                observation.ready, observation.targets
            ),
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

    /// Leaves the chart as it is.
    fn leave(&mut self) {
        self.drawn = 0;
    }
}
