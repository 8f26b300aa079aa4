//! `kvroute up`: the main job on one machine, with nothing else installed.

use std::net::{Ipv4Addr, SocketAddr};

use clap::Args;

use super::{
    Outcome,
    local_gpus::LocalGpus,
    mock_fleet::{MODEL, MockFleet, MockFleetPlan},
    print,
    router::mock_router_config,
    shutdown,
};
use crate::{
    config::{
        EngineArgs, SamplingArgs,
        flags::{self, RouterFlags},
    },
    frontend::DecisionLogSettings,
};

/// Flags of `kvroute up`.
#[derive(Args, Debug)]
pub(super) struct UpCommand {
    /// Number of mock engines, 1 to 256
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    engines: u16,
    /// Port of this machine that clients connect to; 0 takes a free one
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    port: u16,
    /// Port of the admin listener; 0 takes a free one
    #[arg(long, default_value_t = 9091, value_name = "PORT")]
    admin_port: u16,
    /// Record decisions in FILE, as kvroute frontend does [default: nowhere]
    #[arg(long, value_name = "FILE[,sample=SHARE][,max=BYTES][,keep=N]")]
    decision_log: Option<DecisionLogSettings>,
    #[command(flatten)]
    router: RouterFlags<flags::MockFleet>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    devices: SamplingArgs,
}

impl UpCommand {
    pub(super) async fn run(self) -> Outcome {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut signals = shutdown::signals()?;
        let fleet = MockFleet::start(MockFleetPlan {
            engines: usize::from(self.engines),
            engine: self.engine,
            router: mock_router_config(&self.router)?,
            public: local(self.port),
            admin: local(self.admin_port),
            decision_log: self.decision_log,
        })
        .await?;
        let engines = u64::from(self.engines);
        let _gpus = LocalGpus::start(&self.devices.settings(), fleet.frontend.app().fleet(), engines);
        print(&welcome(&fleet))?;
        signals.wait().await;
        let MockFleet { frontend, engines, .. } = fleet;
        shutdown::drain(frontend, &mut signals).await?;
        MockFleet::stop_engines(engines).await;
        Ok(())
    }
}

/// Where everything listens, and what to try.
fn welcome(fleet: &MockFleet) -> String {
    let (public, admin) = (fleet.frontend.public_addr(), fleet.frontend.admin_addr());
    let mut text = format!("\nkvroute is up.\n\n  clients   http://{public}\n  admin     http://{admin}\n");
    for (number, engine) in fleet.engines.iter().enumerate() {
        let events = engine.events_endpoint().unwrap_or("none");
        text += &format!("  worker {}  http://{}  KV events {events}\n", number + 1, engine.http_addr());
    }
    let body = format!(
        r#"{{"model":"{MODEL}","max_tokens":16,"nvext":{{"extra_fields":["worker_id"]}},"messages":[{{"role":"system","content":"You answer questions about the fleet of engines in this building: which of them are busy, which of them hold which prefixes in their caches, and where the next request should go so that as little as possible is computed twice."}},{{"role":"user","content":"Where does a request go?"}}]}}"#
    );
    text += &format!(
        "\nAsk twice. The second answer's cached_tokens covers the prompt's full blocks, from the same worker:\n\n  \
         curl -s http://{public}/v1/chat/completions -H 'content-type: application/json' -d '{body}'\n\n\
         Ask why it goes there (nothing is sent):\n\n  \
         curl -s http://{admin}/v1/route/explain -H 'content-type: application/json' -d '{body}'\n\n\
         See the numbers:\n\n  curl -s http://{admin}/metrics\n\nCtrl-C stops everything.\n"
    );
    text
}
