//! Parsers of flag values.

use crate::clock::WallClock;
use crate::k8s::Quantity;
use crate::time::UnixMillis;
use std::time::Duration;

/// Normalizes a log filter. A single word must be a level: as the name of a module, a misspelt
/// level would silence all other modules.
pub fn log_level(text: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let part = |part: &str| {
        let (module, level) = match part.rsplit_once('=') {
            Some((module, level)) => (format!("{module}="), level),
            None => (String::new(), part),
        };
        let level = match level.to_ascii_lowercase() {
            other if other == "warning" => "warn".to_owned(),
            other => other,
        };
        match LEVELS.contains(&level.as_str()) {
            true => Ok(module + &level),
            false => Err(format!(
                "{level:?} is not a log level: {} was expected, also by module (plimsoll::serve=debug)",
                LEVELS.join(", ")
            )),
        }
    };
    let parts: Result<Vec<String>, String> = text.split(',').map(str::trim).map(part).collect();
    parts.map(|parts| parts.join(","))
}

/// Parses a duration as Go writes it, or whole days or weeks: `15s`, `5m0s`, `1h30m`, `250ms`, `7d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let expected = "a duration was expected, such as 250ms, 15s or 5m";
    if let Some(days) = days(text) {
        return Ok(days);
    }
    let duration: jiff::SignedDuration = text.parse().map_err(|_| expected.to_owned())?;
    Duration::try_from(duration).map_err(|_| format!("{expected}; it can't be negative"))
}

/// Parses kubectl's `--request-timeout`: a duration, or seconds; 0 is none.
pub fn request_timeout(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_secs).or_else(|_| duration(text))
}

/// Parses the period of decisions.
pub fn period(text: &str) -> Result<Duration, String> {
    let period = duration(text)?;
    match period >= Duration::from_secs(1) {
        true => Ok(period),
        false => Err("at least 1s was expected".to_owned()),
    }
}

/// Parses a number above 0, which may be a quantity: `100`, `0.25`, `250m`.
pub fn above_zero(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().or_else(|| text.parse().ok().map(Quantity::as_f64));
    number
        .filter(|number: &f64| number.is_finite() && *number > 0.0)
        .ok_or_else(|| "a number above 0 was expected, such as 100 or 250m".to_owned())
}

/// Parses a number of 0 or more, which may have a percent sign: `8`, `7.5%`.
pub fn at_least_zero(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
    number
        .filter(|number: &f64| number.is_finite() && *number >= 0.0)
        .ok_or_else(|| "a number of 0 or more was expected, such as 8".to_owned())
}

/// Parses a ratio of 0 or more: `0.1`.
pub fn ratio(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "a ratio of 0 or more was expected, such as 0.1".to_owned())
}

/// Whole days or weeks of 24 hours each, as Prometheus has them: `7d`, `2w`.
fn days(text: &str) -> Option<Duration> {
    let (number, days) = match text.strip_suffix('d') {
        Some(number) => (number, 1),
        None => (text.strip_suffix('w')?, 7),
    };
    let hours = number.parse::<u32>().ok()?.checked_mul(24 * days)?;
    Some(Duration::from_secs(u64::from(hours) * 3_600))
}

/// Parses a name and a text: `METRIC=PROMQL`.
pub fn named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("NAME=VALUE was expected".to_owned()),
    }
}

/// Parses a label: `code=200`, or `code=` for an empty one.
pub fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("NAME=VALUE was expected".to_owned()),
    }
}

/// A quantity above 0, as it is written.
pub fn positive_quantity(text: &str) -> Result<String, String> {
    text.parse()
        .ok()
        .filter(|quantity: &Quantity| quantity.as_f64() > 0.0)
        .map(|_| text.to_owned())
        .ok_or_else(|| "a quantity above 0 was expected, such as 100 or 500m".to_owned())
}

/// Parses a name and a number above 0, which may be a quantity: `cpu=500m`.
pub fn named_quantity(text: &str) -> Result<(String, f64), String> {
    let (name, value) = named(text)?;
    Ok((name, above_zero(&value)?))
}

/// Parses the address of a Prometheus: `http://prometheus:9090`.
pub fn server_url(text: &str) -> Result<String, String> {
    let is_http = |url: reqwest::Url| matches!(url.scheme(), "http" | "https");
    match text.parse().is_ok_and(is_http) {
        true => Ok(text.to_owned()),
        false => Err("http:// or https:// was expected, as in http://prometheus:9090".to_owned()),
    }
}

/// A point in time as a user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A time.
    At(UnixMillis),
    /// A duration ago, in ms.
    Ago(i64),
}

impl Moment {
    /// The time that it is, at another.
    pub fn before(self, now: UnixMillis) -> UnixMillis {
        match self {
            Self::At(time) => time,
            Self::Ago(ms) => now.saturating_sub(ms),
        }
    }
}

/// Parses a time in RFC 3339, a date or Unix seconds, or a duration ago: `2026-11-24T03:05:10Z`, `2026-11-24`, `1795489510`,
/// `-2h`, `2h`.
pub fn moment(text: &str) -> Result<Moment, String> {
    let expected = || {
        let expected =
            "a time was expected, such as 2026-11-24T03:05:10Z, or a duration ago, such as -2h";
        let meant = in_utc(text).map(|time| format!("; {time} is that time in UTC"));
        format!("{expected}{}", meant.unwrap_or_default())
    };
    // The begin of a day in UTC, and no time of a zone that is not said.
    let date = || {
        let date: jiff::civil::Date = text.parse().ok().filter(|_| text.len() == 10)?;
        Some(date.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    };
    let of_seconds = || jiff::Timestamp::from_second(text.parse().ok()?).ok();
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let time = text.parse().ok().or_else(date).or_else(|| of_seconds().filter(|_| is_number));
    if let Some(time) = time {
        return Ok(Moment::At(time.as_millisecond()));
    }
    // A time of the day is no duration.
    let ago = Some(text).filter(|text| !text.contains(':')).ok_or_else(expected)?;
    let ago = duration_back(ago).map_err(|_| expected())?;
    i64::try_from(ago.as_millis()).map(Moment::Ago).map_err(|_| expected())
}

/// A time without a zone, of a day or of today, as one in UTC.
fn in_utc(text: &str) -> Option<jiff::Timestamp> {
    let today = || {
        let time: jiff::civil::Time = text.parse().ok()?;
        Some(
            WallClock::default()
                .timestamp()
                .to_zoned(jiff::tz::TimeZone::UTC)
                .date()
                .to_datetime(time),
        )
    };
    let time = text.parse::<jiff::civil::DateTime>().ok().or_else(today)?;
    Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
}

/// Parses a duration that goes back, with or without its sign: `24h`, `-24h`.
pub fn duration_back(text: &str) -> Result<Duration, String> {
    duration(text.strip_prefix('-').unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_level_and_not_the_name_of_a_module() {
        assert_eq!(log_level("warning").as_deref(), Ok("warn"));
        assert_eq!(log_level("INFO, plimsoll=Warning").as_deref(), Ok("info,plimsoll=warn"));
        for wrong in ["verbose", "", "info,plimsoll", "plimsoll=loud"] {
            assert!(log_level(wrong).unwrap_err().contains("is not a log level"), "{wrong}");
        }
    }

    #[test]
    fn a_moment_is_a_time_or_a_duration_ago() {
        for text in ["-2h", "2h", "-120m"] {
            assert_eq!(moment(text), Ok(Moment::Ago(7_200_000)), "{text}");
        }
        assert_eq!(moment("7d"), moment("-168h"));
        assert_eq!(moment("1970-01-02"), Ok(Moment::At(86_400_000)));
        assert_eq!(moment("1970-01-01T00:01:00Z"), Ok(Moment::At(60_000)));
        assert_eq!(moment("60"), Ok(Moment::At(60_000)));
        assert_eq!(moment("1970-01-01T01:01:00.5+01:00"), Ok(Moment::At(60_500)));
        assert_eq!(moment("-90s").map(|moment| moment.before(100_000)), Ok(10_000));
        for wrong in ["yesterday", "12:30:00", "--2h", "2026-11-24T03:05:10", "-60", "2026-13-01"] {
            assert!(moment(wrong).unwrap_err().contains("such as -2h"), "{wrong}");
        }
        for without_zone in ["2026-11-24 14:05", "2026-11-24T14:05:00"] {
            let error = moment(without_zone).unwrap_err();
            assert!(error.ends_with("; 2026-11-24T14:05:00Z is that time in UTC"), "{error}");
        }
        assert!(moment("14:05").unwrap_err().ends_with("T14:05:00Z is that time in UTC"));
    }

    #[test]
    fn an_address_of_prometheus_has_a_scheme() {
        assert_eq!(server_url("http://prom:9090/x").as_deref(), Ok("http://prom:9090/x"));
        for wrong in ["prom:9090", "ftp://prom", "prom", "http://", ""] {
            assert!(server_url(wrong).unwrap_err().contains("http:// or https://"), "{wrong}");
        }
    }

    #[test]
    fn what_a_pod_carries_is_a_number_above_zero() {
        assert_eq!(above_zero("100"), Ok(100.0));
        assert_eq!(above_zero("0.25"), above_zero("250m"));
        assert_eq!(above_zero("1e3"), above_zero("1k"));
        for wrong in ["0", "-1", "NaN", "inf", "", "80%"] {
            assert!(above_zero(wrong).unwrap_err().contains("above 0"), "{wrong}");
        }
    }

    #[test]
    fn limits_are_numbers_of_zero_or_more() {
        assert_eq!((at_least_zero("10%"), at_least_zero("0")), (Ok(10.0), Ok(0.0)));
        for wrong in ["-1", "nan", "inf", "", "%"] {
            assert!(at_least_zero(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_are_written_as_in_go() {
        assert_eq!(duration("5m0s"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(period("1s"), Ok(Duration::from_secs(1)));
        assert!(period("0s").unwrap_err().contains("at least 1s"));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("7d"), duration("168h"));
        assert_eq!(duration("2w"), duration("14d"));
        assert!(duration("15").unwrap_err().contains("such as"));
        assert!(duration("-1s").unwrap_err().contains("negative"));
        assert_eq!(duration_back("-7d"), duration_back("7d"));
        assert!(duration_back("--7d").is_err() && duration_back("-7").is_err());
    }
}
