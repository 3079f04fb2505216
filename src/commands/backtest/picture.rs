//! The picture of a report: the load, and below it each candidate's replicas on the same scales.

use super::glyphs::width;
use super::report::Tried;
use super::scene::{Anchor, Ink, Mark, Scene};
use super::text::{self, number};
use crate::backtest::{Recording, Run, Slot};
use crate::commands::story::plain;
use crate::time::UnixMillis;
use jiff::Timestamp;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 16.0;
const LOAD_HEIGHT: f64 = 84.0;
const SIZE: f64 = 12.0;
/// How much wider a text may be in the reader's font than in ours.
const OTHER_FONTS: f64 = 1.2;
/// The width that is left for a text in our font.
const TEXT_WIDTH: f64 = (WIDTH - LEFT - RIGHT) / OTHER_FONTS;
/// The height of a line of text, and the most lines of one.
const LINE: f64 = 16.0;
const MAX_LINES: usize = 4;
/// The distances of marks on the axis of time, in seconds.
const STEPS: [i64; 15] = [
    60, 300, 900, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600,
    2_592_000, 7_776_000, 31_536_000,
];

/// From values to pixels.
#[derive(Clone, Copy)]
struct Axes {
    first: UnixMillis,
    last: UnixMillis,
    top: f64,
    height: f64,
    most: f64,
}

impl Axes {
    fn left(&self, time: UnixMillis) -> f64 {
        let share = (time - self.first) as f64 / (self.last - self.first).max(1) as f64;
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn up(&self, value: f64) -> f64 {
        self.top + self.height * (1.0 - (value / self.most).clamp(0.0, 1.0))
    }

    fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

/// The picture.
pub fn picture(tried: &Tried) -> Scene {
    let count = tried.runs.len();
    let height = match count {
        0 | 1 => 240.0,
        2 => 180.0,
        3 | 4 => 140.0,
        _ => 100.0,
    };
    let mut marks = Vec::new();
    let (first, last) = tried.span();
    let first = tried.recordings.first().map_or(first, |one| one.axis.first);
    let title = text::span(tried);
    put(&mut marks, Ink::Text, [LEFT, 24.0], 14.0, Anchor::Start, title.clone());
    let axes = |top, height, most| Axes { first, last, top, height, most };
    let mut top = 56.0;
    let basis = tried.basis();
    for line in basis.iter().flat_map(|basis| lines_of(basis, SIZE)) {
        put(&mut marks, Ink::Muted, [LEFT, top - 14.0], SIZE, Anchor::Start, line);
        top += LINE;
    }
    let begin = top;
    load(&mut marks, tried, |most| axes(top, LOAD_HEIGHT, most));
    top += LOAD_HEIGHT;
    let most = most_replicas(tried);
    for (index, (run, recording)) in tried.runs.iter().zip(&tried.recordings).enumerate() {
        top += 46.0;
        let axes = axes(top, height, most);
        let [name, cost] = heading(run, tried.runs.first().filter(|_| index > 0));
        let [name, cost] = [within(&name, SIZE + 1.0, TEXT_WIDTH), within(&cost, SIZE, TEXT_WIDTH)];
        put(&mut marks, Ink::Ready(index), [LEFT, top - 24.0], SIZE + 1.0, Anchor::Start, name);
        put(&mut marks, Ink::Muted, [LEFT, top - 8.0], SIZE, Anchor::Start, cost);
        low_confidence(&mut marks, tried, axes);
        needed(&mut marks, axes, recording);
        grid(&mut marks, axes, &replica_steps(most));
        lines(&mut marks, axes, recording, index);
        was(&mut marks, axes, tried, recording);
        top += height;
    }
    times(&mut marks, axes(begin, top - begin, 1.0));
    top += 44.0;
    legend(&mut marks, top, !tried.was.is_empty());
    top += 18.0;
    let page = Mark::Rects { ink: Ink::Page, at: vec![[0.0, 0.0, WIDTH, top]] };
    marks.insert(0, page);
    let names: Vec<String> =
        tried.runs.iter().map(|run| plain(&run.figures.name).into_owned()).collect();
    Scene {
        width: WIDTH,
        height: top,
        title: format!("Backtest of {}: {title}", names.join(", ")),
        description: text::verdicts(&tried.runs)
            .into_iter()
            .chain(basis)
            .collect::<Vec<_>>()
            .join(". "),
        marks,
    }
}

fn put(
    marks: &mut Vec<Mark>,
    ink: Ink,
    at: [f64; 2],
    size: f64,
    anchor: Anchor,
    text: impl Into<String>,
) {
    marks.push(Mark::Text { ink, at, size, anchor, text: text.into() });
}

/// A text within a width, with an ellipsis where it is cut.
fn within(text: &str, size: f64, most: f64) -> String {
    let mut text = plain(text).into_owned();
    if width(&text, size) <= most {
        return text;
    }
    while !text.is_empty() && width(&text, size) + width("…", size) > most {
        text.pop();
    }
    text + "…"
}

/// A text in lines within the width of the picture. What does not fit in [`MAX_LINES`] is cut.
fn lines_of(text: &str, size: f64) -> Vec<String> {
    let text = plain(text);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        let longer =
            format!("{}{}{word}", lines[last], if lines[last].is_empty() { "" } else { " " });
        match width(&longer, size) <= TEXT_WIDTH
            || lines[last].is_empty()
            || lines.len() == MAX_LINES
        {
            true => lines[last] = longer,
            false => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| within(line, size, TEXT_WIDTH)).collect()
}

/// The name of a candidate, and what it costs and leaves short: also against a first one.
fn heading(run: &Run, first: Option<&Run>) -> [String; 2] {
    let figures = &run.figures;
    let against = first.and_then(|first| text::cost_against(first, run));
    let against = against.map(|(share, is_by_minute)| match is_by_minute {
        true => format!(" ({share:+.1} % replicas on average)"),
        false => format!(" ({share:+.1} %)"),
    });
    let worst = figures
        .worst_under
        .map(|worst| format!(", at worst {} of {} ready", worst.ready, worst.needed));
    let cost = format!(
        "{} replica-hours{}; short for {} minutes, {} pod-minutes{}; {} changes, {} reversals",
        number(figures.replica_hours),
        against.unwrap_or_default(),
        number(figures.under_minutes),
        number(figures.under_pod_minutes),
        worst.unwrap_or_default(),
        figures.scale_events,
        figures.reversals
    );
    [figures.name.clone(), cost]
}

/// The slots with a decision, and when each begins.
fn slots(recording: &Recording) -> impl DoubleEndedIterator<Item = (UnixMillis, &Slot)> {
    let grid = recording.axis;
    let slots = recording.slots.iter().enumerate();
    slots.filter_map(move |(index, slot)| {
        Some((grid.first + index as i64 * grid.width, slot.as_ref()?))
    })
}

fn most_replicas(tried: &Tried) -> f64 {
    let all = tried.recordings.iter().flat_map(|one| one.slots.iter().flatten());
    let most =
        all.map(|slot| (slot.needed.unwrap_or(0)).max(slot.ready as i64).max(slot.wanted.into()));
    let was = tried.was.iter().map(|(_, replicas)| *replicas).max().unwrap_or(0);
    most.max().unwrap_or(0).max(was).max(1) as f64 * 1.05
}

/// A distance of marks such that there are five at most: 1, 2 or 5, times a power of ten.
fn nice(most: f64) -> f64 {
    let power = 10_f64.powf((most / 5.0).log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    factors.into_iter().map(|factor| factor * power).find(|step| most / step <= 5.0).unwrap_or(most)
}

fn replica_steps(most: f64) -> Vec<f64> {
    let step = nice(most).max(1.0);
    (0..=5).map(|index| f64::from(index) * step).take_while(|value| *value <= most).collect()
}

/// Lines at values, with their numbers.
fn grid(marks: &mut Vec<Mark>, axes: Axes, values: &[f64]) {
    for value in values {
        let up = axes.up(*value);
        let at = vec![[LEFT, up - 0.5, WIDTH - LEFT - RIGHT, 1.0]];
        marks.push(Mark::Rects { ink: Ink::Grid, at });
        put(marks, Ink::Muted, [LEFT - 8.0, up + 4.0], SIZE - 1.0, Anchor::End, quantity(*value));
    }
}

/// A number in a few characters: `250`, `1.5k`, `0.2`.
fn quantity(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e4.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    // Of small numbers the digits that count.
    if text == "0" && value != 0.0 { format!("{value:.0e}") } else { format!("{text}{unit}") }
}

/// The load of the first metric.
fn load(marks: &mut Vec<Mark>, tried: &Tried, axes: impl Fn(f64) -> Axes) {
    let known = |one: &&Recording| one.slots.iter().flatten().count();
    let Some(recording) = tried.recordings.iter().max_by_key(known) else { return };
    let load = |slot: &Slot| slot.loads.first().copied().flatten();
    let most = slots(recording).filter_map(|(_, slot)| load(slot)).map(|(_, high)| high);
    let most = most.fold(0.0, f64::max).max(f64::MIN_POSITIVE) * 1.05;
    let axes = axes(most);
    let name = recording.metrics().first().map_or("load", |metric| metric_name(&metric.name));
    let name = within(&format!("Load ({name})"), SIZE, WIDTH / 2.0);
    put(marks, Ink::Muted, [LEFT, axes.top - 6.0], SIZE, Anchor::Start, name);
    low_confidence(marks, tried, axes);
    let mut steps: Vec<[f64; 3]> = Vec::new();
    let close = |marks: &mut Vec<Mark>, steps: &mut Vec<[f64; 3]>, end: f64| {
        if !steps.is_empty() {
            marks.push(Mark::Area { ink: Ink::Load, steps: std::mem::take(steps), end });
        }
    };
    for (time, slot) in slots(recording) {
        match load(slot) {
            Some((_, high)) => steps.push([axes.left(time), axes.up(high), axes.bottom()]),
            None => close(marks, &mut steps, axes.left(time)),
        }
    }
    close(marks, &mut steps, WIDTH - RIGHT);
    let step = nice(most);
    let values: Vec<f64> = (0..=5).map(|index| f64::from(index) * step).collect();
    let values: Vec<f64> = values.into_iter().filter(|value| *value <= most).step_by(2).collect();
    grid(marks, axes, &values);
}

/// The metric of a generated name, METRIC_HASH_NAMESPACE_AUTOSCALER, or the name as it is.
fn metric_name(name: &str) -> &str {
    let is_hash = |part: &str| part.len() == 12 && part.bytes().all(|b| b.is_ascii_hexdigit());
    let parts = name.match_indices('_').map(|(at, _)| at);
    let cut = parts.clone().zip(parts.skip(1)).find(|(start, end)| is_hash(&name[start + 1..*end]));
    cut.map_or(name, |(start, _)| &name[..start])
}

fn low_confidence(marks: &mut Vec<Mark>, tried: &Tried, axes: Axes) {
    let (mut at, mut end) = (Vec::new(), f64::NEG_INFINITY);
    for part in &tried.low_confidence {
        let [from, to] = [part.from, part.to].map(|time| axes.left((time * 1000.0) as i64));
        // Those within a pixel are one.
        if to <= end {
            continue;
        }
        end = to.max(from + 1.0);
        at.push([from, axes.top, (to - from).max(1.0), axes.height]);
    }
    if !at.is_empty() {
        marks.push(Mark::Rects { ink: Ink::Low, at });
    }
}

/// What the load needs, below the grid.
fn needed(marks: &mut Vec<Mark>, axes: Axes, recording: &Recording) {
    let steps = slots(recording).map(|(time, slot)| {
        [axes.left(time), axes.up(slot.needed.unwrap_or(0) as f64), axes.bottom()]
    });
    let steps = steps.collect();
    marks.push(Mark::Area { ink: Ink::Needed, steps, end: WIDTH - RIGHT });
}

/// What is short, wanted and ready.
fn lines(marks: &mut Vec<Mark>, axes: Axes, recording: &Recording, index: usize) {
    let line = |value: fn(&Slot) -> f64| {
        slots(recording).map(|(time, slot)| [axes.left(time), axes.up(value(slot))]).collect()
    };
    let end = WIDTH - RIGHT;
    let wanted = line(|slot| f64::from(slot.wanted));
    marks.push(Mark::Steps { ink: Ink::Wanted, steps: wanted, end, width: 1.0 });
    let ready = line(|slot| slot.ready as f64);
    marks.push(Mark::Steps { ink: Ink::Ready(index), steps: ready, end, width: 1.5 });
    let width = (WIDTH - LEFT - RIGHT) / recording.axis.slots as f64;
    let mut short = Vec::new();
    for (time, slot) in slots(recording).filter(|(_, slot)| slot.short > 0) {
        let left = axes.left(time);
        let [upper, lower] = [slot.ready as i64 + slot.short, slot.ready as i64];
        let [upper, lower] = [upper, lower].map(|value| axes.up(value as f64));
        let width = width.max(1.0).min(end - left);
        short.push([left, upper, width, (lower - upper).max(1.0)]);
        short.push([left, axes.bottom() - 4.0, width, 4.0]);
    }
    if !short.is_empty() {
        marks.push(Mark::Rects { ink: Ink::Short, at: short });
    }
}

/// What there was.
fn was(marks: &mut Vec<Mark>, axes: Axes, tried: &Tried, recording: &Recording) {
    let axis = recording.axis;
    let slots = tried.was_in_slots().into_iter().enumerate();
    let steps = slots.filter_map(|(index, replicas)| {
        let left = axes.left(axis.first + index as i64 * axis.width);
        Some([left, axes.up(replicas? as f64)])
    });
    let steps: Vec<[f64; 2]> = steps.collect();
    if !steps.is_empty() {
        marks.push(Mark::Steps { ink: Ink::Was, steps, end: WIDTH - RIGHT, width: 0.75 });
    }
}

/// The axis of time below all, with a line at each mark.
fn times(marks: &mut Vec<Mark>, axes: Axes) {
    let span = (axes.last - axes.first) / 1000;
    let step = STEPS.into_iter().find(|step| span / step <= 8).unwrap_or(STEPS[STEPS.len() - 1]);
    let mut second = axes.first.div_euclid(1000).div_euclid(step) * step;
    let mut last_day = None;
    while second * 1000 <= axes.last {
        if second * 1000 >= axes.first {
            let time = Timestamp::from_second(second).unwrap_or_default();
            let day = time.strftime("%-d %b").to_string();
            let is_new = last_day.replace(day.clone()).is_none_or(|last| last != day);
            let of_day = time.strftime("%H:%M").to_string();
            let left = axes.left(second * 1000);
            let top = axes.bottom();
            marks.push(Mark::Rects { ink: Ink::Muted, at: vec![[left - 0.5, top, 1.0, 5.0]] });
            let place = [left, top + 18.0];
            let text = match (step >= 86_400, is_new) {
                (true, _) => day,
                (false, true) => format!("{day} {of_day}"),
                (false, false) => of_day,
            };
            let wide = width(&text, SIZE - 1.0) * OTHER_FONTS / 2.0;
            let anchor = if left + wide > WIDTH - 2.0 { Anchor::End } else { Anchor::Middle };
            put(marks, Ink::Muted, place, SIZE - 1.0, anchor, text);
        }
        second += step;
    }
}

fn legend(marks: &mut Vec<Mark>, top: f64, has_was: bool) {
    let mut left = LEFT;
    for (ink, name) in [
        (Ink::Load, "load"),
        (Ink::Needed, "needed pods"),
        (Ink::Ready(0), "ready (a color each)"),
        (Ink::Wanted, "desired"),
        (Ink::Was, "there were"),
        (Ink::Short, "short: needed, but not ready"),
        (Ink::Low, "low confidence"),
    ] {
        if ink == Ink::Was && !has_was {
            continue;
        }
        let is_line = matches!(ink, Ink::Ready(_) | Ink::Wanted | Ink::Was);
        let height = if is_line { 2.5 } else { 10.0 };
        let at = vec![[left, top - 4.0 - height / 2.0, 16.0, height]];
        marks.push(Mark::Rects { ink, at });
        put(marks, Ink::Muted, [left + 22.0, top], SIZE - 1.0, Anchor::Start, name);
        left += 22.0 + width(name, SIZE - 1.0) * OTHER_FONTS + 16.0;
    }
}
