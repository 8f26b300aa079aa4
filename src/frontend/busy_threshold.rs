//! `/busy_threshold`: reads and sets busy thresholds at run time.
//!
//! They hold for every worker set of a model until they are set anew, until the sets are gone, or until the frontend stops; the
//! configuration is as it was.

use std::sync::Arc;

use axum::{Json, body::Bytes};
use serde_json::{Value, json};

use super::{
    app::App,
    error::{ApiError, quoted},
    openai::Fields,
    route,
};
use crate::{
    fleet::{FleetView, LoadThresholdConfig, SetView},
    load::Thresholds,
};

const KEYS: [&str; 3] = [
    "active_decode_blocks_threshold",
    "active_prefill_tokens_threshold",
    "active_prefill_tokens_threshold_frac",
];

/// Those of every model.
pub(super) fn list(app: &App) -> Json<Value> {
    let view = app.fleet.view();
    let mut models: Vec<_> = view.sets.iter().map(|set| set.key.model.as_str()).collect();
    models.sort_unstable();
    models.dedup();
    let thresholds: Vec<_> = models.into_iter().filter_map(|model| object(&view, model)).collect();
    Json(json!({ "thresholds": thresholds }))
}

/// Sets those of one model, or only says what they are if none is given. A key that is left out is unset, as null unsets it.
///
/// # Errors
/// 400 for a body that is none, 404 for a model that nobody serves.
pub(super) fn set(app: &App, body: &Bytes) -> Result<Json<Value>, ApiError> {
    let fields = Fields::parse(body)?;
    let model = route::model(&fields)?;
    if let Some(unknown) = fields.names().find(|name| *name != "model" && !KEYS.contains(name)) {
        let accepted = KEYS.join(", ");
        return Err(ApiError::bad_field(
            unknown,
            format!("'{}' is no threshold; there are {accepted}", quoted(unknown)),
        ));
    }
    let config = LoadThresholdConfig {
        active_decode_blocks_threshold: fields.get(KEYS[0])?,
        active_prefill_tokens_threshold: fields.get(KEYS[1])?,
        active_prefill_tokens_threshold_frac: fields.get(KEYS[2])?,
    };
    if let Some(problem) = config.problem() {
        return Err(ApiError::bad_request(problem));
    }
    let view = app.fleet.view();
    if fields.names().any(|name| KEYS.contains(&name)) {
        for set in of_model(&view, &model) {
            set.selector.loads().set_thresholds(Some(config.into()));
        }
    }
    object(&view, &model).map(Json).ok_or_else(|| ApiError::model_not_found(&model, &view.models()))
}

fn of_model<'a>(view: &'a FleetView, model: &'a str) -> impl Iterator<Item = &'a Arc<SetView>> {
    view.sets.iter().filter(move |set| set.key.model == model)
}

fn object(view: &FleetView, model: &str) -> Option<Value> {
    let config = LoadThresholdConfig::from(holding(of_model(view, model).next()?));
    Some(json!({
        "model": model,
        KEYS[0]: config.active_decode_blocks_threshold,
        KEYS[1]: config.active_prefill_tokens_threshold,
        KEYS[2]: config.active_prefill_tokens_threshold_frac,
    }))
}

fn holding(set: &SetView) -> Thresholds {
    set.selector.loads().thresholds().unwrap_or(set.selector.tuning().busy)
}
