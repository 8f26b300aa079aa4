//! What a routing policy would do: a fleet of engines, simulated, behind the very selector, loads and index that route live.
//!
//! A [`Workload`] makes requests, [`run`] sends them through a [`Selector`](crate::select::Selector) to engines that keep a
//! paged prefix cache and batch as vLLM does, and an [`Outcome`] has what came of each. Engines compute nothing: a
//! step takes the time that [`StepTimes`] say. Events are discrete and everything is drawn from one seed, so a
//! run repeats exactly. Engines may be unequal, slow down, die and come while it runs (a [`Setting`]'s changes), and their GPUs may
//! be read once a second, through the very steps that weigh and fence live ones.
//!
//! For comparison there are the rules of other routers ([`Peer`]) and a fleet that shares one cache ([`Rule::Pooled`]).
//!
//! What it leaves out: the network, tokenising, prefill and decode apart, slower tiers, events that get lost, several routers. Its
//! engine model is arithmetic from data sheets, not a calibration. It answers which of two policies is better on a workload, and
//! roughly by how much; it does not forecast a fleet's latency.

mod cache;
mod engine;
mod gpu;
mod model;
mod outcome;
mod peer;
mod policy;
mod run;
mod setting;
mod workload;

pub use model::{Batch, EngineModel, StepTimes};
pub use outcome::{Fence, Figures, Outcome, Served, Times};
pub use peer::Peer;
pub use policy::{Policy, PolicyError, Rule};
pub use run::run;
pub use setting::{Change, Happening, Setting};
pub use workload::{Agents, Bursts, Groups, Job, Turn, Workload};
