//! Query results of a Prometheus that fails, lies or is slow.

mod ahead;
mod coalescer;
mod join;
mod join_failures;
mod join_too_much;
mod proxy;
mod quotas;
mod store;
