//! Plimsoll: a Prometheus-native custom metrics adapter and autoscaler for
//! Kubernetes.
//!
//! The modules follow the data's way (ARCHITECTURE.md):
//! [`config`] -> [`crd`], [`watch`] -> [`promql`] -> [`prometheus`] -> [`samples`]
//! -> [`serve`] and [`hpa`], [`control`] -> effects in the cluster.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod app;
mod cache;
pub mod clock;
pub mod commands;
pub mod config;
mod connect;
pub mod control;
pub mod crd;
#[cfg(test)]
mod fake;
pub mod hpa;
pub mod k8s;
pub mod leader;
pub mod live;
mod log_budget;
pub mod prometheus;
pub mod promql;
mod quota;
pub mod reload;
pub mod rules;
pub mod samples;
pub mod serve;
pub mod supervise;
pub mod telemetry;
pub mod watch;
