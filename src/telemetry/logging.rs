//! Logs to standard error.

use crate::log_budget::LogBudget;
use clap::ValueEnum;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// The format of logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line for a person.
    Text,
    /// A JSON object a line.
    Json,
}

/// Starts to log to standard error.
///
/// # Errors
/// If the filter is invalid; the text says why.
pub fn start_logging(format: LogFormat, level: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(level).map_err(|error| {
        format!("--log-level: {error}; info, or plimsoll::serve=debug,info was expected")
    })?;
    let budget = LogBudget::default();
    budget.spawn_reporter();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => registry.with(lines.with_ansi(false).with_filter(budget)).init(),
        LogFormat::Json => {
            registry.with(lines.json().flatten_event(true).with_filter(budget)).init();
        }
    }
    Ok(())
}
