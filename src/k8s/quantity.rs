//! Kubernetes quantities (`100m`, `1.5Gi`, `2e3`), exact to one billionth.
//!
//! Source of the rules: `k8s.io/apimachinery/pkg/api/resource`.

use std::fmt;

/// Billionths per unit.
const NANO: i128 = 1_000_000_000;
/// Billionths per thousandth.
const NANO_PER_MILLI: i128 = 1_000_000;

/// A fixed-point number in billionths of a unit.
///
/// Bounds: about +-1.7e29 units; larger values saturate. An input finer than
/// one billionth is rounded away from zero, as upstream does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Quantity(i128);

/// Why a text is not a quantity.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} is not a quantity: a number with an optional suffix was expected, such as 100m, 2, 1.5k, 64Mi or 1e3"
)]
pub struct ParseQuantityError(String);

impl Quantity {
    /// A quantity of so many thousandths.
    pub const fn from_milli(milli: i64) -> Self {
        Self(milli as i128 * NANO_PER_MILLI)
    }

    /// The nearest quantity to a float, or none for NaN and the infinities.
    pub fn from_f64(value: f64) -> Option<Self> {
        value.is_finite().then(|| Self((value * NANO as f64).round() as i128))
    }

    /// Thousandths, rounded away from zero (upstream's `MilliValue`).
    ///
    /// A value that does not fit in 64 bits is converted as upstream does, as
    /// decisions depend on the result: 0 for a number of at most 18 decimal digits (`9E`), otherwise
    /// the low 64 bits.
    pub fn milli(self) -> i64 {
        let whole = self.0 / NANO_PER_MILLI;
        let milli = whole + (self.0 % NANO_PER_MILLI).signum();
        i64::try_from(milli).unwrap_or_else(|_| {
            let mut digits = self.0;
            while digits % 10 == 0 {
                digits /= 10;
            }
            if digits.abs() < 1_000_000_000_000_000_000 { 0 } else { milli as i64 }
        })
    }

    /// The nearest float (upstream's `AsApproximateFloat64`).
    pub fn as_f64(self) -> f64 {
        if self.0 % NANO == 0 { (self.0 / NANO) as f64 } else { self.0 as f64 / NANO as f64 }
    }

    /// Whether this is more than zero.
    pub const fn is_positive(self) -> bool {
        self.0 > 0
    }

    /// The canonical text with binary suffixes (`Ki`, `Mi`), where the value is a
    /// whole number of at least 1024; else as [`fmt::Display`] writes it.
    pub fn to_binary_si(self) -> String {
        let whole = self.0 / NANO;
        if self.0 % NANO != 0 || whole.abs() < 1024 {
            return self.to_string();
        }
        let (mut number, mut power) = (whole, 0);
        while number % 1024 == 0 && power < 6 {
            number /= 1024;
            power += 1;
        }
        format!("{number}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power])
    }
}

/// The sum, saturating.
impl std::ops::Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// The canonical text with decimal suffixes: no fraction, the largest suffix
/// that keeps the number whole.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        let (mut number, mut power) = (self.0, 0);
        if number == 0 {
            return f.write_str("0");
        }
        while number % 1000 == 0 && power < SUFFIXES.len() - 1 {
            number /= 1000;
            power += 1;
        }
        write!(f, "{number}{}", SUFFIXES[power])
    }
}

impl std::str::FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, ParseQuantityError> {
        parse(text).ok_or_else(|| ParseQuantityError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Quantity> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (decimal_exponent, binary_exponent) = parse_suffix(suffix)?;

    let mut mantissa: i128 = 0;
    let mut exponent = decimal_exponent + 9;
    let mut lost = false;
    for (index, digit) in whole.bytes().chain(fraction.bytes()).enumerate() {
        match mantissa.checked_mul(10).and_then(|m| m.checked_add((digit - b'0').into())) {
            Some(next) if next < i128::MAX >> 70 => {
                mantissa = next;
                exponent -= i32::from(index >= whole.len());
            }
            _ => {
                lost |= digit != b'0';
                exponent += i32::from(index < whole.len());
            }
        }
    }
    mantissa = mantissa.checked_mul(1 << binary_exponent)?;
    let mut nano = mantissa;
    while exponent > 0 && nano != 0 {
        nano = nano.saturating_mul(10);
        exponent -= 1;
    }
    while exponent < 0 && nano != 0 {
        lost |= nano % 10 != 0;
        nano /= 10;
        exponent += 1;
    }
    nano = nano.saturating_add(lost.into());
    Some(Quantity(if negative { -nano } else { nano }))
}

/// The powers of ten and of two that a suffix stands for.
fn parse_suffix(suffix: &str) -> Option<(i32, u32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            (exponent.clamp(-60, 60), 0)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn a_quantity_becomes_milli_units_rounded_away_from_zero() {
        for (text, milli) in [
            ("0", 0),
            ("1n", 1),
            ("-1n", -1),
            ("1", 1000),
            ("2500m", 2500),
            ("1.5", 1500),
            (".5", 500),
            ("1k", 1_000_000),
            ("1Ki", 1_024_000),
            ("1.5Gi", 1_610_612_736_000),
            ("1e3", 1_000_000),
            ("1E3", 1_000_000),
            ("9E", 0),
            ("9Ei", ((9_i128 * 1000) << 60) as i64),
            ("0.00000000001", 1),
        ] {
            assert_eq!(q(text).milli(), milli, "{text}");
        }
    }

    #[test]
    fn a_quantity_is_written_in_its_canonical_form() {
        for (text, canonical) in [
            ("0.0", "0"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("2000", "2k"),
            ("1.25", "1250m"),
            ("-3000", "-3k"),
            ("1u", "1u"),
        ] {
            assert_eq!(q(text).to_string(), canonical);
        }
        assert_eq!(q("64Mi").to_binary_si(), "64Mi");
        assert_eq!(q("1000").to_binary_si(), "1k");
        assert_eq!(q("1500m").to_binary_si(), "1500m");
        assert_eq!(q("1025").to_binary_si(), "1025");
    }

    #[test]
    fn what_is_no_number_is_refused_with_what_would_be_right() {
        for text in ["", "-", "abc", "1x", "1.2.3", "1ki", "1e", "--1", "NaN"] {
            let error = text.parse::<Quantity>().unwrap_err().to_string();
            assert!(error.contains("is not a quantity"), "{text}: {error}");
        }
        assert_eq!(Quantity::from_f64(f64::NAN), None);
        assert_eq!(Quantity::from_f64(f64::INFINITY), None);
        assert_eq!(Quantity::from_f64(0.25).unwrap().to_string(), "250m");
    }
}
