//! `kvroute drive`: a trace's requests over HTTP, and what came of them.

mod client;
mod report;
pub(super) mod trace;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use http::Uri;
use tracing::warn;

use self::{
    client::{Client, Run},
    trace::TraceRequest,
};
use super::{
    Outcome,
    mock_fleet::{MODEL, MockFleet, MockFleetPlan},
    print,
    router::mock_router_config,
    shutdown::{self, Signals},
};
use crate::{
    config::{
        EngineArgs,
        flags::{self, RouterFlags},
    },
    fleet::{RouterConfig, base_url, without_user},
    prompt::Encoder,
    select::Mode,
};

/// Flags of `kvroute drive`.
#[derive(Args, Debug)]
pub(super) struct DriveCommand {
    /// Mooncake trace: JSON lines with timestamp, input_length, output_length and hash_ids
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Requests to send, from the start of the trace [default: all]
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// How many times as fast as recorded the requests are sent
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = rate)]
    rate: f64,
    /// Frontend to drive, http://HOST:PORT or https://HOST:PORT [default: one of our own, with mock engines]
    #[arg(long, value_name = "URL", conflicts_with_all = OF_OUR_OWN)]
    url: Option<String>,
    /// Model to ask for at that frontend
    #[arg(long, default_value = MODEL, value_name = "NAME", requires = "url")]
    model: String,
    /// Longest output in tokens, 1 or more [default: as recorded]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    max_output_tokens: Option<u32>,
    /// Number of mock engines, 1 to 256
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    engines: u16,
    /// Router modes to run one after another, each on fresh engines, in place of --router-mode
    #[arg(long, value_delimiter = ',', value_name = "MODE,MODE,...")]
    compare: Vec<String>,
    #[command(flatten)]
    router: RouterFlags<flags::MockFleet>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// What says how our own frontend and engines are, and would say nothing of the one at `--url`.
const OF_OUR_OWN: [&str; 9] = [
    "engines",
    "compare",
    "block_size",
    "engine_cache_tokens",
    "max_model_len",
    "prefill_tokens_per_second",
    "decode_tokens_per_second",
    "engine_times",
    "engine_speedup",
];

fn frontend_url(text: &str) -> Result<Uri, String> {
    base_url(text).ok_or_else(|| {
        format!("--url {}: http://HOST:PORT or https://HOST:PORT is needed", without_user(text))
    })
}

pub(super) fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && f64::is_finite(rate) => Ok(rate),
        _ => Err("a number above 0 is needed, such as 3 for three times as fast".to_owned()),
    }
}

impl DriveCommand {
    pub(super) async fn run(self) -> Outcome {
        let url = self.url.as_deref().map(frontend_url).transpose()?;
        let requests = trace::read(&self.trace, self.requests.unwrap_or(usize::MAX))?;
        let mut signals = shutdown::signals()?;
        let runs = if let Some(url) = url {
            if self.router.any() {
                warn!(
                    "with --url the router flags change nothing: that frontend has a configuration of its own"
                );
            }
            let vocabulary = Encoder::tiny()?.ordinary_tokens().to_vec();
            let client = Client::new(url, &self.model);
            vec![self.drive(client, "given", &requests, &vocabulary, &mut signals).await?]
        } else {
            self.drive_own(&requests, &mut signals).await?
        };
        print(&report::table(&runs))?;
        match runs.iter().find_map(Run::came_to_nothing) {
            Some(problem) => Err(problem.into()),
            None => Ok(()),
        }
    }

    /// Engines that are as much faster than recorded as the requests come, so that they are as busy.
    fn engine_args(&self) -> EngineArgs {
        let speedup = self.engine.engine_speedup.unwrap_or(self.rate);
        EngineArgs { engine_speedup: Some(speedup), ..self.engine.clone() }
    }

    async fn drive_own(
        &self,
        requests: &[TraceRequest],
        signals: &mut Signals,
    ) -> Result<Vec<Run>, Box<dyn std::error::Error + Send + Sync>> {
        let mut runs = Vec::new();
        for router in self.router_configs()? {
            let name = router.mode.name();
            let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let fleet = MockFleet::start(MockFleetPlan {
                engines: usize::from(self.engines),
                engine: self.engine_args(),
                router,
                public: local,
                admin: local,
                decision_log: None,
            })
            .await?;
            let url = format!("http://{}", fleet.frontend.public_addr()).parse()?;
            let vocabulary = fleet.encoder.ordinary_tokens().to_vec();
            let client = Client::new(url, MODEL);
            let run = self.drive(client, name, requests, &vocabulary, signals).await;
            fleet.frontend.stop().await;
            MockFleet::stop_engines(fleet.engines).await;
            runs.push(run?);
        }
        Ok(runs)
    }

    /// The configurations to run, all of them checked before the first is.
    fn router_configs(&self) -> Result<Vec<RouterConfig>, Box<dyn std::error::Error + Send + Sync>> {
        if self.compare.is_empty() {
            return Ok(vec![mock_router_config(&self.router)?]);
        }
        let mode = |text: &String| text.parse::<Mode>().map_err(|error| format!("--compare: {error}"));
        let modes = self.compare.iter().map(mode).collect::<Result<Vec<_>, _>>()?;
        modes
            .into_iter()
            .map(|mode| mock_router_config(&self.router.clone().with_mode(mode, "compare")))
            .collect()
    }

    async fn drive(
        &self,
        client: Client,
        name: &str,
        requests: &[TraceRequest],
        vocabulary: &[u32],
        signals: &mut Signals,
    ) -> Result<Run, Box<dyn std::error::Error + Send + Sync>> {
        client.wait_until_ready(Duration::from_secs(30)).await?;
        let max_output = self.max_output_tokens.unwrap_or(u32::MAX);
        let plan = requests.iter().map(|request| client::Planned {
            due: request.due(self.rate),
            tokens: request.tokens(vocabulary),
            max_tokens: request.output_length().clamp(1, max_output.max(1)),
        });
        tokio::select! {
            run = client.run(name, plan, requests.len()) => Ok(run),
            () = signals.wait() => Err("interrupted before the trace ended".into()),
        }
    }
}
