//! The settings of administrators: flags and the configuration file.

mod adapter_flags;
mod command_line;
mod file;
mod flags;
mod forward;
mod live;
mod rules;
mod window;

pub use adapter_flags::{IgnoredFlag, normalize_command, take_ignored};
pub use command_line::flags_after_command;
pub use file::{CONFIG_FIELDS, Config, ConfigError};
pub use flags::{
    AutoscaleFlags, BacktestFlags, CheckClusterFlags, CheckFlags, Cli, ClusterFlags, Command,
    CompareFlags, ConvertFlags, DryRun, ExplainFlags, Feedback, FreezeFlags, HistoryFlags,
    KeptField, KubectlFlags, Moment, ObjectFlags, ObjectFormat, OutputFormat, PauseFlags, PerFlag,
    PrometheusFlags, PrometheusVerb, RecommendFlags, RecommendFormat, RecordedFlags, ReplayFlags,
    ReportFormat, ServeFlags, StatusFlags, TableFormat, TlsVersion, UiFlags, VersionFlags,
    above_zero,
};
pub use live::LiveConfig;
pub use window::{counter_query, of as window_of};
