//! `plimsoll man`: the manual pages of the archive of a release.

use crate::config::Cli;
use clap::CommandFactory;
use std::io;
use std::path::Path;

/// Writes a page for the program and one for each command.
///
/// # Errors
/// If a file can't be written.
pub fn write(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), folder)
}
