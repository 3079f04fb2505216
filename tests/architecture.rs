//! The walls between modules: no circle of imports, no file of more than 500 lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module by its path below `crate`, such as `["promql", "plan"]`.
type Module = Vec<String>;

const MAX_LINES: usize = 500;

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn all_sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    found.sort();
    found
}

fn module_of(path: &Path) -> Module {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let relative = path.strip_prefix(src).expect("below src").with_extension("");
    let mut module: Module =
        relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    module
}

/// The code without comments and without unit tests.
fn code_of(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let without_comment = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    text[..end].lines().map(without_comment).collect::<Vec<_>>().join("\n")
}

/// The paths of a `use` tree: `crate::{a::B, c::{D, self}}` gives `crate::a::B`, `crate::c::D` and
/// `crate::c`.
fn expand(prefix: &[String], tree: &str, found: &mut Vec<Module>) {
    let (mut depth, mut start) = (0, 0);
    let mut branches = Vec::new();
    for (at, c) in tree.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                branches.push(&tree[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    branches.push(&tree[start..]);
    for branch in branches.into_iter().map(str::trim).filter(|branch| !branch.is_empty()) {
        let (path, inner) = match branch.split_once('{') {
            Some((path, inner)) => (path, inner.rsplit_once('}').map(|(inner, _)| inner)),
            None => (branch.split(" as ").next().unwrap_or(branch), None),
        };
        let parts = path.split("::").map(str::trim).filter(|part| !part.is_empty());
        let parts = parts.filter(|part| *part != "self").map(str::to_owned);
        let path: Module = prefix.iter().cloned().chain(parts).collect();
        match inner {
            Some(inner) => expand(&path, inner, found),
            None => found.push(path),
        }
    }
}

/// The paths below `crate` that a module speaks of, in `use` items and inline.
fn paths_of(module: &Module, code: &str) -> Vec<Module> {
    let mut found = Vec::new();
    for item in code.split("use ").skip(1) {
        let item = item.split(';').next().unwrap_or_default().trim();
        if item.starts_with("crate::") || item.starts_with("super::") || item.starts_with("self::")
        {
            expand(&[], item, &mut found);
        }
    }
    for (at, _) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        let path = code[at..].split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        expand(&[], path.take(1).next().unwrap_or_default(), &mut found);
    }
    let absolute = |path: Module| {
        let mut base = match path.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            _ => module.clone(),
        };
        for part in path.into_iter().filter(|part| part != "crate") {
            if part == "super" {
                base.pop();
            } else {
                base.push(part);
            }
        }
        base
    };
    found.into_iter().map(absolute).collect()
}

/// Which module uses which.
fn graph() -> BTreeMap<Module, BTreeSet<Module>> {
    let sources = all_sources();
    let modules: BTreeSet<Module> = sources.iter().map(|path| module_of(path)).collect();
    let is_test = |path: &&PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        matches!(&*name, "tests" | "fake") || path.iter().any(|part| part == "tests")
    };
    let mut graph = BTreeMap::new();
    for path in sources.iter().filter(|path| !is_test(path)) {
        let module = module_of(path);
        let code = code_of(&fs::read_to_string(path).expect("a source"));
        let mut used = BTreeSet::new();
        for path in paths_of(&module, &code) {
            let longest = (1..=path.len()).rev().map(|n| path[..n].to_vec());
            used.extend(longest.into_iter().find(|prefix| modules.contains(prefix)));
        }
        // A folder's `mod.rs` gives names to what is in it; that is no use.
        used.retain(|other| *other != module && !(other.starts_with(&module)));
        graph.insert(module, used);
    }
    graph
}

/// A circle, where there is one.
fn circle<K: Ord + Clone>(graph: &BTreeMap<K, BTreeSet<K>>) -> Option<Vec<K>> {
    fn visit<K: Ord + Clone>(
        at: &K,
        graph: &BTreeMap<K, BTreeSet<K>>,
        way: &mut Vec<K>,
        done: &mut BTreeSet<K>,
    ) -> Option<Vec<K>> {
        if let Some(start) = way.iter().position(|known| known == at) {
            return Some(way[start..].to_vec());
        }
        if done.contains(at) {
            return None;
        }
        way.push(at.clone());
        let found = graph.get(at).into_iter().flatten().find_map(|to| visit(to, graph, way, done));
        way.pop();
        done.insert(at.clone());
        found
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|start| visit(start, graph, &mut Vec::new(), &mut done))
}

#[test]
fn no_file_imports_itself_by_way_of_others() {
    let graph = graph();
    assert!(graph.len() > 50, "{} modules were read", graph.len());
    let found = circle(&graph).map(|way| way.iter().map(|m| m.join("::")).collect::<Vec<_>>());
    assert_eq!(found, None, "a circle of modules");
}

#[test]
fn no_folder_imports_itself_by_way_of_others() {
    let mut folders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, used) in graph() {
        let Some(folder) = module.first() else { continue };
        let others = used.iter().filter_map(|other| other.first()).filter(|other| *other != folder);
        folders.entry(folder.clone()).or_default().extend(others.cloned());
    }
    assert!(folders["control"].contains("hpa"), "{folders:?}");
    assert!(!folders["control"].contains("serve") && !folders["serve"].contains("control"));
    assert_eq!(circle(&folders), None, "a circle of top-level modules");
}

#[test]
fn a_circle_is_found() {
    let of = |pairs: &[(&'static str, &'static str)]| {
        let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (from, to) in pairs {
            graph.entry(from).or_default().insert(to);
        }
        circle(&graph)
    };
    assert_eq!(of(&[("a", "b"), ("b", "c"), ("a", "c")]), None);
    assert_eq!(of(&[("a", "b"), ("b", "c"), ("c", "b")]), Some(vec!["b", "c"]));
    let module = ["serve", "custom"].map(str::to_owned).to_vec();
    let code = "use super::{router::{self, Server}, request::Target};\nlet x = crate::hpa::Spec;";
    let paths: BTreeSet<String> =
        paths_of(&module, code).iter().map(|path| path.join("::")).collect();
    for path in ["serve::router", "serve::router::Server", "serve::request::Target", "hpa::Spec"] {
        assert!(paths.contains(path), "{path}: {paths:?}");
    }
}

#[test]
fn no_file_is_longer_than_it_is_read() {
    let lines = |path: &PathBuf| fs::read_to_string(path).expect("a source").lines().count();
    let long: Vec<_> = all_sources()
        .into_iter()
        .map(|path| (lines(&path), path))
        .filter(|(lines, _)| *lines > MAX_LINES)
        .collect();
    assert!(long.is_empty(), "{long:?}");
}
