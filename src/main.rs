//! The `plimsoll` command.

#![forbid(unsafe_code)]

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use plimsoll::commands::operate::{self, OperateError};
use plimsoll::commands::{
    autoscale, backtest, check, complete, convert, installation, manual, plain_lines, recommend,
    reference, replay, ui, version,
};
use plimsoll::config::{Cli, Command, IgnoredFlag, ServeFlags};
use std::io::Write;
use std::process::ExitCode;

/// jemalloc returns the memory of large lists. The system's allocator keeps half as much again as
/// the index needs.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    if name_of_program().is_some_and(|name| name == "kubectl_complete-plimsoll") {
        return run_complete();
    }
    let (arguments, ignored) = plimsoll::config::take_ignored(std::env::args_os());
    if arguments.len() < 2 {
        let _ = command_line().print_help();
        return ExitCode::SUCCESS;
    }
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && !called_as_plugin();
    let arguments = plimsoll::config::flags_after_command(arguments);
    let arguments = plimsoll::config::normalize_command(arguments, in_pod);
    let matches = command_line().try_get_matches_from(&arguments);
    let command = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli.command,
        Err(error) => return usage_error(error, &arguments),
    };
    match command {
        Command::Crd => print(plimsoll::crd::custom_resource_definitions_yaml(), ExitCode::SUCCESS),
        Command::Reference => print(reference::markdown(), ExitCode::SUCCESS),
        Command::Man { folder } => match manual::write(&folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(format_args!("{}: {error}", folder.display())),
        },
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "plimsoll", &mut script);
            print(script, ExitCode::SUCCESS)
        }
        Command::Check(flags) => run_check(&flags),
        Command::Convert(flags) => run_convert(&flags),
        Command::Backtest(flags) => run_report(backtest::run(&flags)),
        Command::Recommend(flags) => {
            run_report(async { recommend::run(&flags).await.map(String::into_bytes) })
        }
        Command::Replay(flags) => run_replay(&flags),
        Command::Version(flags) => run_operate(version::run(&flags)),
        Command::Autoscale(flags) => {
            let notes = autoscale::notes(&flags);
            notes.iter().for_each(|note| complain(format_args!("note: {note}")));
            run_operate(autoscale::run(&flags))
        }
        Command::CheckCluster(flags) => run_check_cluster(&flags),
        Command::Status(flags) => run_operate(operate::status(&flags)),
        Command::Explain(flags) => run_operate(operate::explain(&flags)),
        Command::History(flags) => run_operate(operate::history(&flags)),
        Command::Compare(flags) => run_operate(operate::compare(&flags)),
        Command::Ui(flags) => run_ui(&flags),
        Command::Pause(flags) => run_operate(operate::pause(&flags)),
        Command::Resume(flags) => run_operate(operate::resume(&flags)),
        Command::Freeze(flags) => run_operate(operate::freeze(&flags)),
        Command::Thaw(flags) => run_operate(operate::thaw(&flags)),
        Command::Serve(flags) => match serve(*flags, &ignored) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(error),
        },
    }
}

/// The command line by the name of the program.
fn command_line() -> clap::Command {
    if called_as_plugin() { Cli::of_plugin() } else { Cli::command() }
}

/// Prints the error of a command line, or the requested help.
fn usage_error(mut error: clap::Error, arguments: &[std::ffi::OsString]) -> ExitCode {
    // That a flag could be a value, after `--`: it would become the reason of a freeze, or one more name.
    error.remove(ContextKind::Suggested);
    let _ = error.print();
    let flag_first = arguments[1].to_str().is_some_and(|first| first.starts_with('-'));
    if flag_first && error.kind() == ErrorKind::UnknownArgument {
        complain("\n  tip: to serve, run: plimsoll serve --FLAG ...");
    }
    let wrong = error.get(ContextKind::InvalidArg).or(error.get(ContextKind::InvalidSubcommand));
    let has_files = arguments.iter().any(|argument| argument == "-f" || argument == "--filename");
    if let Some(ContextValue::String(value)) = wrong
        && error.kind() == ErrorKind::UnknownArgument
        && has_files
        && !value.starts_with('-')
    {
        complain("\n  tip: write -f before each file");
    }
    if let Some(ContextValue::String(value)) = wrong
        && error.kind() == ErrorKind::UnknownArgument
        && arguments.iter().any(|argument| argument == "freeze" || argument == "thaw")
    {
        match &**value {
            "-n" | "--namespace" | "-A" | "--all-namespaces" => complain(
                "\n  tip: a freeze is of all namespaces; kubectl plimsoll pause is of one Autoscaler",
            ),
            value if !value.starts_with('-') => complain("\n  tip: write the reason in quotes"),
            _ => {}
        }
    }
    if let Some(ContextValue::String(value)) = wrong
        && matches!(&**value, "true" | "false")
    {
        complain(format_args!("\n  tip: write --FLAG={value}"));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Says why a command failed. Nothing in that controls a terminal: it may be a text of others.
fn failed(error: impl std::fmt::Display) -> ExitCode {
    complain(plain_lines(&format!("plimsoll: {error}")));
    ExitCode::FAILURE
}

/// Writes a line to the standard error, if anybody reads that.
fn complain(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints a result, of a command that ends with this code. A reader that has seen enough, such as `head`, is no failure.
fn print(text: impl AsRef<[u8]>, code: ExitCode) -> ExitCode {
    let mut output = ResultOutput::default();
    match output.write_all(text.as_ref()).and_then(|()| output.flush()) {
        Err(error) if !output.is_closed => failed(format!("the standard output: {error}")),
        Ok(()) | Err(_) => code,
    }
}

/// The standard output, and whether its reader has gone.
#[derive(Default)]
struct ResultOutput {
    is_closed: bool,
}

impl ResultOutput {
    fn note<T>(&mut self, done: std::io::Result<T>) -> std::io::Result<T> {
        let is_closed = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
        self.is_closed |= done.as_ref().is_err_and(is_closed);
        done
    }
}

impl Write for ResultOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let done = std::io::stdout().write(bytes);
        self.note(done)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let done = std::io::stdout().flush();
        self.note(done)
    }
}

fn run_check(flags: &plimsoll::config::CheckFlags) -> ExitCode {
    let checked = start_tls().and_then(|()| {
        let runtime = tokio::runtime::Runtime::new()?;
        Ok(runtime.block_on(check::run(flags)))
    });
    match checked {
        Ok((text, good)) => print(text, if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        Err(error) => failed(error),
    }
}

/// The name by which this process was called.
fn name_of_program() -> Option<std::ffi::OsString> {
    let called = std::env::args_os().next().map(std::path::PathBuf::from);
    called.and_then(|path| path.file_name().map(std::ffi::OsStr::to_owned))
}

/// Whether kubectl runs this process as its plugin.
fn called_as_plugin() -> bool {
    name_of_program().is_some_and(|name| name == "kubectl-plimsoll")
}

/// Completes a command line for kubectl, which shows nothing of a failure.
fn run_complete() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    run_report(async { Ok(complete::complete(&words).await.into_bytes()) })
}

fn run_check_cluster(flags: &plimsoll::config::CheckClusterFlags) -> ExitCode {
    let checked = start_tls().and_then(|()| {
        let runtime = tokio::runtime::Runtime::new()?;
        Ok(runtime.block_on(installation::run(flags))?)
    });
    match checked {
        Ok((text, good)) => print(text, if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        Err(error) => failed(error),
    }
}

fn run_convert(flags: &plimsoll::config::ConvertFlags) -> ExitCode {
    match convert::run(flags) {
        Ok((text, converted)) => {
            let is_whole = converted.errors.is_empty();
            let code = print(text, if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            converted.notes.iter().for_each(|note| complain(format_args!("note: {note}")));
            converted.errors.iter().for_each(|error| complain(format_args!("error: {error}")));
            code
        }
        Err(error) => failed(error),
    }
}

fn run_report(report: impl Future<Output = Result<Vec<u8>, String>>) -> ExitCode {
    let done = start_tls().and_then(|()| {
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(report).map_err(Into::into)
    });
    match done {
        Ok(report) => print(report, ExitCode::SUCCESS),
        Err(error) => failed(error),
    }
}

fn run_replay(flags: &plimsoll::config::ReplayFlags) -> ExitCode {
    match replay::run(flags, &mut std::io::stdout()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(error),
    }
}

fn run_ui(flags: &plimsoll::config::UiFlags) -> ExitCode {
    let served = start_tls().and_then(|()| {
        let runtime = tokio::runtime::Runtime::new()?;
        Ok(runtime.block_on(ui::run(flags, &mut std::io::stdout()))?)
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(error),
    }
}

fn run_operate(command: impl Future<Output = Result<String, OperateError>>) -> ExitCode {
    let done = start_tls().and_then(|()| {
        let runtime = tokio::runtime::Runtime::new()?;
        Ok(runtime.block_on(command))
    });
    match done {
        Ok(Ok(text)) => print(text, ExitCode::SUCCESS),
        Ok(Err(OperateError::Partly { shown, error })) => {
            print(shown, ExitCode::FAILURE);
            failed(error)
        }
        Ok(Err(error)) => failed(error),
        Err(error) => failed(error),
    }
}

fn start_tls() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let provider = rustls::crypto::ring::default_provider();
    provider.install_default().map_err(|_| "a TLS provider was installed twice".into())
}

fn serve(
    flags: ServeFlags,
    ignored: &[IgnoredFlag],
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    plimsoll::telemetry::start_logging(flags.log_format, &flags.log_filter())?;
    for ignored in ignored {
        tracing::warn!(
            flag = ignored.flag,
            reason = ignored.reason,
            "Ignored a flag without an effect"
        );
    }
    start_tls()?;
    plimsoll::app::run(flags)
}
