//! A whole cluster on loopback, of real parts: etcd, kube-apiserver,
//! kube-controller-manager, kube-scheduler, Prometheus, a fleet of HTTP servers
//! as pods, a load generator, and Plimsoll. The end-to-end tests, the demo, the benchmark and the
//! soak run on it.
//!
//! It panics if a part fails: its users are tests and programs that then end.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod adapter;
pub mod clock;
pub mod cluster;
mod installed;
pub mod kube_state_metrics;
mod options;
pub mod pages;
mod parts;
pub mod pki;
pub mod plimsoll;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod random;
pub mod story;
pub mod thanos;
pub mod traffic;
pub mod victoria_metrics;
mod wait;
pub mod workload;

pub use installed::{Bed, Faults};
pub use options::{Node, Options};
pub use parts::{keda_sources, parts, podinfo_sources, root};
pub use ports::free_port;
pub use wait::eventually;
