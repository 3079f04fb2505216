//! The bounds of the regular expressions in a query.

use super::bounds::Bounds;

/// Checks the regexes of functions. Only Prometheus compiles them, as its syntax is
/// not that of Rust's `regex`.
///
/// # Errors
/// If they are too many, too long, or too large when compiled.
pub fn check_of_functions(regexes: &[&str], bounds: &Bounds) -> Result<(), String> {
    if regexes.len() > bounds.regexes {
        return Err(too_many(bounds));
    }
    if regexes.iter().any(|regex| regex.len() > bounds.regex_bytes) {
        return Err(too_long(bounds));
    }
    check_classes(regexes)?;
    // With repetitions, they may be as large as the largest regexes without.
    let most = bounds.regexes.saturating_mul(bounds.regex_bytes);
    let all = regexes.iter().fold(0, |all: usize, regex| all.saturating_add(states(regex)));
    if all > most {
        return Err("the regular expressions of label_replace() repeat too much: \
                    write smaller numbers in {...}"
            .to_owned());
    }
    Ok(())
}

/// An upper estimate of the states of a compiled regex. Only repetitions of a group
/// multiply: `([0-9]{4}-){3}`.
fn states(regex: &str) -> usize {
    let (mut of_groups, mut others) = (1, regex.len());
    for (brace, _) in regex.match_indices('{') {
        let Some((inside, _)) = regex[brace + 1..].split_once('}') else { continue };
        // `{2,5}` is five copies, of which three are optional; `{5,}` is five and a star.
        let counts = inside.split(',').filter_map(|count| count.parse::<usize>().ok());
        let count = counts.max().unwrap_or(1).max(1);
        match regex[..brace].ends_with(')') {
            true => of_groups = count.saturating_mul(of_groups),
            false => others = count.saturating_add(others),
        }
    }
    of_groups.saturating_mul(others)
}

/// The most classes in regexes that ignore case.
const MAX_CLASSES: usize = 16;

/// Refuses too many classes that ignore case before a regex is compiled: each is compared with
/// all of Unicode, letter by letter, which takes milliseconds.
fn check_classes(regexes: &[&str]) -> Result<(), String> {
    let classes = |regex: &&str| -> usize {
        // `[` also begins nested classes, and `&&` and the like combine two.
        ["[", r"\p", r"\P", "&&", "--", "~~"].iter().map(|of| regex.matches(of).count()).sum()
    };
    let all: usize = regexes.iter().filter(|regex| ignores_case(regex)).map(classes).sum();
    match all > MAX_CLASSES {
        true => Err(format!(
            "the regular expressions of the query have more than {MAX_CLASSES} classes, such as \
             [a-z], beside (?i): write fewer"
        )),
        false => Ok(()),
    }
}

/// Whether a regex may ignore case: it has the flag `i`, or `x`, after which flags may follow spaces.
fn ignores_case(regex: &str) -> bool {
    regex.split("(?").skip(1).any(|rest| {
        let flags = rest.split(|c: char| !c.is_ascii_alphabetic() && c != '-').next();
        flags.is_some_and(|flags| flags.contains(['i', 'x']))
    })
}

/// The error for too many regexes.
pub(super) fn too_many(Bounds { regexes, .. }: &Bounds) -> String {
    format!("the query has more than {regexes} regular expressions")
}

/// The error for a regex that is too long.
pub(super) fn too_long(Bounds { regex_bytes, .. }: &Bounds) -> String {
    format!("a regular expression is longer than {regex_bytes} bytes")
}

/// Whether each regex matches the empty text.
///
/// The regexes of a text are compiled once, all together, which also bounds the time.
///
/// # Errors
/// If a regex is invalid, or all together are too large when compiled; with the index of a regex.
pub(super) fn compile(regexes: &[&str], bounds: &Bounds) -> Result<Vec<bool>, (usize, String)> {
    let Some(bytes) = bounds.compiled_bytes.filter(|_| !regexes.is_empty()) else {
        return Ok(vec![false; regexes.len()]);
    };
    check_classes(regexes).map_err(|error| (0, error))?;
    let translated = regexes
        .iter()
        .enumerate()
        .map(|(index, regex)| translated(regex).map_err(|error| (index, error)));
    let translated = translated.collect::<Result<Vec<String>, _>>()?;
    let compiled =
        regex::RegexSetBuilder::new(translated).size_limit(bytes).build().map_err(|_| {
            (
                0,
                "the regular expressions of the query take too much memory: simplify them"
                    .to_owned(),
            )
        })?;
    let empty = compiled.matches("");
    Ok((0..regexes.len()).map(|index| empty.matched(index)).collect())
}

/// A regex in the syntax of Rust's `regex`: anchored, and with `{` escaped unless it begins a
/// repetition, as Go takes it literally.
fn translated(regex: &str) -> Result<String, String> {
    let parse = |regex: &str| {
        let anchored = format!("^(?:{regex})$");
        // Only parsed: with this limit it can't be compiled.
        match regex::RegexBuilder::new(&anchored).size_limit(0).build() {
            Err(error @ regex::Error::Syntax(_)) => Err(error),
            _ => Ok(anchored),
        }
    };
    parse(regex).or_else(|_| parse(&literal_braces(regex))).map_err(|error| {
        // The last line says what is wrong; those before it show where.
        let error = error.to_string();
        let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
        format!(
            "{regex:?} is not a regular expression that Plimsoll's parser knows ({reason}): write it without \\Q...\\E"
        )
    })
}

fn literal_braces(regex: &str) -> String {
    let mut escaped = String::with_capacity(regex.len() + 8);
    let mut rest = regex.chars();
    while let Some(c) = rest.next() {
        let repeats = || {
            let inside = rest.as_str().split_once('}').map_or("", |(inside, _)| inside);
            let (least, most) = inside.split_once(',').unwrap_or((inside, ""));
            let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            !least.is_empty() && digits(least) && digits(most)
        };
        match c {
            '{' if !repeats() => escaped.push_str("\\{"),
            '\\' => {
                escaped.push(c);
                escaped.extend(rest.next());
            }
            c => escaped.push(c),
        }
    }
    escaped
}
