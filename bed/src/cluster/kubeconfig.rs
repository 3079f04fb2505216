//! Kubeconfigs, and the client that the bed itself uses.

use crate::pki::Authority;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::path::{Path, PathBuf};

/// Writes a kubeconfig for a user by certificate.
pub fn write_user_kubeconfig(
    folder: &Path,
    authority: &Authority,
    api_port: u16,
    user: &str,
    groups: &[&str],
) -> PathBuf {
    let signed = authority.sign(user, groups);
    let credentials = format!(
        "client-certificate: {}, client-key: {}",
        signed.certificate.display(),
        signed.key.display()
    );
    let server = format!("https://127.0.0.1:{api_port}");
    write_kubeconfig(folder, authority, &server, user, &credentials)
}

/// Writes a kubeconfig with these credentials, as YAML fields of the user.
pub fn write_kubeconfig(
    folder: &Path,
    authority: &Authority,
    server: &str,
    name: &str,
    credentials: &str,
) -> PathBuf {
    let path = folder.join(format!("{}.kubeconfig", name.replace(':', "-")));
    let ca = authority.certificate.display();
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: bed\n\
         clusters: [{{name: bed, cluster: {{server: \"{server}\", certificate-authority: {ca}}}}}]\n\
         users: [{{name: user, user: {{{credentials}}}}}]\n\
         contexts: [{{name: bed, context: {{cluster: bed, user: user}}}}]\n"
    );
    std::fs::write(&path, text).expect("a file");
    path
}

/// A client that does not retry.
pub async fn connect(kubeconfig: &Path) -> Client {
    let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let mut config =
        kube::Config::from_custom_kubeconfig(file, &options).await.expect("a kubeconfig");
    // Tests expect 503 responses: 15 retries of each would take minutes.
    config.default_retry = false;
    // No proxy of the environment leads to it.
    config.proxy_url = None;
    Client::try_from(config).expect("a client")
}
