//! Reads the modules of a crate and which of them uses which, from the tokens of their sources.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module below the root of its crate, such as `["promql", "plan"]`, or any other path of names.
pub type Names = Vec<String>;

/// Modules or folders, and which others each uses.
pub type Graph<K> = BTreeMap<K, BTreeSet<K>>;

/// The modules of one crate.
#[derive(Default)]
pub struct Modules(pub BTreeMap<Names, Source>);

/// What the source of one module says, without its unit tests.
#[derive(Default)]
pub struct Source {
    /// The names that `use` items bind, and to what.
    bound: BTreeMap<String, Names>,
    /// Those of them that `pub use` gives to others.
    given: BTreeSet<String>,
    /// The paths in expressions, types and private `use` items.
    paths: BTreeSet<Names>,
    /// Each identifier outside of `use` items.
    pub words: BTreeSet<String>,
    /// The types that are implemented here.
    types: Vec<Names>,
    /// The modules below that are for tests only.
    tests: BTreeSet<String>,
}

/// All Rust sources below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The module that a file is, by its path below the folder of the crate's root.
pub fn module_of(relative: &Path) -> Names {
    let relative = relative.with_extension("");
    let mut module: Names =
        relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let last = module.last().map(String::as_str);
    if last == Some("mod") || module.len() == 1 && matches!(last, Some("lib" | "main")) {
        module.pop();
    }
    module
}

pub fn names(path: &str) -> Names {
    path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn is_punct(token: Option<&TokenTree>, c: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == c)
}

fn word(token: Option<&TokenTree>) -> Option<String> {
    match token {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

fn is_double_colon(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':')
}

/// The path that begins at a token, and where it ends.
fn path_at(tokens: &[TokenTree], mut at: usize) -> (Names, usize) {
    let mut path: Names = word(tokens.get(at)).into_iter().collect();
    at += 1;
    while is_double_colon(tokens, at)
        && let Some(next) = word(tokens.get(at + 2))
    {
        path.push(next);
        at += 3;
    }
    (path, at)
}

/// The paths of a `use` tree with the names that they bind: `a::{b::C, d as e}` gives `a::b::C` as
/// `C`, and `a::d` as `e`.
fn use_tree(prefix: &[String], tokens: &[TokenTree], found: &mut Vec<(String, Names)>) {
    for branch in tokens.split(|token| is_punct(Some(token), ',')) {
        let start = if is_double_colon(branch, 0) { 2 } else { 0 };
        let (tail, end) = path_at(branch, start);
        let mut path: Names = prefix.iter().cloned().chain(tail).collect();
        if let Some(TokenTree::Group(group)) = branch.get(start) {
            use_tree(&path, &group.stream().into_iter().collect::<Vec<_>>(), found);
        } else if let Some(TokenTree::Group(group)) = branch.get(end + 2) {
            use_tree(&path, &group.stream().into_iter().collect::<Vec<_>>(), found);
        } else if !path.is_empty() {
            if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            let renamed = word(branch.get(end)).filter(|word| word == "as");
            let name = renamed.and_then(|_| word(branch.get(end + 1)));
            found.push((name.unwrap_or_else(|| path[path.len() - 1].clone()), path));
        }
    }
}

/// Where the item that begins at a token ends.
fn item_end(tokens: &[TokenTree], start: usize) -> usize {
    let is_use = (start..start + 3).any(|at| word(tokens.get(at)).is_some_and(|w| w == "use"));
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace && !is_use,
        token => is_punct(Some(token), ';'),
    };
    tokens[start..].iter().position(ends).map_or(tokens.len(), |length| start + length + 1)
}

impl Source {
    pub fn read(text: &str) -> Self {
        let tokens: TokenStream = text.parse().expect("Rust");
        let mut source = Self::default();
        source.add(tokens, true);
        source
    }

    fn add(&mut self, stream: TokenStream, items: bool) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) if is_punct(at.checked_sub(1).map(|i| &tokens[i]), '#') => {
                    at += 1;
                    if group.stream().to_string().replace(' ', "") == "cfg(test)" {
                        let end = item_end(&tokens, at);
                        // `mod tests;`, `pub(super) mod tests;`
                        let is_mod = |i: &usize| word(tokens.get(*i)).is_some_and(|w| w == "mod");
                        if let Some(keyword) = (at..end.min(at + 3)).find(is_mod) {
                            self.tests.extend(word(tokens.get(keyword + 1)));
                        }
                        at = end;
                    }
                }
                TokenTree::Group(group) => {
                    self.add(group.stream(), false);
                    at += 1;
                }
                TokenTree::Ident(ident) if ident == "use" => {
                    let end = item_end(&tokens, at);
                    // `pub use`, `pub(super) use`
                    let public = (1..=2).any(|back| {
                        at >= back && word(Some(&tokens[at - back])).is_some_and(|w| w == "pub")
                    });
                    self.add_use(&tokens[at + 1..end - 1], public);
                    at = end;
                }
                // Declares a module and does not speak of it.
                TokenTree::Ident(ident) if ident == "mod" => at += 2,
                TokenTree::Ident(ident) if ident == "impl" && items => {
                    at += 1;
                    self.types.extend(implemented(&tokens[at..]));
                }
                TokenTree::Ident(ident) => {
                    self.words.insert(ident.to_string());
                    let (path, end) = path_at(&tokens, at);
                    if path.len() > 1 {
                        self.paths.insert(path);
                    }
                    at = end;
                }
                _ => at += 1,
            }
        }
    }

    fn add_use(&mut self, tree: &[TokenTree], public: bool) {
        let mut found = Vec::new();
        use_tree(&[], tree, &mut found);
        for (name, path) in found {
            if public {
                self.given.insert(name.clone());
            } else {
                self.paths.insert(path.clone());
            }
            self.bound.insert(name, path);
        }
    }
}

/// The type of an `impl`, of which the tokens after the keyword are given.
fn implemented(tokens: &[TokenTree]) -> Option<Names> {
    let body = tokens.iter().position(
        |token| matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace),
    );
    let head = &tokens[..body?];
    let mut depth = 0;
    let mut start = 0;
    for (at, token) in head.iter().enumerate() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '<' => depth += 1,
            // Not `->`.
            TokenTree::Punct(punct) if punct.as_char() == '>' => {
                if !is_punct(at.checked_sub(1).map(|i| &head[i]), '-') {
                    depth -= 1;
                }
                if depth == 0 && start == 0 && is_punct(head.first(), '<') {
                    start = at + 1;
                }
            }
            TokenTree::Ident(ident) if ident == "for" && depth == 0 => start = at + 1,
            _ => {}
        }
    }
    let first = (start..head.len()).find(|at| word(head.get(*at)).is_some())?;
    Some(path_at(head, first).0)
}

impl Modules {
    /// The modules of the crate whose root is in a folder, without those of its binaries.
    pub fn read(folder: &Path) -> Self {
        let mut modules = Self::default();
        for path in files(folder) {
            let relative = path.strip_prefix(folder).expect("below the folder");
            if !relative.starts_with("bin") {
                let text = fs::read_to_string(&path).expect("a source");
                modules.add(module_of(relative), &text);
            }
        }
        modules.without_tests()
    }

    pub fn add(&mut self, module: Names, text: &str) {
        let source = self.0.entry(module).or_default();
        let more = Source::read(text);
        // Of a library and a binary that share a folder each says something of the root.
        source.bound.extend(more.bound);
        source.given.extend(more.given);
        source.paths.extend(more.paths);
        source.words.extend(more.words);
        source.types.extend(more.types);
        source.tests.extend(more.tests);
    }

    pub fn without_tests(mut self) -> Self {
        let tests: Vec<Names> = self
            .0
            .iter()
            .flat_map(|(module, source)| {
                source
                    .tests
                    .iter()
                    .map(|name| [module.as_slice(), std::slice::from_ref(name)].concat())
            })
            .collect();
        self.0.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        self
    }

    /// A path as it is written in a module, from the root of this crate; none for another crate's.
    fn absolute(&self, module: &Names, path: &[String]) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        let mut base = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            _ => {
                let child = [module.as_slice(), &path[..1]].concat();
                if self.0.contains_key(&child) {
                    child
                } else {
                    let bound = self.0.get(module)?.bound.get(first)?;
                    if bound.first() == Some(first) {
                        return None;
                    }
                    self.absolute(module, bound)?
                }
            }
        };
        for part in rest {
            if part == "super" {
                base.pop();
            } else {
                base.push(part.clone());
            }
        }
        Some(base)
    }

    /// The module that defines what a path names, whoever gives it another name by `use`.
    fn defining(&self, path: &Names) -> Names {
        let longest = (0..=path.len()).rev().find(|n| self.0.contains_key(&path[..*n]));
        let (module, rest) = path.split_at(longest.unwrap_or_default());
        let module = module.to_vec();
        let named = rest.first().and_then(|name| self.0[&module].bound.get(name));
        match named.and_then(|named| self.absolute(&module, named)) {
            Some(target) if target != *path => {
                self.defining(&[target.as_slice(), &rest[1..]].concat())
            }
            _ => module,
        }
    }

    /// Which module uses which.
    pub fn uses(&self) -> Graph<Names> {
        let used = |(module, source): (&Names, &Source)| {
            // What is only given to others is no use.
            let given = source.given.intersection(&source.words).map(|name| &source.bound[name]);
            let paths = source.paths.iter().chain(given);
            let paths = paths.filter_map(|path| self.absolute(module, path));
            let mut used: BTreeSet<Names> = paths.map(|path| self.defining(&path)).collect();
            used.remove(module);
            (module.clone(), used)
        };
        self.0.iter().map(used).collect()
    }

    /// The paths into other crates that a module names.
    pub fn foreign(&self, module: &Names) -> BTreeSet<String> {
        let source = &self.0[module];
        let absolute = |path: &Names| match source.bound.get(&path[0]) {
            Some(bound) if bound != path => [bound.as_slice(), &path[1..]].concat(),
            _ => path.clone(),
        };
        let all = source.paths.iter().chain(source.bound.values());
        let foreign = all.filter(|path| self.absolute(module, path).is_none());
        foreign.map(|path| absolute(path).join("::")).collect()
    }

    /// The types of this crate, each with the modules that have an `impl` of it.
    pub fn implementations(&self) -> Graph<Names> {
        let mut found = Graph::new();
        for (module, source) in &self.0 {
            for path in &source.types {
                let own = [module.as_slice(), path].concat();
                let named = self.absolute(module, path).unwrap_or(own);
                let mut of = self.defining(&named);
                of.extend(named.last().cloned());
                found.entry(of).or_default().insert(module.clone());
            }
        }
        found
    }
}

/// The folders and files directly below a module, and which of them uses which by way of what is
/// in it.
pub fn below(graph: &Graph<Names>, folder: &Names) -> Graph<String> {
    let name = |module: &Names| {
        let below = module.strip_prefix(folder.as_slice())?;
        Some(below.first().cloned().unwrap_or_else(|| "mod".to_owned()))
    };
    let mut found = Graph::new();
    for (module, used) in graph {
        let Some(from) = name(module) else { continue };
        let others = used.iter().filter_map(name).filter(|other| *other != from);
        found.entry(from.clone()).or_default().extend(others.collect::<Vec<_>>());
    }
    found
}

/// A circle, where there is one.
pub fn circle<K: Ord + Clone>(graph: &Graph<K>) -> Option<Vec<K>> {
    fn visit<K: Ord + Clone>(
        at: &K,
        graph: &Graph<K>,
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

/// What is used, directly or by way of others.
pub fn reached<K: Ord + Clone>(graph: &Graph<K>, from: &K) -> BTreeSet<K> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(at) = next.pop() {
        let more = graph.get(&at).into_iter().flatten().filter(|to| !found.contains(*to));
        next.extend(more.cloned().collect::<Vec<_>>());
        found.insert(at);
    }
    found
}
