//! Every planned query is PromQL and equivalent to its queries, and no query is left out.
#![no_main]

#[path = "../../tests/queries/mod.rs"]
mod queries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    queries::on_a_small_stack(|| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            queries::check_single(text);
        }
        queries::check_plan(bytes);
    });
});
