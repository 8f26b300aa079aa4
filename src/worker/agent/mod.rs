//! The agent beside an engine: registers it with every frontend, and keeps it registered for as long as it is well.
//!
//! One task watches the engine. It waits until the engine answers, asks it what nobody stated, and publishes the
//! worker's description; when the engine is gone it takes the description back. One task a frontend follows that: it
//! registers what is described, renews the lease, with news of the engine's GPUs if there are any, registers again where it is unknown, and deregisters what is gone.
//!
//! What must hold:
//! * Nothing is registered that could not be described: a value that is neither given nor told ends the agent, with
//!   the flag that states it. A block size of the wrong number would match no prefix, and nobody would be told.
//! * A frontend that is away holds nobody up, neither the others nor the end.
//! * Whoever is told to stop deregisters first, everywhere. Who cannot is forgotten with the lease.
//!
//! It starts and stops no engine, and sends no request but questions.

mod describe;
mod engine;
mod registration;

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderValue, Uri};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::{
    engine::{Engine, Identity, Unwell},
    registration::Registration,
};
use super::{
    backend::Backend,
    devices::{self, DeviceSettings},
    facts::{Facts, PublishKvEvents},
};
use crate::{
    fleet::{WorkerSpec, unix_ms},
    proxy::Caller,
};

pub use describe::DescribeError;

/// What an agent is started with.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// What kind of engine it is.
    pub backend: Backend,
    /// Where the agent reaches the engine, `http://HOST:PORT` or `https://HOST:PORT`.
    pub engine: Uri,
    /// Where frontends reach it.
    pub advertised: Uri,
    /// The frontends' admin listeners, `http://HOST:PORT` or `https://HOST:PORT`.
    pub frontends: Vec<Uri>,
    /// Sent to every frontend as `Authorization`.
    pub authorization: Option<HeaderValue>,
    /// How long a frontend keeps the worker without a heartbeat. One is sent every third of it.
    pub lease: Duration,
    /// What is stated of the engine; the rest it is asked for.
    pub facts: Facts,
    /// Whether it is announced as one that publishes KV events.
    pub publish_kv_events: PublishKvEvents,
    /// The worker as far as it does not depend on the engine: id, set, router configuration.
    pub spec: WorkerSpec,
    /// How the engine's GPUs are found and sampled.
    pub devices: DeviceSettings,
    /// How often it looks, and how long it waits.
    pub pace: Pace,
}

/// How often the agent looks, and how long it waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Between two looks at an engine that is well. Default 1 s.
    pub health_interval: Duration,
    /// Between two questions to an engine that is well whether it still is what it was: started when it was, with its KV events where
    /// they were, in blocks of that size. One that missed a look is asked at once. Default 10 s.
    pub identity_interval: Duration,
    /// Looks in a row that have to fail before the engine counts as gone. Default 3: one that is busy may miss one.
    pub health_failures: u32,
    /// What an answer may take. Default 5 s.
    pub patience: Duration,
    /// From the first failure to the next try; it doubles with each. Default 250 ms.
    pub first_retry: Duration,
    /// What it doubles to. Default 5 s.
    pub longest_retry: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            health_interval: Duration::from_secs(1),
            identity_interval: Duration::from_secs(10),
            health_failures: 3,
            patience: Duration::from_secs(5),
            first_retry: Duration::from_millis(250),
            longest_retry: Duration::from_secs(5),
        }
    }
}

impl Pace {
    /// The wait before a try, after so many failures.
    fn retry(self, failures: u32) -> Duration {
        self.first_retry.saturating_mul(1 << failures.min(16)).min(self.longest_retry)
    }
}

/// The description of an engine that is well; none while it is not.
pub(super) type Described = Option<Arc<WorkerSpec>>;

/// Whether a description is of the same worker, with other adapters at most.
pub(super) fn is_same(now: &WorkerSpec, before: &WorkerSpec) -> bool {
    let now = WorkerSpec { lora_adapters: before.lora_adapters.clone(), ..now.clone() };
    now == *before
}

/// Keeps an engine registered until `stop` is over, then deregisters it.
///
/// # Errors
/// The engine is well and cannot be described; it is deregistered then.
pub async fn run(settings: AgentSettings, stop: impl Future<Output = ()>) -> Result<(), DescribeError> {
    let (describe, described) = watch::channel(None);
    let ending = CancellationToken::new();
    let (news, _sampler) = devices::start(&settings, described.clone());
    let mut registrations = JoinSet::new();
    for frontend in &settings.frontends {
        let registration = Registration::new(frontend.clone(), &settings);
        registrations.spawn(registration.keep(described.clone(), news.clone(), ending.clone()));
    }
    let outcome = tokio::select! {
        biased;
        () = stop => Ok(()),
        error = watch_engine(&settings, &describe) => Err(error),
    };
    ending.cancel();
    while registrations.join_next().await.is_some() {}
    outcome
}

/// Describes the engine while it is well. It returns only when that cannot be done.
async fn watch_engine(settings: &AgentSettings, describe: &watch::Sender<Described>) -> DescribeError {
    let engine = Engine::new(settings.backend, settings.engine.clone(), Caller::new(settings.pace.patience));
    loop {
        wait_until_well(&engine, settings.pace).await;
        let told = match engine.tell().await {
            Ok(told) => told,
            // It went away in the middle of its answers.
            Err(Unwell(reason)) => {
                warn!(engine = %settings.engine, reason, "engine does not answer all questions; asking again");
                tokio::time::sleep(settings.pace.longest_retry).await;
                continue;
            }
        };
        let identity = told.identity();
        let spec = match describe::describe(settings, told) {
            Ok(spec) => Arc::new(stamped(spec)),
            Err(error) => return error,
        };
        describe.send_replace(Some(Arc::clone(&spec)));
        match wait_until_gone(&engine, settings.pace, (spec, identity), describe).await {
            Gone::Unwell(reason) => {
                warn!(engine = %settings.engine, reason, "engine is gone: deregistering until it is back");
            }
            Gone::Another(change) => {
                warn!(engine = %settings.engine, change, "engine is not the one that was registered: registering it anew");
            }
        }
        describe.send_replace(None);
    }
}

/// The description with the time of now, unless it states one: every frontend is told the same, whenever it hears of
/// the worker, so that all agree which configuration of a set came first.
fn stamped(mut spec: WorkerSpec) -> WorkerSpec {
    spec.registered_ms.get_or_insert_with(unix_ms);
    spec
}

async fn wait_until_well(engine: &Engine, pace: Pace) {
    let mut failures = 0;
    while let Err(Unwell(reason)) = engine.is_well().await {
        if failures == 0 {
            info!(engine = %engine.url, reason, "waiting for the engine");
        }
        tokio::time::sleep(pace.retry(failures)).await;
        failures += 1;
    }
    info!(engine = %engine.url, "engine is well");
}

/// Why an engine is not there any more.
enum Gone {
    Unwell(String),
    /// Another one answers in its place, and what is other about it.
    Another(String),
}

/// Why it counts as gone. Until then its description follows the adapters that it loads and unloads.
async fn wait_until_gone(
    engine: &Engine,
    pace: Pace,
    (mut spec, identity): (Arc<WorkerSpec>, Identity),
    describe: &watch::Sender<Described>,
) -> Gone {
    let (mut failures, mut identified) = (0, Instant::now());
    loop {
        tokio::time::sleep(pace.health_interval).await;
        match engine.is_well().await {
            Ok(()) => {
                if failures > 0 || identified.elapsed() >= pace.identity_interval {
                    identified = Instant::now();
                    let now = engine.identity().await;
                    if let Some(change) = now.and_then(|now| identity.change(&now)) {
                        return Gone::Another(change);
                    }
                }
                failures = 0;
                let other = engine.adapters().await.filter(|adapters| *adapters != spec.lora_adapters);
                let Some(lora_adapters) = other else { continue };
                let next = WorkerSpec { lora_adapters, ..(*spec).clone() };
                if let Err(error) = next.validate() {
                    warn!(engine = %engine.url, %error, "the engine's adapters cannot be announced");
                    continue;
                }
                info!(engine = %engine.url, adapters = next.lora_adapters.join(", "), "engine serves other adapters now");
                spec = Arc::new(next);
                describe.send_replace(Some(Arc::clone(&spec)));
            }
            Err(Unwell(reason)) => {
                failures += 1;
                if failures >= pace.health_failures {
                    return Gone::Unwell(reason);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_a_bound() {
        let pace = Pace::default();
        let waits: Vec<_> = (0..7).map(|failures| pace.retry(failures).as_millis()).collect();
        assert_eq!(waits, [250, 500, 1000, 2000, 4000, 5000, 5000]);
        assert_eq!(pace.retry(u32::MAX), pace.longest_retry);
    }
}
