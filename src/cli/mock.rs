//! `kvroute mock`.

use clap::Args;
use tracing::info;

use super::{Outcome, shutdown};
use crate::{
    config::MockArgs,
    worker::mock::{MockEngine, MockError},
};

/// Flags of `kvroute mock`.
#[derive(Args, Debug)]
pub(super) struct MockCommand {
    #[command(flatten)]
    mock: MockArgs,
}

impl MockCommand {
    pub(super) async fn run(self) -> Outcome {
        let mut signals = shutdown::signals()?;
        let engine = MockEngine::start(self.mock.settings()?).await.map_err(|error| with_flag(&error))?;
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

/// An address that cannot be had, with the flag that changes it.
pub(super) fn with_flag(error: &MockError) -> String {
    match error {
        MockError::Http { .. } => format!("{error}; choose another with --http"),
        MockError::Zmq { socket, .. } => format!("{error}; choose another with --kv-{socket}-endpoint"),
        MockError::Setting { field: "num_gpu_blocks", .. } => {
            format!("{error} (--engine-cache-tokens, --max-model-len)")
        }
        MockError::Setting { .. } | MockError::Vocabulary | MockError::Thread(_) => error.to_string(),
    }
}
