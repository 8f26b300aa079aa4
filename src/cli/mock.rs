//! `kvroute mock`.

use clap::Args;
use tracing::info;

use super::{Outcome, shutdown};
use crate::{config::MockArgs, worker::mock::MockEngine};

/// Flags of `kvroute mock`.
#[derive(Args, Debug)]
pub(super) struct MockCommand {
    #[command(flatten)]
    mock: MockArgs,
}

impl MockCommand {
    pub(super) async fn run(self) -> Outcome {
        let mut signals = shutdown::signals()?;
        let engine = MockEngine::start(self.mock.settings()?).await?;
        info!(
            http = %engine.http_addr(),
            events = engine.events_endpoint(),
            replay = engine.replay_endpoint(),
            model = self.mock.model_name,
            "mock engine is up"
        );
        signals.wait().await;
        engine.stop().await;
        Ok(())
    }
}
