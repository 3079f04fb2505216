//! Every selector of a guarded query has the
//! namespace, or the query is refused: no panic, no overflow of a small stack.
#![no_main]

#[path = "../../tests/queries/mod.rs"]
mod queries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    queries::on_a_small_stack(|| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            queries::check_guard(text);
        }
        // The bytes as choices make a query that is PromQL.
        if let Some(query) = queries::query(bytes, "") {
            queries::check_guard(&query);
        }
    });
});
