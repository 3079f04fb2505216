//! Random requests.

use super::kinds::{KINDS, Kind, NAMES};
use super::sides::{Operation, Reply, Sides};
use bed::random::Random;
use kube::Client;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What is counted beside requests: events of watches, and those of them that end one whose version has expired.
pub const EVENTS: &str = "(events of watches)";
pub const EXPIRED: &str = "(410 in a watch)";

/// A namespace with objects on both servers, and the requests to it.
pub struct Lane {
    namespace: String,
    random: Random,
    sides: Sides,
    /// Answers that later requests refer to: objects, lists and scales of both servers.
    answers: Vec<[Reply; 2]>,
    /// The objects among them.
    objects: BTreeMap<&'static str, Vec<usize>>,
    scales: BTreeMap<&'static str, Vec<usize>>,
    /// The lists among them that have a next page, with their path and query.
    pages: Vec<(usize, String, String)>,
    templates: Vec<Value>,
    namespaces: usize,
    counts: BTreeMap<String, usize>,
}

impl Lane {
    /// A lane in a new namespace.
    pub async fn new(client: Client, number: u64, random: Random, templates: &[Value]) -> Self {
        let namespace = format!("lane-{number}");
        let mut templates = templates.to_vec();
        for template in &mut templates {
            if template["kind"] == "Event" {
                template["involvedObject"]["namespace"] = namespace.as_str().into();
            }
        }
        let mut lane = Self {
            namespace: namespace.clone(),
            random,
            sides: Sides::new(client),
            answers: Vec::new(),
            objects: BTreeMap::new(),
            scales: BTreeMap::new(),
            pages: Vec::new(),
            templates,
            namespaces: 0,
            counts: BTreeMap::new(),
        };
        lane.create_namespace(&namespace).await;
        lane
    }

    /// How often each kind of request was answered in which way.
    pub fn counts(lanes: &[Self]) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for (what, count) in lanes.iter().flat_map(|lane| &lane.counts) {
            *all.entry(what.clone()).or_default() += count;
        }
        all
    }

    /// In what the servers differ, and the requests that the simulated one does not know.
    pub fn differences(&self) -> Vec<String> {
        let differences = self.sides.differences.iter().cloned();
        differences.chain(self.sides.simulated.unmodelled()).collect()
    }

    /// Drops the history of the simulated server, after a write that nothing before has seen: as those
    /// of other lanes are to the real one.
    pub fn compact(&self) {
        use plimsoll_simulation::api_server::resource::CONFIG_MAPS;
        let object = json!({"metadata": {"name": "unseen", "namespace": self.namespace}});
        self.sides.simulated.create(&CONFIG_MAPS, object).expect("it is not there");
        self.sides.simulated.remove(&CONFIG_MAPS, &self.namespace, "unseen");
        self.sides.simulated.compact();
    }

    /// Compares the events of the watches, and ends them.
    pub async fn end_watches(&mut self) {
        let (events, expired) = self.sides.end_watches().await;
        *self.counts.entry(EVENTS.to_owned()).or_default() += events;
        *self.counts.entry(EXPIRED.to_owned()).or_default() += expired;
    }

    fn count(&mut self, what: &str, code: u16) {
        *self.counts.entry(format!("{code} {what}")).or_default() += 1;
    }

    async fn send(&mut self, what: &str, operation: &Operation) -> usize {
        let base = operation.base.map(|base| self.answers[base].clone());
        let replies = self.sides.send(operation, base.as_ref()).await;
        self.count(what, replies[0].0);
        self.answers.push(replies);
        self.answers.len() - 1
    }

    fn is_done(&self, answer: usize) -> bool {
        self.answers[answer][0].0 < 300
    }

    /// Sends a request whose answer is an object.
    async fn object(&mut self, kind: Kind, what: &str, operation: &Operation) {
        let answer = self.send(&format!("{what} {}", kind.plural), operation).await;
        if self.is_done(answer) && self.answers[answer][0].1["kind"] == kind.kind {
            self.objects.entry(kind.kind).or_default().push(answer);
        }
    }

    /// One random request.
    pub async fn step(&mut self) {
        let number = self.random.below(KINDS.len());
        let kind = KINDS[number];
        let collection = kind.collection(&self.namespace);
        let name = *self.random.one_of(&NAMES.each_ref().map(|n| n));
        let path = format!("{collection}/{name}");
        match self.random.below(23) {
            0..=3 => self.create(kind, number, name, collection).await,
            4 => {
                self.object(kind, "get", &Operation { method: "GET", path, ..Operation::default() })
                    .await
            }
            5..=6 => self.list(collection).await,
            7 => self.next_page().await,
            8..=10 => self.replace(kind, collection).await,
            11..=13 => self.patch(kind, path).await,
            14..=15 if kind.has_status => self.status(kind, path).await,
            16..=17 if kind.has_scale => self.scale(kind, path).await,
            18..=19 => self.delete(kind, path).await,
            20 => self.apply(name).await,
            21 => self.watch(kind, collection).await,
            22 => self.finish_namespace().await,
            _ => self.finalize(kind, path).await,
        }
    }

    /// An earlier answer about an object: mostly the last one, which another write may have outdated.
    fn known(&mut self, kind: Kind) -> Option<usize> {
        let known = self.objects.get(kind.kind)?;
        let last = known.len() - 1;
        let back = if self.random.below(3) == 0 { self.random.below(12) } else { 0 };
        known.get(last.saturating_sub(back)).copied()
    }

    async fn create(&mut self, kind: Kind, number: usize, name: &str, path: String) {
        let mut body = self.templates[number].clone();
        body["metadata"] =
            json!({"name": name, "labels": {"tier": self.random.below(3).to_string()}});
        let operation =
            Operation { method: "POST", path, content: JSON, body, ..Operation::default() };
        self.object(kind, "create", &operation).await;
    }

    async fn list(&mut self, path: String) {
        let selector = match self.random.below(6) {
            0 => "&labelSelector=tier%3D1",
            1 => "&labelSelector=tier%20in%20(1,2),!pod",
            2 => "&fieldSelector=metadata.name%3Da",
            _ => "",
        };
        let query = match self.random.below(3) {
            0 => selector.trim_start_matches('&').to_owned(),
            limit => format!("limit={limit}{selector}"),
        };
        let accept = match self.random.below(4) {
            0 => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            _ => "",
        };
        let operation = Operation {
            method: "GET",
            path: path.clone(),
            query: query.clone(),
            accept,
            ..Operation::default()
        };
        let answer = self.send("list", &operation).await;
        self.note_page(answer, path, query);
    }

    fn note_page(&mut self, answer: usize, path: String, query: String) {
        if !self.answers[answer][0].1["metadata"]["continue"].is_null() {
            self.pages.push((answer, path, query));
        }
    }

    async fn next_page(&mut self) {
        if self.pages.is_empty() {
            return;
        }
        let back = self.random.below(self.pages.len().min(4));
        let (base, path, query) = self.pages[self.pages.len() - 1 - back].clone();
        let operation = Operation {
            method: "GET",
            path: path.clone(),
            query: format!("{query}&continue=$continue"),
            base: Some(base),
            ..Operation::default()
        };
        let answer = self.send("next page", &operation).await;
        self.note_page(answer, path, query);
    }

    async fn replace(&mut self, kind: Kind, collection: String) {
        let Some(base) = self.known(kind) else { return };
        let name = self.answers[base][0].1["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{collection}/{name}");
        let mut body = kind.change(&mut self.random);
        match self.random.below(8) {
            0 => body["metadata"]["resourceVersion"] = "".into(),
            1 => body["metadata"]["uid"] = "".into(),
            2 => body["metadata"]["uid"] = OTHER_UID.into(),
            3 => {
                body["metadata"]["uid"] = "".into();
                body["metadata"]["resourceVersion"] = "".into();
            }
            _ => {}
        }
        let operation = Operation {
            method: "PUT",
            path,
            content: JSON,
            base: Some(base),
            from_base: true,
            body,
            ..Operation::default()
        };
        self.object(kind, "replace", &operation).await;
    }

    /// Names a UID and a version in a patch, sometimes.
    fn with_preconditions(&mut self, kind: Kind, body: &mut Value) -> Option<usize> {
        let base = self.known(kind);
        match self.random.below(6) {
            0 if base.is_some() => body["metadata"]["resourceVersion"] = "$version".into(),
            1 if base.is_some() => body["metadata"]["uid"] = "$uid".into(),
            2 => body["metadata"]["uid"] = OTHER_UID.into(),
            _ => {}
        }
        base
    }

    async fn patch(&mut self, kind: Kind, path: String) {
        let change = kind.change(&mut self.random);
        self.send_patch(kind, "patch", path, change).await;
    }

    /// Sends a change as a merge patch or as a JSON patch, with or without preconditions.
    async fn send_patch(&mut self, kind: Kind, what: &str, path: String, mut body: Value) {
        if self.random.below(2) == 0 {
            let operations = operations(&mut self.random, &body);
            return self.json_patch(kind, what, path, operations).await;
        }
        let base = self.with_preconditions(kind, &mut body);
        let operation =
            Operation { method: "PATCH", path, content: MERGE, base, body, ..Operation::default() };
        self.object(kind, what, &operation).await;
    }

    async fn json_patch(&mut self, kind: Kind, what: &str, path: String, mut body: Vec<Value>) {
        let base = self.known(kind);
        let (uid, version) = ("/metadata/uid", "/metadata/resourceVersion");
        let test = |path, value| json!({"op": "test", "path": path, "value": value});
        match self.random.below(8) {
            0..=3 if base.is_some() => body.insert(0, test(uid, "$uid")),
            4 => body.insert(0, test(uid, OTHER_UID)),
            5 if base.is_some() => body.insert(0, test(version, "$version")),
            6 => body.push(test("/metadata/labels/tier", "1")),
            _ => {}
        }
        let operation = Operation {
            method: "PATCH",
            path,
            content: "application/json-patch+json",
            base,
            body: body.into(),
            ..Operation::default()
        };
        self.object(kind, &format!("{what} by operations"), &operation).await;
    }

    async fn status(&mut self, kind: Kind, path: String) {
        let body = kind.change_of_status(&mut self.random);
        let path = format!("{path}/status");
        let is_whole = self.random.below(2) == 0;
        if is_whole && !matches!(kind.kind, "Pod" | "Deployment" | "StatefulSet") {
            // As Plimsoll writes a status.
            let add = json!({"op": "add", "path": "/status", "value": body["status"]});
            return self.json_patch(kind, "replace status of", path, vec![add]).await;
        }
        self.send_patch(kind, "patch status of", path, body).await;
    }

    async fn finalize(&mut self, kind: Kind, path: String) {
        let list = match self.random.below(3) {
            0 => json!(["example.com/hold"]),
            _ => Value::Null,
        };
        let body = json!({"metadata": {"finalizers": list}});
        let operation =
            Operation { method: "PATCH", path, content: MERGE, body, ..Operation::default() };
        self.object(kind, "patch finalizers of", &operation).await;
    }

    async fn scale(&mut self, kind: Kind, path: String) {
        let path = format!("{path}/scale");
        let known = self.scales.get(kind.kind).map_or(0, Vec::len);
        if known == 0 || self.random.below(3) == 0 {
            let operation = Operation { method: "GET", path, ..Operation::default() };
            let answer = self.send(&format!("get scale of {}", kind.plural), &operation).await;
            if self.is_done(answer) {
                self.scales.entry(kind.kind).or_default().push(answer);
            }
            return;
        }
        let base = self.scales[kind.kind][known - 1 - self.random.below(known.min(2))];
        let scale = &self.answers[base][0].1["metadata"]["name"];
        let (collection, _) = path.rsplit_once("/scale").expect("it ends so");
        let (collection, _) = collection.rsplit_once('/').expect("a name");
        let path = format!("{collection}/{}/scale", scale.as_str().unwrap_or_default());
        let replicas = match self.random.below(10) {
            0 => -1,
            // Always another number: one that is there already changes the owners of the field, which
            // the simulated server does not have.
            _ => 10 + i64::try_from(self.answers.len()).expect("they are few"),
        };
        let mut body = json!({"spec": {"replicas": replicas}});
        match self.random.below(8) {
            0 => body["metadata"] = json!({"resourceVersion": ""}),
            1 => body["metadata"] = json!({"uid": OTHER_UID}),
            _ => {}
        }
        let operation = Operation {
            method: "PUT",
            path,
            // As Plimsoll sends it.
            query: "&timeout=10s".to_owned(),
            content: JSON,
            base: Some(base),
            from_base: true,
            body,
            ..Operation::default()
        };
        let answer = self.send(&format!("replace scale of {}", kind.plural), &operation).await;
        if self.is_done(answer) {
            self.scales.entry(kind.kind).or_default().push(answer);
        }
    }

    async fn delete(&mut self, kind: Kind, path: String) {
        let base = self.known(kind);
        let mut body = match self.random.below(6) {
            0 if base.is_some() => json!({"preconditions": {"uid": "$uid"}}),
            1 if base.is_some() => json!({"preconditions": {"resourceVersion": "$version"}}),
            2 if base.is_some() => {
                json!({"preconditions": {"uid": "$uid", "resourceVersion": "$version"}})
            }
            3 => json!({"preconditions": {"uid": OTHER_UID}}),
            _ => json!({}),
        };
        if kind.kind == "Pod" && self.random.below(2) == 0 {
            body["gracePeriodSeconds"] = [0, 60, 600, 3600][self.random.below(4)].into();
        }
        let operation =
            Operation { method: "DELETE", path, content: JSON, base, body, ..Operation::default() };
        self.object(kind, "delete", &operation).await;
    }

    async fn apply(&mut self, name: &str) {
        let kind = KINDS[1];
        let mut data = json!({});
        for key in NAMES {
            if self.random.below(2) == 0 {
                data[key] = self.random.below(3).to_string().into();
            }
        }
        let metadata = json!({"name": name, "labels": {"tier": self.random.below(3).to_string()}});
        let body =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
        let manager = *self.random.one_of(&[&"plimsoll", &"other"]);
        let operation = Operation {
            method: "PATCH",
            path: format!("{}/{name}", kind.collection(&self.namespace)),
            query: format!("&fieldManager={manager}&force=true"),
            content: "application/apply-patch+yaml",
            body,
            ..Operation::default()
        };
        self.object(kind, "apply", &operation).await;
    }

    async fn watch(&mut self, kind: Kind, path: String) {
        // Events have no cache in kube-apiserver; Plimsoll does not watch them.
        if kind.kind == "Event" {
            return;
        }
        let base = self.known(kind);
        let version = match (base, self.random.below(5)) {
            // Without a version it begins with all objects as they are; with 0 as they are or were.
            (None, _) | (_, 0) => "",
            _ => "$version",
        };
        let selector = match self.random.below(4) {
            0 => "&labelSelector=tier%3D1",
            1 => "&fieldSelector=metadata.name%3Da",
            _ => "",
        };
        let query = format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds=290&resourceVersion={version}{selector}"
        );
        let operation = Operation { method: "GET", path, query, base, ..Operation::default() };
        let base = base.map(|base| self.answers[base].clone());
        self.sides.watch(&operation, base.as_ref()).await;
        self.count("watch", 200);
    }

    async fn create_namespace(&mut self, name: &str) {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let path = "/api/v1/namespaces".to_owned();
        let operation =
            Operation { method: "POST", path, content: JSON, body, ..Operation::default() };
        self.send("create namespaces", &operation).await;
    }

    /// A namespace that ends, and creates in it.
    async fn finish_namespace(&mut self) {
        self.namespaces += 1;
        let namespace = format!("{}-{}", self.namespace, self.namespaces);
        let number = self.random.below(KINDS.len());
        let kind = KINDS[number];
        let path = kind.collection(&namespace);
        let mut object = self.templates[number].clone();
        object["metadata"]["name"] = "a".into();
        if kind.kind == "Event" {
            object["involvedObject"]["namespace"] = namespace.as_str().into();
        }
        let create =
            Operation { method: "POST", path, content: JSON, body: object, ..Operation::default() };
        self.send("create in no namespace", &create).await;
        self.create_namespace(&namespace).await;
        if self.random.below(2) == 0 {
            self.send("create in a new namespace", &create).await;
        }
        let path = format!("/api/v1/namespaces/{namespace}");
        let end = Operation { method: "DELETE", path, content: JSON, ..Operation::default() };
        self.send("delete namespaces", &end).await;
        self.send("create in an ending namespace", &create).await;
        self.send("delete namespaces", &end).await;
    }
}

/// A change as the operations of a JSON patch.
fn operations(random: &mut Random, change: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    let mut rest = vec![(String::new(), change)];
    while let Some((path, value)) = rest.pop() {
        match value {
            Value::Object(fields) => {
                rest.extend(fields.iter().map(|(field, value)| (format!("{path}/{field}"), value)))
            }
            Value::Null => all.push(json!({"op": "remove", "path": path})),
            _ => {
                let op = *random.one_of(&[&"add", &"replace"]);
                all.push(json!({"op": op, "path": path, "value": value}));
            }
        }
    }
    all
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const OTHER_UID: &str = "11111111-2222-3333-4444-555555555555";
