//! The settings of administrators: flags and the configuration file.

mod adapter_flags;
mod file;
mod flags;
mod live;
mod rules;

pub use adapter_flags::{IgnoredFlag, normalize_command, take_ignored};
pub use file::{Config, ConfigError};
pub use flags::{
    CheckFlags, Cli, ClusterFlags, Command, ConvertFlags, FreezeFlags, ObjectFlags, OutputFormat,
    PauseFlags, ReplayFlags, PrometheusFlags, PrometheusVerb, ServeFlags, TlsVersion,
};
pub use live::LiveConfig;
