//! A frontend and mock engines in this process, and a client over real sockets, for the scenarios beside it.

#![allow(dead_code, reason = "every scenario uses a part of the rig")]

pub(crate) mod pools;
pub(crate) mod scripted;
pub(crate) mod upstream;

use std::{
    io::Write as _,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use kvroute::{
    cli::assemble,
    config::{FrontendPlan, ModelEntry},
    fleet::{Api, ModelType, RouterConfig, WorkerSpec},
    frontend::{Frontend, FrontendSettings},
    prompt::Encoder,
    select::{Mode, Tuning},
    worker::mock::{Endpoint, MockEngine, MockSettings},
};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use self::pools::Pools;

/// The model that rigs serve.
pub(crate) const MODEL: &str = "mock";

/// Where the project's own tokenizer lies.
pub(crate) const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tiny");

/// A running frontend with its engines.
pub(crate) struct Rig {
    pub(crate) frontend: Frontend,
    pub(crate) engines: Vec<MockEngine>,
    pub(crate) client: Http,
}

/// A fast engine: time passes, but little of it.
pub(crate) fn engine_settings() -> MockSettings {
    let encoder = Arc::new(Encoder::tiny().unwrap());
    MockSettings { model: MODEL.to_owned(), speedup: 100.0, ..MockSettings::new(encoder) }
}

/// An engine with another chat template than the frontend has.
pub(crate) fn other_template(settings: MockSettings) -> MockSettings {
    let mut file = NamedTempFile::new().unwrap();
    write!(file, "{{% for m in messages %}}[{{{{ m.role }}}}] {{{{ m.content }}}}\n{{% endfor %}}").unwrap();
    let encoder = Arc::new(Encoder::load(Path::new(TINY), Some(file.path())).unwrap());
    MockSettings { encoder, ..settings }
}

/// The project's tokenizer with a template that says, beyond its own, which tools there are.
pub(crate) fn tool_template() -> Encoder {
    let config = std::fs::read_to_string(Path::new(TINY).join("tokenizer_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let mut file = NamedTempFile::new().unwrap();
    let own = config["chat_template"].as_str().unwrap();
    write!(file, "{{%- if tools %}}{{{{- tools | tojson }}}}{{%- endif %}}\n{own}").unwrap();
    Encoder::load(Path::new(TINY), Some(file.path())).unwrap()
}

/// An engine with another tokenizer than the frontend has: it joins fewer pieces.
pub(crate) fn other_tokenizer(settings: MockSettings) -> MockSettings {
    let folder = tempfile::tempdir().unwrap();
    let read = |name| std::fs::read_to_string(Path::new(TINY).join(name)).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&read("tokenizer.json")).unwrap();
    tokenizer["model"]["merges"].as_array_mut().unwrap().truncate(400);
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), read("tokenizer_config.json")).unwrap();
    MockSettings { encoder: Arc::new(Encoder::load(folder.path(), None).unwrap()), ..settings }
}

/// How the frontend is told of an engine.
pub(crate) fn worker(id: u64, engine: &MockEngine) -> WorkerSpec {
    WorkerSpec {
        id: Some(id),
        kv_events_endpoint: engine.events_endpoint().map(str::to_owned),
        kv_replay_endpoint: engine.replay_endpoint().map(str::to_owned),
        ..WorkerSpec::new(&format!("http://{}", engine.http_addr()), MODEL)
    }
}

/// The same with all that a mock engine serves, which no worker says by itself.
pub(crate) fn embedder(id: u64, engine: &MockEngine) -> WorkerSpec {
    let model_type = ModelType::of(&[Api::Chat, Api::Completions, Api::Embedding]);
    WorkerSpec { model_type, ..worker(id, engine) }
}

/// What a worker posts about itself.
pub(crate) fn registration(spec: &WorkerSpec, lease_secs: Option<f64>) -> Value {
    let mut body = serde_json::to_value(spec).unwrap();
    if let Some(lease_secs) = lease_secs {
        body["lease_secs"] = json!(lease_secs);
    }
    body
}

/// A plan with free ports and the project's tokenizer.
pub(crate) fn plan(mode: Mode, workers: Vec<WorkerSpec>) -> FrontendPlan {
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    FrontendPlan {
        settings: FrontendSettings {
            public: local,
            admin: local,
            drain_timeout: Duration::from_secs(5),
            ..FrontendSettings::default()
        },
        router: RouterConfig { mode, tuning: Tuning::default() },
        workers,
        models: vec![ModelEntry { name: MODEL.to_owned(), tokenizer: TINY.into(), chat_template: None }],
    }
}

/// The same with `tuning`.
pub(crate) fn tuned(mode: Mode, tuning: Tuning, workers: Vec<WorkerSpec>) -> FrontendPlan {
    FrontendPlan { router: RouterConfig { mode, tuning }, ..plan(mode, workers) }
}

impl Rig {
    /// `count` engines behind a frontend that routes by `mode`.
    pub(crate) async fn start(mode: Mode, count: usize) -> Self {
        Self::start_with(mode, vec![engine_settings(); count]).await
    }

    /// The same with engines as given.
    pub(crate) async fn start_with(mode: Mode, settings: Vec<MockSettings>) -> Self {
        Pools::of(settings).await.behind(mode).await
    }

    /// `count` engines behind a frontend that routes by `mode` with `tuning`.
    pub(crate) async fn start_tuned(mode: Mode, tuning: Tuning, count: usize) -> Self {
        let pools = Pools::of(vec![engine_settings(); count]).await;
        pools.behind_plan(|workers| tuned(mode, tuning, workers)).await
    }

    /// A frontend as planned, over engines that run already, once every stream is live.
    pub(crate) async fn assemble(plan: FrontendPlan, engines: Vec<MockEngine>) -> Self {
        let rig = Self::start_plan(plan, engines).await;
        rig.wait_for_streams("live").await;
        rig
    }

    /// A frontend by `plan`, which knows of `engines` as much as it says.
    pub(crate) async fn start_plan(plan: FrontendPlan, engines: Vec<MockEngine>) -> Self {
        Self { frontend: assemble(plan).await.unwrap(), engines, client: Http::new() }
    }

    pub(crate) fn public(&self) -> String {
        format!("http://{}", self.frontend.public_addr())
    }

    pub(crate) fn admin(&self) -> String {
        format!("http://{}", self.frontend.admin_addr())
    }

    /// Posts to the public listener.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.client.post(&format!("{}{path}", self.public()), body).await
    }

    /// Posts to the admin listener.
    pub(crate) async fn ask(&self, path: &str, body: &Value) -> Answer {
        self.client.post(&format!("{}{path}", self.admin()), body).await
    }

    /// Registers a worker, by a lease of so many seconds or by the default one.
    pub(crate) async fn register(&self, spec: &WorkerSpec, lease_secs: Option<f64>) -> Answer {
        self.ask("/v1/workers", &registration(spec, lease_secs)).await
    }

    /// Takes a worker out.
    pub(crate) async fn remove(&self, id: u64) {
        let url = format!("{}/v1/workers/{id}", self.admin());
        let answer = self.client.request(Method::DELETE, &url, &[], &json!({})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }

    /// What the router would do with `body`.
    pub(crate) async fn explain(&self, body: &Value) -> Value {
        self.ask("/v1/route/explain", body).await.json
    }

    /// What the admin listener says of every rank.
    pub(crate) async fn workers(&self) -> Vec<Value> {
        let answer = self.client.get(&format!("{}/v1/workers", self.admin())).await;
        answer.json["workers"].as_array().unwrap().clone()
    }

    /// What it says of the first rank of one worker.
    pub(crate) async fn worker(&self, id: u64) -> Value {
        self.workers().await.into_iter().find(|worker| worker["id"] == id).unwrap()
    }

    /// A number from the metrics page, summed over the label sets that contain `labels`.
    pub(crate) async fn metric(&self, name: &str, labels: &str) -> f64 {
        let page = self.client.get(&format!("{}/metrics", self.admin())).await;
        metric(&page.text, name, labels)
    }

    /// How many requests ended so.
    pub(crate) async fn outcomes(&self, outcome: &str) -> u64 {
        self.metric("kvroute_requests_total", &format!("outcome=\"{outcome}\"")).await as u64
    }

    /// Waits until every engine has nothing to do and no request holds a block.
    pub(crate) async fn wait_for_free_engines(&self) {
        eventually("the engines stop working and free their blocks", async || {
            self.engines.iter().all(|e| e.running() + e.waiting() + e.used_blocks() == 0)
        })
        .await;
    }

    /// Waits until every rank's stream is in `state`.
    pub(crate) async fn wait_for_streams(&self, state: &str) {
        eventually(&format!("all streams {state}"), async || {
            let states = self.workers().await.into_iter().map(|worker| worker["stream"]["state"].clone());
            states.into_iter().all(|now| now == state || now == "absent" || now == "approximate")
        })
        .await;
    }

    /// Waits until the index has everything that the engines have published.
    pub(crate) async fn wait_for_events(&self) {
        eventually("the cursors reach the engines", async || {
            let workers = self.workers().await;
            self.engines
                .iter()
                .zip(&workers)
                .all(|(engine, worker)| engine.last_sequence() == worker["stream"]["cursor"].as_u64())
        })
        .await;
    }

    /// Waits until no request is in flight and every load is back at zero.
    pub(crate) async fn wait_for_idle(&self) {
        eventually("all loads return to zero", async || {
            let idle = self.workers().await.iter().all(|worker| {
                let load = &worker["load"];
                load["requests"] == 0 && load["prefill_tokens"] == 0 && load["decode_blocks"] == 0
            });
            idle && self.metric("kvroute_requests_in_flight", "").await == 0.0
        })
        .await;
    }
}

/// A port that nobody uses now, from below those that the system hands out: whoever gives it up can have it
/// again, though other tests run beside.
pub(crate) fn lasting_port() -> u16 {
    let mut ports = std::iter::repeat_with(|| fastrand::u16(12_000..32_000));
    ports.find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()).unwrap()
}

/// An engine whose ports are known before it starts, so that its successor can take them over.
pub(crate) fn with_lasting_ports(settings: MockSettings) -> MockSettings {
    let endpoint = || Some(Endpoint::bind(format!("tcp://127.0.0.1:{}", lasting_port())));
    let http = SocketAddr::from((Ipv4Addr::LOCALHOST, lasting_port()));
    MockSettings { http, events: endpoint(), replay: endpoint(), ..settings }
}

/// What `explain` says of one worker.
pub(crate) fn candidate(explain: &Value, worker: u64) -> &Value {
    let candidates = explain["candidates"].as_array().unwrap_or_else(|| panic!("{explain}"));
    candidates.iter().find(|candidate| candidate["worker_id"] == worker).unwrap()
}

/// How many blocks `explain` credits to one worker.
pub(crate) fn credit(explain: &Value, worker: u64) -> u64 {
    let overlap = candidate(explain, worker)["overlap_blocks"].as_object().unwrap();
    overlap.values().map(|blocks| blocks.as_u64().unwrap()).sum()
}

/// What a busy machine gets for anything that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until `done`, for as long as is reasonable.
pub(crate) async fn eventually(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !done().await {
        assert!(start.elapsed() < PATIENCE, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The sum of a metric's values over the label sets that contain `labels`.
pub(crate) fn metric(page: &str, name: &str, labels: &str) -> f64 {
    let lines = page.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(labels)
    });
    let values = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
    let values: Vec<_> = values.collect();
    assert!(!values.is_empty(), "no metric {name} with {labels}");
    values.iter().sum()
}

/// A chat that asks `text`, with `system` in front.
pub(crate) fn chat(system: &str, text: &str) -> Value {
    json!({
        "model": MODEL,
        "max_tokens": 4,
        "messages": [{ "role": "system", "content": system }, { "role": "user", "content": text }],
    })
}

/// About `words` words that the tokenizer splits into more tokens than that.
pub(crate) fn prose(seed: u64, words: usize) -> String {
    let mut rng = fastrand::Rng::with_seed(seed);
    let syllables = ["ba", "ker", "lo", "min", "tu", "shra", "vel", "oo", "pin", "dax"];
    let word = |rng: &mut fastrand::Rng| {
        let count = rng.usize(1..4);
        (0..count).map(|_| syllables[rng.usize(..syllables.len())]).collect::<String>()
    };
    (0..words).map(|_| word(&mut rng)).collect::<Vec<_>>().join(" ")
}

/// An answer, read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// `Null` if the body is not JSON.
    pub(crate) json: Value,
}

impl Answer {
    pub(crate) fn cached_tokens(&self) -> u64 {
        self.json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    }

    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.json["usage"]["prompt_tokens"].as_u64().unwrap()
    }

    /// The worker that `nvext.extra_fields: ["worker_id"]` made the answer name.
    pub(crate) fn worker(&self) -> u64 {
        self.json["nvext"]["worker_id"]["decode_worker_id"].as_u64().unwrap()
    }
}

/// An HTTP client with a pool.
#[derive(Clone)]
pub(crate) struct Http(Client<HttpConnector, Full<Bytes>>);

impl Http {
    pub(crate) fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }

    /// One that speaks HTTP/2 from the start: all its requests share a connection.
    pub(crate) fn over_http2() -> Self {
        Self(Client::builder(TokioExecutor::new()).http2_only(true).build_http())
    }

    pub(crate) async fn get(&self, url: &str) -> Answer {
        self.send(Request::get(url).body(Full::default()).unwrap()).await
    }

    pub(crate) async fn post(&self, url: &str, body: &Value) -> Answer {
        self.post_bytes(url, body.to_string()).await
    }

    pub(crate) async fn post_bytes(&self, url: &str, body: impl Into<Bytes>) -> Answer {
        let request = Request::post(url).header("content-type", "application/json");
        self.send(request.body(Full::new(body.into())).unwrap()).await
    }

    pub(crate) async fn request(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.header("content-type", "application/json");
        self.send(request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let response = self.0.request(request).await.unwrap();
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Answer { status: head.status, headers: head.headers, text, json }
    }

    /// Starts a request and hands out the body as it comes.
    pub(crate) async fn open(&self, url: &str, body: &Value) -> http::Response<Incoming> {
        let request = Request::post(url).header("content-type", "application/json");
        self.0.request(request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await.unwrap()
    }
}

/// A stream of events, as far as it came.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    pub(crate) text: String,
    /// Whether it broke off: HTTP did not say that it is over.
    pub(crate) broken: bool,
}

impl Transcript {
    /// Reads on until the end, or until `enough`.
    pub(crate) async fn read(&mut self, body: &mut Incoming, enough: impl Fn(&Self) -> bool) {
        while !enough(self) {
            match body.frame().await {
                Some(Ok(frame)) => {
                    let bytes = frame.into_data().unwrap_or_default();
                    self.text.push_str(std::str::from_utf8(&bytes).unwrap());
                }
                Some(Err(_)) => {
                    self.broken = true;
                    return;
                }
                None => return,
            }
        }
    }

    /// Reads a whole body.
    pub(crate) async fn of(body: &mut Incoming) -> Self {
        let mut transcript = Self::default();
        transcript.read(body, |_| false).await;
        transcript
    }

    /// The events that are whole.
    pub(crate) fn events(&self) -> Vec<&str> {
        let whole = self.text.rfind("\n\n").map_or("", |end| &self.text[..end]);
        whole.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
    }

    /// Events that carry a token.
    pub(crate) fn tokens(&self) -> usize {
        let has_token = |event: &&str| {
            let event: Value = serde_json::from_str(event).unwrap_or(Value::Null);
            event["choices"].as_array().is_some_and(|choices| !choices.is_empty())
        };
        self.events().into_iter().filter(has_token).count()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.events().last() == Some(&"[DONE]")
    }
}

/// A completion of `prompt` as a stream of `tokens` events, one a token, then one with the usage.
pub(crate) fn stream_of(prompt: &str, tokens: usize) -> Value {
    json!({
        "model": MODEL,
        "max_tokens": tokens,
        "prompt": prompt,
        "stream": true,
        "stream_options": { "include_usage": true },
    })
}
