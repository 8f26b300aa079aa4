//! Which fields set which weight of `select`.

use std::{num::NonZeroU32, time::Duration};

use super::{
    Field::{self, *},
    Group, Settings, TABLE, Value,
};
use crate::{
    device::Weights,
    load::Thresholds,
    select::{ApproximateCache, CostModel, SessionAffinity, Tuning},
};

/// What `tuning` says of a field; none if the field is not part of a tuning.
pub(super) fn value(tuning: &Tuning, field: Field) -> Option<Value> {
    Some(match field {
        RouterCostModel => Value::Text(tuning.cost_model.name().to_owned()),
        RouterHold => Value::Number(tuning.hold_seconds()),
        ActiveDecodeBlocksThreshold => number_or_unset(tuning.busy.active_decode_blocks),
        ActivePrefillTokensThreshold => tuning.busy.active_prefill_tokens.map_or(Value::Unset, Value::Whole),
        ActivePrefillTokensThresholdFrac => number_or_unset(tuning.busy.active_prefill_tokens_frac),
        QueueThreshold => number_or_unset(tuning.queue_threshold),
        QueuePolicy => Value::Text(tuning.queue_policy.name().to_owned()),
        OverlapScoreCredit => Value::Number(tuning.overlap_score_credit),
        OverlapScoreCreditDecay => Value::Number(tuning.overlap_score_credit_decay),
        PrefillLoadScale => Value::Number(tuning.prefill_load_scale),
        DecodeActiveRequestWeight => Value::Number(tuning.decode_active_request_weight),
        HostCacheHitWeight => Value::Number(tuning.host_cache_hit_weight),
        DiskCacheHitWeight => Value::Number(tuning.disk_cache_hit_weight),
        Temperature => Value::Number(tuning.router_temperature),
        TrackActiveBlocks => Value::Switch(tuning.router_track_active_blocks),
        TrackOutputBlocks => Value::Switch(tuning.router_track_output_blocks),
        AssumeKvReuse => Value::Switch(tuning.router_assume_kv_reuse),
        TrackPrefillTokens => Value::Switch(tuning.router_track_prefill_tokens),
        AcceleratorToCpuRatio => Value::Whole(tuning.accelerator_to_cpu_ratio.get().into()),
        ConditionalDisagg => Value::Switch(tuning.conditional_disagg.is_some()),
        KvEvents => Value::Switch(tuning.use_kv_events),
        TtlSecs => Value::Number(tuning.approximate_cache.ttl_secs),
        ApproximateCachePolicy => Value::Text(tuning.approximate_cache.policy.name().to_owned()),
        PredictedTtlSecs => tuning.router_predicted_ttl_secs.map_or(Value::Unset, Value::Number),
        SessionAffinityTtlSecs => tuning.session_affinity.ttl_secs.map_or(Value::Unset, Value::Whole),
        SessionAffinityMode => Value::Text(tuning.session_affinity.mode.name().to_owned()),
        DeviceWeights => Value::Switch(tuning.device_weights.enabled),
        DeviceWeightExternal => Value::Number(tuning.device_weights.external),
        DeviceWeightLeast => Value::Number(tuning.device_weights.least),
        DeviceWeightStaleSecs => Value::Number(tuning.device_weights.stale_secs),
        _ => return None,
    })
}

fn number_or_unset(number: Option<f64>) -> Value {
    number.map_or(Value::Unset, Value::Number)
}

/// The keys of the weights that are not at their default, as a card spells them.
pub(in crate::config) fn changed_weights(tuning: &Tuning) -> Vec<&'static str> {
    let weights = TABLE.iter().filter(|row| row.group == Group::Kv);
    let changed = weights.filter(|row| value(tuning, row.field) != value(&Tuning::default(), row.field));
    changed.filter_map(|row| row.key).collect()
}

/// The cost model that `settings` name; whatever else was read has no other name.
pub(super) fn cost_model(settings: &Settings) -> Option<CostModel> {
    settings.text(RouterCostModel)?.parse().ok()
}

/// The hold that `settings` name.
pub(super) fn hold(settings: &Settings) -> Option<Duration> {
    settings.number(RouterHold).and_then(Tuning::hold_of)
}

/// The busy thresholds that `settings` name. They hold in every mode.
pub(super) fn thresholds(settings: &Settings) -> Thresholds {
    Thresholds {
        active_decode_blocks: settings.number(ActiveDecodeBlocksThreshold),
        active_prefill_tokens: settings.whole(ActivePrefillTokensThreshold),
        active_prefill_tokens_frac: settings.number(ActivePrefillTokensThresholdFrac),
    }
}

/// The tuning that `settings` make; what no flag sets comes from `base`.
pub(super) fn tuning(settings: &Settings, base: Tuning) -> Tuning {
    let number = |field, default| settings.number(field).unwrap_or(default);
    Tuning {
        cost_model: cost_model(settings).unwrap_or(base.cost_model),
        overlap_score_credit: number(OverlapScoreCredit, base.overlap_score_credit),
        overlap_score_credit_decay: number(OverlapScoreCreditDecay, base.overlap_score_credit_decay),
        prefill_load_scale: number(PrefillLoadScale, base.prefill_load_scale),
        decode_active_request_weight: number(DecodeActiveRequestWeight, base.decode_active_request_weight),
        host_cache_hit_weight: number(HostCacheHitWeight, base.host_cache_hit_weight),
        disk_cache_hit_weight: number(DiskCacheHitWeight, base.disk_cache_hit_weight),
        router_temperature: number(Temperature, base.router_temperature),
        router_track_active_blocks: settings.switch(TrackActiveBlocks),
        router_track_output_blocks: settings.switch(TrackOutputBlocks),
        router_assume_kv_reuse: settings.switch(AssumeKvReuse),
        router_track_prefill_tokens: settings.switch(TrackPrefillTokens),
        // Made of two fields, by `conditional_disagg`.
        conditional_disagg: None,
        use_kv_events: settings.switch(KvEvents),
        approximate_cache: approximate_cache(settings),
        router_predicted_ttl_secs: settings.number(PredictedTtlSecs),
        session_affinity: session_affinity(settings),
        queue_threshold: settings.number(QueueThreshold),
        queue_policy: settings
            .text(QueuePolicy)
            .and_then(|name| name.parse().ok())
            .unwrap_or(base.queue_policy),
        hold: hold(settings),
        busy: thresholds(settings),
        accelerator_to_cpu_ratio: ratio(settings),
        device_weights: device_weights(settings),
    }
}

/// How it is guessed what is cached.
pub(super) fn approximate_cache(settings: &Settings) -> ApproximateCache {
    let base = ApproximateCache::default();
    let policy = settings.text(ApproximateCachePolicy).and_then(|policy| policy.parse().ok());
    ApproximateCache {
        ttl_secs: settings.number(TtlSecs).unwrap_or(base.ttl_secs),
        policy: policy.unwrap_or(base.policy),
    }
}

/// What ties sessions together, in every mode.
pub(super) fn session_affinity(settings: &Settings) -> SessionAffinity {
    let mode = settings.text(SessionAffinityMode).and_then(|mode| mode.parse().ok());
    SessionAffinity { ttl_secs: settings.whole(SessionAffinityTtlSecs), mode: mode.unwrap_or_default() }
}

/// The device weights that `settings` make.
pub(super) fn device_weights(settings: &Settings) -> Weights {
    let base = Weights::default();
    let number = |field, default| settings.number(field).unwrap_or(default);
    Weights {
        enabled: settings.switch(DeviceWeights),
        external: number(DeviceWeightExternal, base.external),
        least: number(DeviceWeightLeast, base.least),
        stale_secs: number(DeviceWeightStaleSecs, base.stale_secs),
    }
}

/// What one accelerator is worth in CPUs. It is looked at in every mode: sets may bring the one that needs it.
pub(super) fn ratio(settings: &Settings) -> NonZeroU32 {
    let ratio = settings.whole(AcceleratorToCpuRatio).and_then(|ratio| u32::try_from(ratio).ok());
    ratio.and_then(NonZeroU32::new).unwrap_or(Tuning::default().accelerator_to_cpu_ratio)
}
