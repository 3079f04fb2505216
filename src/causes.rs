//! The causes of an error, without the texts of credentials: errors of parsers have lines of their input.

use crate::yaml;
use kube::client::AuthError;
use kube::config::{KubeconfigError, LoadDataError};
use rustls::pki_types::pem;
use std::error::Error;

/// An error with all its causes, each once: many have that of their cause in their own text. One that comes of
/// credentials is told alone, and one of kube's `Service` by its cause alone.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(told) = of_credentials(error) {
            return told;
        }
        let mut more = error.to_string();
        if let Some(kube::Error::Service(sent)) = error.downcast_ref() {
            let told = sent.to_string();
            text = text.replace(&more, &told);
            more = told;
        }
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// What may be told of an error whose text may have a part of a kubeconfig, of a key, or of what a plugin for
/// credentials has written; none of others.
fn of_credentials(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<KubeconfigError>() {
        return of_kubeconfig(error);
    }
    if let Some(error) = error.downcast_ref::<AuthError>() {
        return of_plugin(error);
    }
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::ProxyProtocolUnsupported { proxy_url }) => {
            let scheme = proxy_url.scheme_str().unwrap_or_default();
            return Some(format!("the protocol {scheme:?} of the proxy is not supported"));
        }
        Some(kube::Error::ProxyProtocolDisabled { protocol_feature, .. }) => {
            return Some(format!("the proxy needs {protocol_feature}, which is not supported"));
        }
        _ => {}
    }
    match error.downcast_ref::<pem::Error>()? {
        pem::Error::Io(_) | pem::Error::NoItemsFound | pem::Error::SectionTooLarge => None,
        _ => Some("it is not PEM".to_owned()),
    }
}

fn of_kubeconfig(error: &KubeconfigError) -> Option<String> {
    let is_text = |error: &LoadDataError| matches!(error, LoadDataError::DecodeBase64(_));
    let not = |what: &str, form: &str| Some(format!("the {what} of the kubeconfig is not {form}"));
    match error {
        KubeconfigError::Parse(error) => {
            Some(format!("the kubeconfig can't be read: {}", of_yaml(error)))
        }
        // Whoever reads it names the file.
        KubeconfigError::ReadConfig(error, _) => Some(error.to_string()),
        KubeconfigError::LoadCertificateAuthority(error) if is_text(error) => {
            not("certificate-authority-data", "base64")
        }
        KubeconfigError::LoadClientCertificate(error) if is_text(error) => {
            not("client-certificate-data", "base64")
        }
        KubeconfigError::LoadClientKey(error) if is_text(error) => not("client-key-data", "base64"),
        KubeconfigError::ParseCertificates(_) => not("certificate authority", "PEM"),
        _ => None,
    }
}

/// The most characters of what a plugin says of its failure.
const MAX_SAID: usize = 1_000;

fn of_plugin(error: &AuthError) -> Option<String> {
    let answer = "the output of the kubeconfig's exec plugin";
    Some(match error {
        AuthError::AuthExecStart(error) => {
            format!("the program of the exec plugin of the kubeconfig can't be run: {error}")
        }
        // Its standard output is what holds the credentials, and its arguments may.
        AuthError::AuthExecRun { out, .. } => {
            let said = String::from_utf8_lossy(&out.stderr);
            let said: String = said.trim().chars().take(MAX_SAID).collect();
            let separator = if said.is_empty() { "" } else { ": " };
            format!("the exec plugin of the kubeconfig failed, {}{separator}{said}", out.status)
        }
        AuthError::AuthExecParse(error) => format!("{answer} can't be read: {}", of_yaml(error)),
        AuthError::MalformedTokenExpirationDate(_) => {
            format!("the token's time of expiry in {answer} is not RFC 3339")
        }
        AuthError::ParseTokenKey(error) => {
            let (line, column) = (error.line(), error.column());
            format!("{answer} can't be read: line {line}, column {column}")
        }
        _ => return None,
    })
}

/// What is wrong with YAML, and where, without a text of it.
fn of_yaml(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error::{
        DuplicateMappingKey, InvalidScalar, SerdeInvalidType, SerdeMissingField, Unexpected,
    };
    let what = match error.without_snippet() {
        Unexpected { expected, .. } => yaml::expected(expected).into_owned(),
        SerdeInvalidType { expected, .. } => yaml::expected(expected).into_owned(),
        InvalidScalar { ty: "boolean", .. } => yaml::expected("a boolean").into_owned(),
        InvalidScalar { .. } => "a number was expected".to_owned(),
        SerdeMissingField { field, .. } => format!("{field} is missing"),
        DuplicateMappingKey { .. } => "duplicate field".to_owned(),
        _ => "it is not valid".to_owned(),
    };
    match error.location() {
        Some(at) => format!("{what} (line {}, column {})", at.line(), at.column()),
        None => what,
    }
}
