//! `kvroute frontend`.

use std::path::PathBuf;

use clap::Args;

use super::{Outcome, assemble::assemble, shutdown};
use crate::config::{ConfigFile, FrontendArgs, RouterArgs};

/// Flags of `kvroute frontend`.
#[derive(Args, Debug)]
pub(super) struct FrontendCommand {
    /// TOML file with the same settings, models and workers; flags and environment win over it
    #[arg(long, env = "KVROUTE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// A worker: url=http://HOST:PORT,model=NAME[,kv_events_endpoint=tcp://...][,kv_replay_endpoint=tcp://...]
    /// [,block_size=N]; may be given several times
    #[arg(long, value_name = "KEY=VALUE,...")]
    worker: Vec<String>,
    #[command(flatten)]
    frontend: FrontendArgs,
    #[command(flatten)]
    router: RouterArgs,
}

impl FrontendCommand {
    pub(super) async fn run(self) -> Outcome {
        let file = self.config.as_deref().map(ConfigFile::read).transpose()?;
        let plan = self.frontend.plan(self.router, &self.worker, file)?;
        let mut signals = shutdown::signals()?;
        let frontend = assemble(plan).await?;
        signals.wait().await;
        shutdown::drain(frontend, &mut signals).await
    }
}
