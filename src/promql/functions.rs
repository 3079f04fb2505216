//! The functions of PromQL: what a user's query may call, and what each does to series.

/// What a function gives for each series of its argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One series, made of that series alone; its labels stay but for the name.
    EachSeries,
    /// No series: the same number, whatever series there are.
    Scalar,
    /// Anything else: the series are seen together, or lose or gain labels.
    Whole,
}

use Kind::{EachSeries, Scalar, Whole};

/// The functions that a user's query may call.
///
/// What is not named here is refused. `info` is not: with one argument it selects
/// series (`target_info`) that stand nowhere in the query, so that nothing can
/// keep them in a namespace. A function may be added when all series that
/// it reads come from its arguments.
const FUNCTIONS: &[(&str, Kind)] = &[
    ("abs", EachSeries),
    ("absent", Whole),
    ("absent_over_time", Whole),
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
    ("double_exponential_smoothing", Whole),
    ("end", Whole),
    ("exp", EachSeries),
    ("first_over_time", Whole),
    ("floor", EachSeries),
    ("histogram_avg", EachSeries),
    ("histogram_count", EachSeries),
    // Those two see the buckets of a histogram together: the planner knows them by name.
    ("histogram_fraction", Whole),
    ("histogram_quantile", Whole),
    ("histogram_quantiles", Whole),
    ("histogram_stddev", EachSeries),
    ("histogram_stdvar", EachSeries),
    ("histogram_sum", EachSeries),
    ("hour", EachSeries),
    ("idelta", EachSeries),
    ("increase", EachSeries),
    ("integral", Whole),
    ("irate", EachSeries),
    // Those two read and write labels: the planner knows them by name.
    ("label_join", Whole),
    ("label_replace", Whole),
    ("last_over_time", EachSeries),
    ("ln", EachSeries),
    ("log10", EachSeries),
    ("log2", EachSeries),
    ("mad_over_time", Whole),
    ("max_of", Whole),
    ("max_over_time", EachSeries),
    ("min_of", Whole),
    ("min_over_time", EachSeries),
    ("minute", EachSeries),
    ("month", EachSeries),
    ("pi", Scalar),
    ("predict_linear", EachSeries),
    ("present_over_time", EachSeries),
    ("quantile_over_time", EachSeries),
    ("rad", EachSeries),
    ("range", Whole),
    ("rate", EachSeries),
    ("resets", EachSeries),
    ("round", EachSeries),
    ("scalar", Whole),
    ("sgn", EachSeries),
    ("sin", EachSeries),
    ("sinh", EachSeries),
    ("sort", Whole),
    ("sort_by_label", Whole),
    ("sort_by_label_desc", Whole),
    ("sort_desc", Whole),
    ("sqrt", EachSeries),
    ("start", Whole),
    ("start_timestamp", Whole),
    ("stddev_over_time", EachSeries),
    ("stdvar_over_time", EachSeries),
    ("step", Whole),
    ("sum_over_time", EachSeries),
    ("tan", EachSeries),
    ("tanh", EachSeries),
    ("time", Scalar),
    ("timestamp", EachSeries),
    ("ts_of_first_over_time", Whole),
    ("ts_of_last_over_time", Whole),
    ("ts_of_max_over_time", Whole),
    ("ts_of_min_over_time", Whole),
    ("vector", Whole),
    ("year", EachSeries),
];

/// The functions that the parser knows and no user's query may call.
#[cfg(test)]
const REFUSED: &[&str] = &["info"];

/// What a function does; none where a user's query may not call it.
pub fn kind(name: &str) -> Option<Kind> {
    let found = FUNCTIONS.binary_search_by_key(&name, |(name, _)| name);
    found.ok().map(|at| FUNCTIONS[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::process::Command;

    /// The source of the parser's table, which it shows to nobody.
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
        // A new one is refused until somebody has read what it does.
        assert_eq!(known, ours);
    }

    #[test]
    fn the_list_is_sorted_so_that_each_is_found() {
        assert!(FUNCTIONS.is_sorted_by_key(|(name, _)| name));
        assert_eq!(kind("rate"), Some(EachSeries));
        assert_eq!(kind("info"), None);
    }
}
