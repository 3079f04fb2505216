//! `plimsoll status`: the leader, the freeze, and the Autoscalers that fail or are paused.

use super::super::convert::yaml;
use super::super::story::{clean, plain, span};
use super::super::table::{Align, table};
use super::cluster::{Cluster, lease_name, named_leases};
use super::error::{OperateError, api_error};
use super::missing::no_namespace;
use super::terminal::{cut, width};
use crate::config::{ClusterFlags, StatusFlags, TableFormat};
use crate::crd::{Autoscaler, AutoscalerStatus, Mode};
use crate::leader::Freeze;
use crate::time::UnixMillis;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use std::fmt::Write;

/// Shows the leader, the freeze, and the Autoscalers. Of both, what can be read is shown, and why the other can't.
///
/// # Errors
/// As [`OperateError`] says, and if nothing can be read.
pub async fn status(flags: &StatusFlags) -> Result<String, OperateError> {
    let cluster = Cluster::of(&flags.cluster.kubectl).await?;
    status_of(&cluster, flags).await.map_err(|error| cluster.told(error))
}

async fn status_of(cluster: &Cluster, flags: &StatusFlags) -> Result<String, OperateError> {
    let lease = match leader(cluster, &flags.cluster).await {
        Err(error) if !error.is_refused() => return Err(error),
        lease => lease,
    };
    let other_leases = match &lease {
        Ok(None) => cluster.other_leases().await,
        _ => Vec::new(),
    };
    let rows = rows(cluster, flags).await;
    let missing = match (rows.as_deref(), &flags.namespace) {
        (Ok([]), Some(namespace)) => no_namespace(&cluster.client, namespace).await,
        _ => None,
    };
    let lease_name = lease_name(&flags.cluster);
    match (&lease, &rows) {
        (Ok(None), Err(rows)) if rows.is_unknown_kind() => {
            return Err(OperateError::Refused(format!(
                "Plimsoll's definitions are not installed, and there is no {lease_name}{}",
                named_leases(&other_leases)
            )));
        }
        (Err(lease), Err(rows)) => {
            let hint = hint(flags, rows);
            return Err(OperateError::Refused(format!("{lease}\nplimsoll: {rows}{hint}")));
        }
        _ => {}
    }
    let shown = Status { cluster, lease, other_leases, rows, missing, lease_name };
    Ok(match flags.output {
        TableFormat::Text | TableFormat::Wide => shown.text(flags),
        TableFormat::Name => {
            let rows = shown.rows.map_err(|error| OperateError::Refused(error.to_string()))?;
            rows.iter()
                .map(|row| format!("autoscaler.plimsoll.dev/{}\n", plain(&row.name)))
                .collect()
        }
        TableFormat::Json => format!("{:#}\n", shown.json()),
        TableFormat::Yaml => yaml(&shown.json()),
    })
}

/// What was read.
struct Status<'a> {
    cluster: &'a Cluster,
    lease: Result<Option<Leader>, OperateError>,
    /// Where the named Lease is none: namespaces and names of others.
    other_leases: Vec<(String, String)>,
    rows: Result<Vec<Row>, OperateError>,
    /// That there is no such namespace.
    missing: Option<String>,
    lease_name: String,
}

impl Status<'_> {
    fn text(&self, flags: &StatusFlags) -> String {
        let place = &self.cluster.place;
        let place = place.strip_prefix("context ").unwrap_or(place);
        let mut text = format!("Context      {place}\n");
        text += &match &self.lease {
            Ok(Some(leader)) => leader.text(self.now()),
            Ok(None) => {
                let others = named_leases(&self.other_leases);
                format!("Leader       none: there is no {}{others}\n", self.lease_name)
            }
            Err(error) => format!("Leader       not known: {error}\n"),
        };
        let rows = match &self.rows {
            Ok(rows) => rows,
            Err(error) => {
                let hint = hint(flags, error);
                return text + &format!("Autoscalers  not known: {error}{hint}\n");
            }
        };
        if let Some(missing) = &self.missing {
            return text + &format!("Autoscalers  none: {missing}\n");
        }
        let of = flags.namespace.as_ref().map(|namespace| format!(" in {namespace}"));
        let [failing, paused, fallback] = [State::Failing, State::Paused, State::Fallback]
            .map(|state| rows.iter().filter(|row| row.state == state).count());
        let _ = writeln!(
            text,
            "Autoscalers  {}{}: {failing} failing, {paused} paused, {fallback} in fallback",
            rows.len(),
            of.unwrap_or_default()
        );
        let is_wide = flags.output == TableFormat::Wide;
        let shown: Vec<&Row> =
            rows.iter().filter(|row| is_wide || row.state != State::Active).collect();
        if shown.is_empty() {
            return text;
        }
        let head = ["NAMESPACE", "NAME", "STATE", "REASON", "AGE", "MESSAGE"].map(str::to_owned);
        let cells = shown.into_iter().map(|row| row.cells(self.now()));
        let all: Vec<_> = std::iter::once(head).chain(cells).collect();
        let width = width().filter(|_| !is_wide);
        let table = table(&all, Align::Left);
        let lines = table.lines().map(|line| cut(line, width) + "\n");
        text + "\n" + &lines.collect::<String>()
    }

    fn json(&self) -> Value {
        let mut json = json!({"context": self.cluster.place});
        match &self.lease {
            Ok(leader) => json["leader"] = leader.as_ref().map_or(Value::Null, Leader::json),
            Err(error) => json["leaderError"] = error.to_string().into(),
        }
        if !self.other_leases.is_empty() {
            let lease = |(namespace, name): &(String, String)| json!({"namespace": namespace, "name": name});
            json["otherLeases"] = self.other_leases.iter().map(lease).collect();
        }
        match &self.rows {
            Ok(rows) => json["autoscalers"] = rows.iter().map(Row::json).collect(),
            Err(error) => json["autoscalersError"] = error.to_string().into(),
        }
        clean(&mut json);
        json
    }

    fn now(&self) -> UnixMillis {
        self.cluster.clock.server_or_wall()
    }
}

/// What helps who may not list the Autoscalers of all namespaces.
fn hint(flags: &StatusFlags, error: &OperateError) -> &'static str {
    match flags.namespace.is_none() && error.is_refused() {
        true => "; -n NAMESPACE shows those of one namespace",
        false => "",
    }
}

/// Who leads, and whether scales are frozen.
struct Leader {
    holder: Option<String>,
    renewed: Option<jiff::Timestamp>,
    freeze: Option<Freeze>,
}

impl Leader {
    fn text(&self, now: UnixMillis) -> String {
        let age = |time: jiff::Timestamp| {
            format!("{} ago", span(now.saturating_sub(time.as_millisecond())))
        };
        let renewed = self.renewed.map_or_else(|| "never".to_owned(), age);
        let mut text = match &self.holder {
            Some(holder) => format!("Leader       {}, renewed {renewed}\n", plain(holder)),
            None => "Leader       none\n".to_owned(),
        };
        if let Some(freeze) = &self.freeze {
            let freeze = freeze.to_string();
            let _ = writeln!(text, "Frozen       no scale is written: {}", plain(&freeze));
        }
        text
    }

    fn json(&self) -> Value {
        json!({
            "holder": self.holder,
            "renewTime": self.renewed.map(|time| time.to_string()),
            "frozen": self.freeze.as_ref().map(ToString::to_string),
        })
    }
}

/// None if there is no Lease.
async fn leader(cluster: &Cluster, flags: &ClusterFlags) -> Result<Option<Leader>, OperateError> {
    let read = cluster.leases(flags).get_opt(&flags.lease).await;
    let Some(lease) = read.map_err(api_error(lease_name(flags)))? else {
        return Ok(None);
    };
    let freeze = Freeze::of(&lease);
    let spec = lease.spec.unwrap_or_default();
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    Ok(Some(Leader { holder, renewed: spec.renew_time.map(|time| time.0), freeze }))
}

/// In which state an Autoscaler is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Failing,
    Fallback,
    Paused,
    Preview,
    Active,
}

/// An Autoscaler, and the condition that says why it is in its state.
struct Row {
    namespace: String,
    name: String,
    state: State,
    reason: String,
    message: String,
    since: Option<jiff::Timestamp>,
}

impl Row {
    fn of(object: &Autoscaler, now: UnixMillis) -> Self {
        let status = object.status.as_ref();
        let is = |kind: &str| {
            let conditions = status?.conditions.as_ref()?;
            conditions.iter().find(|one| one.type_ == kind && one.status == "True")
        };
        let (state, condition) = match (status.and_then(fault), object.spec.mode_at(now)) {
            (_, Mode::Paused) => (State::Paused, is("Paused")),
            (Some(fault), _) => match is("FallbackActive") {
                Some(fallback) => (State::Fallback, Some(fallback)),
                None => (State::Failing, Some(fault)),
            },
            (None, Mode::Preview) => (State::Preview, is("Preview")),
            (None, Mode::Active) => (State::Active, is("Ready")),
        };
        Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            state,
            reason: condition.map(|one| one.reason.clone()).unwrap_or_default(),
            message: condition.map(|one| one.message.clone()).unwrap_or_default(),
            since: condition.map(|one| one.last_transition_time.0),
        }
    }

    fn cells(&self, now: UnixMillis) -> [String; 6] {
        let age = self.since.map(|since| span(now.saturating_sub(since.as_millisecond())));
        let state = format!("{:?}", self.state);
        let age = age.unwrap_or_else(|| "-".to_owned());
        [&self.namespace, &self.name, &state, &self.reason, &age, &self.message]
            .map(|text| plain(text).into_owned())
    }

    fn json(&self) -> Value {
        json!({
            "namespace": self.namespace,
            "name": self.name,
            "state": format!("{:?}", self.state),
            "reason": self.reason,
            "message": self.message,
            "since": self.since.map(|since| since.to_string()),
        })
    }
}

/// The Autoscalers of a namespace, or of all.
async fn rows(cluster: &Cluster, flags: &StatusFlags) -> Result<Vec<Row>, OperateError> {
    let client = cluster.client.clone();
    let api: Api<Autoscaler> = match &flags.namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let params = ListParams::default().labels(flags.selector.as_deref().unwrap_or_default());
    let all = api.list(&params).await.map_err(api_error("autoscalers"))?;
    let now = cluster.clock.server_or_wall();
    Ok(all.iter().map(|object| Row::of(object, now)).collect())
}

/// The condition with which an Autoscaler fails, if it does.
pub fn fault(status: &AutoscalerStatus) -> Option<&Condition> {
    let conditions = status.conditions.as_ref()?;
    let healthy = ["AbleToScale", "ScalingActive"];
    conditions.iter().find(|c| {
        c.status != "True" && healthy.contains(&&*c.type_) && c.reason != "ScalingDisabled"
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, Dated};
    use crate::commands::story;
    use crate::config::{Cli, Command};
    use crate::fake;
    use clap::Parser;
    use jiff::Timestamp;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    /// The status by an API server that answers so at this time, whatever the clock here says.
    async fn shown_at(now: Timestamp, lease: Value, autoscalers: Value) -> String {
        let date = jiff::fmt::rfc2822::DateTimePrinter::new();
        let date = date.timestamp_to_rfc9110_string(&now).unwrap();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let is_lease = request.uri().path().contains("/leases/");
            let body = if is_lease { lease.clone() } else { autoscalers.clone() };
            let response = http::Response::builder().header("date", &date);
            let response = response.body(Body::from(body.to_string().into_bytes()));
            async move { Ok::<_, kube::Error>(response.unwrap()) }
        });
        let clock = Clock::default();
        let service = Dated::new(service, clock.clone());
        let client = Client::new(service, "default");
        let cluster = Cluster { clock, ..Cluster::fake(client) };
        status_of(&cluster, &flags(None)).await.unwrap()
    }

    fn flags(namespace: Option<&str>) -> StatusFlags {
        let line = ["plimsoll", "status"].into_iter().chain(namespace.map(|_| "-n"));
        let line = line.chain(namespace);
        match Cli::try_parse_from(line).unwrap().command {
            Command::Status(flags) => flags,
            other => panic!("{other:?}"),
        }
    }

    fn lease(holder: &str, renewed: Timestamp, annotations: Value) -> Value {
        json!({"metadata": {"name": "plimsoll", "annotations": annotations},
            "spec": {"holderIdentity": holder, "renewTime": format!("{renewed:.6}")}})
    }

    fn list(spec: Value, status: Value) -> Value {
        let mut all = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 3});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        json!({"metadata": {}, "items": [{"metadata": {"namespace": "shop", "name": "web"},
            "spec": all, "status": status}]})
    }

    /// The clock of a laptop is an hour ahead.
    #[tokio::test]
    async fn times_are_by_the_clock_of_the_server() {
        let hour = jiff::SignedDuration::from_hours(1);
        let now = Clock::default().wall_timestamp() - hour;
        let until = (now + hour / 2).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let spec = json!({"mode": "Paused", "pause": {"until": until}});
        let text = shown_at(now, lease("a", now, json!({})), list(spec, json!({}))).await;
        let renewed = text.lines().find_map(|line| line.strip_prefix("Leader       a, renewed "));
        assert!(renewed.is_some_and(|age| ["0s ago", "1s ago", "2s ago"].contains(&age)), "{text}");
        assert!(text.contains("Autoscalers  1: 0 failing, 1 paused, 0 in fallback"), "{text}");
    }

    /// Prometheus, or what stands before it, writes the texts of conditions.
    #[tokio::test]
    async fn no_text_of_an_object_controls_the_terminal() {
        let now = Clock::default().wall_timestamp();
        let evil = "\u{1b}[2J\u{1b}]0;x\u{7}a\u{202e}b\nAutoscalers  1: 0 failing";
        let annotations = json!({"plimsoll.dev/freeze": evil, "plimsoll.dev/frozen-by": evil});
        let condition = json!({"type": "ScalingActive", "status": "False", "reason": evil,
            "message": evil, "lastTransitionTime": "2026-11-25T10:00:00Z"});
        let status = json!({"conditions": [condition]});
        let text = shown_at(now, lease(evil, now, annotations), list(json!({}), status)).await;
        assert!(!text.chars().any(|one| one != '\n' && story::is_unsafe(one)), "{text:?}");
        assert_eq!(text.lines().count(), 7, "{text}");
        assert_eq!(text.matches("b Autoscalers  1: 0 failing").count(), 5, "{text}");
    }

    /// The status where these are refused, and with a namespace or for all.
    async fn shown(refused: &'static [&str], namespace: Option<&str>) -> (bool, String) {
        let service = tower::service_fn(move |request: http::Request<Body>| async move {
            let path = request.uri().path();
            let is_lease = path.contains("/leases/");
            let what = if is_lease { "leases" } else { "autoscalers" };
            let (code, body) = match (refused.contains(&what), is_lease) {
                (true, _) => fake::failure(403, "Forbidden", &format!("cannot read {what}")),
                _ if path.ends_with("/namespaces/shopp") => fake::failure(404, "NotFound", "no"),
                (false, true) => fake::failure(404, "NotFound", "there is no Lease"),
                (false, false) => (200, json!({"metadata": {}, "items": []})),
            };
            let response = http::Response::builder().status(code);
            Ok::<_, kube::Error>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
        });
        let client = Client::new(service, "default");
        match status_of(&Cluster::fake(client), &flags(namespace)).await {
            Ok(text) => (true, text),
            Err(error) => (false, error.to_string()),
        }
    }

    #[tokio::test]
    async fn what_can_be_read_is_shown_with_why_the_rest_can_not() {
        let (is_good, text) = shown(&["leases"], Some("shop")).await;
        let lines: Vec<&str> = text.lines().collect();
        assert!(is_good && lines[0] == "Context      test", "{text}");
        let expected = "Leader       not known: Lease plimsoll/plimsoll: Error from server (Forbidden): cannot read leases";
        assert!(lines[1].starts_with(expected), "{text}");
        assert_eq!(lines[2], "Autoscalers  0 in shop: 0 failing, 0 paused, 0 in fallback");
        let (is_good, text) = shown(&[], Some("shopp")).await;
        let expected = "Autoscalers  none: there is no namespace \"shopp\"\n";
        assert!(
            is_good && text.contains("Leader       none") && text.ends_with(expected),
            "{text}"
        );
        let (is_good, text) = shown(&["autoscalers"], None).await;
        assert!(is_good && text.contains("Leader       none"), "{text}");
        assert!(text.contains("cannot read autoscalers; -n NAMESPACE shows"), "{text}");
        let (is_good, text) = shown(&["leases", "autoscalers"], None).await;
        assert!(!is_good && text.contains("cannot read leases"), "{text}");
        assert!(text.contains("\nplimsoll: autoscalers: Error from server"), "{text}");
    }

    #[tokio::test]
    async fn a_cluster_without_plimsoll_is_told_as_that() {
        let service = tower::service_fn(|request: http::Request<Body>| async move {
            let is_lease = request.uri().path().contains("/leases/");
            let body = match is_lease {
                true => fake::failure(404, "NotFound", "there is no Lease").1.to_string(),
                false => "404 page not found\n".to_owned(),
            };
            let response = http::Response::builder().status(404);
            Ok::<_, kube::Error>(response.body(Body::from(body.into_bytes())).unwrap())
        });
        let cluster = Cluster::fake(Client::new(service, "default"));
        let error = status_of(&cluster, &flags(None)).await.unwrap_err();
        assert_eq!(
            cluster.told(error).to_string(),
            "context test (https://test): Plimsoll's definitions are not installed, and there is no Lease plimsoll/plimsoll"
        );
    }

    #[tokio::test]
    async fn other_leases_of_plimsoll_are_named_where_there_is_none_of_that_name() {
        let (client, _) = fake::api(|request| match request.line.ends_with("/leases") {
            true => {
                assert!(request.query.contains("app.kubernetes.io%2Fname%3Dplimsoll"));
                let lease = json!({"metadata": {"namespace": "scaling", "name": "second"}});
                (200, json!({"metadata": {}, "items": [lease]}))
            }
            false => (200, json!({"metadata": {}, "items": []})),
        });
        let cluster = Cluster::fake(client);
        let text = status_of(&cluster, &flags(None)).await.unwrap();
        let line = "Leader       none: there is no Lease plimsoll/plimsoll; \
                    there is --plimsoll-namespace=scaling --lease=second\n";
        assert!(text.contains(line), "{text}");
        let json = StatusFlags { output: TableFormat::Json, ..flags(None) };
        let json: Value = serde_json::from_str(&status_of(&cluster, &json).await.unwrap()).unwrap();
        assert_eq!(json["otherLeases"], json!([{"namespace": "scaling", "name": "second"}]));
        assert!(json["leader"].is_null(), "{json}");
    }

    #[tokio::test]
    async fn each_autoscaler_that_needs_a_look_has_a_row() {
        let now = Clock::default().wall_timestamp();
        let condition = json!({"type": "ScalingActive", "status": "False", "reason": "FailedGetPodsMetric",
            "message": "no series", "lastTransitionTime": "2026-11-25T10:00:00Z"});
        let status = json!({"conditions": [condition]});
        let text = shown_at(now, lease("a", now, json!({})), list(json!({}), status)).await;
        let rows: Vec<Vec<&str>> =
            text.lines().skip(4).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["NAMESPACE", "NAME", "STATE", "REASON", "AGE", "MESSAGE"], "{text}");
        assert_eq!(rows[1][..4], ["shop", "web", "Failing", "FailedGetPodsMetric"], "{text}");
        assert!(text.ends_with("no series\n"), "{text}");
    }
}
