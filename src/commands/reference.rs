//! The reference of all flags, fields and metrics, generated from the code by `make generate`.

use crate::config::Cli;
use crate::crd::{custom_resource_definition, metric_rule_definition};
use crate::telemetry::Metrics;
use clap::{Arg, Command, CommandFactory};
use serde_json::Value;
use std::fmt::Write;

/// The reference as Markdown.
pub fn markdown() -> String {
    let mut text = "# Reference\n\nMade by `make generate` from the code.\n".to_owned();
    flags(&mut text);
    fields(&mut text);
    metrics(&mut text);
    text
}

/// A text as a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn flags(text: &mut String) {
    let mut cli = Cli::command();
    cli.build();
    text.push_str("\n## Flags of `plimsoll serve`\n\n`plimsoll serve -h` prints the same.\n\n");
    table(text, cli.find_subcommand("serve").unwrap_or(&cli));
    text.push_str("\n## Commands\n");
    for command in cli.get_subcommands() {
        let name = command.get_name();
        if command.is_hide_set() || matches!(name, "serve" | "help") {
            continue;
        }
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = write!(text, "\n### `plimsoll {name}`\n\n{about}.\n\n");
        table(text, command);
    }
}

fn table(text: &mut String, command: &Command) {
    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version");
    let all: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    if all.is_empty() {
        return;
    }
    text.push_str("| flag | default | what it does |\n|---|---|---|\n");
    for arg in all {
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

fn rows(text: &mut String, path: &str, schema: &Value) {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let items = &field["items"];
        let of_many = items.is_object();
        let path = format!("{path}.{name}{}", if of_many { "[]" } else { "" });
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
        let _ = writeln!(
            text,
            "| `{path}` | {kind}{needed}{bounds}{}{} | {} |",
            default.unwrap_or_default(),
            values.unwrap_or_default(),
            cell(help.split("\n\n").next().unwrap_or_default())
        );
        rows(text, &path, if of_many { items } else { field });
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
    #[test]
    fn flags_fields_and_metrics_are_listed() {
        let text = super::markdown();
        for listed in [
            "`--prometheus-url=URL`",
            "| `--leader-elect=BOOL` | `true` |",
            "| `--cluster` |  |",
            "`.spec.customMetrics[].query`",
            "| `plimsoll_build_info` |",
            "| `process_cpu_seconds_total` | counter |",
        ] {
            assert!(text.contains(listed), "{listed}");
        }
    }
}
