//! What a review of router flags on workers once found, each as a test named after it.

use kvroute::{
    config::flags::{BuildError, Environment, Frontend, Role, TABLE, Worker, build_router_config},
    fleet::{RouterConfig, WorkerSpec},
    select::Mode,
};

use crate::{
    expected::{Expected, expected},
    frontend, help, parse, worker,
};

#[test]
fn review_finding_06_a_worker_is_not_built_with_the_frontend_s_defaults() {
    // That it does not compile is shown in the docs of the roles; this is what differs.
    assert_eq!(Frontend::default_config(), Some(RouterConfig::default()));
    assert_eq!(Worker::default_config(), None);
    assert_eq!(frontend(&[]).unwrap().config.mode, Mode::RoundRobin);
    assert_eq!(worker(&[], &[]).unwrap().config, None);
}

#[test]
fn review_finding_07_the_frontend_s_flags_are_refused_on_workers() {
    let withheld: Vec<_> =
        expected().into_iter().filter(|expected| !expected.worker && !expected.own).collect();
    for name in ["--router-min-initial-workers", "--enforce-disagg", "--admission-control"] {
        assert!(withheld.iter().any(|expected| expected.flag == name), "{name}");
    }
    for Expected { flag, variables, accepts, default, .. } in withheld {
        let default = if default == "_" { "1" } else { default };
        let args = if accepts == "switch" { vec![flag] } else { vec![flag, default] };
        let error = worker(&[&["--router-mode", "kv"], args.as_slice()].concat(), &[]).unwrap_err();
        assert!(error.contains(flag) && error.contains("belongs to the frontend"), "{error}");
        assert!(!help::<Worker>().contains(flag));
        // In an environment that is shared with the frontend they do not speak to the worker.
        for variable in variables {
            let built = worker(&[], &[(variable, "1")]).unwrap();
            assert!(built.config.is_none() && built.warnings.is_empty(), "{variable}");
        }
    }
}

/// A name that an engine has too would take the engine's value, or leave it without, and nobody would be told.
#[test]
fn review_finding_08_no_flag_is_an_option_of_an_engine() {
    let engines = [
        ("vLLM", include_str!("../fixtures/engine_options/vllm-0.32.0.txt")),
        ("SGLang", include_str!("../fixtures/engine_options/sglang-0.5.23.txt")),
        ("TensorRT-LLM", include_str!("../fixtures/engine_options/trtllm.txt")),
    ];
    for (engine, options) in engines {
        let options: Vec<_> = options.lines().filter(|line| line.starts_with("--")).collect();
        assert!(options.len() > 30, "{engine}: {} options", options.len());
        // Those that are the frontend's alone are taken out too, to be refused.
        for row in TABLE.iter().filter(|row| !row.workers_have_their_own) {
            for name in row.spellings() {
                let (flag, variant) = (format!("--{name}"), format!("--{}", name.replace('-', "_")));
                assert!(!options.contains(&flag.as_str()), "{engine} has {flag}");
                assert!(!options.contains(&variant.as_str()), "{engine} has {variant}");
            }
        }
    }
}

#[test]
fn review_finding_09_following_events_and_publishing_them_are_two_things() {
    // Whether the router follows events is a router flag; whether a worker publishes them is part of the worker.
    let silent = WorkerSpec::new("http://a:1", "m");
    let publishing = WorkerSpec { kv_events_endpoint: Some("tcp://*:5557".to_owned()), ..silent.clone() };
    let advertised = worker(&["--router-mode", "kv", "--router-kv-events"], &[]).unwrap().config;
    for spec in [silent, publishing] {
        let with = WorkerSpec { router_config: advertised.clone(), ..spec.clone() };
        assert_eq!(with.kv_events_endpoint, spec.kv_events_endpoint);
        assert_eq!(with.router_config, advertised);
    }
    for name in ["publish-kv-events", "use-kv-events", "kv-events-endpoint"] {
        assert!(
            TABLE.iter().all(|row| row.flag != name),
            "--{name} would be taken from the worker's own flags"
        );
    }
}

#[test]
fn review_finding_10_a_shared_environment_is_told_from_a_flag() {
    let from = |args: &[&str], variables: &[(&str, &str)]| {
        let built = worker(args, variables).unwrap();
        let mode = built.changed().next().unwrap().clone();
        (built.config.unwrap().mode, mode.source.to_string())
    };
    let shared = [("DYN_ROUTER_MODE", "kv")];
    assert_eq!(from(&[], &shared), (Mode::Kv, "DYN_ROUTER_MODE".to_owned()));
    assert_eq!(from(&["--router-mode", "random"], &shared), (Mode::Random, "--router-mode".to_owned()));

    // Without a mode, a shared environment is one warning and the worker inherits; a flag is an error.
    let tuning = [("DYN_ROUTER_TEMPERATURE", "0.5"), ("DYN_ROUTER_QUEUE_THRESHOLD", "2")];
    let built = worker(&[], &tuning).unwrap();
    assert_eq!(built.config, None);
    let [warning] = built.warnings.as_slice() else { panic!("not one warning: {:?}", built.warnings) };
    let warning = warning.to_string();
    for word in ["DYN_ROUTER_TEMPERATURE", "DYN_ROUTER_QUEUE_THRESHOLD", "--router-mode", "inherits"] {
        assert!(warning.contains(word), "{warning}");
    }
    let given = parse::<Worker>(&["--router-temperature", "0.5"]).unwrap();
    let given = given.resolve(&Environment::empty(), None).unwrap();
    let error = build_router_config(&given).unwrap_err();
    assert!(matches!(error, BuildError::NeedsMode(_)));
    let error = error.to_string();
    assert!(error.starts_with("--router-temperature 0.5 needs --router-mode on a worker"), "{error}");
}

#[test]
fn review_finding_11_an_advertised_card_carries_the_worker_s_tuning() {
    let args = ["--router-mode", "kv", "--router-kv-overlap-score-credit", "2.5"];
    let router_config = worker(&args, &[]).unwrap().config;
    let spec = WorkerSpec { router_config, ..WorkerSpec::new("http://a:1", "m") };
    let card = serde_json::to_value(&spec).unwrap();
    assert_eq!(card["router_config"]["router_mode"], "k_v");
    assert_eq!(card["router_config"]["kv_router_config"]["overlap_score_credit"], 2.5);
    let read: WorkerSpec = serde_json::from_value(card).unwrap();
    assert_eq!(read, spec);
}

#[test]
fn review_finding_12_no_flag_advertises_no_configuration_at_all() {
    let router_config = worker(&[], &[]).unwrap().config;
    let spec = WorkerSpec { router_config, ..WorkerSpec::new("http://a:1", "m") };
    let card = serde_json::to_value(&spec).unwrap();
    assert_eq!(card.get("router_config"), None);
}
