//! Reading the command line, with the environment below it.

use std::path::PathBuf;

use clap::{Args, Command, Parser, ValueEnum};

use super::file::{ConfigFile, FileError};

/// Parses the process's command line as `C`. A variable that is set and empty counts as unset, so that a shell or
/// a manifest can switch one off.
///
/// Ends the process, with help or with the reason, if the command line does not parse.
#[must_use]
pub fn parse<C: Parser>() -> C {
    let matches = without_empty_variables(C::command()).get_matches();
    C::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

fn without_empty_variables(command: Command) -> Command {
    let without = |arg: clap::Arg| {
        #[expect(clippy::disallowed_methods, reason = "this is where the environment is read")]
        let is_empty = arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
        if is_empty { arg.env(None) } else { arg }
    };
    command.mut_args(without).mut_subcommands(without_empty_variables)
}

/// Flags on the log, the same for every subcommand.
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// What is logged: error, warn, info, debug, trace, or a filter such as kvroute::ingest=debug
    #[arg(long, global = true, env = "KVROUTE_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
    /// How log lines look
    #[arg(long, global = true, env = "KVROUTE_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// A JSON object a line.
    Json,
}

/// The flag that names the file.
#[derive(Args, Clone, Debug, Default)]
pub struct FileArgs {
    /// TOML file with the same settings, models and workers; flags and environment win over it
    #[arg(long, env = "KVROUTE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl FileArgs {
    /// Reads the file, if one was named.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn read(&self) -> Result<Option<ConfigFile>, FileError> {
        self.config.as_deref().map(ConfigFile::read).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    struct Cli {
        /// A variable that every test process has, and one that nobody sets.
        #[arg(long, env = "PATH")]
        path: Option<String>,
        #[arg(long, env = "KVROUTE_TEST_UNSET")]
        unset: Option<u16>,
    }

    #[test]
    fn variables_with_a_value_are_read() {
        let matches =
            without_empty_variables(<Cli as clap::CommandFactory>::command()).get_matches_from(["x"]);
        let cli = <Cli as clap::FromArgMatches>::from_arg_matches(&matches).unwrap();
        assert!(cli.path.is_some() && cli.unset.is_none());
    }
}
