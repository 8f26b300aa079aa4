//! The list that the table is held against.

/// What a flag has to be: flag, variable, default of a frontend, what it accepts, whether a worker takes it.
/// `_` stands for unset, `own` for a flag that means something else on a worker. Written down apart from the table, from the flags of Dynamo 1.6.1;
/// those on devices are our own.
const EXPECTED: &str = "
--router-mode                           DYN_ROUTER_MODE                            round-robin     mode        worker
--router-cost-model                     KVROUTE_ROUTER_COST_MODEL                  time            time|blocks worker
--router-hold                           KVROUTE_ROUTER_HOLD                        0.0             0..3600     worker
--router-session-affinity-ttl-secs      DYN_ROUTER_SESSION_AFFINITY_TTL_SECS       _               1..31536000 worker
--router-session-affinity-mode          DYN_ROUTER_SESSION_AFFINITY_MODE           hard            hard|soft   worker
--active-decode-blocks-threshold        DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD         _               0..1        worker
--active-prefill-tokens-threshold       DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD        _               whole       worker
--active-prefill-tokens-threshold-frac  DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC   _               0..         worker
--router-min-initial-workers            DYN_ROUTER_MIN_INITIAL_WORKERS             0               whole       frontend
--enforce-disagg                        DYN_ENFORCE_DISAGG                         false           switch      frontend
--admission-control                     DYN_ADMISSION_CONTROL                      none            token-capacity|none frontend
--load-aware                            DYN_ROUTER_LOAD_AWARE                      false           switch      worker
--router-kv-overlap-score-credit        DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT         1.0             0..         worker
--router-kv-overlap-score-credit-decay  DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY   0.0             0..         worker
--router-kv-overlap-score-weight        DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT,DYN_OVERLAP_SCORE_WEIGHT _ 0..      worker
--router-prefill-load-scale             DYN_ROUTER_PREFILL_LOAD_SCALE              1.0             0..         worker
--router-decode-active-request-weight   DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT    0.0             0..         worker
--router-host-cache-hit-weight          DYN_ROUTER_HOST_CACHE_HIT_WEIGHT           0.75            0..1        worker
--router-disk-cache-hit-weight          DYN_ROUTER_DISK_CACHE_HIT_WEIGHT           0.25            0..1        worker
--router-temperature                    DYN_ROUTER_TEMPERATURE                     0.0             0..         worker
--router-kv-events                      DYN_ROUTER_USE_KV_EVENTS,DYN_USE_KV_EVENTS true            switch      worker
--router-replica-sync                   DYN_ROUTER_REPLICA_SYNC                    false           switch      worker
--router-track-active-blocks            DYN_ROUTER_TRACK_ACTIVE_BLOCKS             true            switch      worker
--router-track-output-blocks            DYN_ROUTER_TRACK_OUTPUT_BLOCKS             false           switch      worker
--router-assume-kv-reuse                DYN_ROUTER_ASSUME_KV_REUSE                 true            switch      worker
--router-track-prefill-tokens           DYN_ROUTER_TRACK_PREFILL_TOKENS            true            switch      worker
--router-tracking-hash                  DYN_ROUTER_TRACKING_HASH                   public-xxh3-v1  public-xxh3-v1|keyed-xxh3-v1 worker
--router-tracking-key-file              DYN_ROUTER_TRACKING_KEY_FILE               _               text        worker
--router-tracking-key-id                DYN_ROUTER_TRACKING_KEY_ID                 _               text        worker
--router-prefill-load-model             DYN_ROUTER_PREFILL_LOAD_MODEL              none            none|ais|aic worker
--router-ttl-secs                       DYN_ROUTER_TTL_SECS                        120.0           0..         worker
--router-approximate-cache-policy       DYN_ROUTER_APPROXIMATE_CACHE_POLICY        ttl             ttl|lru     worker
--router-queue-threshold                DYN_ROUTER_QUEUE_THRESHOLD                 _               0..         worker
--router-policy-config                  DYN_ROUTER_POLICY_CONFIG                   _               text        worker
--router-conditional-disagg             DYN_ROUTER_CONDITIONAL_DISAGG              false           switch      worker
--router-conditional-disagg-config      DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG       _               text        worker
--router-prefill-policy                 DYN_ROUTER_PREFILL_POLICY                  _               text        worker
--router-decode-policy                  DYN_ROUTER_DECODE_POLICY                   _               text        worker
--router-event-threads                  DYN_ROUTER_EVENT_THREADS                   4               1..         worker
--router-queue-policy                   DYN_ROUTER_QUEUE_POLICY                    fcfs            fcfs|wspt   worker
--use-remote-indexer                    DYN_USE_REMOTE_INDEXER                     false           switch      worker
--enable-session-prefix-index           DYN_ENABLE_SESSION_PREFIX_INDEX            false           switch      worker
--shared-cache-multiplier               DYN_SHARED_CACHE_MULTIPLIER                _               0..1        worker
--shared-cache-type                     DYN_SHARED_CACHE_TYPE                      none            none|hicache worker
--router-predicted-ttl-secs             DYN_ROUTER_PREDICTED_TTL_SECS              _               0..         worker
--serve-indexer                         DYN_SERVE_INDEXER                          false           switch      frontend
--ais-perf-config                       _                                          _               text        frontend
--kv-cache-block-size                   DYN_KV_CACHE_BLOCK_SIZE                    _               1..whole    frontend
--migration-limit                       DYN_MIGRATION_LIMIT                        0               whole       frontend
--migration-max-seq-len                 DYN_MIGRATION_MAX_SEQ_LEN                  _               whole       frontend
--namespace                             DYN_NAMESPACE                              _               text        own
--namespace-prefix                      DYN_NAMESPACE_PREFIX                       _               text        frontend
--router-accelerator-to-cpu-ratio       DYN_ENCODER_CUDA_TO_CPU_RATIO              8               1..4294967295 frontend
--ais-backend                           DYN_AIS_BACKEND                            _               text        frontend
--ais-system                            DYN_AIS_SYSTEM                             _               text        frontend
--ais-backend-version                   DYN_AIS_BACKEND_VERSION                    _               text        frontend
--ais-tp-size                           DYN_AIS_TP_SIZE                            _               1..whole    frontend
--ais-model-path                        DYN_AIS_MODEL_PATH                         _               text        frontend
--ais-moe-tp-size                       DYN_AIS_MOE_TP_SIZE                        _               1..whole    frontend
--ais-moe-ep-size                       DYN_AIS_MOE_EP_SIZE                        _               1..whole    frontend
--ais-attention-dp-size                 DYN_AIS_ATTENTION_DP_SIZE                  _               1..whole    frontend
--ais-nextn                             DYN_AIS_NEXTN                              _               whole       frontend
--ais-nextn-accept-rates                _                                          _               text        frontend
--ais-mtp-seed                          DYN_AIS_MTP_SEED                           42              whole       frontend
--device-weights                        KVROUTE_DEVICE_WEIGHTS                     true            switch      worker
--device-weight-external                KVROUTE_DEVICE_WEIGHT_EXTERNAL             0.75            0..1        worker
--device-weight-least                   KVROUTE_DEVICE_WEIGHT_LEAST                0.1             above0..1   worker
--device-weight-stale-secs              KVROUTE_DEVICE_WEIGHT_STALE_SECS           30.0            1..number   worker
";

/// Where this router departs from that list: flag, its default, ours.
pub(crate) const DEPARTURES: [(&str, &str, &str); 1] = [
    // One thread applies the events of an index; a default of 4 would be a promise that is not kept.
    ("--router-event-threads", "4", "1"),
];

/// What Dynamo has as a variable alone.
pub(crate) const OURS: [&str; 3] =
    ["--router-cost-model", "--router-hold", "--router-accelerator-to-cpu-ratio"];

pub(crate) const OLD_NAMES: [(&str, &str); 16] = [
    ("--kv-overlap-score-weight", "--router-kv-overlap-score-weight"),
    ("--kv-events", "--router-kv-events"),
    ("--track-active-blocks", "--router-track-active-blocks"),
    ("--track-output-blocks", "--router-track-output-blocks"),
    ("--assume-kv-reuse", "--router-assume-kv-reuse"),
    ("--aic-backend", "--ais-backend"),
    ("--aic-system", "--ais-system"),
    ("--aic-backend-version", "--ais-backend-version"),
    ("--aic-tp-size", "--ais-tp-size"),
    ("--aic-model-path", "--ais-model-path"),
    ("--aic-moe-tp-size", "--ais-moe-tp-size"),
    ("--aic-moe-ep-size", "--ais-moe-ep-size"),
    ("--aic-attention-dp-size", "--ais-attention-dp-size"),
    ("--aic-nextn", "--ais-nextn"),
    ("--aic-nextn-accept-rates", "--ais-nextn-accept-rates"),
    ("--aic-mtp-seed", "--ais-mtp-seed"),
];

pub(crate) struct Expected {
    pub(crate) flag: &'static str,
    pub(crate) variables: Vec<&'static str>,
    pub(crate) default: &'static str,
    pub(crate) accepts: &'static str,
    pub(crate) worker: bool,
    /// A worker has a flag of that name for itself.
    pub(crate) own: bool,
}

pub(crate) fn expected() -> Vec<Expected> {
    EXPECTED
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let &[flag, variables, default, accepts, taker] = words.as_slice() else {
                panic!("not five words: {line}")
            };
            Expected {
                flag,
                variables: variables.split(',').filter(|name| *name != "_").collect(),
                default: DEPARTURES.iter().find(|departure| departure.0 == flag).map_or(
                    default,
                    |&(_, theirs, ours)| {
                        assert_eq!(default, theirs);
                        ours
                    },
                ),
                accepts,
                worker: taker == "worker",
                own: taker == "own",
            }
        })
        .collect()
}

/// Values that read, and values that do not.
pub(crate) fn samples(accepts: &str) -> (Vec<&str>, Vec<&str>) {
    match accepts {
        "mode" => {
            let modes = [
                "round-robin",
                "random",
                "power-of-two",
                "kv",
                "direct",
                "least-loaded",
                "device-aware-weighted",
            ];
            (modes.to_vec(), vec!["bogus", "KV", "k_v", "round_robin"])
        }
        "switch" => (
            vec![
                "true", "1", "yes", "on", "TRUE", "Yes", "oN", "false", "0", "no", "off", "FALSE", "No",
                "oFF",
            ],
            vec!["2", "maybe", "y", "t", "None", "-"],
        ),
        "1..31536000" => (vec!["1", "31536000"], vec!["0", "-1", "31536001", "1.5", "x"]),
        "1..4294967295" => (vec!["1", "4294967295"], vec!["0", "-1", "4294967296", "1.5", "x"]),
        "0..3600" => (vec!["0", "2.5", "3600"], vec!["-0.1", "3600.5", "nan", "inf", "x"]),
        "0..1" => (vec!["0", "1", "0.5"], vec!["-0.1", "1.1", "nan", "inf", "x"]),
        "above0..1" => (vec!["0.1", "1"], vec!["0", "-0.1", "1.1", "nan", "inf", "x"]),
        "1..number" => (vec!["1", "2.5"], vec!["0", "0.5", "nan", "inf", "x"]),
        "0.." => (vec!["0", "2.5", "1e3"], vec!["-0.1", "nan", "inf", "x"]),
        "1.." | "1..whole" => (vec!["1", "64"], vec!["0", "-1", "1.5", "x"]),
        "whole" => (vec!["0", "64"], vec!["-1", "1.5", "x", "99999999999999999999"]),
        "text" => (vec!["a", "default", "/a/b.yaml", "{\"policy\":1}"], vec![]),
        words => (words.split('|').collect(), vec!["bogus", "None"]),
    }
}
