//! "Try a change": an edited autoscaler beside the present one, on the load that Prometheus recorded. It is a backtest
//! of `plimsoll backtest --prometheus-url`, by the same code, and nothing is written.

use super::error::{UiError, causes};
use super::reflect::{api, resource};
use crate::commands::backtest::{self, Subject, Subjects, written};
use crate::commands::convert;
use crate::config::{BacktestFlags, Moment, RecordedFlags, ReportFormat, UiFlags};
use crate::hpa::TargetRef;
use crate::watch::AutoscalerRef;
use axum::body::{Body, to_bytes};
use axum::http::StatusCode;
use kube::Client;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The largest edited object, in bytes.
const MAX_BYTES: usize = 256 << 10;
/// The most trials at a time. One runs, and the others wait for it: each asks Prometheus for much.
const MAX_TRIALS: usize = 4;
/// How long a trial may take, with its wait.
const LIMIT: Duration = Duration::from_secs(300);
/// The longest load that is tried.
const MAX_HOURS: u32 = 14 * 24;
/// What the two candidates are called in errors, and in the report.
const PRESENT: &str = "present";
const EDITED: &str = "edited";

/// Why there is no report: a status, and a text for the user.
pub type Refusal = (StatusCode, String);

/// Tries changes.
pub struct Trials {
    client: Client,
    /// Those of each trial, but for its time and namespace.
    flags: BacktestFlags,
    seats: Semaphore,
    turn: Semaphore,
}

impl Trials {
    /// Trials on the Prometheus of the flags; none without one.
    ///
    /// # Errors
    /// If a flag or the configuration file is invalid.
    pub fn new(client: Client, flags: &UiFlags) -> Result<Option<Self>, UiError> {
        let Some(url) = &flags.prometheus_url else { return Ok(None) };
        let recorded = RecordedFlags {
            load: None,
            prometheus_url: Some(url.clone()),
            prometheus: flags.prometheus.clone(),
            config: flags.config.clone(),
            queries: Vec::new(),
            requests: Vec::new(),
            namespace: None,
            pod_carries: None,
            pod_start: None,
            from: None,
            to: None,
            // Of files of load only.
            window: Duration::from_secs(60),
            scrape_interval: Duration::from_secs(15),
            period: None,
        };
        backtest::check(&recorded, url).map_err(UiError::Prometheus)?;
        let flags = BacktestFlags {
            files: Vec::new(),
            recorded,
            warm_up: Duration::ZERO,
            feedback: None,
            service_rate: None,
            output: ReportFormat::Html,
        };
        let (seats, turn) = (Semaphore::new(MAX_TRIALS), Semaphore::new(1));
        Ok(Some(Self { client, flags, seats, turn }))
    }

    /// The autoscaler as it is now, as YAML to be edited.
    ///
    /// # Errors
    /// If it can't be read.
    pub async fn present(&self, autoscaler: &AutoscalerRef) -> Result<String, Refusal> {
        Ok(convert::yaml(&written(&self.read(autoscaler).await?)))
    }

    /// The report on the autoscaler as it is now, and as a text has it, of so many hours until now.
    ///
    /// # Errors
    /// If the text is no such autoscaler, too many changes are tried already, or the trial fails or takes too long.
    pub async fn report(
        &self,
        autoscaler: &AutoscalerRef,
        hours: u32,
        edited: Body,
    ) -> Result<Vec<u8>, Refusal> {
        if !(1..=MAX_HOURS).contains(&hours) {
            let text = format!("hours: 1 to {MAX_HOURS} was expected, and not {hours}");
            return Err((StatusCode::BAD_REQUEST, text));
        }
        let Ok(_seat) = self.seats.try_acquire() else {
            let text = format!(
                "{MAX_TRIALS} changes are being tried already: try again when one of them is done."
            );
            return Err((StatusCode::SERVICE_UNAVAILABLE, text));
        };
        let report = timeout(LIMIT, self.in_turn(autoscaler, hours, edited)).await;
        report.unwrap_or_else(|_| {
            let text = format!(
                "The change was not tried within {} min: choose a shorter time.",
                LIMIT.as_secs() / 60
            );
            Err((StatusCode::GATEWAY_TIMEOUT, text))
        })
    }

    async fn in_turn(
        &self,
        autoscaler: &AutoscalerRef,
        hours: u32,
        edited: Body,
    ) -> Result<Vec<u8>, Refusal> {
        let edited = to_bytes(edited, MAX_BYTES).await.map_err(|_| {
            let text = format!("{EDITED}: at most {} KiB were expected", MAX_BYTES >> 10);
            (StatusCode::PAYLOAD_TOO_LARGE, text)
        })?;
        let edited = String::from_utf8_lossy(&edited).into_owned();
        let failed = |error: String| (StatusCode::UNPROCESSABLE_ENTITY, error);
        let _turn = self.turn.acquire().await.map_err(|error| failed(error.to_string()))?;
        let present = self.read(autoscaler).await?;
        let mut flags = self.flags.clone();
        flags.recorded.from = Some(Moment::Ago(i64::from(hours) * 3_600_000));
        flags.recorded.namespace = Some(autoscaler.key.namespace.clone());
        let subjects = both(&present, edited, &flags.recorded).map_err(failed)?;
        backtest::report_on(&flags, subjects).await.map_err(failed)
    }

    async fn read(&self, autoscaler: &AutoscalerRef) -> Result<Value, Refusal> {
        let AutoscalerRef { kind, key } = autoscaler;
        let api = api(&self.client, *kind, Some(&key.namespace));
        let unreadable = |error: String| {
            let of = resource(*kind);
            let text = format!("Failed to get {of} {}/{}: {error}", key.namespace, key.name);
            (StatusCode::BAD_GATEWAY, text)
        };
        let object = api.get(&key.name).await.map_err(|error| match error {
            kube::Error::Api(status) => unreadable(status.message),
            error => unreadable(causes(&error)),
        })?;
        serde_json::to_value(object).map_err(|error| unreadable(error.to_string()))
    }
}

/// The present and the edited autoscaler.
fn both(present: &Value, edited: String, flags: &RecordedFlags) -> Result<Subjects, String> {
    let texts = [(PRESENT, present.to_string()), (EDITED, edited)];
    let texts = texts.map(|(name, text)| (PathBuf::from(name), text));
    let subjects = Subjects::of(&texts, flags)?;
    if let Some(error) = subjects.failed.first() {
        return Err(error.clone());
    }
    let [present, edited] = &*subjects.found else {
        let count = subjects.found.len().saturating_sub(1);
        return Err(format!("{EDITED}: one autoscaler was expected, and there are {count}"));
    };
    let name =
        |of: &Subject| (of.candidate.namespace.clone(), of.written["metadata"]["name"].clone());
    if name(edited) != name(present) {
        return Err(format!(
            "{EDITED}: it is {edited}, and {present} was expected: leave metadata.name and metadata.namespace as they are"
        ));
    }
    let [was, is] = [present, edited].map(|of| {
        let TargetRef { api_version, kind, name } = &of.candidate.spec.target;
        format!("{api_version} {kind} {name}")
    });
    if is != was {
        return Err(format!(
            "{EDITED}: scaleTargetRef is {is}, and {was} was expected: the load is that of one workload"
        ));
    }
    Ok(subjects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Cli, Command};
    use crate::fake;
    use crate::watch::ObjectKey;
    use clap::Parser;
    use serde_json::json;

    fn object(name: &str, min: i32) -> Value {
        json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
            "metadata": {"name": name, "namespace": "shop", "uid": "1", "resourceVersion": "7"},
            "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "minReplicas": min, "maxReplicas": 9,
                "customMetrics": [{"metricName": "requests", "averageValue": "10"}]},
            "status": {"currentReplicas": 3}})
    }

    /// Trials in a cluster that has `shop/web`, on a Prometheus that refuses every connection.
    fn trials() -> Trials {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (client, _) = fake::api(|request| match request.line.ends_with("/autoscalers/web") {
            true => (200, object("web", 1)),
            false => fake::failure(404, "NotFound", "there is none"),
        });
        let cli = Cli::try_parse_from(["plimsoll", "ui", "--prometheus-url=http://127.0.0.1:1"]);
        let Command::Ui(flags) = cli.unwrap().command else { unreachable!("it is ui") };
        Trials::new(client, &flags).unwrap().unwrap()
    }

    fn of(name: &str) -> AutoscalerRef {
        AutoscalerRef::autoscaler(ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() })
    }

    async fn refused(trials: &Trials, hours: u32, edited: String) -> (u16, String) {
        let refused = trials.report(&of("web"), hours, edited.into()).await.unwrap_err();
        (refused.0.as_u16(), refused.1)
    }

    #[tokio::test]
    async fn what_is_edited_is_what_a_user_writes() {
        let text = trials().present(&of("web")).await.unwrap();
        assert!(text.contains("minReplicas: 1") && text.contains("name: web"), "{text}");
        assert!(
            ["status", "uid", "resourceVersion"].iter().all(|one| !text.contains(one)),
            "{text}"
        );
        let (code, text) = trials().present(&of("other")).await.unwrap_err();
        assert_eq!(code, StatusCode::BAD_GATEWAY);
        assert!(text.contains("shop/other: there is none"), "{text}");
    }

    #[tokio::test]
    async fn only_a_change_of_the_same_autoscaler_is_tried() {
        let edited = |path: &str, value: Value| {
            let mut object = object("web", 2);
            *object.pointer_mut(path).unwrap() = value;
            object.to_string()
        };
        let two = format!("{}\n---\n{}", object("web", 2), object("web", 3));
        for (text, expected) in [
            ("a: [".to_owned(), "edited: "),
            (String::new(), "edited: there is no Autoscaler, HorizontalPodAutoscaler or"),
            (edited("/spec/maxReplicas", json!("x")), "spec.maxReplicas: \"x\": expected integer"),
            (
                edited("/metadata/name", json!("api")),
                "edited: it is shop/api, and shop/web was expected",
            ),
            (
                edited("/metadata/namespace", json!("other")),
                "edited: it is other/web, and shop/web was",
            ),
            (
                edited("/spec/scaleTargetRef/name", json!("api")),
                "scaleTargetRef is apps/v1 Deployment api",
            ),
            (two, "edited: one autoscaler was expected, and there are 2"),
            // This one is tried.
            (edited("/spec/minReplicas", json!(4)), "Prometheus can't be reached"),
            (edited("/metadata", json!({"name": "web"})), "Prometheus can't be reached"),
        ] {
            let (code, error) = refused(&trials(), 24, text.clone()).await;
            assert_eq!(code, 422, "{text}: {error}");
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn a_trial_is_bounded() {
        let trials = trials();
        let text = || object("web", 2).to_string();
        for hours in [0, MAX_HOURS + 1] {
            assert_eq!(refused(&trials, hours, text()).await.0, 400);
        }
        assert_eq!(refused(&trials, 1, " ".repeat(MAX_BYTES + 1)).await.0, 413);
        let seats = trials.seats.try_acquire_many(MAX_TRIALS as u32).unwrap();
        let (code, error) = refused(&trials, 1, text()).await;
        assert_eq!(code, 503);
        assert!(error.contains("4 changes are being tried already"), "{error}");
        drop(seats);
        assert_eq!(refused(&trials, 1, text()).await.0, 422);
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_that_takes_too_long_ends_and_makes_room() {
        let trials = trials();
        let turn = trials.turn.acquire().await.unwrap();
        let (code, error) = refused(&trials, 1, object("web", 2).to_string()).await;
        assert_eq!(code, 504);
        assert!(error.contains("within 5 min"), "{error}");
        drop(turn);
        assert_eq!(trials.seats.available_permits(), MAX_TRIALS);
    }
}
