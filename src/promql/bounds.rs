//! The bounds of a query's text: size, depth, matchers, regular expressions.

/// The bounds of a text.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of the text.
    pub bytes: usize,
    /// Levels of the tree: calls, parentheses, signs, operators, ranges. A chain
    /// such as `a + b + c` has one level for each operator.
    pub depth: usize,
    /// Label matchers.
    pub matchers: usize,
    /// Regular expressions among them.
    pub regexes: usize,
    /// Bytes of one regular expression.
    pub regex_bytes: usize,
    /// Bytes that all regular expressions together take when compiled; none if they are
    /// not compiled.
    pub compiled_bytes: Option<usize>,
}

/// For users' own queries.
pub const USER_QUERY: Bounds = Bounds {
    // The schema allows 8,192 characters.
    bytes: 32 << 10,
    depth: 100,
    matchers: 100,
    regexes: 16,
    regex_bytes: 1024,
    compiled_bytes: Some(1 << 20),
};

/// For planned queries and administrators' templates. These may
/// name a thousand pods, but are not deeper.
pub const PLANNED_QUERY: Bounds = Bounds {
    bytes: 8 << 20,
    matchers: usize::MAX,
    regexes: usize::MAX,
    regex_bytes: usize::MAX,
    compiled_bytes: None,
    ..USER_QUERY
};

/// For the queries of a configuration that is checked: those of [`PLANNED_QUERY`] whose regular
/// expressions are tried, too.
pub const CHECKED_QUERY: Bounds = Bounds { compiled_bytes: Some(10 << 20), ..PLANNED_QUERY };

/// A bound that a text exceeds, and its position.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{line}:{column}: {message}")]
pub struct OutOfBounds {
    /// The line, from 1.
    pub line: usize,
    /// The character in it, from 1.
    pub column: usize,
    /// The error, and the remedy.
    pub message: String,
}

impl OutOfBounds {
    pub(super) fn at(text: &str, at: usize, message: String) -> Self {
        let before = text.get(..at).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Self { line, column, message }
    }
}
