//! The `plimsoll` command.

#![forbid(unsafe_code)]

use clap::Parser;
use plimsoll::config::{Cli, Command};
use std::process::ExitCode;

/// Lists of thousands of objects come and go beside what is kept of them: the
/// system's allocator keeps half as much again.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let (arguments, ignored) = plimsoll::config::take_ignored(std::env::args_os());
    let cli = Cli::parse_from(arguments);
    let flags = match cli.command {
        Some(Command::Crd) => {
            print!("{}", plimsoll::crd::custom_resource_definition_yaml());
            return ExitCode::SUCCESS;
        }
        Some(Command::Check(flags)) => return check(&flags),
        Some(Command::Serve(flags)) => *flags,
        None => cli.serve,
    };
    match run(flags, &ignored) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plimsoll: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check(flags: &plimsoll::config::CheckFlags) -> ExitCode {
    let checked = start_tls().and_then(|()| {
        let runtime = tokio::runtime::Runtime::new()?;
        Ok(runtime.block_on(plimsoll::check::run(flags)))
    });
    match checked {
        Ok((text, good)) => {
            print!("{text}");
            if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("plimsoll: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start_tls() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let provider = rustls::crypto::ring::default_provider();
    provider.install_default().map_err(|_| "a TLS provider was installed twice".into())
}

fn run(
    flags: plimsoll::config::ServeFlags,
    ignored: &[plimsoll::config::Ignored],
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    plimsoll::telemetry::start_logging(flags.log_format, flags.log_filter())?;
    for ignored in ignored {
        tracing::warn!(flag = ignored.flag, reason = ignored.reason, "the flag has no effect");
    }
    start_tls()?;
    tokio::runtime::Runtime::new()?.block_on(plimsoll::app::serve(flags))
}
