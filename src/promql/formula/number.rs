//! The numbers and the conditions of a formula, as PromQL.

use std::collections::BTreeSet;

/// A number: a scalar, or an instant vector of one series without labels.
#[derive(Clone, Default)]
pub struct Number<'a> {
    pub text: String,
    /// Whether the text is enclosed where it is an operand.
    pub open: bool,
    /// Whether it is a scalar.
    pub scalar: bool,
    /// Whether it is an int to expr, for certain.
    pub int: bool,
    /// Whether expr has nil here, not an error, while triggers have no value.
    pub nullable: bool,
    /// The triggers that must have a value.
    pub reads: BTreeSet<&'a str>,
    /// Those of them without which the vector is empty, for certain.
    pub proves: BTreeSet<&'a str>,
}

impl<'a> Number<'a> {
    /// A number that is written in the formula.
    pub fn literal(value: f64, int: bool) -> Self {
        let text = format!("{value:?}");
        let text = text.strip_suffix(".0").unwrap_or(&text).to_owned();
        Self { text, scalar: true, int, ..Self::default() }
    }

    /// The text as an operand.
    pub fn atom(&self) -> String {
        if self.open { format!("({})", self.text) } else { self.text.clone() }
    }

    pub fn vector(&self) -> Self {
        if !self.scalar {
            return self.clone();
        }
        let text = format!("vector({})", self.text);
        Self { text, open: false, scalar: false, ..self.clone() }
    }

    /// Whether it is an int that is written in the formula, other than 0.
    pub fn is_some_int(&self) -> bool {
        self.int && self.text.parse().is_ok_and(|value: f64| value > 0.0)
    }

    /// Another vector that is empty if this one is.
    pub fn with(&self, text: String, open: bool) -> Self {
        Self { text, open, scalar: false, int: false, nullable: false, ..self.clone() }
    }

    pub fn negated(&self) -> Self {
        let text = format!("-{}", self.atom());
        Self { text, open: true, nullable: false, ..self.clone() }
    }

    /// An arithmetic operator or a comparison.
    pub fn binary(&self, operator: &str, right: &Self, int: bool) -> Self {
        Self {
            text: format!("{} {operator} {}", self.atom(), right.atom()),
            open: true,
            scalar: self.scalar && right.scalar,
            int,
            nullable: false,
            reads: &self.reads | &right.reads,
            proves: &self.proves | &right.proves,
        }
    }

    /// This number, or another one if it has no value.
    pub fn or_else(&self, other: &Self) -> Self {
        Self {
            text: format!("{} or {}", self.atom(), other.vector().atom()),
            open: true,
            nullable: other.nullable,
            ..Self::default()
        }
    }

    /// Calls a function of an instant vector.
    pub fn called(&self, function: &str) -> Self {
        let vector = self.vector();
        vector.with(format!("{function}({})", vector.text), false)
    }

    /// Calls a function of the absolute value: PromQL has no truncation, and rounds -0.5 to 0.
    pub fn called_without_sign(&self, function: &str) -> Self {
        let sign = self.called("sgn");
        sign.binary("*", &self.called("abs").called(function), false)
    }

    /// Calls `clamp_min` or another function of an instant vector and scalars.
    pub fn clamped(&self, function: &str, limits: &[&Self]) -> Self {
        let mut clamped = self.vector();
        for limit in limits {
            let text = &limit.text;
            // scalar() of an empty vector is NaN: the result does not prove the triggers of a limit.
            clamped.text +=
                &if limit.scalar { format!(", {text}") } else { format!(", scalar({text})") };
            clamped.reads.extend(&limit.reads);
        }
        clamped.with(format!("{function}({})", clamped.text), false)
    }
}

/// A condition.
#[derive(Clone)]
pub struct Condition<'a> {
    /// 1 if it is true, 0 if it is false.
    pub number: Number<'a>,
    /// A vector that is empty unless it is true, as an operand.
    yes: String,
    /// A vector that is empty unless it is false, as an operand.
    no: String,
}

impl<'a> Condition<'a> {
    /// A comparison.
    pub fn compare(left: &Number<'a>, operator: &str, right: &Number<'a>) -> Self {
        let inverse = match operator {
            "==" => "!=",
            "!=" => "==",
            "<" => ">=",
            "<=" => ">",
            ">" => "<=",
            _ => "<",
        };
        let filtered = if right.scalar { left.vector() } else { left.clone() };
        Self {
            number: left.binary(&format!("{operator} bool"), right, true),
            yes: filtered.binary(operator, right, false).atom(),
            no: filtered.binary(inverse, right, false).atom(),
        }
    }

    pub fn negated(self) -> Self {
        let one = Number::literal(1.0, true);
        Self { number: one.binary("-", &self.number, true), yes: self.no, no: self.yes }
    }

    pub fn and(&self, other: &Self) -> Self {
        let number = self.number.binary("*", &other.number, true);
        Self {
            yes: format!("({} and {})", self.yes, other.yes),
            no: format!("({} == 0)", number.vector().atom()),
            number,
        }
    }

    pub fn or(&self, other: &Self) -> Self {
        let number = self.number.binary("+", &other.number, true);
        Self {
            yes: format!("({} > 0)", number.vector().atom()),
            no: format!("({} and {})", self.no, other.no),
            number: number.binary("> bool", &Number::literal(0.0, true), true),
        }
    }

    /// One of two numbers.
    pub fn choose(&self, yes: &Number<'a>, no: &Number<'a>) -> Number<'a> {
        let [first, second] = [yes.vector().atom(), no.vector().atom()];
        Number {
            text: format!("({first} and {}) or ({second} and {})", self.yes, self.no),
            open: true,
            scalar: false,
            int: yes.int && no.int,
            nullable: false,
            reads: &(&self.number.reads | &yes.reads) | &no.reads,
            proves: &self.number.proves | &(&yes.proves & &no.proves),
        }
    }

    /// The length of its longest text.
    pub fn longest(&self) -> usize {
        self.number.text.len().max(self.yes.len()).max(self.no.len())
    }
}
