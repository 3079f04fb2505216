//! No label value ends its literal or acts as a pattern: a query stays one
//! selector with one matcher, which matches that value.
#![no_main]

use plimsoll::promql::matcher::Matcher;
use promql_parser::parser::{Expr, parse};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let values = vec![text.to_owned(), "other".to_owned()];
    for matcher in [Matcher::Is(text.to_owned()), Matcher::AnyOf(values)] {
        let query = format!("up{{{}}}", matcher.render("a"));
        let Ok(Expr::VectorSelector(selector)) = parse(&query) else {
            panic!("{query} is not one selector");
        };
        let [only] = selector.matchers.matchers.as_slice() else {
            panic!("{query} has not one matcher");
        };
        assert!(only.is_match(text), "{query}");
    }
});
