//! The routing configuration of a frontend that serves: read again when its file changes, at SIGHUP, and when asked to.

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

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use kvroute::{
    fleet::WorkerSpec,
    worker::mock::{MockEngine, MockSettings},
};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::{
    process::{Ended, Process},
    rig::{
        Answer, Http, MODEL, TINY, Transcript, candidate, chat, credit, engine_settings, eventually, metric,
        pools::{CHAT, COMPLETIONS, Pools},
        prose, stream_of, worker,
    },
};

/// The real frontend with a file, in front of engines.
struct Router {
    process: Process,
    folder: TempDir,
    beside: String,
    public: String,
    admin: String,
    client: Http,
}

/// What stands beside `[router]`: free ports, the tokenizer, and the workers.
fn beside(workers: &[WorkerSpec]) -> String {
    let workers = toml::to_string(&BTreeMap::from([("worker", workers)])).unwrap();
    format!("[frontend]\nport = 0\nadmin_port = 0\ntokenizer = ['{TINY}']\n{workers}")
}

impl Router {
    async fn start(router: &str, workers: &[WorkerSpec]) -> Self {
        Self::start_with(router, workers, &[]).await
    }

    async fn start_with(router: &str, workers: &[WorkerSpec], flags: &[&str]) -> Self {
        let (folder, beside) = (tempdir().unwrap(), beside(workers));
        let file = folder.path().join("router.toml");
        fs::write(&file, format!("[router]\n{router}\n{beside}")).unwrap();
        let process = Process::start(&[&["frontend", "--config", file.to_str().unwrap()], flags].concat());
        let up = process.logged("frontend is up").await;
        let url = |name: &str| format!("http://{}", up[name].as_str().unwrap());
        let (public, admin) = (url("public"), url("admin"));
        let router = Self { process, folder, beside, public, admin, client: Http::new() };
        // It is read once more right after the start; what a test changes comes after that.
        eventually("the file is read again", async || router.reloads("unchanged").await == 1).await;
        router
    }

    /// Replaces the file in one step, as whoever deploys one does.
    fn write_whole(&self, text: &str) {
        let [next, file] = ["next", "router.toml"].map(|name| self.folder.path().join(name));
        fs::write(&next, text).unwrap();
        fs::rename(next, file).unwrap();
    }

    fn write(&self, router: &str) {
        self.write_whole(&format!("[router]\n{router}\n{}", self.beside));
    }

    async fn reload(&self) -> Answer {
        self.client.post(&format!("{}/v1/config/reload", self.admin), &Value::Null).await
    }

    async fn explain(&self, body: &Value) -> Value {
        self.client.post(&format!("{}/v1/route/explain", self.admin), body).await.json
    }

    async fn metric(&self, name: &str, labels: &str) -> f64 {
        metric(&self.client.get(&format!("{}/metrics", self.admin)).await.text, name, labels)
    }

    async fn generation(&self) -> u64 {
        self.metric("kvroute_config_generation", "").await as u64
    }

    async fn reloads(&self, outcome: &str) -> u64 {
        self.metric("kvroute_config_reloads_total", &format!("outcome=\"{outcome}\"")).await as u64
    }

    async fn set(&self, model: &str) -> Value {
        let sets = self.client.get(&format!("{}/v1/worker-sets", self.admin)).await.json;
        let of_model = sets["worker_sets"].as_array().unwrap().iter().find(|set| set["model"] == model);
        of_model.unwrap().clone()
    }

    async fn streams_are_live(&self) {
        eventually("all streams live", async || {
            let workers = self.client.get(&format!("{}/v1/workers", self.admin)).await.json;
            workers["workers"].as_array().unwrap().iter().all(|worker| worker["stream"]["state"] == "live")
        })
        .await;
    }

    async fn stop(self) -> Ended {
        self.process.signal("TERM");
        tokio::task::spawn_blocking(|| self.process.end()).await.unwrap()
    }
}

async fn engines(settings: MockSettings, count: usize) -> (Vec<MockEngine>, Vec<WorkerSpec>) {
    let Pools { engines, workers } = Pools::of(vec![settings; count]).await;
    (engines, workers)
}

/// A configuration that differs from the one before it in most of what can change.
fn configuration(number: u64) -> String {
    let credit = 1.0 + number as f64 / 64.0;
    let common = format!("router_kv_overlap_score_credit = {credit}\n");
    match number % 7 {
        0 => format!("{common}router_mode = 'kv'\nrouter_temperature = 0.5"),
        1 => "router_mode = 'round-robin'".to_owned(),
        2 => {
            format!("{common}router_mode = 'kv'\nrouter_queue_threshold = 0.5\nrouter_queue_policy = 'wspt'")
        }
        3 => format!(
            "{common}router_mode = 'kv'\nrouter_cost_model = 'blocks'\nrouter_prefill_load_scale = 20"
        ),
        4 => format!("{common}router_mode = 'kv'\nrouter_hold = 0.5"),
        5 => "router_mode = 'least-loaded'\nrouter_session_affinity_ttl_secs = 60".to_owned(),
        _ => format!("{common}router_mode = 'kv'\nrouter_track_active_blocks = false"),
    }
}

/// Asks on and on, every other time for a stream, until it is told to stop; how often it was answered.
async fn client(router: Arc<(String, Http)>, number: u64, stop: Arc<AtomicBool>) -> u64 {
    let (public, client) = &*router;
    let mut answered = 0;
    while !stop.load(Relaxed) {
        let prompt = prose(number % 5, 100 + 20 * (answered as usize % 5));
        if answered % 2 == 0 {
            let body = chat(&prompt, "and then?");
            let answer = client.post(&format!("{public}{CHAT}"), &body).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            assert_eq!(answer.json["usage"]["completion_tokens"], 4, "{}", answer.text);
        } else {
            let mut answer = client.open(&format!("{public}{COMPLETIONS}"), &stream_of(&prompt, 40)).await;
            assert_eq!(answer.status(), 200);
            let told = Transcript::of(answer.body_mut()).await;
            assert!(!told.broken && told.is_done() && told.tokens() == 40, "{}", told.text);
        }
        answered += 1;
    }
    answered
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_reloads_under_load_fail_nothing() {
    let (_engines, mut workers) = engines(engine_settings(), 3).await;
    for worker in &mut workers {
        worker.max_num_batched_tokens = Some(8192);
    }
    let router = Router::start(&configuration(0), &workers).await;
    router.streams_are_live().await;
    let stop = Arc::new(AtomicBool::new(false));
    let shared = Arc::new((router.public.clone(), Http::new()));
    let clients: Vec<_> =
        (0..12).map(|number| tokio::spawn(client(Arc::clone(&shared), number, Arc::clone(&stop)))).collect();
    for number in 1..=50 {
        let before = router.metric("kvroute_choices_total", "").await;
        router.write(&configuration(number));
        let answer = router.reload().await;
        assert_eq!((answer.status.as_u16(), &answer.json["config_generation"]), (200, &json!(number + 1)));
        // Under each of them somebody is served.
        eventually("requests are placed", async || {
            router.metric("kvroute_choices_total", "").await > before + 6.0
        })
        .await;
    }
    stop.store(true, Relaxed);
    let mut answered = 0;
    for client in clients {
        answered += client.await.unwrap();
    }
    assert!(answered > 300, "{answered} requests");
    let explained = router.explain(&chat("a", "b")).await;
    assert_eq!(explained["config_generation"], 51, "{explained}");
    let set = router.set(MODEL).await;
    assert_eq!(explained["router_config"], set["router_config"]);
    eventually("nothing is in flight", async || {
        let page = router.client.get(&format!("{}/metrics", router.admin)).await.text;
        ["kvroute_requests_in_flight", "kvroute_worker_requests", "kvroute_worker_decode_blocks"]
            .iter()
            .all(|name| metric(&page, name, "") == 0.0)
            && metric(&page, "kvroute_queue_requests", "") == 0.0
    })
    .await;
    assert_eq!(router.reloads("refused").await, 0);
    assert_eq!(router.generation().await, 51);
    assert_eq!(router.metric("kvroute_requests_total", "outcome=\"ok\"").await as u64, answered);
    println!("{answered} requests over 50 reloads, none failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_file_is_refused_as_at_the_start_and_the_old_configuration_holds() {
    let (_engines, workers) = engines(engine_settings(), 1).await;
    let router = Router::start("router_mode = 'kv'\nrouter_temperature = 0.25", &workers).await;
    let body = chat("a", "b");
    let before = router.explain(&body).await["router_config"].clone();
    let refusals = [
        ("router_mode = 'best'", "line 2"),
        ("router_mode = 'kv'\nrouter_temprature = 1.0", "did you mean `router_temperature`?"),
        ("router_mode = 'kv'\nrouter_temperature = -1.0", "line 3"),
        ("router_mode = 'kv'\nrouter_replica_sync = true", "not in this version"),
        ("router_mode = 'kv'\nrouter_conditional_disagg_config = '{}'", "requires router_conditional_disagg"),
    ];
    for (number, (bad, says)) in refusals.iter().enumerate() {
        router.write(bad);
        let answer = router.reload().await;
        assert_eq!(answer.status, 409, "{bad}: {}", answer.text);
        let message = answer.json["error"]["message"].as_str().unwrap();
        assert!(message.contains(says) && message.contains("router.toml"), "{message}");
        // What a start with the same file says is in the answer, word by word.
        let file = router.folder.path().join("router.toml");
        let start = Process::start(&["frontend", "--config", file.to_str().unwrap()]);
        let start = tokio::task::spawn_blocking(|| start.end()).await.unwrap();
        let (_, problem) = message.split_once("stays in force: ").unwrap();
        assert!(
            start.code != Some(0) && start.stderr.contains(problem.trim()),
            "{problem}\n{}",
            start.stderr
        );
        assert!(router.reloads("refused").await > number as u64);
        assert_eq!(router.metric("kvroute_config_reload_failing", "").await, 1.0);
    }
    fs::remove_file(router.folder.path().join("router.toml")).unwrap();
    assert_eq!(router.reload().await.status, 409, "a file that is gone changes nothing");

    assert_eq!(router.explain(&body).await["router_config"], before);
    assert_eq!(router.generation().await, 1);
    assert_eq!(router.client.post(&format!("{}{CHAT}", router.public), &body).await.status, 200);

    router.write("router_mode = 'kv'\nrouter_temperature = 0.5");
    assert_eq!(router.reload().await.json["config_generation"], 2);
    assert_eq!(router.metric("kvroute_config_reload_failing", "").await, 0.0);
    let ended = router.stop().await;
    let refused = ended
        .stderr
        .lines()
        .filter(|line| line.contains("\"ERROR\"") && line.contains("the routing configuration was refused"));
    assert!(refused.count() >= refusals.len(), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_was_taken_in_under_needs_a_restart() {
    let (_engines, workers) = engines(engine_settings(), 1).await;
    let router = Router::start("router_mode = 'kv'", &workers).await;
    for (line, names) in [
        ("router_kv_events = false", "router_kv_events"),
        ("router_ttl_secs = 60", "router_ttl_secs"),
        ("router_predicted_ttl_secs = 5", "router_predicted_ttl_secs"),
        ("namespace = 'other'", "namespace"),
    ] {
        router.write(&format!("router_mode = 'kv'\nrouter_temperature = 0.5\n{line}"));
        let answer = router.reload().await;
        let message = answer.json["error"]["message"].as_str().unwrap().to_owned();
        assert!(answer.status == 409 && message.contains(names), "{message}");
        assert!(message.contains("cannot change while the frontend runs"), "{message}");
    }
    // Nor is the rest of such a file taken: it is all or nothing.
    assert_eq!(router.generation().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_beside_the_router_is_named_and_waits_for_a_restart() {
    let (_engines, workers) = engines(engine_settings(), 1).await;
    let router = Router::start("router_mode = 'kv'", &workers).await;
    let beside = router.beside.replace("admin_port = 0", "admin_port = 0\nretries = 5\nqueue_limit = 3");
    router.write_whole(&format!("[router]\nrouter_mode = 'random'\n{beside}"));
    let answer = router.reload().await;
    assert_eq!(
        (&answer.json["outcome"], &answer.json["needs_restart"]),
        (&json!("applied"), &json!(["frontend.queue_limit", "frontend.retries"])),
        "{}",
        answer.text
    );
    assert_eq!(answer.json["changed"], json!(["router_config.router_mode"]));
    let warned =
        router.process.logged("the file has changed in keys that only a start reads: they need a restart");
    assert_eq!(warned.await["keys"], "frontend.queue_limit, frontend.retries");
    assert_eq!(router.metric("kvroute_config_keys_needing_restart", "").await, 2.0);
    router.write("router_mode = 'random'");
    assert_eq!(router.reload().await.json["outcome"], "unchanged");
    assert_eq!(router.metric("kvroute_config_keys_needing_restart", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_file_is_noticed_and_a_hangup_does_not_wait_for_it() {
    let (_engines, workers) = engines(engine_settings(), 1).await;
    // A flag wins over the file, as at the start.
    let flags = ["--router-temperature", "0.75"];
    let router = Router::start_with("router_mode = 'kv'\nrouter_temperature = 0.1", &workers, &flags).await;
    router.write("router_mode = 'kv'\nrouter_kv_overlap_score_credit = 2.0\nrouter_temperature = 0.2");
    let noticed = router.process.logged("another routing configuration is in force").await;
    assert_eq!(
        (&noticed["generation"], &noticed["changed"]),
        (&json!(2), &json!("router_config.kv_router_config.overlap_score_credit"))
    );
    let explained = router.explain(&chat("a", "b")).await;
    assert_eq!(explained["config_generation"], 2);
    assert_eq!(explained["router_config"]["kv_router_config"]["overlap_score_credit"], 2.0);
    assert_eq!(explained["router_config"]["kv_router_config"]["router_temperature"], 0.75);

    router.write("router_mode = 'round-robin'");
    router.process.signal("HUP");
    eventually("the hangup is heard", async || router.generation().await == 3).await;
    // The same once more is nothing new, however often it is read.
    let before = router.reloads("unchanged").await;
    router.process.signal("HUP");
    eventually("it is read again", async || router.reloads("unchanged").await > before).await;
    router.write("router_mode = \"round-robin\" # in other words");
    assert_eq!(router.reload().await.json["outcome"], "unchanged");
    assert_eq!(router.generation().await, 3);
    assert_eq!(router.explain(&chat("a", "b")).await["config_generation"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_file_there_is_nothing_to_read_again() {
    let process = Process::start(&["frontend", "--port", "0", "--admin-port", "0"]);
    let up = process.logged("frontend is up").await;
    let url = format!("http://{}/v1/config/reload", up["admin"].as_str().unwrap());
    let answer = Http::new().post(&url, &Value::Null).await;
    assert_eq!(answer.status, 404);
    assert!(answer.text.contains("--config"), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn cards_keep_precedence_and_inherit_the_rest() {
    let (engines, _) = engines(engine_settings(), 2).await;
    let own = json!({ "router_mode": "k_v", "kv_router_config": { "overlap_score_credit": 3.0 } });
    let advertising = WorkerSpec {
        router_config: Some(serde_json::from_value(own).unwrap()),
        model: "own".to_owned(),
        ..worker(1, &engines[0])
    };
    let workers = [advertising, worker(2, &engines[1])];
    let router = Router::start("router_mode = 'random'", &workers).await;
    let before = router.set("own").await;
    router.write("router_mode = 'kv'\nrouter_hold = 1.5\nrouter_kv_overlap_score_credit = 2.0");
    assert_eq!(router.reload().await.json["outcome"], "applied");
    let (own, inheriting) = (router.set("own").await, router.set(MODEL).await);
    assert_eq!(
        (&own["router_config"], &own["router_config_from"]),
        (&before["router_config"], &json!("card"))
    );
    assert_eq!((&own["router_hold"], &own["router_hold_from"]), (&json!(1.5), &json!("frontend")));
    assert_ne!(own["cohorts"][0]["fingerprint"], before["cohorts"][0]["fingerprint"]);
    assert_eq!(inheriting["router_config"]["kv_router_config"]["overlap_score_credit"], 2.0);
    assert_eq!(
        (&inheriting["router_config"]["router_mode"], &inheriting["state"]),
        (&json!("k_v"), &json!("serving"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_would_stop_a_worker_set_is_refused() {
    let (engines, _) = engines(engine_settings(), 2).await;
    let told = json!({ "router_mode": "random" });
    let advertising =
        WorkerSpec { router_config: Some(serde_json::from_value(told).unwrap()), ..worker(1, &engines[0]) };
    let workers = [advertising, worker(2, &engines[1])];
    // One advertises what the frontend has and one nothing: they agree, as long as the frontend has that.
    for (policy, status) in [("stop", 409), ("keep-first", 200)] {
        let flags = ["--on-config-mismatch", policy];
        let router = Router::start_with("router_mode = 'random'", &workers, &flags).await;
        router.write("router_mode = 'kv'");
        let answer = router.reload().await;
        assert_eq!(answer.status, status, "{}", answer.text);
        assert_eq!(router.set(MODEL).await["state"], "serving");
        if status == 409 {
            assert!(answer.text.contains("router_config.router_mode"), "{}", answer.text);
            // Where the advertising one goes, nothing stands in the way.
            let url = format!("{}/v1/workers/1", router.admin);
            router.client.request(http::Method::DELETE, &url, &[], &json!({})).await;
            assert_eq!(router.reload().await.json["outcome"], "applied");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_begin_with_a_mode_that_asks_for_them() {
    let (_engines, workers) =
        engines(MockSettings { events: None, replay: None, ..engine_settings() }, 1).await;
    let router = Router::start("router_mode = 'round-robin'", &workers).await;
    let body = chat(&prose(3, 200), "once more");
    let ask = async || router.client.post(&format!("{}{CHAT}", router.public), &body).await.status;
    assert_eq!(ask().await, 200);
    assert_eq!(credit(&router.explain(&body).await, 1), 0);
    router.write("router_mode = 'kv'");
    assert_eq!(router.reload().await.status, 200);
    assert_eq!(candidate(&router.explain(&body).await, 1)["approximate"], true);
    assert_eq!(ask().await, 200);
    eventually("what was sent counts as cached", async || credit(&router.explain(&body).await, 1) > 5).await;
    router.write("router_mode = 'random'");
    assert_eq!(router.reload().await.status, 200);
    router.write("router_mode = 'kv'");
    assert_eq!(router.reload().await.status, 200);
    eventually("what was guessed before is dropped", async || credit(&router.explain(&body).await, 1) == 0)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_by_the_old_configuration_goes_by_the_new_one() {
    let slow = MockSettings { speedup: 1.0, prefill_tokens_per_second: 100.0, ..engine_settings() };
    let (_engines, mut workers) = engines(slow, 1).await;
    workers[0].max_num_batched_tokens = Some(256);
    let router = Router::start("router_mode = 'kv'\nrouter_queue_threshold = 0.0", &workers).await;
    let asking: Vec<_> = (0..3_u64)
        .map(|number| {
            let (client, url) = (router.client.clone(), format!("{}{CHAT}", router.public));
            tokio::spawn(async move { client.post(&url, &chat(&prose(number, 600), "?")).await.status })
        })
        .collect();
    let waiting = async || router.metric("kvroute_queue_requests", "").await;
    eventually("two wait", async || waiting().await == 2.0).await;
    router.write("router_mode = 'kv'");
    assert_eq!(router.reload().await.status, 200);
    eventually("nobody waits", async || waiting().await == 0.0).await;
    assert_eq!(
        router.metric("kvroute_requests_in_flight", "").await,
        3.0,
        "though the first is not served yet"
    );
    asking.iter().for_each(tokio::task::JoinHandle::abort);
}
