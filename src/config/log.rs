//! The flags on logging, which every command takes.

use clap::{Args, ValueEnum};

/// What is logged, and how.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// What is logged to stderr: error, warn, info, debug, trace or off, or a list such as
    /// info,kvroute::ingest=debug
    #[arg(long, global = true, env = "KVROUTE_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
    /// How log lines look: text for people, json for programs
    #[arg(long, global = true, env = "KVROUTE_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
}

/// How log lines look: as text for people, or as a JSON object a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[expect(
    missing_docs,
    reason = "with help on single values clap turns every --help into its long form, three lines a flag"
)]
pub enum LogFormat {
    Text,
    Json,
}
