//! What flags demand of each other.

use super::{
    Field::{self, *},
    Settings, Value, row,
};

/// A demand that two or more fields make together.
pub(super) struct Rule {
    /// The error, once it is broken.
    pub(super) text: &'static str,
    /// The fields that it is about, the one to blame first.
    pub(super) fields: &'static [Field],
    broken: fn(&Settings) -> bool,
}

impl Rule {
    /// The rules that `settings` break.
    pub(super) fn broken(settings: &Settings) -> impl Iterator<Item = &'static Self> {
        RULES.iter().chain(&LOAD_MODEL_RULES).filter(|rule| (rule.broken)(settings))
    }
}

const fn rule(text: &'static str, fields: &'static [Field], broken: fn(&Settings) -> bool) -> Rule {
    Rule { text, fields, broken }
}

static RULES: [Rule; 18] = [
    rule(
        "router_track_output_blocks requires router_track_active_blocks=true",
        &[TrackOutputBlocks, TrackActiveBlocks],
        |given| given.switch(TrackOutputBlocks) && !given.switch(TrackActiveBlocks),
    ),
    rule(
        "router_prefill_load_model requires router_track_prefill_tokens=true",
        &[PrefillLoadModel, TrackPrefillTokens],
        |given| has_load_model(given) && !given.switch(TrackPrefillTokens),
    ),
    rule(
        "router_hold requires router_track_prefill_tokens=true",
        &[RouterHold, TrackPrefillTokens],
        |given| given.number(RouterHold) > Some(0.0) && !given.switch(TrackPrefillTokens),
    ),
    rule("router_prefill_load_model requires router mode kv", &[PrefillLoadModel, RouterMode], |given| {
        has_load_model(given) && !kv(given)
    }),
    rule(
        "use_remote_indexer and serve_indexer are mutually exclusive",
        &[UseRemoteIndexer, ServeIndexer],
        |given| given.switch(UseRemoteIndexer) && given.switch(ServeIndexer),
    ),
    rule("serve_indexer requires router mode kv", &[ServeIndexer, RouterMode], |given| {
        given.switch(ServeIndexer) && !kv(given)
    }),
    rule(
        "enable_session_prefix_index requires use_kv_events=true",
        &[SessionPrefixIndex, KvEvents],
        |given| given.switch(SessionPrefixIndex) && !given.switch(KvEvents),
    ),
    rule(
        "enable_session_prefix_index and use_remote_indexer are mutually exclusive",
        &[SessionPrefixIndex, UseRemoteIndexer],
        |given| given.switch(SessionPrefixIndex) && given.switch(UseRemoteIndexer),
    ),
    rule("router_predicted_ttl_secs requires use_kv_events=true", &[PredictedTtlSecs, KvEvents], |given| {
        given.is_set(PredictedTtlSecs) && !given.switch(KvEvents)
    }),
    rule(
        "router_approximate_cache_policy=lru requires use_kv_events=false",
        &[ApproximateCachePolicy, KvEvents],
        |given| given.text(ApproximateCachePolicy) == Some("lru") && given.switch(KvEvents),
    ),
    rule("router_tracking_hash=keyed-xxh3-v1 requires router_tracking_key_file", &[TrackingHash], |given| {
        keyed(given) && !given.is_set(TrackingKeyFile)
    }),
    rule("router_tracking_hash=keyed-xxh3-v1 requires router_tracking_key_id", &[TrackingHash], |given| {
        keyed(given) && !given.is_set(TrackingKeyId)
    }),
    rule(
        "router_tracking_key_file requires router_tracking_hash=keyed-xxh3-v1",
        &[TrackingKeyFile, TrackingHash],
        |given| given.is_set(TrackingKeyFile) && !keyed(given),
    ),
    rule(
        "router_tracking_key_id requires router_tracking_hash=keyed-xxh3-v1",
        &[TrackingKeyId, TrackingHash],
        |given| given.is_set(TrackingKeyId) && !keyed(given),
    ),
    rule("router_tracking_key_id must have no spaces around it", &[TrackingKeyId], |given| {
        given.text(TrackingKeyId).is_some_and(|id| id.trim() != id)
    }),
    rule(
        "conditional_disagg_enabled requires router mode kv and use_kv_events=true",
        &[ConditionalDisagg, RouterMode, KvEvents],
        |given| given.switch(ConditionalDisagg) && !(kv(given) && given.switch(KvEvents)),
    ),
    rule(
        "router_conditional_disagg_config requires router_conditional_disagg",
        &[ConditionalDisaggConfig, ConditionalDisagg],
        |given| given.is_set(ConditionalDisaggConfig) && !given.switch(ConditionalDisagg),
    ),
    rule(
        "shared_cache_multiplier above 0 requires a shared_cache_type",
        &[SharedCacheMultiplier, SharedCacheType],
        |given| {
            given.number(SharedCacheMultiplier).is_some_and(|weight| weight > 0.0)
                && given.get(SharedCacheType).value == Value::Text("none".to_owned())
        },
    ),
];

/// What describes the prefill load model describes nothing without one.
macro_rules! of_the_load_model {
    ($($field:ident $name:literal)+) => {
        [$(rule(
            concat!($name, " requires router_prefill_load_model=ais"),
            &[$field, PrefillLoadModel],
            |given| given.get($field).value != row($field).default() && !has_load_model(given),
        )),+]
    };
}

static LOAD_MODEL_RULES: [Rule; 12] = of_the_load_model!(
    AisPerfConfig "ais_perf_config"
    AisBackend "ais_backend"
    AisSystem "ais_system"
    AisBackendVersion "ais_backend_version"
    AisTpSize "ais_tp_size"
    AisModelPath "ais_model_path"
    AisMoeTpSize "ais_moe_tp_size"
    AisMoeEpSize "ais_moe_ep_size"
    AisAttentionDpSize "ais_attention_dp_size"
    AisNextn "ais_nextn"
    AisNextnAcceptRates "ais_nextn_accept_rates"
    AisMtpSeed "ais_mtp_seed"
);

fn kv(given: &Settings) -> bool {
    given.text(RouterMode) == Some("kv")
}

fn keyed(given: &Settings) -> bool {
    given.text(TrackingHash) == Some("keyed-xxh3-v1")
}

fn has_load_model(given: &Settings) -> bool {
    given.text(PrefillLoadModel) == Some("ais")
}
