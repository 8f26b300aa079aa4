//! The router and its engines, each a process of its own.

use std::{
    fs,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::Value;
use tempfile::{TempDir, tempdir};
use tokio::net::TcpStream;

use crate::{
    client::Client,
    ending::Ending,
    process::Process,
    reference::Reference,
    rig::{MODEL, TINY, eventually, lasting_port, metric},
    tally::Tally,
};

/// Tokens that a request may have.
pub(crate) const CONTEXT: u32 = 32_768;

/// Everything that runs.
pub(crate) struct World {
    pub(crate) router: Process,
    pub(crate) engines: Vec<Engine>,
    pub(crate) reference: Reference,
    pub(crate) tally: Tally,
    pub(crate) public: String,
    admin: String,
    client: Client,
    folder: TempDir,
    beside: String,
}

/// An engine that can be killed, and comes back where it was.
pub(crate) struct Engine {
    ports: [u16; 3],
    process: Mutex<Option<Process>>,
}

impl Engine {
    async fn new() -> Self {
        let engine = Self { ports: [(); 3].map(|()| lasting_port()), process: Mutex::new(None) };
        engine.start().await;
        engine
    }

    pub(crate) async fn start(&self) {
        let [http, events, replay] = self.ports;
        let (http, events, replay) = (
            format!("127.0.0.1:{http}"),
            // As in vLLM, an engine binds where there is a star.
            format!("tcp://*:{events}"),
            format!("tcp://*:{replay}"),
        );
        let context = CONTEXT.to_string();
        let process = Process::start(&[
            "--log",
            "warn",
            "mock",
            "--http",
            &http,
            "--kv-events-endpoint",
            &events,
            "--kv-replay-endpoint",
            &replay,
            // Small enough to be full after a minute: blocks are evicted, and the index does not grow on.
            "--engine-cache-tokens",
            "50000",
            "--max-model-len",
            &context,
            "--engine-speedup",
            "3",
        ]);
        *self.process.lock() = Some(process);
        let begun = Instant::now();
        while TcpStream::connect(&*http).await.is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the engine does not listen on {http}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Without a word to anybody.
    pub(crate) fn kill(&self) {
        drop(self.process.lock().take());
    }

    pub(crate) fn signal(&self, name: &str) {
        if let Some(process) = &*self.process.lock() {
            process.signal(name);
        }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    fn table(&self) -> String {
        let [_, events, replay] = self.ports;
        format!(
            "[[worker]]\nurl = '{}'\nmodel = '{MODEL}'\nkv_events_endpoint = 'tcp://127.0.0.1:{events}'\n\
             kv_replay_endpoint = 'tcp://127.0.0.1:{replay}'\nmax_num_batched_tokens = 8192\n\
             total_kv_blocks = 3125\nmax_model_len = {CONTEXT}\n",
            self.url()
        )
    }
}

/// Gauges of the router that are 0 when nobody asks for anything.
const ZERO: [&str; 15] = [
    "kvroute_requests_in_flight",
    "kvroute_open_requests",
    "kvroute_queue_requests",
    "kvroute_queue_prompt_tokens",
    "kvroute_queue_oldest_seconds",
    "kvroute_tokenizer_waiting",
    "kvroute_worker_requests",
    "kvroute_worker_prefill_tokens",
    "kvroute_worker_decode_blocks",
    "kvroute_worker_inhibited_seconds",
    "kvroute_access_log_waiting",
    "kvroute_access_log_failing",
    "kvroute_config_reload_failing",
    "kvroute_replays_running",
    "kvroute_replays_waiting",
];

/// Those of an engine.
const ENGINE_ZERO: [&str; 3] =
    ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"];

impl World {
    pub(crate) async fn start() -> Self {
        let mut engines = Vec::new();
        for _ in 0..4 {
            engines.push(Engine::new().await);
        }
        let folder = tempdir().unwrap();
        let log = folder.path().join("access");
        // Caches are small, so that they are full before it is looked whether memory grows.
        let mut beside = format!(
            "[frontend]\nport = 0\nadmin_port = 0\ntokenizer = ['{TINY}']\naccess_log = '{}'\n\
             tokenizer_cache_bytes = 2097152\n",
            log.display()
        );
        engines.iter().for_each(|engine| beside += &engine.table());
        let file = folder.path().join("router.toml");
        fs::write(&file, format!("[router]\nrouter_mode = 'kv'\n{beside}")).unwrap();
        let router = Process::start(&["frontend", "--config", file.to_str().unwrap()]);
        let up = router.logged("frontend is up").await;
        let url = |name: &str| format!("http://{}", up[name].as_str().unwrap());
        let (public, admin) = (url("public"), url("admin"));
        let reference = Reference::start().await;
        let (tally, client) = (Tally::default(), Client::new());
        let world = Self { router, engines, reference, tally, public, admin, client, folder, beside };
        world.streams_are_live().await;
        world
    }

    async fn streams_are_live(&self) {
        eventually("all streams are live", async || {
            let page = self.client.page(&format!("{}/v1/workers", self.admin)).await;
            let workers: Value = serde_json::from_str(&page).unwrap();
            workers["workers"].as_array().unwrap().iter().all(|worker| worker["stream"]["state"] == "live")
        })
        .await;
    }

    /// Replaces the file, and has it read: at once, or at a hangup. What should be taken is, and what should not is not.
    pub(crate) async fn reload(&self, router: &str, good: bool, hangup: bool) {
        let [next, file] = ["next", "router.toml"].map(|name| self.folder.path().join(name));
        fs::write(&next, format!("[router]\n{router}\n{}", self.beside)).unwrap();
        fs::rename(next, file).unwrap();
        if hangup {
            return self.router.signal("HUP");
        }
        let answer = self.client.post(&format!("{}/v1/config/reload", self.admin), "").await.unwrap();
        let expected = if good { 200 } else { 409 };
        if answer.status != expected {
            let what = format!("{answer:?} for {router}");
            self.tally.ended("reload", Ending::Defect(what));
        }
    }

    /// Waits until nothing is going on any more: with a good configuration, every stream live, no load, and no connection of a
    /// client, this test's included.
    pub(crate) async fn settle(&self) {
        self.reload("router_mode = 'kv'", true, false).await;
        self.streams_are_live().await;
        let mut left = Vec::new();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(90) {
            left = self.not_zero().await;
            if left.is_empty() {
                // Idle connections to workers are kept for 4 s, and looked at as often; those of this test for 2 s.
                tokio::time::sleep(Duration::from_secs(10)).await;
                left = self.not_zero().await;
                if left.is_empty() {
                    tokio::time::sleep(Duration::from_secs(5)).await;
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        panic!("not zero though nobody asks for anything: {}", left.join(", "));
    }

    async fn not_zero(&self) -> Vec<String> {
        let page = self.client.page(&format!("{}/metrics", self.admin)).await;
        let of_router = ZERO.iter().map(|name| ((*name).to_owned(), metric(&page, name, "")));
        let mut values: Vec<_> = of_router.collect();
        for engine in &self.engines {
            let page = self.client.page(&format!("{}/metrics", engine.url())).await;
            let of_engine = ENGINE_ZERO
                .iter()
                .map(|name| (format!("{name} of {}", engine.url()), metric(&page, name, "")));
            values.extend(of_engine);
        }
        let not_zero = values.into_iter().filter(|(_, value)| *value != 0.0);
        not_zero.map(|(name, value)| format!("{name} = {value}")).collect()
    }

    /// Ends the router; what it should not have said.
    pub(crate) async fn stop(self) -> Vec<String> {
        let counts = self.client.page(&format!("{}/metrics", self.admin)).await;
        let count = |name: &str, labels: &str| metric(&counts, name, labels);
        println!(
            "the router counted {} requests ok, {} cut, {} retries; {} reloads applied, {} refused; configuration {}",
            count("kvroute_requests_total", "outcome=\"ok\""),
            count("kvroute_requests_total", "outcome=\"cut\""),
            count("kvroute_retries_total", ""),
            count("kvroute_config_reloads_total", "outcome=\"applied\""),
            count("kvroute_config_reloads_total", "outcome=\"refused\""),
            count("kvroute_config_generation", ""),
        );
        let Self { router, .. } = self;
        router.signal("TERM");
        let ended = tokio::task::spawn_blocking(|| router.end()).await.unwrap();
        let mut problems = Vec::new();
        if ended.code != Some(0) {
            problems.push(format!("the router ended with {:?}", ended.code));
        }
        let is_known = |line: &&str| line.contains("the routing configuration was refused");
        let errors =
            ended.stderr.lines().filter(|line| line.contains("\"ERROR\"") || line.contains("panicked"));
        problems.extend(errors.filter(|line| !is_known(line)).map(str::to_owned));
        problems
    }
}
