//! A frontend and mock engines in this process, for `up` and `drive`.

use std::{error::Error, net::SocketAddr, sync::Arc};

use super::{assemble::assemble_with, mock::with_flag};
use crate::{
    config::{EngineArgs, FrontendPlan},
    fleet::{RouterConfig, WorkerSpec},
    frontend::{DecisionLogSettings, Frontend, FrontendSettings, Prompts},
    prompt::Encoder,
    worker::mock::{MockEngine, MockSettings},
};

/// What a mock fleet is started with.
pub(super) struct MockFleetPlan {
    pub(super) engines: usize,
    pub(super) engine: EngineArgs,
    pub(super) router: RouterConfig,
    pub(super) public: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) decision_log: Option<DecisionLogSettings>,
}

/// A frontend and its engines. Dropping it stops all of them.
pub(super) struct MockFleet {
    pub(super) frontend: Frontend,
    pub(super) engines: Vec<MockEngine>,
    pub(super) encoder: Arc<Encoder>,
}

/// The model that mock fleets serve.
pub(super) const MODEL: &str = "mock";

impl MockFleet {
    /// Starts the engines, then the frontend that knows them.
    pub(super) async fn start(plan: MockFleetPlan) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let encoder = Arc::new(Encoder::tiny()?);
        let mut engines = Vec::with_capacity(plan.engines);
        let mut workers = Vec::with_capacity(plan.engines);
        for number in 0..plan.engines {
            let settings =
                MockSettings { model: MODEL.to_owned(), ..plan.engine.settings(Arc::clone(&encoder)) };
            let total_kv_blocks = u64::from(settings.num_gpu_blocks);
            let max_num_batched_tokens = u64::try_from(settings.max_num_batched_tokens).ok();
            let engine = MockEngine::start(settings).await.map_err(|error| with_flag(&error))?;
            workers.push(WorkerSpec {
                id: u64::try_from(number + 1).ok(),
                block_size: plan.engine.block_size,
                total_kv_blocks: Some(total_kv_blocks),
                max_num_batched_tokens,
                kv_events_endpoint: engine.events_endpoint().map(str::to_owned),
                kv_replay_endpoint: engine.replay_endpoint().map(str::to_owned),
                ..WorkerSpec::new(&format!("http://{}", engine.http_addr()), MODEL)
            });
            engines.push(engine);
        }
        let mut prompts = Prompts::new();
        prompts.insert(MODEL, Arc::clone(&encoder));
        let settings = FrontendSettings {
            public: plan.public,
            admin: plan.admin,
            decision_log: plan.decision_log,
            ..FrontendSettings::default()
        };
        let plan = FrontendPlan { settings, router: plan.router, workers, models: Vec::new() };
        let frontend = assemble_with(plan, prompts).await?;
        Ok(Self { frontend, engines, encoder })
    }

    /// Stops the engines; the frontend is handed out to be drained first.
    pub(super) async fn stop_engines(engines: Vec<MockEngine>) {
        for engine in engines {
            engine.stop().await;
        }
    }
}
