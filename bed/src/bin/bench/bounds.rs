//! Counts and the bounds that tests/bench-smoke.yaml sets them, and the aims of other benchmarks.

use bed::root;
use serde_json::Value;
use std::process::ExitCode;

/// What is counted, and what was.
#[derive(Clone, Debug)]
pub struct Count {
    /// Its name in the file.
    pub name: String,
    pub measured: f64,
    pub slack: Slack,
}

/// How far above what was measured a bound is set, where timing makes a count vary.
#[derive(Clone, Copy, Debug)]
pub struct Slack {
    /// The share of what was measured.
    pub share: f64,
    /// What is added to that.
    pub more: f64,
}

impl Count {
    /// The bound that follows from what was measured.
    fn bound(&self) -> f64 {
        (self.measured * (1.0 + self.slack.share) + self.slack.more).ceil()
    }

    fn measured(&self) -> f64 {
        (self.measured * 10.0).round() / 10.0
    }
}

/// How the names of counts of instructions end.
const INSTRUCTIONS: &str = ": instructions";

/// A bound, and where it comes from.
#[derive(Clone, Debug)]
struct Bound {
    bound: f64,
    measured: String,
    on: String,
}

/// The file below the root of the repository.
pub const FILE: &str = "tests/bench-smoke.yaml";
const HEAD: &str = "\
# The bounds of `make bench-smoke`: what a small fleet and the kernels may cost, in counts. The bound is what was
# measured, with slack where timing makes a count vary. A change that is meant to cost more, or costs less, writes
# the file anew: UPDATE=1 make bench-smoke
";

/// Prints the counts beside their bounds, and fails where one is exceeded or is not of the file. With
/// `UPDATE` in the environment the file is written instead.
pub fn check(counts: &[Count]) -> ExitCode {
    let path = root().join(FILE);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let file: Value = serde_saphyr::from_str(&text).unwrap_or_default();
    if std::env::var_os("UPDATE").is_some() {
        // A raise is seen when it is made, and not in a diff of thirty lines.
        for count in counts {
            if let Some(Bound { bound, .. }) = bound_of(&file[&count.name])
                && count.measured > bound
            {
                println!("RAISED above its bound of {bound}: {}, {}", count.name, count.measured());
            }
        }
        std::fs::write(&path, written(counts)).expect("a file");
        println!("written to {FILE}");
        return ExitCode::SUCCESS;
    }
    let mut wrong = Vec::new();
    println!("\n{:<60} {:>12} {:>12}", "", "counted", "bound");
    for count in counts {
        let (name, measured) = (&count.name, count.measured());
        let bound = bound_of(&file[name]);
        let shown = bound.as_ref().map_or("none".to_owned(), |bound| bound.bound.to_string());
        println!("{name:<60} {measured:>12} {shown:>12}");
        match bound {
            None => wrong.push(format!("{name}: {measured}, and no bound")),
            Some(Bound { measured: was, on, .. })
                if count.measured == 0.0 && !matches!(&*was, "0" | "0.0") =>
            {
                wrong.push(format!(
                    "{name}: 0, and {was} was measured on {on}: is it still counted?"
                ));
            }
            Some(Bound { bound, measured: was, on })
                if count.measured.is_nan() || count.measured > bound =>
            {
                let more = ((count.measured - bound) * 10.0).round() / 10.0;
                wrong.push(format!(
                    "{name}: {measured}, which is {more} above the bound of {bound} ({was} was measured on {on})"
                ));
            }
            Some(_) => {}
        }
    }
    for name in file.as_object().into_iter().flatten().map(|(name, _)| name) {
        let is_counted = counts.iter().any(|count| count.name == *name);
        // Instructions are counted where the compiler is that of the bounds.
        let has_instructions = counts.iter().any(|count| count.name.ends_with(INSTRUCTIONS));
        if !is_counted && (has_instructions || !name.ends_with(INSTRUCTIONS)) {
            wrong.push(format!("{name}: it has a bound, and is not counted"));
        }
    }
    if wrong.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("\nbench-smoke: not as {FILE} has it:");
    wrong.iter().for_each(|line| eprintln!("  {line}"));
    eprintln!("If the change is worth it: UPDATE=1 make bench-smoke, and commit the file.");
    ExitCode::FAILURE
}

/// Prints whether each aim is met; none was not tested. Returns whether none is missed.
pub fn are_met(aims: &[(&str, Option<bool>)]) -> bool {
    for (aim, met) in aims {
        println!("{aim}: {}", met.map_or("not tested", |met| if met { "met" } else { "not met" }));
    }
    aims.iter().all(|(_, met)| *met != Some(false))
}

fn bound_of(row: &Value) -> Option<Bound> {
    let (bound, on) = (row["bound"].as_f64()?, row["on"].as_str()?.to_owned());
    Some(Bound { bound, measured: row["measured"].to_string(), on })
}

fn written(counts: &[Count]) -> String {
    let today = jiff::Zoned::now().date();
    let row = |count: &Count| {
        let (name, bound, measured) = (&count.name, count.bound(), count.measured());
        format!("{name:?}: {{bound: {bound}, measured: {measured}, on: \"{today}\"}}\n")
    };
    HEAD.to_owned() + &counts.iter().map(row).collect::<String>()
}
