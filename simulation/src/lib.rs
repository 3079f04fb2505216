//! Deterministic simulation of Plimsoll: replicas of the product run under one clock against a cluster
//! and a Prometheus in memory, with random faults, and oracles look at every write.

#![warn(missing_docs)]

pub mod api_server;
mod conditions;
mod entropy;
mod network;
pub mod oracle;
pub mod plan;
pub mod prometheus;
mod replica;
pub mod run;
pub mod total;
mod workload;
mod world;
