//! A frontend put together from a plan: tokenizers loaded, workers taken in, listeners opened.

use std::{path::PathBuf, sync::Arc};

use thiserror::Error;
use tracing::{info, warn};

use super::first_probe;
use crate::{
    config::FrontendPlan,
    fleet::{Fleet, RegistrationError, without_user},
    frontend::{AdmissionCheck, App, Frontend, Prompts, StartError, resume_from},
    ingest::{FleetStreams, IngestSettings},
    prompt::{Encoder, LoadError},
    select::Mode,
};

/// A plan that does not become a running frontend.
#[derive(Debug, Error)]
pub enum AssembleError {
    /// A tokenizer.
    #[error("--tokenizer {path} (model '{model}'): {error}")]
    Tokenizer {
        /// Which model's.
        model: String,
        /// Where it was looked for.
        path: PathBuf,
        /// What is wrong.
        error: Box<LoadError>,
    },
    /// A worker from a file or a flag.
    #[error("worker {url}: {error}")]
    Worker {
        /// Its URL as given, without a user.
        url: String,
        /// What is wrong.
        error: Box<RegistrationError>,
    },
    /// A listener.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Starts what `plan` says.
///
/// # Errors
/// See [`AssembleError`]; nothing is left running.
pub async fn assemble(plan: FrontendPlan) -> Result<Frontend, AssembleError> {
    let mut prompts = Prompts::new();
    for entry in &plan.models {
        let encoder = Encoder::load(&entry.tokenizer, entry.chat_template.as_deref()).map_err(|error| {
            AssembleError::Tokenizer {
                model: entry.name.clone(),
                path: entry.tokenizer.clone(),
                error: Box::new(error),
            }
        })?;
        prompts.insert(&entry.name, Arc::new(encoder));
    }
    assemble_with(plan, prompts).await
}

/// The same with tokenizers that are loaded already, in place of the plan's.
pub(super) async fn assemble_with(plan: FrontendPlan, prompts: Prompts) -> Result<Frontend, AssembleError> {
    let (memory_limit, replays) = (plan.settings.index_memory_limit, plan.settings.concurrent_replays);
    let streams = FleetStreams::new(IngestSettings { memory_limit, replays, ..IngestSettings::default() });
    // Before any rank is here: each looks for its part when it comes.
    if let Some(source) = &plan.settings.index_snapshot_from {
        resume_from(source, &plan.settings.upstream.tls, &streams).await;
    }
    let fleet = Fleet::new(plan.router.clone(), Box::new(streams.clone()));
    let fleet = fleet.on_config_mismatch(plan.settings.on_config_mismatch);
    let fleet = fleet.inhibiting_for(plan.settings.inhibition).slow_starting(plan.settings.slow_start);
    let fleet = fleet.serving(plan.settings.namespaces.clone());
    let fleet = fleet.enforcing_disagg(plan.settings.enforce_disagg);
    let strict = plan.settings.admission_check == AdmissionCheck::Strict;
    let fleet = Arc::new(fleet.withholding_unchecked(strict));
    for spec in plan.workers {
        let url = without_user(&spec.url).into_owned();
        match fleet.register(spec, None) {
            // One file may be for the frontends of several namespaces.
            Ok(_) | Err(RegistrationError::OtherNamespace { .. }) => {}
            Err(error) => return Err(AssembleError::Worker { url, error: Box::new(error) }),
        }
    }
    let upstream = plan.settings.upstream.clone();
    let app = App::new(plan.settings, Arc::clone(&fleet), prompts, streams);
    let frontend = Frontend::start(app).await?;
    info!(
        public = %frontend.public_addr(),
        admin = %frontend.admin_addr(),
        mode = plan.router.mode.name(),
        workers = fleet.view().members().count(),
        "frontend is up"
    );
    if plan.router.mode != Mode::Kv {
        info!(mode = plan.router.mode.name(), "prefixes do not decide; --router-mode kv routes by them");
    }
    if fleet.view().sets.is_empty() {
        warn!("no workers yet: give --worker, a file, or register them at POST /v1/workers");
    }
    first_probe::probe(&fleet.view(), &upstream);
    Ok(frontend)
}
