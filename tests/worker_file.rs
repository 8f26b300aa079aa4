//! `kvroute worker --worker-config FILE`: what the file says, what wins over it, and who is said to have said it.

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

use kvroute::{select::Mode, worker::mock::MockEngine};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::{
    process::{FREE_PORTS, Process, file, path},
    rig::{MODEL, Rig, engine_settings, eventually, plan},
};

/// A frontend that routes by round-robin, so that a set in mode kv has it from its card.
async fn frontend() -> Rig {
    Rig::start_plan(plan(Mode::RoundRobin, Vec::new()), Vec::new()).await
}

fn mock(file: &NamedTempFile, flags: &[&str], environment: &[(&str, &str)]) -> Process {
    let args = [&["worker", "mock", "--worker-config", path(file)], flags, &FREE_PORTS].concat();
    Process::start_with(&args, environment)
}

async fn set(rig: &Rig) -> Value {
    let get = async || rig.client.get(&format!("{}/v1/worker-sets", rig.admin())).await.json;
    eventually("a worker set", async || get().await["worker_sets"][0].is_object()).await;
    get().await["worker_sets"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_what_its_file_says() {
    let rig = frontend().await;
    let file = file(format!(
        "[worker]\nfrontend = ['{}']\nworker_id = 7\nnamespace = 'filed'\npublish_kv_events = false\n\
         [router]\nrouter_mode = 'kv'\nrouter_kv_overlap_score_credit = 2.5\n",
        rig.admin()
    ));
    let worker = mock(&file, &[], &[]);
    let advertising = worker.logged("advertising a router configuration on the card").await;
    assert_eq!(advertising["source"], "file");
    assert_eq!(advertising["from"], path(&file));
    let set = set(&rig).await;
    assert_eq!(set["worker_set"], "mock@filed.backend.generate/aggregated");
    assert_eq!(set["router_config_from"], "card");
    assert_eq!(set["router_config"]["router_mode"], "k_v");
    assert_eq!(set["router_config"]["kv_router_config"]["overlap_score_credit"], 2.5);
    let registered = &rig.workers().await[0];
    assert_eq!((&registered["id"], &registered["stream"]["state"]), (&json!(7), &json!("approximate")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flag_wins_over_a_variable_and_that_over_the_file() {
    for (flags, environment, namespace, mode) in [
        (&[][..], &[][..], "filed", "kv"),
        (&[], &[("DYN_NAMESPACE", "shared"), ("DYN_ROUTER_MODE", "random")], "shared", "random"),
        (&[], &[("DYN_NAMESPACE", "shared"), ("KVROUTE_NAMESPACE", "own")], "own", "kv"),
        (
            &["--namespace", "flag", "--router-mode", "direct"],
            &[("KVROUTE_NAMESPACE", "own"), ("DYN_ROUTER_MODE", "random")],
            "flag",
            "direct",
        ),
    ] {
        let rig = frontend().await;
        let file = file(format!(
            "[worker]\nfrontend = ['{}']\nnamespace = 'filed'\n[router]\nrouter_mode = 'kv'\n",
            rig.admin()
        ));
        let _worker = mock(&file, flags, environment);
        let set = set(&rig).await;
        assert_eq!(set["worker_set"], format!("mock@{namespace}.backend.generate/aggregated"));
        let mode = if mode == "kv" { "k_v" } else { mode };
        assert_eq!(set["router_config"]["router_mode"], mode);
    }
}

/// What the file states of the engine is logged as the file's, under what flags state.
#[tokio::test(flavor = "multi_thread")]
async fn facts_of_the_engine_come_from_the_file_too() {
    let engine = MockEngine::start(engine_settings()).await.unwrap();
    let rig = frontend().await;
    let file = file(format!(
        "[worker]\nfrontend = ['{}']\n[engine]\nengine_url = 'http://{}'\nmodel_name = 'not-this'\n\
         engine_block_size = 16\nworker_type = 'decode'\n",
        rig.admin(),
        engine.http_addr()
    ));
    let args = ["worker", "vllm", "--model-name", MODEL];
    let worker = Process::start_with(&args, &[("KVROUTE_WORKER_CONFIG", path(&file))]);
    worker.logged("worker registered").await;
    assert_eq!(set(&rig).await["worker_type"], "decode");
    worker.signal("TERM");
    let log = worker.end().stderr;
    for (value, from) in [
        (MODEL.to_owned(), "--model-name".to_owned()),
        ("16".to_owned(), format!("engine_block_size in {}", path(&file))),
        ("decode".to_owned(), format!("worker_type in {}", path(&file))),
    ] {
        let told = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let found = told
            .map(|line| line["fields"].clone())
            .any(|fact| fact["value"] == value && fact["from"] == from);
        assert!(found, "{value} from {from}: {log}");
    }
    engine.stop().await;
}

#[test]
fn a_file_that_cannot_be_used_stops_the_worker() {
    for (text, parts) in [
        ("[router]\nrouter_temperature = 0.5\n", &["router_temperature", "--router-mode", "router_mode"][..]),
        ("[router]\nenforce_disagg = true\n", &["enforce_disagg", "belongs to the frontend"]),
        (
            "[router]\nrouter_mode = 'kv'\nrouter_replica_sync = true\n",
            &["router_replica_sync", "not in this version"],
        ),
        ("[router]\nrouter_mode = 'bogus'\n", &["line 2", "bogus", "round-robin"]),
        ("[worker]\nleese_secs = 5\n", &["line 2", "leese_secs", "lease_secs"]),
        ("[worker]\nfrontend = ['ftp://a:1']\n", &["ftp://a:1", "http://HOST:PORT"]),
        ("[engine]\nmodel_name = 'm'\n", &["[engine]", "worker mock"]),
        ("[[worker]]\nurl = 'http://a:1'\nmodel = 'm'\n", &["worker"]),
    ] {
        let file = file(text);
        let ended = mock(&file, &[], &[]).end();
        assert_eq!(ended.code, Some(1), "{text}{}", ended.stderr);
        for part in parts {
            assert!(ended.stderr.contains(part), "{text} does not say '{part}': {}", ended.stderr);
        }
    }
    let ended = Process::run(&["worker", "vllm", "--worker-config", "/not/there.toml"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("cannot read the configuration file /not/there.toml"), "{}", ended.stderr);
}
