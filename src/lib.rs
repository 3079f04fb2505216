//! Plimsoll: a Prometheus-native custom metrics adapter and autoscaler for
//! Kubernetes.
//!
//! The modules follow the data's way (ARCHITECTURE.md):
//! [`config`] -> [`crd`], `watch` -> [`promql`] -> [`prometheus`] -> [`samples`]
//! -> [`serve`] and [`hpa`], `control` -> effects in the cluster.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
// Unit tests end with their runtime. (clippy.toml)
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod api_names;
pub mod app;
pub mod backtest;
mod blocking;
mod cache;
mod causes;
pub mod clock;
pub mod commands;
pub mod config;
mod connect;
mod control;
pub mod crd;
#[cfg(test)]
mod fake;
pub mod hpa;
mod intern;
pub mod k8s;
mod kube_error;
mod leader;
pub mod ledger;
mod ledger_copy;
mod live;
mod log_budget;
mod nearest;
pub mod prometheus;
pub mod promql;
mod quota;
mod reload;
pub mod replica;
mod retry;
mod revision;
mod rules;
pub mod samples;
pub mod serve;
mod supervise;
pub mod telemetry;
pub mod time;
mod watch;
mod yaml;
