//! Cron expressions of five fields, in local time.

use jiff::ToSpan;
use jiff::civil::{Date, DateTime, Weekday, date};

/// The months until the calendar repeats, weekdays included. A date that these lack never occurs.
const REPEATS: usize = 400 * 12;
/// Days 1 to 31.
const ALL_DAYS: u32 = 0xffff_fffe;
const ALL_WEEKDAYS: u8 = 0x7f;
const MACROS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// A cron expression: `minute hour day-of-month month day-of-week`, or a macro such as `@daily`.
///
/// Its occurrences are minutes of local time; [`Zone`](super::zone::Zone) says which instants
/// they are. Two expressions of the same minutes are equal, however they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cron {
    /// Bit n is minute n.
    minutes: u64,
    /// Bit n is hour n.
    hours: u32,
    /// Bit n is day n of the month.
    days: u32,
    /// Bit n is month n; January is 1.
    months: u16,
    /// Bit n is weekday n; Sunday is 0.
    weekdays: u8,
    /// Whether a day needs only one of the day of the month and the day of the week.
    either_day: bool,
}

/// Whether a field of the day takes any, so that the other one alone decides. `*/2` does not, as for
/// the CronJobs of Kubernetes.
fn is_any(field: &str) -> bool {
    matches!(field, "*" | "*/1")
}

/// What a field takes.
struct Field {
    name: &'static str,
    min: u8,
    max: u8,
    /// The names of the values from `min` on.
    names: &'static [&'static str],
}

const MINUTE: Field = Field { name: "minute", min: 0, max: 59, names: &[] };
const HOUR: Field = Field { name: "hour", min: 0, max: 23, names: &[] };
const DAY: Field = Field { name: "day of month", min: 1, max: 31, names: &[] };
const MONTH: Field = Field {
    name: "month",
    min: 1,
    max: 12,
    names: &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
};
const WEEKDAY: Field = Field {
    name: "day of week",
    min: 0,
    max: 7,
    names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
};

impl Cron {
    /// Reads an expression. The error says what is wrong with it and what would be right.
    ///
    /// A day matches either of day-of-month and day-of-week if both are restricted, as in every cron;
    /// `*/2` is a restriction, as for the CronJobs of Kubernetes.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim_ascii();
        if let Some(zone) = text.strip_prefix("CRON_").unwrap_or(text).strip_prefix("TZ=") {
            let zone = zone.split_ascii_whitespace().next().unwrap_or("Europe/Berlin");
            return Err(format!("the time zone belongs in timeZone, as in timeZone: {zone}"));
        }
        if text.starts_with('@') {
            let known = MACROS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
            let Some((_, expression)) = known else {
                let names = MACROS.map(|(name, _)| name).join(", ");
                return Err(format!(
                    "expected one of {names}, or five fields as in 0 8 * * MON-FRI"
                ));
            };
            return Self::parse(expression);
        }
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let &[minute, hour, day, month, weekday] = &fields[..] else {
            return Err(format!(
                "{} fields, expected five, without seconds: minute hour day-of-month month \
                 day-of-week, as in 0 8 * * MON-FRI",
                fields.len()
            ));
        };
        let weekdays = WEEKDAY.parse(weekday)?;
        let cron = Self {
            minutes: MINUTE.parse(minute)?,
            hours: bits(HOUR.parse(hour)?),
            days: bits(DAY.parse(day)?),
            months: bits(MONTH.parse(month)?),
            // Sunday is 0 and 7.
            weekdays: bits((weekdays | weekdays >> 7) & u64::from(ALL_WEEKDAYS)),
            either_day: !is_any(day) && !is_any(weekday),
        };
        if cron.at_or_after(date(2000, 1, 1).at(0, 0, 0, 0)).is_none() {
            return Err("it has no occurrence, as no such day is in the calendar".to_owned());
        }
        Ok(cron.canonical())
    }

    /// The same with one form for all ways to write every day.
    fn canonical(self) -> Self {
        match self.either_day && (self.days == ALL_DAYS || self.weekdays == ALL_WEEKDAYS) {
            true => Self { days: ALL_DAYS, weekdays: ALL_WEEKDAYS, either_day: false, ..self },
            false => self,
        }
    }

    /// The last occurrence until a local time, that time included.
    pub(super) fn at_or_before(&self, at: DateTime) -> Option<DateTime> {
        let (mut year, mut month) = (at.year(), at.month());
        let days = self.days_of(year, month);
        if days & 1 << at.day() != 0
            && let Some((hour, minute)) = self.time_until(at.hour(), at.minute())
        {
            return Some(at.date().at(hour, minute, 0, 0));
        }
        let mut days = days & ((1 << at.day()) - 1);
        for _ in 0..=REPEATS {
            if let Some(day) = highest(days.into()) {
                let time = (highest(self.hours.into())?, highest(self.minutes)?);
                return Some(Date::new(year, month, day).ok()?.at(time.0, time.1, 0, 0));
            }
            (year, month) = if month == 1 { (year - 1, 12) } else { (year, month - 1) };
            days = self.days_of(year, month);
        }
        None
    }

    /// The first occurrence from a local time on, that time included.
    pub(super) fn at_or_after(&self, at: DateTime) -> Option<DateTime> {
        // Occurrences are whole minutes.
        let is_whole = at.second() == 0 && at.subsec_nanosecond() == 0;
        let at = if is_whole { at } else { at.checked_add(1.minute()).ok()? };
        let (mut year, mut month) = (at.year(), at.month());
        let days = self.days_of(year, month);
        if days & 1 << at.day() != 0
            && let Some((hour, minute)) = self.time_from(at.hour(), at.minute())
        {
            return Some(at.date().at(hour, minute, 0, 0));
        }
        let mut days = days & (!1 << at.day());
        for _ in 0..=REPEATS {
            if let Some(day) = lowest(days.into()) {
                let time = (lowest(self.hours.into())?, lowest(self.minutes)?);
                return Some(Date::new(year, month, day).ok()?.at(time.0, time.1, 0, 0));
            }
            (year, month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
            days = self.days_of(year, month);
        }
        None
    }

    /// The first occurrence after a local time.
    pub(super) fn after(&self, at: DateTime) -> Option<DateTime> {
        self.at_or_after(at.checked_add(1.nanosecond()).ok()?)
    }

    /// The days of a month, bit n for day n; none if the month is out of the calendar's range.
    fn days_of(&self, year: i16, month: i8) -> u32 {
        if self.months & 1 << month == 0 {
            return 0;
        }
        let Ok(first) = Date::new(year, month, 1) else { return 0 };
        let week = u64::from(self.weekdays);
        let weeks = week | week << 7 | week << 14 | week << 21 | week << 28 | week << 35;
        let by_weekday = bits::<u32>(weeks >> sunday_zero(first.weekday()) & 0x7fff_ffff) << 1;
        let days = if self.either_day { self.days | by_weekday } else { self.days & by_weekday };
        days & bits::<u32>((2_u64 << first.days_in_month()) - 2)
    }

    /// The last time of a day until this one.
    fn time_until(&self, hour: i8, minute: i8) -> Option<(i8, i8)> {
        if self.hours & 1 << hour != 0
            && let Some(minute) = highest(self.minutes & ((2 << minute) - 1))
        {
            return Some((hour, minute));
        }
        Some((highest((self.hours & ((1 << hour) - 1)).into())?, highest(self.minutes)?))
    }

    /// The first time of a day from this one on.
    fn time_from(&self, hour: i8, minute: i8) -> Option<(i8, i8)> {
        if self.hours & 1 << hour != 0
            && let Some(minute) = lowest(self.minutes & (u64::MAX << minute))
        {
            return Some((hour, minute));
        }
        Some((lowest((self.hours & (!1 << hour)).into())?, lowest(self.minutes)?))
    }
}

impl Field {
    /// The values of a field as bits.
    fn parse(&self, text: &str) -> Result<u64, String> {
        text.split(',').try_fold(0, |bits, part| Ok(bits | self.part(part)?))
    }

    /// The values of one entry of a list.
    fn part(&self, text: &str) -> Result<u64, String> {
        let Self { name, min, max, .. } = *self;
        let (range, step) = match text.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (text, None),
        };
        let (first, last) = match range.split_once('-') {
            // Day 7 is day 0.
            _ if range == "*" => (min, if max == 7 { 6 } else { max }),
            Some((first, last)) => (self.value(first)?, self.value(last)?),
            None if step.is_none() => {
                let value = self.value(range)?;
                (value, value)
            }
            None => {
                return Err(format!(
                    "{name} {text:?} has a step without a range, expected such as {}-{max}/2 or */2",
                    self.value(range)?
                ));
            }
        };
        if first > last {
            let sunday = if max == 7 && last == 0 { "; Sunday is also 7" } else { "" };
            return Err(format!("{name} {range} is a range that ends before it starts{sunday}"));
        }
        let step = match step.map(|step| number(step).filter(|&step| step > 0)) {
            None => 1,
            Some(Some(step)) => step,
            Some(None) => {
                return Err(format!(
                    "{name} {text:?} has a step that is not a number from 1 to 99"
                ));
            }
        };
        Ok((first..=last).step_by(step.into()).fold(0, |bits, value| bits | 1 << value))
    }

    fn value(&self, text: &str) -> Result<u8, String> {
        let Self { name, min, max, names } = *self;
        let named = names.iter().zip(min..).find(|(name, _)| name.eq_ignore_ascii_case(text));
        let value = named.map(|(_, value)| value).or_else(|| number(text));
        value.filter(|value| (min..=max).contains(value)).ok_or_else(|| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let quoted = if is_number { text.to_owned() } else { format!("{text:?}") };
            match (names.first(), names.last()) {
                (Some(first), Some(last)) if !is_number => {
                    format!("{name} {quoted} is not in {min}-{max} or {first}-{last}")
                }
                _ => format!("{name} {quoted} is not in {min}-{max}"),
            }
        })
    }
}

/// A number of one or two digits.
fn number(text: &str) -> Option<u8> {
    let is_number = matches!(text.len(), 1 | 2) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// The same bits in a narrower type.
fn bits<T: TryFrom<u64> + Default>(bits: u64) -> T {
    // Each field keeps its bits within its type.
    T::try_from(bits).unwrap_or_default()
}

fn highest(bits: u64) -> Option<i8> {
    i8::try_from(bits.checked_ilog2()?).ok()
}

fn lowest(bits: u64) -> Option<i8> {
    i8::try_from(bits.trailing_zeros()).ok().filter(|_| bits != 0)
}

fn sunday_zero(weekday: Weekday) -> i8 {
    weekday.to_sunday_zero_offset()
}
