//! The usage of CPU and memory that cAdvisor measures.

use crate::load::Load;
use crate::node::{self, Node, PODS};
use crate::scaling::url;
use bed::eventually;

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
            let cpu: u32 = rows.iter().map(|(cpu, _)| cpu).sum();
            let memory_is_sane = rows.iter().all(|(_, memory)| (1..200).contains(memory));
            if (150..1000).contains(&cpu) && memory_is_sane { Ok(text) } else { Err(text) }
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
