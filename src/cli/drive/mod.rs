//! `kvroute drive`: a trace's requests over HTTP, and what came of them.

mod client;
mod report;
mod trace;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use http::Uri;

use self::{
    client::{Client, Run},
    trace::TraceRequest,
};
use super::{
    Outcome,
    mock_fleet::{MODEL, MockFleet, MockFleetPlan, default_router},
    shutdown::{self, Signals},
};
use crate::{
    config::{EngineArgs, RouterArgs},
    prompt::Encoder,
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
    /// How many times as fast as recorded they are sent
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = rate)]
    rate: f64,
    /// Drive this frontend instead of one of our own
    #[arg(long, value_name = "URL", conflicts_with = "compare")]
    url: Option<Uri>,
    /// The model to ask for, with --url
    #[arg(long, default_value = MODEL, value_name = "NAME", requires = "url")]
    model: String,
    /// Longest output, in tokens [default: as recorded]
    #[arg(long, value_name = "TOKENS")]
    max_output_tokens: Option<u32>,
    /// Number of mock engines
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    engines: u16,
    /// Router modes to run one after another, each on fresh engines
    #[arg(long, value_delimiter = ',', value_name = "MODE,MODE,...")]
    compare: Vec<String>,
    #[command(flatten)]
    router: RouterArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && f64::is_finite(rate) => Ok(rate),
        _ => Err("a number above 0 is needed, such as 3 for three times as fast".to_owned()),
    }
}

impl DriveCommand {
    pub(super) async fn run(self) -> Outcome {
        let requests = trace::read(&self.trace, self.requests.unwrap_or(usize::MAX))?;
        let mut signals = shutdown::signals()?;
        let runs = if let Some(url) = &self.url {
            let vocabulary = Encoder::tiny()?.ordinary_tokens().to_vec();
            let client = Client::new(url.clone(), &self.model);
            vec![self.drive(client, "given", &requests, &vocabulary, &mut signals).await?]
        } else {
            self.drive_own(&requests, &mut signals).await?
        };
        print!("{}", report::table(&runs));
        Ok(())
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
        let mut modes: Vec<Option<String>> = self.compare.iter().cloned().map(Some).collect();
        if modes.is_empty() {
            modes.push(self.router.router_mode.clone());
        }
        let mut runs = Vec::new();
        for mode in modes {
            let router = RouterArgs { router_mode: mode, ..self.router.clone() }.build(&default_router())?;
            let name = router.mode.name();
            let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let fleet = MockFleet::start(MockFleetPlan {
                engines: usize::from(self.engines),
                engine: self.engine_args(),
                router,
                public: local,
                admin: local,
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
