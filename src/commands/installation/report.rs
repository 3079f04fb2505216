//! The report of `plimsoll check-cluster`: groups of checks.

use super::super::story::{Screen, paint, plain};
use serde_json::{Value, json};
use std::fmt::Write;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is as it should be.
    Passed,
    /// It works, and is probably not what was wanted.
    Warning,
    /// It does not work.
    Failed,
    /// It was not looked at, and why is known.
    Skipped,
}

/// One check.
#[derive(Clone, Debug)]
struct Check {
    outcome: Outcome,
    /// What was checked, as it should be.
    what: String,
    /// What was found; empty if nothing is to be said.
    found: String,
    /// What to do; empty if nothing is to be done.
    hint: String,
}

/// Checks of one subject.
#[derive(Clone, Debug)]
pub struct Group {
    name: &'static str,
    checks: Vec<Check>,
}

impl Group {
    /// A group without checks.
    pub fn new(name: &'static str) -> Self {
        Self { name, checks: Vec::new() }
    }

    fn push(&mut self, outcome: Outcome, [what, found, hint]: [&str; 3]) {
        let [what, found, hint] = [what, found, hint].map(|text| plain(text).into_owned());
        self.checks.push(Check { outcome, what, found, hint });
    }

    /// It is so.
    pub fn passed(&mut self, what: &str) {
        self.push(Outcome::Passed, [what, "", ""]);
    }

    /// It is not quite so: what was found, and what to do.
    pub fn warn(&mut self, what: &str, found: &str, hint: &str) {
        self.push(Outcome::Warning, [what, found, hint]);
    }

    /// It is not so: what was found, and what to do.
    pub fn failed(&mut self, what: &str, found: &str, hint: &str) {
        self.push(Outcome::Failed, [what, found, hint]);
    }

    /// It can't be told, and why.
    pub fn skipped(&mut self, what: &str, why: &str, hint: &str) {
        self.push(Outcome::Skipped, [what, why, hint]);
    }

    /// The outcomes, in order.
    #[cfg(test)]
    pub fn outcomes(&self) -> Vec<Outcome> {
        self.checks.iter().map(|check| check.outcome).collect()
    }
}

/// All groups.
#[derive(Debug, Default)]
pub struct Report {
    /// In the order in which they are printed.
    pub groups: Vec<Group>,
}

impl Report {
    fn count(&self, outcome: Outcome) -> usize {
        let checks = self.groups.iter().flat_map(|group| &group.checks);
        checks.filter(|check| check.outcome == outcome).count()
    }

    /// Whether nothing has failed.
    pub fn is_good(&self) -> bool {
        self.count(Outcome::Failed) == 0
    }

    /// For a person: a mark and a line for each check, and below it what was found and what to do.
    pub fn text(&self, screen: Screen) -> String {
        let mut text = String::new();
        for Group { name, checks } in &self.groups {
            let _ = writeln!(text, "{name}\n{}", "-".repeat(name.len()));
            for Check { outcome, what, found, hint } in checks {
                let _ = writeln!(text, "{} {what}", mark(*outcome, screen));
                let more = [(found, ""), (hint, "hint: ")];
                for (more, begin) in more.iter().filter(|(more, _)| !more.is_empty()) {
                    let _ = writeln!(text, "    {begin}{more}");
                }
            }
            text.push('\n');
        }
        let [failed, warnings] = [Outcome::Failed, Outcome::Warning].map(|one| self.count(one));
        let is = if self.is_good() { Outcome::Passed } else { Outcome::Failed };
        let sum = format!("{failed} failed, {warnings} to be looked at");
        let _ = writeln!(text, "Status check results are {} ({sum})", mark(is, screen));
        text
    }

    /// For a program.
    pub fn json(&self) -> Value {
        let check = |Check { outcome, what, found, hint }: &Check| {
            let result = match outcome {
                Outcome::Passed => "success",
                Outcome::Warning => "warning",
                Outcome::Failed => "error",
                Outcome::Skipped => "skipped",
            };
            json!({"description": what, "result": result, "error": found, "hint": hint})
        };
        let group = |Group { name, checks }: &Group| {
            let checks: Vec<Value> = checks.iter().map(check).collect();
            json!({"categoryName": name, "checks": checks})
        };
        let groups: Vec<Value> = self.groups.iter().map(group).collect();
        json!({"success": self.is_good(), "categories": groups})
    }
}

fn mark(outcome: Outcome, screen: Screen) -> String {
    let (unicode, ascii, color) = match outcome {
        Outcome::Passed => ("√", "+", "32"),
        Outcome::Warning => ("‼", "!", "33"),
        Outcome::Failed => ("×", "x", "31"),
        Outcome::Skipped => ("-", "-", "2"),
    };
    paint(if screen.unicode { unicode } else { ascii }, color, screen.color)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_a_mark_what_was_found_and_what_to_do() {
        let mut group = Group::new("things");
        group.passed("a is there");
        group.warn("b is there", "it is late", "");
        let screen = Screen { width: 80, unicode: false, color: false };
        let mut report = Report { groups: vec![group] };
        let text = report.text(screen);
        assert!(text.starts_with("things\n------\n+ a is there\n! b is there\n    it is late\n"));
        assert!(report.is_good() && text.ends_with("are + (0 failed, 1 to be looked at)\n"));
        report.groups[0].failed("c is there", "it is gone\u{1b}[2J", "make it");
        let text = report.text(screen);
        assert!(
            text.contains("x c is there\n    it is gone\\u{1b}[2J\n    hint: make it\n"),
            "{text}"
        );
        let json = report.json();
        assert_eq!(json["success"], false);
        assert_eq!(json["categories"][0]["checks"][2]["result"], "error");
    }
}
