//! `kvroute frontend`.

use clap::Args;

use super::{Outcome, assemble::assemble, shutdown};
use crate::config::{FileArgs, FrontendArgs, RouterArgs};

/// Flags of `kvroute frontend`.
#[derive(Args, Debug)]
pub(super) struct FrontendCommand {
    #[command(flatten)]
    file: FileArgs,
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
        let plan = self.frontend.plan(self.router, &self.worker, self.file.read()?)?;
        let mut signals = shutdown::signals()?;
        let frontend = assemble(plan).await?;
        signals.wait().await;
        shutdown::drain(frontend, &mut signals).await
    }
}
