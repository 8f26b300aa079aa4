//! What the admin listener tells of devices: in listings, in explain, and on the metrics page.

use std::fmt;

use serde_json::{Value, json};

use crate::{
    device::Terms,
    fleet::{FieldReport, FleetView, RankMember},
    metrics::{Labels, Page},
};

/// A rank's devices as they were last told of, and what they weigh; null without telemetry.
pub(super) fn devices_object(member: &RankMember, now_ms: u64) -> Value {
    let Some(state) = member.devices.state() else { return Value::Null };
    let weights = &member.cohort.config.tuning.device_weights;
    json!({
        "fenced": member.fenced(now_ms),
        "fault": state.devices.fault,
        "weight": weights.of(member.devices.condition(now_ms)).map(terms_object),
        "sample_age_ms": now_ms.saturating_sub(state.sampled_ms),
        "utilisation": state.devices.utilisation,
        "engine_seen": state.devices.engine_seen,
        "gpus": state.devices.gpus,
    })
}

/// How a weight came about. Shares, without a unit.
pub(super) fn terms_object(terms: Terms) -> Value {
    json!({
        "weight": terms.weight,
        "capability": terms.capability,
        "external_load": terms.external_load,
        "freshness": terms.freshness,
    })
}

/// A gauge of one rank; none if it has none.
type OfRank = fn(&RankMember, Option<Terms>, u64) -> Option<f64>;

/// What there is on every rank, and, below, on those with telemetry.
const GAUGES: [(&str, &str, OfRank); 6] = [
    ("worker_device_telemetry", "1 if something recent is known of its GPUs", |_, terms, _| {
        Some(f64::from(u8::from(terms.is_some_and(|terms| terms.freshness > 0.0))))
    }),
    (
        "worker_device_fenced",
        "1 if a GPU at fault, or an operator, keeps requests away",
        |member, _, now_ms| Some(f64::from(u8::from(member.fenced(now_ms)))),
    ),
    ("worker_device_weight", "What its GPUs weigh in a choice", |_, terms, _| {
        Some(terms.map_or(1.0, |terms| terms.weight))
    }),
    ("worker_device_capability", "Speed of its slowest GPU, of all that it could have", |_, terms, _| {
        Some(terms?.capability)
    }),
    ("worker_device_external_load", "Share of time that its busiest GPU works for others", |_, terms, _| {
        Some(terms?.external_load)
    }),
    ("worker_device_sample_age_seconds", "Age of what is known of its GPUs", |member, _, now_ms| {
        Some(member.devices.condition(now_ms)?.age_ms as f64 / 1000.0)
    }),
];

/// The gauges on devices.
pub(super) fn write(view: &FleetView, now_ms: u64, page: &mut Page<'_>) -> fmt::Result {
    let ranks: Vec<_> = view
        .members()
        .map(|(set, member)| {
            // Shown whether or not they have a say.
            let weights = &member.cohort.config.tuning.device_weights;
            let terms = member.devices.condition(now_ms).map(|condition| weights.terms(condition));
            (set, &**member, terms, [member.worker.id.to_string(), member.rank.to_string()])
        })
        .collect();
    for (name, help, value) in GAUGES {
        let rows: Vec<_> = ranks
            .iter()
            .filter_map(|(set, member, terms, [worker, rank])| {
                let labels = [("worker", worker.as_str()), ("rank", rank), ("model", &set.key.model)];
                Some((labels, value(member, *terms, now_ms)?))
            })
            .collect();
        page.gauges(name, help, rows.iter().map(|(labels, value)| (labels as Labels<'_>, *value)))?;
    }
    let states: Vec<_> = ranks.iter().map(|(_, member, ..)| member.devices.state()).collect();
    let mut readings = Vec::new();
    for ((set, _, _, [worker, rank]), state) in ranks.iter().zip(&states) {
        for gpu in state.iter().flat_map(|state| &state.devices.gpus) {
            for (reading, field) in &gpu.readings {
                let FieldReport::Value(value) = field else { continue };
                let labels = [
                    ("worker", worker.as_str()),
                    ("rank", rank),
                    ("model", &set.key.model),
                    ("gpu", &gpu.uuid),
                    ("reading", reading),
                ];
                readings.push((labels, *value));
            }
        }
    }
    page.gauges(
        "worker_gpu_reading",
        "What was read of each of its GPUs, in the unit of the reading's name",
        readings.iter().map(|(labels, value)| (labels as Labels<'_>, *value)),
    )
}
