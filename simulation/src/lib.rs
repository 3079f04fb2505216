//! Deterministic simulation of Plimsoll: replicas of the product run under one clock against a cluster
//! and a Prometheus in memory, with random faults, and oracles look at every write.

#![warn(missing_docs)]

pub mod api_server;
pub mod prometheus;
