//! The references that are written by hand have what the code has, and nothing else.

use crate::config::{CONFIG_FIELDS, Config};
use crate::hpa::{ConditionKind, Reason};
use crate::leader::LeaseEvent;
use crate::rules::StandingReason;
use std::collections::BTreeSet;
use std::path::Path;

/// A table of a page.
struct Table {
    /// The heading above it.
    heading: String,
    /// Its rows with their cells. The first has the names of the columns.
    rows: Vec<Vec<String>>,
}

impl Table {
    /// The cells of a column.
    fn column(&self, name: &str) -> impl Iterator<Item = &str> {
        let place = self.rows[0].iter().position(|cell| cell == name);
        self.rows[1..].iter().filter_map(move |row| row.get(place?).map(String::as_str))
    }
}

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    std::fs::read_to_string(path).expect("the page")
}

fn tables(page: &str) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let (mut heading, mut inside) = (String::new(), false);
    for line in page.lines() {
        if let Some(name) = line.strip_prefix('#') {
            name.trim_start_matches('#').trim().clone_into(&mut heading);
        }
        let cells = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |"));
        if let Some(cells) = cells {
            let row = cells.split(" | ").map(|cell| cell.trim().to_owned()).collect();
            if !inside {
                tables.push(Table { heading: heading.clone(), rows: Vec::new() });
            }
            tables.last_mut().expect("a table").rows.push(row);
        }
        inside = line.starts_with('|');
    }
    tables
}

/// The code in a cell.
fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The reasons in the columns of that name. A cell that does not begin with one is about others.
fn reasons<'a>(tables: impl IntoIterator<Item = &'a Table>) -> BTreeSet<&'a str> {
    let cells = tables.into_iter().flat_map(|table| table.column("reason"));
    cells.filter(|cell| cell.starts_with('`')).flat_map(code).collect()
}

/// Checks that a page has what the code has, and nothing else.
fn same(what: &str, on_page: &BTreeSet<&str>, in_code: &BTreeSet<&str>) {
    let missing: Vec<_> = in_code.difference(on_page).collect();
    let unknown: Vec<_> = on_page.difference(in_code).collect();
    let is_same = missing.is_empty() && unknown.is_empty();
    assert!(is_same, "{what}: not on the page: {missing:?}; not in the code: {unknown:?}");
}

#[test]
fn the_page_of_conditions_has_each_type_and_reason_that_the_code_writes() {
    let text = page("conditions.md");
    let conditions = text.split("\n## ").find(|part| part.starts_with("Conditions of an Auto"));
    let headings = conditions.expect("the section").lines().filter_map(|l| l.strip_prefix("### "));
    let types = headings.flat_map(|heading| heading.split(", ")).collect();
    let kinds = ConditionKind::ALL.iter().map(|kind| kind.as_str()).collect();
    same("types of conditions", &types, &kinds);
    let tables = tables(&text);
    let [others @ .., lease] = &*tables else { panic!("no tables") };
    let all = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    same("reasons", &reasons(others), &all);
    let of_lease = LeaseEvent::ALL.iter().map(|event| event.as_str()).collect();
    same("events of the Lease", &reasons([lease]), &of_lease);
}

#[test]
fn the_page_of_metric_rules_has_each_reason_that_the_code_writes() {
    let tables = tables(&page("metric-rules.md"));
    let conditions = tables.iter().filter(|table| table.heading == "Conditions");
    let all = StandingReason::ALL.iter().map(|reason| reason.as_str()).collect();
    same("reasons of MetricRules", &reasons(conditions), &all);
}

fn read(text: &str) -> Result<Config, String> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("a file");
    Config::read(file.path()).map_err(|error| error.to_string())
}

/// The fields that may stand where `nest` puts a mapping: the error of an unknown one lists them.
fn fields(nest: &dyn Fn(&str) -> String) -> Vec<String> {
    let error = read(&nest("{'?': 1}")).err().unwrap_or_default();
    let known = error.split("`?`, expected one of ").nth(1).unwrap_or_default();
    known.split(", ").filter(|field| !field.is_empty()).map(str::to_owned).collect()
}

/// Adds the paths of all fields there that have a value, such as `seriesFilters[].is`.
fn add_paths(path: &str, nest: &dyn Fn(&str) -> String, all: &mut BTreeSet<String>) {
    for field in fields(nest) {
        let mut is_value = true;
        for (mark, begin, end) in [(".", "", ""), ("[].", "[", "]"), (".NAME.", "{x: ", "}")] {
            let deeper = |inner: &str| nest(&format!("{{{field}: {begin}{inner}{end}}}"));
            if !fields(&deeper).is_empty() {
                is_value = false;
                add_paths(&format!("{path}{field}{mark}"), &deeper, all);
            }
        }
        if is_value {
            all.insert(format!("{path}{field}"));
        }
    }
}

/// The names in a cell. One that begins with a dot stands beside the first: `name.matches`, `.as`.
fn names(cell: &str) -> Vec<String> {
    let code = code(cell);
    let parent =
        code.first().and_then(|first| first.rsplit_once('.')).map_or("", |(parent, _)| parent);
    let whole = |name: &&str| match name.starts_with('.') {
        true => format!("{parent}{name}"),
        false => (*name).to_owned(),
    };
    code.iter().map(whole).collect()
}

/// The path of a field within its section, as the page has it.
fn of_section<'a>(section: &str, path: &'a str) -> Option<&'a str> {
    let rest = path.strip_prefix(section)?;
    let rest = ["[].", ".NAME.", "."].iter().find_map(|mark| rest.strip_prefix(mark))?;
    // The fields of both are the same.
    Some(if rest.starts_with("memory.") { "memory" } else { rest })
}

#[test]
fn the_page_of_the_configuration_has_each_field_that_the_code_reads() {
    let mut all = BTreeSet::new();
    add_paths("", &str::to_owned, &mut all);
    let tables = tables(&page("configuration.md"));
    for section in CONFIG_FIELDS {
        let table =
            tables.iter().find(|table| table.heading.split(", ").any(|name| name == section));
        let shown: Vec<String> = table.expect(section).column("field").flat_map(names).collect();
        let shown = shown.iter().map(String::as_str).collect();
        let paths = all.iter().filter_map(|path| of_section(section, path));
        same(section, &shown, &paths.collect());
    }
    let of = |path: &str| {
        let fields = all.iter().filter_map(|field| field.strip_prefix(path));
        fields.collect::<Vec<_>>()
    };
    assert_eq!(of("resourceRules.memory."), of("resourceRules.cpu."));
}

#[test]
fn a_default_on_the_page_of_the_configuration_is_that_of_the_code() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut tried = 0;
    for table in tables(&page("configuration.md")) {
        let (before, after) = match &*table.heading {
            "podMetrics" => ("podMetrics: {", "}"),
            "backends" => ("backends: {x: {url: 'http://x', ", "}}"),
            _ => continue,
        };
        let shown = |field: &str| {
            let config = read(&format!("{before}{field}{after}")).expect("a configuration");
            // All of a client would have what differs from one to the next.
            let client = format!("{:?}", config.rules.backends);
            let timeout = client.split("timeout: ").nth(1).and_then(|rest| rest.split(',').next());
            let timeout = timeout.map(str::to_owned);
            (config.pod_queries, config.auto_window, timeout)
        };
        for (name, default) in table.column("field").zip(table.column("default")) {
            assert!(!default.is_empty(), "{name}");
            if let [default] = *code(default) {
                assert_eq!(shown(&format!("{}: {default:?}", names(name)[0])), shown(""), "{name}");
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 6);
}
