//! What a routing policy would do: a fleet of engines, simulated, behind the very selector, loads and index that route live.
//!
//! A [`Workload`] makes requests, [`run`] sends them through a [`Selector`](crate::select::Selector) to engines that keep a
//! paged prefix cache and batch as vLLM does, and an [`Outcome`] has what came of each. Engines compute nothing: a
//! step takes the time that an [`EngineModel`] says. Events are discrete and everything is drawn from one seed, so a
//! run repeats exactly.
//!
//! What it leaves out: the network, tokenising, prefill and decode apart, slower tiers, failures, several routers. Its
//! engine model is arithmetic from data sheets, not a calibration. It answers which of two policies is better on a workload, and
//! roughly by how much; it does not forecast a fleet's latency.

mod cache;
mod engine;
mod model;
mod outcome;
mod policy;
mod run;
mod workload;

pub use model::EngineModel;
pub use outcome::{Figures, Outcome, Served};
pub use policy::{Policy, PolicyError};
pub use run::{Setting, run};
pub use workload::{Job, Turn, Workload};
