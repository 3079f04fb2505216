use super::*;

async fn of_command(path: &Path, context: Option<&str>) -> Result<AsKubectl, ConnectError> {
    as_kubectl(&of(path, context), ANSWER_TIMEOUT, Clock::default()).await
}

fn of(path: &Path, context: Option<&str>) -> KubectlFlags {
    let (kubeconfig, context) = (Some(path.to_owned()), context.map(str::to_owned));
    KubectlFlags { kubeconfig, context, ..KubectlFlags::default() }
}

async fn of_server(path: &Path) -> Result<Client, ConnectError> {
    let found = configuration("--kubeconfig", Some(path)).await?;
    let failed = found.failed();
    Client::try_from(found.client).map_err(failed)
}

/// A kubeconfig with this user, from the ninth line on, and why it is of no use to each who reads it.
async fn refused(user: &str) -> Vec<String> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
         clusters: [{{name: x, cluster: {{server: 'https://localhost:1'}}}}]\n\
         contexts: [{{name: x, context: {{cluster: x, user: x}}}}]\n\
         users:\n- name: x\n  user:\n{user}"
    );
    std::fs::write(&path, text).unwrap();
    let errors = [of_command(&path, None).await.err(), of_server(&path).await.err()];
    errors.into_iter().flatten().map(|error| error.to_string()).collect()
}

/// `kubectl` prints none of it either.
#[tokio::test]
async fn no_error_has_a_text_of_a_kubeconfig_or_of_what_its_plugin_answers() {
    let plugin = |script: &str| {
        format!(
            "    exec:\n      apiVersion: client.authentication.k8s.io/v1\n      command: sh\n      \
             interactiveMode: Never\n      args: [-c, {script:?}, s3cret]\n"
        )
    };
    let answer = |status: &str| {
        plugin(&format!(
            "echo '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{status}}}'"
        ))
    };
    for (user, expected) in [
        ("    token: s3cret\n    username: [a, b]\n".to_owned(), "line 10, column 15"),
        ("    token: s3cret\n    username: {\n".to_owned(), "line 1"),
        ("    token: s3cret\n    token: s3cret2\n".to_owned(), "line 10"),
        (
            "    client-key-data: s3cret-\n    client-certificate-data: s3cret-\n".to_owned(),
            "base64",
        ),
        (answer("{\"token\":\"s3cret\",\"clientKeyData\":[\"x\"]}"), "line 1"),
        (answer("{\"token\":\"s3cret\",\"expirationTimestamp\":\"s3cret\"}"), "expir"),
        (plugin("echo s3cret; echo no login >&2; exit 3"), "exit status: 3: no login"),
    ] {
        let errors = refused(&user).await;
        assert_eq!(errors.len(), 2, "{user}");
        for error in errors {
            assert!(!error.contains("s3cret"), "{user}: {error}");
            assert!(error.contains(expected), "{user}: {error}");
        }
    }
}

/// kubectl reads them as fields that are not there.
#[tokio::test]
async fn empty_fields_of_a_kubeconfig_are_none() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    for (cluster, user, namespace) in [
        ("", "", "namespace: ''"),
        ("tls-server-name: ''", "token: ''", ""),
        ("certificate-authority: '', certificate-authority-data: ''", "tokenFile: ''", ""),
        ("proxy-url: ''", "client-certificate-data: '', client-key-data: ''", ""),
        ("", "client-certificate: '', client-key: ''", ""),
        ("", "username: '', password: ''", ""),
        ("", "as: '', as-uid: ''", ""),
    ] {
        let text = format!(
            "current-context: x\nclusters: [{{name: x, cluster: {{server: 'https://localhost:1', {cluster}}}}}]\n\
             contexts: [{{name: x, context: {{cluster: x, user: x, {namespace}}}}}]\n\
             users: [{{name: x, user: {{{user}}}}}]\n"
        );
        std::fs::write(&path, &text).unwrap();
        let found = of_command(&path, None).await;
        let found = found.unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(found.namespace, "default", "{text}");
        assert_eq!(found.client.default_namespace(), "default", "{text}");
        of_server(&path).await.unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

/// They can't be sent. A block scalar ends in a line break.
#[tokio::test]
async fn credentials_with_control_characters_are_refused() {
    for user in [
        "    token: |\n      s3cret\n",
        "    token: \"s3\\x01cret\"\n",
        "    as: \"a\\nb\"\n",
        "    as-uid: \"a\\nb\"\n    as: a\n",
        "    as-groups: [\"a\\nb\"]\n    as: a\n",
    ] {
        let errors = refused(user).await;
        assert_eq!(errors.len(), 2, "{user}");
        for error in errors {
            assert!(!error.contains("s3cret"), "{user}: {error}");
            assert!(error.contains("control characters"), "{user}: {error}");
        }
    }
}

#[tokio::test]
async fn a_kubeconfig_without_a_current_context_is_told_of_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    for text in ["current-context: ''\n", "{}"] {
        std::fs::write(&path, text).unwrap();
        let errors = [of_command(&path, Some("")).await.err(), of_server(&path).await.err()];
        for error in errors {
            let error = error.unwrap().to_string();
            assert!(error.contains("no current-context"), "{error}");
        }
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_kubeconfig_is_told_with_its_file_and_what_would_be_right() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    let text = "current-context: gone\n\
        clusters: [{name: c, cluster: {server: 'https://ann:s3cret@localhost:1'}}]\n\
        users:\n- {name: ann, user: {token: s3cret}}\n\
        - {name: plugin, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: no-such-plugin, \
        args: [s3cret], env: [{name: A, value: s3cret}], interactiveMode: Never}}}\n\
        contexts:\n- {name: a, context: {cluster: c, user: ann}}\n\
        - {name: e, context: {cluster: c, user: plugin}}\n\
        - {name: n, context: {cluster: c, user: nobody}}\n\
        - {name: o, context: {cluster: other, user: ann}}\n";
    std::fs::write(&path, text).unwrap();
    let file = path.display();
    for (context, expected) in [
        (None, format!("{file}: current-context: context \"gone\" does not exist; its contexts are a, e, n, o")),
        (Some("x"), format!("{file}: --context: context \"x\" does not exist; its contexts are a, e, n, o")),
        (Some("n"), format!("{file}: user \"nobody\" was not found for context \"n\"")),
        (Some("o"), format!("{file}: cluster \"other\" was not found for context \"o\"")),
        (Some("e"), "context e, user plugin: no-such-plugin, the program of its exec plugin, can't be run: ".to_owned()),
    ] {
        let error = of_command(&path, context).await.err().unwrap().to_string();
        assert!(error.contains(&expected) && !error.contains("s3cret"), "{context:?}: {error}");
    }
    let found = of_command(&path, Some("a")).await.unwrap();
    assert_eq!(found.place_and_server(), "context a (https://localhost:1)");
}

#[tokio::test]
async fn a_server_that_is_silent_ends_a_request() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    let text = format!(
        "current-context: a\nclusters: [{{name: c, cluster: {{server: 'http://{}'}}}}]\n\
         contexts: [{{name: a, context: {{cluster: c}}}}]\n",
        listener.local_addr().unwrap()
    );
    std::fs::write(&path, text).unwrap();
    let silence = Duration::from_millis(100);
    let found = as_kubectl(&of(&path, None), silence, Clock::default()).await.unwrap();
    let error = worded(&found.client.apiserver_version().await.unwrap_err());
    assert!(error.ends_with("timed out"), "{error}");
    drop(listener);
}

#[tokio::test]
async fn unlimited_requests_do_not_wait_for_rate_limited_ones() {
    use clap::Parser;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let version = axum::Json(serde_json::json!({
        "major": "1", "minor": "36", "gitVersion": "", "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}));
    let app = axum::Router::new()
        .route("/version", axum::routing::get(move || async move { version.clone() }));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    let kubeconfig = serde_json::json!({"apiVersion": "v1", "kind": "Config",
        "current-context": "x", "users": [],
        "clusters": [{"name": "x", "cluster": {"server": url}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": ""}}]});
    std::io::Write::write_all(&mut file, kubeconfig.to_string().as_bytes()).expect("written");
    let line = "plimsoll serve --prometheus-url=http://x --client-qps=0.001 --client-burst=1";
    let cli = crate::config::Cli::try_parse_from(line.split(' ')).expect("flags");
    let crate::config::Command::Serve(flags) = cli.command else { panic!("another command") };
    let connect = async |qps| {
        let (path, clock) = (Some(file.path()), Clock::default());
        api_server(&flags, "--kubeconfig", path, Arc::default(), clock, qps).await
    };
    let limited = connect(flags.client_qps).await.expect("a client");
    let free = connect(None).await.expect("a client");
    limited.apiserver_version().await.expect("the first is within the limit");
    let waiting = tokio::spawn(async move { limited.apiserver_version().await });
    for _ in 0..20 {
        free.apiserver_version().await.expect("it does not wait");
    }
    assert!(!waiting.is_finished());
}
