//! The command line as kubectl's users write it: flags before the command.

use std::ffi::OsString;

/// The flags that kubectl has before a command, too, and whether they take a value.
const LEADING: [(&str, bool); 11] = [
    ("--kubeconfig", true),
    ("--context", true),
    ("--as", true),
    ("--as-group", true),
    ("--request-timeout", true),
    ("--namespace", true),
    ("-n", true),
    ("--all-namespaces", false),
    ("-A", false),
    ("--plimsoll-namespace", true),
    ("--lease", true),
];

/// Moves flags of kubectl that stand before the command behind it, whose flags they are. A line that has only flags
/// stays as it is.
pub fn flags_after_command(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let mut at = 1;
    while let Some(flag) = arguments.get(at).and_then(|argument| argument.to_str()) {
        let (name, has_value) = match flag.split_once('=') {
            Some((name, _)) => (name, true),
            // Such as -nshop.
            None if flag.starts_with("-n") && flag.len() > 2 => ("-n", true),
            None => (flag, false),
        };
        let Some((_, takes_value)) = LEADING.iter().find(|(known, _)| *known == name) else {
            break;
        };
        at += if *takes_value && !has_value { 2 } else { 1 };
    }
    let is_command = |word: &OsString| word.to_str().is_some_and(|word| !word.starts_with('-'));
    if at > 1 && arguments.get(at).is_some_and(is_command) {
        arguments[1..=at].rotate_right(1);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_kubectl_may_stand_before_the_command() {
        let line = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (given, expected) in [
            ("plimsoll -n shop explain web", "plimsoll explain -n shop web"),
            ("plimsoll --context=a -nshop pause web", "plimsoll pause --context=a -nshop web"),
            ("plimsoll --kubeconfig kc -A status", "plimsoll status --kubeconfig kc -A"),
            ("plimsoll status -n shop", "plimsoll status -n shop"),
            ("plimsoll --kubeconfig kc --v=4", "plimsoll --kubeconfig kc --v=4"),
            ("plimsoll --kubeconfig", "plimsoll --kubeconfig"),
            ("plimsoll --secure-port 1 serve", "plimsoll --secure-port 1 serve"),
        ] {
            assert_eq!(flags_after_command(line(given)), line(expected), "{given}");
        }
    }
}
