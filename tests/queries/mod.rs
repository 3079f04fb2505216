//! Queries of every kind of node, made from arbitrary bytes, and properties of the guard and
//! the planner. Shared by the property tests and the fuzz targets.

use arbitrary::{Arbitrary, Result, Unstructured};
use plimsoll::promql::bounds::PLANNED_QUERY;
use plimsoll::promql::cost::{Estimates, Limits};
use plimsoll::promql::guard::within_namespace;
use plimsoll::promql::matcher::label_name;
use plimsoll::promql::plan::{PlanInput, plan, single};
use plimsoll::promql::quote::quoted;
use plimsoll::promql::shape::{Arguments, ShapedQuery};
use plimsoll::promql::tree;
use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{Expr, VectorSelector, parse};
use std::collections::BTreeSet;

/// Runs on a quarter of the stack of tokio's workers. An overflow ends the process.
pub fn on_a_small_stack(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(512 << 10).spawn_scoped(scope, work);
        thread.expect("a thread").join().expect("no panic");
    });
}

/// Checks that the guarded query of a user's query reads only the namespace and the
/// shared ones. Returns the guarded query.
pub fn check_guard(query: &str) -> Option<String> {
    let shared = ["commons".to_owned()];
    let sent = match within_namespace(query, "namespace", "shop", &shared) {
        Ok(sent) => sent,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "{query:?} is refused without a reason");
            return None;
        }
    };
    let tree = read(&sent).unwrap_or_else(|error| panic!("{query:?} -> {sent:?}: {error}"));
    for selector in selectors(&tree) {
        let may_read = |branch: &Vec<Matcher>| {
            branch.iter().any(|matcher| {
                matcher.name == "namespace"
                    && matcher.op == MatchOp::Equal
                    && ["shop", "commons"].contains(&matcher.value.as_str())
            })
        };
        let guarded = match selector.matchers.or_matchers.as_slice() {
            [] => may_read(&selector.matchers.matchers),
            branches => branches.iter().all(may_read),
        };
        assert!(guarded, "{selector} of {query:?} -> {sent:?} reads any namespace");
    }
    // Printing it again changes nothing.
    assert_eq!(tree.to_string(), sent, "{query:?}");
    Some(sent)
}

/// Reads a text as the parser does. If it has a regular expression that only Prometheus may
/// accept, such as one with `{{`, regular expressions are not compiled.
fn read(text: &str) -> Result<Expr, String> {
    match parse(text) {
        Err(error) if error.contains("illegal regex") => {
            tree::parse(text, &PLANNED_QUERY).map_err(|error| error.to_string())
        }
        read => read,
    }
}

/// All selectors, by a walk that shares no code with the guard's.
pub fn selectors(tree: &Expr) -> Vec<&VectorSelector> {
    let (mut found, mut rest) = (Vec::new(), vec![tree]);
    while let Some(node) = rest.pop() {
        match node {
            Expr::Aggregate(node) => {
                rest.push(&node.expr);
                rest.extend(node.param.as_deref());
            }
            Expr::Unary(node) => rest.push(&node.expr),
            Expr::Binary(node) => rest.extend([&*node.lhs, &*node.rhs]),
            Expr::Paren(node) => rest.push(&node.expr),
            Expr::Subquery(node) => rest.push(&node.expr),
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) => {}
            Expr::VectorSelector(selector) => found.push(selector),
            Expr::MatrixSelector(matrix) => found.push(&matrix.vs),
            Expr::Call(call) => {
                assert_ne!(
                    call.func.name, "info",
                    "it selects series that the query does not name"
                );
                rest.extend(call.args.args.iter().map(|arg| &**arg));
            }
            Expr::Extension(_) => panic!("no text makes one"),
        }
    }
    found
}

/// Checks that the text that is sent for a single query is equivalent to the query, except for its
/// labels.
pub fn check_single(query: &str) {
    let ShapedQuery { shape, arguments } = ShapedQuery::of(query);
    let sent = single(&shape, &arguments);
    assert!(sent.coverage.contains(&arguments), "{query:?}");
    if shape.parameters.is_empty() && shape.required.is_empty() {
        assert_eq!(sent.query, query);
        return;
    }
    let mut given = read(query).unwrap_or_else(|error| panic!("{query:?}: {error}"));
    let mut sent = read(&sent.query).unwrap_or_else(|e| panic!("{query:?} -> {sent:?}: {e}"));
    tree::normalize(&mut given);
    tree::normalize(&mut sent);
    let (given, sent) = (selectors(&given), selectors(&sent));
    assert_eq!(given.len(), sent.len(), "{query:?}");
    for (given, sent) in given.into_iter().zip(sent) {
        assert_eq!((&given.name, &given.offset, &given.at), (&sent.name, &sent.offset, &sent.at));
        for matcher in &given.matchers.matchers {
            let parameter = shape.parameters.iter().position(|p| p.name == matcher.name);
            let found = parameter.is_none_or(|p| names(sent, &matcher.name, &arguments[p]));
            assert!(found, "{query:?}: {sent} does not match {matcher} as {given} does");
            let kept = parameter.is_some() || sent.matchers.matchers.contains(matcher);
            assert!(kept, "{query:?}: {sent} lacks {matcher}");
        }
    }
}

/// Whether a selector matches a label by these values.
fn names(selector: &VectorSelector, label: &str, values: &[String]) -> bool {
    let mut found = selector.matchers.matchers.iter().filter(|matcher| matcher.name == label);
    let (Some(only), None) = (found.next(), found.next()) else { return false };
    // Only the parser compiles patterns.
    let name = if label == "__name__" { "" } else { "x" };
    let Ok(Expr::VectorSelector(selector)) = parse(&format!("{name}{{{only}}}")) else {
        return false;
    };
    let [only] = selector.matchers.matchers.as_slice() else { return false };
    values.iter().all(|value| only.is_match(value)) && !only.is_match("\u{1}none of them")
}

/// Plans queries that differ only in one label's values: each planned query is PromQL and covers the queries of its
/// batch, and no query is left out.
pub fn check_plan(bytes: &[u8]) {
    // Too few bytes make no query.
    let _ = plan_of(&mut Unstructured::new(bytes));
}

fn plan_of(u: &mut Unstructured<'_>) -> Result<usize> {
    let mut values: BTreeSet<String> =
        (0..u.int_in_range(1..=4)?).map(|_| text(u)).collect::<Result<_>>()?;
    if u.ratio(1, 3)? {
        values.extend((0..90).map(|n| format!("web-{n}.example")));
    }
    let label = u.choose(&LABELS)?;
    let limit = *u.choose(&[5, 40, 1_000])?;
    let filtered_series = Some(u.int_in_range(0..=20_000)?.into());
    let estimates = Estimates { filtered_series, ..Estimates::default() };
    let skeleton = u.bytes(u.len())?;
    let of = |value: &String| {
        let matcher = format!("{}={}", label_name(label), quoted(value));
        let mut queries = Queries { u: Unstructured::new(skeleton), matcher };
        queries.vector(3).map(|query| ShapedQuery::of(&query))
    };
    let queries: Vec<ShapedQuery> = values.iter().map(of).collect::<Result<_>>()?;
    let shape = queries[0].shape.clone();
    let same = queries.iter().filter(|query| query.shape == shape);
    let pending: BTreeSet<Arguments> = same.map(|query| query.arguments.clone()).collect();
    let input = PlanInput { pending: &pending, expected: &BTreeSet::new(), recent: &pending };
    let planned = plan(&shape, input, estimates, Limits { values: limit, ..Limits::default() });
    for planned in &planned {
        if !shape.parameters.is_empty() || !shape.required.is_empty() {
            parse(&planned.query).unwrap_or_else(|error| panic!("{}: {error}", planned.query));
        }
        assert!(planned.batch.iter().all(|query| planned.coverage.contains(query)), "{planned:?}");
    }
    let planned_for: BTreeSet<&Arguments> =
        planned.iter().flat_map(|planned| &planned.batch).collect();
    assert_eq!(planned_for, pending.iter().collect(), "{shape:?}");
    Ok(planned.len())
}

/// A query of every kind of node, with this matcher in each of its selectors.
pub fn query(bytes: &[u8], matcher: &str) -> Option<String> {
    Queries { u: Unstructured::new(bytes), matcher: matcher.to_owned() }.vector(4).ok()
}

const METRICS: [&str; 6] = ["x", "hits_total", "a:b:c", "sum", "on", "secret"];
const LABELS: [&str; 7] =
    ["a", "pod", "namespace", "le", "k8s.pod.name", "é ü", "quote\"back\\slash"];
const EACH: [&str; 5] = ["abs", "ceil", "exp", "timestamp", "absent"];
const RANGES: [&str; 6] =
    ["rate", "max_over_time", "deriv", "last_over_time", "absent_over_time", "changes"];
const OPERATORS: [&str; 12] =
    ["+", "-", "*", "/", "%", "^", "==", "!=", ">", "<=", ">= bool", "atan2"];

/// A label value.
fn text(u: &mut Unstructured<'_>) -> Result<String> {
    Ok(match u.int_in_range(0..=5)? {
        0 => {
            (*u.choose(&["", ".*", "a|b", "web-1", "10.0.0.1:80", "\"", "\\", "\n", "\0", "{}"])?)
                .to_owned()
        }
        1 => u.choose(&["vault", "shop", "commons"])?.to_string(),
        2 => String::arbitrary(u)?.chars().take(12).collect(),
        n => format!("v{n}"),
    })
}

struct Queries<'a> {
    u: Unstructured<'a>,
    /// The matcher that each selector has, if not empty.
    matcher: String,
}

impl Queries<'_> {
    fn choose(&mut self, of: &[&'static str]) -> Result<&'static str> {
        self.u.choose(of).copied()
    }

    fn label(&mut self) -> Result<String> {
        Ok(label_name(self.choose(&LABELS)?).into_owned())
    }

    fn labels(&mut self) -> Result<String> {
        let names = (0..self.u.int_in_range(0..=3)?).map(|_| self.label());
        Ok(names.collect::<Result<BTreeSet<_>>>()?.into_iter().collect::<Vec<_>>().join(", "))
    }

    fn matcher(&mut self) -> Result<String> {
        let label = self.label()?;
        let (op, value) = match self.u.int_in_range(0..=5)? {
            0 => (
                "=~",
                self.choose(&[".*", "a|b", "web-1|web\\.2", "(v1|v2)+", "[^a]", "\\d+"])?
                    .to_owned(),
            ),
            1 => ("!~", self.choose(&["", "a|b", ".+"])?.to_owned()),
            2 => ("!=", text(&mut self.u)?),
            _ => ("=", text(&mut self.u)?),
        };
        Ok(format!("{label}{op}{}", quoted(&value)))
    }

    fn selector(&mut self) -> Result<String> {
        let name = self.choose(&METRICS)?;
        let mut matchers: Vec<String> =
            (0..self.u.int_in_range(0..=2)?).map(|_| self.matcher()).collect::<Result<_>>()?;
        if !self.matcher.is_empty() {
            matchers.push(self.matcher.clone());
        }
        let or = match self.u.ratio(1, 12)? {
            true => format!(" or {}", self.matcher()?),
            false => String::new(),
        };
        let list = matchers.join(",");
        Ok(match self.u.int_in_range(0..=5)? {
            0 => format!(
                "{{{}{list}{or}}}",
                quoted("http.requests") + if list.is_empty() { "" } else { "," }
            ),
            1 => format!("{{__name__=~\"x|y\",{list}{or}}}").replace(",}", "}"),
            2 if !list.is_empty() => format!("{{{list}{or}}}"),
            3 if list.is_empty() => name.to_owned(),
            _ => format!("{name}{{{list}{}}}", if list.is_empty() { "" } else { &or }),
        })
    }

    fn when(&mut self) -> Result<&'static str> {
        self.choose(&[
            "",
            "",
            "",
            " offset 5m",
            " offset -1h30m",
            " @ 1700000000.5",
            " @ end()",
            " @ start() offset 1d",
        ])
    }

    fn matrix(&mut self, depth: usize) -> Result<String> {
        let when = self.when()?;
        if depth > 0 && self.u.ratio(1, 4)? {
            let range = self.choose(&["[5m:1m]", "[1h30m:]", "[300:15]"])?;
            return Ok(format!("({}){range}{when}", self.vector(depth - 1)?));
        }
        let range = self.choose(&["[5m]", "[1y2w3d]", "[300]", "[1500ms]"])?;
        Ok(format!("{}{range}{when}", self.selector()?))
    }

    fn scalar(&mut self, depth: usize) -> Result<String> {
        Ok(match self.u.int_in_range(0..=if depth > 0 { 5 } else { 3 })? {
            0 => "time()".to_owned(),
            1 => self.choose(&["Inf", "-NaN", "0x1F", "1e-3", "5m", "-0", "017"])?.to_owned(),
            2 | 3 => f32::from(u16::arbitrary(&mut self.u)?).to_string(),
            4 => format!("scalar({})", self.vector(depth - 1)?),
            _ => format!(
                "({} {} {})",
                self.scalar(depth - 1)?,
                self.choose(&["+", "^", "atan2"])?,
                self.scalar(depth - 1)?
            ),
        })
    }

    /// An instant vector of at most `depth` levels.
    fn vector(&mut self, depth: usize) -> Result<String> {
        let kind = if depth == 0 { 0 } else { self.u.int_in_range(0..=11)? };
        let below = depth.saturating_sub(1);
        Ok(match kind {
            0 => self.selector()? + self.when()?,
            1 => format!("{}({})", self.choose(&RANGES)?, self.matrix(below)?),
            2 => format!("{}({})", self.choose(&EACH)?, self.vector(below)?),
            3 | 4 => self.aggregate(below)?,
            5 | 6 => self.binary(below)?,
            7 => format!("-{}", self.vector(below)?),
            8 => format!("({})", self.vector(below)?),
            9 => {
                let (vector, to, from) = (self.vector(below)?, self.label()?, self.label()?);
                let name =
                    |label: String| if label.starts_with('"') { label } else { quoted(&label) };
                format!("label_replace({vector}, {}, \"$1\", {}, \"(.*)\")", name(to), name(from))
            }
            10 => format!("quantile_over_time({}, {})", self.scalar(below)?, self.matrix(below)?),
            _ => format!("histogram_quantile({}, {})", self.scalar(below)?, self.vector(below)?),
        })
    }

    fn aggregate(&mut self, depth: usize) -> Result<String> {
        let by = match self.u.int_in_range(0..=2)? {
            0 => String::new(),
            1 => format!(" by ({})", self.labels()?),
            _ => format!(" without ({})", self.labels()?),
        };
        let vector = self.vector(depth)?;
        Ok(match self.u.int_in_range(0..=3)? {
            0 => {
                let op = self.choose(&["topk", "bottomk", "quantile", "limitk", "limit_ratio"])?;
                format!("{op}{by} ({}, {vector})", self.scalar(depth)?)
            }
            1 => format!("count_values{by} (\"v\", {vector})"),
            _ => format!(
                "{}{by} ({vector})",
                self.choose(&["sum", "avg", "max", "count", "group", "stddev"])?
            ),
        })
    }

    fn binary(&mut self, depth: usize) -> Result<String> {
        let left = self.vector(depth)?;
        if self.u.ratio(1, 4)? {
            return Ok(format!("{left} {} {}", self.choose(&OPERATORS)?, self.scalar(depth)?));
        }
        let matching = match self.u.int_in_range(0..=3)? {
            0 => format!(" on ({})", self.labels()?),
            1 => format!(" ignoring ({})", self.labels()?),
            _ => String::new(),
        };
        let right = self.vector(depth)?;
        if self.u.ratio(1, 3)? {
            let op = self.choose(&["and", "or", "unless"])?;
            return Ok(format!("{left} {op}{matching} {right}"));
        }
        let group = match matching.is_empty() {
            true => "",
            false => self.choose(&[
                "",
                "",
                " group_left ()",
                " group_right (z)",
                " group_left",
                " fill (0)",
            ])?,
        };
        Ok(format!("{left} {}{matching}{group} {right}", self.choose(&OPERATORS)?))
    }
}
