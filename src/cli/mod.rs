//! The command line: one file per subcommand.

mod assemble;
mod drive;
mod frontend;
mod mock;
mod mock_fleet;
mod shutdown;
mod up;

use std::{
    error::Error,
    io::{self, IsTerminal, Write as _},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::config::{self, LogArgs, LogFormat};

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
    Frontend(frontend::FrontendCommand),
    /// Run a mock engine that looks like vLLM at the wire and computes nothing
    Mock(mock::MockCommand),
    /// Try it: a frontend and mock engines in one process
    Up(up::UpCommand),
    /// Send a trace's requests and report hit rate, latency and balance
    Drive(drive::DriveCommand),
}

/// Runs the command line; what `main` returns.
#[must_use]
pub fn main() -> ExitCode {
    let cli: Cli = config::parse();
    if let Err(problem) = start_log(&cli.log) {
        eprintln!("error: --log: {problem}; accepted are error, warn, info, debug, trace or a filter");
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
        match cli.command {
            Command::Frontend(command) => command.run().await,
            Command::Mock(command) => command.run().await,
            Command::Up(command) => command.run().await,
            Command::Drive(command) => command.run().await,
        }
    });
    // A blocking call that hangs (a name that does not resolve) must not hold the exit.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What a subcommand ends with; the message tells a person what to do.
type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Prints a subcommand's result. A reader that has left (`| head`) is no error.
fn print_result(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

fn start_log(args: &LogArgs) -> Result<(), String> {
    let filter = EnvFilter::try_new(&args.log).map_err(|error| error.to_string())?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    match args.log_format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}
