//! What a Prometheus that fails, lies or is slow does to query results.

mod coalescer;
mod quotas;
mod store;
