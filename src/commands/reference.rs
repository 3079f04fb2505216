//! The reference of all flags, fields and metrics, generated from the code by `make generate`.

use crate::config::{Cli, ClusterFlags, KubectlFlags, PrometheusFlags};
use crate::crd::{custom_resource_definition, metric_rule_definition};
use crate::telemetry::Metrics;
use clap::{Arg, Args, Command, CommandFactory};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Environment variables that are read other than for a flag, and what they do.
const VARIABLES: [(&str, &str); 10] = [
    ("KUBECONFIG", "Kubeconfig files, if `--kubeconfig` is not given. Default: `~/.kube/config`"),
    (
        "HTTPS_PROXY",
        "Proxy in front of the API server, if the kubeconfig has no `proxy-url`. Not for localhost",
    ),
    ("NO_PROXY", "Hosts for which `HTTPS_PROXY` is not used"),
    ("COLUMNS", "Width of charts, if the terminal does not tell it. Default: 80"),
    ("NO_COLOR", "Set to any value: no colors"),
    ("TERM", "`dumb`: no colors"),
    ("LC_ALL, LC_CTYPE, LANG", "The first that is set: with UTF-8, charts have Unicode characters"),
    ("XDG_RUNTIME_DIR", "Directory for the file with which `ui` opens the browser"),
    ("POD_NAME, HOSTNAME", "The first that is set: name of the replica in the Lease (`serve`)"),
    ("KUBERNETES_SERVICE_HOST", "Set in a pod: flags without a command are those of `serve`"),
];

/// The pages on what an Autoscaler has from Kubernetes.
const HPA: &str = "https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/horizontal-pod-autoscaler-v2/";
const CONDITION: &str = "https://pkg.go.dev/k8s.io/apimachinery/pkg/apis/meta/v1#Condition";

/// The reference as Markdown.
pub fn markdown() -> String {
    let mut text = "# Reference\n\nMade by `make generate` from the code.\n".to_owned();
    let mut cli = Cli::command();
    cli.build();
    serve(&mut text, &cli);
    commands(&mut text, &cli);
    fields(&mut text);
    metrics(&mut text);
    text
}

/// A text as a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// The arguments of a command that its help shows.
fn shown(command: &Command) -> Vec<&Arg> {
    let all = command.get_arguments().filter(|arg| !arg.is_hide_set());
    all.filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version")).collect()
}

/// The flags of `serve`, under the headings of its help.
fn serve(text: &mut String, cli: &Command) {
    text.push_str("\n## Flags of `plimsoll serve`\n\n`plimsoll serve -h` prints the same.\n");
    let mut groups: Vec<(&str, Vec<&Arg>)> = Vec::new();
    for arg in cli.find_subcommand("serve").into_iter().flat_map(shown) {
        let heading = arg.get_help_heading().unwrap_or("Other flags");
        match groups.iter_mut().find(|(known, _)| *known == heading) {
            Some((_, args)) => args.push(arg),
            None => groups.push((heading, vec![arg])),
        }
    }
    for (heading, args) in groups {
        let _ = write!(text, "\n### {heading}\n\n");
        table(text, &args);
    }
}

/// Flags that several commands have.
struct Shared {
    heading: &'static str,
    args: Vec<Arg>,
}

impl Shared {
    fn all() -> [Self; 3] {
        let of = |augment: fn(Command) -> Command| -> Vec<Arg> {
            let mut command = augment(Command::new("shared"));
            command.build();
            shown(&command).into_iter().cloned().collect()
        };
        let kubectl = of(KubectlFlags::augment_args);
        let mut installation = of(ClusterFlags::augment_args);
        installation.retain(|arg| kubectl.iter().all(|known| known.get_id() != arg.get_id()));
        [
            Self { heading: "Connection to the cluster", args: kubectl },
            Self { heading: "Installation of Plimsoll", args: installation },
            Self { heading: "Connection to Prometheus", args: of(PrometheusFlags::augment_args) },
        ]
    }

    fn has(&self, arg: &Arg) -> bool {
        self.args.iter().any(|known| known.get_id() == arg.get_id())
    }

    /// Whether all of these are among the arguments.
    fn is_of(&self, args: &[&Arg]) -> bool {
        self.args.iter().all(|own| args.iter().any(|arg| arg.get_id() == own.get_id()))
    }

    /// A link to their table.
    fn link(&self) -> String {
        format!("[{}](#{})", self.heading, self.heading.to_lowercase().replace(' ', "-"))
    }
}

fn commands(text: &mut String, cli: &Command) {
    text.push_str("\n## Commands\n\n### Exit codes\n\n| code | meaning |\n|---|---|\n");
    let help = cli.get_after_help().map(ToString::to_string).unwrap_or_default();
    let codes = help.lines().find_map(|line| line.strip_prefix("Exit codes: "));
    for code in codes.unwrap_or_default().trim_end_matches('.').split("; ") {
        let (code, meaning) = code.split_once(' ').unwrap_or((code, ""));
        let _ = writeln!(text, "| {code} | {} |", cell(meaning));
    }
    variables(text, cli);
    let shared = Shared::all();
    for flags in &shared {
        let _ = write!(text, "\n### {}\n\n", flags.heading);
        table(text, &flags.args.iter().collect::<Vec<_>>());
    }
    for command in cli.get_subcommands() {
        let name = command.get_name();
        if command.is_hide_set() || matches!(name, "serve" | "help") {
            continue;
        }
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = write!(text, "\n### `plimsoll {name}`\n\n{about}.\n");
        let mut own = shown(command);
        let found: Vec<&Shared> = shared.iter().filter(|flags| flags.is_of(&own)).collect();
        own.retain(|arg| !found.iter().any(|flags| flags.has(arg)));
        if !own.is_empty() {
            text.push('\n');
            table(text, &own);
        }
        if !found.is_empty() {
            let links: Vec<String> = found.iter().map(|flags| flags.link()).collect();
            let _ = write!(text, "\nMore flags: {}.\n", links.join(", "));
        }
    }
}

/// The variables of the environment.
fn variables(text: &mut String, cli: &Command) {
    text.push_str("\n### Environment variables\n\n| variable | what it does |\n|---|---|\n");
    let mut of_flags = BTreeMap::new();
    for arg in cli.get_subcommands().flat_map(shown) {
        if let (Some(variable), Some(flag)) = (arg.get_env(), arg.get_long()) {
            let what = format!("Value of `--{flag}`, if that is not given");
            of_flags.insert(variable.to_string_lossy().into_owned(), what);
        }
    }
    let others = VARIABLES.map(|(name, what)| (name, what.to_owned()));
    let of_flags = of_flags.iter().map(|(name, what)| (name.as_str(), what.clone()));
    for (names, what) in of_flags.chain(others) {
        let names: Vec<String> = names.split(", ").map(|name| format!("`{name}`")).collect();
        let _ = writeln!(text, "| {} | {} |", names.join(", "), cell(&what));
    }
}

fn table(text: &mut String, args: &[&Arg]) {
    text.push_str("| flag | default | what it does |\n|---|---|---|\n");
    for arg in args {
        // Those of a switch are made up.
        let takes_value = arg.get_num_args().is_none_or(|number| number.takes_values());
        let names = arg.get_value_names().filter(|_| takes_value);
        let value = names.and_then(|names| names.first()).map(ToString::to_string);
        let value = value.unwrap_or_default();
        let name = match arg.get_long() {
            Some(long) if value.is_empty() => format!("`--{long}`"),
            Some(long) => format!("`--{long}={value}`"),
            None => format!("`{value}`"),
        };
        let short =
            arg.get_short().filter(|short| *short != 'h').map(|short| format!(", `-{short}`"));
        let aliases = arg.get_all_aliases().unwrap_or_default().into_iter();
        let aliases: String = aliases.map(|alias| format!(", `--{alias}`")).collect();
        let name = name + &short.unwrap_or_default() + &aliases;
        let defaults: Vec<_> =
            arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = match defaults.join(",") {
            none if none.is_empty() || !takes_value => String::new(),
            some => format!("`{some}`"),
        };
        let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let values: Vec<String> = arg
            .get_possible_values()
            .iter()
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        if !values.is_empty() && value != "BOOL" {
            help = format!("{}: {}", help.trim_end_matches('.'), values.join(", "));
        }
        if let Some(variable) = arg.get_env() {
            let _ = write!(help, ". Also in the environment: `{}`.", variable.display());
        }
        let _ = writeln!(text, "| {name} | {} | {} |", cell(&default), cell(&help));
    }
}

fn fields(text: &mut String) {
    let kinds = [
        (custom_resource_definition(), "an Autoscaler"),
        (metric_rule_definition(), "a MetricRule"),
    ];
    for (definition, kind) in kinds {
        let definition = serde_json::to_value(definition).expect("plain data");
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        for (part, title) in [("spec", "Fields"), ("status", "Status")] {
            let head = "| field | type | what it says |\n|---|---|---|\n";
            let _ = write!(text, "\n## {title} of {kind}\n\n{head}");
            rows(text, &format!(".{part}"), &schema[part]);
        }
    }
}

/// The page of Kubernetes on a field, which is that of Kubernetes with all below it.
fn of_kubernetes(path: &str) -> Option<(&'static str, String)> {
    match path {
        ".spec.behavior"
        | ".spec.maxReplicas"
        | ".spec.metrics[]"
        | ".spec.minReplicas"
        | ".spec.scaleTargetRef" => {
            Some(("autoscaling/v2", format!("{HPA}#HorizontalPodAutoscalerSpec")))
        }
        ".status.currentMetrics[]" => {
            Some(("autoscaling/v2", format!("{HPA}#HorizontalPodAutoscalerStatus")))
        }
        ".status.conditions[]" => Some(("meta/v1", CONDITION.to_owned())),
        _ => None,
    }
}

/// The fields of a schema: Plimsoll's own and all below them, then those of Kubernetes.
fn rows(text: &mut String, path: &str, schema: &Value) {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let all = schema["properties"].as_object().into_iter().flatten().map(|(name, field)| {
        let many = if field["items"].is_object() { "[]" } else { "" };
        (format!("{path}.{name}{many}"), name, field)
    });
    let (own, upstream): (Vec<_>, Vec<_>) =
        all.partition(|(path, ..)| of_kubernetes(path).is_none());
    for (path, name, field) in own.into_iter().chain(upstream) {
        let items = &field["items"];
        let of_many = items.is_object();
        let kind = |schema: &Value| -> String {
            match schema["type"].as_str() {
                Some(kind) => kind.to_owned(),
                None => "integer or string".to_owned(),
            }
        };
        let kind = if of_many { format!("array of {}", kind(items)) } else { kind(field) };
        let needed = if required.contains(&name.as_str()) { ", required" } else { "" };
        let bound = |key: &str, word: &str| {
            // Schemas have bounds of integers as floating-point numbers.
            let bound = field.get(key).and_then(Value::as_f64);
            bound.map(|bound| format!("; {word} {bound}")).unwrap_or_default()
        };
        let bounds = bound("minimum", "at least") + &bound("maximum", "at most");
        let default = field.get("default").map(|value| format!("; default {value}"));
        let values = field["enum"].as_array().map(|values| {
            let values: Vec<String> = values.iter().map(Value::to_string).collect();
            format!("; one of {}", values.join(", "))
        });
        let help = field["description"].as_str().unwrap_or_default();
        let help = help.split("\n\n").next().unwrap_or_default();
        let page = of_kubernetes(&path);
        let link = page.as_ref().map(|(name, url)| format!(" [{name}]({url})"));
        let _ = writeln!(
            text,
            "| `{path}` | {kind}{needed}{bounds}{}{} | {}{} |",
            default.unwrap_or_default(),
            values.unwrap_or_default(),
            cell(help),
            link.unwrap_or_default()
        );
        if page.is_none() {
            rows(text, &path, if of_many { items } else { field });
        }
    }
}

fn metrics(text: &mut String) {
    text.push_str("\n## Metrics\n\nServed at `/metrics`, in the OpenMetrics format, or in Prometheus's text format for scrapers that prefer it.\n\n");
    text.push_str("| metric | type | labels | what it says |\n|---|---|---|---|\n");
    for metric in Metrics::default().descriptions() {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} |",
            metric.name,
            metric.kind,
            labels.join(", "),
            cell(metric.help)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::markdown;

    #[test]
    fn flags_fields_and_metrics_are_listed() {
        let text = markdown();
        for listed in [
            "`--prometheus-url=URL`",
            "| `--leader-elect=BOOL` | `true` |",
            "| `--cluster` |  |",
            "`.spec.customMetrics[].query`",
            "| `plimsoll_build_info` |",
            "| `process_cpu_seconds_total` | counter |",
            "\n### Leader election\n",
            "\n| 2 | invalid command line |\n",
            "\n| `PLIMSOLL_LEASE` | Value of `--lease`, if that is not given |\n",
            "\n| `NO_COLOR` |",
        ] {
            assert!(text.contains(listed), "{listed}");
        }
    }

    /// A page that says it again for each command hides what each has of its own.
    #[test]
    fn flags_of_a_connection_are_listed_once_for_all_commands() {
        let text = markdown();
        let (_, commands) = text.split_once("\n## Commands\n").expect("commands");
        for flag in ["| `--context=NAME` |", "| `--lease=NAME` |", "| `--prometheus-verb="] {
            assert_eq!(commands.matches(flag).count(), 1, "{flag}");
        }
        let (_, explain) = commands.split_once("\n### `plimsoll explain`\n").expect("a command");
        let (explain, _) = explain.split_once("\n### ").expect("another command");
        assert!(explain.contains("| `--at=TIME` |"), "{explain}");
        let more = "\nMore flags: [Connection to the cluster](#connection-to-the-cluster), \
                    [Installation of Plimsoll](#installation-of-plimsoll).\n";
        assert!(explain.ends_with(more), "{explain}");
    }

    #[test]
    fn fields_of_kubernetes_have_a_row_behind_plimsolls_own() {
        let text = markdown();
        let row = |path: &str| text.find(&format!("\n| `{path}` |"));
        let own = row(".spec.warmUp").expect("a field of Plimsoll");
        for path in [".spec.behavior", ".spec.metrics[]", ".spec.scaleTargetRef"] {
            let at = row(path).expect("a field of Kubernetes");
            let line = text[at + 1..].lines().next().expect("a line");
            assert!(at > own && line.contains("](https://kubernetes.io/docs/"), "{line}");
            assert!(!text.contains(&format!("\n| `{path}.")), "{path}");
        }
    }
}
