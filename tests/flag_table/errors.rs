//! Every error with its text.

use kvroute::config::flags::{Frontend, Kind, TABLE};

use crate::{build, build_with_file, cards, frontend, worker};

/// What was given and the text that has to be in the error: on the command line and, where it is not about the
/// command line itself, from the environment.
#[test]
fn every_error_has_its_text() {
    const ROLE_FRONTEND: bool = true;
    const ROLE_WORKER: bool = false;
    let modes =
        "expected one of device-aware-weighted, direct, kv, least-loaded, power-of-two, random, round-robin";
    let unknown = |mode: &str| format!("unknown router mode '{mode}'; {modes}");
    let cases = [
        (ROLE_FRONTEND, "--router-mode bogus", unknown("bogus")),
        (ROLE_WORKER, "--router-mode bogus", unknown("bogus")),
        (
            ROLE_FRONTEND,
            "--router-session-affinity-ttl-secs 0",
            "--router-session-affinity-ttl-secs must be between 1 and 31536000".into(),
        ),
        (
            ROLE_WORKER,
            "--router-session-affinity-ttl-secs 0",
            "session_affinity_ttl_secs must be between 1 and 31536000".into(),
        ),
        (
            ROLE_FRONTEND,
            "--router-session-affinity-mode x",
            "invalid session affinity mode \"x\"; expected 'hard' or 'soft'".into(),
        ),
        (ROLE_FRONTEND, "--active-decode-blocks-threshold 1.5", "must be between 0.0 and 1.0".into()),
        (ROLE_WORKER, "--active-decode-blocks-threshold nan", "must be between 0.0 and 1.0".into()),
        (
            ROLE_FRONTEND,
            "--active-prefill-tokens-threshold -1",
            "--active-prefill-tokens-threshold must be greater than or equal to 0".into(),
        ),
        (
            ROLE_WORKER,
            "--active-prefill-tokens-threshold-frac inf",
            "active_prefill_tokens_threshold_frac must be finite and non-negative".into(),
        ),
        (
            ROLE_FRONTEND,
            "--router-kv-overlap-score-credit -1",
            "overlap_score_credit must be a finite, non-negative number".into(),
        ),
        (
            ROLE_FRONTEND,
            "--router-kv-overlap-score-credit-decay -1",
            "overlap_score_credit_decay must be finite and non-negative".into(),
        ),
        (
            ROLE_FRONTEND,
            "--router-prefill-load-scale inf",
            "prefill_load_scale must be finite and non-negative".into(),
        ),
        (
            ROLE_FRONTEND,
            "--router-decode-active-request-weight nan",
            "decode_active_request_weight must be finite and non-negative".into(),
        ),
        (
            ROLE_FRONTEND,
            "--router-host-cache-hit-weight 2",
            "host_cache_hit_weight must be between 0 and 1".into(),
        ),
        (
            ROLE_WORKER,
            "--router-disk-cache-hit-weight -0.5",
            "disk_cache_hit_weight must be between 0 and 1".into(),
        ),
        (ROLE_WORKER, "--router-temperature -5", "router_temperature must be finite and non-negative".into()),
        (
            ROLE_FRONTEND,
            "--shared-cache-multiplier 2",
            "shared_cache_multiplier must be between 0 and 1".into(),
        ),
        (
            ROLE_FRONTEND,
            "--router-queue-threshold -1",
            "router_queue_threshold must be greater than or equal to 0".into(),
        ),
        (ROLE_FRONTEND, "--router-ttl-secs -1", "router_ttl_secs must be greater than or equal to 0".into()),
        (
            ROLE_FRONTEND,
            "--router-predicted-ttl-secs -1",
            "router_predicted_ttl_secs must be greater than or equal to 0".into(),
        ),
        (ROLE_FRONTEND, "--router-event-threads 0", "router_event_threads must be at least 1".into()),
        (
            ROLE_WORKER,
            "--router-mode kv --router-track-output-blocks --no-router-track-active-blocks",
            "router_track_output_blocks requires router_track_active_blocks=true".into(),
        ),
        (
            ROLE_WORKER,
            "--router-mode kv --router-prefill-load-model ais --no-router-track-prefill-tokens",
            "router_prefill_load_model requires router_track_prefill_tokens=true".into(),
        ),
        (
            ROLE_FRONTEND,
            "--router-mode kv --use-remote-indexer --serve-indexer",
            "use_remote_indexer and serve_indexer are mutually exclusive".into(),
        ),
        (
            ROLE_WORKER,
            "--router-mode kv --enable-session-prefix-index --no-router-kv-events",
            "enable_session_prefix_index requires use_kv_events=true".into(),
        ),
        (
            ROLE_WORKER,
            "--router-mode kv --router-predicted-ttl-secs 5 --no-router-kv-events",
            "router_predicted_ttl_secs requires use_kv_events=true".into(),
        ),
    ];
    let own = [
        ("--serve-indexer", "serve_indexer requires router mode kv"),
        ("--router-prefill-load-model aic", "router_prefill_load_model requires router mode kv"),
        ("--ais-perf-config f", "ais_perf_config requires router_prefill_load_model=ais"),
        ("--ais-backend b", "ais_backend requires router_prefill_load_model=ais"),
        ("--aic-tp-size 2", "ais_tp_size requires router_prefill_load_model=ais"),
        ("--ais-mtp-seed 7", "ais_mtp_seed requires router_prefill_load_model=ais"),
        (
            "--router-accelerator-to-cpu-ratio 0",
            "--router-accelerator-to-cpu-ratio must be between 1 and 4294967295",
        ),
        (
            "--router-conditional-disagg",
            "conditional_disagg_enabled requires router mode kv and use_kv_events=true",
        ),
        ("--router-conditional-disagg-config {}", "requires router_conditional_disagg"),
        (
            "--router-mode kv --router-conditional-disagg --router-conditional-disagg-config {\"policy\":\"prefill_load\"}",
            "the policy prefill_load needs prefill_busy_threshold",
        ),
        (
            "--router-mode kv --router-conditional-disagg --router-conditional-disagg-config []",
            "not a JSON object. It is a JSON object with any of policy",
        ),
        (
            "--load-aware --router-conditional-disagg",
            "conditional_disagg_enabled requires router mode kv and use_kv_events=true",
        ),
        ("--router-approximate-cache-policy lru", "lru requires use_kv_events=false"),
        ("--router-tracking-hash keyed-xxh3-v1", "requires router_tracking_key_file"),
        (
            "--router-tracking-hash keyed-xxh3-v1 --router-tracking-key-file f",
            "requires router_tracking_key_id",
        ),
        (
            "--router-tracking-key-file f",
            "router_tracking_key_file requires router_tracking_hash=keyed-xxh3-v1",
        ),
        ("--router-tracking-key-id i", "router_tracking_key_id requires router_tracking_hash=keyed-xxh3-v1"),
        ("--shared-cache-multiplier 0.5", "requires a shared_cache_type"),
        ("--use-remote-indexer --enable-session-prefix-index", "mutually exclusive"),
    ];
    let own = own.map(|(args, text)| (ROLE_FRONTEND, args, text.to_owned()));
    for (role, args, text) in cases.into_iter().chain(own) {
        let words: Vec<_> = args.split(' ').collect();
        let error = if role == ROLE_FRONTEND {
            frontend(&words).unwrap_err()
        } else {
            worker(&words, &[]).unwrap_err()
        };
        assert!(error.contains(&text), "{args}: {error}");
        let mut flags = words.iter().filter(|word| word.starts_with("--"));
        assert!(flags.any(|flag| error.contains(flag)), "{args}: {error}");
        if role == ROLE_FRONTEND {
            let error = build_with_file::<Frontend>(&[], &[], &as_section(&words)).unwrap_err();
            assert!(error.contains(&text), "{args}, in a file: {error}");
        }
        // The same on a card. Which mode needs what is the frontend's to check there.
        let refusal = if text.contains("requires router mode kv") { None } else { cards::refusal(&words) };
        if let Some(refusal) = refusal {
            let text = cards::as_worded_there(&text);
            assert!(refusal.contains(&text), "{args}, on a card: {refusal}, and not {text}");
        }
        // The same from the environment, with the variable in place of the flag.
        let [flag, value] = words.as_slice() else { continue };
        if value.starts_with("--") {
            continue;
        }
        let row = TABLE.iter().find(|row| row.spellings().any(|name| format!("--{name}") == *flag)).unwrap();
        let Some(variable) = row.variable else { continue };
        let variables = [(variable, *value)];
        let error = if role == ROLE_FRONTEND {
            build::<Frontend>(&[], &variables).map(drop)
        } else {
            worker(&[], &variables).map(drop)
        };
        let error = error.unwrap_err();
        assert!(error.contains(&text) && error.contains(variable), "{args}: {error}");
    }
}

/// The same as a file says it.
fn as_section(words: &[&str]) -> String {
    let (mut section, mut words) = (String::new(), words.iter());
    while let Some(word) = words.next() {
        let name = word.strip_prefix("--").unwrap();
        let row = TABLE.iter().find(|row| row.spellings().any(|spelling| spelling == name)).unwrap();
        let value = match row.kind {
            Kind::Switch { .. } => (!name.starts_with("no-")).to_string(),
            Kind::Number { .. } | Kind::Whole { .. } => (*words.next().unwrap()).to_owned(),
            Kind::Choice { .. } | Kind::Text => format!("'{}'", words.next().unwrap()),
        };
        section += &format!("{} = {value}\n", row.file_key());
    }
    section
}

/// Values with spaces in them, which the list above cannot say.
#[test]
fn a_key_s_name_is_no_blank_and_has_no_spaces_around_it() {
    let hash = ["--router-tracking-hash", "keyed-xxh3-v1", "--router-tracking-key-file", "f"];
    for (id, text) in [
        ("", "router_tracking_key_id must not be empty"),
        (" id", "router_tracking_key_id must have no spaces around it"),
        ("id ", "router_tracking_key_id must have no spaces around it"),
    ] {
        let args = [&["--router-mode", "kv"], &hash[..], &["--router-tracking-key-id", id]].concat();
        for error in [frontend(&args).unwrap_err(), worker(&args, &[]).unwrap_err()] {
            assert!(error.contains(text), "{error}");
        }
        let refusal = cards::refusal(&args[2..]).unwrap();
        assert!(refusal.contains(text), "{refusal}");
    }
    let error = build::<Frontend>(&[], &[("DYN_ROUTER_TRACKING_KEY_ID", " ")]).unwrap_err();
    assert!(
        error.starts_with("DYN_ROUTER_TRACKING_KEY_ID= : router_tracking_key_id must not be empty"),
        "{error}"
    );
}
