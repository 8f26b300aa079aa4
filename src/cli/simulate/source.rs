//! Where the requests of a simulation come from.

use std::path::Path;

use clap::ValueEnum;
use fastrand::Rng;

use crate::{
    cli::drive::trace::{self, TraceError, TraceRequest},
    hash::BlockHash,
    simulate::{Agents, Bursts, Groups, Job, Workload},
};

/// A workload that needs no file.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Made {
    Groups,
    Agents,
    LongAgents,
    Burst,
    ColdBurst,
    Het,
}

/// When requests of one time of a trace come.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrivals {
    Spread,
    Recorded,
}

/// Makes workloads.
#[derive(Debug)]
pub(super) enum Source {
    Trace { requests: Vec<TraceRequest>, arrivals: Arrivals },
    Made { made: Made, seconds: f64, engines: usize },
}

impl Source {
    /// The first `limit` requests of a trace, or all.
    pub(super) fn trace(path: &Path, limit: Option<usize>, arrivals: Arrivals) -> Result<Self, TraceError> {
        Ok(Self::Trace { requests: trace::read(path, limit.unwrap_or(usize::MAX))?, arrivals })
    }

    pub(super) const fn made(made: Made, seconds: f64, engines: usize) -> Self {
        Self::Made { made, seconds, engines }
    }

    /// The workload at `rate` times its own pace, as `seed` draws it.
    pub(super) fn workload(&self, rate: f64, seed: u64) -> Workload {
        let rng = &mut Rng::with_seed(seed);
        match self {
            Self::Trace { requests, arrivals } => replayed(requests, rate, *arrivals, rng),
            &Self::Made { made, seconds, engines } => {
                let rate = rate * engines as f64;
                match made {
                    Made::Groups => Groups::default().workload(1.5 * rate, seconds, rng),
                    Made::Agents | Made::Het => Agents::default().workload(0.1 * rate, seconds, rng),
                    Made::LongAgents => Agents::LONG.workload(0.025 * rate, seconds, rng),
                    Made::Burst => Bursts::default().among(&Agents::default(), 0.1 * rate, seconds, rng),
                    Made::ColdBurst => Bursts::COLD.workload(seconds, rng),
                }
            }
        }
    }
}

/// Tokens that one hash id of a trace stands for; here they are a page.
const TRACE_PAGE: u32 = 512;

/// The requests of a trace. Its clock is coarse, so those of one time are spread until the next if they are not taken as
/// they are.
fn replayed(requests: &[TraceRequest], rate: f64, arrivals: Arrivals, rng: &mut Rng) -> Workload {
    let due = |request: &TraceRequest| request.due(rate).as_secs_f64();
    let mut times: Vec<_> = requests.iter().map(due).collect();
    times.dedup();
    let jobs = requests.iter().map(|request| {
        let time = due(request);
        let next = times.get(times.partition_point(|&other| other <= time)).map_or(0.0, |next| next - time);
        let at = match arrivals {
            // After a pause requests come at once again.
            Arrivals::Spread => time + rng.f64() * next.min(3.0 / rate),
            Arrivals::Recorded => time,
        };
        let pages = request.input_length() / TRACE_PAGE as usize;
        let pages = request.hash_ids().iter().take(pages).map(|&id| BlockHash(id)).collect();
        (at, Job::new(request.input_length() as u64, u64::from(request.output_length()), pages))
    });
    Workload::recorded(TRACE_PAGE, jobs)
}
