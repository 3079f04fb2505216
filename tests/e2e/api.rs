//! The metrics API, as kubectl sees it.

use crate::bed::eventually;
use crate::bed::workload::Namespace;
use crate::{runtime, shared};
use plimsoll::promql::name::generated_name;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

#[test]
fn one_pod_all_pods_and_those_of_a_selector_are_served_in_both_versions() {
    runtime().block_on(async {
        let ns = Namespace::new(&shared().cluster, "api-values").await;
        ns.deployment("web", 2, "queue_depth 7").await;
        ns.autoscaler("web", "queue_depth", "\"100\"", 5).await;
        let metric = generated_name("queue_depth", None, &ns.name, "web");
        for version in ["v1beta1", "v1beta2"] {
            let path = format!("pods/*/{metric}");
            let list = eventually("both pods have a value", SOON, async || {
                let list = ns.raw(version, &path).await?;
                let items = list["items"].as_array().map_or(0, Vec::len);
                if items == 2 { Ok(list) } else { Err(list.to_string()) }
            })
            .await;
            println!("{list}");
        }
    });
}
