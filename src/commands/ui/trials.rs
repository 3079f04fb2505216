//! "Try a change": an edited autoscaler beside the present one, on the load that Prometheus recorded. It is a backtest
//! of `plimsoll backtest --prometheus-url`, by the same code, and nothing is written.

use super::error::{UiError, cut};
use super::reflect::{api, resource};
use crate::backtest::Stop;
use crate::causes::causes;
use crate::commands::backtest::{self, Subject, Subjects, written};
use crate::commands::story::plain_lines;
use crate::commands::{convert, objects};
use crate::config::{BacktestFlags, Moment, RecordedFlags, ReportFormat, UiFlags};
use crate::hpa::TargetRef;
use crate::watch::AutoscalerRef;
use axum::body::{Body, to_bytes};
use axum::http::StatusCode;
use kube::Client;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The largest edited object, in bytes.
const MAX_BYTES: usize = 256 << 10;
/// The most trials at a time. One runs, and the others wait for it: each asks Prometheus for much.
const MAX_TRIALS: usize = 4;
/// How long a trial may take, with its wait.
const LIMIT: Duration = Duration::from_secs(300);
/// The longest load that is tried.
const MAX_HOURS: u32 = 14 * 24;
/// The most characters of an error that are shown: it may have a query.
const MAX_ERROR: usize = 4_000;
/// What the two candidates are called in errors, and in the report.
const PRESENT: &str = "present";
const EDITED: &str = "edited";

/// Why there is no report: a status, and a text for the user.
pub type Refusal = (StatusCode, String);

/// What a change is tried on.
#[derive(Clone, Copy, Debug)]
pub struct On {
    /// The load of so many hours until now.
    pub hours: u32,
    /// What one pod carries, if it is said.
    pub pod_carries: Option<f64>,
}

/// Tries changes.
pub struct Trials {
    client: Client,
    /// Those of each trial, but for its time and namespace.
    flags: BacktestFlags,
    seats: Semaphore,
    turn: Arc<Semaphore>,
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
            load_metrics: Vec::new(),
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
        let (seats, turn) = (Semaphore::new(MAX_TRIALS), Arc::new(Semaphore::new(1)));
        Ok(Some(Self { client, flags, seats, turn }))
    }

    /// The autoscaler as it is now, as YAML to be edited.
    ///
    /// # Errors
    /// If it can't be read.
    pub async fn present(&self, autoscaler: &AutoscalerRef) -> Result<String, Refusal> {
        Ok(convert::yaml(&written(&self.read(autoscaler).await?)))
    }

    /// The report on the autoscaler as it is now, and as a text has it.
    ///
    /// # Errors
    /// If the text is no such autoscaler, too many changes are tried already, or the trial fails or takes too long.
    pub async fn report(
        &self,
        autoscaler: &AutoscalerRef,
        on: On,
        edited: Body,
    ) -> Result<Vec<u8>, Refusal> {
        let hours = on.hours;
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
        let report = timeout(LIMIT, self.in_turn(autoscaler, on, edited)).await;
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
        on: On,
        edited: Body,
    ) -> Result<Vec<u8>, Refusal> {
        let edited = to_bytes(edited, MAX_BYTES).await.map_err(|_| {
            let text = format!("{EDITED}: at most {} KiB were expected", MAX_BYTES >> 10);
            (StatusCode::PAYLOAD_TOO_LARGE, text)
        })?;
        let edited = String::from_utf8_lossy(&edited).into_owned();
        let failed = |error: String| (StatusCode::UNPROCESSABLE_ENTITY, told(&error));
        let turn = self.turn.clone().acquire_owned().await;
        let turn = turn.map_err(|error| failed(error.to_string()))?;
        let present = self.read(autoscaler).await?;
        let mut flags = self.flags.clone();
        flags.recorded.from = Some(Moment::Ago(i64::from(on.hours) * 3_600_000));
        flags.recorded.namespace = Some(autoscaler.key.namespace.clone());
        flags.recorded.pod_carries = on.pod_carries;
        let mut subjects = both(present, &edited, &flags.recorded).map_err(failed)?;
        let stop = Stop::default();
        for subject in &mut subjects.found {
            subject.candidate.stop = stop.clone();
        }
        // A task of its own: what computes is not polled meanwhile, and sees neither the limit nor that the client is gone.
        // It ends when this future is dropped, at its next decision, and the next trial waits until it has ended.
        let _end = stop.on_drop();
        let mut trial = JoinSet::new();
        trial.spawn(async move {
            let _turn = turn;
            backtest::report_on(&flags, subjects).await
        });
        let report = trial.join_next().await.transpose();
        let report = report.map_err(|error| failed(error.to_string()))?;
        report.unwrap_or_else(|| Err("the trial has no result".to_owned())).map_err(failed)
    }

    async fn read(&self, autoscaler: &AutoscalerRef) -> Result<Value, Refusal> {
        let AutoscalerRef { kind, key } = autoscaler;
        let api = api(&self.client, *kind, Some(&key.namespace));
        let unreadable = |error: String| {
            let of = resource(*kind);
            let text = format!("Failed to get {of} {}/{}: {error}", key.namespace, key.name);
            (StatusCode::BAD_GATEWAY, shown(&text))
        };
        let object = api.get(&key.name).await.map_err(|error| match error {
            kube::Error::Api(status) => unreadable(status.message),
            error => unreadable(causes(&error)),
        })?;
        serde_json::to_value(object).map_err(|error| unreadable(error.to_string()))
    }
}

/// An error for the page, which has no flags.
fn told(error: &str) -> String {
    // That is a field of it.
    let error = &*error.replace("--pod-carries", "One pod carries");
    match [" --", "\n--"].iter().any(|flag| error.contains(flag)) || error.starts_with("--") {
        true => shown(error) + "\nThis page has no flags: plimsoll backtest has them.",
        false => shown(error),
    }
}

/// A text of others for the page.
fn shown(text: &str) -> String {
    cut(&plain_lines(text), MAX_ERROR)
}

/// The present and the edited autoscaler.
fn both(present: Value, edited: &str, flags: &RecordedFlags) -> Result<Subjects, String> {
    let edited = objects::parse(edited).map_err(|error| error.of(EDITED))?;
    let files = [(PRESENT, vec![present]), (EDITED, edited)];
    let files = files.map(|(name, objects)| (PathBuf::from(name), objects));
    let subjects = Subjects::of(&files, flags)?;
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
            "metadata": {"name": name, "namespace": "shop", "uid": "1", "resourceVersion": "7",
                "annotations": {}},
            "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "minReplicas": min, "maxReplicas": 9,
                "customMetrics": [{"metricName": "requests", "averageValue": "10"}]},
            "status": {"currentReplicas": 3}})
    }

    /// Trials in a cluster that has `shop/web`, on a Prometheus that refuses every connection.
    fn trials() -> Trials {
        trials_on("http://127.0.0.1:1", object("web", 1))
    }

    /// Trials in a cluster in which `shop/web` is this, on this Prometheus.
    fn trials_on(url: &str, web: Value) -> Trials {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (client, _) = fake::api(move |request| match request.line.ends_with("/web") {
            true => (200, web.clone()),
            false => fake::failure(404, "NotFound", "there is none"),
        });
        let cli = Cli::try_parse_from(["plimsoll", "ui", "--prometheus-url", url]);
        let Command::Ui(flags) = cli.unwrap().command else { unreachable!("it is ui") };
        Trials::new(client, &flags).unwrap().unwrap()
    }

    fn of(name: &str) -> AutoscalerRef {
        AutoscalerRef::autoscaler(ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() })
    }

    fn on(hours: u32) -> On {
        On { hours, pod_carries: None }
    }

    async fn refused(trials: &Trials, hours: u32, edited: String) -> (u16, String) {
        let refused = trials.report(&of("web"), on(hours), edited.into()).await.unwrap_err();
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
        let mut typo = object("web", 2);
        typo["spec"]["minReplica"] = json!(4);
        let two = format!("{}\n---\n{}", object("web", 2), object("web", 3));
        for (text, expected) in [
            ("a: [".to_owned(), "edited:1:4: "),
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
            (typo.to_string(), "spec.minReplica: unknown field"),
            (
                edited("/metadata/annotations", json!({"plimsoll.dev/pod-carries": "x=1"})),
                "\"x\" is no metric of it: requests was expected",
            ),
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
    async fn what_keda_makes_is_not_tried() {
        let owner = |group: &str, kind: &str| {
            let mut hpa = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "web", "namespace": "shop"},
                "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                    "maxReplicas": 9, "metrics": [{"type": "Pods", "pods": {"metric": {"name": "requests"},
                        "target": {"type": "AverageValue", "averageValue": "10"}}}]}});
            hpa["metadata"]["ownerReferences"] =
                json!([{"apiVersion": group, "kind": kind, "name": "worker", "uid": "2"}]);
            hpa
        };
        let tried = |group: &str, kind: &str| {
            let hpa = owner(group, kind);
            both(hpa.clone(), &hpa.to_string(), &trials().flags.recorded)
        };
        let error = tried("keda.sh/v1alpha1", "ScaledObject").unwrap_err();
        assert!(error.contains("try the ScaledObject worker with plimsoll backtest"), "{error}");
        // An Autoscaler of others.
        assert_eq!(tried("autoscaling.karmada.io/v1", "Autoscaler").unwrap().found.len(), 2);
    }

    #[tokio::test]
    async fn no_text_of_others_is_shown_or_edited_unseen() {
        let mut web = object("web", 1);
        web["metadata"]["annotations"]["note"] = json!("a\u{7f}b\u{202e}c");
        let trials = trials_on("http://127.0.0.1:1", web.clone());
        let text = trials.present(&of("web")).await.unwrap();
        assert!(text.contains("a\\u007fb\\u202ec"), "{text}");
        assert_eq!(objects::parse(&text).unwrap(), [written(&web)]);
        // Neither keeps it from being tried.
        let (_, error) = refused(&trials, 1, text).await;
        assert!(error.contains("Prometheus can't be reached"), "{error}");
        let text = told(&format!("give it with --query a\u{202e}={}", "x".repeat(9_000)));
        assert!(!text.contains('\u{202e}') && text.len() < 5_000, "{}", text.len());
        assert!(text.ends_with("plimsoll backtest has them."), "{text}");
        assert_eq!(told("--pod-carries: 2 metrics"), "One pod carries: 2 metrics");
    }

    #[tokio::test]
    async fn a_trial_that_nobody_waits_for_ends() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let trials = trials_on(&url, object("web", 1));
        let (web, edited) = (of("web"), Body::from(object("web", 2).to_string()));
        tokio::select! {
            report = trials.report(&web, on(1), edited) => panic!("{report:?}"),
            _ = silent.accept() => {}
        }
        let turn = timeout(Duration::from_secs(20), trials.turn.acquire()).await;
        assert!(turn.is_ok_and(|turn| turn.is_ok()));
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
