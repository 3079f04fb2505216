//! `simulate`: runs seeds, and reports what the oracles find.

use clap::Parser;
use plimsoll_simulation::oracle::time;
use plimsoll_simulation::plan::{DAY, Millis};
use plimsoll_simulation::run::{Report, Settings, planned, run, run_apart, shrink};
use plimsoll_simulation::total::Total;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// As in the product: a quarter of the time of a run is that of the system's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Simulates Plimsoll under random faults.
#[derive(Parser)]
struct Flags {
    /// How many seeds are run.
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// How many simulated days each.
    #[arg(long, default_value_t = 2.0)]
    days: f64,
    /// The first seed; by itself, only this one.
    #[arg(long)]
    seed: Option<u64>,
    /// The first of several seeds.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Faults in a simulated hour, on average.
    #[arg(long, default_value_t = 1.0)]
    faults: f64,
    /// How many run at once.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// No seed begins after so many seconds of real time.
    #[arg(long)]
    seconds: Option<u64>,
    /// Whether a run that fails is shortened.
    #[arg(long)]
    shrink: bool,
    /// The log of the replicas: a level, or a filter such as `plimsoll=debug`.
    #[arg(long)]
    log: Option<String>,
    /// Runs these settings (JSON), and prints the report as JSON.
    #[arg(long, hide = true)]
    run: Option<String>,
    /// Numbers of faults and hands that are left out.
    #[arg(long, value_delimiter = ',')]
    without: Vec<usize>,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    if let Some(filter) = &flags.log {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .without_time()
            .with_writer(std::io::stderr)
            .init();
    }
    if let Some(settings) = &flags.run {
        let settings = serde_json::from_str(settings).expect("settings");
        println!("{}", serde_json::to_string(&run(&settings)).expect("a report is JSON"));
        return ExitCode::SUCCESS;
    }
    let (first, seeds) = match flags.seed {
        Some(seed) => (seed, 1),
        None => (flags.first, flags.seeds),
    };
    let settings = Settings {
        seed: first,
        length: (flags.days * DAY as f64) as Millis,
        faults_per_hour: flags.faults,
        left_out: flags.without.iter().copied().collect(),
    };
    if flags.log.is_some() {
        // The log is that of one run.
        show(&run(&settings), &flags);
        return ExitCode::SUCCESS;
    }
    #[expect(clippy::disallowed_methods, reason = "it measures how long the simulation takes")]
    let begun = Instant::now();
    let next = AtomicU64::new(first);
    let (send, reports) = mpsc::channel();
    let mut all = Total::default();
    let failed = std::thread::scope(|scope| {
        for _ in 0..flags.jobs.max(1) {
            let (send, next, settings, flags) = (send.clone(), &next, &settings, &flags);
            scope.spawn(move || {
                let over = || {
                    flags.seconds.is_some_and(|most| begun.elapsed() > Duration::from_secs(most))
                };
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds || over() {
                        return;
                    }
                    let report = run_apart(&Settings { seed, ..settings.clone() });
                    let failed = report.violation.is_some();
                    if send.send(report).is_err() || failed {
                        next.store(u64::MAX / 2, Ordering::Relaxed);
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut failed = None;
        for report in reports {
            eprintln!(
                "seed {}: {:.1} days, {} evaluations, {} writes, digest {:016x}; {:.0} s in all",
                report.seed,
                report.length as f64 / DAY as f64,
                report.evaluations,
                report.writes,
                report.digest,
                begun.elapsed().as_secs_f64()
            );
            all.add(&report);
            if report.violation.is_some() && failed.is_none() {
                failed = Some(report);
            }
        }
        failed
    });
    all.print(begun.elapsed());
    if let Some(report) = failed {
        show(&report, &flags);
        if flags.shrink {
            let settings = Settings { seed: report.seed, ..settings };
            let (shorter, report) = shrink(&settings, &report, 60);
            show_shorter(&shorter, &report, &flags);
        }
        return ExitCode::FAILURE;
    }
    let shortcomings = all.shortcomings();
    for one in &shortcomings {
        println!("{one}");
    }
    if !shortcomings.is_empty() {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// A violation and how to see it again.
fn show(report: &Report, flags: &Flags) {
    for step in &report.steps {
        println!("  {step}");
    }
    if let Some(violation) = &report.violation {
        println!("oracle: {}", violation.oracle);
        println!("seed: {}", report.seed);
        println!("{}: {}", time(violation.at), violation.text);
        let Flags { days, faults, .. } = flags;
        println!("again: make simulate SEED={} DAYS={days} FAULTS={faults}", report.seed);
    }
}

fn show_shorter(settings: &Settings, report: &Report, flags: &Flags) {
    println!("\nThe same with fewer faults:");
    let end = report.violation.as_ref().map_or(settings.length, |violation| violation.at);
    for one in planned(settings) {
        if let Some(number) = one.number.filter(|_| one.at <= end) {
            println!("  {} #{number} {:?}", time(one.at), one.event);
        }
    }
    show(report, flags);
    let without: BTreeSet<String> = settings.left_out.iter().map(usize::to_string).collect();
    println!("with WITHOUT={}", without.into_iter().collect::<Vec<_>>().join(","));
}
