//! What going on with a session's slot is worth.

use crate::select::{AffinityMode, Demand, Row, Tuning};

/// The part of a prompt that a session's slot is held to spare, whatever is known to be cached there: a slot that does
/// not have the session wins if it is better by more than that.
const SPARED: f64 = 0.5;

/// Tokens of prefill by which `demand` is cheaper on the slot of `row`: half of its prompt where its session wishes for that
/// slot, weighed as prefill is, and 0 elsewhere. While prefill is not tracked they are tokens in use.
#[must_use]
pub fn session_bonus(row: &Row, demand: &Demand<'_>, tuning: &Tuning) -> f64 {
    if row.tied != Some(AffinityMode::Soft) {
        return 0.0;
    }
    let scale = if tuning.router_track_prefill_tokens { tuning.prefill_load_scale } else { 1.0 };
    scale * SPARED * demand.isl_tokens as f64
}
