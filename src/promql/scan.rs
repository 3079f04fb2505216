//! Checks the text of a query against its bounds before it is parsed.
//!
//! The parser builds a tree, and a tree is walked, printed, compared and dropped
//! by recursion. A stack overflow ends the process, and can't be caught. So
//! the depth of the tree is bounded by a scan of the text that does not recurse.

use super::bounds::{Bounds, OutOfBounds};
use super::regexes;
use promql_parser::util::unquote_string;
use std::ops::Range;

/// A regular expression of a matcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegexLiteral {
    /// The range of its literal in the text, quotes included.
    pub literal: Range<usize>,
    /// The unquoted text.
    pub text: String,
    /// Whether it is known to match the empty text.
    pub matches_empty: bool,
}

/// Checks a text that the parser's lexer accepts; the regular expressions in it.
///
/// # Errors
/// The first thing that is out of bounds.
pub fn check(text: &str, bounds: &Bounds) -> Result<Vec<RegexLiteral>, OutOfBounds> {
    let mut scan = Scan {
        text,
        bounds,
        at: 0,
        levels: vec![Level::default()],
        matchers: 0,
        regexes: Vec::new(),
        duration: false,
    };
    let checked = scan.run().and_then(|()| {
        let texts: Vec<&str> = scan.regexes.iter().map(|regex| &*regex.text).collect();
        let empty = regexes::compile(&texts, bounds);
        empty.map_err(|(index, what)| (scan.regexes[index].literal.start, what))
    });
    let empty = checked.map_err(|(at, what)| OutOfBounds::at(text, at, what))?;
    for (regex, empty) in scan.regexes.iter_mut().zip(empty) {
        regex.matches_empty = empty;
    }
    Ok(scan.regexes)
}

/// The text between one parenthesis and the one that closes it.
#[derive(Default)]
struct Level {
    /// Operators, signs and ranges since the last comma.
    operators: usize,
    /// The depth of the deepest operand since then.
    operand: usize,
    /// The depth of the deepest argument before that comma.
    argument: usize,
}

impl Level {
    fn depth(&self) -> usize {
        self.argument.max(self.operators + self.operand)
    }
}

struct Scan<'a> {
    text: &'a str,
    bounds: &'a Bounds,
    at: usize,
    levels: Vec<Level>,
    matchers: usize,
    regexes: Vec<RegexLiteral>,
    /// Whether a duration is next.
    duration: bool,
}

type Checked = Result<(), (usize, String)>;

impl Scan<'_> {
    fn run(&mut self) -> Checked {
        let Bounds { bytes, .. } = *self.bounds;
        if self.text.len() > bytes {
            let message = format!("the query is longer than {bytes} bytes: shorten it");
            return Err((self.floor(bytes), message));
        }
        while let Some(byte) = self.peek() {
            let begin = self.at;
            self.at += 1;
            let after_offset = std::mem::take(&mut self.duration);
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' | b'\x0c' => self.duration = after_offset,
                b'#' => {
                    self.comment();
                    self.duration = after_offset;
                }
                b'"' | b'\'' | b'`' => self.string(byte),
                b'(' => self.open(begin)?,
                b')' => self.close(begin)?,
                b',' => {
                    let level = self.level();
                    *level = Level { argument: level.depth(), ..Level::default() };
                }
                b'{' => self.matchers()?,
                b'[' => {
                    self.operator(begin)?;
                    self.range()?;
                }
                b'+' | b'-' => {
                    self.operator(begin)?;
                    self.duration = after_offset;
                }
                b'*' | b'/' | b'%' | b'^' | b'=' | b'!' | b'<' | b'>' => self.operator(begin)?,
                b'0'..=b'9' | b'.' => self.number(begin, after_offset)?,
                b'a'..=b'z' | b'A'..=b'Z' | b'_' | b':' => self.word(begin, after_offset)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip(&mut self, these: impl Fn(u8) -> bool) {
        while self.peek().is_some_and(&these) {
            self.at += 1;
        }
    }

    /// The last character boundary at or before this position.
    fn floor(&self, at: usize) -> usize {
        (0..=at).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0)
    }

    fn level(&mut self) -> &mut Level {
        // An unmatched `)` may have closed the outermost one.
        if self.levels.is_empty() {
            self.levels.push(Level::default());
        }
        self.levels.last_mut().expect("there is one by now")
    }

    fn comment(&mut self) {
        self.skip(|byte| byte != b'\r' && byte != b'\n');
    }

    /// Skips to the end of a string as the parser's lexer finds it: a quote after a backslash
    /// does not end it, not even in a raw string.
    fn string(&mut self, quote: u8) {
        while let Some(byte) = self.peek() {
            self.at += 1;
            match byte {
                b'\\' => self.at += 1,
                _ if byte == quote => return,
                _ => {}
            }
        }
    }

    fn too_deep(&self, at: usize) -> Checked {
        let depth = self.bounds.depth;
        Err((at, format!("the query is nested more than {depth} levels deep: simplify it")))
    }

    fn open(&mut self, at: usize) -> Checked {
        self.levels.push(Level::default());
        if self.levels.len() > self.bounds.depth { self.too_deep(at) } else { Ok(()) }
    }

    fn close(&mut self, at: usize) -> Checked {
        let inner = self.levels.pop().unwrap_or_default().depth() + 1;
        let level = self.level();
        level.operand = level.operand.max(inner);
        self.bounded(at)
    }

    fn operator(&mut self, at: usize) -> Checked {
        self.level().operators += 1;
        self.bounded(at)
    }

    fn bounded(&mut self, at: usize) -> Checked {
        if self.level().depth() > self.bounds.depth { self.too_deep(at) } else { Ok(()) }
    }

    fn word(&mut self, begin: usize, after_offset: bool) -> Checked {
        self.skip(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':');
        let word = self.text[begin..self.at].to_ascii_lowercase();
        match word.as_str() {
            "and" | "or" | "unless" | "atan2" => self.operator(begin),
            "offset" => {
                self.duration = true;
                Ok(())
            }
            "inf" | "nan" if after_offset => Err((begin, no_duration(&word))),
            _ => Ok(()),
        }
    }

    /// `[5m]`, `[5m:1m]`.
    fn range(&mut self) -> Checked {
        while let Some(byte) = self.peek() {
            let begin = self.at;
            self.at += 1;
            match byte {
                b']' => return Ok(()),
                b'0'..=b'9' => self.number(begin, true)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// A number or a duration, after its first character.
    ///
    /// The parser panics at a number that does not fit a duration,
    /// and reads a part of a duration that does not fit as 0.
    fn number(&mut self, begin: usize, duration: bool) -> Checked {
        self.skip(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
        let hexadecimal =
            self.text[begin..].starts_with("0x") || self.text[begin..].starts_with("0X");
        let exponent = self.text[begin..self.at].ends_with(['e', 'E']);
        if !hexadecimal && exponent && matches!(self.peek(), Some(b'+' | b'-')) {
            self.at += 1;
            self.skip(|byte| byte.is_ascii_digit());
        }
        let number = &self.text[begin..self.at];
        let units = |byte: char| matches!(byte, 'm' | 's' | 'h' | 'd' | 'w' | 'y');
        let fits = if !hexadecimal && number.ends_with(units) {
            number.split(units).all(|part| part.is_empty() || part.parse::<u32>().is_ok())
        } else {
            // A hundred years.
            !duration || number.parse::<f64>().is_ok_and(|seconds| seconds <= 3.2e9)
        };
        if fits { Ok(()) } else { Err((begin, no_duration(number))) }
    }

    /// `{a="b",c=~"d"}`.
    fn matchers(&mut self) -> Checked {
        let mut last = b'{';
        while let Some(byte) = self.peek() {
            let begin = self.at;
            self.at += 1;
            match byte {
                b'}' => return Ok(()),
                b'#' => self.comment(),
                b'"' | b'\'' | b'`' => {
                    self.string(byte);
                    if last == b'~' {
                        self.regex(begin)?;
                    }
                }
                b'=' | b'!' if last != b'!' => {
                    self.matchers += 1;
                    let most = self.bounds.matchers;
                    if self.matchers > most {
                        return Err((begin, format!("the query has more than {most} matchers")));
                    }
                }
                _ => {}
            }
            if !byte.is_ascii_whitespace() && byte != b'#' {
                last = byte;
            }
        }
        Ok(())
    }

    /// A regex, from its opening quote on.
    fn regex(&mut self, begin: usize) -> Checked {
        let literal = self.text.get(begin..self.at).unwrap_or_default();
        if self.regexes.len() >= self.bounds.regexes {
            return Err((begin, regexes::too_many(self.bounds)));
        }
        if literal.len() > self.bounds.regex_bytes {
            return Err((begin, regexes::too_long(self.bounds)));
        }
        // The parser refuses an invalid string.
        if let Ok(text) = unquote_string(literal) {
            let literal = begin..self.at;
            self.regexes.push(RegexLiteral { literal, text, matches_empty: false });
        }
        Ok(())
    }
}

fn no_duration(text: &str) -> String {
    format!("{text} is not a duration: write one such as 5m or 1h30m")
}

#[cfg(test)]
mod tests {
    use super::super::bounds::USER_QUERY;
    use super::*;

    fn fault(text: &str) -> Option<String> {
        check(text, &USER_QUERY).err().map(|error| error.to_string())
    }

    #[test]
    fn what_people_write_is_within_bounds() {
        for text in [
            r#"sum by (pod) (rate(http_requests_total{code=~"5..",path!~"/a-b/.*"}[5m])) * -1e-3"#,
            "max_over_time(deriv(rate(x[1m:10s])[5m:1m])[10m:]) offset -1h30m",
            r#"x{a="------------------------------------------------------------------------------------------------------------"}"#,
            "x offset 5m # offset Inf ((((((((\n + x[300] @ 1700000000.5",
            r#"label_replace(x, "a", "$1", "b", "(.*)\"((((((((((") and on () vector(0x1F)"#,
            r#"x{path=~"/users/{id}/.*"} + 1y2w3d4h5m6s7ms"#,
            &(0..99).map(|n| format!("x{n}")).collect::<Vec<_>>().join(" + "),
            &format!("label_join(x, {})", vec![r#""a""#; 500].join(", ")),
        ] {
            assert_eq!(fault(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_named_with_its_place() {
        for (text, expected) in [
            ("up offset Inf", "1:11: inf is not a duration"),
            ("up offset\n - nan", "2:4: nan is not a duration"),
            ("up offset 1e400", "1:11: 1e400 is not a duration"),
            ("up offset 1e+400", "1:11: 1e+400 is not a duration"),
            ("up[99999999999999999999]", "1:4: 99999999999999999999 is not"),
            ("up[5m:1e300]", "1:7: 1e300 is not a duration"),
            ("up[99999999999y1s]", "1:4: 99999999999y1s is not a duration"),
            ("é + up offset 0xFF", "1:15: 0xFF is not a duration"),
            (&"-".repeat(200), "1:101: the query is nested more than 100 levels deep"),
            (&"(".repeat(200), "1:100: the query is nested"),
            (&format!("{}x{}", "(-".repeat(60), ")".repeat(60)), "the query is nested"),
            (&format!("x{}", "[5m:1m]".repeat(200)), "the query is nested"),
            (&"x or ".repeat(200), "the query is nested"),
            (&format!("x{{{}}}", r#"a="b","#.repeat(200)), "1:604: the query has more than 100"),
            (&format!("x{{{}}}", r#"a=~"b","#.repeat(20)), "more than 16 regular expressions"),
            (&format!(r#"x{{a=~"{}"}}"#, "a".repeat(2_000)), "1:6: a regular expression is longer"),
            (
                r#"x{a=~"\\pL{900}"}"#,
                "1:6: the regular expressions of the query take too much memory",
            ),
            (
                &format!("x{{{}}}", r#"a=~"\\pL{9}","#.repeat(16)),
                "1:6: the regular expressions of the query take too much memory",
            ),
            (r#"x{a!~"(a"}"#, "is not a regular expression that Plimsoll's parser knows (uncl"),
            (r#"x{a=~"\\Qa.b\\E"}"#, "(unrecognized escape sequence)"),
        ] {
            let fault = fault(text).unwrap_or_else(|| panic!("{text} is within bounds"));
            assert!(fault.contains(expected), "{fault} does not say {expected}");
        }
    }

    /// Each such class is compared letter by letter with all of Unicode: milliseconds.
    #[test]
    fn wide_classes_that_ignore_case_are_refused_before_they_are_read() {
        let many = "[!-\u{10FFFF}]".repeat(120);
        let nested = "[[!-~]&&".repeat(60) + "a" + &"]".repeat(60);
        let matchers = |regex: &str| format!("x{{{}}}", format!(r#"a=~"{regex}","#).repeat(8));
        for regex in [
            format!("(?i){many}"),
            format!("a(?s-mi:b)(?:c)(?im:{many})"),
            format!("(?x)( ?i){many}"),
            format!("(?i){}", r"\\PL".repeat(200)),
            format!("(?i){nested}"),
        ] {
            let begun = tokio::time::Instant::now();
            let fault = fault(&matchers(&regex)).unwrap();
            assert!(fault.contains("more than 16 classes"), "{fault}");
            let took = begun.elapsed();
            assert!(took < std::time::Duration::from_millis(100), "{took:?}");
        }
        for regex in
            [&*"[^!-\u{10FFFF}]".repeat(100), "(?i)[a-z]+-[0-9]+", "(?P<name>[a-z])[0-9]{5}"]
        {
            assert_eq!(fault(&format!(r#"x{{a=~"{regex}"}}"#)), None, "{regex}");
        }
    }

    #[test]
    fn a_long_text_is_refused_whatever_it_says() {
        assert!(fault(&"é".repeat(20_000)).unwrap().contains("longer than 32768 bytes"));
    }
}
