//! Numbers as Go writes them.

/// A value in a response of Prometheus.
pub(super) fn value(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 || !value.is_finite() || (1e-6..1e21).contains(&size) {
        return decimal(value);
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').expect("`{:e}` writes an exponent");
    match exponent.strip_prefix('-') {
        Some(exponent) => format!("{digits}e-{exponent:0>2}"),
        None => format!("{digits}e+{exponent:0>2}"),
    }
}

/// A number without an exponent, with as few digits as tell it from all others.
pub(super) fn decimal(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
    } else {
        value.to_string()
    }
}

/// A time in Unix ms as seconds.
pub(super) fn seconds(at: i64) -> String {
    let sign = if at < 0 { "-" } else { "" };
    let at = at.unsigned_abs();
    match at % 1000 {
        0 => format!("{sign}{}", at / 1000),
        fraction => format!("{sign}{}.{fraction:03}", at / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_go_writes_them() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e-6, "0.000001"),
            (9.5e-7, "9.5e-07"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (-1.5e300, "-1.5e+300"),
            (5e-324, "5e-324"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            assert_eq!(value(number), text);
        }
        assert_eq!(
            (seconds(1_500), seconds(2_000), seconds(7)),
            ("1.500".into(), "2".into(), "0.007".into())
        );
    }
}
