//! The command line of prometheus-adapter 0.12, so that its Deployment works with our image. Flags
//! without an effect here are accepted, and each is logged once with the reason.

use std::ffi::OsString;

/// A given flag without an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredFlag {
    /// The flag, without its value.
    pub flag: String,
    /// Why it has no effect.
    pub reason: &'static str,
}

const AUDIT: &str = "requests are audited by kube-apiserver, through which they come";
const PROFILING: &str = "Go profiles are not available; see /metrics";
const LOGGING: &str = "logs go to stderr, filtered by --log-level";
const FAIRNESS: &str = "always on: requests are admitted by seats per tenant and per namespace";
const SHARED_ADDRESS: &str = "the address is always bound with SO_REUSEADDR";
const SHARED_PORT: &str = "the port is bound without SO_REUSEPORT";
const CIPHERS: &str = "only the cipher suites of rustls are supported";
const SNI: &str = "one certificate is served under all names: --tls-cert-file";

/// The flags without an effect: name, whether they take a value, why they have none.
const IGNORED: [(&str, bool, &str); 15] = [
    ("audit-policy-file", true, AUDIT),
    ("audit-", true, AUDIT),
    ("contention-profiling", false, PROFILING),
    ("profiling", false, PROFILING),
    ("debug-socket-path", true, PROFILING),
    ("enable-priority-and-fairness", false, FAIRNESS),
    ("log-flush-frequency", true, LOGGING),
    ("vmodule", true, LOGGING),
    ("logtostderr", false, LOGGING),
    ("alsologtostderr", false, LOGGING),
    ("stderrthreshold", true, LOGGING),
    ("permit-address-sharing", false, SHARED_ADDRESS),
    ("permit-port-sharing", false, SHARED_PORT),
    ("tls-cipher-suites", true, CIPHERS),
    ("tls-sni-cert-key", true, SNI),
];

/// Flags of the audit log that take no value.
const BOOLEAN_FLAGS: [&str; 6] = [
    "audit-log-batch-throttle-enable",
    "audit-log-compress",
    "audit-log-truncate-enabled",
    "audit-webhook-batch-throttle-enable",
    "audit-webhook-truncate-enabled",
    "audit-log-truncate-enable",
];

/// Inserts the command `serve` if a pod is started as prometheus-adapter's are: with only flags,
/// or with `/adapter` first, as in its Helm chart. Outside of a pod, a person has to write
/// `serve`.
pub fn normalize_command(mut arguments: Vec<OsString>, in_pod: bool) -> Vec<OsString> {
    let Some(first) = arguments.get(1).and_then(|first| first.to_str()).filter(|_| in_pod) else {
        return arguments;
    };
    match first {
        "/adapter" | "adapter" => arguments[1] = "serve".into(),
        "-h" | "--help" | "-V" | "--version" => {}
        flag if flag.starts_with('-') => arguments.insert(1, "serve".into()),
        _ => {}
    }
    arguments
}

/// Removes the flags without an effect from a command line.
pub fn take_ignored(
    arguments: impl IntoIterator<Item = OsString>,
) -> (Vec<OsString>, Vec<IgnoredFlag>) {
    let (mut kept, mut ignored) = (Vec::new(), Vec::new());
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let found = argument.to_str().and_then(find);
        let Some((flag, takes_value, reason)) = found else {
            kept.push(argument);
            continue;
        };
        if takes_value {
            arguments.next();
        }
        ignored.push(IgnoredFlag { flag, reason });
    }
    (kept, ignored)
}

/// The ignored flag of an argument: its name, whether its value is the next argument, and the
/// reason.
fn find(argument: &str) -> Option<(String, bool, &'static str)> {
    let flag = argument.strip_prefix("--")?;
    let (name, value) = flag.split_once('=').map_or((flag, None), |(name, v)| (name, Some(v)));
    let (_, takes_value, reason) = IGNORED
        .iter()
        .find(|(known, ..)| name == *known || known.ends_with('-') && name.starts_with(known))?;
    let takes_value = *takes_value && !BOOLEAN_FLAGS.contains(&name);
    Some((format!("--{name}"), takes_value && value.is_none(), reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_of_prometheus_adapter_serves_without_the_command() {
        let line = |text: &str| text.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        for given in ["plimsoll /adapter --v=4", "plimsoll adapter --v=4", "plimsoll --v=4"] {
            assert_eq!(
                normalize_command(line(given), true),
                line("plimsoll serve --v=4"),
                "{given}"
            );
            assert_eq!(normalize_command(line(given), false), line(given), "{given}");
        }
        for kept in ["plimsoll", "plimsoll --help", "plimsoll -V", "plimsoll check x"] {
            assert_eq!(normalize_command(line(kept), true), line(kept), "{kept}");
        }
    }

    #[test]
    fn flags_without_an_effect_are_removed_with_their_values() {
        let given = "plimsoll --audit-log-path=- --v=4 --audit-log-maxage 3 --profiling=false \
                     --audit-log-compress --secure-port 6443 --vmodule a=2";
        let (kept, ignored) = take_ignored(given.split_whitespace().map(OsString::from));
        assert_eq!(kept, ["plimsoll", "--v=4", "--secure-port", "6443"]);
        let flags: Vec<&str> = ignored.iter().map(|ignored| ignored.flag.as_str()).collect();
        assert_eq!(
            flags,
            [
                "--audit-log-path",
                "--audit-log-maxage",
                "--profiling",
                "--audit-log-compress",
                "--vmodule"
            ]
        );
    }
}
