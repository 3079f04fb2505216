//! The command, without a cluster.

use std::process::{Command, Output};

fn plimsoll(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(arguments).output().expect("it can be run")
}

#[test]
fn a_wrong_configuration_is_refused_with_file_line_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wrong.yaml");
    std::fs::write(&path, "podMetrics:\n  podLabel: pod\n  counterQuery: rate(<<.Series>>[2m])\n")
        .unwrap();
    let output = plimsoll(&["--config", path.to_str().unwrap()]);
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("wrong.yaml:3:"), "{error}");
    assert!(error.contains("podMetrics.counterQuery: <<.LabelMatchers>> is missing"), "{error}");
}

#[test]
fn a_wrong_flag_is_refused_with_what_would_be_right() {
    for (flag, expected) in [
        ("--prometheus-url=ftp://x", "http:// or https:// was expected"),
        ("--prometheus-timeout=5", "such as 250ms, 15s or 5m"),
        ("--log-level=plimsoll=loud", "--log-level"),
        ("--tls-cert-file=/nowhere/tls.crt", "--tls-private-key-file"),
        ("--kubeconfig=/nowhere/config", "/nowhere/config"),
    ] {
        let output = plimsoll(&[flag]);
        assert!(!output.status.success(), "{flag}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(expected), "{flag}: {error}");
    }
}

#[test]
fn the_definition_is_printed_as_it_is_checked_in() {
    let printed = plimsoll(&["crd"]).stdout;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/base/crd.yaml");
    assert_eq!(printed, std::fs::read(path).unwrap());
}
