//! The routing configuration on the cards that Dynamo's workers write: read, or refused with the reason.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::{collections::BTreeSet, fs, path::Path};

use kvroute::{
    fleet::{RouterConfig, WorkerSpec},
    load::Thresholds,
    select::{AffinityMode, BypassPolicy, ConditionalDisagg, Mode, SessionAffinity, Tuning},
};
use serde_json::{Value, json};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/cards");

/// The `router_config` of a recorded card, if it has one.
fn recorded(name: &str) -> Option<Value> {
    let path = Path::new(FOLDER).join(format!("dynamo-1.6.1-{name}.json"));
    let record: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    record["card_json"].get("router_config").cloned()
}

fn read(config: &Value) -> Result<RouterConfig, String> {
    serde_json::from_value(config.clone()).map_err(|error| error.to_string())
}

fn plain(mode: Mode) -> RouterConfig {
    RouterConfig { mode, tuning: Tuning::default() }
}

fn kv(change: impl FnOnce(&mut Tuning)) -> RouterConfig {
    let mut tuning = Tuning::default();
    change(&mut tuning);
    RouterConfig { mode: Mode::Kv, tuning }
}

/// What each card shall become: a configuration, or an error with these words.
fn expected() -> Vec<(&'static str, Option<Result<RouterConfig, &'static str>>)> {
    let credit = |tuning: &mut Tuning| tuning.overlap_score_credit = 2.5;
    let weights = |tuning: &mut Tuning| {
        *tuning = Tuning {
            overlap_score_credit: 2.5,
            overlap_score_credit_decay: 0.5,
            prefill_load_scale: 1.25,
            decode_active_request_weight: 0.75,
            host_cache_hit_weight: 0.5,
            disk_cache_hit_weight: 0.125,
            router_temperature: 0.25,
            router_track_output_blocks: true,
            router_assume_kv_reuse: false,
            ..*tuning
        };
    };
    let load_aware = |tuning: &mut Tuning| {
        *tuning = Tuning {
            overlap_score_credit: 0.0,
            use_kv_events: false,
            router_assume_kv_reuse: false,
            ..*tuning
        };
    };
    let thresholds = |tuning: &mut Tuning| {
        tuning.busy = Thresholds {
            active_decode_blocks: Some(0.85),
            active_prefill_tokens: Some(16_384),
            active_prefill_tokens_frac: Some(1.5),
        };
        tuning.session_affinity = SessionAffinity { ttl_secs: Some(600), mode: AffinityMode::Soft };
    };
    vec![
        ("inherit", None),
        ("decode-inherit", None),
        ("round-robin", Some(Ok(plain(Mode::RoundRobin)))),
        ("random", Some(Ok(plain(Mode::Random)))),
        ("power-of-two", Some(Ok(plain(Mode::PowerOfTwo)))),
        ("least-loaded", Some(Ok(plain(Mode::LeastLoaded)))),
        ("direct", Some(Ok(plain(Mode::Direct)))),
        ("device-aware-weighted", Some(Ok(plain(Mode::DeviceAwareWeighted)))),
        ("prefill-kv", Some(Ok(plain(Mode::Kv)))),
        ("kv-credit-2.5", Some(Ok(kv(credit)))),
        ("kv-weights", Some(Ok(kv(weights)))),
        ("kv-legacy-weight-0", Some(Ok(kv(|tuning| tuning.set_overlap_score_weight(0.0))))),
        ("kv-no-events", Some(Err("use_remote_indexer = true is not supported by this version"))),
        ("kv-load-aware", Some(Ok(kv(load_aware)))),
        ("kv-thresholds", Some(Ok(kv(thresholds)))),
        ("kv-tuned", Some(Err("router_replica_sync = true is not supported by this version"))),
        (
            "kv-conditional",
            Some(Ok(kv(|tuning| tuning.conditional_disagg = Some(ConditionalDisagg::default())))),
        ),
    ]
}

#[test]
fn every_recorded_card_is_read_or_refused_with_the_reason() {
    let cards = expected();
    for (name, expected) in &cards {
        let config = recorded(name);
        assert_eq!(config.is_some(), expected.is_some(), "{name}");
        let (Some(config), Some(expected)) = (config, expected) else { continue };
        match (read(&config), expected) {
            (Ok(read), Ok(expected)) => assert_eq!(&read, expected, "{name}"),
            (Err(error), Err(says)) => assert!(error.contains(says), "{name}: {error}"),
            (result, _) => panic!("{name}: {result:?}"),
        }
    }
    let named: BTreeSet<_> = cards.iter().map(|(name, _)| format!("dynamo-1.6.1-{name}.json")).collect();
    let there = fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let there: BTreeSet<_> = there.filter(|name| name.starts_with("dynamo-")).collect();
    assert_eq!(named, there, "a card that nobody checks, or a check without its card");
}

/// The items under the heading that begins with `start`, up to the first that is no item.
fn listed(readme: &str, start: &str) -> BTreeSet<String> {
    let (_, rest) = readme.split_once(start).unwrap();
    let items = rest.lines().skip_while(|line| !line.starts_with("- "));
    let items = items.map_while(|line| line.strip_prefix("- "));
    items.map(|item| item.split(' ').next().unwrap().to_owned()).collect()
}

fn keys(object: &Value) -> BTreeSet<String> {
    object.as_object().unwrap_or_else(|| panic!("{object}")).keys().cloned().collect()
}

#[test]
fn what_is_written_has_the_keys_that_dynamo_writes() {
    let readme = fs::read_to_string(Path::new(FOLDER).join("README.md")).unwrap();
    let (always, at_need) = (listed(&readme, "Always written"), listed(&readme, "Written only when"));
    assert_eq!((always.len(), at_need.len()), (23, 12));
    let written = |config: &RouterConfig| serde_json::to_value(config).unwrap();
    let default = written(&plain(Mode::RoundRobin));
    assert_eq!(keys(&default["kv_router_config"]), always);
    let weighted = written(&kv(|tuning| tuning.decode_active_request_weight = 0.5));
    let more: Vec<_> = keys(&weighted["kv_router_config"]).difference(&always).cloned().collect();
    assert_eq!(more, ["decode_active_request_weight"]);
    // Every key that Dynamo may write is known, at least in order to refuse it.
    for key in always.union(&at_need) {
        let error = read(&json!({ "router_mode": "k_v", "kv_router_config": { key: [] } })).unwrap_err();
        assert!(error.contains("invalid type"), "{key}: {error}");
    }
    // And where nothing is refused, what we write is what Dynamo wrote, key for key and value for value.
    for (name, expected) in expected() {
        if let Some(Ok(config)) = expected {
            let mut recorded = recorded(name).unwrap();
            // It was set, to what asks for nothing.
            if name == "kv-load-aware" {
                let keys = recorded["kv_router_config"].as_object_mut().unwrap();
                assert_eq!(keys.remove("shared_cache_multiplier"), Some(json!(0.0)));
            }
            assert_eq!(written(&config), recorded, "{name}");
        }
    }
}

#[test]
fn keys_that_ask_for_nothing_are_accepted() {
    for (key, value) in [
        ("router_tracking_hash", json!("public-xxh3-v1")),
        ("router_tracking_key_file", json!(null)),
        ("router_tracking_key_id", json!(null)),
        ("enable_session_prefix_index", json!(false)),
        ("shared_cache_multiplier", json!(null)),
        ("shared_cache_multiplier", json!(0.0)),
        ("conditional_disagg_enabled", json!(false)),
        ("conditional_disagg_policy", json!("isl_bounding")),
        ("conditional_disagg_eff_isl_threshold", json!(2048)),
        ("conditional_disagg_eff_isl_ratio_threshold", json!(0.7)),
        ("conditional_disagg_prefill_busy_threshold", json!(null)),
        ("conditional_disagg_decode_busy_threshold", json!(null)),
        ("durable_kv_events", json!(false)),
        ("router_snapshot_threshold", json!(1_000_000)),
        ("router_reset_states", json!(true)),
        ("router_event_threads", json!(16)),
    ] {
        let config = read(&json!({ "router_mode": "k_v", "kv_router_config": { key: value } }));
        assert_eq!(config.as_ref(), Ok(&plain(Mode::Kv)), "{key}");
    }
    let legacy = json!({ "router_mode": "k_v", "kv_router_config": { "overlap_score_weight": 3.0 } });
    assert_eq!(read(&legacy).unwrap(), kv(|tuning| tuning.prefill_load_scale = 3.0));
}

#[test]
fn what_is_known_of_caches_is_read_and_written() {
    let card = |keys: &Value| json!({ "router_mode": "k_v", "kv_router_config": keys });
    let guessed = json!({ "use_kv_events": false, "router_ttl_secs": 7.5 });
    let predicted = json!({ "use_kv_events": true, "router_predicted_ttl_secs": 2.5 });
    for keys in [guessed, predicted] {
        let config = read(&card(&keys)).unwrap();
        let written = serde_json::to_value(&config).unwrap();
        for (key, value) in keys.as_object().unwrap() {
            assert_eq!(&written["kv_router_config"][key], value, "{key}");
        }
        assert_eq!(read(&written).unwrap(), config);
    }
    let both = json!({ "use_kv_events": false, "router_predicted_ttl_secs": 2.5 });
    let error = read(&card(&both)).unwrap_err();
    assert!(error.contains("router_predicted_ttl_secs requires use_kv_events=true"), "{error}");
}

#[test]
fn keys_that_ask_for_something_are_refused_by_name() {
    for (key, value) in [
        ("enable_session_prefix_index", json!(true)),
        ("shared_cache_type", json!("hicache")),
        ("router_policy_config", json!("/policy.yaml")),
        ("use_remote_indexer", json!(true)),
        ("serve_indexer", json!(true)),
        ("skip_initial_worker_wait", json!(true)),
        ("router_prefill_load_model", json!("aic")),
    ] {
        let error =
            read(&json!({ "router_mode": "k_v", "kv_router_config": { key: value.clone() } })).unwrap_err();
        let says = format!("{key} = {value} is not supported by this version; leave it out or set it to ");
        assert!(error.contains(&says), "{key}: {error}");
    }
    // Keys that need each other are refused together.
    for (keys, key) in [
        (
            json!({
                "router_tracking_hash": "keyed-xxh3-v1",
                "router_tracking_key_file": "/k",
                "router_tracking_key_id": "a",
            }),
            "router_tracking_hash",
        ),
        (json!({ "shared_cache_type": "hicache", "shared_cache_multiplier": 0.5 }), "shared_cache_type"),
    ] {
        let error = read(&json!({ "router_mode": "k_v", "kv_router_config": keys })).unwrap_err();
        assert!(error.contains(&format!("{key} = {} is not supported", keys[key])), "{error}");
    }
}

#[test]
fn the_rule_of_a_bypass_is_read_as_a_whole_or_refused() {
    let rule = json!({
        "conditional_disagg_enabled": true,
        "conditional_disagg_policy": "isl_or_load",
        "conditional_disagg_eff_isl_threshold": 4096,
        "conditional_disagg_eff_isl_ratio_threshold": 0.5,
        "conditional_disagg_prefill_busy_threshold": 0.8,
        "conditional_disagg_decode_busy_threshold": 0.9,
    });
    let card = |keys: &Value| json!({ "router_mode": "k_v", "kv_router_config": keys });
    let config = read(&card(&rule)).unwrap();
    let expected = ConditionalDisagg {
        policy: BypassPolicy::IslOrLoad,
        eff_isl_threshold: 4096,
        eff_isl_ratio_threshold: 0.5,
        prefill_busy_threshold: Some(0.8),
        decode_busy_threshold: Some(0.9),
    };
    assert_eq!(config, kv(|tuning| tuning.conditional_disagg = Some(expected)));
    let written = serde_json::to_value(&config).unwrap();
    for (key, value) in rule.as_object().unwrap() {
        assert_eq!(&written["kv_router_config"][key], value, "{key}");
    }
    for (key, value, says) in [
        ("conditional_disagg_enabled", json!(false), "keys require conditional_disagg_enabled=true"),
        ("conditional_disagg_policy", json!("isl"), "conditional_disagg_policy: unknown policy 'isl'"),
        ("conditional_disagg_eff_isl_ratio_threshold", json!(1.5), "must be between 0 and 1"),
        (
            "conditional_disagg_prefill_busy_threshold",
            json!(null),
            "isl_or_load needs prefill_busy_threshold",
        ),
        ("conditional_disagg_decode_busy_threshold", json!(-1.0), "must be finite and non-negative"),
    ] {
        let mut keys = rule.clone();
        keys[key] = value;
        let error = read(&card(&keys)).unwrap_err();
        assert!(error.contains(says), "{key}: {error}");
    }
    // One key alone asks for nothing, and is as much refused.
    for key in rule.as_object().unwrap().keys().filter(|key| *key != "conditional_disagg_enabled") {
        let error = read(&card(&json!({ key: rule[key] }))).unwrap_err();
        assert!(error.contains("require conditional_disagg_enabled=true"), "{key}: {error}");
    }
}

/// A worker's tuning reaches the card.
#[test]
fn review_finding_11_tuning_is_carried_on_the_card() {
    let config = kv(|tuning| tuning.overlap_score_credit = 2.5);
    let spec = WorkerSpec { router_config: Some(config), ..WorkerSpec::new("http://h:1", "m") };
    let card = serde_json::to_value(&spec).unwrap();
    assert_eq!(card["router_config"]["router_mode"], "k_v");
    assert_eq!(card["router_config"]["kv_router_config"]["overlap_score_credit"], 2.5);
}

/// A worker that was told nothing says nothing, not the defaults.
#[test]
fn review_finding_12_no_flag_no_key() {
    let card = serde_json::to_value(WorkerSpec::new("http://h:1", "m")).unwrap();
    assert!(card.get("router_config").is_none(), "{card}");
}

/// Whether a worker publishes events and whether the router uses them are two facts in two places.
#[test]
fn review_finding_09_publishing_is_not_subscribing() {
    let publishes = json!({ "url": "http://h:1", "model": "m", "kv_events_endpoint": "tcp://*:5557" });
    let quiet = json!({ "url": "http://h:1", "model": "m" });
    let config = |use_kv_events: bool| json!({ "router_mode": "k_v", "kv_router_config": { "use_kv_events": use_kv_events } });
    for base in [publishes, quiet] {
        for use_kv_events in [true, false] {
            let mut body = base.clone();
            body["router_config"] = config(use_kv_events);
            let spec = serde_json::from_value::<WorkerSpec>(body);
            let spec = spec.unwrap();
            assert_eq!(spec.router_config.unwrap().tuning.use_kv_events, use_kv_events);
            assert_eq!(spec.kv_events_endpoint.is_some(), base.get("kv_events_endpoint").is_some());
        }
    }
}
