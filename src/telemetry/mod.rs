//! Logs, and Plimsoll's own metrics.

mod autoscalers;
mod decisions;
mod exposition;
mod kube;
mod logging;
mod metrics;
mod process;
mod registrar;
mod serving;

pub use kube::{KubeMetrics, KubeRequestTimer};
pub use logging::{LogFormat, start_logging};
pub use metrics::Metrics;
pub use registrar::MetricDescription;
pub use serving::ServingMetrics;
