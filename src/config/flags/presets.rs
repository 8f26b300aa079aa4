//! Flags that write other flags' values: `--load-aware` and the old weight.

use super::{
    Field::{self, *},
    Settings, Source, Value, Warning, row,
};

/// What `--load-aware` writes. Blocks in host memory and on disk are worth nothing either.
fn preset() -> [(Field, Value); 12] {
    [
        (OverlapScoreCredit, Value::Number(0.0)),
        (HostCacheHitWeight, Value::Number(0.0)),
        (DiskCacheHitWeight, Value::Number(0.0)),
        (KvEvents, Value::Switch(false)),
        (TrackActiveBlocks, Value::Switch(true)),
        (AssumeKvReuse, Value::Switch(false)),
        (TrackPrefillTokens, Value::Switch(true)),
        (UseRemoteIndexer, Value::Switch(false)),
        (ServeIndexer, Value::Switch(false)),
        (SharedCacheMultiplier, Value::Number(0.0)),
        (SharedCacheType, Value::Text("none".to_owned())),
        (PredictedTtlSecs, Value::Unset),
    ]
}

/// Writes mode `kv` and the preset over whatever was given.
pub(super) fn apply(settings: &mut Settings, warnings: &mut Vec<Warning>) {
    if !settings.switch(LoadAware) {
        return;
    }
    let mode = (RouterMode, Value::Text("kv".to_owned()));
    for (field, value) in [mode].into_iter().chain(preset()) {
        let old = settings.get(field);
        if old.value == value {
            continue;
        }
        if old.source.is_given() {
            let by = format!("--load-aware sets {} to {value}", name(field));
            warnings.push(Warning::Overruled { setting: old.clone(), by });
        }
        settings.put(field, value, Source::LoadAware);
    }
}

/// Writes what the old weight stands for: the prefill scale, and for 0 also the credit. A setting that counts more,
/// such as a flag over the old weight's variable, stays.
pub(super) fn apply_old_weight(settings: &mut Settings, warnings: &mut Vec<Warning>) {
    let Some(weight) = settings.number(OverlapScoreWeight) else { return };
    let old = settings.get(OverlapScoreWeight).clone();
    let mut write = |field, weight| {
        let setting = settings.get(field);
        if setting.source.rank() > old.source.rank() {
            let by = format!("{setting} sets {}", name(field));
            warnings.push(Warning::Overruled { setting: old.clone(), by });
            return;
        }
        if setting.source.is_given() {
            let by = format!("{old} sets {} to {}", name(field), Value::Number(weight));
            warnings.push(Warning::Overruled { setting: setting.clone(), by });
        }
        settings.put(field, Value::Number(weight), Source::OldName(OverlapScoreWeight));
    };
    write(PrefillLoadScale, weight);
    if weight == 0.0 {
        write(OverlapScoreCredit, 0.0);
    }
}

/// Weights of mode kv that others leave nothing to weigh.
pub(super) fn without_effect(settings: &Settings) -> Vec<Warning> {
    let by = |fields: &[Field], because: &str| -> Vec<_> {
        let given = fields.iter().map(|field| settings.get(*field)).filter(|setting| {
            let said = matches!(setting.source, Source::Flag(_) | Source::Variable(_) | Source::File(_));
            said && setting.value != row(setting.field).default()
        });
        given.map(|setting| Warning::Overruled { setting: setting.clone(), by: because.to_owned() }).collect()
    };
    let caches = [OverlapScoreCredit, OverlapScoreCreditDecay, HostCacheHitWeight, DiskCacheHitWeight];
    // A decode worker may be credited for what is cached there even so.
    let mut warnings = if !settings.switch(TrackPrefillTokens) && !settings.switch(ConditionalDisagg) {
        let fields = [&[PrefillLoadScale], &caches[..]].concat();
        by(&fields, "router_track_prefill_tokens is false, and without prefill there is nothing to save")
    } else if settings.number(PrefillLoadScale) == Some(0.0) {
        by(&caches, "prefill_load_scale is 0, so what is cached saves nothing")
    } else if settings.number(OverlapScoreCredit) == Some(0.0) {
        by(&[OverlapScoreCreditDecay], "overlap_score_credit is 0")
    } else {
        Vec::new()
    };
    if !settings.switch(TrackPrefillTokens) {
        warnings.extend(by(
            &[QueueThreshold, QueuePolicy],
            "router_track_prefill_tokens is false, so no worker has prefill waiting",
        ));
    } else if !settings.is_set(QueueThreshold) {
        warnings.extend(by(&[QueuePolicy], "no request waits without --router-queue-threshold"));
    }
    if !settings.switch(TrackActiveBlocks) {
        warnings
            .extend(by(&[AssumeKvReuse], "router_track_active_blocks is false, so no blocks are counted"));
    }
    warnings
}

/// What a session's worker means, where no session is remembered.
pub(super) fn mode_without_sessions(settings: &Settings) -> Option<Warning> {
    let mode = settings.get(SessionAffinityMode);
    if settings.is_set(SessionAffinityTtlSecs) || mode.value == row(mode.field).default() {
        return None;
    }
    let by = "session affinity is off without --router-session-affinity-ttl-secs".to_owned();
    Some(Warning::Overruled { setting: mode.clone(), by })
}

/// The namespace that a prefix leaves without a say.
pub(super) fn overruled_namespace(settings: &Settings) -> Option<Warning> {
    if !(settings.is_set(Namespace) && settings.is_set(NamespacePrefix)) {
        return None;
    }
    let by = format!("{} says which are served", settings.get(NamespacePrefix));
    Some(Warning::Overruled { setting: settings.get(Namespace).clone(), by })
}

fn name(field: Field) -> String {
    row(field).key.map_or_else(|| row(field).file_key(), str::to_owned)
}
