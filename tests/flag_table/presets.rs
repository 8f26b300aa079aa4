//! Flags that write other flags, and modes that do not look at some.

use kvroute::{
    config::flags::{Built, Environment, Frontend, MockFleet, build_router_config},
    fleet::{Namespaces, RouterConfig},
    select::{AffinityMode, ApproximateCache, ApproximatePolicy, CostModel, Mode, SessionAffinity, Tuning},
};

use crate::{build, frontend, parse, worker};

#[test]
fn the_old_weight_is_the_prefill_scale_and_zero_takes_the_credit_too() {
    let tuning = |args: &str| frontend(&args.split(' ').collect::<Vec<_>>()).unwrap().config.tuning;
    let set = tuning("--router-mode kv --kv-overlap-score-weight 2.5");
    assert_eq!(set, Tuning { prefill_load_scale: 2.5, ..Tuning::default() });
    let zero = tuning("--router-mode kv --router-kv-overlap-score-weight 0");
    assert_eq!(zero, Tuning { prefill_load_scale: 0.0, overlap_score_credit: 0.0, ..Tuning::default() });
    // It writes the scale even where that is given as well, and the loser is named; but a flag wins over a variable.
    let both = frontend(&[
        "--router-mode",
        "kv",
        "--router-kv-overlap-score-weight",
        "2",
        "--router-prefill-load-scale",
        "5",
    ])
    .unwrap();
    assert_eq!(both.config.tuning.prefill_load_scale, 2.0);
    let said = both.warnings.last().unwrap().to_string();
    assert_eq!(
        said,
        "--router-prefill-load-scale 5.0 changes nothing: --router-kv-overlap-score-weight 2.0 sets prefill_load_scale \
         to 2.0"
    );
    let variables = [("DYN_OVERLAP_SCORE_WEIGHT", "2")];
    let args = ["--router-mode", "kv", "--router-prefill-load-scale", "5"];
    let built = build::<Frontend>(&args, &variables).unwrap();
    assert_eq!(built.config.tuning.prefill_load_scale, 5.0);
    assert!(
        built.warnings.last().unwrap().to_string().contains("DYN_OVERLAP_SCORE_WEIGHT=2.0 changes nothing")
    );
}

#[test]
fn load_aware_implies_kv_and_writes_its_preset() {
    let expected = Tuning {
        overlap_score_credit: 0.0,
        host_cache_hit_weight: 0.0,
        disk_cache_hit_weight: 0.0,
        use_kv_events: false,
        router_assume_kv_reuse: false,
        ..Tuning::default()
    };
    let config = RouterConfig { mode: Mode::Kv, tuning: expected };
    assert_eq!(frontend(&["--load-aware"]).unwrap().config, config);
    assert_eq!(worker(&["--load-aware"], &[]).unwrap().config, Some(config.clone()));
    assert_eq!(worker(&[], &[("DYN_ROUTER_LOAD_AWARE", "1")]).unwrap().config, Some(config.clone()));

    // KV events off is part of what it stands for.
    let silent = frontend(&["--load-aware", "--no-router-kv-events"]).unwrap();
    assert_eq!((silent.config, silent.warnings.len()), (config, 0));
    let said = frontend(&["--load-aware", "--router-kv-events"]).unwrap().warnings;
    assert_eq!(
        said.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["--router-kv-events changes nothing: --load-aware sets use_kv_events to false"]
    );

    // What it overrules is said.
    let args = [
        "--load-aware",
        "--router-mode",
        "random",
        "--router-kv-overlap-score-credit",
        "2",
        "--no-router-track-active-blocks",
        "--router-temperature",
        "0.5",
    ];
    let built = frontend(&args).unwrap();
    assert_eq!(built.config.mode, Mode::Kv);
    assert_eq!(built.config.tuning, Tuning { router_temperature: 0.5, ..expected });
    let said: Vec<_> = built.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "--router-mode random changes nothing: --load-aware sets router_mode to kv",
            "--router-kv-overlap-score-credit 2.0 changes nothing: --load-aware sets overlap_score_credit to 0.0",
            "--no-router-track-active-blocks changes nothing: --load-aware sets router_track_active_blocks to true",
        ]
    );
}

#[test]
fn caches_without_events_are_guessed_by_the_frontend_s_policy() {
    let lru =
        ["--no-router-kv-events", "--router-approximate-cache-policy", "lru", "--router-ttl-secs", "60"];
    let args = [&["--router-mode", "kv"], &lru[..]].concat();
    let tuning = frontend(&args).unwrap().config.tuning;
    let expected = ApproximateCache { ttl_secs: 60.0, policy: ApproximatePolicy::Lru };
    assert_eq!((tuning.use_kv_events, tuning.approximate_cache), (false, expected));
    // No card carries the policy. From the environment it is said to the frontend beside the worker.
    let error = worker(&args, &[]).unwrap_err();
    assert!(
        error.starts_with("--router-approximate-cache-policy lru: it belongs to the frontend"),
        "{error}"
    );
    let variables = [("DYN_ROUTER_APPROXIMATE_CACHE_POLICY", "lru")];
    let built = worker(&["--router-mode", "kv"], &variables).unwrap();
    assert_eq!(built.config.unwrap().tuning, Tuning::default());
    assert!(worker(&["--router-mode", "kv", "--router-approximate-cache-policy", "ttl"], &[]).is_ok());
    let predicted = ["--router-mode", "kv", "--router-predicted-ttl-secs", "5"];
    assert_eq!(frontend(&predicted).unwrap().config.tuning.router_predicted_ttl_secs, Some(5.0));
}

#[test]
fn sessions_are_for_every_mode_and_their_mode_alone_does_nothing() {
    let ttl = ["--router-session-affinity-ttl-secs", "600", "--router-session-affinity-mode", "soft"];
    let expected = SessionAffinity { ttl_secs: Some(600), mode: AffinityMode::Soft };
    for mode in ["kv", "round-robin"] {
        let args = [&["--router-mode", mode], &ttl[..]].concat();
        let built = frontend(&args).unwrap();
        assert_eq!((built.config.tuning.session_affinity, built.warnings.len()), (expected, 0), "{mode}");
        let card = worker(&args, &[]).unwrap().config.unwrap();
        assert_eq!(card.tuning.session_affinity, expected, "{mode}");
    }
    let built = frontend(&ttl[2..]).unwrap();
    assert_eq!(built.config.tuning.session_affinity.ttl_secs, None);
    let said: Vec<_> = built.warnings.iter().map(ToString::to_string).collect();
    let text = "--router-session-affinity-mode soft changes nothing: session affinity is off without \
                --router-session-affinity-ttl-secs";
    assert_eq!(said, [text]);
}

/// Sets of any mode may be behind a frontend, so it holds under each.
#[test]
fn the_ratio_of_accelerators_to_cpus_is_carried_in_every_mode() {
    let ratio = |built: Built<RouterConfig>| built.config.tuning.accelerator_to_cpu_ratio.get();
    assert_eq!(ratio(frontend(&[]).unwrap()), 8);
    let variable = [("DYN_ENCODER_CUDA_TO_CPU_RATIO", "3")];
    for mode in Mode::ALL {
        let mode = ["--router-mode", mode.name()];
        assert_eq!(ratio(build::<Frontend>(&mode, &variable).unwrap()), 3);
        let both = [&mode[..], &["--router-accelerator-to-cpu-ratio", "5"]].concat();
        assert_eq!(ratio(build::<Frontend>(&both, &variable).unwrap()), 5);
    }
    // It is the frontend's to say: a shared variable changes nothing on a worker.
    let advertised = worker(&["--router-mode", "device-aware-weighted"], &variable).unwrap().config;
    assert_eq!(advertised.unwrap().tuning, Tuning::default());
}

#[test]
fn a_prefix_wins_over_a_namespace_and_says_so() {
    let namespaces = |args: &[&str]| {
        let built = frontend(args).unwrap();
        let said: Vec<_> = built.warnings.iter().map(ToString::to_string).collect();
        (built.of_the_frontend().namespaces, said)
    };
    assert_eq!(namespaces(&[]), (Namespaces::Every, vec![]));
    assert_eq!(namespaces(&["--namespace", "a"]), (Namespaces::Named("a".into()), vec![]));
    assert_eq!(namespaces(&["--namespace-prefix", "a"]), (Namespaces::WithPrefix("a".into()), vec![]));
    let overruled = "--namespace a changes nothing: --namespace-prefix b says which are served".to_owned();
    assert_eq!(
        namespaces(&["--namespace", "a", "--namespace-prefix", "b"]),
        (Namespaces::WithPrefix("b".into()), vec![overruled])
    );
    let shared = [("DYN_NAMESPACE", "a"), ("DYN_NAMESPACE_PREFIX", "b")];
    assert_eq!(worker(&[], &shared).unwrap().warnings, [], "on a worker they are other settings");
}

#[test]
fn weights_under_another_mode_are_checked_and_warned_of() {
    let error = frontend(&["--router-mode", "round-robin", "--router-temperature", "-5"]).unwrap_err();
    assert!(error.contains("router_temperature must be finite and non-negative"), "{error}");
    let built = worker(&["--router-mode", "round-robin", "--router-temperature", "5"], &[]).unwrap();
    assert_eq!(built.config, Some(RouterConfig { mode: Mode::RoundRobin, tuning: Tuning::default() }));
    assert_eq!(
        built.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "--router-temperature 5.0 changes nothing: router mode round-robin does not look at it, only kv does"
        ]
    );
}

#[test]
fn mock_fleets_route_by_prefixes_unless_told_otherwise() {
    let config = build::<MockFleet>(&[], &[]).unwrap().config;
    assert_eq!(config, RouterConfig { mode: Mode::Kv, tuning: Tuning::default() });
    let config = build::<MockFleet>(&["--router-prefill-load-scale", "3"], &[]).unwrap().config;
    assert_eq!(config.tuning, Tuning { prefill_load_scale: 3.0, ..Tuning::default() });
    let random = parse::<MockFleet>(&["--router-mode", "kv"]).unwrap().with_mode(Mode::Random, "compare");
    let given = random.resolve(&Environment::empty(), None).unwrap();
    let config = build_router_config(&given).unwrap().config;
    assert_eq!(config, RouterConfig { mode: Mode::Random, tuning: Tuning::default() });
}

#[test]
fn a_worker_advertises_a_cost_model_with_a_mode_or_without() {
    for (args, variables, model, has_config) in [
        (&["--router-cost-model", "blocks"][..], &[][..], Some(CostModel::Blocks), false),
        (&[], &[("KVROUTE_ROUTER_COST_MODEL", "time")], Some(CostModel::Time), false),
        (&["--router-mode", "kv", "--router-cost-model", "blocks"], &[], Some(CostModel::Blocks), true),
        (&["--router-mode", "kv"], &[], None, true),
    ] {
        let built = worker(args, variables).unwrap();
        assert_eq!((built.cost_model(), built.config.is_some()), (model, has_config), "{args:?}");
        assert_eq!(built.warnings, [], "{args:?}");
    }
}

#[test]
fn a_frontend_s_cost_model_is_in_its_tuning_whatever_its_mode() {
    for mode in ["kv", "round-robin"] {
        let built = frontend(&["--router-mode", mode, "--router-cost-model", "blocks"]).unwrap();
        assert_eq!((built.config.tuning.cost_model, built.warnings), (CostModel::Blocks, vec![]));
        assert_eq!(frontend(&["--router-mode", mode]).unwrap().config.tuning.cost_model, CostModel::Time);
    }
}
