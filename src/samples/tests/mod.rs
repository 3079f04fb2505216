//! Query results of a Prometheus that fails, lies or is slow.

mod coalescer;
mod join;
mod quotas;
mod store;
