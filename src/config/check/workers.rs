//! The workers of a file, taken into a fleet that follows no stream: what it makes of them is what a start would.

use std::{collections::BTreeSet, sync::Arc};

use ahash::{AHashMap, AHashSet};
use tracing::subscriber::{NoSubscriber, with_default};

use super::{Document, PLAIN_WEIGHTS, Severity, counted, has_plain_weights, sets};
use crate::{
    config::{ConfigError, file::ConfigFile, flags::OfTheFrontend},
    fleet::{
        ConfigSource, Fingerprint, Fleet, IndexKey, OnConfigMismatch, PrefillPool, RegistrationError,
        RouterConfig, SetView, StreamSource, StreamStatus, Streams, without_user,
    },
    index::IndexWriter,
    slot::{Slot, WorkerId},
};

/// Says what is wrong with the workers; how many there are, and in how many sets.
pub(super) fn check(
    file: &ConfigFile,
    (router, flags): (&RouterConfig, &OfTheFrontend),
    models: &AHashSet<String>,
    document: &mut Document,
) -> String {
    let policy = file.frontend.on_config_mismatch.unwrap_or_default();
    // Nobody joins: what a fleet logs of joining would mislead.
    let fleet = with_default(NoSubscriber::default(), || {
        let fleet = Fleet::new(router.clone(), Box::new(Nowhere)).on_config_mismatch(policy);
        fleet.serving(flags.namespaces.clone())
    });
    let mut seen = AHashSet::new();
    let mut places = AHashMap::new();
    for (place, spec) in document.kept("worker").into_iter().zip(&file.worker) {
        if !seen.insert((&spec.url, &spec.model, spec.first_rank)) {
            let url = without_user(&spec.url).into_owned();
            let twice = ConfigError::WorkerTwice { url, model: spec.model.clone() };
            document.add(Severity::Error, &place, twice.to_string());
            continue;
        }
        match with_default(NoSubscriber::default(), || fleet.register(spec.clone(), None)) {
            Ok(id) => {
                sets::check_card(spec, &place, document);
                drop(places.insert(id, place));
            }
            Err(error @ RegistrationError::OtherNamespace { .. }) => {
                let text = format!("worker {} is left out: {error}", without_user(&spec.url));
                document.add(Severity::Warning, &place, text);
            }
            Err(error) => {
                let text = format!("worker {}: {error}", without_user(&spec.url));
                document.add(Severity::Error, &place, text);
            }
        }
    }
    let view = fleet.view();
    for set in &view.sets {
        check_set(set, policy, &places, document);
    }
    sets::check(&view, (router, flags), &places, document);
    check_tokenizers(view.sets.iter(), models, &places, document);
    format!("{} in {}", counted(file.worker.len(), "worker"), counted(view.sets.len(), "worker set"))
}

fn check_set(
    set: &SetView,
    policy: OnConfigMismatch,
    places: &AHashMap<WorkerId, String>,
    document: &mut Document,
) {
    let place = first_place(set, places, |_| true);
    if set.cohorts.len() > 1 {
        let first = set.cohorts[0].cohort.fingerprint;
        let others = first_place(set, places, |fingerprint| fingerprint != first);
        let (severity, outcome) = match policy {
            OnConfigMismatch::Stop => (
                Severity::Error,
                "the set would stop and take no requests until they agree; on_config_mismatch = \"keep-first\" lets \
                 those that came first serve"
                    .to_owned(),
            ),
            OnConfigMismatch::KeepFirst => {
                let waiting: BTreeSet<_> = set
                    .members
                    .iter()
                    .filter(|member| set.admitted != Some(member.cohort.fingerprint))
                    .map(|member| member.worker.url.to_string().trim_end_matches('/').to_owned())
                    .collect();
                let waiting: Vec<_> = waiting.into_iter().collect();
                (Severity::Warning, format!("{} would wait for the others to leave", waiting.join(", ")))
            }
        };
        let text = format!(
            "worker set {}: its workers' cards differ in {}: {outcome}",
            set.key,
            set.differing_fields().join(", ")
        );
        document.add(severity, &others, text);
    } else if set.source == ConfigSource::Card && has_plain_weights(&set.config) {
        document.add(
            Severity::Hint,
            &place,
            format!("worker set {}: router_mode kv {PLAIN_WEIGHTS}", set.key),
        );
    }
    let problem = match &set.prefill {
        PrefillPool::Pending(error) => error.to_string(),
        PrefillPool::Unavailable(ambiguity) => ambiguity.to_string(),
        PrefillPool::None | PrefillPool::Active(_) => return,
    };
    document.add(Severity::Error, &place, format!("worker set {}: {problem}", set.key));
}

/// The place of the first worker whose fingerprint counts.
pub(super) fn first_place(
    set: &SetView,
    places: &AHashMap<WorkerId, String>,
    counts: impl Fn(Fingerprint) -> bool,
) -> String {
    let members = set.members.iter().filter(|member| counts(member.cohort.fingerprint));
    let first = members.map(|member| member.worker.id).min();
    first.and_then(|id| places.get(&id)).cloned().unwrap_or_else(|| "worker".to_owned())
}

fn check_tokenizers<'a>(
    sets: impl Iterator<Item = &'a Arc<SetView>>,
    models: &AHashSet<String>,
    places: &AHashMap<WorkerId, String>,
    document: &mut Document,
) {
    let mut told = AHashSet::new();
    for set in sets {
        let model = &set.key.model;
        if models.contains("*") || models.contains(model) || !told.insert(model) {
            continue;
        }
        let place = first_place(set, places, |_| true);
        let text = format!(
            "model '{model}' has no tokenizer here: the engine's /tokenize is asked for each request; a [[model]] entry \
             saves that"
        );
        document.add(Severity::Hint, &place, text);
    }
}

/// Follows nothing.
struct Nowhere;

impl Streams for Nowhere {
    fn index_created(&self, _: &IndexKey, _: Vec<IndexWriter>) -> Result<(), String> {
        Ok(())
    }

    fn index_dropped(&self, _: &IndexKey) {}

    fn open(&self, _: &IndexKey, _: StreamSource, _: Arc<StreamStatus>) -> Result<(), String> {
        Ok(())
    }

    fn restarted(&self, _: Slot, _: u64) {}

    fn close(&self, _: &IndexKey, _: Slot) {}
}
