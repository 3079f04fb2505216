//! The commands of docs/moving-from-hpas.md, as they are written there.

use crate::{FOLLOWS, on_shared_bed};
use bed::pages::Pages;
use bed::plimsoll::binary;
use bed::root;
use bed::workload::Namespace;

/// The blocks of commands in a section of the page, with this namespace in place of its example.
fn blocks(section: &str, namespace: &str) -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs/moving-from-hpas.md")).expect("the page");
    let section = page.split(&format!("\n## {section}\n")).nth(1).expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let blocks = section.split("```\n").skip(1).step_by(2);
    blocks.map(|block| block.replace("shop", namespace)).collect()
}

async fn run(pages: &Pages, block: &str) {
    let printed = pages.run(&format!("set -eu\n{block}")).await;
    println!("{block}\n{}", printed.unwrap_or_else(|error| panic!("{block}\n{error}")));
}

async fn with_hpa(ns: &Namespace<'_>, workload: &str) {
    ns.deployment(workload, 2, "queue_depth 30").await;
    ns.hpa(workload, "queue_depth", "20", 3).await;
    ns.wait_replicas("Deployment", workload, FOLLOWS, |replicas| replicas == 3).await;
}

/// What an Autoscaler of this name says, and whether the HPA is there.
async fn who_scales(ns: &Namespace<'_>, name: &str) -> (Option<String>, bool) {
    let mode = ns.get("autoscaler", name).await.ok();
    let mode = mode.map(|object| object["spec"]["mode"].as_str().unwrap_or("Active").to_owned());
    (mode, ns.get("hpa", name).await.is_ok())
}

#[test]
fn one_hpa_is_moved_and_comes_back() {
    on_shared_bed("moving-one", async |bed, ns| {
        with_hpa(ns, "web").await;
        let pages = Pages::new(&bed.cluster);
        for name in ["plimsoll", "kubectl-plimsoll"] {
            pages.add(name, &binary());
        }
        let blocks = blocks("Move one HPA", &ns.name);
        let [convert, preview, hand_over, check] = &blocks[..] else { panic!("{blocks:#?}") };
        run(&pages, convert).await;
        run(&pages, preview).await;
        assert_eq!(who_scales(ns, "web").await, (Some("Preview".to_owned()), true));
        run(&pages, hand_over).await;
        run(&pages, check).await;
        assert_eq!(who_scales(ns, "web").await, (Some("Active".to_owned()), false));
        let back =
            format!("kubectl -n {} delete autoscaler web\nkubectl apply -f web-hpa.yaml", ns.name);
        run(&pages, &back).await;
        assert_eq!(who_scales(ns, "web").await, (None, true));
        assert_eq!(ns.replicas("Deployment", "web").await, 3);
    });
}

#[test]
fn many_hpas_are_moved_and_come_back() {
    on_shared_bed("moving-many", async |bed, ns| {
        with_hpa(ns, "web").await;
        with_hpa(ns, "api").await;
        let pages = Pages::new(&bed.cluster);
        pages.add("plimsoll", &binary());
        let blocks = blocks("Many HPAs", &ns.name);
        let [preview, hand_over] = &blocks[..] else { panic!("{blocks:#?}") };
        run(&pages, preview).await;
        for name in ["web", "api"] {
            assert_eq!(who_scales(ns, name).await, (Some("Preview".to_owned()), true));
        }
        run(&pages, hand_over).await;
        for name in ["web", "api"] {
            assert_eq!(who_scales(ns, name).await, (Some("Active".to_owned()), false));
        }
        let files = &ns.name;
        let back = format!(
            "kubectl delete -f {files}-autoscalers.yaml\nkubectl apply -f {files}-hpas.yaml"
        );
        run(&pages, &back).await;
        for name in ["web", "api"] {
            assert_eq!(who_scales(ns, name).await, (None, true));
            assert_eq!(ns.replicas("Deployment", name).await, 3);
        }
    });
}
