//! The table of router flags.
//!
//! Spellings, variables, defaults, ranges and keys are Dynamo's, so that existing manifests keep their meaning.
//! Where a row differs it says so: `--router-event-threads` stands at 1, because that is what an index gets, and
//! `--router-accelerator-to-cpu-ratio` is a flag of ours for what Dynamo has as a variable alone. The cost model, the hold and
//! the device weights are ours altogether; a card names them beside `router_config`, so that this stays Dynamo's.

use super::{
    Field::{self, *},
    Group::{Card, Devices, FrontendOnly, Kv, Router, Threshold},
    Range, Row,
};

/// Every router flag, in the order of [`Field`].
pub static TABLE: [Row; 68] = [
    Row::new(RouterMode, "router-mode", "DYN_ROUTER_MODE", Router)
        .key("router_mode")
        .choice("MODE", MODES, None)
        .unknown("unknown router mode '{value}'; expected one of {words}")
        .help("How a worker is chosen; kv goes by cached prefixes and load"),
    Row::new(RouterCostModel, "router-cost-model", "KVROUTE_ROUTER_COST_MODEL", Card)
        .key("router_cost_model")
        .choice("MODEL", &["time", "blocks"], Some("time"))
        .help(
            "What mode kv weighs: time in seconds, learned from first tokens, or blocks by Dynamo's formula",
        ),
    Row::new(RouterHold, "router-hold", "KVROUTE_ROUTER_HOLD", Card)
        .key("router_hold")
        .number("SECONDS", Range::UpToAnHour, Some(0.0))
        .help("How long mode kv may hold a request while its best worker computes other prefills; 0 holds none"),
    Row::new(
        SessionAffinityTtlSecs,
        "router-session-affinity-ttl-secs",
        "DYN_ROUTER_SESSION_AFFINITY_TTL_SECS",
        Router,
    )
    .key("session_affinity_ttl_secs")
    .whole("SECONDS", Range::UpToAYear, None)
    .help("Remembers where a session's requests go until it was idle for so long"),
    Row::new(SessionAffinityMode, "router-session-affinity-mode", "DYN_ROUTER_SESSION_AFFINITY_MODE", Router)
        .key("session_affinity_mode")
        .choice("MODE", &["hard", "soft"], Some("hard"))
        .unknown("invalid session affinity mode \"{value}\"; expected 'hard' or 'soft'")
        .help("Whether a session's worker is a must (hard) or a wish (soft)"),
    Row::new(
        ActiveDecodeBlocksThreshold,
        "active-decode-blocks-threshold",
        "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD",
        Threshold,
    )
    .key("active_decode_blocks_threshold")
    .number("SHARE", Range::Threshold, None)
    .nullable()
    .help("A rank with more than this share of its KV blocks in use counts as busy"),
    Row::new(
        ActivePrefillTokensThreshold,
        "active-prefill-tokens-threshold",
        "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD",
        Threshold,
    )
    .key("active_prefill_tokens_threshold")
    .whole("TOKENS", Range::AtLeastZero, None)
    .nullable()
    .help("A rank with more than so many tokens waiting for prefill counts as busy"),
    Row::new(
        ActivePrefillTokensThresholdFrac,
        "active-prefill-tokens-threshold-frac",
        "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC",
        Threshold,
    )
    .key("active_prefill_tokens_threshold_frac")
    .number("FACTOR", Range::NonNegative, None)
    .nullable()
    .help("The same, as a multiple of the tokens that the engine batches at most"),
    Row::new(MinInitialWorkers, "router-min-initial-workers", "DYN_ROUTER_MIN_INITIAL_WORKERS", FrontendOnly)
        .whole("N", Range::AtLeastZero, Some(0))
        .help("How many workers must be there before requests are served")
        .refused("a worker set serves as soon as it has a worker", "a wait at startup"),
    Row::new(EnforceDisagg, "enforce-disagg", "DYN_ENFORCE_DISAGG", FrontendOnly)
        .switch("no-enforce-disagg", false)
        .help("Whether requests to decode workers fail where there is no prefill worker"),
    Row::new(AdmissionControl, "admission-control", "DYN_ADMISSION_CONTROL", FrontendOnly)
        .choice("RULE", &["none", "token-capacity"], Some("none"))
        .help("Whether requests beyond the workers' token capacity are turned away")
        .refused(
            "no rule is derived from the workers' capacity",
            "such a rule; set --active-decode-blocks-threshold or --active-prefill-tokens-threshold-frac instead",
        ),
    Row::new(LoadAware, "load-aware", "DYN_ROUTER_LOAD_AWARE", Kv)
        .switch("no-load-aware", false)
        .help("Routes by load alone: implies mode kv, with cached blocks worth nothing"),
    Row::new(OverlapScoreCredit, "router-kv-overlap-score-credit", "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", Kv)
        .key("overlap_score_credit")
        .number("CREDIT", Range::Credit, Some(1.0))
        .help("What a block cached on the GPU is worth, in blocks of prefill; may exceed 1"),
    Row::new(
        OverlapScoreCreditDecay,
        "router-kv-overlap-score-credit-decay",
        "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",
        Kv,
    )
    .key("overlap_score_credit_decay")
    .number("DECAY", Range::NonNegative, Some(0.0))
    .help("How fast that credit fades on a worker with more prefill waiting than the others have"),
    Row::new(OverlapScoreWeight, "router-kv-overlap-score-weight", "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", Kv)
        .key("overlap_score_weight")
        .old_variable("DYN_OVERLAP_SCORE_WEIGHT")
        .number("WEIGHT", Range::NonNegative, None)
        .alias("kv-overlap-score-weight", None)
        .deprecated("--router-prefill-load-scale, or --router-kv-overlap-score-credit 0 for weight 0")
        .help("Old name of --router-prefill-load-scale; 0 also sets the credit to 0"),
    Row::new(PrefillLoadScale, "router-prefill-load-scale", "DYN_ROUTER_PREFILL_LOAD_SCALE", Kv)
        .key("prefill_load_scale")
        .number("SCALE", Range::NonNegative, Some(1.0))
        .help("Weight of prefill against decode blocks"),
    Row::new(
        DecodeActiveRequestWeight,
        "router-decode-active-request-weight",
        "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT",
        Kv,
    )
    .key("decode_active_request_weight")
    .number("WEIGHT", Range::NonNegative, Some(0.0))
    .help("Cost of each request in flight, in blocks"),
    Row::new(HostCacheHitWeight, "router-host-cache-hit-weight", "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", Kv)
        .key("host_cache_hit_weight")
        .number("WEIGHT", Range::Share, Some(0.75))
        .help("What a block in host memory is worth"),
    Row::new(DiskCacheHitWeight, "router-disk-cache-hit-weight", "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT", Kv)
        .key("disk_cache_hit_weight")
        .number("WEIGHT", Range::Share, Some(0.25))
        .help("What a block on disk or in an external store is worth"),
    Row::new(Temperature, "router-temperature", "DYN_ROUTER_TEMPERATURE", Kv)
        .key("router_temperature")
        .number("T", Range::NonNegative, Some(0.0))
        .help("0 takes the cheapest worker; above 0, costlier ones get a share too"),
    Row::new(KvEvents, "router-kv-events", "DYN_ROUTER_USE_KV_EVENTS", Kv)
        .key("use_kv_events")
        .old_variable("DYN_USE_KV_EVENTS")
        .switch("no-router-kv-events", true)
        .alias("kv-events", Some("no-kv-events"))
        .help(
            "Whether the router follows the engines' KV events; else it guesses what is cached from what it sent \
             (workers publish them in any case)",
        ),
    Row::new(ReplicaSync, "router-replica-sync", "DYN_ROUTER_REPLICA_SYNC", Kv)
        .key("router_replica_sync")
        .switch("no-router-replica-sync", false)
        .help("Whether frontends tell each other what they have in flight")
        .refused("each frontend knows its own requests only", "an exchange of load between frontends"),
    Row::new(TrackActiveBlocks, "router-track-active-blocks", "DYN_ROUTER_TRACK_ACTIVE_BLOCKS", Kv)
        .key("router_track_active_blocks")
        .switch("no-router-track-active-blocks", true)
        .alias("track-active-blocks", Some("no-track-active-blocks"))
        .help("Whether blocks in use count as load"),
    Row::new(TrackOutputBlocks, "router-track-output-blocks", "DYN_ROUTER_TRACK_OUTPUT_BLOCKS", Kv)
        .key("router_track_output_blocks")
        .switch("no-router-track-output-blocks", false)
        .alias("track-output-blocks", Some("no-track-output-blocks"))
        .help("Whether the blocks that output fills count too"),
    Row::new(AssumeKvReuse, "router-assume-kv-reuse", "DYN_ROUTER_ASSUME_KV_REUSE", Kv)
        .key("router_assume_kv_reuse")
        .switch("no-router-assume-kv-reuse", true)
        .alias("assume-kv-reuse", Some("no-assume-kv-reuse"))
        .help("Whether requests on one worker share the blocks they have in common"),
    Row::new(TrackPrefillTokens, "router-track-prefill-tokens", "DYN_ROUTER_TRACK_PREFILL_TOKENS", Kv)
        .key("router_track_prefill_tokens")
        .switch("no-router-track-prefill-tokens", true)
        .help("Whether prompt tokens waiting for prefill count as load"),
    Row::new(TrackingHash, "router-tracking-hash", "DYN_ROUTER_TRACKING_HASH", Kv)
        .key("router_tracking_hash")
        .choice("HASH", &["public-xxh3-v1", "keyed-xxh3-v1"], Some("public-xxh3-v1"))
        .help("What block hashes of requests in flight are made with")
        .refused("block hashes are made without a key", "keyed block hashes"),
    Row::new(TrackingKeyFile, "router-tracking-key-file", "DYN_ROUTER_TRACKING_KEY_FILE", Kv)
        .key("router_tracking_key_file")
        .text("FILE")
        .help("File with the 32 bytes of that key")
        .refused("block hashes are made without a key", "keyed block hashes"),
    Row::new(TrackingKeyId, "router-tracking-key-id", "DYN_ROUTER_TRACKING_KEY_ID", Kv)
        .key("router_tracking_key_id")
        .text("NAME")
        .help("Name of that key, the same on all frontends")
        .refused("block hashes are made without a key", "keyed block hashes"),
    Row::new(PrefillLoadModel, "router-prefill-load-model", "DYN_ROUTER_PREFILL_LOAD_MODEL", Kv)
        .key("router_prefill_load_model")
        .choice("MODEL", &["none", "ais"], Some("none"))
        .old_word("aic", "ais")
        .help("What estimates how far a running prefill has come")
        .refused(NO_LOAD_MODEL, LOAD_MODEL),
    Row::new(TtlSecs, "router-ttl-secs", "DYN_ROUTER_TTL_SECS", Kv)
        .key("router_ttl_secs")
        .number("SECONDS", Range::AtLeastZero, Some(120.0))
        .help("How long a block is held to be cached on a worker without KV events, from when it was last sent there"),
    Row::new(
        ApproximateCachePolicy,
        "router-approximate-cache-policy",
        "DYN_ROUTER_APPROXIMATE_CACHE_POLICY",
        Kv,
    )
    .choice("POLICY", &["ttl", "lru"], Some("ttl"))
    .help(
        "How blocks are held to leave the cache, without KV events: after a time (ttl), or for others (lru, where workers \
         say how many fit). The frontend's say in all sets: no card carries it, and a worker refuses lru",
    ),
    Row::new(QueueThreshold, "router-queue-threshold", "DYN_ROUTER_QUEUE_THRESHOLD", Kv)
        .key("router_queue_threshold")
        .number("FACTOR", Range::AtLeastZero, None)
        .nullable()
        .help("Requests wait while every worker has more prefill waiting than so many full batches"),
    Row::new(PolicyConfig, "router-policy-config", "DYN_ROUTER_POLICY_CONFIG", Kv)
        .key("router_policy_config")
        .text("FILE")
        .help("YAML file with routing policies")
        .refused("there is one policy, set by flags", "policies from a file"),
    Row::new(ConditionalDisagg, "router-conditional-disagg", "DYN_ROUTER_CONDITIONAL_DISAGG", Kv)
        .key("conditional_disagg_enabled")
        .switch("no-router-conditional-disagg", false)
        .help("Whether a decode worker that has most of a prompt cached computes the rest itself, beside prefill workers"),
    Row::new(
        ConditionalDisaggConfig,
        "router-conditional-disagg-config",
        "DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG",
        Kv,
    )
    .key("conditional_disagg_policy")
    .text("JSON")
    .help(
        "When it does: policy (isl_bounding, prefill_load, isl_or_load), eff_isl_threshold, eff_isl_ratio_threshold, \
         prefill_busy_threshold, decode_busy_threshold",
    ),
    Row::new(PrefillPolicy, "router-prefill-policy", "DYN_ROUTER_PREFILL_POLICY", Kv)
        .text("NAME")
        .help("Policy that chooses prefill workers; default is the built-in one")
        .refused("there is one policy, set by flags", "policies from a file")
        .also(&["default"]),
    Row::new(DecodePolicy, "router-decode-policy", "DYN_ROUTER_DECODE_POLICY", Kv)
        .text("NAME")
        .help("Policy that chooses decode workers; default is the built-in one")
        .refused("there is one policy, set by flags", "policies from a file")
        .also(&["default"]),
    Row::new(EventThreads, "router-event-threads", "DYN_ROUTER_EVENT_THREADS", Kv)
        .key("router_event_threads")
        .whole("N", Range::AtLeastOne, Some(1))
        .help("How many threads apply KV events to an index; Dynamo's default of 4 is not taken over")
        .refused("one thread applies the events of an index", "an index in several shards"),
    Row::new(QueuePolicy, "router-queue-policy", "DYN_ROUTER_QUEUE_POLICY", Kv)
        .key("router_queue_policy")
        .choice("POLICY", &["fcfs", "wspt"], Some("fcfs"))
        .help("Which of the requests that wait goes first: who came first, or who has least to compute; a card may also say lcfs"),
    Row::new(UseRemoteIndexer, "use-remote-indexer", "DYN_USE_REMOTE_INDEXER", Kv)
        .key("use_remote_indexer")
        .switch("no-use-remote-indexer", false)
        .help("Whether prefixes are looked up in an index of another process")
        .refused("each frontend has its own index", "an index service"),
    Row::new(SessionPrefixIndex, "enable-session-prefix-index", "DYN_ENABLE_SESSION_PREFIX_INDEX", Kv)
        .key("enable_session_prefix_index")
        .switch("no-enable-session-prefix-index", false)
        .help("Whether prefixes are also remembered by session")
        .refused("prefixes are known by their blocks alone", "an index by session"),
    Row::new(SharedCacheMultiplier, "shared-cache-multiplier", "DYN_SHARED_CACHE_MULTIPLIER", Kv)
        .key("shared_cache_multiplier")
        .number("WEIGHT", Range::Share, None)
        .help("What a block in a cache shared by all workers is worth")
        .refused("a cache shared by all workers is not looked into", "a client of the shared cache")
        .also(&["0"]),
    Row::new(SharedCacheType, "shared-cache-type", "DYN_SHARED_CACHE_TYPE", Kv)
        .key("shared_cache_type")
        .choice("TYPE", &["none", "hicache"], Some("none"))
        .help("The cache that all workers share")
        .refused("a cache shared by all workers is not looked into", "a client of the shared cache"),
    Row::new(PredictedTtlSecs, "router-predicted-ttl-secs", "DYN_ROUTER_PREDICTED_TTL_SECS", Kv)
        .key("router_predicted_ttl_secs")
        .number("SECONDS", Range::AtLeastZero, None)
        .help("How long a routed prompt is held to be cached, whatever KV events say; unset: while its request is in flight"),
    Row::new(ServeIndexer, "serve-indexer", "DYN_SERVE_INDEXER", FrontendOnly)
        .switch("no-serve-indexer", false)
        .help("Whether this frontend's index answers other processes")
        .refused("each frontend has its own index", "an index service"),
    Row::new(AisPerfConfig, "ais-perf-config", "", FrontendOnly)
        .no_variable()
        .text("FILE")
        .help("What the prefill load model ais was measured with")
        .refused(NO_LOAD_MODEL, LOAD_MODEL),
    Row::new(KvCacheBlockSize, "kv-cache-block-size", "DYN_KV_CACHE_BLOCK_SIZE", FrontendOnly)
        .whole("TOKENS", Range::AtLeastOne, None)
        .help("Tokens per block, in place of what workers say")
        .refused("each worker registers with its engine's block size", "a block size of the frontend's own"),
    Row::new(MigrationLimit, "migration-limit", "DYN_MIGRATION_LIMIT", FrontendOnly)
        .whole("N", Range::AtLeastZero, Some(0))
        .help("How often a request whose worker fails midway goes on at another")
        .refused(
            "an answer that has begun is not moved",
            "replay of the output so far; --retries covers workers that cannot be reached",
        ),
    Row::new(MigrationMaxSeqLen, "migration-max-seq-len", "DYN_MIGRATION_MAX_SEQ_LEN", FrontendOnly)
        .whole("TOKENS", Range::AtLeastZero, None)
        .help("Longest request that goes on at another worker")
        .refused("an answer that has begun is not moved", "replay of the output so far"),
    Row::new(Namespace, "namespace", "DYN_NAMESPACE", FrontendOnly)
        .text("NAME")
        .workers_have_their_own()
        .help("Serves the workers of this namespace only; those of others are refused and counted"),
    Row::new(NamespacePrefix, "namespace-prefix", "DYN_NAMESPACE_PREFIX", FrontendOnly)
        .text("PREFIX")
        .help("Serves the workers of all namespaces that begin so; it wins over --namespace"),
    // Dynamo has the variable alone, and reads it anew for every choice.
    Row::new(
        AcceleratorToCpuRatio,
        "router-accelerator-to-cpu-ratio",
        "DYN_ENCODER_CUDA_TO_CPU_RATIO",
        FrontendOnly,
    )
    .whole("N", Range::Ratio, Some(8))
    .help(
        "How many CPU workers one accelerator is worth, for mode device-aware-weighted; of all worker sets",
    ),
    Row::new(AisBackend, "ais-backend", "DYN_AIS_BACKEND", FrontendOnly)
        .text("NAME")
        .alias("aic-backend", None)
        .help("The engine that the prefill load model ais is for")
        .refused(NO_LOAD_MODEL, LOAD_MODEL),
    Row::new(AisSystem, "ais-system", "DYN_AIS_SYSTEM", FrontendOnly)
        .text("NAME")
        .alias("aic-system", None)
        .help("The hardware that it is for")
        .refused(NO_LOAD_MODEL, LOAD_MODEL),
    Row::new(AisBackendVersion, "ais-backend-version", "DYN_AIS_BACKEND_VERSION", FrontendOnly)
        .text("VERSION")
        .alias("aic-backend-version", None)
        .help("That engine's version")
        .refused(NO_LOAD_MODEL, LOAD_MODEL),
    Row::new(AisTpSize, "ais-tp-size", "DYN_AIS_TP_SIZE", FrontendOnly)
        .whole("N", Range::AtLeastOne, None)
        .alias("aic-tp-size", None)
        .help("Its tensor-parallel size")
        .refused(NO_LOAD_MODEL, LOAD_MODEL),
    Row::new(AisModelPath, "ais-model-path", "DYN_AIS_MODEL_PATH", FrontendOnly)
        .text("PATH")
        .alias("aic-model-path", None)
        .help("The model that it is for")
        .refused(NO_LOAD_MODEL, LOAD_MODEL),
    Row::new(AisMoeTpSize, "ais-moe-tp-size", "DYN_AIS_MOE_TP_SIZE", FrontendOnly)
        .whole("N", Range::AtLeastOne, None)
        .alias("aic-moe-tp-size", None)
        .help("Its tensor-parallel size within experts")
        .refused(NO_LOAD_MODEL, LOAD_MODEL),
    Row::new(AisMoeEpSize, "ais-moe-ep-size", "DYN_AIS_MOE_EP_SIZE", FrontendOnly)
        .whole("N", Range::AtLeastOne, None)
        .alias("aic-moe-ep-size", None)
        .help("Its expert-parallel size")
        .refused(NO_LOAD_MODEL, LOAD_MODEL),
    Row::new(AisAttentionDpSize, "ais-attention-dp-size", "DYN_AIS_ATTENTION_DP_SIZE", FrontendOnly)
        .whole("N", Range::AtLeastOne, None)
        .alias("aic-attention-dp-size", None)
        .help("Its data-parallel size in attention")
        .refused(NO_LOAD_MODEL, LOAD_MODEL),
    Row::new(AisNextn, "ais-nextn", "DYN_AIS_NEXTN", FrontendOnly)
        .whole("N", Range::AtLeastZero, None)
        .alias("aic-nextn", None)
        .help("How many tokens it speculates ahead")
        .refused(NO_LOAD_MODEL, LOAD_MODEL),
    Row::new(AisNextnAcceptRates, "ais-nextn-accept-rates", "", FrontendOnly)
        .no_variable()
        .text("RATES")
        .alias("aic-nextn-accept-rates", None)
        .help("How many of those are accepted, at each place")
        .refused(NO_LOAD_MODEL, LOAD_MODEL),
    Row::new(AisMtpSeed, "ais-mtp-seed", "DYN_AIS_MTP_SEED", FrontendOnly)
        .whole("SEED", Range::AtLeastZero, Some(42))
        .alias("aic-mtp-seed", None)
        .help("Seed of its random draws")
        .refused(NO_LOAD_MODEL, LOAD_MODEL),
    Row::new(DeviceWeights, "device-weights", "KVROUTE_DEVICE_WEIGHTS", Devices)
        .key("enabled")
        .switch("no-device-weights", true)
        .help("Whether GPU telemetry has a say: in costs, in shares, and by fencing"),
    Row::new(DeviceWeightExternal, "device-weight-external", "KVROUTE_DEVICE_WEIGHT_EXTERNAL", Devices)
        .key("external")
        .number("SHARE", Range::Share, Some(0.75))
        .help("The most that the load of others on a GPU may take from its weight"),
    Row::new(DeviceWeightLeast, "device-weight-least", "KVROUTE_DEVICE_WEIGHT_LEAST", Devices)
        .key("least")
        .number("WEIGHT", Range::Weight, Some(0.1))
        .help("The least that a GPU can weigh"),
    Row::new(DeviceWeightStaleSecs, "device-weight-stale-secs", "KVROUTE_DEVICE_WEIGHT_STALE_SECS", Devices)
        .key("stale_secs")
        .number("SECONDS", Range::AtLeastOne, Some(30.0))
        .help("From which age on telemetry counts for nothing; it counts in full until a third of that"),
];

const NO_LOAD_MODEL: &str = "cost model time learns prefill times itself; under blocks a prefill counts in full until \
                             its first token";
const LOAD_MODEL: &str = "a model of prefill times";

/// The modes, as [`Mode::ALL`](crate::select::Mode::ALL) names them.
const MODES: &[&str] =
    &["round-robin", "random", "power-of-two", "kv", "direct", "least-loaded", "device-aware-weighted"];

/// Variables of a frontend without a flag, and why they are refused: set and ignored, they would mislead.
pub(super) const REFUSED_VARIABLES: [(&str, &str); 1] = [(
    "DYN_ROUTER_WORKER_SELECTION_POLICY",
    "there is one policy, set by flags; it needs policies from a file. Unset it",
)];

/// The row of a field.
#[must_use]
pub fn row(field: Field) -> &'static Row {
    // The table is in the order of the fields; a test holds it to that.
    &TABLE[field as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::{Mode, Tuning};

    #[test]
    fn the_rows_are_in_the_order_of_the_fields() {
        for (number, row) in TABLE.iter().enumerate() {
            assert_eq!(row.field as usize, number, "{}", row.flag);
        }
    }

    #[test]
    fn no_spelling_variable_or_key_is_used_twice() {
        let unique = |mut names: Vec<&str>| {
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{names:?}");
        };
        unique(TABLE.iter().flat_map(Row::spellings).collect());
        unique(TABLE.iter().flat_map(Row::variables).collect());
        unique(TABLE.iter().filter_map(|row| row.key).collect());
    }

    #[test]
    fn every_negated_form_is_no_before_the_flag() {
        for row in &TABLE {
            if let Some(negated) = row.negated {
                assert_eq!(negated, format!("no-{}", row.flag));
            }
            let Some(alias) = row.alias else { continue };
            assert_eq!(alias.negated.is_some(), row.negated.is_some(), "{}", alias.flag);
            if let Some(negated) = alias.negated {
                assert_eq!(negated, format!("no-{}", alias.flag));
            }
        }
    }

    #[test]
    fn the_modes_are_those_of_select() {
        let mut modes = MODES.to_vec();
        modes.sort_unstable();
        assert_eq!(modes, Mode::ALL.map(Mode::name));
    }

    #[test]
    fn defaults_are_those_of_the_tuning() {
        for row in &TABLE {
            if let Some(value) = super::super::tuning::value(&Tuning::default(), row.field) {
                assert_eq!(row.default(), value, "{}", row.flag);
            }
        }
    }

    #[test]
    fn every_default_reads_back_and_every_row_is_described() {
        for row in &TABLE {
            assert!(!row.help.is_empty() && !row.help.ends_with('.'), "{}", row.flag);
            if row.default() != super::super::Value::Unset {
                assert_eq!(row.read(&row.default().to_string(), true), Ok(row.default()), "{}", row.flag);
            }
        }
    }
}
