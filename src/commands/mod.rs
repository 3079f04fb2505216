//! The commands of `plimsoll` other than `serve`; `crd` and `completions` are a line of `main.rs` each.

pub mod autoscale;
pub mod backtest;
pub mod check;
mod check_autoscaler;
mod check_cluster;
mod check_context;
mod check_files;
mod check_hint;
mod check_history;
mod check_metric_rule;
mod check_queries;
mod check_rule;
mod check_schema;
mod check_series;
mod check_targets;
pub mod complete;
pub mod convert;
pub mod installation;
pub mod manual;
mod objects;
pub mod operate;
mod progress;
pub mod recommend;
pub mod reference;
pub mod replay;
mod shown;
mod story;
mod table;
#[cfg(test)]
mod tests_of_pages;
pub mod ui;
pub mod version;

pub use story::plain_lines;
