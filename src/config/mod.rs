//! The settings of administrators: flags and the configuration file.

mod adapter_flags;
mod file;
mod flags;
mod live;
mod rules;
mod window;

pub use adapter_flags::{IgnoredFlag, normalize_command, take_ignored};
pub use file::{CONFIG_FIELDS, Config, ConfigError, without_values};
pub use flags::{
    BacktestFlags, CheckFlags, Cli, ClusterFlags, Command, CompareFlags, ConvertFlags,
    ExplainFlags, Feedback, FreezeFlags, HistoryFlags, KeptField, Moment, ObjectFlags,
    OutputFormat, PauseFlags, PrometheusFlags, PrometheusVerb, RecommendFlags, RecommendFormat,
    RecordedFlags, ReplayFlags, ReportFormat, ServeFlags, StatusFlags, TlsVersion, UiFlags,
    above_zero,
};
pub use live::LiveConfig;
pub use window::{counter_query, of as window_of};
