//! What is wrong with the YAML of a configuration: where, what, and what was probably meant.

use crate::nearest::nearest;
use serde_saphyr::Error;

/// `:LINE:COLUMN` of an error, counted from 1; empty if it has no position.
pub fn position(error: &Error) -> String {
    error.location().map_or_else(String::new, |at| format!(":{}:{}", at.line(), at.column()))
}

/// What is wrong, without its position and without any values of the file, so that it may be logged.
pub fn described(error: &Error) -> String {
    let error = error.without_snippet();
    let text = error.to_string();
    let at = error.location().map(|at| format!(" at line {}, column {}", at.line(), at.column()));
    let text = at.and_then(|at| text.strip_suffix(&*at)).unwrap_or(&text);
    let meant = match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            nearest(field, expected.iter().map(|&known| known.to_owned()))
        }
        _ => None,
    };
    let meant = meant.map(|known| format!("; did you mean {known}?"));
    in_words(&without_values(text)) + &meant.unwrap_or_default()
}

/// The lines around an error, which may contain secrets; empty if it has no position.
pub fn excerpt(error: &Error) -> String {
    let rendered = in_words(&error.to_string());
    // Before it, the error and its position are repeated.
    let lines: Vec<&str> = rendered.lines().skip_while(|line| line.trim() != "|").collect();
    lines.join("\n")
}

/// A parser's message in words of YAML's authors.
fn in_words(error: &str) -> String {
    const WORDS: [(&str, &str); 3] = [
        ("expected sequence start", "a list was expected, such as [a, b]"),
        ("expected mapping start", "fields were expected, such as name: value"),
        ("expected string scalar", "a text was expected"),
    ];
    WORDS.iter().fold(error.to_owned(), |error, (said, word)| error.replace(said, word))
}

/// serde's message without the value that it found: `invalid type: string "SECRET", expected a
/// sequence` becomes `invalid type: string, expected a sequence`.
pub fn without_values(error: &str) -> String {
    let Some(found) = ["invalid type: ", "invalid value: "].iter().find_map(|w| error.find(w))
    else {
        return error.to_owned();
    };
    let (before, rest) = error.split_at(found);
    let (value, expected) = match rest.rfind(", expected") {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let kind = value.split(['"', '`', '\'']).next().unwrap_or_default().trim_end();
    format!("{before}{kind}{expected}")
}
