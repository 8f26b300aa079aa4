//! `POST /v1/route/overlaps`: of many prompts at once, what is cached where?
//!
//! For whoever wants to know what a trace would find, or how prefixes are spread over a fleet. Prompts are tokens, since a
//! question about thousands of them is no place to tokenise. Nothing is chosen and nothing is booked. This is the one place in
//! a frontend where prompts come in bulk, so it is the one that hashes them through [`accel`](crate::accel).

use std::{fmt, sync::Arc};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    app::App, asked_model::AskedModel, counters::Surface, error::ApiError, hints::Hints, openai::Fields,
};
use crate::{
    accel::{DeviceState, Where},
    fleet::RankMember,
    hash::{BatchHasher as _, BatchPrompt, HashedBatch, Identity, Prompt},
    index::{Overlap, Overlaps, Scratch},
    metrics::Page,
};

/// A question, read.
pub(super) struct Question {
    model: AskedModel,
    prompts: Vec<Vec<u32>>,
    salt: Option<String>,
}

impl Question {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 that names the field.
    pub(super) fn read(body: &Bytes) -> Result<Self, ApiError> {
        let fields = Fields::parse(body)?;
        let missing = |name, what| ApiError::bad_field(name, format!("'{name}' is missing; send {what}"));
        let model: Option<String> = fields.get("model")?;
        let prompts: Option<Vec<Vec<u32>>> = fields.get("prompts")?;
        Ok(Self {
            // Of the model's sets any will do: this is about caches, not about a route.
            model: AskedModel::at(
                Surface::Other,
                model.ok_or_else(|| missing("model", "the name of a model"))?,
            ),
            prompts: prompts
                .ok_or_else(|| missing("prompts", "a list of prompts, each a list of token ids"))?,
            salt: fields.get("cache_salt")?,
        })
    }
}

/// Answers a question. It takes as long as the prompts are many: not on a thread that serves requests.
///
/// # Errors
/// As for a request for that model.
pub(super) fn answer(app: &App, question: &Question) -> Result<Value, ApiError> {
    let (set, adapter) = app.set_for(&question.model, &Hints::default())?;
    let identity = Identity::new(adapter.as_deref(), question.salt.as_deref());
    let prompts: Vec<_> = question
        .prompts
        .iter()
        .map(|tokens| BatchPrompt { identity, prompt: Prompt { eagle: set.eagle, ..Prompt::text(tokens) } })
        .collect();
    let mut hashed = HashedBatch::new();
    let mut hasher = app.accelerator.hasher(set.block_size);
    hasher.hash(&prompts, &mut hashed).map_err(|error| ApiError::internal(error.to_string()))?;
    let mut lookup = Scratch::new();
    // Whom to credit before what they hold: see `StreamStatus::state`.
    let credited: Vec<_> =
        set.members.iter().filter(|member| member.status.state().credits_overlap()).collect();
    let found: Vec<_> = hashed
        .iter()
        .map(|hashes| {
            let overlaps = set.index.overlap(hashes, &mut lookup);
            json!({ "blocks": hashes.len(), "held_by": holders(&credited, &overlaps) })
        })
        .collect();
    Ok(json!({
        "model": set.key.model,
        "worker_set": set.key.to_string(),
        "block_size": set.block_size.get(),
        "prompts": found,
    }))
}

/// Who of those that are credited holds leading blocks, and how many.
fn holders(credited: &[&Arc<RankMember>], overlaps: &Overlaps<'_>) -> Vec<Value> {
    if overlaps.is_empty() {
        return Vec::new();
    }
    credited
        .iter()
        .filter_map(|member| {
            let Overlap { gpu, host, disk, external } = overlaps.of(member.slot);
            (gpu + host + disk + external > 0).then(|| {
                json!({
                    "worker_id": member.worker.id.0,
                    "dp_rank": member.rank.0,
                    "overlap_blocks": { "gpu": gpu, "host": host, "disk": disk, "external": external },
                })
            })
        })
        .collect()
}

/// Writes what was hashed in bulk, and how the device for it stands.
pub(super) fn write(app: &App, page: &mut Page<'_>) -> fmt::Result {
    let status = app.accelerator.status();
    let state = status.state();
    let states = DeviceState::ALL.map(|of| ([("state", of.name())], i64::from(of == state)));
    let states = states.iter().map(|(labels, value)| (&labels[..], *value));
    page.gauges("hash_device", "1 for the state of the GPU that hashes large batches of prompts", states)?;
    let places = Where::ALL.map(|place| ([("place", place.name())], place));
    let places = || places.iter().map(|(labels, place)| (&labels[..], *place));
    let counts = places().map(|(labels, place)| (labels, status.batches(place)));
    page.counters("hash_batches", "Batches of prompts hashed, by where", counts)?;
    let counts = places().map(|(labels, place)| (labels, status.blocks(place)));
    page.counters("hash_batch_blocks", "Blocks of those batches", counts)
}
