//! What commands say of an API server that fails or can't be reached.

use super::plimsoll;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;
use tokio::time::Instant;

/// A kubeconfig of this server in a folder.
fn kubeconfig(server: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    let text = format!(
        "current-context: a\nclusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n\
         users: [{{name: ann, user: {{token: s3cret}}}}]\n\
         contexts: [{{name: a, context: {{cluster: c, user: ann, namespace: shop}}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

/// Runs a command with this kubeconfig, which fails, and gives what it says.
fn failure(command: &[&str], kubeconfig: &str) -> String {
    let Output { status, stdout, stderr } =
        plimsoll(&[command, &["--kubeconfig", kubeconfig]].concat());
    assert_eq!(status.code(), Some(1), "{command:?}");
    let said = String::from_utf8([stdout, stderr].concat()).unwrap();
    assert!(!said.contains("s3cret"), "{said}");
    said
}

const WRITES: [&[&str]; 4] = [&["freeze", "why"], &["thaw"], &["pause", "web"], &["resume", "web"]];
const READS: [&[&str]; 4] = [&["status"], &["explain", "web"], &["history", "web"], &["compare"]];
const CHECKS: [&[&str]; 3] = [
    &["check", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/docs/examples/autoscaler.yaml")],
    &["check", concat!(env!("CARGO_MANIFEST_DIR"), "/config/plimsoll.yaml")],
    // The time by the cluster's clock is not known.
    &["explain", "web", "--at=2030-01-01"],
];

#[test]
fn an_error_names_the_context_and_the_server() {
    // Nothing listens on port 1.
    let (_folder, path) = kubeconfig("https://ann:s3cret@127.0.0.1:1");
    let path = path.to_str().unwrap();
    for command in WRITES.into_iter().chain(READS).chain(CHECKS) {
        let said = failure(command, path);
        assert_eq!(said.matches("context a (https://127.0.0.1:1): ").count(), 1, "{said}");
        assert!(said.contains("Connection refused"), "{said}");
        assert!(!said.contains("ServiceError") && !said.contains("future"), "{said}");
        let writes = WRITES.contains(&command);
        assert_eq!(said.trim_end().ends_with("; nothing was written"), writes, "{said}");
    }
}

/// A file of kubectl that is found, and not named, is that of the cluster, too.
#[test]
fn check_reads_the_cluster_that_any_flag_of_kubectl_names() {
    let (_folder, path) = kubeconfig("https://127.0.0.1:1");
    let autoscaler = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/examples/autoscaler.yaml");
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/config/plimsoll.yaml");
    for checked in [&["check", config][..], &["check", "-f", autoscaler]] {
        for (flags, is_read) in
            [(&["--context", "a"][..], true), (&["--as", "ann"], true), (&[], false)]
        {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_plimsoll"));
            command.args(checked).args(flags).env("KUBECONFIG", &path);
            let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
            assert_eq!(said.contains("context a (https://127.0.0.1:1): "), is_read, "{said}");
            assert_eq!(said.contains("Connection refused"), is_read, "{said}");
        }
    }
}

/// Answers each request in this way, one for each connection.
fn server(status: &'static str, kind: &'static str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = move |mut client: TcpStream| -> std::io::Result<()> {
        let mut reader = BufReader::new(client.try_clone()?);
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line)? > 2 {
            let lower = line.to_ascii_lowercase();
            if let Some(bytes) = lower.strip_prefix("content-length: ") {
                length = bytes.trim().parse().unwrap_or(0);
            }
            line.clear();
        }
        std::io::copy(&mut std::io::Read::take(reader, length), &mut std::io::sink())?;
        write!(
            client,
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let _ = answer(client);
        }
    });
    format!("http://{address}")
}

/// A freeze is what is run while etcd elects a leader.
#[test]
fn an_overloaded_api_server_ends_a_command_within_seconds() {
    let body = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":503,"reason":"ServiceUnavailable","message":"etcd leader changed"}"#;
    let url = server("503 Service Unavailable", "application/json", body);
    let (_folder, path) = kubeconfig(&url);
    for command in WRITES.into_iter().chain(READS) {
        let began = Instant::now();
        let said = failure(command, path.to_str().unwrap());
        assert!(began.elapsed() < Duration::from_secs(30), "{command:?}: {:?}", began.elapsed());
        assert_eq!(
            said.matches("the API server responded with 503, retrying").count(),
            1,
            "{said}"
        );
        assert!(said.contains(&format!("context a ({url}): ")), "{said}");
        assert!(said.contains("(ServiceUnavailable): etcd leader changed"), "{said}");
        let is_written = match command[0] {
            "freeze" | "pause" | "resume" => "; nothing was written\n",
            "thaw" => "; whether it was written is not known: run it again\n",
            _ => "etcd leader changed\n",
        };
        assert!(said.ends_with(is_written), "{said}");
    }
}

#[test]
fn what_is_no_api_server_is_told_as_that() {
    let login = server("200 OK", "text/html", "<html>login</html>");
    let (_folder, path) = kubeconfig(&login);
    let said = failure(&["status"], path.to_str().unwrap());
    assert!(said.contains(": Lease plimsoll/plimsoll: the response is not JSON"), "{said}");
    let nothing = server("404 Not Found", "text/plain", "404 page not found\n");
    let (_folder, path) = kubeconfig(&nothing);
    for command in WRITES.into_iter().chain(READS) {
        let said = failure(command, path.to_str().unwrap());
        assert!(!said.contains("Failed to parse error data"), "{command:?}: {said}");
    }
}
