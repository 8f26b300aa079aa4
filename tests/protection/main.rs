//! Who gets in at the front door, over what, how much of it, and what is written of it.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

#[path = "../authority/mod.rs"]
mod authority;
#[path = "../process/mod.rs"]
mod process;
#[path = "../rig/mod.rs"]
mod rig;

mod access_log;
mod keys;
mod limits;
mod misconfigured;
mod names;
mod secrecy;
mod tls;
mod workers_over_tls;

use kvroute::{config::FrontendPlan, fleet::WorkerSpec, frontend::FrontendSettings, select::Mode};

use crate::rig::{Rig, engine_settings, plan, pools::Pools};

/// Keys of two clients.
const KEY: &str = "sk-aaaaaaaaaaaaaaaa";
const OTHER_KEY: &str = "sk-bbbbbbbbbbbbbbbb";

/// A frontend with mock engines whose settings are changed so.
async fn rig(engines: usize, change: impl FnOnce(FrontendSettings) -> FrontendSettings) -> Rig {
    let pools = Pools::of(vec![engine_settings(); engines]).await;
    pools.behind_plan(|workers| planned(workers, change)).await
}

fn planned(
    workers: Vec<WorkerSpec>,
    change: impl FnOnce(FrontendSettings) -> FrontendSettings,
) -> FrontendPlan {
    let plan = plan(Mode::Kv, workers);
    FrontendPlan { settings: change(plan.settings), ..plan }
}

/// What shows a key.
fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}
