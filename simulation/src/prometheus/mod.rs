//! A Prometheus in memory.
