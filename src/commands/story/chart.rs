//! A chart of load, target and replicas for a terminal.

use super::words::decimal;
use crate::time::UnixMillis;
use jiff::Timestamp;

/// How a terminal is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// Its width in columns.
    pub width: usize,
    /// Whether it shows Unicode.
    pub unicode: bool,
    /// Whether it shows colors.
    pub color: bool,
}

/// What is known of a span of time, both ends included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Its begin.
    pub first: UnixMillis,
    /// Its end.
    pub last: UnixMillis,
    /// The largest value of the metric.
    pub value: Option<f64>,
    /// Its target.
    pub target: Option<f64>,
    /// The replicas at its end.
    pub replicas: Option<i32>,
}

/// The width of the labels on the left, with the axis.
const LABELS: usize = 10;
/// The heights of the two charts in lines.
const LOAD_LINES: usize = 6;
const REPLICA_LINES: usize = 4;
/// The widths that are made use of.
const WIDTHS: (usize, usize) = (40, 200);

/// One column of the charts.
#[derive(Clone, Copy, Default)]
struct Column {
    value: Option<f64>,
    target: Option<f64>,
    replicas: Option<i32>,
}

/// Two charts, one below the other, of the points between two times, which come in their order: the load with its
/// target, named by `load`, and the replicas. Empty without points.
pub fn chart(
    points: &[Point],
    (from, to): (UnixMillis, UnixMillis),
    load: &str,
    screen: Screen,
) -> String {
    if points.is_empty() || to <= from {
        return String::new();
    }
    let (least, most) = WIDTHS;
    let count = screen.width.clamp(least, most) - LABELS;
    let columns = columns(points, (from, to), count);
    let mut text = String::new();
    if columns.iter().any(|column| column.value.is_some()) {
        text += &format!("{load}\n");
        let bars: Vec<Option<f64>> = columns.iter().map(|column| column.value).collect();
        let targets: Vec<Option<f64>> = columns.iter().map(|column| column.target).collect();
        text += &bars_of(&bars, &targets, LOAD_LINES, screen);
    }
    text += "replicas\n";
    let replicas: Vec<Option<f64>> =
        columns.iter().map(|column| column.replicas.map(f64::from)).collect();
    text += &bars_of(&replicas, &vec![None; count], REPLICA_LINES, screen);
    text + &axis((from, to), count, screen)
}

fn columns(points: &[Point], (from, to): (UnixMillis, UnixMillis), count: usize) -> Vec<Column> {
    let mut columns = vec![Column::default(); count];
    let index = |time: UnixMillis| {
        let share = (time - from) as f64 / (to - from) as f64;
        ((share * count as f64) as usize).min(count - 1)
    };
    for point in points.iter().filter(|point| point.last >= from && point.first <= to) {
        for column in &mut columns[index(point.first.max(from))..=index(point.last.min(to))] {
            column.value = match (column.value, point.value) {
                (Some(a), Some(b)) => Some(a.max(b)),
                (a, b) => a.or(b),
            };
            column.target = point.target.or(column.target);
            column.replicas = point.replicas.or(column.replicas);
        }
    }
    columns
}

/// Bars of values in some lines, with lines of targets behind them.
fn bars_of(bars: &[Option<f64>], targets: &[Option<f64>], lines: usize, screen: Screen) -> String {
    let all = bars.iter().chain(targets).flatten().copied().filter(|value| value.is_finite());
    let top = all.fold(0.0, f64::max);
    let top = if top > 0.0 { top } else { 1.0 };
    let eighths = |value: f64| (value / top * (lines * 8) as f64).round() as usize;
    let target_line = |target: f64| (eighths(target).saturating_sub(1) / 8).min(lines - 1);
    let newest = targets.iter().rev().flatten().next();
    let mut text = String::new();
    for line in (0..lines).rev() {
        let label = match (line, newest.filter(|target| target_line(**target) == line)) {
            (_, Some(target)) => short(*target),
            (top_line, None) if top_line == lines - 1 => short(top),
            (0, None) => "0".to_owned(),
            _ => String::new(),
        };
        text += &format!(
            "{label:>width$} {}",
            if screen.unicode { '│' } else { '|' },
            width = LABELS - 2
        );
        let mut row = String::new();
        for (value, target) in bars.iter().zip(targets) {
            let filled = value.map_or(0, |value| eighths(value).saturating_sub(line * 8).min(8));
            // What is above zero is seen.
            let filled = match value {
                Some(value) if line == 0 && *value > 0.0 => filled.max(1),
                _ => filled,
            };
            let is_target = target.is_some_and(|target| target_line(target) == line);
            row.push(cell(filled, is_target, screen.unicode));
        }
        text += &paint(row.trim_end(), if newest.is_some() { "32" } else { "36" }, screen.color);
        text.push('\n');
    }
    text
}

fn cell(filled: usize, is_target: bool, unicode: bool) -> char {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    match (filled, is_target, unicode) {
        (0, true, true) => '┄',
        (0, true, false) => '-',
        (filled, _, true) => BLOCKS[filled.min(8)],
        (0, false, false) => ' ',
        (1..=2, _, false) => '.',
        (3..=5, _, false) => ':',
        (_, _, false) => '#',
    }
}

/// A text in a color of ANSI, if colors are shown.
pub fn paint(text: &str, color: &str, shows: bool) -> String {
    if shows && !text.is_empty() {
        format!("\u{1b}[{color}m{text}\u{1b}[0m")
    } else {
        text.to_owned()
    }
}

/// A number in few characters: `14`, `9.8`, `134M`.
fn short(number: f64) -> String {
    if number >= 1e15 {
        return format!("{number:.0e}");
    }
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")];
    match units.iter().find(|(least, _)| number >= *least) {
        Some((least, unit)) => {
            let size = if *unit == "k" { 1e3 } else { *least };
            format!("{:.0}{unit}", number / size)
        }
        None if number >= 100.0 => format!("{number:.0}"),
        None => decimal((number * 100.0).round() / 100.0),
    }
}

fn axis((from, to): (UnixMillis, UnixMillis), count: usize, screen: Screen) -> String {
    let format = if to - from > 2 * 86_400_000 { "%m-%d" } else { "%H:%M" };
    let label = |time: UnixMillis| {
        Timestamp::from_millisecond(time).unwrap_or_default().strftime(format).to_string()
    };
    let mut row = vec![' '; count];
    let last = count.saturating_sub(5);
    for (place, time) in [(0, from), (last / 2, from + (to - from) / 2), (last, to)] {
        for (offset, character) in label(time).chars().enumerate() {
            row[(place + offset).min(count - 1)] = character;
        }
    }
    let corner = if screen.unicode { '└' } else { '+' };
    let row: String = row.into_iter().collect();
    format!("{:>width$} {corner}{}\n", "UTC", row.trim_end(), width = LABELS - 2)
}
