//! Numbers, times and texts as people read them.

use crate::k8s::Quantity;
use crate::time::UnixMillis;
use jiff::Timestamp;
use serde_json::Value;
use std::borrow::Cow;

/// A text of others, such as the name of a metric or the reason of a pause, for the screen: a line break becomes
/// a space, and a character that controls a terminal or turns the direction of writing becomes its code.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' | '\t' => plain.push(' '),
            other if is_unsafe(other) => plain.extend(other.escape_unicode()),
            other => plain.push(other),
        }
    }
    Cow::Owned(plain)
}

/// The same of each line of a text.
pub fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// Whether a character controls a terminal, turns the direction of writing, or is not seen.
pub fn is_unsafe(character: char) -> bool {
    let turns = matches!(character,
        '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    // Line and paragraph separators, and what is not seen.
    let hides = matches!(character, '\u{2028}' | '\u{2029}' | '\u{200b}' | '\u{feff}');
    character.is_control() || turns || hides
}

/// Makes each text of a response [`plain`], so that nothing that is read from a cluster controls a terminal.
pub fn clean(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(plain) = plain(text) {
                *text = plain;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(clean),
        Value::Object(fields) => {
            for (name, value) in std::mem::take(fields) {
                let mut value = value;
                clean(&mut value);
                fields.insert(plain(&name).into_owned(), value);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A value of the API as a decimal number: `9.8` for `9800m`. Others, such as `72%`, stay as they are.
pub fn number(text: &str) -> String {
    match text.strip_suffix('m').and_then(|_| text.parse::<Quantity>().ok()) {
        Some(quantity) => decimal(quantity.as_f64()),
        None => text.to_owned(),
    }
}

/// A value in the unit that a target is most likely written in: `140.8Mi` beside 128Mi, which the API shows as 134217728.
pub fn like(value: &str, target: Option<&str>) -> String {
    const MI: f64 = 1_048_576.0;
    let of = |text: &str| parsed(text).filter(|_| !text.ends_with('%'));
    match (of(value), target.and_then(of)) {
        (Some(value), Some(target)) if target >= MI && target % MI == 0.0 => {
            format!("{}Mi", decimal(value / MI))
        }
        _ => number(value),
    }
}

/// The number of a value of the API.
pub fn parsed(text: &str) -> Option<f64> {
    match text.strip_suffix('%') {
        Some(percent) => percent.parse().ok(),
        None => text.parse::<Quantity>().ok().map(Quantity::as_f64),
    }
}

/// A number with three digits after the point at most.
pub fn decimal(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A span of time: `40ms`, `90s`, `5m`, `3h`, `2d`.
pub fn span(ms: i64) -> String {
    let (ms, seconds) = (ms.max(0), ms.max(0) / 1000);
    match seconds {
        0 if ms > 0 => format!("{ms}ms"),
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A time of day in UTC, with the date where that is another day than now.
pub fn clock(time: UnixMillis, now: UnixMillis) -> String {
    let [time, now] = [time, now].map(|ms| Timestamp::from_millisecond(ms).unwrap_or_default());
    let date = |time: Timestamp| time.strftime("%Y-%m-%d").to_string();
    let of_day = time.strftime("%H:%M:%S").to_string();
    if date(time) == date(now) { of_day } else { format!("{} {of_day}", date(time)) }
}

/// A date and time of day in UTC.
pub fn date(time: UnixMillis) -> String {
    let time = Timestamp::from_millisecond(time).unwrap_or_default();
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Names as a list: `a, b and c`; empty without any.
pub fn enumerated(mut names: Vec<String>) -> String {
    let last = names.pop().unwrap_or_default();
    if names.is_empty() { last } else { format!("{} and {last}", names.join(", ")) }
}

/// `1 replica`, `3 replicas`.
pub fn counted(count: i64, one: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {one}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_text_of_others_controls_the_terminal() {
        for (text, expected) in [
            ("queue", "queue"),
            ("größe 大", "größe 大"),
            ("\u{1b}[2Jcleared", "\\u{1b}[2Jcleared"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("a\nAutoscaler shop/web: 9 replicas\r", "a Autoscaler shop/web: 9 replicas "),
            ("\u{202e}drawkcab", "\\u{202e}drawkcab"),
            ("bell\u{7}", "bell\\u{7}"),
        ] {
            assert_eq!(plain(text), expected);
        }
        let mut value = json!({"a\u{1b}": ["\u{1b}]0;title\u{7}", {"b": "\u{8}"}], "c": 1});
        clean(&mut value);
        let text = value.to_string();
        assert!(!text.chars().any(char::is_control) && !text.contains("u001b"), "{text}");
        assert_eq!(value["c"], 1);
    }

    #[test]
    fn numbers_and_times_are_those_that_people_say() {
        for (text, expected) in [
            ("9800m", "9.8"),
            ("14", "14"),
            ("1m", "0.001"),
            ("72%", "72%"),
            ("128Mi", "128Mi"),
            ("x", "x"),
        ] {
            assert_eq!(number(text), expected);
        }
        assert_eq!(like("147639500800m", Some("134217728")), "140.8Mi");
        assert_eq!(
            (like("134217728", Some("10")), like("72%", Some("60%"))),
            ("134217728".to_owned(), "72%".to_owned())
        );
        let spans = [(0, "0s"), (40, "40ms"), (1_250, "1s"), (90_000, "90s"), (420_000, "7m")];
        for (ms, expected) in spans {
            assert_eq!(span(ms), expected);
        }
        assert_eq!((span(8_000_000), span(200_000_000)), ("2h".to_owned(), "2d".to_owned()));
        let now = 1_795_489_510_000;
        assert_eq!(clock(now - 60_000, now), "03:04:10");
        assert_eq!(clock(now - 86_400_000, now), "2026-11-23 03:05:10");
        assert_eq!(date(now), "2026-11-24 03:05:10 UTC");
    }
}
