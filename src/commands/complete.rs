//! The completions of `kubectl plimsoll`: kubectl runs `kubectl_complete-plimsoll` with the words of the command line,
//! and reads a completion a line, each with a description behind a tab, and at last `:` and a directive of cobra's.

use super::operate::Cluster;
use super::story::plain;
use crate::config::{Cli, KubectlFlags};
use crate::connect;
use crate::crd::Autoscaler;
use clap::{Arg, ArgAction, Command};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::time::Duration;

/// cobra's directives: the shell completes names of files; it does not.
const FILES: &str = ":0\n";
const NO_FILES: &str = ":4\n";

/// How long the cluster may take: who presses a key waits.
const LONGEST: Duration = Duration::from_secs(3);
/// The most names that are offered.
const MAX_NAMES: u32 = 500;

/// What is to be completed.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// One of these, with descriptions.
    Words(Vec<(String, String)>),
    /// A name of the cluster, or of the kubeconfig.
    Names(Names),
    /// A file.
    File,
    /// Anything.
    Nothing,
}

/// Names that are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Namespaces,
    Contexts,
    Autoscalers,
    Workloads,
}

/// Completes the last of these words, which may be empty. Returns the lines for kubectl; what fails offers nothing.
pub async fn complete(words: &[String]) -> String {
    let (last, before) = words.split_last().map_or(("", words), |(last, rest)| (last, rest));
    let mut cli = Cli::of_plugin();
    cli.build();
    let (offered, directive) = match wanted(&cli, before, last) {
        Wanted::Words(words) => (words, NO_FILES),
        Wanted::File => (Vec::new(), FILES),
        Wanted::Nothing => (Vec::new(), NO_FILES),
        Wanted::Names(names) => {
            let found = tokio::time::timeout(LONGEST, named(names, before, last)).await;
            let found = found.ok().flatten().unwrap_or_default();
            (found.into_iter().map(|name| (name, String::new())).collect(), NO_FILES)
        }
    };
    let mut text = String::new();
    for (word, help) in offered.into_iter().filter(|(word, _)| word.starts_with(last)) {
        let tab = if help.is_empty() { "" } else { "\t" };
        text += &format!("{}{tab}{}\n", plain(&word), plain(&help));
    }
    text + directive
}

/// What is wanted after these words.
fn wanted(cli: &Command, before: &[String], last: &str) -> Wanted {
    let mut words = before.iter();
    let mut command = None;
    let (mut pending, mut positional) = (None, 0);
    for word in words.by_ref() {
        if pending.take().is_some() {
            continue;
        }
        let all = command.unwrap_or(cli);
        match (flag(cli, all, word), command) {
            (Some(arg), _) => pending = Some(arg).filter(|arg| takes(arg) && !word.contains('=')),
            (None, None) => match cli.find_subcommand(word) {
                Some(found) => command = Some(found),
                None => return Wanted::Nothing,
            },
            (None, Some(_)) if word.starts_with('-') => {}
            (None, Some(_)) => positional += 1,
        }
    }
    if let Some(arg) = pending {
        return value(arg);
    }
    let Some(command) = command else {
        let shown = cli.get_subcommands().filter(|one| !one.is_hide_set());
        return Wanted::Words(shown.map(|one| (one.get_name().to_owned(), about(one))).collect());
    };
    if last.starts_with('-') {
        let flags = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let named = flags.filter_map(|arg| Some((format!("--{}", arg.get_long()?), help(arg))));
        return Wanted::Words(named.collect());
    }
    let all: Vec<&Arg> = command.get_positionals().collect();
    match all.get(positional).or(all.last()) {
        Some(arg) => value(arg),
        None => Wanted::Nothing,
    }
}

/// The flag that a word is, of a command, or of any before the command.
fn flag<'a>(cli: &'a Command, command: &'a Command, word: &str) -> Option<&'a Arg> {
    let name = word.split('=').next()?;
    let is_it = |arg: &&Arg| match name.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => name.starts_with('-') && arg.get_short() == name.chars().nth(1),
    };
    let of_command = command.get_arguments().find(is_it);
    // Those of kubectl, which stand before the command.
    of_command.or_else(|| cli.find_subcommand("explain")?.get_arguments().find(is_it))
}

fn takes(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

/// What a value of a flag may be.
fn value(arg: &Arg) -> Wanted {
    let values = arg.get_possible_values();
    if !values.is_empty() {
        let help = |value: &clap::builder::PossibleValue| {
            value.get_help().map(ToString::to_string).unwrap_or_default()
        };
        let all = values.iter().map(|value| (value.get_name().to_owned(), help(value)));
        return Wanted::Words(all.collect());
    }
    let name = arg.get_value_names().and_then(|names| names.first()).map(|name| name.as_str());
    match (arg.get_id().as_str(), name) {
        ("namespace" | "plimsoll_namespace", _) => Wanted::Names(Names::Namespaces),
        ("context", _) => Wanted::Names(Names::Contexts),
        ("names", _) => Wanted::Names(Names::Autoscalers),
        ("target", _) => Wanted::Names(Names::Workloads),
        (_, Some("FILE" | "DIR" | "CONFIG")) => Wanted::File,
        _ => Wanted::Nothing,
    }
}

fn about(command: &Command) -> String {
    first_line(command.get_about().map(ToString::to_string))
}

fn help(arg: &Arg) -> String {
    first_line(arg.get_help().map(ToString::to_string))
}

fn first_line(text: Option<String>) -> String {
    text.unwrap_or_default().lines().next().unwrap_or_default().to_owned()
}

/// The names that there are, as the words before name the cluster and the namespace.
async fn named(names: Names, before: &[String], last: &str) -> Option<Vec<String>> {
    let of = |flags: &[&str]| value_of(before, flags);
    let kubectl = KubectlFlags {
        kubeconfig: of(&["--kubeconfig"]).map(Into::into),
        context: of(&["--context"]),
        impersonate: of(&["--as"]),
        request_timeout: Some(LONGEST),
        ..KubectlFlags::default()
    };
    if names == Names::Contexts {
        return connect::contexts(&kubectl).ok();
    }
    let cluster = Cluster::of(&kubectl).await.ok()?;
    let namespace = of(&["--namespace", "-n"]).unwrap_or_else(|| cluster.namespace.clone());
    match names {
        Names::Contexts => None,
        Names::Namespaces => {
            let api: Api<Namespace> = Api::all(cluster.client);
            let list = api.list_metadata(&ListParams::default().limit(MAX_NAMES)).await.ok()?;
            Some(list.iter().map(ResourceExt::name_any).collect())
        }
        Names::Autoscalers => match last.split_once('/') {
            Some((kind, _)) if kind.starts_with('h') => {
                listed::<HorizontalPodAutoscaler>(&cluster, &namespace, &format!("{kind}/")).await
            }
            Some((kind, _)) => {
                listed::<Autoscaler>(&cluster, &namespace, &format!("{kind}/")).await
            }
            None => {
                let mut all = listed::<Autoscaler>(&cluster, &namespace, "").await?;
                all.push("hpa/".to_owned());
                Some(all)
            }
        },
        Names::Workloads => {
            let mut all = listed::<Deployment>(&cluster, &namespace, "deployment/").await?;
            all.extend(listed::<StatefulSet>(&cluster, &namespace, "statefulset/").await?);
            Some(all)
        }
    }
}

/// The names of the objects of a kind, with what stands before each.
async fn listed<K>(cluster: &Cluster, namespace: &str, prefix: &str) -> Option<Vec<String>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + Debug,
{
    let api: Api<K> = Api::namespaced(cluster.client.clone(), namespace);
    let list = api.list_metadata(&ListParams::default().limit(MAX_NAMES)).await.ok()?;
    Some(list.iter().map(|object| format!("{prefix}{}", object.name_any())).collect())
}

/// The value of a flag among the words, which has these names.
fn value_of(words: &[String], names: &[&str]) -> Option<String> {
    for (at, word) in words.iter().enumerate() {
        match word.split_once('=') {
            Some((name, value)) if names.contains(&name) => return Some(value.to_owned()),
            None if names.contains(&&**word) => return words.get(at + 1).cloned(),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Wanted {
        let mut cli = Cli::of_plugin();
        cli.build();
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let (last, before) = words.split_last().unwrap();
        wanted(&cli, before, last)
    }

    #[test]
    fn what_is_wanted_follows_from_the_words_before() {
        assert_eq!(of("explain "), Wanted::Names(Names::Autoscalers));
        assert_eq!(of("pause web "), Wanted::Names(Names::Autoscalers));
        assert_eq!(of("-n shop explain "), Wanted::Names(Names::Autoscalers));
        assert_eq!(of("explain -n "), Wanted::Names(Names::Namespaces));
        assert_eq!(of("--context "), Wanted::Names(Names::Contexts));
        assert_eq!(of("autoscale "), Wanted::Names(Names::Workloads));
        assert_eq!(of("check -f "), Wanted::File);
        assert_eq!(of("explain --at "), Wanted::Nothing);
        assert_eq!(of("nothing "), Wanted::Nothing);
        let has = |line: &str, word: &str| match of(line) {
            Wanted::Words(words) => words.iter().any(|(one, _)| one == word),
            other => panic!("{line}: {other:?}"),
        };
        assert!(has("", "check-cluster") && !has("", "reference") && !has("", "man"));
        assert!(!has("", "serve") && has("serve -", "--config"));
        assert!(has("explain -", "--at") && has("explain --context=a --", "--namespace"));
        assert!(has("status -o ", "wide"));
    }

    #[tokio::test]
    async fn each_completion_is_a_line_and_the_directive_the_last() {
        let of = async |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            complete(&words).await
        };
        let text = of("st").await;
        assert!(text.starts_with("status\tShow the leader") && text.ends_with("\n:4\n"), "{text}");
        assert_eq!(text.lines().count(), 2);
        assert_eq!(of("check -f ").await, ":0\n");
        assert_eq!(of("explain --kubeconfig=/nowhere ").await, ":4\n");
    }
}
