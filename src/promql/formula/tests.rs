//! Formulas and their queries.

use super::*;

fn convert(formula: &str) -> Result<String, String> {
    let operands = [
        ("a", "sum(a)".to_owned()),
        ("b", "avg(b)".to_owned()),
        ("c", "max(c)".to_owned()),
        ("zero", trigger_value("sum(z)", true)),
        ("labelled", "rate(x[1m])".to_owned()),
    ];
    to_promql(formula, &operands.map(|(name, query)| (name.to_owned(), query)).into())
}

#[test]
fn a_formula_becomes_one_query() {
    for (formula, query) in [
        ("a", "sum(a)"),
        ("7", "vector(7)"),
        ("(a + b)/2", "(sum(a) + avg(b)) / 2"),
        ("a - b - c", "(sum(a) - avg(b)) - max(c)"),
        ("a + b * c", "sum(a) + (avg(b) * max(c))"),
        ("float(a) / 0x10", "sum(a) / 16"),
        ("a * 1_000 + .5 - 1e-3", "((sum(a) * 1000) + 0.5) - 0.001"),
        (
            "a > 10737418240 ? 2 : 1",
            "(vector(2) and (sum(a) > 10737418240)) or (vector(1) and (sum(a) <= 10737418240))",
        ),
        ("abs(a) + ceil(b) + floor(c)", "(abs(sum(a)) + ceil(avg(b))) + floor(max(c))"),
        ("round(a)", "sgn(sum(a)) * round(abs(sum(a)))"),
        ("int(a) % 3", "(sgn(sum(a)) * floor(abs(sum(a)))) % 3"),
        ("sum([a, b, c])", "sum(a) + (avg(b) + max(c))"),
        ("mean([a, b])", "(sum(a) + avg(b)) / 2"),
        ("median(a, 5)", "(sum(a) + 5) / 2"),
        ("max([a, 5,])", "clamp_min(sum(a), 5)"),
        ("min(2, a) + 1", "(clamp_max(vector(2), scalar(sum(a))) + 1) and sum(a)"),
        ("a ?? b ?? 5", "(sum(a) or avg(b)) or vector(5)"),
        ("1 + zero", "1 + (clamp_min(sum(z) < Inf > -Inf, 0) or on() vector(0))"),
        ("labelled / 2", "(rate(x[1m]) * on() vector(1)) / 2"),
    ] {
        assert_eq!(convert(formula).as_deref(), Ok(query), "{formula}");
    }
}

#[test]
fn operators_bind_as_in_expr() {
    for (formula, query) in [
        ("-a ** 2", "-(sum(a) ^ 2)"),
        ("(-a) ^ 2", "(-sum(a)) ^ 2"),
        ("2 ** -a", "2 ^ (-sum(a))"),
        ("a ** b ^ c", "sum(a) ^ (avg(b) ^ max(c))"),
        ("-a * b", "(-sum(a)) * avg(b)"),
        ("a - -b", "sum(a) - (-avg(b))"),
        ("a / b * c", "(sum(a) / avg(b)) * max(c)"),
        ("b + a ?? 5", "avg(b) + (sum(a) or vector(5))"),
        ("-a ?? 5", "-(sum(a) or vector(5))"),
    ] {
        assert_eq!(convert(formula).as_deref(), Ok(query), "{formula}");
    }
}

#[test]
fn a_condition_chooses_by_comparisons_that_need_their_operands() {
    for (formula, query) in [
        ("a > 5 ? a : 2", "(sum(a) and (sum(a) > 5)) or (vector(2) and (sum(a) <= 5))"),
        ("!(a == 5) ? 1 : 2", "(vector(1) and (sum(a) != 5)) or (vector(2) and (sum(a) == 5))"),
        (
            "1 < 2 ? a : 1",
            "((sum(a) and (vector(1) < 2)) or (vector(1) and (vector(1) >= 2))) and sum(a)",
        ),
        (
            "a > 1 && b > 1 ? 9 : 0",
            "(vector(9) and ((sum(a) > 1) and (avg(b) > 1))) or \
             (vector(0) and (((sum(a) > bool 1) * (avg(b) > bool 1)) == 0))",
        ),
        (
            "a > 1 or b > 1 ? 9 : 0",
            "(vector(9) and (((sum(a) > bool 1) + (avg(b) > bool 1)) > 0)) or \
             (vector(0) and ((sum(a) <= 1) and (avg(b) <= 1)))",
        ),
        (
            "count([a, b], {# > 1}) >= 1 ? 100 : 0",
            "(vector(100) and (((sum(a) > bool 1) + (avg(b) > bool 1)) >= 1)) or \
             (vector(0) and (((sum(a) > bool 1) + (avg(b) > bool 1)) < 1))",
        ),
    ] {
        assert_eq!(convert(formula).as_deref(), Ok(query), "{formula}");
    }
    assert_eq!(convert("1 < a < 5 ? 1 : 2"), convert("1 < a && a < 5 ? 1 : 2"));
    assert_eq!(convert("all([a, b], # > 1) ? 1 : 2"), convert("a > 1 && b > 1 ? 1 : 2"));
    assert_eq!(convert("none([a, b], {# > 1}) ? 1 : 2"), convert("not (a > 1 || b > 1) ? 1 : 2"));
}

/// KEDA fails if any trigger does, even one of the branch that is not chosen.
#[test]
fn a_branch_that_is_not_chosen_needs_its_trigger() {
    for (formula, guards) in [
        ("a > 5 ? a : b", " and avg(b)"),
        ("a > 5 ? b : c", " and avg(b) and max(c)"),
        ("a > 5 ? b : b + 1", ""),
        ("a > 5 ? b : zero", " and avg(b)"),
        ("max([a, b])", " and avg(b)"),
        ("max([a, zero])", ""),
    ] {
        let query = convert(formula).unwrap();
        let guard =
            [" and avg(b) and max(c)", " and avg(b)"].into_iter().find(|g| query.ends_with(g));
        assert_eq!(guard.unwrap_or_default(), guards, "{formula}: {query}");
    }
}

#[test]
fn what_has_no_counterpart_is_named() {
    for (formula, part) in [
        ("", "ends too early"),
        ("a +", "ends too early"),
        ("(a", "ends too early"),
        ("a b", "`b`"),
        ("trig-one", "`trig`"),
        ("a % 2", "`%`"),
        ("int(a) % int(b)", "`%`"),
        ("int(a) % 0", "`%`"),
        ("a > 5", "not a number"),
        ("[a, b]", "not a number"),
        ("(a > 5) + 1", "`+`"),
        ("a && b ? 1 : 2", "`&&`"),
        ("not a > 5 ? 1 : 2", "`not`"),
        ("a == 1 == 1 ? 1 : 2", "`==`"),
        ("a in [1, 2] ? 1 : 2", "`in`"),
        ("a not in [1] ? 1 : 2", "`not`"),
        ("sum(1..3)", "`..`"),
        ("[a, b] | max()", "`|`"),
        ("[a, b][0]", "`[`"),
        ("let x = a; x", "`let`"),
        ("a; b", "`;`"),
        ("a // note", "`//`"),
        ("if a > 1 {1} else {2}", "`if`"),
        ("a > 1 ?: 2", "`:`"),
        ("a > 1 ?.5 : 2", "`?.`"),
        ("nil ?? a", "`nil`"),
        ("true ? 1 : 2", "`true`"),
        ("'5'", "`'`"),
        ("#", "`#`"),
        ("(a + b) ?? 5", "`??`"),
        ("a ?? 5 + b", "`+` next to `??`"),
        ("sum([a], {# * 2})", "`{`"),
        ("map([a], # * 2)", "`#`"),
        ("count([a], {count([b], # > 1) > 0})", "`count`"),
        ("count([a])", "`count`"),
        ("max([])", "`max`"),
        ("median([a, b, c, 1])", "`median`"),
        ("abs(a, b)", "`abs`"),
        ("1x", "`1x`"),
        ("1e", "`1e`"),
        ("1e999", "`1e999`"),
        ("9007199254740993", "`9007199254740993`"),
        ("0x1.8", "`0.8`"),
    ] {
        let refused = convert(formula).unwrap_err();
        assert!(refused.contains(part), "{formula}: {refused}");
    }
    let deep = "(".repeat(5000) + "a" + &")".repeat(5000);
    assert!(convert(&deep).unwrap_err().contains("levels deep"));
    let long = (0..12).fold("a".to_owned(), |one, _| format!("round({one})"));
    assert!(convert(&long).unwrap_err().contains("8192"));
}

#[test]
fn an_operand_is_one_series_without_labels() {
    let operand = |query: &str| to_promql("-q", &[("q".to_owned(), query.to_owned())].into());
    for (query, text) in [
        ("sum(x)", "-sum(x)"),
        ("sum by () (x)", "-sum by () (x)"),
        ("sum(x) / count(y) > 0", "-(sum(x) / count(y) > 0)"),
        ("x", "-(x * on() vector(1))"),
        ("sum by (a) (x)", "-(sum by (a) (x) * on() vector(1))"),
        ("topk(1, x)", "-(topk(1, x) * on() vector(1))"),
        ("sum(x) + y", "-((sum(x) + y) * on() vector(1))"),
        ("sum(x) # all", "-(sum(x) # all\n)"),
    ] {
        assert_eq!(operand(query).as_deref(), Ok(text), "{query}");
    }
    assert!(operand("scalar(x)").unwrap_err().contains("`q` is not an instant vector"));
    assert!(operand("sum(").unwrap_err().contains("trigger `q`"));
}

#[test]
fn a_trigger_without_a_finite_value_is_empty_or_zero() {
    assert_eq!(trigger_value("sum(x)", false), "clamp_min(sum(x) < Inf > -Inf, 0)");
    assert_eq!(
        trigger_value("x or y", true),
        "clamp_min((x or y) < Inf > -Inf, 0) or on() vector(0)"
    );
    assert_eq!(trigger_value("x # y", false), "clamp_min((x # y\n) < Inf > -Inf, 0)");
}
