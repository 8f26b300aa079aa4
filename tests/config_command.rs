//! `kvroute config`: what is wrong with a file, and where each value came from.

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

use kvroute::{
    config::{
        ConfigFile,
        flags::{Status, TABLE},
    },
    fleet::{DeviceWeights, RouterConfig, WorkerSpec},
    frontend::AdminToken,
    select::{Mode, Tuning},
    worker::mock::MockEngine,
};
use serde_json::Value;

use crate::{
    process::{Ended, Process, file, path},
    rig::{Rig, TINY, engine_settings, plan, worker},
};

fn check(text: &str) -> Ended {
    let file = file(text);
    let mut ended = Process::run(&["config", "check", path(&file)]);
    ended.stdout = ended.stdout.replace(path(&file), "FILE");
    ended
}

/// Runs it to its end without blocking the servers of this test.
async fn run(args: &[&str], environment: &[(&str, &str)]) -> Ended {
    let process = Process::start_with(args, environment);
    tokio::task::spawn_blocking(|| process.end()).await.unwrap()
}

#[test]
fn bad_files_are_told_all_that_is_wrong_with_them() {
    for (text, expected) in [
        ("[frontend\n", &["FILE:1: error: "][..]),
        (
            "[frontend]\nport = 99999\nprot = 1\nrouter_mode = 'kv'\n[router]\nrouter_temperature = -1\n",
            &[
                "FILE:2: error: frontend.port: ",
                "FILE:3: error: frontend.prot: unknown field",
                "FILE:4: error: frontend.router_mode: unknown field",
                "FILE:6: error: router.router_temperature: ",
            ],
        ),
        (
            "[router]\nrouter_mode = 'kv'\nrouter_replica_sync = true\nrouter_track_output_blocks = true\n\
             router_track_active_blocks = false\n",
            &["FILE:3: error: ", "FILE:4: error: router_track_output_blocks requires"],
        ),
        (
            "[frontend]\ntokenizer = ['*=/not/there']\nadmin_host = '0.0.0.0'\n",
            &["FILE:2: error: tokenizer /not/there (model '*')", "FILE:3: error: --admin-host 0.0.0.0"],
        ),
        (
            "[[worker]]\nurl = 'ftp://a:1'\nmodel = 'm'\n[[worker]]\nurl = 'http://b:1'\nmodel = 'm'\n\
             [[worker]]\nurl = 'http://b:1'\nmodel = 'm'\n[[worker]]\nurl = 'http://c:1'\nmodel = 'm'\n\
             block_size = 32\n",
            &[
                "FILE:1: error: worker ftp://a:1: url",
                "FILE:4: hint: model 'm' has no tokenizer here",
                "FILE:7: error: worker http://b:1 is given twice",
                "FILE:10: error: worker set m@default.backend.generate/aggregated: its workers' cards differ in \
                 block_size",
            ],
        ),
    ] {
        let ended = check(text);
        assert_eq!(ended.code, Some(1), "{text}{ended:?}");
        let lines: Vec<_> = ended.stdout.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{lines:#?}");
        for (line, begins) in lines.iter().zip(expected) {
            assert!(line.starts_with(begins), "{line}\n{begins}");
        }
        let errors = expected.iter().filter(|line| line.contains(" error: ")).count();
        let count = if errors == 1 { "1 error".to_owned() } else { format!("{errors} errors") };
        assert!(ended.stderr.ends_with(&count), "{}", ended.stderr);
    }
}

#[test]
fn warnings_and_hints_do_not_fail() {
    let ended = check(
        "[router]\nrouter_mode = 'round-robin'\nrouter_prefill_load_scale = 20.0\n[[worker]]\nurl = 'http://a:1'\n\
         model = 'm'\n",
    );
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert!(
        lines[0].starts_with("FILE:3: warning: router_prefill_load_scale in FILE (20.0) changes nothing")
    );
    assert!(lines[1].starts_with("FILE:4: hint: model 'm' has no tokenizer"), "{lines:?}");
    assert_eq!(
        lines[2],
        "ok: router mode round-robin, 1 worker in 1 worker set, 0 models with a tokenizer; 1 warning; 1 hint"
    );
}

#[test]
fn a_file_that_starts_is_ok_whatever_the_environment_says() {
    let file = file(format!("[frontend]\ntokenizer = ['{TINY}']\n"));
    let environment = [("KVROUTE_PORT", "x"), ("DYN_ROUTER_MODE", "no-mode")];
    let ended = Process::start_with(&["config", "check", path(&file)], &environment).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(
        ended.stdout,
        "ok: router mode round-robin, 0 workers in 0 worker sets, 1 model with a tokenizer"
    );
}

#[test]
fn a_file_that_is_not_there_is_an_error() {
    let ended = Process::run(&["config", "check", "/not/there.toml"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("cannot read the configuration file /not/there.toml"), "{}", ended.stderr);
}

/// Value and source of a setting.
fn setting<'a>(shown: &'a Value, section: &str, name: &str) -> (&'a str, &'a str) {
    let settings = shown[section].as_array().unwrap();
    let setting = settings.iter().find(|setting| setting["name"] == name).unwrap();
    (setting["value"].as_str().unwrap(), setting["from"].as_str().unwrap())
}

#[test]
fn every_value_is_shown_with_where_it_came_from() {
    let file = file(
        "[frontend]\nport = 1\nadmin_port = 2\nretries = 3\n[router]\nrouter_mode = 'round-robin'\n\
         router_temperature = 0.5\nrouter_prefill_load_scale = 20.0\n",
    );
    let args = ["config", "show", "--config", path(&file), "--port", "9", "--router-mode", "kv"];
    let environment =
        [("KVROUTE_ADMIN_PORT", "8"), ("KVROUTE_PORT", "7"), ("DYN_ROUTER_TEMPERATURE", "0.25")];
    let json = Process::start_with(&[&args[..], &["--json"]].concat(), &environment).end();
    assert_eq!(json.code, Some(0), "{json:?}");
    let shown: Value = serde_json::from_str(&json.stdout).unwrap();
    let text = Process::start_with(&args, &environment).end().stdout;
    for (section, name, value, from) in [
        ("frontend", "port", "9", "--port"),
        ("frontend", "admin-port", "8", "KVROUTE_ADMIN_PORT"),
        ("frontend", "retries", "3", path(&file)),
        ("frontend", "host", "0.0.0.0", "default"),
        ("router", "router-mode", "kv", "--router-mode"),
        ("router", "router-temperature", "0.25", "DYN_ROUTER_TEMPERATURE"),
        ("router", "router-prefill-load-scale", "20.0", path(&file)),
        ("router", "router-kv-overlap-score-credit", "1.0", "default"),
    ] {
        assert_eq!(setting(&shown, section, name), (value, from), "{name}");
        let words = [name, value, from];
        assert!(text.lines().any(|line| line.split_whitespace().eq(words)), "{words:?}\n{text}");
    }
}

#[test]
fn the_settings_shown_are_the_keys_of_the_file() {
    let ended = Process::run(&["config", "show", "--json"]);
    let shown: Value = serde_json::from_str(&ended.stdout).unwrap();
    let error = toml::from_str::<ConfigFile>("[frontend]\nno-such-key = 1").unwrap_err();
    let (_, keys) = error.message().split_once("expected one of ").unwrap();
    let mut keys: Vec<_> = keys.split(", ").map(|key| key.trim_matches('`').replace('_', "-")).collect();
    // It is shown by what it becomes, the models.
    keys.retain(|key| key != "tokenizer");
    let settings = shown["frontend"].as_array().unwrap();
    let mut names: Vec<_> = settings.iter().map(|setting| setting["name"].as_str().unwrap()).collect();
    keys.sort_unstable();
    names.sort_unstable();
    assert_eq!(names, keys);
    let router = shown["router"].as_array().unwrap();
    let names: Vec<_> = router.iter().map(|setting| setting["name"].as_str().unwrap()).collect();
    let working = TABLE.iter().filter(|row| row.status == Status::Works);
    assert_eq!(names, working.map(|row| row.flag).collect::<Vec<_>>());
    for setting in settings.iter().chain(router) {
        assert_eq!(setting["from"], "default", "{setting}");
    }
}

#[test]
fn what_would_not_start_is_not_shown() {
    let ended = Process::run(&["config", "show", "--admin-host", "0.0.0.0"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert!(ended.stderr.contains("--admin-host 0.0.0.0 is not a loopback address"), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_frontend_is_asked_for_its_sets() {
    let mut engines = Vec::new();
    for _ in 0..3 {
        engines.push(MockEngine::start(engine_settings()).await.unwrap());
    }
    let tuning = Tuning { overlap_score_credit: 2.0, ..Tuning::default() };
    let kv = RouterConfig { mode: Mode::Kv, tuning };
    let unweighted: DeviceWeights = serde_json::from_str(r#"{ "enabled": false }"#).unwrap();
    let workers = vec![
        WorkerSpec { router_config: Some(kv), device_weights: Some(unweighted), ..worker(1, &engines[0]) },
        WorkerSpec { model: "split".to_owned(), ..worker(2, &engines[1]) },
        WorkerSpec { model: "split".to_owned(), max_model_len: Some(512), ..worker(3, &engines[2]) },
    ];
    let rig = Rig::assemble(plan(Mode::RoundRobin, workers), engines).await;
    let admin = rig.admin();

    let all = run(&["config", "show", "--admin", &admin], &[]).await;
    assert_eq!(all.code, Some(0), "{all:?}");
    assert_eq!(all.stdout.matches("worker set ").count(), 2, "{}", all.stdout);

    let of = async |name: &str| run(&["config", "show", "--admin", &admin, "--set", name], &[]).await.stdout;
    let mock = of("mock").await;
    let has = |text: &str, words: &str| {
        let found = text.lines().any(|line| line.split_whitespace().eq(words.split(' ')));
        assert!(found, "{words}\n{text}");
    };
    has(&mock, "worker set mock@default.backend.generate/aggregated");
    has(&mock, "state serving");
    has(&mock, "router configuration, from card");
    has(&mock, "router_mode kv");
    has(&mock, "kv_router_config.overlap_score_credit 2.0");
    has(&mock, "cost model, from frontend");
    has(&mock, "device weights, from card");
    has(&mock, "device_weights.enabled false");
    assert!(!mock.contains("split"), "{mock}");

    let split = of("split@default.backend.generate/aggregated").await;
    has(&split, "state conflict");
    has(&split, "cohorts, which differ in max_model_len");
    has(&split, "max_model_len null");
    has(&split, "max_model_len 512");

    let json = run(&["config", "show", "--admin", &admin, "--set", "split", "--json"], &[]).await;
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["worker_sets"].as_array().unwrap().len(), 1);
    assert_eq!(json["worker_sets"][0]["model"], "split");

    let unknown = run(&["config", "show", "--admin", &admin, "--set", "other"], &[]).await;
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.stderr.contains("there is no such worker set"), "{}", unknown.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_listener_with_a_token_is_shown_it() {
    let mut plan = plan(Mode::RoundRobin, Vec::new());
    plan.settings.admin_token = AdminToken::new("s3cret").ok();
    let rig = Rig::start_plan(plan, Vec::new()).await;
    let admin = rig.admin();
    let without = run(&["config", "show", "--admin", &admin], &[]).await;
    assert_eq!(without.code, Some(1));
    assert!(without.stderr.contains("--admin-token-file"), "{}", without.stderr);
    let token = file("s3cret\n");
    let with = run(&["config", "show", "--admin", &admin, "--admin-token-file", path(&token)], &[]).await;
    assert_eq!((with.code, with.stdout.as_str()), (Some(0), "no worker sets"), "{with:?}");
}

#[test]
fn a_frontend_that_is_not_there_is_said_to_be_so() {
    let ended = Process::run(&["config", "show", "--admin", "http://127.0.0.1:1"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("is a frontend running"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("worker"), "{}", ended.stderr);
}

#[test]
fn the_sample_of_the_router_flags_is_ok() {
    let ended = Process::run(&["config", "check", concat!(env!("CARGO_MANIFEST_DIR"), "/docs/router.toml")]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
