//! Random queries: those that the planner sends, and any that the simulation evaluates.

use bed::random::Random;
use plimsoll::promql::cost::{Estimates, Limits};
use plimsoll::promql::matcher::Matcher;
use plimsoll::promql::plan::{PlanInput, plan, single};
use plimsoll::promql::query::{fields, times};
use plimsoll::promql::shape::{Arguments, ShapedQuery};
use plimsoll::promql::template::Template;
use std::collections::{BTreeMap, BTreeSet};

/// Gauges, counters and a histogram.
pub const METRICS: &[&str] = &["x", "y", "c_total", "d_total", "h_bucket"];

pub const LABELS: [(&str, &[&str]); 4] = [
    ("namespace", &["shop", "bank", "a.b"]),
    ("pod", &["p-1", "p-2", "p.2", "q|r"]),
    ("app", &["web", "api", "we\"ird", "a|b", "é\\", ""]),
    ("code", &["200", "500", ""]),
];

/// Queries that fail, and how is compared.
pub const REFUSED: &[&str] = &[
    "",
    "sum(",
    "x{",
    "{}",
    "x{a=~\"(\"}",
    "sum by (pod",
    "rate(x)",
    "abs(x[5m])",
    "nothing(x)",
    "x[5m] offset",
    "1 > 2",
    "x > bool",
    "sum(1)",
    "vector(x)",
    "topk(x, x)",
    "x and 1",
    "max_of(1, 2)",
    "mad_over_time(x[1m])",
    "{namespace=\"shop\" or pod=\"p-1\"}",
    "x * on (namespace) x",
    "x * on (namespace) group_left () y",
    "rate({__name__=~\".+\"}[5m])",
    "topk(NaN, x)",
    "topk(1e20, x)",
    "label_replace(x, \"\", \"\", \"\", \"\")",
    "label_replace(x, \"pod\", \"\", \"pod\", \".*\")",
    "count_values(\"\", x)",
];

/// Templates of rules and of users, as `planned` and the default configuration have them.
const TEMPLATES: &[&str] = &[
    "sum by (<<.GroupBy>>) (<<.Series>>{<<.LabelMatchers>>})",
    "sum by (<<.GroupBy>>) (rate(<<.Series>>{<<.LabelMatchers>>}[2m]))",
    "sum(rate(<<.Series>>{<<.LabelMatchers>>}[5m])) by (<<.GroupBy>>)",
    "sum(<<.Series>>{<<.LabelMatchers>>})",
    "avg by (<<.GroupBy>>) (<<.Series>>{<<.LabelMatchers>>})",
    "max by (<<.GroupBy>>) (max_over_time(<<.Series>>{<<.LabelMatchers>>}[30s]))",
    "count(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)",
    "quantile by (<<.GroupBy>>) (0.5, <<.Series>>{<<.LabelMatchers>>})",
    "<<.Series>>{<<.LabelMatchers>>}",
    "sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>}) / on (<<.GroupBy>>) sum by (<<.GroupBy>>) (y{<<.LabelMatchers>>})",
    "sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>}) or sum by (<<.GroupBy>>) (y{<<.LabelMatchers>>})",
    "x{<<.LabelMatchers>>} * on (pod) group_left () sum by (pod) (y{<<.LabelMatchers>>})",
    "sum by (<<.GroupBy>>) (sum without (code) (x{<<.LabelMatchers>>}))",
    "sum by (<<.GroupBy>>) (x{<<.LabelMatchers>>}) > 5",
    "histogram_quantile(0.9, sum by (le, pod) (rate(h_bucket{<<.LabelMatchers>>}[1m])))",
    "topk(2, x{<<.LabelMatchers>>})",
];

/// The texts that are sent for a random batch, together and one by one.
pub fn planned(random: &mut Random) -> Vec<String> {
    let template = Template::parse(random.one_of(TEMPLATES)).expect("a template");
    let series = random.one_of(METRICS);
    let groups: [&[&str]; 4] = [&["pod"], &["namespace", "pod"], &["app"], &["code", "pod"]];
    let group_by: Vec<String> =
        groups[random.below(4)].iter().map(|label| (*label).to_owned()).collect();
    let timed = random.below(6) == 0;
    let chosen = 1 + random.below(14);
    let mut shapes: BTreeMap<_, BTreeSet<Arguments>> = BTreeMap::new();
    for _ in 0..1 + random.below(8) {
        let labels = LABELS.iter().enumerate().filter(|(n, _)| chosen & (1 << n) != 0);
        let matchers: Vec<_> =
            labels.map(|(_, (label, values))| (*label, wanted(random, values))).collect();
        let text = match timed {
            true => times(series, &matchers, &group_by).expect("good names").to_string(),
            false => template.render(&fields(series, &matchers, &group_by)).expect("a query"),
        };
        let shaped = ShapedQuery::of(&text);
        shapes.entry(shaped.shape).or_default().insert(shaped.arguments);
    }
    let mut texts = Vec::new();
    for (shape, pending) in &shapes {
        let none = BTreeSet::new();
        let input = PlanInput { pending, expected: &none, recent: pending };
        let batches = plan(shape, input, Estimates::default(), Limits::default());
        texts.extend(batches.into_iter().map(|planned| planned.query));
        texts.extend(pending.first().map(|arguments| single(shape, arguments).query));
    }
    texts
}

fn wanted(random: &mut Random, values: &[&str]) -> Matcher {
    let value = random.one_of(values).to_owned();
    let another = random.one_of(values).to_owned();
    match random.below(8) {
        0 => Matcher::NotEmpty,
        1 => Matcher::IsNot(value),
        2 => Matcher::Empty,
        3 => Matcher::AnyOf(vec![value, another]),
        _ => Matcher::Is(value),
    }
}

/// The words of a query that name what is evaluated.
pub fn words(query: &str) -> BTreeSet<String> {
    let mut outside = String::new();
    // Without the selectors, of which the labels say nothing.
    for (n, part) in query.split('{').enumerate() {
        outside.push_str(if n == 0 { part } else { part.rsplit('}').next().unwrap_or_default() });
        outside.push(' ');
    }
    let words = outside.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let known = |word: &&str| {
        FUNCTIONS.contains(word) || AGGREGATIONS.contains(word) || OTHERS.contains(word)
    };
    words.filter(known).map(str::to_owned).collect()
}

const FUNCTIONS: &[&str] = &[
    "rate",
    "increase",
    "delta",
    "irate",
    "idelta",
    "sum_over_time",
    "avg_over_time",
    "min_over_time",
    "max_over_time",
    "count_over_time",
    "last_over_time",
    "present_over_time",
    "stddev_over_time",
    "stdvar_over_time",
    "changes",
    "resets",
    "deriv",
    "quantile_over_time",
    "predict_linear",
];
const EACH: &[&str] = &["abs", "ceil", "floor", "sqrt", "sgn", "round"];
/// Of which libraries differ in the last bit.
const ROUNDED: &[&str] = &["exp", "ln", "log2", "log10"];
const AGGREGATIONS: &[&str] = &[
    "sum", "avg", "min", "max", "count", "group", "stddev", "stdvar", "quantile", "topk", "bottomk",
];
const OTHERS: &[&str] = &[
    "and",
    "or",
    "unless",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "bool",
    "offset",
    "by",
    "without",
    "timestamp",
    "time",
    "vector",
    "scalar",
    "absent",
    "absent_over_time",
    "label_replace",
    "label_join",
    "count_values",
    "histogram_quantile",
    "clamp",
    "clamp_min",
    "clamp_max",
    "abs",
    "ceil",
    "floor",
    "sqrt",
    "exp",
    "ln",
    "log2",
    "log10",
    "sgn",
    "round",
    "atan2",
    "start",
];
const ARITHMETIC: &[&str] = &["+", "-", "*", "/", "%"];
const COMPARISONS: &[&str] = &["==", "!=", ">", "<", ">=", "<="];
const DURATIONS: &[&str] = &["1s", "5s", "9s", "10s", "30s", "1m", "2m", "5m", "5m1ms", "1m30s"];
const SCALARS: &[&str] = &["0", "1", "2.5", "-3", "0.1", "1e9", "NaN", "Inf", "0.5"];

/// A selector.
pub fn selector(random: &mut Random) -> String {
    let mut matchers = Vec::new();
    for (label, values) in LABELS {
        if random.below(5) == 0 {
            let quoted = |value: &str| format!("{value:?}");
            let value = random.one_of(values);
            let regexes =
                ["p-.*", "p.+|q.*", "", ".*", ".+", "shop|bank", "[0-9]+", "web|api|", "a.b"];
            matchers.push(match random.below(5) {
                0 => format!("{label}!={}", quoted(value)),
                1 => format!("{label}=~{}", quoted(random.one_of(&regexes))),
                2 => format!("{label}!~{}", quoted(random.one_of(&regexes))),
                _ => format!("{label}={}", quoted(value)),
            });
        }
    }
    let metric = random.one_of(METRICS);
    if random.below(12) == 0 {
        let metrics = ["x|y", "c.*", ".*_total", ".+"];
        matchers.push(format!("__name__=~\"{}\"", random.one_of(&metrics)));
        return format!("{{{}}}", matchers.join(","));
    }
    format!("{metric}{{{}}}", matchers.join(","))
}

/// `offset` and `@`, mostly neither.
fn when(random: &mut Random, start: i64) -> String {
    match random.below(12) {
        0 => format!(" offset {}", random.one_of(DURATIONS)),
        1 => format!(" offset -{}", random.one_of(DURATIONS)),
        2 => {
            let at = start + random.below(900_000) as i64;
            format!(" @ {}.{:03}", at / 1000, at % 1000)
        }
        3 => " @ start()".to_owned(),
        _ => String::new(),
    }
}

/// A query of what the simulation evaluates. Outermost is what is not the same to the last bit, or in
/// the same order, on each run of a real Prometheus.
pub fn any(random: &mut Random, start: i64) -> String {
    let kind = random.below(30);
    let mut generator = Generator { random, start, in_subquery: false };
    match kind {
        0 => generator.scalar(3),
        1 => format!("{}({})", generator.one_of(ROUNDED), generator.vector(2)),
        2 => {
            let operator = generator.one_of(&["^", "atan2"]);
            format!("{} {operator} {}", generator.vector(2), generator.one_of(SCALARS))
        }
        3 => {
            let by = match generator.random.below(3) {
                0 => String::new(),
                1 => format!(" without ({})", generator.labels()),
                _ => format!(" by ({})", generator.labels()),
            };
            format!("count_values{by} (\"value\", {})", generator.instant())
        }
        4 => {
            let quantile = generator.one_of(&["0", "0.5", "0.99", "1", "NaN", "7", "-1"]);
            let by = generator.one_of(&["le", "le, pod", "le, namespace, app", "pod"]);
            let range = generator.one_of(DURATIONS);
            let buckets = format!("sum by ({by}) (rate(h_bucket[{range}]))");
            format!("histogram_quantile({quantile}, {buckets})")
        }
        5 => format!("histogram_quantile(0.9, {})", generator.instant()),
        _ => generator.vector(3),
    }
}

struct Generator<'a> {
    random: &'a mut Random,
    start: i64,
    in_subquery: bool,
}

impl Generator<'_> {
    fn one_of<'b>(&mut self, of: &[&'b str]) -> &'b str {
        self.random.one_of(of)
    }

    fn scalar(&mut self, depth: usize) -> String {
        match self.random.below(if depth == 0 { 4 } else { 8 }) {
            0 => "time()".to_owned(),
            1..4 => self.one_of(SCALARS).to_owned(),
            4 => format!("scalar({})", self.vector(depth - 1)),
            5 => format!("-({})", self.scalar(depth - 1)),
            6 => {
                let (left, right) = (self.scalar(depth - 1), self.scalar(depth - 1));
                format!("({left} {} {right})", self.one_of(ARITHMETIC))
            }
            _ => {
                let (left, right) = (self.scalar(depth - 1), self.scalar(depth - 1));
                format!("({left} {} bool {right})", self.one_of(COMPARISONS))
            }
        }
    }

    fn labels(&mut self) -> String {
        let chosen = self.random.below(16);
        let labels = LABELS.iter().enumerate().filter(|(n, _)| chosen & (1 << n) != 0);
        let mut labels: Vec<&str> = labels.map(|(_, (label, _))| *label).collect();
        if self.random.below(12) == 0 {
            labels.push("__name__");
        }
        labels.join(", ")
    }

    fn instant(&mut self) -> String {
        format!("{}{}", selector(self.random), when(self.random, self.start))
    }

    fn range(&mut self) -> String {
        if !self.in_subquery && self.random.below(12) == 0 {
            return self.subquery();
        }
        self.selected()
    }

    fn subquery(&mut self) -> String {
        let mut inner = Generator { random: self.random, start: self.start, in_subquery: true };
        // Only what has an order over time in a real Prometheus, on which ties of `topk` depend.
        let vector = match inner.random.below(3) {
            0 => inner.instant(),
            1 => inner.over_time(),
            _ => format!("sum by ({}) ({})", inner.labels(), inner.instant()),
        };
        let range = self.one_of(&["30s", "1m", "2m30s"]);
        let step = self.one_of(&["7s", "10s", "", "1m"]);
        format!("({vector})[{range}:{step}]{}", when(self.random, self.start))
    }

    fn selected(&mut self) -> String {
        let mut selector = selector(self.random);
        while self.in_subquery && selector.starts_with('{') {
            selector = self::selector(self.random);
        }
        format!("{selector}[{}]{}", self.one_of(DURATIONS), when(self.random, self.start))
    }

    fn over_time(&mut self) -> String {
        let function = self.one_of(FUNCTIONS);
        match function {
            "quantile_over_time" => format!("{function}({}, {})", self.scalar(0), self.selected()),
            "predict_linear" => format!("{function}({}, {})", self.selected(), self.scalar(0)),
            _ => format!("{function}({})", self.range()),
        }
    }

    fn aggregate(&mut self, depth: usize) -> String {
        let operation = self.one_of(AGGREGATIONS);
        let by = match self.random.below(4) {
            0 => String::new(),
            1 => format!(" without ({})", self.labels()),
            _ => format!(" by ({})", self.labels()),
        };
        let parameter = match operation {
            "quantile" => format!("{}, ", self.one_of(&["0", "0.5", "0.9", "1", "-1", "2", "NaN"])),
            "topk" | "bottomk" => format!("{}, ", self.one_of(&["0", "1", "2", "3", "7.9", "-1"])),
            _ => String::new(),
        };
        format!("{operation}{by} ({parameter}{})", self.vector(depth))
    }

    fn matching(&mut self) -> String {
        match self.random.below(3) {
            0 => String::new(),
            1 => format!("on ({})", self.labels()),
            _ => format!("ignoring ({})", self.labels()),
        }
    }

    fn vector(&mut self, depth: usize) -> String {
        let Some(depth) = depth.checked_sub(1) else { return self.instant() };
        match self.random.below(20) {
            0 => self.instant(),
            1..4 => self.over_time(),
            4..9 => self.aggregate(depth),
            9 => {
                let (vector, scalar) = (self.vector(depth), self.scalar(depth));
                format!("({vector} {} {scalar})", self.one_of(ARITHMETIC))
            }
            10 => {
                let (vector, scalar) = (self.vector(depth), self.scalar(depth));
                let bool = self.one_of(&["", "bool "]);
                format!("({scalar} {} {bool}{vector})", self.one_of(COMPARISONS))
            }
            11 | 12 => self.between_vectors(depth),
            13 | 14 => {
                let operator = self.one_of(&["and", "or", "unless"]);
                let (left, right) = (self.vector(depth), self.vector(depth));
                format!("({left} {operator} {} {right})", self.matching())
            }
            15 => {
                let (function, vector) = (self.one_of(EACH), self.vector(depth));
                match self.random.below(5) {
                    0 => format!("clamp({vector}, 0.2, {})", self.scalar(0)),
                    1 => format!("clamp_min({vector}, {})", self.scalar(0)),
                    2 => format!("clamp_max({vector}, {})", self.scalar(0)),
                    _ if function == "round" => format!("round({vector}, {})", self.scalar(0)),
                    _ => format!("{function}({vector})"),
                }
            }
            16 => self.of_labels(depth),
            17 => format!("-({})", self.vector(depth)),
            18 => match self.random.below(3) {
                0 => format!("timestamp({})", self.instant()),
                1 => format!("timestamp({})", self.vector(depth)),
                _ => format!("vector({})", self.scalar(depth)),
            },
            _ => match self.random.below(2) {
                0 => format!("absent({})", self.instant()),
                _ => format!("absent_over_time({})", self.range()),
            },
        }
    }

    fn between_vectors(&mut self, depth: usize) -> String {
        let comparison = format!("{} {}", self.one_of(COMPARISONS), self.one_of(&["", "bool"]));
        let operator = match self.random.below(2) {
            0 => self.one_of(ARITHMETIC).to_owned(),
            _ => comparison,
        };
        // Mostly with equal labels on both sides, so that there is a result.
        if self.random.below(3) > 0 {
            let (labels, more) = (self.labels(), self.labels());
            let metrics = [self.one_of(METRICS), self.one_of(METRICS)];
            let [left, right] = metrics.map(|metric| {
                let range = if metric.ends_with("_total") { "[1m]" } else { "" };
                if range.is_empty() { metric.to_owned() } else { format!("rate({metric}{range})") }
            });
            return match self.random.below(4) {
                0 => format!("(sum by ({labels}) ({left}) {operator} max by ({labels}) ({right}))"),
                1 => format!(
                    "(sum by ({labels}) ({left}) {operator} on ({labels}) min by ({labels}) ({right}))"
                ),
                2 => format!(
                    "({left} {operator} on ({labels}) group_left ({more}) max by ({labels}, code) ({right}))"
                ),
                _ => format!(
                    "(avg by ({labels}) ({left}) {operator} on ({labels}) group_right () {right})"
                ),
            };
        }
        let (left, right) = (self.vector(depth), self.vector(depth));
        let matching = self.matching();
        let group = match self.random.below(4) {
            _ if matching.is_empty() => String::new(),
            0 => format!("group_left ({})", self.one_of(&["", "app"])),
            1 => format!("group_right ({})", self.one_of(&["", "app"])),
            _ => String::new(),
        };
        format!("({left} {operator} {matching} {group} {right})")
    }

    fn of_labels(&mut self, depth: usize) -> String {
        let vector = self.vector(depth);
        let target = self.one_of(&["new", "pod", "app", "__name__"]);
        if self.random.below(3) == 0 {
            return format!("label_join({vector}, \"{target}\", \"-\", \"app\", \"code\")");
        }
        let source = self.one_of(&["pod", "namespace", "nothing", "__name__"]);
        let regex = self.one_of(&["(.*)-.*", "", ".*", "(?P<first>.)(.*)", "p-(1)"]);
        let replacement = self.one_of(&["$1", "", "z", "${1}x", "$1x", "$first-$2", "$$"]);
        format!(
            "label_replace({vector}, \"{target}\", \"{replacement}\", \"{source}\", \"{regex}\")"
        )
    }
}
