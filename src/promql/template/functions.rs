//! The functions of Go's templates, and Sprig's `join`.

use super::super::quote::quoted;
use super::value::Value;
use std::fmt::Write;

/// The names of the functions.
pub(super) const FUNCTIONS: [&str; 16] = [
    "and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "index", "len", "print", "printf",
    "println", "slice", "join",
];

/// Calls a function. `join` is Sprig's, with the separator first.
pub(super) fn call(name: &str, arguments: &[Value]) -> Result<Value, String> {
    let wrong = || Err(format!("wrong number of arguments: {}", arguments.len()));
    match (name, arguments) {
        ("not", [value]) => Ok(Value::Bool(!value.truth())),
        ("eq", [first, others @ ..]) if !others.is_empty() => {
            Ok(Value::Bool(others.iter().any(|other| other == first)))
        }
        ("ne", [a, b]) => Ok(Value::Bool(a != b)),
        ("lt", [a, b]) => compare(a, b).map(|order| Value::Bool(order.is_lt())),
        ("le", [a, b]) => compare(a, b).map(|order| Value::Bool(order.is_le())),
        ("gt", [a, b]) => compare(a, b).map(|order| Value::Bool(order.is_gt())),
        ("ge", [a, b]) => compare(a, b).map(|order| Value::Bool(order.is_ge())),
        ("len", [Value::Text(text)]) => Ok(Value::Int(text.len() as i64)),
        ("len", [Value::List(list)]) => Ok(Value::Int(list.len() as i64)),
        ("len", [Value::Map(map)]) => Ok(Value::Int(map.len() as i64)),
        ("len", [other]) => Err(format!("len of {other}")),
        ("index", [value]) => Ok(value.clone()),
        ("index", [Value::Map(map), Value::Text(key)]) => {
            Ok(Value::Text(map.get(key).cloned().unwrap_or_default()))
        }
        ("index", [Value::List(list), Value::Int(at)]) => {
            let item = usize::try_from(*at).ok().and_then(|at| list.get(at));
            item.cloned().map(Value::Text).ok_or_else(|| format!("index out of range: {at}"))
        }
        ("index", [value, ..]) => Err(format!("can't index {value} like this")),
        ("slice", [Value::List(list), bounds @ ..]) => {
            let (from, to) = range(bounds, list.len())?;
            Ok(Value::List(list[from..to].to_vec()))
        }
        ("slice", [Value::Text(text), bounds @ ..]) => {
            let (from, to) = range(bounds, text.len())?;
            let part = text.get(from..to).ok_or("the bounds cut a character in two")?;
            Ok(Value::Text(part.to_owned()))
        }
        ("join", [Value::Text(separator), Value::List(list)]) => {
            Ok(Value::Text(list.join(separator)))
        }
        ("print", values) => {
            let mut text = String::new();
            for (at, value) in values.iter().enumerate() {
                let texts = matches!(value, Value::Text(_))
                    || at > 0 && matches!(values[at - 1], Value::Text(_));
                if at > 0 && !texts {
                    text.push(' ');
                }
                let _ = write!(text, "{value}");
            }
            Ok(Value::Text(text))
        }
        ("println", values) => {
            let words: Vec<String> = values.iter().map(ToString::to_string).collect();
            Ok(Value::Text(words.join(" ") + "\n"))
        }
        ("printf", [Value::Text(format), values @ ..]) => printf(format, values).map(Value::Text),
        _ => wrong(),
    }
}

fn compare(a: &Value, b: &Value) -> Result<std::cmp::Ordering, String> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Ok(a.cmp(b)),
        (Value::Text(a), Value::Text(b)) => Ok(a.cmp(b)),
        (Value::Float(a), Value::Float(b)) => Ok(a.total_cmp(b)),
        _ => Err("incompatible types for comparison".to_owned()),
    }
}

fn range(bounds: &[Value], len: usize) -> Result<(usize, usize), String> {
    let bound = |at: usize, default: usize| match bounds.get(at) {
        None => Ok(default),
        Some(Value::Int(int)) => usize::try_from(*int)
            .ok()
            .filter(|bound| *bound <= len)
            .ok_or_else(|| format!("index out of range: {int}")),
        Some(other) => Err(format!("can't index with {other}")),
    };
    let (from, to) = (bound(0, 0)?, bound(1, len)?);
    if from <= to { Ok((from, to)) } else { Err(format!("invalid slice index: {from} > {to}")) }
}

/// `%v`, `%s`, `%d`, `%q`, `%f`, `%t` and `%%`, with width, precision, `-` and `0`.
/// The largest width and precision of `printf`.
const MAX_WIDTH: usize = 1_000;

fn printf(format: &str, values: &[Value]) -> Result<String, String> {
    let mut text = String::new();
    let mut values = values.iter();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        let verb_at = after
            .find(|c: char| c.is_alphabetic() || c == '%')
            .ok_or("a verb was expected after %")?;
        let after_verb = verb_at + after[verb_at..].chars().next().map_or(0, char::len_utf8);
        let (flags, verb) = (&after[..verb_at], &after[verb_at..after_verb]);
        rest = &after[after_verb..];
        if verb == "%" {
            text.push('%');
            continue;
        }
        let value = values.next().ok_or_else(|| format!("%{verb} has no value"))?;
        let left = flags.contains('-');
        let flags = flags.trim_start_matches(['-', '+', ' ']);
        let (width, precision) = flags.split_once('.').unwrap_or((flags, ""));
        let number = |text: &str| text.parse::<usize>().ok();
        if [width, precision].into_iter().any(|text| number(text).is_some_and(|n| n > MAX_WIDTH)) {
            return Err(format!("%{flags}{verb} is wider than {MAX_WIDTH}"));
        }
        let shown = match (verb, value) {
            ("v" | "s", value) => match number(precision) {
                Some(most) => value.to_string().chars().take(most).collect(),
                None => value.to_string(),
            },
            ("d", Value::Int(int)) => int.to_string(),
            ("t", Value::Bool(bool)) => bool.to_string(),
            ("q", Value::Text(text)) => quoted(text),
            ("f", Value::Float(float)) => format!("{float:.*}", number(precision).unwrap_or(6)),
            (verb, value) => return Err(format!("%{verb} can't print {value}")),
        };
        let padding = number(width).unwrap_or(0).saturating_sub(shown.chars().count());
        let fill = if width.starts_with('0') && !left { "0" } else { " " }.repeat(padding);
        if left {
            text.push_str(&shown);
            text.push_str(&fill);
        } else {
            text.push_str(&fill);
            text.push_str(&shown);
        }
    }
    text.push_str(rest);
    match values.next() {
        None => Ok(text),
        Some(extra) => Err(format!("the format has no verb for {extra}")),
    }
}
