//! The machine that is measured on.

use serde_json::{Value, json};
use std::fs::read_to_string;

/// Its CPU, cores, memory and kernel.
pub fn machine() -> Value {
    let value = |path: &str, name: &str| {
        let text = read_to_string(path).unwrap_or_default();
        let line =
            text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
        line.unwrap_or("unknown").trim().to_owned()
    };
    let memory = value("/proc/meminfo", "MemTotal");
    let kilobytes = memory.trim_end_matches(" kB").parse::<f64>().unwrap_or(f64::NAN);
    json!({
        "cpu": value("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_gib": (kilobytes / 1024.0 / 1024.0 * 10.0).round() / 10.0,
        "kernel": read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
    })
}
