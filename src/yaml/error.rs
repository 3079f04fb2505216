//! What is wrong with a YAML text: where, what, and what was probably meant.

use super::places::{Kind, Places};
use crate::nearest::nearest;
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::localizer::Localizer;
use serde_saphyr::{Error, Location, MessageFormatter, UserMessageFormatter};
use std::borrow::Cow;
use std::io;

/// The text of a file.
///
/// # Errors
/// If it is not UTF-8, with the line.
pub fn utf8(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        let text = format!("line {line} is not UTF-8: save the file as UTF-8");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// `:LINE:COLUMN` of an error, counted from 1; empty if it has no position.
pub fn position(error: &Error) -> String {
    error.location().map_or_else(String::new, |at| format!(":{}:{}", at.line(), at.column()))
}

/// What is wrong, without its position and without any values of the text, so that it may be logged.
pub fn described(error: &Error) -> String {
    let error = error.without_snippet();
    let meant = match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            nearest(field, expected.iter().map(|&known| known.to_owned()))
        }
        _ => None,
    };
    let meant = meant.map(|known| format!("; did you mean {known}?"));
    without_values(&error.render_with_formatter(&Words)) + &meant.unwrap_or_default()
}

/// The same behind the field of this text that has it.
pub fn described_in(text: &str, error: &Error) -> String {
    let what = described(error);
    let names_field = matches!(
        error.without_snippet(),
        Error::SerdeUnknownField { .. } | Error::DuplicateMappingKey { .. }
    );
    let at = error.location().filter(|_| !names_field).map(|at| (at.line(), at.column()));
    let kind = expected_kind(error.without_snippet());
    let field = at.and_then(|at| Places::of_documents(text).first()?.path(at, kind));
    match field {
        Some(field) if !field.is_empty() => format!("{field}: {what}"),
        _ => what,
    }
}

/// What was expected where something else stands.
fn expected_kind(error: &Error) -> Option<Kind> {
    let expected: &str = match error {
        Error::WithSnippet { error, .. } | Error::AliasError { error, .. } => {
            return expected_kind(error);
        }
        Error::NullIntoString { .. } => return Some(Kind::Text),
        Error::InvalidBooleanStrict { .. } | Error::InvalidScalar { .. } => {
            return Some(Kind::Other);
        }
        Error::Unexpected { expected, .. } => expected,
        Error::SerdeInvalidType { expected, .. } | Error::SerdeInvalidValue { expected, .. } => {
            expected
        }
        _ => return None,
    };
    Some(match known(expected)? {
        LIST => Kind::List,
        FIELDS => Kind::Fields,
        TEXT => Kind::Text,
        _ => Kind::Other,
    })
}

/// The lines around an error, which may contain secrets; empty if it has no position.
pub fn excerpt(error: &Error) -> String {
    let rendered = error.render_with_formatter(&Words);
    // Before it, the error and its position are repeated.
    let lines: Vec<&str> = rendered.lines().skip_while(|line| line.trim() != "|").collect();
    lines.join("\n")
}

/// The parser's messages in words of YAML's authors, without the position.
struct Words;

impl Localizer for Words {
    fn attach_location<'a>(&self, text: Cow<'a, str>, _: Location) -> Cow<'a, str> {
        text
    }

    fn alias_used_at(&self, _: Location) -> String {
        String::new()
    }

    fn alias_defined_at(&self, _: Location) -> String {
        String::new()
    }
}

impl MessageFormatter for Words {
    fn localizer(&self) -> &dyn Localizer {
        self
    }

    fn format_message<'a>(&self, error: &'a Error) -> Cow<'a, str> {
        const ALIASES: &str =
            "aliases (*NAME) stand for too much: write out what they stand for, or split the text";
        let text = match error {
            Error::WithSnippet { error, .. } | Error::AliasError { error, .. } => {
                return self.format_message(error);
            }
            Error::MultipleDocuments { .. } => {
                "one document was expected, and there is another behind ---"
            }
            Error::DuplicateMappingKey { key: Some(key), .. } => {
                return format!("field `{key}` is there twice").into();
            }
            Error::DuplicateMappingKey { key: None, .. } => "a field is there twice",
            Error::NullIntoString { .. } => "a text was expected, not null",
            Error::InvalidBooleanStrict { .. } | Error::InvalidScalar { ty: "boolean", .. } => {
                return expected("a boolean");
            }
            Error::InvalidScalar { ty: "floating point", .. } => "a number was expected",
            Error::InvalidScalar { .. } => "an integer was expected",
            Error::Unexpected { expected: what, .. } => match known(what) {
                None => return UserMessageFormatter.format_message(error),
                Some(known) => known,
            },
            Error::SerdeInvalidType { expected: what, .. }
            | Error::SerdeInvalidValue { expected: what, .. } => return expected(what),
            Error::SerdeMissingField { field, .. } => {
                return format!("field `{field}` is missing").into();
            }
            Error::UnknownAnchor { .. } => "no anchor (&NAME) of this name stands before it",
            Error::RecursiveReferencesRequireWeakTypes { .. } => {
                "an alias (*NAME) stands for what it is a part of"
            }
            Error::Budget { breach: BudgetBreach::Depth { depth }, .. } => {
                let text = "deep in each other: fewer were expected";
                return format!("maps and lists are {depth} {text}").into();
            }
            Error::Budget { .. }
            | Error::AliasReplayCounterOverflow { .. }
            | Error::AliasReplayLimitExceeded { .. }
            | Error::AliasExpansionLimitExceeded { .. }
            | Error::AliasReplayStackDepthExceeded { .. } => ALIASES,
            _ => return UserMessageFormatter.format_message(error),
        };
        text.into()
    }
}

/// What a parser or serde expected, in the same words.
pub fn expected(what: &str) -> Cow<'static, str> {
    known(what).map_or_else(|| format!("{what} was expected").into(), Cow::Borrowed)
}

const LIST: &str = "a list was expected, such as [a, b]";
const FIELDS: &str = "fields were expected, such as name: value";
const TEXT: &str = "a text was expected";

fn known(what: &str) -> Option<&'static str> {
    Some(match what {
        "sequence start" | "a sequence" => LIST,
        "mapping start" | "a map" => FIELDS,
        "string scalar" | "scalar" | "a string" => TEXT,
        "a boolean" => "true or false was expected",
        _ if what.starts_with("struct ") => FIELDS,
        _ => return None,
    })
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
