//! The `plimsoll` command.

#![forbid(unsafe_code)]

use clap::{CommandFactory, Parser};
use plimsoll::config::{Cli, Command};
use plimsoll::operate;
use std::process::ExitCode;

/// Lists of thousands of objects come and go beside what is kept of them: the
/// system's allocator keeps half as much again.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let (arguments, ignored) = plimsoll::config::take_ignored(std::env::args_os());
    if called_as_plugin() && arguments.len() < 2 {
        let _ = Cli::command().name("kubectl plimsoll").print_help();
        return ExitCode::SUCCESS;
    }
    let cli = Cli::parse_from(arguments);
    let flags = match cli.command {
        Some(Command::Crd) => {
            print!("{}", plimsoll::crd::custom_resource_definition_yaml());
            return ExitCode::SUCCESS;
        }
        Some(Command::Reference) => {
            print!("{}", plimsoll::reference::markdown());
            return ExitCode::SUCCESS;
        }
        Some(Command::Completions { shell }) => {
            clap_complete::generate(shell, &mut Cli::command(), "plimsoll", &mut std::io::stdout());
            return ExitCode::SUCCESS;
        }
        Some(Command::Check(flags)) => return check(&flags),
        Some(Command::Convert(flags)) => return convert(&flags),
        Some(Command::Status(flags)) => return operate(operate::status(&flags)),
        Some(Command::Explain(flags)) => return operate(operate::explain(&flags)),
        Some(Command::Pause(flags)) => return operate(operate::pause(&flags, true)),
        Some(Command::Resume(flags)) => return operate(operate::pause(&flags, false)),
        Some(Command::Freeze(flags)) => return operate(operate::freeze(&flags)),
        Some(Command::Thaw(flags)) => return operate(operate::thaw(&flags)),
        Some(Command::Serve(flags)) => *flags,
        None => cli.serve,
    };
    match run(flags, &ignored) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(error),
    }
}

fn failed(error: impl std::fmt::Display) -> ExitCode {
    eprintln!("plimsoll: {error}");
    ExitCode::FAILURE
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
        Err(error) => failed(error),
    }
}

/// Whether kubectl called it as its plugin.
fn called_as_plugin() -> bool {
    let called = std::env::args_os().next().map(std::path::PathBuf::from);
    called.is_some_and(|path| path.file_name().is_some_and(|name| name == "kubectl-plimsoll"))
}

fn convert(flags: &plimsoll::config::ConvertFlags) -> ExitCode {
    match plimsoll::convert::run(flags) {
        Ok((text, notes)) => {
            print!("{text}");
            for note in notes {
                eprintln!("note: {note}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => failed(error),
    }
}

fn operate(command: impl Future<Output = Result<String, operate::OperateError>>) -> ExitCode {
    let done = start_tls().and_then(|()| {
        let runtime = tokio::runtime::Runtime::new()?;
        Ok(runtime.block_on(command)?)
    });
    match done {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => failed(error),
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
