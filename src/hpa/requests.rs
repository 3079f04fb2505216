//! The resource requests of a pod, which utilization is relative to.
//! Source: `calculateRequests` of upstream and KEP-2837 (pod-level resources).

use crate::k8s::Quantity;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// Requests by resource.
pub type ResourceList = BTreeMap<String, Quantity>;

/// The resource requests of a pod, as far as autoscaling uses them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Requests {
    /// Containers, then the init containers that keep running (sidecars).
    containers: Vec<PodContainer>,
    /// The pod-level requests, if the pod has any.
    #[serde(serialize_with = "write_optional", deserialize_with = "read_optional")]
    pod_level: Option<ResourceList>,
}

/// The requests of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct PodContainer {
    /// Its name.
    pub name: String,
    /// Its requests.
    #[serde(serialize_with = "write", deserialize_with = "read")]
    pub requests: ResourceList,
}

/// Writes requests in milli-units, by resource.
fn write<S: Serializer>(list: &ResourceList, to: S) -> Result<S::Ok, S::Error> {
    milli(list).serialize(to)
}

fn write_optional<S: Serializer>(of: &Option<ResourceList>, to: S) -> Result<S::Ok, S::Error> {
    of.as_ref().map(milli).serialize(to)
}

fn milli(list: &ResourceList) -> BTreeMap<&str, i64> {
    list.iter().map(|(name, quantity)| (name.as_str(), quantity.milli())).collect()
}

fn read<'de, D: Deserializer<'de>>(from: D) -> Result<ResourceList, D::Error> {
    BTreeMap::deserialize(from).map(of_milli)
}

fn read_optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ResourceList>, D::Error> {
    Option::deserialize(from).map(|of: Option<_>| of.map(of_milli))
}

fn of_milli(milli: BTreeMap<String, i64>) -> ResourceList {
    milli.into_iter().map(|(name, milli)| (name, Quantity::from_milli(milli))).collect()
}

impl Requests {
    /// The requests of a pod with these containers, these init containers (and
    /// whether each is a sidecar), these pod-level requests, and this overhead.
    pub fn new(
        mut containers: Vec<PodContainer>,
        init_containers: Vec<(PodContainer, bool)>,
        pod: &ResourceList,
        overhead: &ResourceList,
    ) -> Self {
        let supported =
            |name: &String| name == "cpu" || name == "memory" || name.starts_with("hugepages-");
        let pod_level = pod.keys().any(supported).then(|| {
            let mut total = effective(&containers, &init_containers);
            for (name, quantity) in pod.iter().filter(|(name, _)| supported(name)) {
                total.insert(name.clone(), *quantity);
            }
            add(&mut total, overhead);
            total
        });
        containers.extend(
            init_containers
                .into_iter()
                .filter(|(_, sidecar)| *sidecar)
                .map(|(container, _)| container),
        );
        Self { containers, pod_level }
    }

    /// The request of a resource, in milli-units: of the pod, or of one
    /// container if it is named. The error is upstream's, for this pod.
    pub fn milli(&self, resource: &str, container: Option<&str>, pod: &str) -> Result<i64, String> {
        if let (Some(pod_level), None) = (&self.pod_level, container) {
            return pod_level
                .get(resource)
                .map(|quantity| quantity.milli())
                .ok_or_else(|| format!("missing pod-level request for {resource} in Pod {pod}"));
        }
        let mut total: i64 = 0;
        for PodContainer { name, requests } in &self.containers {
            if container.is_none_or(|container| container == name) {
                let request = requests.get(resource).ok_or_else(|| {
                    format!("missing request for {resource} in container {name} of Pod {pod}")
                })?;
                total = total.wrapping_add(request.milli());
                if container.is_some() {
                    return Ok(total);
                }
            }
        }
        match container {
            Some(container) => Err(format!("container {container} not found in Pod {pod}")),
            None => Ok(total),
        }
    }
}

/// The requests of containers and init containers together (`AggregateContainerRequests`).
fn effective(
    containers: &[PodContainer],
    init_containers: &[(PodContainer, bool)],
) -> ResourceList {
    let mut total = ResourceList::new();
    for container in containers {
        add(&mut total, &container.requests);
    }
    let (mut sidecars, mut at_start) = (ResourceList::new(), ResourceList::new());
    for (container, sidecar) in init_containers {
        let mut needed = container.requests.clone();
        add(&mut needed, &sidecars);
        if *sidecar {
            add(&mut total, &container.requests);
            sidecars.clone_from(&needed);
        }
        raise(&mut at_start, &needed);
    }
    raise(&mut total, &at_start);
    total
}

fn add(total: &mut ResourceList, more: &ResourceList) {
    for (name, quantity) in more {
        let sum = total.entry(name.clone()).or_default();
        *sum = *sum + *quantity;
    }
}

fn raise(total: &mut ResourceList, least: &ResourceList) {
    for (name, quantity) in least {
        let highest = total.entry(name.clone()).or_insert(*quantity);
        *highest = (*highest).max(*quantity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(requests: &[(&str, &str)]) -> ResourceList {
        let one =
            |(name, text): &(&str, &str)| ((*name).to_owned(), text.parse().expect("a quantity"));
        requests.iter().map(one).collect()
    }

    fn container(name: &str, requests: &[(&str, &str)]) -> PodContainer {
        PodContainer { name: name.to_owned(), requests: list(requests) }
    }

    fn milli(requests: &Requests, resource: &str) -> i64 {
        requests.milli(resource, None, "web-0").expect("a request")
    }

    #[test]
    fn containers_and_sidecars_count_and_init_containers_that_end_do_not() {
        let requests = Requests::new(
            vec![container("app", &[("cpu", "100m")]), container("log", &[("cpu", "50m")])],
            vec![
                (container("migrate", &[("cpu", "2")]), false),
                (container("proxy", &[("cpu", "30m")]), true),
            ],
            &ResourceList::new(),
            &list(&[("cpu", "500m")]),
        );
        // Overhead counts where the pod itself requests, and not here.
        assert_eq!(milli(&requests, "cpu"), 180);
        assert_eq!(requests.milli("cpu", Some("proxy"), "web-0"), Ok(30));
        let error = requests.milli("cpu", Some("migrate"), "web-0").unwrap_err();
        assert_eq!(error, "container migrate not found in Pod web-0");
        let error = requests.milli("memory", None, "web-0").unwrap_err();
        assert_eq!(error, "missing request for memory in container app of Pod web-0");
    }

    #[test]
    fn pod_level_requests_take_precedence_over_containers_and_overhead_is_added() {
        let requests = Requests::new(
            vec![container("app", &[("cpu", "100m"), ("memory", "64Mi")])],
            vec![],
            &list(&[("cpu", "1"), ("example.com/gpu", "1")]),
            &list(&[("cpu", "250m"), ("memory", "16Mi")]),
        );
        assert_eq!(milli(&requests, "cpu"), 1250);
        // Resources without a pod-level request have the sum of the containers.
        assert_eq!(milli(&requests, "memory"), 80 * 1024 * 1024 * 1000);
        // One container has its own all the same.
        assert_eq!(requests.milli("cpu", Some("app"), "web-0"), Ok(100));
        let error = requests.milli("example.com/gpu", None, "web-0").unwrap_err();
        assert_eq!(error, "missing pod-level request for example.com/gpu in Pod web-0");
    }

    #[test]
    fn init_containers_raise_the_request_of_a_pod() {
        let of = |init: Vec<(PodContainer, bool)>| {
            let containers = vec![container("app", &[("memory", "100")])];
            let requests =
                Requests::new(containers, init, &list(&[("cpu", "1")]), &ResourceList::new());
            milli(&requests, "memory") / 1000
        };
        let ends = |memory: &str| (container("init", &[("memory", memory)]), false);
        let stays = |memory: &str| (container("side", &[("memory", memory)]), true);
        // The largest sum at any time: an init container with the sidecars before it, or
        // finally the containers with all sidecars.
        assert_eq!(of(vec![]), 100);
        assert_eq!(of(vec![ends("300")]), 300);
        assert_eq!(of(vec![ends("40")]), 100);
        assert_eq!(of(vec![stays("20")]), 120);
        assert_eq!(of(vec![stays("20"), ends("110")]), 130);
        assert_eq!(of(vec![ends("110"), stays("20")]), 120);
        assert_eq!(of(vec![stays("20"), stays("30"), ends("200")]), 250);
    }
}
