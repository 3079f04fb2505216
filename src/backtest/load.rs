//! The load of a workload over time.

use crate::time::UnixMillis;
use jiff::Timestamp;
use std::io::BufRead;

/// The most rows of a file: a point every second for two months.
const MAX_ROWS: usize = 5_000_000;
/// The most bytes of a row.
const MAX_ROW_BYTES: u64 = 1024;
/// The largest load: more is a mistake of a counter.
const MAX_VALUE: f64 = 1e18;
/// The times that are read, in ms: until the year 9999.
const MAX_TIME: f64 = 253_402_300_799_000.0;

/// The total load of a workload, in the unit of its metric: linear between rows, and unknown in gaps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    rows: Vec<Row>,
    /// When a gap before the first row begins, and when one after the last row ends, where there is one.
    ends: [Option<UnixMillis>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    time: UnixMillis,
    value: f64,
    /// The integral since the first row, in units times milliseconds. Gaps add nothing.
    integral: Sum,
    /// The length of all gaps since the first row, in ms.
    gaps: i64,
    /// Whether the load between the row before and this one is unknown.
    after_gap: bool,
}

/// A sum in twice the precision of a number, so that one that is far too large leaves the differences between later
/// sums what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    high: f64,
    low: f64,
}

impl Sum {
    /// Knuth's TwoSum: the error of the addition is kept.
    fn plus(self, value: f64) -> Self {
        let high = self.high + value;
        let added = high - self.high;
        let error = (self.high - (high - added)) + (value - added);
        Self { high, low: self.low + error }
    }

    fn minus(self, other: Self) -> f64 {
        (self.high - other.high) + (self.low - other.low)
    }
}

/// Why there is no load in a text.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line}: {what}")]
pub struct LoadError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what was expected.
    pub what: String,
}

impl Load {
    /// Reads rows of `time,value` under a header: Unix seconds, and the load at that time. A row without a value, or
    /// with `NaN`, stands in a gap, from the row before it to the one after it.
    ///
    /// # Errors
    /// If a row is no such row, times do not increase, or there are fewer than two rows with a value.
    pub fn read(mut text: impl BufRead) -> Result<Self, LoadError> {
        let (mut load, mut line_number, mut last) = (Self::default(), 0, None);
        loop {
            line_number += 1;
            let fail = |what: String| Err(LoadError { line: line_number, what });
            let mut line = String::new();
            let read = std::io::Read::take(&mut text, MAX_ROW_BYTES).read_line(&mut line);
            match read {
                Ok(0) => break,
                Err(error) => {
                    return fail(format!(
                        "{error}: the file is damaged, cut off, or has something after its end"
                    ));
                }
                Ok(read) if read as u64 == MAX_ROW_BYTES => {
                    return fail(format!("at most {MAX_ROW_BYTES} bytes were expected"));
                }
                Ok(_) => {}
            }
            let line = line.trim_start_matches('\u{feff}').trim();
            if line_number == 1 {
                if line != "time,value" {
                    return fail(format!("{line:?}: the header time,value was expected"));
                }
                continue;
            }
            if line.is_empty() {
                continue;
            }
            let Some((time, value)) = line.split_once(',') else {
                return fail(format!("{line:?}: time,value was expected, such as 1700000000,12.5"));
            };
            let time = match time.trim().parse::<f64>() {
                Ok(seconds) if (0.0..=MAX_TIME).contains(&(seconds * 1000.0)) => {
                    (seconds * 1000.0).round() as UnixMillis
                }
                _ => return fail(format!("{time:?}: a time in Unix seconds was expected")),
            };
            if last.replace(time).is_some_and(|last| last >= time) {
                return fail("its time is not later than that of the row before".to_owned());
            }
            let value = match value.trim() {
                "" => f64::NAN,
                text => match text.parse::<f64>() {
                    Ok(value) if value.is_nan() || (0.0..=MAX_VALUE).contains(&value) => value,
                    _ => {
                        return fail(format!(
                            "{text:?}: a load of 0 or more, at most {MAX_VALUE:e}, was expected"
                        ));
                    }
                },
            };
            if value.is_nan() {
                load.push_unknown(time);
                continue;
            }
            if load.rows.len() == MAX_ROWS {
                return fail(format!("at most {MAX_ROWS} rows were expected"));
            }
            load.push(time, value, false);
        }
        match load.rows.len() {
            0 | 1 => Err(LoadError {
                line: line_number,
                what: "at least two rows with a value were expected".to_owned(),
            }),
            _ => Ok(load),
        }
    }

    /// A load through these points, whose times increase. `after_gap` says that it is unknown since the point before.
    /// A value that is no load, or above 1e18, is unknown.
    pub fn of(points: impl IntoIterator<Item = (UnixMillis, f64, bool)>) -> Self {
        let mut load = Self::default();
        for (time, value, after_gap) in points {
            match (0.0..=MAX_VALUE).contains(&value) {
                true => load.push(time, value, after_gap),
                false => load.push_unknown(time),
            }
        }
        load
    }

    /// A time at which the load is unknown: so it is from the row before to the next one.
    fn push_unknown(&mut self, time: UnixMillis) {
        let [before, after] = &mut self.ends;
        match self.rows.is_empty() {
            true => *before = before.or(Some(time)),
            false => *after = Some(time),
        }
    }

    fn push(&mut self, time: UnixMillis, value: f64, after_gap: bool) {
        let after_gap = self.ends[1].take().is_some() || after_gap;
        let (mut integral, mut gaps, mut is_gap) = (Sum::default(), 0, false);
        if let Some(last) = self.rows.last() {
            let length = time - last.time;
            (integral, gaps, is_gap) = (last.integral, last.gaps, after_gap);
            match after_gap {
                true => gaps += length,
                false => integral = integral.plus(length as f64 * f64::midpoint(last.value, value)),
            }
        }
        self.rows.push(Row { time, value, integral, gaps, after_gap: is_gap });
    }

    /// The part from a time to another one, both included: of rows in it. Where it begins or ends in a gap, that is kept as
    /// one of its [ends](Self::unknown_ends).
    ///
    /// # Errors
    /// If fewer than two rows are in it.
    pub fn between(
        &self,
        from: Option<UnixMillis>,
        to: Option<UnixMillis>,
    ) -> Result<Self, String> {
        let [from, to] = [from.unwrap_or(UnixMillis::MIN), to.unwrap_or(UnixMillis::MAX)];
        let mut part = self.within(from, to);
        part.ends = self.ends_within(from, to);
        if part.rows.len() < 2 {
            let [first, last] = [self.first(), self.last()]
                .map(|time| Timestamp::from_second(time.div_euclid(1000)).unwrap_or_default());
            return Err(format!(
                "fewer than two rows are in that part: the load is from {first} to {last}"
            ));
        }
        Ok(part)
    }

    /// The rows from a time to another one, both included; none if none is.
    pub(super) fn within(&self, from: UnixMillis, to: UnixMillis) -> Self {
        let rows = self.rows.iter().filter(|row| (from..=to).contains(&row.time));
        Self::of(rows.map(|row| (row.time, row.value, row.after_gap)))
    }

    fn ends_within(&self, from: UnixMillis, to: UnixMillis) -> [Option<UnixMillis>; 2] {
        let first = self.rows.partition_point(|row| row.time < from);
        let next = self.rows.partition_point(|row| row.time <= to);
        let before = match first.checked_sub(1).and_then(|index| self.rows.get(index)) {
            Some(row) => self.rows.get(first).filter(|next| next.after_gap).map(|_| row.time),
            None => self.ends[0],
        };
        let after = match self.rows.get(next) {
            Some(row) => Some(row.time).filter(|_| row.after_gap),
            None => self.ends[1],
        };
        [before.map(|time| time.max(from)), after.map(|time| time.min(to))]
    }

    /// The time of the first row.
    pub fn first(&self) -> UnixMillis {
        self.rows.first().map_or(0, |row| row.time)
    }

    /// The time of the last row.
    pub fn last(&self) -> UnixMillis {
        self.rows.last().map_or(0, |row| row.time)
    }

    /// The points: time and load.
    pub fn points(&self) -> impl Iterator<Item = (UnixMillis, f64)> + '_ {
        self.rows.iter().map(|row| (row.time, row.value))
    }

    /// How far rows are apart usually, in ms: the median, gaps among them.
    pub fn usual_distance(&self) -> i64 {
        let mut distances: Vec<i64> =
            self.rows.windows(2).map(|rows| rows[1].time - rows[0].time).collect();
        let middle = distances.len() / 2;
        match distances.is_empty() {
            true => 0,
            false => *distances.select_nth_unstable(middle).1,
        }
    }

    /// The gaps: the times of the rows around each.
    pub fn gaps(&self) -> impl Iterator<Item = (UnixMillis, UnixMillis)> + '_ {
        let gaps = self.rows.windows(2).filter(|rows| rows[1].after_gap);
        gaps.map(|rows| (rows[0].time, rows[1].time))
    }

    /// The gaps before the first row and after the last one: each from a time to another one. They are of no run.
    pub fn unknown_ends(&self) -> impl Iterator<Item = (UnixMillis, UnixMillis)> {
        let [before, after] = self.ends;
        let before = before.map(|time| (time, self.first()));
        let after = after.map(|time| (self.last(), time));
        before.into_iter().chain(after).filter(|(from, to)| from < to)
    }

    /// What it adds up to between times that increase.
    pub fn areas(&self) -> Areas<'_> {
        Areas { cursor: self.cursor(), last: None }
    }

    /// Reads it at times that increase.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor { rows: &self.rows, end: 0 }
    }
}

/// Reads a load at times that increase.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    rows: &'a [Row],
    /// The first row that is not before the time that was asked for last.
    end: usize,
}

impl Cursor<'_> {
    /// The rows around a time: the last one that is not later, and the next one. A time that is a row's has this one
    /// twice.
    fn around(&mut self, time: UnixMillis) -> Option<(Row, Row)> {
        while self.rows.get(self.end).is_some_and(|row| row.time < time) {
            self.end += 1;
        }
        let end = *self.rows.get(self.end)?;
        if end.time == time {
            return Some((end, end));
        }
        (!end.after_gap).then(|| Some((*self.rows.get(self.end.checked_sub(1)?)?, end)))?
    }

    /// The load at a time; none outside of the rows and in a gap.
    pub fn at(&mut self, time: UnixMillis) -> Option<f64> {
        let (start, end) = self.around(time)?;
        Some(between(start, end, time))
    }

    /// The value of the last row that is not later than a time; none before the first one, and after a row for longer
    /// than this, in ms.
    pub fn held(&mut self, time: UnixMillis, longest: i64) -> Option<f64> {
        while self.rows.get(self.end).is_some_and(|row| row.time <= time) {
            self.end += 1;
        }
        let row = self.rows.get(self.end.checked_sub(1)?)?;
        (time - row.time < longest).then_some(row.value)
    }

    /// The integral since the first row until a time, and the gaps until then in ms; none in a gap.
    fn integral(&mut self, time: UnixMillis) -> Option<(Sum, i64)> {
        let (start, end) = self.around(time)?;
        let mean = f64::midpoint(start.value, between(start, end, time));
        Some((start.integral.plus((time - start.time) as f64 * mean), start.gaps))
    }
}

/// What a load adds up to between times that increase.
#[derive(Clone, Debug)]
pub struct Areas<'a> {
    cursor: Cursor<'a>,
    /// The time that was asked for before, the integral until then, and the length of the gaps.
    last: Option<(UnixMillis, Sum, i64)>,
}

impl Areas<'_> {
    /// The load times seconds since the last known time that was asked for, and in how many seconds of these it is known.
    /// None in a gap.
    pub fn until(&mut self, time: UnixMillis) -> Option<(f64, f64)> {
        let (sum, gaps) = self.cursor.integral(time)?;
        let (since, before, gaps_before) =
            self.last.replace((time, sum, gaps)).unwrap_or((time, sum, gaps));
        let known = time - since - (gaps - gaps_before);
        Some((sum.minus(before) / 1000.0, known as f64 / 1000.0))
    }
}

fn between(start: Row, end: Row, time: UnixMillis) -> f64 {
    if start.time == end.time {
        return start.value;
    }
    let share = (time - start.time) as f64 / (end.time - start.time) as f64;
    start.value + (end.value - start.value) * share
}

/// Means of a load over a window that moves on.
#[derive(Clone, Debug)]
pub struct Means<'a> {
    from: Cursor<'a>,
    to: Cursor<'a>,
    first: UnixMillis,
    window: i64,
}

impl<'a> Means<'a> {
    /// Means over a window, in ms, which is cut off at the first row.
    pub fn new(load: &'a Load, window: i64) -> Self {
        Self { from: load.cursor(), to: load.cursor(), first: load.first(), window }
    }

    /// The mean over the window that ends at a time, or the load there if nothing is in the window. None in a gap;
    /// what of the window is in a gap does not count.
    pub fn until(&mut self, time: UnixMillis) -> Option<f64> {
        let (until, gaps) = self.to.integral(time)?;
        let start = (time - self.window).max(self.first);
        if start >= time {
            return self.to.at(time);
        }
        let (since, start, gaps_before) = match self.from.integral(start) {
            Some((since, gaps_before)) => (since, start, gaps_before),
            // It begins in a gap, which ends at the next row.
            None => {
                let next = self.from.rows.get(self.from.end)?;
                (next.integral, next.time, next.gaps)
            }
        };
        let known = time - start - (gaps - gaps_before);
        if known <= 0 { self.to.at(time) } else { Some(until.minus(since) / known as f64) }
    }
}
