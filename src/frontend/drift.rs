//! Workers whose answers say that they are credited with what they do not have.

use std::fmt;

use super::{app::App, exposition::Ranks};
use crate::{
    event::Tier,
    fleet::{PredictionError, RankMember, StreamState},
    metrics::{Labels, Page},
    slot::WorkerId,
};

/// What is wrong with the predictions of a worker's cache, by its own answers, and where to look; `None` while they hold.
pub(super) fn drift(app: &App, id: WorkerId) -> Option<String> {
    let view = app.fleet.view();
    let mut ranks = view.ranks_of(id);
    ranks.find_map(|(_, member)| {
        let errors = Tier::ALL.into_iter().zip(member.predictions.errors());
        let (tier, error) = errors.into_iter().find(|(_, error)| error.drifts())?;
        Some(said(member, tier, error))
    })
}

/// Drops what the index holds of a worker, has its engine's buffer replayed, and compares anew.
pub(super) fn resync(app: &App, id: WorkerId) {
    let view = app.fleet.view();
    for (_, member) in view.ranks_of(id) {
        member.predictions.forget();
        app.streams.resync(member.slot);
    }
}

/// Compares anew, and nothing else.
pub(super) fn forget(app: &App, id: WorkerId) {
    let view = app.fleet.view();
    view.ranks_of(id).for_each(|(_, member)| member.predictions.forget());
}

/// What was predicted beside what came of it, by the slowest tier that a prediction counted on.
pub(super) fn write(ranks: &Ranks<'_>, page: &mut Page<'_>) -> fmt::Result {
    let rows =
        ranks.rows("tier", |member| Tier::ALL.map(Tier::name).into_iter().zip(member.predictions.errors()));
    let values = |of: fn(&PredictionError) -> f64| {
        rows.iter().map(move |(labels, error)| (labels as Labels<'_>, of(error)))
    };
    let help = "Answers compared with what was predicted of their caching, since that was last doubted";
    page.gauges("prediction_answers", help, values(|error| error.answers as f64))?;
    let help = "Share of prompt tokens predicted as cached that were not, over the last answers";
    page.gauges("prediction_missing_ratio", help, values(|error| error.missing))?;
    let help = "Share of prompt tokens cached that were not predicted, over the last answers";
    page.gauges("prediction_surplus_ratio", help, values(|error| error.surplus))?;
    ranks.gauge(
        page,
        "prediction_observed_ratio",
        "Share of the last answers that said how much of their prompt was cached, so that it could be compared",
        |_, member| member.predictions.observed_share(),
    )
}

fn said(member: &RankMember, tier: Tier, error: PredictionError) -> String {
    let share = error.missing * 100.0;
    let of_tier = if tier == Tier::Gpu { String::new() } else { format!(" in tier {}", tier.name()) };
    format!(
        "predictions: of the last answers' prompt tokens {share:.0} % were predicted to be cached{of_tier} and were not; {}",
        likely_cause(member, tier)
    )
}

fn likely_cause(member: &RankMember, tier: Tier) -> String {
    let held = member.cohort.index.blocks(member.slot)[Tier::Gpu.index()];
    let has = member.worker.spec.total_kv_blocks;
    let (state, totals) = (member.status.state(), member.status.totals());
    if state == StreamState::Approximate {
        "its cache is guessed from what it was sent, and forgets sooner: let it publish KV events, or guess for a shorter time"
            .to_owned()
    } else if let Some(has) = has.filter(|&has| held > has) {
        format!("the index holds {held} blocks of an engine that has {has}: it does not report all removals")
    } else if tier != Tier::Gpu {
        format!("the engine does not load blocks from tier {}", tier.name())
    } else if totals.gaps > 0 || state == StreamState::Incomplete {
        format!("event batches were missing {} times: see the stream's gaps and replays", totals.gaps)
    } else {
        "the engine evicts before requests come (a full cache), does not report removals, or shares its URL with another".to_owned()
    }
}
