//! The walls between modules, as ARCHITECTURE.md has them.

mod modules;

use modules::{Modules, Names, below, circle, files, module_of, names, reached};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const MAX_LINES: usize = 500;

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn product() -> Modules {
    Modules::read(&at("src"))
}

/// The folders with a crate of their own, and the modules that each has at least.
const CRATES: [(&str, usize); 11] = [
    ("src", 200),
    ("bed/src", 15),
    ("bed/src/bin/bench", 10),
    ("bed/src/bin/demo", 2),
    ("bed/src/bin/soak", 5),
    ("bed/tests/e2e", 25),
    ("bed/tests/node", 8),
    ("image/src", 2),
    ("tests/architecture", 2),
    ("tests/conformance", 3),
    ("tests/queries", 1),
];

/// A circle of files, or of what is in one folder.
fn any_circle(modules: &Modules) -> Option<Vec<String>> {
    let uses = modules.uses();
    let files = circle(&uses).map(|way| way.iter().map(|module| module.join("::")).collect());
    files.or_else(|| modules.0.keys().find_map(|folder| circle(&below(&uses, folder))))
}

#[test]
fn nothing_imports_itself_by_way_of_others() {
    for (folder, least) in CRATES {
        let modules = Modules::read(&at(folder));
        assert!(modules.0.len() >= least, "{folder}: {} modules were read", modules.0.len());
        assert_eq!(any_circle(&modules), None, "a circle in {folder}");
    }
}

#[test]
fn the_server_and_the_control_loop_do_not_know_each_other() {
    let uses = product().uses();
    let folders = below(&uses, &Names::new());
    assert!(folders["control"].contains("hpa") && folders["serve"].contains("samples"));
    for (from, other) in [("control", "serve"), ("serve", "control")] {
        for module in uses.keys().filter(|module| module.first().is_some_and(|m| m == from)) {
            let found = reached(&uses, module).into_iter().find(|to| to.starts_with(&names(other)));
            assert_eq!(found, None, "{} uses it", module.join("::"));
        }
    }
}

#[test]
fn a_type_is_implemented_in_at_most_two_files() {
    let implementations = product().implementations();
    assert!(implementations.len() > 200, "{} types", implementations.len());
    assert!(implementations[&names("samples::coalesce::Coalescer")].len() == 2);
    for (name, modules) in implementations {
        assert!(modules.len() <= 2, "{}: {modules:?}", name.join("::"));
    }
}

#[test]
fn the_decision_queries_and_value_types_are_pure() {
    let forbidden = [
        "std::env",
        "std::fs",
        "std::io",
        "std::net",
        "std::process",
        "std::thread",
        "tokio",
        "std::time::Instant",
        "std::time::SystemTime",
    ];
    let modules = product();
    let pure = |module: &&Names| {
        matches!(module.first().map(String::as_str), Some("hpa" | "promql" | "k8s"))
    };
    for module in modules.0.keys().filter(pure) {
        let name = module.join("::");
        for path in modules.foreign(module) {
            let is = |start: &&&str| path == ***start || path.starts_with(&format!("{start}::"));
            assert_eq!(forbidden.iter().find(is), None, "{name}: {path}");
            assert!(!path.ends_with("::now"), "{name}: {path}");
        }
        for word in ["async", "await"] {
            assert!(!modules.0[module].words.contains(word), "{name}: {word}");
        }
    }
}

#[test]
fn only_promql_parses_promql() {
    let modules = product();
    let parses = |module: &&Names| {
        modules.foreign(module).iter().any(|path| path.starts_with("promql_parser"))
    };
    let folders: BTreeSet<_> = modules.0.keys().filter(parses).map(|module| &module[0]).collect();
    assert_eq!(folders, BTreeSet::from([&"promql".to_owned()]));
}

#[test]
fn the_code_map_names_each_file() {
    let text = fs::read_to_string(at("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let map = text.split("## Code map").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows: Vec<(&str, &str)> = map
        .expect("the code map")
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('|'))
        .collect();
    let src = at("src");
    let mut unnamed = Vec::new();
    let modules = product();
    for file in files(&src) {
        let file = file.strip_prefix(&src).expect("below src");
        let parts: Vec<_> = file.iter().map(|part| part.to_string_lossy()).collect();
        let name = parts[0].trim_end_matches(".rs");
        let row =
            rows.iter().find(|(modules, _)| format!("`{modules}").contains(&format!("`{name}`")));
        let named = match (row, parts.as_slice()) {
            (None, _) => false,
            // The sentence of a folder is for what is in it, too.
            (Some((_, words)), [_, folder, _, ..]) => words.contains(&format!("{folder}/`")),
            (Some((_, words)), [_, file]) => {
                file == "mod.rs" || words.contains(&format!("`{file}`"))
            }
            (Some(_), _) => true,
        };
        let is_test = !modules.0.contains_key(&module_of(file));
        if !named && !is_test {
            unnamed.push(file.display().to_string());
        }
    }
    assert_eq!(unnamed, Vec::<String>::new(), "not in the code map of ARCHITECTURE.md");
    for word in map.unwrap_or_default().split('`').filter(|word| word.ends_with(".rs")) {
        assert!(files(&src).iter().any(|file| file.ends_with(word)), "there is no {word}");
    }
}

#[test]
fn no_file_is_longer_than_it_is_read() {
    let lines = |path: &PathBuf| fs::read_to_string(path).expect("a source").lines().count();
    let all = [
        "src",
        "bed/src",
        "bed/tests",
        "image/src",
        "simulation/src",
        "simulation/tests",
        "tests",
        "benches",
        "fuzz/fuzz_targets",
    ];
    let long: Vec<_> = all
        .into_iter()
        .flat_map(|folder| files(&at(folder)))
        .map(|path| (lines(&path), path))
        .filter(|(lines, _)| *lines > MAX_LINES)
        .collect();
    assert!(long.is_empty(), "{long:?}");
}

/// A crate of these sources.
fn of(sources: &[(&str, &str)]) -> Modules {
    let mut modules = Modules::default();
    for (module, text) in sources {
        modules.add(names(module), text);
    }
    modules.without_tests()
}

#[test]
fn a_circle_is_found_however_it_is_written() {
    let mod_rs = "mod a; mod b; pub use a::A; pub use b::{self, B as C};";
    for (a, b) in [
        ("use super::b::B; pub struct A;", "use crate::x::a::A; pub struct B;"),
        // By the names that their folder gives them.
        ("use super::C; pub struct A;", "pub struct B(super::A);"),
        ("use crate::x; pub struct A(x::C);", "use crate::x::{A as Other}; pub struct B;"),
        // In macros, after what looks like a comment.
        ("pub struct A;", "fn f() { g!(\"//\", crate::x::a::A) } fn h() { i!(B) }"),
        ("use super::{b::{self, B}}; pub struct A;", "use {super::{a::{A}}}; pub struct B;"),
    ] {
        let b = &b.replace("i!(B)", "super::A");
        let a = &a.replace("pub struct A;", "pub struct A; type X = super::b::B;");
        let found = any_circle(&of(&[("", "mod x;"), ("x", mod_rs), ("x::a", a), ("x::b", b)]));
        let found = found.map(BTreeSet::from_iter);
        assert_eq!(found, Some(["x::a", "x::b"].map(str::to_owned).into()), "{a} {b}");
    }
    // With what their folder defines and uses itself.
    let parent = "mod a; use a::A; pub struct X(A);";
    assert!(
        any_circle(&of(&[("x", parent), ("x::a", "pub struct A(Option<super::X>);")])).is_some()
    );
    // Of folders, not of files.
    let folders = [
        ("x", ""),
        ("x::a", "mod one; mod two;"),
        ("x::a::one", "use crate::x::b::one::B;"),
        ("x::a::two", ""),
        ("x::b", "mod one; mod two;"),
        ("x::b::one", ""),
        ("x::b::two", "type T = crate::x::a::two::T;"),
    ];
    assert_eq!(any_circle(&of(&folders)), Some(vec!["a".to_owned(), "b".to_owned()]));
}

#[test]
fn what_is_no_circle_is_none() {
    let parent =
        "mod a; mod b; #[cfg(test)] pub mod tests; pub use a::A; pub use b::B; pub struct X;";
    let a = "use super::X; pub struct A; /// [`super::B`]\n fn f() { \"super::B\"; } // super::B
        #[cfg(test)] mod tests { use super::super::B; }";
    let modules = [
        ("x", parent),
        ("x::a", a),
        ("x::b", "struct B(super::A);"),
        ("x::tests", "use super::a;"),
    ];
    let modules = of(&modules);
    assert_eq!(any_circle(&modules), None);
    assert_eq!(modules.uses()[&names("x::a")], BTreeSet::from([names("x")]));
    assert_eq!(modules.0.len(), 3);
}

#[test]
fn implementations_are_found() {
    let a = "pub struct A<T>(T); impl<T: Fn() -> u8> A<T> {} fn f() -> impl Copy {}";
    let b = "use crate::a::A; impl<'a> From<&'a str> for A<u8> {} impl super::a::A<u16> {}";
    let found = of(&[("", ""), ("a", a), ("b", b)]).implementations();
    assert_eq!(found[&names("a::A")], BTreeSet::from([names("a"), names("b")]));
}
