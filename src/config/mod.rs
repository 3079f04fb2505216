//! What an administrator sets: flags and the configuration file.

mod file;
mod flags;

pub use file::{Config, ConfigError};
pub use flags::{Cli, Command, LogFormat, NativeHpas, ServeFlags};
