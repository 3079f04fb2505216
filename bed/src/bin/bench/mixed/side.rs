//! The sides: their autoscalers and their processes.

use super::keda;
use super::mix::App;
use super::objects::{autoscaler, hpa, scaled_object};
use super::rules;
use crate::decided;
use crate::sides::{
    Peers, Running, of_plimsoll, register, start_adapter_with, start_plimsoll_with, unregister,
    with_manager,
};
use crate::world::{NAMESPACES, World, namespace};
use bed::process::Process;
use serde_json::json;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Plimsoll, which decides for the HPAs by prometheus-adapter's rules.
    Plimsoll,
    /// prometheus-adapter and kube-controller-manager, tuned.
    Peers,
    /// KEDA and kube-controller-manager, tuned.
    Keda,
    /// Plimsoll with Autoscalers.
    Autoscalers,
}

const EXTERNAL: &str = "v1beta1.external.metrics.k8s.io";
/// The APIs that prometheus-adapter serves.
const ADAPTERS: [&str; 4] = [
    "v1beta1.custom.metrics.k8s.io",
    "v1beta2.custom.metrics.k8s.io",
    EXTERNAL,
    "v1beta1.metrics.k8s.io",
];

impl Side {
    /// First those that every seed compares.
    pub const ALL: [Self; 4] = [Self::Plimsoll, Self::Peers, Self::Keda, Self::Autoscalers];
    pub const COMPARED: usize = 3;

    pub fn is_compared(self) -> bool {
        Self::ALL[..Self::COMPARED].contains(&self)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Plimsoll => "Plimsoll",
            Self::Peers => "prometheus-adapter",
            Self::Keda => "KEDA",
            Self::Autoscalers => "Plimsoll, Autoscalers",
        }
    }

    /// The rounds for which it is measured: at least one interval in which KEDA polls. What Plimsoll takes is near what an idle
    /// stack takes, so that more of it are needed for a figure.
    pub fn rounds(self) -> usize {
        match self {
            Self::Plimsoll => 4,
            Self::Peers | Self::Keda | Self::Autoscalers => 2,
        }
    }

    /// The path of the objects that say what was decided.
    pub fn path(self) -> &'static str {
        match self {
            Self::Autoscalers => decided::AUTOSCALERS,
            _ => decided::HPAS,
        }
    }

    /// Creates an autoscaler for each workload.
    pub async fn make_objects(self, world: &World, apps: &[App]) {
        match self {
            Self::Keda => {
                let definitions = keda::sources().await.join("config/crd/bases");
                world.install_crd(&definitions, "scaledobjects").await;
            }
            Self::Autoscalers => {
                world.install_autoscalers().await;
            }
            Self::Plimsoll | Self::Peers => {}
        }
        let make = async |place: usize| {
            let app = &apps[place];
            let object = match self {
                Self::Plimsoll | Self::Peers => hpa(app),
                Self::Keda => scaled_object(app, world.cluster.prometheus_port),
                Self::Autoscalers => autoscaler(app),
            };
            world.send("POST", &self.collection(&app.namespace()), object).await;
        };
        world.each("autoscalers", apps.len(), make).await;
    }

    /// The path of its autoscalers in a namespace.
    fn collection(self, of: &str) -> String {
        match self {
            Self::Plimsoll | Self::Peers => hpas(of),
            Self::Keda => format!("/apis/keda.sh/v1alpha1/namespaces/{of}/scaledobjects"),
            Self::Autoscalers => {
                format!("/apis/plimsoll.dev/v1alpha1/namespaces/{of}/autoscalers")
            }
        }
    }

    /// Starts its processes.
    pub async fn start(self, world: &World, apps: &[App]) -> Running {
        match self {
            Self::Plimsoll => {
                let config = rules::adapter(apps);
                let manage = ["--native-hpas=manage"];
                registered(world, start_plimsoll_with(world, &config, &manage)).await
            }
            Self::Autoscalers => {
                let ignore = ["--native-hpas=ignore"];
                registered(world, start_plimsoll_with(world, &rules::usage(), &ignore)).await
            }
            Self::Peers => {
                let (rules, port) = (rules::adapter(apps), world.adapter_port);
                let adapter = start_adapter_with(world, Peers::Tuned, &rules, port);
                register(world, port, &ADAPTERS).await;
                with_manager(world, Peers::Tuned, vec![("prometheus-adapter", adapter)])
            }
            Self::Keda => {
                let (processes, port) = keda::start(world).await;
                register(world, port, &[EXTERNAL]).await;
                with_manager(world, Peers::Tuned, processes)
            }
        }
    }

    /// Deletes its autoscalers, and what else it leaves, once its processes have ended.
    pub async fn clear(self, world: &World, apps: &[App]) {
        if self == Self::Keda {
            // Its operator would take its finalizers away.
            let release = async |place: usize| {
                let app = &apps[place];
                let path = format!("{}/{}", self.collection(&app.namespace()), app.name());
                world.send("PATCH", &path, json!({"metadata": {"finalizers": null}})).await;
            };
            world.each("removals of finalizers", apps.len(), release).await;
        }
        for of in (0..NAMESPACES.min(apps.len())).map(namespace) {
            world.send("DELETE", &self.collection(&of), json!({})).await;
            // Those that KEDA made.
            world.send("DELETE", &hpas(&of), json!({})).await;
        }
        let memory = "/api/v1/namespaces/kube-system/configmaps/plimsoll-memory".to_owned();
        unregister(world, &ADAPTERS).await;
        let _ = world.cluster.request("DELETE", &memory, "application/json", "{}".into()).await;
    }
}

/// Plimsoll with the APIServices that prometheus-adapter has: kube-apiserver polls each.
async fn registered(world: &World, process: Process) -> Running {
    register(world, world.adapter_port, &ADAPTERS).await;
    of_plimsoll(world, process)
}

fn hpas(of: &str) -> String {
    format!("/apis/autoscaling/v2/namespaces/{of}/horizontalpodautoscalers")
}
