//! The command line: one file per subcommand.

mod assemble;
mod config;
mod decisions;
mod doctor;
mod drive;
mod first_probe;
mod frontend;
mod gpus;
mod local_gpus;
mod mock;
mod mock_fleet;
mod router;
mod shutdown;
mod simulate;
mod up;
mod worker;

use std::{
    error::Error,
    io::{self, IsTerminal, Write as _},
    process::ExitCode,
};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::config::{LogArgs, LogFormat, set_apart, without_empty_variables};

pub use assemble::{AssembleError, assemble};

/// Routes LLM requests to the worker that already holds their prefix.
#[derive(Parser, Debug)]
#[command(name = "kvroute", version, infer_long_args = false, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Serve clients: the OpenAI-compatible router
    Frontend(Box<frontend::FrontendCommand>),
    /// Register an engine with frontends, and keep it registered
    Worker(worker::WorkerCommand),
    /// Run a mock engine that looks like vLLM at the wire and computes nothing
    Mock(mock::MockCommand),
    /// Try it: a frontend and mock engines in one process
    Up(up::UpCommand),
    /// List this machine's GPUs, what can be read of them, and what they would weigh in a choice
    Gpus(gpus::GpusCommand),
    /// Look a configuration over: check a file, or show what holds and where it came from
    Config(config::ConfigCommand),
    /// Check an engine: whether the router's picture of its cache will be right, and what to change if not
    Doctor(doctor::DoctorCommand),
    /// Send a trace's requests and report hit rate, latency and balance
    Drive(drive::DriveCommand),
    /// Compare routing policies on a simulated fleet, or make recorded decisions again
    Simulate(simulate::SimulateCommand),
}

/// Runs the command line; what `main` returns.
#[must_use]
pub fn main() -> ExitCode {
    let command = without_empty_variables(Cli::command());
    let arguments = set_apart(&command, std::env::args_os().collect());
    let matches = command.get_matches_from(arguments);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let Err(problem) = start_log(&cli.log) {
        eprintln!(
            "error: --log '{}': {problem}; accepted are error, warn, info, debug, trace and off, or a list such as \
             info,kvroute::ingest=debug",
            cli.log.log
        );
        return ExitCode::from(2);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(async {
        let done = match cli.command {
            // Its outcome is more than success or failure.
            Command::Doctor(command) => return command.run().await,
            Command::Frontend(command) => command.run().await,
            Command::Worker(command) => command.run().await,
            Command::Mock(command) => command.run().await,
            Command::Up(command) => command.run().await,
            Command::Gpus(command) => command.run(),
            Command::Config(command) => command.run().await,
            Command::Drive(command) => command.run().await,
            Command::Simulate(command) => command.run(),
        };
        done.map(|()| ExitCode::SUCCESS)
    });
    // A blocking call that hangs (a name that does not resolve) must not hold the exit.
    runtime.shutdown_background();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What a subcommand ends with; the message tells a person what to do.
type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Prints what a command was asked for. A reader that went away, as `head` does, is no reason to fail; a full disk is.
fn print(text: &str) -> Outcome {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to stdout: {error}").into())
        }
        _ => Ok(()),
    }
}

fn start_log(flags: &LogArgs) -> Result<(), String> {
    check_filter(&flags.log)?;
    let filter = EnvFilter::try_new(&flags.log).map_err(|error| error.to_string())?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    match flags.log_format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

/// The filter language takes any word for the name of a module, so that `--log verbose` would log nothing at all.
fn check_filter(filter: &str) -> Result<(), String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let mut words = filter.split(',').map(str::trim);
    match words.find(|word| !(word.contains(['=', '[', ':']) || is_level(word))) {
        Some("") => Err("an entry is empty".to_owned()),
        Some(word) => Err(format!("'{word}' is neither a level nor TARGET=LEVEL")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for filter in
            ["info", "WARN", "off", "info,kvroute::ingest=debug", "kvroute::proxy", "info,[send]=trace"]
        {
            assert_eq!(check_filter(filter), Ok(()), "{filter}");
        }
        for filter in ["verbose", "", "info,", "info,verbos", "3"] {
            assert!(check_filter(filter).is_err(), "{filter}");
        }
    }
}
