//! Properties of the guard and the planner, for all queries.

#[path = "queries/mod.rs"]
mod queries;

use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Without optimization a case takes some ms; `make conformance` runs the full number.
const CASES: u32 = if cfg!(debug_assertions) { 128 } else { 4096 };

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 64..1024)
}

#[test]
fn every_selector_of_what_is_sent_has_the_namespace() {
    let (made, sent) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let config = ProptestConfig { cases: CASES, ..ProptestConfig::default() };
    proptest!(config, |(bytes in bytes())| {
        if let Some(query) = queries::query(&bytes, "") {
            made.fetch_add(1, Ordering::Relaxed);
            sent.fetch_add(usize::from(queries::check_guard(&query).is_some()), Ordering::Relaxed);
        }
    });
    // Most queries are admitted: a guard that refuses everything would hold as well.
    let (made, sent) = (made.into_inner(), sent.into_inner());
    println!("{sent} of {made} queries are sent");
    assert!(sent * 2 > made, "{sent} of {made}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn every_text_is_guarded_or_refused(text in "\\PC{0,200}") {
        queries::check_guard(&text);
    }

    #[test]
    fn what_is_sent_for_a_query_is_equivalent_to_it(bytes in bytes()) {
        if let Some(query) = queries::query(&bytes, "") {
            queries::check_single(&query);
        }
    }

    #[test]
    fn what_is_planned_is_promql_and_covers_all_queries(bytes in bytes()) {
        queries::check_plan(&bytes);
    }
}

#[test]
fn no_text_needs_more_than_a_small_stack() {
    let signs = "-".repeat(8_190) + "x";
    let parentheses = "(".repeat(4_000) + "x" + &")".repeat(4_000);
    for text in [signs, parentheses, "x or ".repeat(1_600) + "x", "up offset Inf".to_owned()] {
        queries::on_a_small_stack(|| {
            queries::check_guard(&text);
            queries::check_single(&text);
        });
    }
}

/// Regular expressions that the parser does not know, and Prometheus may.
#[test]
fn regular_expressions_that_only_prometheus_accepts_pass_unchanged() {
    let braces = r#"wb{namespase=~"in{{{{fra|ba"}"#;
    assert!(queries::check_guard(braces).is_some());
    queries::check_single(braces);
    // Neither accepts this one: it is refused if a user wrote it, and otherwise by Prometheus.
    let broken = r#"{name=~")+",node="{n}"}"#;
    assert!(queries::check_guard(broken).is_none());
    queries::check_single(broken);
}

/// A shape can have no parameters and a required label: such a query is printed anew as well.
#[test]
fn a_query_that_only_requires_a_label_is_equivalent_to_what_is_sent() {
    queries::check_single(r#"{"http.requests","k8s.pod.name"!=""}"#);
}
