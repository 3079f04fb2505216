//! Numbers as Go writes them.

/// A value in a response of Prometheus.
pub(super) fn value(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 || !value.is_finite() || (1e-6..1e21).contains(&size) {
        return decimal(value);
    }
    let (digits, exponent) = shortest(value);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// A number without an exponent, with as few digits as tell it from all others.
pub(super) fn decimal(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    } else if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let text = value.to_string();
    // A number that ends with a one of so many binary digits after the point has as many decimal ones.
    let binary = fraction_bits(value);
    let fraction = text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let may_tie = if binary > 0 { binary == fraction as i32 + 1 } else { text.len() > 15 };
    if !may_tie {
        return text;
    }
    let (digits, exponent) = shortest(value);
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    let sign = if value.is_sign_negative() { "-" } else { "" };
    match usize::try_from(exponent) {
        Err(_) => {
            let zeros = "0".repeat(exponent.unsigned_abs() as usize - 1);
            format!("{sign}0.{zeros}{digits}")
        }
        Ok(exponent) if digits.len() > exponent + 1 => {
            let (whole, fraction) = digits.split_at(exponent + 1);
            format!("{sign}{whole}.{fraction}")
        }
        Ok(exponent) => format!("{sign}{digits:0<width$}", width = exponent + 1),
    }
}

/// How many binary digits a finite number has after the point; 0 or less if it is whole.
fn fraction_bits(value: f64) -> i32 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i32;
    let mantissa = value.to_bits() & MANTISSA | if exponent == 0 { 0 } else { MANTISSA + 1 };
    if mantissa == 0 { 0 } else { 1075 - exponent.max(1) - mantissa.trailing_zeros() as i32 }
}

/// The shortest digits (`-1.5`) that tell a finite number from all others, and their exponent. Of two that are
/// as near, Go takes the even ones and Rust the larger.
fn shortest(value: f64) -> (String, i32) {
    let split = |text: &str| -> (String, i32) {
        let (digits, exponent) = text.split_once('e').expect("`{:e}` writes an exponent");
        (digits.to_owned(), exponent.parse().expect("a number"))
    };
    let (digits, exponent) = split(&format!("{value:e}"));
    let fraction = digits.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    // Another digit, and so many that a number that ends there has only zeros after it.
    let (one_more, _) = split(&format!("{value:.0$e}", fraction + 1));
    let (many_more, _) = split(&format!("{value:.0$e}", fraction + 60));
    let is_tie = one_more.ends_with('5')
        && many_more.strip_prefix(&one_more).is_some_and(|rest| rest.bytes().all(|b| b == b'0'));
    let below = one_more[..one_more.len() - 1].trim_end_matches('.');
    let is_even = below.bytes().next_back().is_some_and(|digit| digit % 2 == 0);
    match is_tie && is_even {
        true => (below.to_owned(), exponent),
        false => (digits, exponent),
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
            (131_373_190_744_304.13, "131373190744304.12"),
            (-131_373_190_744_304.38, "-131373190744304.38"),
            (0.000_123_456_789_012_345_67, "0.00012345678901234567"),
            (123_456_789_012_345_680.0, "123456789012345680"),
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
