//! Splits a template into text and actions, and trims space.

use super::ast::Position;

/// The result of parsing, or the position and text of an error.
pub(super) type Parsed<T> = Result<T, (Position, String)>;

/// Text, or the text between two delimiters.
pub(super) enum Piece<'a> {
    Text(&'a str),
    Action(&'a str, Position),
}

/// The spaces that Go's templates trim and skip. All others are text.
pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// The pieces of a template.
pub(super) fn split(text: &str) -> Parsed<Vec<Piece<'_>>> {
    let mut pieces = Vec::new();
    let (mut at, mut trim) = (0, false);
    loop {
        let rest = &text[at..];
        let open = rest.find("<<");
        let mut before = &rest[..open.unwrap_or(rest.len())];
        if trim {
            before = before.trim_start_matches(is_space);
        }
        let Some(open) = open else {
            pieces.push(Piece::Text(before));
            return Ok(pieces);
        };
        let start = at + open + 2;
        let inside = &text[start..];
        let close = end_of_action(inside)
            .ok_or_else(|| (at + open, "<< has no >> that ends it".to_owned()))?;
        let mut action = &inside[..close];
        let mut shift = 0;
        if action.strip_prefix('-').is_some_and(|rest| rest.starts_with(is_space)) {
            before = before.trim_end_matches(is_space);
            action = &action[2..];
            shift = 2;
        }
        trim = action.strip_suffix('-').is_some_and(|rest| rest.ends_with(is_space));
        if trim {
            action = &action[..action.len() - 2];
        }
        pieces.push(Piece::Text(before));
        let comment = action.trim_matches(is_space);
        if !(comment.starts_with("/*") && comment.ends_with("*/")) {
            pieces.push(Piece::Action(action, start + shift));
        }
        at = start + close + 2;
    }
}

/// The end of an action: the first `>>` outside of a literal.
fn end_of_action(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match quote {
            Some(open) => {
                if escaped {
                    escaped = false;
                } else if c == '\\' && open == '"' {
                    escaped = true;
                } else if c == open {
                    quote = None;
                }
            }
            None if c == '"' || c == '`' => quote = Some(c),
            None if text[at..].starts_with(">>") => return Some(at),
            None => {}
        }
    }
    None
}
