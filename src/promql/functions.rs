//! The functions of PromQL that a user's query may call, by their effect on series.

/// The result of a function for the series of its argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    /// A series for each series, computed only from it, with its labels (with or without the metric
    /// name).
    EachSeries,
    /// A number that depends on no series.
    Constant,
    /// Anything else, for which no promise is made: it depends on several series, changes labels, or is
    /// an experimental function, which the Prometheus of the tests does not run.
    Other,
}

use FunctionKind::{Constant, EachSeries, Other};

/// The functions that a user's query may call.
///
/// All others are refused, such as `info`: it selects series (`target_info`) that the query does not
/// name, so that they can't be kept in a namespace.
///
/// A function may be added if all series that it reads come from its arguments. If it writes labels,
/// `written_labels` bounds them, and if it takes a regular expression, that, too. `EachSeries` promises
/// what `exactness` needs: `planned.rs` of the end-to-end tests tries each on a real Prometheus, but
/// those of native histograms.
const FUNCTIONS: &[(&str, FunctionKind)] = &[
    ("abs", EachSeries),
    ("absent", Other),
    ("absent_over_time", Other),
    ("acos", EachSeries),
    ("acosh", EachSeries),
    ("asin", EachSeries),
    ("asinh", EachSeries),
    ("atan", EachSeries),
    ("atanh", EachSeries),
    ("avg_over_time", EachSeries),
    ("ceil", EachSeries),
    ("changes", EachSeries),
    ("clamp", EachSeries),
    ("clamp_max", EachSeries),
    ("clamp_min", EachSeries),
    ("cos", EachSeries),
    ("cosh", EachSeries),
    ("count_over_time", EachSeries),
    ("day_of_month", EachSeries),
    ("day_of_week", EachSeries),
    ("day_of_year", EachSeries),
    ("days_in_month", EachSeries),
    ("deg", EachSeries),
    ("delta", EachSeries),
    ("deriv", EachSeries),
    ("double_exponential_smoothing", Other),
    ("end", Other),
    ("exp", EachSeries),
    ("first_over_time", Other),
    ("floor", EachSeries),
    ("histogram_avg", EachSeries),
    ("histogram_count", EachSeries),
    // These depend on all buckets of a histogram; `exactness` has a rule for the first two.
    ("histogram_fraction", Other),
    ("histogram_quantile", Other),
    ("histogram_quantiles", Other),
    ("histogram_stddev", EachSeries),
    ("histogram_stdvar", EachSeries),
    ("histogram_sum", EachSeries),
    ("hour", EachSeries),
    ("idelta", EachSeries),
    ("increase", EachSeries),
    ("integral", Other),
    ("irate", EachSeries),
    // These two read and write labels: `exactness` has a rule for them.
    ("label_join", Other),
    ("label_replace", Other),
    ("last_over_time", EachSeries),
    ("ln", EachSeries),
    ("log10", EachSeries),
    ("log2", EachSeries),
    ("mad_over_time", Other),
    ("max_of", Other),
    ("max_over_time", EachSeries),
    ("min_of", Other),
    ("min_over_time", EachSeries),
    ("minute", EachSeries),
    ("month", EachSeries),
    ("pi", Constant),
    ("predict_linear", EachSeries),
    ("present_over_time", EachSeries),
    ("quantile_over_time", EachSeries),
    ("rad", EachSeries),
    ("range", Other),
    ("rate", EachSeries),
    ("resets", EachSeries),
    ("round", EachSeries),
    ("scalar", Other),
    ("sgn", EachSeries),
    ("sin", EachSeries),
    ("sinh", EachSeries),
    ("sort", Other),
    ("sort_by_label", Other),
    ("sort_by_label_desc", Other),
    ("sort_desc", Other),
    ("sqrt", EachSeries),
    ("start", Other),
    ("start_timestamp", Other),
    ("stddev_over_time", EachSeries),
    ("stdvar_over_time", EachSeries),
    ("step", Other),
    ("sum_over_time", EachSeries),
    ("tan", EachSeries),
    ("tanh", EachSeries),
    ("time", Constant),
    ("timestamp", EachSeries),
    ("ts_of_first_over_time", Other),
    ("ts_of_last_over_time", Other),
    ("ts_of_max_over_time", Other),
    ("ts_of_min_over_time", Other),
    ("vector", Other),
    ("year", EachSeries),
];

/// The functions that the parser knows and no user's query may call.
#[cfg(test)]
const REFUSED: &[&str] = &["info"];

/// The kind of a function; none if a user's query may not call it.
pub fn kind(name: &str) -> Option<FunctionKind> {
    let found = FUNCTIONS.binary_search_by_key(&name, |(name, _)| name);
    found.ok().map(|at| FUNCTIONS[at].1)
}

/// The functions of the kind `EachSeries`, which the end-to-end tests try on a real Prometheus.
pub fn each_series() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().filter(|(_, kind)| *kind == EachSeries).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::process::Command;

    /// The source of the parser's table, which is private.
    fn table() -> String {
        let host = Command::new("rustc").arg("-vV").output().unwrap().stdout;
        let host = String::from_utf8(host).unwrap();
        let host = host.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let arguments = ["metadata", "--offline", "--locked", "--format-version=1"];
        let output = Command::new(env!("CARGO"))
            .args(arguments)
            .args(["--filter-platform", host, "--manifest-path", manifest])
            .output()
            .unwrap();
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut packages = metadata["packages"].as_array().unwrap().iter();
        let parser = packages.find(|package| package["name"] == "promql-parser").unwrap();
        let manifest = std::path::Path::new(parser["manifest_path"].as_str().unwrap());
        std::fs::read_to_string(manifest.with_file_name("src/parser/function.rs")).unwrap()
    }

    #[test]
    fn each_function_of_the_parser_is_admitted_or_refused_by_name() {
        let source = table();
        let entry = regex::Regex::new(r#"function!\(\s*"([a-z0-9_]+)""#).unwrap();
        let known: BTreeSet<&str> =
            entry.captures_iter(&source).map(|found| found.extract::<1>().1[0]).collect();
        assert!(known.len() > 80, "{known:?}");
        let ours: BTreeSet<&str> =
            FUNCTIONS.iter().map(|(name, _)| *name).chain(REFUSED.iter().copied()).collect();
        // A new function must be added to one of the lists.
        assert_eq!(known, ours);
    }

    #[test]
    fn the_list_is_sorted_so_that_each_is_found() {
        assert!(FUNCTIONS.is_sorted_by_key(|(name, _)| name));
        assert_eq!(kind("rate"), Some(EachSeries));
        assert_eq!(kind("info"), None);
    }
}
