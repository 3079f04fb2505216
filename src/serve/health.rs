//! `/livez`, `/readyz`, `/healthz`.

use super::trust::Trust;
use crate::config::LiveConfig;
use crate::rules::Rules;
use crate::watch::Synced;
use axum::http::StatusCode;
use std::fmt::Write;

/// What readiness depends on.
#[derive(Clone)]
pub struct Health {
    /// The watches.
    pub synced: Synced,
    /// Whom to believe.
    pub trust: Trust,
    /// The configuration in force.
    pub config: LiveConfig,
    /// The rules.
    pub rules: Rules,
}

impl Health {
    /// Whether requests can be answered, check by check.
    pub fn ready(&self, verbose: bool) -> (StatusCode, String) {
        let missing = self.synced.missing();
        let checks = [
            ("ping", None),
            (
                "watches",
                (!missing.is_empty()).then(|| format!("not listed yet: {}", missing.join(", "))),
            ),
            (
                "authentication",
                (!self.trust.is_known()).then(|| {
                    "configmap kube-system/extension-apiserver-authentication was not read yet"
                        .to_owned()
                }),
            ),
        ];
        let failed = checks.iter().any(|(_, fault)| fault.is_some());
        if !failed && !verbose {
            return (StatusCode::OK, "ok".to_owned());
        }
        let mut text = String::new();
        for (name, fault) in checks {
            let _ = match fault {
                None => writeln!(text, "[+]{name} ok"),
                Some(fault) => writeln!(text, "[-]{name} failed: {fault}"),
            };
        }
        // The last good state goes on serving: these are told, and no more.
        if let Some(fault) = self.config.fault() {
            let _ = writeln!(text, "[!]config: the file can't be taken up: {fault}");
        }
        for (query, fault) in self.rules.failing() {
            let _ = writeln!(text, "[!]rules: the series query {query} fails: {fault}");
        }
        let _ = writeln!(text, "readyz check {}", if failed { "failed" } else { "passed" });
        let code = if failed { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK };
        (code, text)
    }
}
