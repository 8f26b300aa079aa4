//! `kvroute frontend`.

use std::sync::Arc;

use clap::Args;
use tracing::info;

use super::{Outcome, assemble::assemble, router::router_config, shutdown};
use crate::config::{
    ConfigFile, FileArgs, FrontendArgs, RoutingFile, WORKERS,
    flags::{Frontend, RouterFlags},
};

/// Flags of `kvroute frontend`.
#[derive(Args, Debug)]
pub(super) struct FrontendCommand {
    #[command(flatten)]
    pub(super) file: FileArgs,
    /// A worker, as url=http://HOST:PORT,model=NAME and, to route by its cache,
    /// kv_events_endpoint=tcp://HOST:PORT,kv_replay_endpoint=tcp://HOST:PORT,block_size=N; repeat it for each worker
    #[arg(long, help_heading = WORKERS, value_name = "KEY=VALUE,...")]
    pub(super) worker: Vec<String>,
    #[command(flatten)]
    pub(super) frontend: FrontendArgs,
    #[command(flatten)]
    pub(super) router: RouterFlags<Frontend>,
}

impl FrontendCommand {
    pub(super) async fn run(self) -> Outcome {
        let file = self.file.config.as_deref().map(ConfigFile::read).transpose()?;
        let router = router_config(&self.router, file.as_ref().map(ConfigFile::router_section))?;
        let flags = router.of_the_frontend();
        let reread = file
            .as_ref()
            .map(|file| RoutingFile::new(file, &self.router, &self.frontend, &self.worker, &router.settings));
        let mut plan = self.frontend.plan(router.config, &self.worker, file)?.with(flags)?;
        plan.settings.routing = reread.map(|file| Arc::new(file) as _);
        let mut signals = shutdown::signals()?;
        let mut hangups = shutdown::hangups()?;
        // A start that waits, for another frontend's snapshot, is not waited for by whoever ends the process.
        let frontend = tokio::select! {
            frontend = assemble(plan) => frontend?,
            () = signals.wait() => {
                info!("stopped before the frontend was up");
                return Ok(());
            }
        };
        loop {
            tokio::select! {
                () = signals.wait() => break,
                _ = hangups.recv() => frontend.reload().await,
            }
        }
        shutdown::drain(frontend, &mut signals).await
    }
}
