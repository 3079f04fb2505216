//! Parsers of flag values.

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
                "{level:?} is no level: {}, or a module's as in plimsoll::serve=debug was expected",
                LEVELS.join(", ")
            )),
        }
    };
    let parts: Result<Vec<String>, String> = text.split(',').map(str::trim).map(part).collect();
    parts.map(|parts| parts.join(","))
}

/// Parses a duration as Go writes it: `15s`, `5m0s`, `1h30m`, `250ms`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let expected = "a duration was expected, such as 250ms, 15s or 5m";
    let duration: jiff::SignedDuration = text.parse().map_err(|_| expected.to_owned())?;
    Duration::try_from(duration).map_err(|_| format!("{expected}; it can't be negative"))
}

/// Parses a time: RFC 3339, or Unix seconds.
pub fn time(text: &str) -> Result<jiff::Timestamp, String> {
    let expected = "a time was expected, such as 2026-11-02T08:00:00Z, or Unix seconds";
    let of_seconds = || jiff::Timestamp::from_second(text.parse().ok()?).ok();
    text.parse().ok().or_else(of_seconds).ok_or_else(|| expected.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_level_and_not_the_name_of_a_module() {
        assert_eq!(log_level("warning").as_deref(), Ok("warn"));
        assert_eq!(log_level("INFO, plimsoll=Warning").as_deref(), Ok("info,plimsoll=warn"));
        for wrong in ["verbose", "", "info,plimsoll", "plimsoll=loud"] {
            assert!(log_level(wrong).unwrap_err().contains("is no level"), "{wrong}");
        }
    }

    #[test]
    fn a_time_is_rfc_3339_or_unix_seconds() {
        let expected = jiff::Timestamp::from_second(1_793_606_400).unwrap();
        for text in ["2026-11-02T08:00:00Z", "2026-11-02T09:00:00+01:00", "1793606400"] {
            assert_eq!(time(text), Ok(expected), "{text}");
        }
        assert!(time("yesterday").unwrap_err().contains("such as"));
    }

    #[test]
    fn durations_are_written_as_in_go() {
        assert_eq!(duration("5m0s"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert!(duration("15").unwrap_err().contains("such as"));
        assert!(duration("-1s").unwrap_err().contains("negative"));
    }
}
