//! The tokens of a formula, as the lexer of expr finds them.

/// A token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// A number; whether expr takes it for an int.
    Number(f64, bool),
    /// The name of a trigger or a function.
    Name(&'a str),
    /// An operator, a bracket, a keyword, or text that nothing is converted from.
    Symbol(&'a str),
    /// The end of the formula.
    End,
}

/// The words that can't be names of triggers.
const KEYWORDS: [&str; 14] = [
    "not",
    "in",
    "or",
    "and",
    "matches",
    "contains",
    "startsWith",
    "endsWith",
    "let",
    "if",
    "else",
    "true",
    "false",
    "nil",
];

/// Longer symbols first. Those of no meaning here are found whole, so that no part of them is taken
/// for another symbol.
const SYMBOLS: [&str; 14] =
    ["**", "??", "?.", "..", "//", "/*", "::", "||", "&&", "==", "!=", "<=", ">=", "="];

/// The tokens of a formula.
///
/// # Errors
/// If a number is not one of expr.
pub fn tokens(formula: &str) -> Result<Vec<Token<'_>>, String> {
    let mut tokens = Vec::new();
    let mut rest = formula.trim_start();
    while let Some(first) = rest.chars().next() {
        let fraction = first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit());
        let length = if first.is_ascii_digit() || fraction {
            let length = number_length(rest);
            tokens.push(number(&rest[..length])?);
            length
        } else if in_name(first) {
            let length = rest.find(|c| !in_name(c)).unwrap_or(rest.len());
            let word = &rest[..length];
            tokens.push(if KEYWORDS.contains(&word) {
                Token::Symbol(word)
            } else {
                Token::Name(word)
            });
            length
        } else {
            let symbol = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol));
            let length = symbol.map_or(first.len_utf8(), |symbol| symbol.len());
            tokens.push(Token::Symbol(&rest[..length]));
            length
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

fn in_name(c: char) -> bool {
    c == '_' || c == '$' || c.is_alphanumeric()
}

/// The length of the number that a text begins with, and of the letters that follow it.
fn number_length(text: &str) -> usize {
    let word =
        |from: usize| text[from..].find(|c| !in_name(c)).map_or(text.len(), |end| from + end);
    let mut end = word(0);
    if text.starts_with('0') && text[1..].starts_with(['x', 'X', 'o', 'O', 'b', 'B']) {
        return end;
    }
    // `1..3` is a range, not the numbers `1.` and `.3`.
    if text[end..].starts_with('.')
        && !text[end..].starts_with("..")
        && !text[..end].contains(['e', 'E'])
    {
        end = word(end + 1);
    }
    if text[..end].ends_with(['e', 'E']) && text[end..].starts_with(['+', '-']) {
        end = word(end + 1);
    }
    end
}

fn number<'a>(text: &str) -> Result<Token<'a>, String> {
    let refused = || format!("`{text}` is not a number that can be converted");
    let digits = text.replace('_', "").to_ascii_lowercase();
    let radix = match digits.get(..2) {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 10,
    };
    if radix == 10 && digits.contains(['.', 'e']) {
        let value: f64 = digits.parse().map_err(|_| refused())?;
        return if value.is_finite() { Ok(Token::Number(value, false)) } else { Err(refused()) };
    }
    let digits = if radix == 10 { &digits } else { &digits[2..] };
    // Every int up to 2^53 is a float.
    match u64::from_str_radix(digits, radix) {
        Ok(value) if value <= 1 << 53 => Ok(Token::Number(value as f64, true)),
        _ => Err(refused()),
    }
}
