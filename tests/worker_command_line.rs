//! `kvroute worker` as it is typed: whose flag is whose, what is refused, and what reaches the frontend.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod process;
mod rig;

use clap::{Args as _, Command};
use kvroute::{
    config::{
        AttachArgs, MockArgs, WorkerArgs,
        flags::{Row, TABLE},
    },
    select::Mode,
    worker::mock::MockEngine,
};
use serde_json::{Value, json};

use crate::{
    process::{FREE_PORTS, Process},
    rig::{MODEL, Rig, chat, engine_settings, eventually, plan, with_lasting_ports},
};

/// A frontend that routes by round-robin, so that a set in mode kv has it from its card.
async fn frontend() -> Rig {
    Rig::start_plan(plan(Mode::RoundRobin, Vec::new()), Vec::new()).await
}

/// `kvroute worker mock` with an engine on free ports.
fn mock(rig: &Rig, flags: &[&str], environment: &[(&str, &str)]) -> Process {
    let admin = rig.admin();
    let args = [&["worker", "mock", "--frontend", &admin], flags, &FREE_PORTS].concat();
    Process::start_with(&args, environment)
}

/// The only worker set, once there is one.
async fn set(rig: &Rig) -> Value {
    let get = async || rig.client.get(&format!("{}/v1/worker-sets", rig.admin())).await.json;
    eventually("a worker set", async || get().await["worker_sets"][0].is_object()).await;
    get().await["worker_sets"][0].clone()
}

/// Whether anything ever registered.
async fn is_untouched(rig: &Rig) -> bool {
    rig.client.get(&format!("{}/v1/workers", rig.admin())).await.json["generation"] == 0
}

/// Runs to the end and expects an error that says all of `parts`.
fn refused(args: &[&str], parts: &[&str]) {
    let ended = Process::run(args);
    assert!(matches!(ended.code, Some(1 | 2)), "{args:?} ended with {:?}: {}", ended.code, ended.stderr);
    for part in parts {
        assert!(ended.stderr.contains(part), "{args:?} does not say '{part}': {}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_here_knows_is_the_engine_s_in_order() {
    for backend in ["vllm", "sglang", "trtllm"] {
        let worker = Process::start(&[
            "worker",
            backend,
            "org/model",
            "--tensor-x",
            "2",
            "--worker-id",
            "7",
            "--enforce-y",
            "--port",
            "1",
            "--router-mode",
            "kv",
            "-z",
            "3",
            "--",
            "--model-name",
            "theirs",
            "--router-mode",
            "theirs",
        ]);
        let logged = worker
            .logged("engine arguments are read for the card and not applied: this command starts no engine")
            .await;
        assert_eq!(logged["level"], "WARN");
        assert_eq!(
            logged["arguments"],
            "org/model --tensor-x 2 --enforce-y --port 1 -z 3 --model-name theirs --router-mode theirs"
        );
        // The port is read, although it has no other effect.
        let waiting = worker.logged("waiting for the engine").await;
        assert_eq!(waiting["engine"], "http://127.0.0.1:1/");
        worker.signal("TERM");
        assert_eq!(worker.end().code, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mock_is_started_with_its_arguments_and_registered() {
    let rig = frontend().await;
    let admin = rig.admin();
    let args = ["worker", "mock", "--block-size", "32", "--frontend", &admin, "--namespace", "blue", "--"];
    let args = [&args[..], &FREE_PORTS, &["--model-name", "mine"]].concat();
    let worker = Process::start(&args);
    let set = set(&rig).await;
    assert_eq!((&set["model"], &set["block_size"]), (&json!("mine"), &json!(32)));
    assert!(set["worker_set"].as_str().unwrap().contains("blue.backend.generate"), "{set}");
    rig.wait_for_streams("live").await;
    let answer =
        rig.post("/v1/completions", &json!({"model": "mine", "prompt": "hello", "max_tokens": 2})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);

    worker.signal("TERM");
    worker.logged("worker deregistered").await;
    assert_eq!(worker.end().code, Some(0));
    assert!(rig.workers().await.is_empty(), "its lease is not over yet");
}

/// The value and the source of every fact in a log.
fn facts(log: &str) -> Vec<(String, String, String)> {
    let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    entries
        .map(|entry| entry["fields"].clone())
        .filter(|fields| fields["message"] == "engine fact")
        .map(|fields| (text(&fields["fact"]), text(&fields["value"]), text(&fields["from"])))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn where_each_value_came_from_is_logged() {
    let settings = with_lasting_ports(engine_settings());
    let (port, events) = (settings.http.port().to_string(), settings.events.clone().unwrap().address);
    let events = events.replace("127.0.0.1", "*");
    let engine = MockEngine::start(settings).await.unwrap();
    let rig = frontend().await;
    let admin = rig.admin();
    let config =
        json!({ "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": events }).to_string();
    let worker = Process::start(&[
        "worker",
        "vllm",
        "--frontend",
        &admin,
        "--model-name",
        MODEL,
        "--port",
        &port,
        "--kv-events-config",
        &config,
    ]);
    worker.logged("worker registered").await;
    assert_eq!(rig.workers().await[0]["stream"]["endpoint"], events);
    worker.signal("INT");
    let ended = worker.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let expected = [
        ("model", MODEL, "--model-name"),
        ("block size", "16", "GET /metrics"),
        ("ranks", "1", "GET /kv_event_sources"),
        ("KV blocks", "4096", "GET /metrics"),
        ("KV events", &format!("{events}, no replay"), "engine argument --kv-events-config"),
    ];
    let expected = expected.map(|(fact, value, from)| (fact.to_owned(), value.to_owned(), from.to_owned()));
    assert_eq!(facts(&ended.stderr), expected);
    engine.stop().await;
}

#[test]
fn a_mistake_is_named_whoever_it_belongs_to() {
    refused(&["worker"], &["vllm", "sglang", "trtllm", "mock"]);
    refused(&["worker", "llama"], &["llama"]);
    refused(&["worker", "mock", "--no-such-flag"], &["mock engine", "--no-such-flag"]);
    refused(&["worker", "mock", "--model-nam", "x"], &["--model-nam", "--model-name"]);
    // A misspelt router flag would otherwise be handed to an engine that is not started.
    refused(
        &["worker", "vllm", "--router-temprature", "1"],
        &["--router-temprature", "--router-temperature"],
    );
    refused(&["worker", "vllm", "--router-mod", "kv"], &["--router-mod", "--router-mode"]);
    refused(&["worker", "vllm", "--load-awar"], &["--load-awar", "--load-aware"]);
    refused(&["worker", "sglang", "--shared-cache-mult", "1"], &["--shared-cache-mult", "multiplier"]);
    refused(&["worker", "vllm", "--router-mode", "bogus"], &["--router-mode", "bogus", "round-robin"]);
    refused(&["worker", "vllm", "--frontend", "ftp://a:1"], &["--frontend", "ftp://a:1", "http://HOST:PORT"]);
    refused(&["worker", "vllm", "--frontend", "http://router:1"], &["http://router:1", "--advertise-url"]);
    refused(&["worker", "sglang", "--kv-events-config", "{"], &["--kv-events-config"]);
    refused(&["worker", "vllm", "--kv-events-endpoint", "5557"], &["5557", "tcp://HOST:PORT"]);
}

/// The options of a command, and nothing else.
fn long_options(command: &Command) -> Vec<String> {
    command.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned).collect()
}

fn attached() -> Command {
    AttachArgs::augment_args(WorkerArgs::augment_args(Command::new("worker")))
}

/// A name that an engine has too would take the engine's value without a word.
fn no_collision(name: &str, worker: &Command, engine: &[&str]) {
    let worker = long_options(worker);
    assert!(worker.len() >= 10 && worker.iter().any(|option| option == "frontend"), "{worker:?}");
    let router = TABLE.iter().filter(|row| !row.workers_have_their_own);
    let router: Vec<_> = router.flat_map(Row::spellings).map(str::to_owned).collect();
    let everywhere = ["log", "log-format"].map(str::to_owned);
    let mut own: Vec<_> = worker.iter().chain(&router).chain(&everywhere).collect();
    let count = own.len();
    own.sort_unstable();
    own.dedup();
    assert_eq!(
        own.len(),
        count,
        "{name}: the worker's flags, the router's and those of every command overlap"
    );
    for option in &own {
        // Where options are read with underscores, too.
        for spelled in [*option, &option.replace('-', "_")] {
            assert!(!engine.contains(&spelled.as_str()), "{name} has --{spelled}");
        }
    }
    // What begins one of ours, and is more than its first word, is taken for an abbreviation and refused.
    for option in engine.iter().filter(|option| option.contains('-')) {
        let ours = own.iter().find(|own| own.starts_with(option));
        assert_eq!(ours, None, "{name} has --{option}");
    }
    // Where abbreviations are read, the only option that begins so is meant as well.
    for option in worker {
        let meant: Vec<_> = engine.iter().filter(|other| other.starts_with(&option)).collect();
        assert_ne!(meant.len(), 1, "{name} takes --{option} for --{}", meant[0]);
    }
}

fn recorded(options: &'static str) -> Vec<&'static str> {
    let options: Vec<_> = options.lines().filter_map(|line| line.strip_prefix("--")).collect();
    assert!(options.len() > 30, "{} options", options.len());
    options
}

#[test]
fn review_finding_08_no_flag_of_a_vllm_worker_is_an_option_of_vllm() {
    no_collision("vLLM", &attached(), &recorded(include_str!("fixtures/engine_options/vllm-0.32.0.txt")));
}

#[test]
fn review_finding_08_no_flag_of_an_sglang_worker_is_an_option_of_sglang() {
    no_collision("SGLang", &attached(), &recorded(include_str!("fixtures/engine_options/sglang-0.5.23.txt")));
}

#[test]
fn review_finding_08_no_flag_of_a_trtllm_worker_is_an_option_of_tensorrt_llm() {
    no_collision("TensorRT-LLM", &attached(), &recorded(include_str!("fixtures/engine_options/trtllm.txt")));
}

#[test]
fn review_finding_08_no_flag_of_a_mock_worker_is_an_option_of_the_mock() {
    let mock = long_options(&MockArgs::augment_args(Command::new("mock")));
    let mock: Vec<_> = mock.iter().map(String::as_str).collect();
    assert!(mock.contains(&"model-name"), "{mock:?}");
    no_collision("the mock", &WorkerArgs::augment_args(Command::new("worker")), &mock);
}

#[tokio::test(flavor = "multi_thread")]
async fn review_finding_02_an_invalid_configuration_stops_the_worker_before_it_registers() {
    let rig = frontend().await;
    let kv = ["--router-mode", "kv"];
    for (flags, part) in [
        (&["--router-temperature", "-5"][..], "router_temperature must be finite and non-negative"),
        (&["--router-host-cache-hit-weight", "2"], "host_cache_hit_weight must be between 0 and 1"),
        (
            &["--router-track-output-blocks", "--no-router-track-active-blocks"],
            "requires router_track_active_blocks",
        ),
    ] {
        let ended = mock(&rig, &[&kv[..], flags].concat(), &[]).end();
        assert!(matches!(ended.code, Some(1 | 2)) && ended.stderr.contains(part), "{}", ended.stderr);
        assert!(!ended.stderr.contains("register"), "it is no failed registration: {}", ended.stderr);
    }
    let ended = mock(&rig, &[], &[("DYN_ROUTER_MODE", "bogus")]).end();
    assert!(ended.stderr.contains("DYN_ROUTER_MODE") && ended.stderr.contains("bogus"), "{}", ended.stderr);
    assert_eq!(ended.code, Some(1));
    assert!(is_untouched(&rig).await);
}

#[test]
fn review_finding_07_the_frontend_s_flags_are_refused_on_every_worker() {
    let withheld: Vec<_> = TABLE.iter().filter(|row| row.frontend_only()).collect();
    for name in ["router-min-initial-workers", "enforce-disagg", "admission-control"] {
        assert!(withheld.iter().any(|row| row.flag == name), "--{name}");
    }
    for backend in ["vllm", "sglang", "trtllm", "mock"] {
        for flags in [
            &["--router-min-initial-workers", "2"][..],
            &["--enforce-disagg"],
            &["--no-enforce-disagg"],
            &["--admission-control", "none"],
            &["--serve-indexer"],
        ] {
            let args = [&["worker", backend], flags].concat();
            refused(&args, &[flags[0], "belongs to the frontend", "kvroute frontend"]);
        }
        // What is left out of the help is refused all the same.
        let help = Process::run(&["worker", backend, "--help"]).stdout;
        assert!(help.contains("--router-mode") && !help.contains("--admission-control"), "{help}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn review_finding_09_following_events_and_publishing_them_are_set_apart() {
    let registered = async |flags: &[&str]| {
        let rig = frontend().await;
        let worker = mock(&rig, flags, &[]);
        let set = set(&rig).await;
        let stream = rig.workers().await[0]["stream"].clone();
        drop(worker);
        let follows = !["absent", "approximate"].contains(&stream["state"].as_str().unwrap());
        (!stream["endpoint"].is_null(), follows, set["router_config"].clone())
    };
    // Whether the worker announces events is one thing, what it asks of routers another, in both directions.
    let follow = ["--router-mode", "kv", "--router-kv-events"];
    let (silent, nothing, asked) = registered(&[&follow[..], &["--no-publish-kv-events"]].concat()).await;
    let (publishes, follows, asked_too) = registered(&[&follow[..], &["--publish-kv-events"]].concat()).await;
    assert_eq!(((silent, nothing), (publishes, follows)), ((false, false), (true, true)));
    assert_eq!(asked, asked_too);
    // Routers are asked to leave events alone; the worker announces them all the same.
    for flags in [&["--load-aware"][..], &["--router-mode", "kv", "--no-router-kv-events"]] {
        let (publishes, follows, asked) = registered(flags).await;
        assert_eq!((publishes, follows), (true, false), "{flags:?}");
        assert_eq!(asked["kv_router_config"]["use_kv_events"], false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn review_finding_10_a_worker_says_what_it_advertises_and_who_asked_for_it() {
    let rig = frontend().await;
    let advertising = "advertising a router configuration on the card";
    let shared = [("DYN_ROUTER_MODE", "random")];
    for (flags, environment, expected) in [
        (&["--router-mode", "kv"][..], &shared[..], ("kv", "flag", "--router-mode")),
        (&[], &shared, ("random", "environment", "DYN_ROUTER_MODE")),
        (&["--load-aware"], &[], ("kv", "flag", "--load-aware")),
        (&[], &[("DYN_ROUTER_LOAD_AWARE", "on")], ("kv", "environment", "--load-aware")),
    ] {
        let logged = mock(&rig, flags, environment).logged(advertising).await;
        let (mode, source, from) = expected;
        assert_eq!(
            (&logged["mode"], &logged["source"], &logged["from"]),
            (&json!(mode), &json!(source), &json!(from))
        );
    }

    // Tuning alone: by a flag it is an error that names both, by a shared environment one warning.
    let ended = mock(&rig, &["--router-temperature", "0.5"], &[]).end();
    assert!(
        ended.stderr.contains("--router-temperature") && ended.stderr.contains("--router-mode"),
        "{}",
        ended.stderr
    );
    assert_eq!(ended.code, Some(1));
    let rig = frontend().await;
    let worker = mock(&rig, &[], &[("DYN_ROUTER_TEMPERATURE", "0.5")]);
    worker.logged("advertising no router configuration: the set inherits the frontend's").await;
    assert_eq!(set(&rig).await["router_config_from"], "frontend");
    worker.signal("TERM");
    let stderr = worker.end().stderr;
    let warnings: Vec<_> = stderr.lines().filter(|line| line.contains(r#""level":"WARN""#)).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("DYN_ROUTER_TEMPERATURE"), "{warnings:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn review_finding_11_the_set_routes_by_the_worker_s_tuning() {
    let rig = frontend().await;
    let flags = ["--router-mode", "kv", "--router-kv-overlap-score-credit", "2.5"];
    let worker = mock(&rig, &flags, &[]);
    let set = set(&rig).await;
    assert_eq!(set["router_config"]["router_mode"], "k_v");
    assert_eq!(set["router_config"]["kv_router_config"]["overlap_score_credit"], 2.5);
    assert_eq!(set["router_config_from"], "card");
    drop(worker);
}

#[tokio::test(flavor = "multi_thread")]
async fn review_finding_12_a_worker_without_flags_inherits() {
    let rig = frontend().await;
    let worker = mock(&rig, &[], &[]);
    let set = set(&rig).await;
    assert_eq!(set["router_config_from"], "frontend");
    assert_eq!(set["router_config"]["router_mode"], "round_robin");
    assert_eq!(set["model"], MODEL);
    drop(worker);
}

/// Processes of both roles, and nothing said on the frontend.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_and_a_decode_worker_find_each_other() {
    let rig = frontend().await;
    let prefill = mock(&rig, &["--router-mode", "kv", "--worker-id", "1", "--role", "prefill"], &[]);
    let decode = mock(&rig, &["--worker-id", "2", "--role", "decode"], &[]);
    eventually("both are there", async || rig.workers().await.len() == 2).await;
    let mut body = chat("a", "b");
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });
    let answer = rig.post("/v1/chat/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let told = &answer.json["nvext"]["worker_id"];
    assert_eq!((&told["prefill_worker_id"], &told["decode_worker_id"]), (&json!(1), &json!(2)));
    let explain = rig.explain(&body).await;
    let modes = (&explain["prefill"]["router_mode"], &explain["router_mode"]);
    assert_eq!(modes, (&json!("kv"), &json!("round-robin")), "each by its own card or what it inherits");
    drop((prefill, decode));
}
