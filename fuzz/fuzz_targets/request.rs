//! No path and no selector makes the request parser panic, and printing a parsed selector
//! gives an equal one.
#![no_main]

use plimsoll::k8s::Selector;
use plimsoll::serve::RequestInfo;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = RequestInfo::parse(text);
    let _ = RequestInfo::parse(&format!("/apis/custom.metrics.k8s.io/v1beta1/{text}"));
    if let Ok(selector) = text.parse::<Selector>() {
        let again: Selector = selector.to_string().parse().expect("a printed selector parses");
        assert_eq!(selector, again, "{text:?}");
        let _ = selector.to_object();
    }
});
