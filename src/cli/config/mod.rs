//! `kvroute config`: a configuration looked over, with nothing started.

mod ask;
mod check;
mod show;

use clap::{Args, Subcommand};

use super::Outcome;

/// Flags of `kvroute config`.
#[derive(Args, Debug)]
pub(super) struct ConfigCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Say everything that is wrong with a file of kvroute frontend --config; flags and environment are not looked at
    Check(check::CheckCommand),
    /// Show what kvroute frontend would start with from the same flags, environment and file, and where each value
    /// came from; with --admin or --set, what the worker sets of a running one have
    Show(Box<show::ShowCommand>),
}

impl ConfigCommand {
    pub(super) async fn run(self) -> Outcome {
        match self.what {
            What::Check(command) => command.run(),
            What::Show(command) => command.run().await,
        }
    }
}
