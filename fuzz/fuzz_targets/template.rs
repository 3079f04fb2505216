//! No template makes its parser or its rendering panic.
#![no_main]

use plimsoll::promql::matcher::Matcher;
use plimsoll::promql::query::fields;
use plimsoll::promql::template::Template;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(template) = Template::parse(text) else { return };
    let matchers = [
        ("namespace", Matcher::Is("shop".to_owned())),
        ("pod", Matcher::AnyOf(vec!["a".to_owned(), "b".to_owned()])),
    ];
    let group_by = ["pod".to_owned(), "container".to_owned()];
    let _ = template.render(&fields("hits_total", &matchers, &group_by));
});
