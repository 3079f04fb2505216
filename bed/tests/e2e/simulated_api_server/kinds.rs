//! The kinds of objects, and random changes of them.

use bed::cluster::Cluster;
use bed::random::Random;
use serde_json::{Value, json};

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub has_status: bool,
    pub has_scale: bool,
}

const fn kind(
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
    (has_status, has_scale): (bool, bool),
) -> Kind {
    Kind { api_version, kind, plural, has_status, has_scale }
}

/// All kinds but namespaces.
pub const KINDS: [Kind; 9] = [
    kind("v1", "Pod", "pods", (true, false)),
    kind("v1", "ConfigMap", "configmaps", (false, false)),
    kind("v1", "Event", "events", (false, false)),
    kind("apps/v1", "Deployment", "deployments", (true, true)),
    kind("apps/v1", "StatefulSet", "statefulsets", (true, true)),
    kind("coordination.k8s.io/v1", "Lease", "leases", (false, false)),
    kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", (true, false)),
    kind("plimsoll.dev/v1alpha1", "Autoscaler", "autoscalers", (true, false)),
    kind("example.com/v1", "Fleet", "fleets", (true, true)),
];

/// The names of objects.
pub const NAMES: [&str; 3] = ["a", "b", "c"];

impl Kind {
    /// The path of the objects of a namespace.
    pub fn collection(self, namespace: &str) -> String {
        let root = if self.api_version.contains('/') { "apis" } else { "api" };
        format!("/{root}/{}/namespaces/{namespace}/{}", self.api_version, self.plural)
    }

    /// An object with the defaults that kube-apiserver gives it: the simulated one has none.
    pub async fn template(self, cluster: &Cluster) -> Value {
        let pod = json!({"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let selector = json!({"matchLabels": {"app": "web"}});
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
        let mut object = match self.kind {
            "Pod" => {
                json!({"spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}})
            }
            "ConfigMap" => json!({"data": {"k": "1"}}),
            "Event" => json!({"reason": "R", "message": "m", "type": "Normal", "count": 1,
                "involvedObject": {"namespace": "default", "name": "web", "kind": "Pod"}}),
            "Deployment" => json!({"spec": {"replicas": 1, "selector": selector, "template": pod}}),
            "StatefulSet" => json!({"spec": {"replicas": 1, "selector": selector, "template": pod,
                "serviceName": "web"}}),
            "Lease" => json!({"spec": {"holderIdentity": "x", "leaseDurationSeconds": 15,
                "renewTime": "2026-01-02T03:04:05.000006Z"}}),
            "HorizontalPodAutoscaler" | "Autoscaler" => {
                json!({"spec": {"maxReplicas": 3, "scaleTargetRef": target}})
            }
            _ => json!({"spec": {"replicas": 1}, "status": {"replicas": 7}}),
        };
        object["apiVersion"] = self.api_version.into();
        object["kind"] = self.kind.into();
        object["metadata"] = json!({"name": "template"});
        let path = format!("{}?dryRun=All", self.collection("default"));
        let made = cluster.request("POST", &path, "application/json", object.to_string()).await;
        let mut made: Value =
            serde_json::from_str(&made.unwrap_or_else(|e| panic!("{path}: {e}"))).expect("JSON");
        made["metadata"] = json!({});
        made
    }

    /// A change of the main part, as a merge patch.
    pub fn change(self, random: &mut Random) -> Value {
        let value = |random: &mut Random| match random.below(4) {
            0 => Value::Null,
            n => n.to_string().into(),
        };
        match random.below(5) {
            0 => return json!({"metadata": {"labels": {"tier": value(random)}}}),
            1 => return json!({"metadata": {"annotations": {"note": value(random)}}}),
            // A change of the status is ignored.
            2 if self.has_status => return json!({"status": {"replicas": 9}}),
            _ => {}
        }
        let number = random.below(4);
        match self.kind {
            "Pod" => json!({"metadata": {"labels": {"pod": number.to_string()}}}),
            "ConfigMap" => json!({"data": {*random.one_of(&NAMES): value(random)}}),
            "Event" => json!({"count": number + 1, "message": "again"}),
            "Deployment" | "StatefulSet" | "Fleet" => json!({"spec": {"replicas": number}}),
            "Lease" => {
                json!({"spec": {"holderIdentity": value(random), "leaseTransitions": number}})
            }
            _ => json!({"spec": {"maxReplicas": number + 1}}),
        }
    }

    /// A change of the status, as a merge patch.
    pub fn change_of_status(self, random: &mut Random) -> Value {
        let number = random.below(4);
        let status = match self.kind {
            "Pod" => json!({"message": number.to_string()}),
            "Deployment" | "StatefulSet" => json!({"replicas": number}),
            "Fleet" => json!({"replicas": number, "selector": "app=web"}),
            _ => json!({"currentReplicas": number, "desiredReplicas": number}),
        };
        match random.below(5) {
            // Of the rest, kinds differ in what they take.
            0 => json!({"status": status, "metadata": {"annotations": {"note": "of the status"}}}),
            1 => json!({"status": status, "metadata": {"labels": {"tier": "of-status"}}}),
            _ => json!({"status": status}),
        }
    }
}
