//! The client of Prometheus.

use super::error::ConnectError;
use super::kubeconfig;
use crate::config::{PrometheusFlags, PrometheusVerb};
use crate::k8s::SERVICE_ACCOUNT;
use crate::prometheus::{self, Names, Pem, Token};
use kube::config::Kubeconfig;
use std::path::{Path, PathBuf};

/// The client of Prometheus.
///
/// # Errors
/// As [`ConnectError`] says.
pub fn prometheus(url: &str, flags: &PrometheusFlags) -> Result<prometheus::Client, ConnectError> {
    let mut roots = None;
    let mut identity = None;
    let mut token = None;
    if let Some(path) = &flags.prometheus_auth_config {
        (roots, identity, token) = from_kubeconfig(path)?;
    }
    if flags.prometheus_auth_incluster {
        let folder = Path::new(SERVICE_ACCOUNT);
        roots = Some(Pem::read("--prometheus-auth-incluster", &folder.join("ca.crt"))?);
        token = Some(Token::File(folder.join("token")));
    }
    if let Some(path) = &flags.prometheus_ca_file {
        roots = Some(Pem::read("--prometheus-ca-file", path)?);
    }
    let files = (&flags.prometheus_client_tls_cert_file, &flags.prometheus_client_tls_key_file);
    if let (Some(certificate), Some(key)) = files {
        let certificate = Pem::read("--prometheus-client-tls-cert-file", certificate)?;
        identity = Some(certificate.and(Pem::read("--prometheus-client-tls-key-file", key)?));
    }
    if let Some(path) = &flags.prometheus_token_file {
        token = Some(Token::File(path.clone()));
    }
    Ok(prometheus::Client::new(prometheus::Options {
        url: url.to_owned(),
        timeout: flags.prometheus_timeout,
        roots,
        identity,
        token,
        headers: flags.prometheus_header.clone(),
        get: flags.prometheus_verb == PrometheusVerb::Get,
        max_response_bytes: flags.prometheus_max_response_bytes,
        names: &Names::FLAGS,
    })?)
}

/// The same for a command: its errors say which server it is.
///
/// # Errors
/// As [`ConnectError`] says.
pub fn prometheus_of_command(
    url: &str,
    flags: &PrometheusFlags,
) -> Result<prometheus::Client, ConnectError> {
    Ok(prometheus(url, flags)?.at_address(&redact_url(url)))
}

type Credentials = (Option<Pem>, Option<Pem>, Option<Token>);

/// The trusted CA and the credentials of the current context of a kubeconfig.
fn from_kubeconfig(path: &Path) -> Result<Credentials, ConnectError> {
    const FLAG: &str = "--prometheus-auth-config";
    let file = kubeconfig::read(FLAG, path)?;
    let (_, context) = file.context(None, "`kubectl config use-context NAME` sets it")?;
    let wrong = |error: String| file.wrong(error);
    let Kubeconfig { clusters, auth_infos, .. } = &file.config;
    let cluster = clusters.iter().find(|named| named.name == context.cluster);
    let user = context.user.as_ref().and_then(|user| auth_infos.iter().find(|n| &n.name == user));
    type Read = Result<Option<Pem>, ConnectError>;
    let pem = |field: &str, data: Option<&str>, file: Option<&String>| -> Read {
        if let Some(data) = data {
            let quoted = serde_json::json!(data);
            let text: k8s_openapi::ByteString = serde_json::from_value(quoted)
                .map_err(|_| wrong(format!("{field} is not base64")))?;
            let origin = format!("{FLAG}: {}", path.display());
            return Ok(Some(Pem::new(origin, text.0)));
        }
        file.map(|file| Pem::read(FLAG, Path::new(file))).transpose().map_err(Into::into)
    };
    let mut credentials: Credentials = (None, None, None);
    if let Some(cluster) = cluster.and_then(|named| named.cluster.as_ref()) {
        let data = cluster.certificate_authority_data.as_deref();
        credentials.0 =
            pem("certificate-authority-data", data, cluster.certificate_authority.as_ref())?;
    }
    if let Some(user) = user.and_then(|named| named.auth_info.as_ref()) {
        use secrecy::ExposeSecret;
        let data = user.client_certificate_data.as_deref();
        let certificate = pem("client-certificate-data", data, user.client_certificate.as_ref())?;
        let key_data = user.client_key_data.as_ref().map(|key| key.expose_secret());
        let key = pem("client-key-data", key_data, user.client_key.as_ref())?;
        credentials.1 = certificate.zip(key).map(|(certificate, key)| certificate.and(key));
        credentials.2 = match (&user.token_file, &user.token) {
            (Some(file), _) => Some(Token::File(PathBuf::from(file))),
            (None, Some(token)) => Some(Token::Text(token.expose_secret().to_owned())),
            (None, None) => None,
        };
    }
    Ok(credentials)
}

/// A URL for a log: without user, password, query and fragment, which may contain secrets.
pub fn redact_url(url: &str) -> String {
    let Some(mut url) = reqwest::Url::parse(url).ok().filter(reqwest::Url::has_host) else {
        return "(not a URL)".to_owned();
    };
    // This fails only for a URL without a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_of_a_kubeconfig_gets_into_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let context = "current-context: x\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n";
        for user in ["token: s3cret, username: [a]", "client-certificate-data: s3cret-"] {
            let text = format!("{context}users:\n- {{name: x, user: {{{user}}}}}\n");
            std::fs::write(file.path(), text).unwrap();
            let error = from_kubeconfig(file.path()).map(drop).unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
            assert!(error.contains("line 4") || error.contains("base64"), "{error}");
        }
        std::fs::write(file.path(), "current-context: ''\n").unwrap();
        let error = from_kubeconfig(file.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains("no current-context"), "{error}");
    }

    #[test]
    fn no_secret_of_a_url_gets_into_a_log() {
        for (url, shown) in [
            ("http://a:b@host:9090/x", "http://host:9090/x"),
            ("http://host:9090", "http://host:9090/"),
            ("http://host/x?token=secret", "http://host/x"),
            ("http://host/x?to=a@b", "http://host/x"),
            ("http://host/x@y/z", "http://host/x@y/z"),
            ("http://a:b@host/#secret", "http://host/"),
            ("user:secret@host", "(not a URL)"),
            ("no address, secret", "(not a URL)"),
        ] {
            assert_eq!(redact_url(url), shown, "{url}");
        }
    }
}
