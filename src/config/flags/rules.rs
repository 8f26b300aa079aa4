//! What flags demand of each other.

use super::{
    Field::{self, *},
    Settings, Value,
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
        RULES.iter().filter(|rule| (rule.broken)(settings))
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
    rule("router_prefill_load_model requires router mode kv", &[PrefillLoadModel, RouterMode], |given| {
        has_load_model(given) && !kv(given)
    }),
    rule(
        "ais_perf_config requires router_prefill_load_model=ais",
        &[AisPerfConfig, PrefillLoadModel],
        |given| given.is_set(AisPerfConfig) && !has_load_model(given),
    ),
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

fn kv(given: &Settings) -> bool {
    given.text(RouterMode) == Some("kv")
}

fn keyed(given: &Settings) -> bool {
    given.text(TrackingHash) == Some("keyed-xxh3-v1")
}

fn has_load_model(given: &Settings) -> bool {
    given.text(PrefillLoadModel) == Some("ais")
}
