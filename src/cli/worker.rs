//! `kvroute worker`: what runs beside an engine.

use std::net::{IpAddr, SocketAddr};

use clap::{Args, Parser, Subcommand};
use http::Uri;
use tracing::{info, warn};

use super::{Outcome, mock::with_flag, router::router_config, shutdown};
use crate::{
    config::{
        AttachArgs, MockArgs, WorkerArgs, WorkerConfigError, WorkerFile,
        flags::{Built, Environment, Field, RouterFlags, Settings, Source, Worker},
    },
    fleet::{DeviceWeights, RouterConfig, WorkerType},
    select::CostModel,
    worker::{
        agent,
        backend::{Backend, without_secrets},
        facts::{Facts, Stated},
        mock::{MockEngine, Role},
    },
};

/// Flags of `kvroute worker`.
#[derive(Args, Debug)]
pub(super) struct WorkerCommand {
    #[command(subcommand)]
    engine: EngineCommand,
}

#[derive(Subcommand, Debug)]
enum EngineCommand {
    /// Register a vLLM server that runs already
    Vllm(AttachCommand),
    /// Register an SGLang server that runs already
    Sglang(AttachCommand),
    /// Register a TensorRT-LLM server that runs already
    Trtllm(AttachCommand),
    /// Run a mock engine and register it
    Mock(MockWorkerCommand),
}

#[derive(Args, Debug)]
struct AttachCommand {
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    attach: AttachArgs,
    #[command(flatten)]
    router: RouterFlags<Worker>,
    /// The engine's own command line, read for what the card needs; options that nobody else knows may also stand
    /// before the --
    #[arg(last = true, value_name = "ENGINE ARGUMENTS", help_heading = "Arguments")]
    engine_arguments: Vec<String>,
}

#[derive(Args, Debug)]
struct MockWorkerCommand {
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    router: RouterFlags<Worker>,
    /// Flags of the mock engine, those of kvroute mock; they may also stand before the --
    #[arg(last = true, value_name = "ENGINE ARGUMENTS", help_heading = "Arguments")]
    engine_arguments: Vec<String>,
}

/// The mock engine's own command line.
#[derive(Parser)]
#[command(name = "kvroute mock", no_binary_name = true, disable_help_flag = true, infer_long_args = false)]
struct MockArguments {
    #[command(flatten)]
    mock: MockArgs,
}

impl WorkerCommand {
    pub(super) async fn run(self) -> Outcome {
        match self.engine {
            EngineCommand::Vllm(command) => command.run(Backend::Vllm).await,
            EngineCommand::Sglang(command) => command.run(Backend::Sglang).await,
            EngineCommand::Trtllm(command) => command.run(Backend::Trtllm).await,
            EngineCommand::Mock(command) => command.run().await,
        }
    }
}

impl AttachCommand {
    async fn run(self, backend: Backend) -> Outcome {
        let mut signals = shutdown::signals()?;
        let file = self.worker.file()?;
        let worker = self.worker.over(&Environment::process(), file.as_ref())?;
        let Advertised { config, cost_model, hold, device_weights } =
            advertised(&self.router, file.as_ref())?;
        let mut plan = self.attach.plan(backend, &worker, file.as_ref(), config, self.engine_arguments)?;
        plan.agent.spec.router_cost_model = cost_model;
        plan.agent.spec.router_hold = hold;
        plan.agent.spec.device_weights = device_weights;
        if !plan.not_applied.is_empty() {
            warn!(
                arguments = without_secrets(&plan.not_applied),
                "engine arguments are read for the card and not applied: this command starts no engine"
            );
        }
        agent::run(plan.agent, signals.wait()).await?;
        Ok(())
    }
}

impl MockWorkerCommand {
    async fn run(self) -> Outcome {
        let mut signals = shutdown::signals()?;
        let file = self.worker.file()?;
        if let Some(file) = file.as_ref().filter(|file| file.engine.is_some()) {
            return Err(WorkerConfigError::MockEngine(file.path.clone()).into());
        }
        let worker = self.worker.over(&Environment::process(), file.as_ref())?;
        let Advertised { config, cost_model, hold, device_weights } =
            advertised(&self.router, file.as_ref())?;
        let arguments = MockArguments::try_parse_from(&self.engine_arguments)
            .map_err(|error| format!("mock engine: {}", error.to_string().trim_start_matches("error: ")))?;
        let settings = arguments.mock.settings()?;
        let engine = MockEngine::start(settings).await.map_err(|error| with_flag(&error))?;
        info!(http = %engine.http_addr(), model = arguments.mock.model_name, "mock engine is up");
        let url = reachable(engine.http_addr())?;
        let facts = Facts { worker_type: stated_role(arguments.mock.role), ..Facts::default() };
        let mut settings = worker.agent(Backend::Mock, url, facts, config)?;
        settings.spec.router_cost_model = cost_model;
        settings.spec.router_hold = hold;
        settings.spec.device_weights = device_weights;
        let outcome = agent::run(settings, signals.wait()).await;
        engine.stop().await;
        outcome?;
        Ok(())
    }
}

/// A mock engine's role, which it does not tell over HTTP, like the engine that it stands for.
fn stated_role(role: Role) -> Option<Stated<WorkerType>> {
    let value = match role {
        Role::Aggregated => return None,
        Role::Prefill => WorkerType::Prefill,
        Role::Decode => WorkerType::Decode,
    };
    Some(Stated::new(value, "--role"))
}

/// A URL that leads to an address which a server listens on.
fn reachable(mut address: SocketAddr) -> Result<Uri, http::uri::InvalidUri> {
    if address.ip().is_unspecified() {
        address.set_ip(IpAddr::from([127, 0, 0, 1]));
    }
    format!("http://{address}").parse()
}

/// The router configuration for the card, if the flags make one, and device weights, if they say any; the log says which, and
/// who asked for it. A variable that a whole cluster shares makes every worker advertise, which nobody may have meant.
fn advertised(
    flags: &RouterFlags<Worker>,
    file: Option<&WorkerFile>,
) -> Result<Advertised, Box<dyn std::error::Error + Send + Sync>> {
    let built = router_config(flags, file.map(WorkerFile::router_section))?;
    let (cost_model, hold) = (built.cost_model(), built.hold());
    let device_weights = built.device_weights().map(DeviceWeights);
    let Built { config, settings, .. } = built;
    if let Some(model) = cost_model {
        info!(cost_model = model.name(), "advertising a cost model on the card");
    }
    if let Some(seconds) = hold {
        info!(seconds, "advertising a hold on the card");
    }
    match &config {
        Some(config) => {
            let (source, from) = origin(&settings);
            info!(mode = config.mode.name(), source, from, "advertising a router configuration on the card");
        }
        None => info!("advertising no router configuration: the set inherits the frontend's"),
    }
    Ok(Advertised { config, cost_model, hold, device_weights })
}

/// What a worker's card says of routing.
struct Advertised {
    config: Option<RouterConfig>,
    cost_model: Option<CostModel>,
    /// In seconds.
    hold: Option<f64>,
    device_weights: Option<DeviceWeights>,
}

/// Where the mode came from, in a word and as it was spelled.
fn origin(settings: &Settings) -> (&'static str, String) {
    let mut source = &settings.get(Field::RouterMode).source;
    let from = source.to_string();
    if *source == Source::LoadAware {
        source = &settings.get(Field::LoadAware).source;
    }
    let word = match source {
        Source::Flag(_) => "flag",
        Source::Variable(_) => "environment",
        Source::File(_) => "file",
        Source::LoadAware | Source::OldName(_) | Source::Default => "default",
    };
    (word, from)
}
