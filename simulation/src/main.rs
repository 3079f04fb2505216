//! `simulate`: runs seeds, and reports what the oracles find.

use clap::Parser;
use plimsoll_simulation::oracle::time;
use plimsoll_simulation::plan::{DAY, Millis};
use plimsoll_simulation::run::{Report, Settings, Shorter, planned, run, run_apart, shrink};
use plimsoll_simulation::total::Total;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// As in the product. With the system's allocator a quarter of a run would be allocation.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How many runs it may take to leave faults out, and after what time none of them begins.
const TRIES: usize = 60;
const SHORTENED_FOR: Duration = Duration::from_secs(20 * 60);

/// The ticks of a second in `/proc` (`USER_HZ`).
const TICKS: u64 = 100;

/// What the program ends with where all held, but too little was looked at; clap ends with 2.
const IDLE: u8 = 3;

/// Simulates Plimsoll under random faults. Exits with 1 if an oracle found something, and with 3 if none did, but
/// one looked too seldom to be worth much.
#[derive(Parser)]
struct Flags {
    /// How many seeds are run.
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// How many simulated days each.
    #[arg(long, default_value_t = 2.0)]
    days: f64,
    /// Only this seed, whatever --seeds and --first say.
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
    /// No seed begins once the runs that have ended computed for so many seconds, for each of those at once: on a
    /// busy machine as much is simulated as on another.
    #[arg(long)]
    seconds: Option<u64>,
    /// Whether a run that fails is shortened.
    #[arg(long)]
    shrink: bool,
    /// Runs one seed, and prints the log of its replicas to stderr: a level, or a filter such as `plimsoll=debug`.
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
        end_in_time(&settings);
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
        let report = run(&settings);
        show(&report, &settings, &flags);
        return if report.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
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
                let jobs = u32::try_from(flags.jobs.max(1)).unwrap_or(u32::MAX);
                let over = || {
                    flags.seconds.is_some_and(|most| computed() / jobs > Duration::from_secs(most))
                };
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds || over() {
                        return;
                    }
                    let report = run_apart(&Settings { seed, ..settings.clone() });
                    let failed = report.as_ref().map_or(true, |one| one.violation.is_some());
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
            match &report {
                Ok(report) => {
                    eprintln!(
                        "seed {}: {:.1} days, {} evaluations, {} writes, digest {:016x}; {:.0} s in all{}",
                        report.seed,
                        report.length as f64 / DAY as f64,
                        report.evaluations,
                        report.writes,
                        report.digest,
                        begun.elapsed().as_secs_f64(),
                        if report.violation.is_some() { "; VIOLATION" } else { "" }
                    );
                    all.add(report);
                    if report.violation.is_none() {
                        continue;
                    }
                }
                Err(failed) => eprintln!("seed {}: {}", failed.seed, failed.error),
            }
            failed.get_or_insert(report);
        }
        failed
    });
    all.print(begun.elapsed(), computed());
    match failed {
        Some(Ok(report)) => {
            let settings = Settings { seed: report.seed, ..settings };
            show(&report, &settings, &flags);
            if flags.shrink {
                show_shorter(&settings, &report, &flags);
            }
            ExitCode::FAILURE
        }
        Some(Err(failed)) => {
            println!("seed: {}\n{}", failed.seed, failed.error);
            println!("{}", again(&Settings { seed: failed.seed, ..settings }, &flags));
            ExitCode::FAILURE
        }
        None => {
            let shortcomings = all.shortcomings();
            for one in &shortcomings {
                println!("{one}");
            }
            ExitCode::from(if shortcomings.is_empty() { 0 } else { IDLE })
        }
    }
}

/// For how long the processes that this one started, and that have ended, have computed.
fn computed() -> Duration {
    // After the name in parentheses: the state, ten numbers, and the times of this process and of those.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let numbers = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = numbers.skip(13).take(2).filter_map(|one| one.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / TICKS)
}

/// Ends this process if a run takes far longer than any: a process of Plimsoll that never waits would hold the
/// simulated clock for ever.
fn end_in_time(settings: &Settings) {
    let days = settings.length.unsigned_abs() / DAY.unsigned_abs() + 1;
    let limit = Duration::from_secs(600 * days);
    std::thread::spawn(move || {
        #[expect(
            clippy::disallowed_methods,
            reason = "it is the time of the machine that is over"
        )]
        std::thread::sleep(limit);
        eprintln!("the run has not ended within {limit:?}");
        std::process::exit(1);
    });
}

/// A violation and how to see it again.
fn show(report: &Report, settings: &Settings, flags: &Flags) {
    for step in &report.steps {
        println!("  {step}");
    }
    if let Some(violation) = &report.violation {
        println!("oracle: {}", violation.oracle);
        println!("seed: {}", report.seed);
        println!("{}: {}", time(violation.at), violation.text);
        println!("{}", again(settings, flags));
    }
}

/// How to run it again. The sources must be the same: a plan depends on all that may be drawn.
fn again(settings: &Settings, flags: &Flags) -> String {
    let Flags { days, faults, .. } = flags;
    let mut again =
        format!("again: make simulate SEED={} DAYS={days} FAULTS={faults}", settings.seed);
    if !settings.left_out.is_empty() {
        let without: Vec<_> = settings.left_out.iter().map(usize::to_string).collect();
        again += &format!(" WITHOUT={}", without.join(","));
    }
    again
}

/// Leaves out what the violation does not need, and shows what is left.
fn show_shorter(settings: &Settings, report: &Report, flags: &Flags) {
    println!("\nShortening it, in at most {TRIES} runs and {} min", SHORTENED_FOR.as_secs() / 60);
    let before = settings.left_out.len();
    let Shorter { settings, report, is_least } = shrink(settings, report, TRIES, SHORTENED_FOR);
    if settings.left_out.len() == before {
        return println!("None of its faults could be left out");
    }
    let reached = if is_least { "none of them can be left out" } else { "maybe not the fewest" };
    println!("The same with fewer faults ({reached}):");
    let end = report.violation.as_ref().map_or(settings.length, |violation| violation.at);
    for one in planned(&settings) {
        if let Some(number) = one.number.filter(|_| one.at <= end) {
            println!("  {} #{number} {:?}", time(one.at), one.event);
        }
    }
    show(&report, &settings, flags);
}
