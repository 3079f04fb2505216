//! From the text of a query to what is evaluated.

use super::error::EvaluateError;
use super::labels::{Labels, METRIC_NAME};
use super::matcher::{Matcher, anchored};
use super::node::{
    Aggregation, At, Each, Grouping, Matching, Node, Operator, OverTime, Range, Scalar, Selector,
    SetOperator, Sides, Vector, When,
};
use promql_parser::label;
use promql_parser::parser::{
    self, AggregateExpr, AtModifier, BinaryExpr, Call, Expr, LabelModifier, Offset, SubqueryExpr,
    VectorMatchCardinality, VectorSelector,
};
use std::time::{Duration, SystemTime};

/// The step of a subquery that names none: Prometheus's default `evaluation_interval`, in ms.
const DEFAULT_STEP: i64 = 60_000;

/// The parser's tree of a text.
///
/// # Errors
/// If it is not PromQL, or read otherwise than by Prometheus.
pub(super) fn parse(text: &str) -> Result<Expr, EvaluateError> {
    if text.contains('`') && text.contains('\\') {
        // The parser takes backslashes of raw strings for escapes.
        return unsupported("raw strings with backslashes");
    }
    parser::parse(text).map_err(EvaluateError::Refused)
}

/// Compiles a query.
///
/// # Errors
/// If it is not PromQL, or has what is not evaluated here.
pub(super) fn compile(text: &str) -> Result<Node, EvaluateError> {
    node(&parse(text)?)
}

/// The matchers of a selector in the parser's form.
///
/// # Errors
/// As [`compile`].
pub(super) fn matchers(selector: &VectorSelector) -> Result<Vec<Matcher>, EvaluateError> {
    let VectorSelector { name, matchers, offset: _, at: _ } = selector;
    if !matchers.or_matchers.is_empty() {
        return Err(EvaluateError::Refused("unexpected \"or\" in label matching".to_owned()));
    }
    let own = name.iter().map(|name| Ok(Matcher::equal(METRIC_NAME, name)));
    own.chain(matchers.matchers.iter().map(Matcher::read)).collect()
}

fn unsupported<T>(what: impl Into<String>) -> Result<T, EvaluateError> {
    Err(EvaluateError::Unsupported(what.into()))
}

fn node(expr: &Expr) -> Result<Node, EvaluateError> {
    Ok(match expr {
        Expr::Paren(paren) => node(&paren.expr)?,
        Expr::NumberLiteral(number) => Node::Scalar(Scalar::Number(number.val)),
        Expr::VectorSelector(selector) => Node::Vector(Vector::Selected(self::selector(selector)?)),
        Expr::Unary(unary) => match node(&unary.expr)? {
            Node::Scalar(scalar) => Node::Scalar(Scalar::Negated(Box::new(scalar))),
            Node::Vector(vector) => Node::Vector(Vector::Negated(Box::new(vector))),
        },
        Expr::Aggregate(aggregate) => Node::Vector(aggregation(aggregate)?),
        Expr::Binary(binary) => self::binary(binary)?,
        Expr::Call(call) => self::call(call)?,
        Expr::MatrixSelector(_) | Expr::Subquery(_) => return unsupported("a range as a result"),
        Expr::StringLiteral(_) => return unsupported("a string as a result"),
        Expr::Extension(_) => return unsupported("an extension of the parser"),
    })
}

fn scalar(expr: &Expr) -> Result<Scalar, EvaluateError> {
    match node(expr)? {
        Node::Scalar(scalar) => Ok(scalar),
        Node::Vector(_) => Err(EvaluateError::Refused("expected a scalar".to_owned())),
    }
}

fn vector(expr: &Expr) -> Result<Box<Vector>, EvaluateError> {
    match node(expr)? {
        Node::Vector(vector) => Ok(Box::new(vector)),
        Node::Scalar(_) => Err(EvaluateError::Refused("expected an instant vector".to_owned())),
    }
}

fn string(expr: &Expr) -> Result<&str, EvaluateError> {
    match expr {
        Expr::StringLiteral(literal) => Ok(&literal.val),
        Expr::Paren(paren) => string(&paren.expr),
        _ => Err(EvaluateError::Refused("expected a string".to_owned())),
    }
}

fn milliseconds(duration: Duration) -> Result<i64, EvaluateError> {
    i64::try_from(duration.as_millis())
        .or_else(|_| unsupported("a duration of more than a million years"))
}

fn when(offset: Option<&Offset>, at: Option<&AtModifier>) -> Result<When, EvaluateError> {
    let offset = match offset {
        None => 0,
        Some(Offset::Pos(offset)) => milliseconds(*offset)?,
        Some(Offset::Neg(offset)) => -milliseconds(*offset)?,
    };
    let at = match at {
        None => At::Evaluation,
        Some(AtModifier::Start | AtModifier::End) => At::Query,
        Some(AtModifier::At(time)) => At::Time(match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => milliseconds(since)?,
            Err(before) => -milliseconds(before.duration())?,
        }),
    };
    Ok(When { offset, at })
}

fn selector(selector: &VectorSelector) -> Result<Selector, EvaluateError> {
    let when = when(selector.offset.as_ref(), selector.at.as_ref())?;
    Ok(Selector { matchers: matchers(selector)?, when })
}

fn range(expr: &Expr) -> Result<Range, EvaluateError> {
    match expr {
        Expr::Paren(paren) => range(&paren.expr),
        Expr::MatrixSelector(matrix) => {
            Ok(Range::Selected(selector(&matrix.vs)?, milliseconds(matrix.range)?))
        }
        Expr::Subquery(SubqueryExpr { expr, offset, at, range, step }) => {
            let step = step.map(milliseconds).transpose()?.unwrap_or(DEFAULT_STEP);
            Ok(Range::Subquery {
                vector: vector(expr)?,
                range: milliseconds(*range)?,
                step,
                when: when(offset.as_ref(), at.as_ref())?,
            })
        }
        _ => Err(EvaluateError::Refused("expected a range vector".to_owned())),
    }
}

fn grouping(modifier: Option<&LabelModifier>, none: Grouping) -> Grouping {
    let names = |labels: &label::Labels| labels.labels.clone();
    match modifier {
        None => none,
        Some(LabelModifier::Include(labels)) => Grouping::By(names(labels)),
        Some(LabelModifier::Exclude(labels)) => Grouping::Without(names(labels)),
    }
}

fn aggregation(aggregate: &AggregateExpr) -> Result<Vector, EvaluateError> {
    let AggregateExpr { op, expr, param, modifier } = aggregate;
    let by = grouping(modifier.as_ref(), Grouping::By(Vec::new()));
    let operation = match op.to_string().as_str() {
        "sum" => Aggregation::Sum,
        "avg" => Aggregation::Avg,
        "min" => Aggregation::Min,
        "max" => Aggregation::Max,
        "count" => Aggregation::Count,
        "group" => Aggregation::Group,
        "stddev" => Aggregation::Stddev,
        "stdvar" => Aggregation::Stdvar,
        "quantile" => Aggregation::Quantile,
        "topk" => Aggregation::TopK,
        "bottomk" => Aggregation::BottomK,
        "count_values" => {
            let label = param.as_ref().map_or(Ok(""), |param| string(param))?.to_owned();
            return Ok(Vector::CountValues { label, vector: vector(expr)?, by });
        }
        other => return unsupported(format!("the aggregation {other}")),
    };
    let parameter = param.as_ref().map(|param| scalar(param).map(Box::new)).transpose()?;
    let needs =
        matches!(operation, Aggregation::Quantile | Aggregation::TopK | Aggregation::BottomK);
    if needs != parameter.is_some() {
        return Err(EvaluateError::Refused("wrong number of arguments".to_owned()));
    }
    Ok(Vector::Aggregate { operation, vector: vector(expr)?, parameter, by })
}

fn binary(binary: &BinaryExpr) -> Result<Node, EvaluateError> {
    let BinaryExpr { op, lhs, rhs, modifier } = binary;
    let operator = match op.to_string().as_str() {
        "+" => Operator::Add,
        "-" => Operator::Sub,
        "*" => Operator::Mul,
        "/" => Operator::Div,
        "%" => Operator::Mod,
        "^" => Operator::Pow,
        "atan2" => Operator::Atan2,
        "==" => Operator::Eq,
        "!=" => Operator::Ne,
        ">" => Operator::Gt,
        "<" => Operator::Lt,
        ">=" => Operator::Ge,
        "<=" => Operator::Le,
        "and" => return set(binary, SetOperator::And),
        "or" => return set(binary, SetOperator::Or),
        "unless" => return set(binary, SetOperator::Unless),
        other => return unsupported(format!("the operator {other}")),
    };
    let as_bool = modifier.as_ref().is_some_and(|modifier| modifier.return_bool);
    Ok(match (node(lhs)?, node(rhs)?) {
        (Node::Scalar(left), Node::Scalar(right)) => {
            Node::Scalar(Scalar::Binary(operator, Box::new(left), Box::new(right)))
        }
        (Node::Vector(vector), Node::Scalar(scalar)) => {
            let (vector, scalar) = (Box::new(vector), Box::new(scalar));
            Node::Vector(Vector::WithScalar { operator, vector, scalar, swapped: false, as_bool })
        }
        (Node::Scalar(scalar), Node::Vector(vector)) => {
            let (vector, scalar) = (Box::new(vector), Box::new(scalar));
            Node::Vector(Vector::WithScalar { operator, vector, scalar, swapped: true, as_bool })
        }
        (Node::Vector(left), Node::Vector(right)) => {
            let (left, right) = (Box::new(left), Box::new(right));
            let matching = matching(binary)?;
            Node::Vector(Vector::Binary { operator, left, right, matching, as_bool })
        }
    })
}

fn matching(binary: &BinaryExpr) -> Result<Matching, EvaluateError> {
    let ignoring_none = Grouping::Without(Vec::new());
    let Some(modifier) = &binary.modifier else {
        return Ok(Matching { on: ignoring_none, sides: Sides::OneToOne });
    };
    if modifier.fill_values.lhs.is_some() || modifier.fill_values.rhs.is_some() {
        return unsupported("fill");
    }
    let sides = match &modifier.card {
        VectorMatchCardinality::OneToOne => Sides::OneToOne,
        VectorMatchCardinality::ManyToOne(labels) => Sides::ManyToOne(labels.labels.clone()),
        VectorMatchCardinality::OneToMany(labels) => Sides::OneToMany(labels.labels.clone()),
        VectorMatchCardinality::ManyToMany => return unsupported("many-to-many between numbers"),
    };
    Ok(Matching { on: grouping(modifier.matching.as_ref(), ignoring_none), sides })
}

fn set(binary: &BinaryExpr, operator: SetOperator) -> Result<Node, EvaluateError> {
    let matching = binary.modifier.as_ref().and_then(|modifier| modifier.matching.as_ref());
    let on = grouping(matching, Grouping::Without(Vec::new()));
    let (left, right) = (vector(&binary.lhs)?, vector(&binary.rhs)?);
    Ok(Node::Vector(Vector::Set { operator, left, right, on }))
}

fn call(call: &Call) -> Result<Node, EvaluateError> {
    let name = call.func.name;
    if call.func.experimental {
        return Err(EvaluateError::Refused(format!("function {name:?} is not enabled")));
    }
    let args: Vec<&Expr> = call.args.args.iter().map(|arg| &**arg).collect();
    if let Some(function) = over_time(name) {
        return self::ranged(function, &args).map(Node::Vector);
    }
    if let Some(function) = each(name) {
        let [first, others @ ..] = &args[..] else { return wrong_arguments() };
        let parameters = others.iter().map(|arg| scalar(arg)).collect::<Result<_, _>>()?;
        return Ok(Node::Vector(Vector::Each { function, vector: vector(first)?, parameters }));
    }
    Ok(match (name, &args[..]) {
        ("time", []) => Node::Scalar(Scalar::Time),
        ("pi", []) => Node::Scalar(Scalar::Number(std::f64::consts::PI)),
        ("scalar", [of]) => Node::Scalar(Scalar::Of(vector(of)?)),
        ("vector", [of]) => Node::Vector(Vector::Of(Box::new(scalar(of)?))),
        ("timestamp", [of]) => Node::Vector(match *vector(of)? {
            Vector::Selected(selector) => Vector::Times(selector),
            other => Vector::Now(Box::new(other)),
        }),
        ("absent", [of]) => Node::Vector(Vector::Absent(vector(of)?, absent_labels(of))),
        ("absent_over_time", [of]) => {
            Node::Vector(Vector::AbsentOverTime(range(of)?, absent_labels(of)))
        }
        ("label_replace", [of, target, replacement, source, regex]) => {
            Node::Vector(Vector::LabelReplace {
                vector: vector(of)?,
                target: label_name(string(target)?)?,
                replacement: string(replacement)?.to_owned(),
                source: string(source)?.to_owned(),
                regex: anchored(string(regex)?)?,
            })
        }
        ("label_join", [of, target, separator, sources @ ..]) => Node::Vector(Vector::LabelJoin {
            vector: vector(of)?,
            target: label_name(string(target)?)?,
            separator: string(separator)?.to_owned(),
            sources: sources
                .iter()
                .map(|source| label_name(string(source)?))
                .collect::<Result<_, _>>()?,
        }),
        ("histogram_quantile", [quantile, of]) => Node::Vector(Vector::HistogramQuantile {
            quantile: Box::new(scalar(quantile)?),
            vector: vector(of)?,
        }),
        _ => return unsupported(format!("the function {name}")),
    })
}

fn wrong_arguments<T>() -> Result<T, EvaluateError> {
    Err(EvaluateError::Refused("wrong number of arguments".to_owned()))
}

/// The name of a label that a query writes or reads.
fn label_name(name: &str) -> Result<String, EvaluateError> {
    match name {
        "" => Err(EvaluateError::Failed("invalid label name".to_owned())),
        name => Ok(name.to_owned()),
    }
}

fn ranged(function: OverTime, args: &[&Expr]) -> Result<Vector, EvaluateError> {
    let (of, parameter) = match (function, args) {
        (OverTime::Quantile, [parameter, of]) => (of, Some(parameter)),
        (OverTime::PredictLinear, [of, parameter]) => (of, Some(parameter)),
        (OverTime::Quantile | OverTime::PredictLinear, _) => return wrong_arguments(),
        (_, [of]) => (of, None),
        _ => return wrong_arguments(),
    };
    let parameter = parameter.map(|parameter| scalar(parameter).map(Box::new)).transpose()?;
    let range = range(of)?;
    let constant = matches!(parameter.as_deref(), None | Some(Scalar::Number(_)));
    let is_fixed =
        matches!(range, Range::Subquery { when: When { at: At::Query | At::Time(_), .. }, .. });
    if is_fixed && (!constant || function == OverTime::PredictLinear) {
        // By a fault of Prometheus, there is no result.
        return unsupported("a subquery with @ beside what changes with time");
    }
    Ok(Vector::OverTime { function, range, parameter })
}

fn over_time(name: &str) -> Option<OverTime> {
    Some(match name {
        "rate" => OverTime::Rate,
        "increase" => OverTime::Increase,
        "delta" => OverTime::Delta,
        "irate" => OverTime::Irate,
        "idelta" => OverTime::Idelta,
        "sum_over_time" => OverTime::Sum,
        "avg_over_time" => OverTime::Avg,
        "min_over_time" => OverTime::Min,
        "max_over_time" => OverTime::Max,
        "count_over_time" => OverTime::Count,
        "last_over_time" => OverTime::Last,
        "present_over_time" => OverTime::Present,
        "quantile_over_time" => OverTime::Quantile,
        "stddev_over_time" => OverTime::Stddev,
        "stdvar_over_time" => OverTime::Stdvar,
        "changes" => OverTime::Changes,
        "resets" => OverTime::Resets,
        "deriv" => OverTime::Deriv,
        "predict_linear" => OverTime::PredictLinear,
        _ => return None,
    })
}

fn each(name: &str) -> Option<Each> {
    Some(match name {
        "abs" => Each::Abs,
        "ceil" => Each::Ceil,
        "floor" => Each::Floor,
        "sqrt" => Each::Sqrt,
        "exp" => Each::Exp,
        "ln" => Each::Ln,
        "log2" => Each::Log2,
        "log10" => Each::Log10,
        "sgn" => Each::Sgn,
        "round" => Each::Round,
        "clamp" => Each::Clamp,
        "clamp_min" => Each::ClampMin,
        "clamp_max" => Each::ClampMax,
        _ => return None,
    })
}

/// The labels of the result of `absent`: those that the selector matches by one value.
fn absent_labels(expr: &Expr) -> Labels {
    let selector = match expr {
        Expr::Paren(paren) => return absent_labels(&paren.expr),
        Expr::VectorSelector(selector) => selector,
        Expr::MatrixSelector(matrix) => &matrix.vs,
        _ => return Labels::empty(),
    };
    let mut labels = Labels::empty();
    let mut seen = Vec::new();
    for matcher in &selector.matchers.matchers {
        if matcher.name == METRIC_NAME {
            continue;
        }
        let equal = matches!(matcher.op, label::MatchOp::Equal) && !seen.contains(&&matcher.name);
        labels = labels.with(&matcher.name, if equal { &matcher.value } else { "" });
        if equal {
            seen.push(&matcher.name);
        }
    }
    labels
}
