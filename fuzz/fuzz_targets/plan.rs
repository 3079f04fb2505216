//! What is planned for a query is PromQL, says what the query says, and answers
//! all who asked.
#![no_main]

#[path = "../../tests/queries/mod.rs"]
mod queries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    queries::on_a_small_stack(|| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            queries::check_alone(text);
        }
        queries::check_plan(bytes);
    });
});
