//! A query that is ready to be evaluated: typed, with compiled matchers, and only of what this
//! Prometheus evaluates.

use super::labels::Labels;
use super::matcher::Matcher;
use regex::Regex;

/// A query by the type of its result.
#[derive(Debug)]
pub(super) enum Node {
    /// A number.
    Scalar(Scalar),
    /// Series with one value each.
    Vector(Vector),
}

/// What has a number as its result.
#[derive(Debug)]
pub(super) enum Scalar {
    /// A number in the text.
    Number(f64),
    /// `time()`.
    Time,
    /// `scalar(..)`.
    Of(Box<Vector>),
    /// `-..`.
    Negated(Box<Scalar>),
    /// Two numbers and what is between them; a comparison is 0 or 1.
    Binary(Operator, Box<Scalar>, Box<Scalar>),
}

/// What has series with one value each as its result.
#[derive(Debug)]
pub(super) enum Vector {
    /// The last values of series.
    Selected(Selector),
    /// `timestamp(..)` of a selector: when these were measured.
    Times(Selector),
    /// `timestamp(..)` of anything else: when the query is evaluated.
    Now(Box<Vector>),
    /// `vector(..)`.
    Of(Box<Scalar>),
    /// A function of the samples of each series.
    OverTime { function: OverTime, range: Range, parameter: Option<Box<Scalar>> },
    /// A function of each value.
    Each { function: Each, vector: Box<Vector>, parameters: Vec<Scalar> },
    /// `-..`.
    Negated(Box<Vector>),
    /// `absent(..)`, with the labels of its result.
    Absent(Box<Vector>, Labels),
    /// `absent_over_time(..)`, with the labels of its result.
    AbsentOverTime(Range, Labels),
    /// `label_replace(..)`.
    LabelReplace {
        vector: Box<Vector>,
        target: String,
        replacement: String,
        source: String,
        regex: Regex,
    },
    /// `label_join(..)`.
    LabelJoin { vector: Box<Vector>, target: String, separator: String, sources: Vec<String> },
    /// `histogram_quantile(..)` of classic histograms.
    HistogramQuantile { quantile: Box<Scalar>, vector: Box<Vector> },
    /// An aggregation.
    Aggregate {
        operation: Aggregation,
        vector: Box<Vector>,
        parameter: Option<Box<Scalar>>,
        by: Grouping,
    },
    /// `count_values(..)`, with the label of the values.
    CountValues { label: String, vector: Box<Vector>, by: Grouping },
    /// Series and a number; `swapped` if the number is on the left.
    WithScalar {
        operator: Operator,
        vector: Box<Vector>,
        scalar: Box<Scalar>,
        swapped: bool,
        as_bool: bool,
    },
    /// Series and series.
    Binary {
        operator: Operator,
        left: Box<Vector>,
        right: Box<Vector>,
        matching: Matching,
        as_bool: bool,
    },
    /// `and`, `or`, `unless`.
    Set { operator: SetOperator, left: Box<Vector>, right: Box<Vector>, on: Grouping },
}

/// Which series, and at which time.
#[derive(Debug)]
pub(super) struct Selector {
    pub matchers: Vec<Matcher>,
    pub when: When,
}

/// `offset` and `@`.
#[derive(Clone, Copy, Debug)]
pub(super) struct When {
    /// In ms.
    pub offset: i64,
    pub at: At,
}

/// `@`.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    /// None: the time of the evaluation.
    Evaluation,
    /// `start()` and `end()`: the time of the query, also in a subquery.
    Query,
    /// In Unix ms.
    Time(i64),
}

/// The samples of series over time.
#[derive(Debug)]
pub(super) enum Range {
    /// Those that were scraped in the last ms.
    Selected(Selector, i64),
    /// The results of a query at regular times.
    Subquery { vector: Box<Vector>, range: i64, step: i64, when: When },
}

/// A function of the samples of one series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverTime {
    Rate,
    Increase,
    Delta,
    Irate,
    Idelta,
    Sum,
    Avg,
    Min,
    Max,
    Count,
    Last,
    Present,
    Quantile,
    Stddev,
    Stdvar,
    Changes,
    Resets,
    Deriv,
    PredictLinear,
}

/// A function of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Each {
    Abs,
    Ceil,
    Floor,
    Sqrt,
    Exp,
    Ln,
    Log2,
    Log10,
    Sgn,
    Round,
    Clamp,
    ClampMin,
    ClampMax,
}

/// An aggregation of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aggregation {
    Sum,
    Avg,
    Min,
    Max,
    Count,
    Group,
    Stddev,
    Stdvar,
    Quantile,
    TopK,
    BottomK,
}

/// Labels by which series belong together.
#[derive(Clone, Debug)]
pub(super) enum Grouping {
    /// `by` and `on`.
    By(Vec<String>),
    /// `without` and `ignoring`.
    Without(Vec<String>),
}

/// How the series of both sides find each other.
#[derive(Debug)]
pub(super) struct Matching {
    pub on: Grouping,
    pub sides: Sides,
}

/// How many series may have the same labels on each side.
#[derive(Debug)]
pub(super) enum Sides {
    OneToOne,
    /// `group_left`, with the labels that are taken from the right side.
    ManyToOne(Vec<String>),
    /// `group_right`, with the labels that are taken from the left side.
    OneToMany(Vec<String>),
}

/// An operator between numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
    Atan2,
    Eq,
    Ne,
    Gt,
    Lt,
    Ge,
    Le,
}

impl Operator {
    /// Whether it compares.
    pub fn compares(self) -> bool {
        match self {
            Self::Add | Self::Sub | Self::Mul | Self::Div | Self::Mod | Self::Pow | Self::Atan2 => {
                false
            }
            Self::Eq | Self::Ne | Self::Gt | Self::Lt | Self::Ge | Self::Le => true,
        }
    }

    /// The value, and whether it stays: a comparison gives its left side and its truth.
    pub fn apply(self, left: f64, right: f64) -> (f64, bool) {
        #[expect(clippy::float_cmp, reason = "as PromQL compares")]
        match self {
            Self::Add => (left + right, true),
            Self::Sub => (left - right, true),
            Self::Mul => (left * right, true),
            Self::Div => (left / right, true),
            Self::Mod => (left % right, true),
            Self::Pow => (left.powf(right), true),
            Self::Atan2 => (left.atan2(right), true),
            Self::Eq => (left, left == right),
            Self::Ne => (left, left != right),
            Self::Gt => (left, left > right),
            Self::Lt => (left, left < right),
            Self::Ge => (left, left >= right),
            Self::Le => (left, left <= right),
        }
    }
}

/// An operator between sets of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetOperator {
    And,
    Or,
    Unless,
}
