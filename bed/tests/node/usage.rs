//! The usage of CPU and memory that cAdvisor measures.

use crate::applications::{application, remove_namespace};
use crate::installation::{Installation, prepare};
use crate::load::Load;
use crate::machine;
use crate::node::{Node, PODS};
use crate::scaling::pods_of;
use bed::eventually;
use std::time::Instant;

/// The CPU usage by cAdvisor of what a selector finds, in thousandths of a core, as Prometheus has it.
async fn measured(node: &Node, selector: &str) -> Result<f64, String> {
    let query = format!("sum(rate(container_cpu_usage_seconds_total{{{selector}}}[1m]))*1000");
    let response = node.query(&query).await?;
    let value = response["data"]["result"][0]["value"][1].as_str().and_then(|v| v.parse().ok());
    value.ok_or(response.to_string())
}

/// Whether a value is near the measured one. They are not of the same moment.
fn is_near(value: f64, measured: f64) -> bool {
    (measured * 0.7 - 5.0..measured * 1.3 + 5.0).contains(&value)
}

/// A number before its unit.
fn number(word: Option<&str>, unit: &str) -> Option<u32> {
    word.and_then(|word| word.strip_suffix(unit)?.parse().ok())
}

pub fn top(node: &Node) {
    node.run(async {
        prepare(node).await;
        // Each takes 20 ms of CPU time.
        let load = Load::of_url(15, format!("{}/burn", node.url("shop", "web").await));
        let shown = eventually("kubectl top shows the load", PODS, async || {
            let words = ["-n", "shop", "top", "pods", "-l", "app=web", "--no-headers"];
            let text = node.cluster.try_kubectl(&words).await?;
            // NAME CPU(cores) MEMORY(bytes), as in `web-x 290m 7Mi`.
            let row = |line: &str| {
                let mut words = line.split_whitespace().skip(1);
                Some((number(words.next(), "m")?, number(words.next(), "Mi")?))
            };
            let rows: Option<Vec<_>> = text.lines().map(row).collect();
            let rows = rows.ok_or_else(|| text.clone())?;
            let cpu = f64::from(rows.iter().map(|(cpu, _)| cpu).sum::<u32>());
            // How much they get is the machine's: other programs may be running.
            let measured = measured(node, r#"namespace="shop",container!="""#).await?;
            let memory_is_sane = rows.iter().all(|(_, memory)| (1..200).contains(memory));
            match cpu >= 10.0 && is_near(cpu, measured) && memory_is_sane {
                true => Ok(text),
                false => Err(format!("{text}cAdvisor: {measured}m")),
            }
        })
        .await;
        println!("{shown}");
        let words = ["top", "nodes", "--no-headers"];
        let shown = eventually("kubectl top shows the node", PODS, async || {
            let text = node.cluster.try_kubectl(&words).await?;
            // NAME CPU(cores) CPU(%) MEMORY(bytes) MEMORY(%).
            let words: Vec<&str> = text.split_whitespace().collect();
            let [machine::NAME, cpu, _, memory, _] = words[..] else { return Err(text) };
            let cpu = number(Some(cpu), "m").map(f64::from);
            let measured = measured(node, r#"id="/""#).await?;
            let memory_is_sane = number(Some(memory), "Mi").is_some_and(|memory| memory > 0);
            match cpu.is_some_and(|cpu| is_near(cpu, measured)) && memory_is_sane {
                true => Ok(text),
                false => Err(format!("{text}cAdvisor: {measured}m")),
            }
        })
        .await;
        println!("{shown}");
        load.stop().await;
    });
}

pub fn cpu(node: &Node) {
    node.run(async {
        Installation::chart(node).await;
        let target = "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name:";
        let metric = "type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 100}}";
        let mut loads = Vec::new();
        for (name, kind, fields) in [
            ("ours", "plimsoll.dev/v1alpha1\nkind: Autoscaler", "syncPeriodSeconds: 2, "),
            ("theirs", "autoscaling/v2\nkind: HorizontalPodAutoscaler", ""),
        ] {
            application(node, "burn", "Deployment", name, 1).await;
            node.cluster
                .apply(&format!(
                    "apiVersion: {kind}\nmetadata: {{name: {name}, namespace: burn}}\n\
                     spec: {{{target} {name}}}, maxReplicas: 5, {fields}metrics: [{{{metric}}}], \
                     behavior: {{scaleDown: {{stabilizationWindowSeconds: 10}}}}}}\n"
                ))
                .await;
            // 12 of 20 ms each second are 240m, and each pod is to take 100m.
            loads.push(Load::of_url(12, format!("{}/burn", node.url("burn", name).await)));
        }
        for wanted in [3, 1] {
            let started = Instant::now();
            for name in ["ours", "theirs"] {
                pods_of(node, "burn", name, wanted).await;
                println!("{name}: {wanted} ready pods after {:.1} s", started.elapsed().as_secs_f64());
            }
            for load in loads.drain(..) {
                load.stop().await;
            }
        }
        remove_namespace(node, "burn").await;
    });
}
