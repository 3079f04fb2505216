//! The usage of CPU and memory that cAdvisor measures.

use crate::load::Load;
use crate::node::{self, Node, PODS};
use crate::scaling::url;
use bed::eventually;
use serde_json::Value;

/// The CPU usage of the pods of `shop` by cAdvisor, in thousandths of a core, as Prometheus has it.
async fn measured(node: &Node) -> Result<f64, String> {
    let query = "sum(rate(container_cpu_usage_seconds_total%7Bnamespace=%22shop%22,container!=%22%22%7D%5B1m%5D))*1000";
    let service = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy";
    let text = node.cluster.raw(&format!("{service}/api/v1/query?query={query}")).await?;
    let response: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let value = response["data"]["result"][0]["value"][1].as_str().and_then(|v| v.parse().ok());
    value.ok_or(text)
}

pub fn top(node: &Node) {
    node.run(async {
        node.prepare().await;
        // Each takes 20 ms of CPU time.
        let load = Load::of_url(15, format!("{}/burn", url(node).await));
        let shown = eventually("kubectl top shows the load", PODS, async || {
            let words = ["-n", "shop", "top", "pods", "-l", "app=web", "--no-headers"];
            let text = node.cluster.try_kubectl(&words).await?;
            // NAME CPU(cores) MEMORY(bytes), as in `web-x 290m 7Mi`.
            let number = |word: Option<&str>, unit| {
                word.and_then(|word| word.strip_suffix(unit)?.parse::<u32>().ok())
            };
            let row = |line: &str| {
                let mut words = line.split_whitespace().skip(1);
                Some((number(words.next(), "m")?, number(words.next(), "Mi")?))
            };
            let rows: Option<Vec<_>> = text.lines().map(row).collect();
            let rows = rows.ok_or_else(|| text.clone())?;
            let cpu = f64::from(rows.iter().map(|(cpu, _)| cpu).sum::<u32>());
            let measured = measured(node).await?;
            // How much they get is the machine's: other programs may be running. The values are not of
            // the same moment.
            let is_near = (measured * 0.7 - 5.0..measured * 1.3 + 5.0).contains(&cpu);
            let memory_is_sane = rows.iter().all(|(_, memory)| (1..200).contains(memory));
            match cpu >= 10.0 && is_near && memory_is_sane {
                true => Ok(text),
                false => Err(format!("{text}cAdvisor: {measured}m")),
            }
        })
        .await;
        println!("{shown}");
        let words = ["top", "nodes", "--no-headers"];
        let shown = eventually("kubectl top shows the node", PODS, async || {
            let text = node.cluster.try_kubectl(&words).await?;
            if text.starts_with(node::NAME) && text.contains("Mi") { Ok(text) } else { Err(text) }
        })
        .await;
        println!("{shown}");
        load.stop().await;
    });
}
