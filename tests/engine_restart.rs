//! An engine is killed and another one starts at its ports: nothing of the first is credited to the second.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
};

use kvroute::{
    select::Mode,
    worker::mock::{MockEngine, MockSettings},
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

use crate::rig::{
    Http, Rig, candidate, chat, credit, engine_settings, eventually, lasting_port, plan, prose,
    with_lasting_ports, worker,
};

/// Where the story stands; what is observed is marked with what was certain before it was asked for.
const RUNNING: u8 = 0;
const KILLED: u8 = 1;
const LOSS_SEEN: u8 = 2;

/// One answer of `explain` about one worker.
#[derive(Debug)]
struct Observed {
    asked_in: u8,
    credit: u64,
    withheld_because: Value,
}

/// Asks `explain` about one worker again and again.
struct Watcher {
    phase: Arc<AtomicU8>,
    enough: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    task: JoinHandle<Vec<Observed>>,
}

impl Watcher {
    fn start(rig: &Rig, body: &Value, worker: u64) -> Self {
        let (phase, enough) = (Arc::new(AtomicU8::new(RUNNING)), Arc::new(AtomicBool::new(false)));
        let (url, body) = (format!("{}/v1/route/explain", rig.admin()), body.clone());
        let (client, now, done) = (rig.client.clone(), Arc::clone(&phase), Arc::clone(&enough));
        let answered = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&answered);
        let task = tokio::spawn(async move {
            let mut answers = Vec::new();
            while !done.load(Ordering::SeqCst) {
                let asked_in = now.load(Ordering::SeqCst);
                let explain = client.post(&url, &body).await.json;
                let withheld_because = candidate(&explain, worker)["withheld_because"].clone();
                answers.push(Observed { asked_in, credit: credit(&explain, worker), withheld_because });
                count.store(answers.len(), Ordering::SeqCst);
            }
            answers
        });
        Self { phase, enough, answered, task }
    }

    fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::SeqCst);
    }

    /// Waits for answers that were asked for from now on.
    async fn look(&self) {
        let until = self.answered.load(Ordering::SeqCst) + 4;
        eventually("explain answers", async || self.answered.load(Ordering::SeqCst) >= until).await;
    }

    /// Ends the watch and checks it: credit ends once and does not come back, and an answer that was asked for
    /// after the loss was known has none.
    async fn expect_no_ghost(self) {
        self.look().await;
        self.enough.store(true, Ordering::SeqCst);
        let answers = self.task.await.unwrap();
        let before = answers.iter().filter(|answer| answer.asked_in == RUNNING).count();
        let late = answers.iter().filter(|a| a.asked_in == KILLED && a.credit > 0).count();
        println!(
            "{} answers, {before} before the kill, {late} credited between kill and loss",
            answers.len()
        );
        assert!(before > 0 && answers[0].credit > 0, "there was something to lose");
        let last_credit = answers.iter().rposition(|answer| answer.credit > 0).unwrap();
        let ended = &answers[last_credit + 1..];
        assert!(answers[..=last_credit].iter().all(|a| a.credit > 0), "credit came back: {answers:?}");
        assert!(answers[last_credit].asked_in < LOSS_SEEN, "a ghost was credited: {answers:?}");
        for answer in ended {
            let because = &answer.withheld_because;
            assert!(because.is_null() || because == "unproven", "{answer:?}");
        }
        // Asked for after the successor was recognised.
        assert_eq!(ended.last().unwrap().withheld_because, Value::Null, "the old blocks are gone");
    }
}

async fn stream(rig: &Rig, worker: u64) -> Value {
    rig.worker(worker).await["stream"].clone()
}

/// Waits until the stream has found a new incarnation behind its endpoint and trusts it.
async fn wait_for_successor(rig: &Rig, worker: u64) {
    eventually("the new engine is recognised", async || {
        let stream = stream(rig, worker).await;
        stream["restarts"] == 1 && stream["state"] == "live"
    })
    .await;
}

async fn wait_for_loss(rig: &Rig, worker: u64) {
    eventually("the loss is seen", async || stream(rig, worker).await["state"] == "unproven").await;
}

/// Sends `body` to one worker; what was predicted for it and what it found, in tokens.
async fn predict_and_ask(rig: &Rig, worker: u64, body: &Value) -> (u64, u64) {
    let explain = rig.explain(body).await;
    let mut pinned = body.clone();
    pinned["nvext"] = json!({ "backend_instance_id": worker });
    let answer = rig.post("/v1/chat/completions", &pinned).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    // The engine always computes the last token, and with it that token's block.
    let reachable = (answer.prompt_tokens() - 1) / 16;
    (credit(&explain, worker).min(reachable) * 16, answer.cached_tokens())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_killed_engine_is_credited_to_its_successor() {
    let settings = with_lasting_ports(engine_settings());
    let mut rig = Rig::start_with(Mode::Kv, vec![settings.clone()]).await;
    let body = chat(&prose(1, 120), "what now?");
    predict_and_ask(&rig, 1, &body).await;
    rig.wait_for_events().await;
    let watcher = Watcher::start(&rig, &body, 1);
    watcher.look().await;
    let (predicted, found) = predict_and_ask(&rig, 1, &body).await;
    assert!(predicted > 0 && predicted == found, "{predicted} {found}");

    rig.engines.remove(0).stop().await;
    watcher.enter(KILLED);
    wait_for_loss(&rig, 1).await;
    watcher.enter(LOSS_SEEN);
    watcher.look().await;
    let explain = rig.explain(&body).await;
    assert_eq!(credit(&explain, 1), 0, "{explain}");
    assert_eq!(candidate(&explain, 1)["withheld_because"], "unproven", "{explain}");

    rig.engines.push(MockEngine::start(settings).await.unwrap());
    wait_for_successor(&rig, 1).await;
    assert_eq!(rig.engines[0].last_sequence(), None, "it has not said a word");
    let held = rig.workers().await[0]["cached_blocks"].clone();
    assert_eq!(held, json!({ "gpu": 0, "host": 0, "disk": 0, "external": 0 }));
    watcher.expect_no_ghost().await;

    let (predicted, found) = predict_and_ask(&rig, 1, &body).await;
    assert_eq!((predicted, found), (0, 0));
    rig.wait_for_events().await;
    let (predicted, found) = predict_and_ask(&rig, 1, &body).await;
    assert!(predicted > 0 && predicted == found, "{predicted} {found}");
    assert_eq!(rig.metric("kvroute_worker_restarts_total", "worker=\"1\"").await, 1.0);
}

/// The way to an engine's socket, which can be cut while the engine lives on.
struct Cable {
    port: u16,
    relay: Option<JoinHandle<()>>,
}

impl Cable {
    fn new() -> Self {
        Self { port: lasting_port(), relay: None }
    }

    fn endpoint(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    /// Connects whoever comes to `endpoint`.
    async fn plug(&mut self, endpoint: &str) {
        let to = endpoint.strip_prefix("tcp://").unwrap().to_owned();
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        self.relay = Some(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let mut far = TcpStream::connect(&to).await.unwrap();
                connections.spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
            }
        }));
    }

    /// Nobody is connected any more, and nobody can connect.
    async fn pull(&mut self) {
        let relay = self.relay.take().unwrap();
        relay.abort();
        assert!(relay.await.unwrap_err().is_cancelled());
    }
}

/// The engine is replaced while the router cannot look, and its successor publishes as many batches as it had,
/// and `more`: by the numbers alone it could be the same one.
async fn replaced_by_one_that_came_as_far(more: u64) {
    let mut settings = MockSettings { events: None, replay: None, ..with_lasting_ports(engine_settings()) };
    let open = engine_settings();
    (settings.events, settings.replay) = (open.events, open.replay);
    let first = MockEngine::start(settings.clone()).await.unwrap();
    let (mut events, mut replay) = (Cable::new(), Cable::new());
    events.plug(first.events_endpoint().unwrap()).await;
    replay.plug(first.replay_endpoint().unwrap()).await;
    let mut spec = worker(1, &first);
    (spec.kv_events_endpoint, spec.kv_replay_endpoint) = (Some(events.endpoint()), Some(replay.endpoint()));
    let mut rig = Rig::start_plan(plan(Mode::Kv, vec![spec]), vec![first]).await;
    rig.wait_for_streams("live").await;
    let prompt = |number| chat(&prose(number, 60), "what now?");
    for number in 0..5 {
        predict_and_ask(&rig, 1, &prompt(number)).await;
    }
    rig.wait_for_events().await;
    let watcher = Watcher::start(&rig, &prompt(1), 1);
    watcher.look().await;
    let (predicted, found) = predict_and_ask(&rig, 1, &prompt(1)).await;
    assert!(predicted > 0 && predicted == found, "{predicted} {found}");
    rig.wait_for_events().await;
    let reached = rig.engines[0].last_sequence().unwrap();

    events.pull().await;
    replay.pull().await;
    rig.engines.remove(0).stop().await;
    watcher.enter(KILLED);
    wait_for_loss(&rig, 1).await;
    watcher.enter(LOSS_SEEN);
    watcher.look().await;
    let second = MockEngine::start(settings).await.unwrap();
    let url = format!("http://{}/v1/chat/completions", second.http_addr());
    let mut asked = 100;
    while second.last_sequence().is_none_or(|last| last < reached + more) {
        let mut body = prompt(asked);
        // One batch a request.
        body["max_tokens"] = json!(1);
        rig.client.post(&url, &body).await;
        asked += 1;
    }
    assert_eq!(second.last_sequence(), Some(reached + more));
    events.plug(second.events_endpoint().unwrap()).await;
    replay.plug(second.replay_endpoint().unwrap()).await;
    rig.engines.push(second);
    wait_for_successor(&rig, 1).await;
    rig.wait_for_events().await;
    watcher.expect_no_ghost().await;
    for number in (0..5).chain(100..asked) {
        rig.wait_for_events().await;
        let (predicted, found) = predict_and_ask(&rig, 1, &prompt(number)).await;
        assert_eq!(predicted, found, "prompt {number}");
        assert_eq!(found > 0, number >= 100, "prompt {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_that_published_as_many_batches_is_not_taken_for_it() {
    replaced_by_one_that_came_as_far(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_whose_next_batch_would_follow_is_not_taken_for_it() {
    replaced_by_one_that_came_as_far(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_that_published_more_batches_is_not_taken_for_it() {
    replaced_by_one_that_came_as_far(20).await;
}

/// What became of one request of the traffic, and what was certain when it was sent.
struct Served {
    asked_in: u8,
    status: u16,
    worker: Option<u64>,
}

/// Sends one request after the other until told otherwise.
async fn traffic(
    client: Http,
    url: String,
    seed: u64,
    phase: Arc<AtomicU8>,
    enough: Arc<AtomicBool>,
) -> Vec<Served> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut served = Vec::new();
    while !enough.load(Ordering::SeqCst) {
        // Every other prompt is new, so that a worker that holds nothing gets its share.
        let system = if rng.bool() { rng.u64(..12) } else { rng.u64(10_000..) };
        let mut body = chat(&prose(system, 60), &prose(rng.u64(..100), 10));
        body["nvext"] = json!({ "extra_fields": ["worker_id"] });
        let asked_in = phase.load(Ordering::SeqCst);
        let answer = client.post(&url, &body).await;
        let worker = answer.json["nvext"]["worker_id"]["decode_worker_id"].as_u64();
        served.push(Served { asked_in, status: answer.status.as_u16(), worker });
    }
    served
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_restarts_while_others_serve() {
    let settings: Vec<_> = (0..3).map(|_| with_lasting_ports(engine_settings())).collect();
    let mut rig = Rig::start_with(Mode::Kv, settings.clone()).await;
    // No other request shares a block with it.
    let body = chat(&prose(1_000, 120), "what now?");
    predict_and_ask(&rig, 2, &body).await;
    rig.wait_for_events().await;
    let watcher = Watcher::start(&rig, &body, 2);
    watcher.look().await;
    let enough = Arc::new(AtomicBool::new(false));
    let url = format!("{}/v1/chat/completions", rig.public());
    let clients: Vec<_> = (0..4)
        .map(|seed| {
            let (phase, enough) = (Arc::clone(&watcher.phase), Arc::clone(&enough));
            tokio::spawn(traffic(rig.client.clone(), url.clone(), seed, phase, enough))
        })
        .collect();
    let chosen = async |rig: &Rig, worker: u64| {
        rig.metric("kvroute_worker_chosen_total", &format!("worker=\"{worker}\"")).await
    };
    eventually("all three serve", async || {
        chosen(&rig, 1).await > 2.0 && chosen(&rig, 2).await > 2.0 && chosen(&rig, 3).await > 2.0
    })
    .await;

    rig.engines.remove(1).stop().await;
    watcher.enter(KILLED);
    wait_for_loss(&rig, 2).await;
    watcher.enter(LOSS_SEEN);
    watcher.look().await;
    eventually("nobody is sent there any more", async || rig.workers().await[1]["excluded"] == "unroutable")
        .await;
    rig.engines.insert(1, MockEngine::start(settings[1].clone()).await.unwrap());
    wait_for_successor(&rig, 2).await;
    watcher.expect_no_ghost().await;
    let before = chosen(&rig, 2).await;
    eventually("it serves again", async || chosen(&rig, 2).await > before + 2.0).await;

    enough.store(true, Ordering::SeqCst);
    let mut served = Vec::new();
    for client in clients {
        served.extend(client.await.unwrap());
    }
    let failed: Vec<_> = served.iter().filter(|request| request.status != 200).collect();
    println!("{} requests, {} failed", served.len(), failed.len());
    for request in &failed {
        // What a killed engine had begun is lost: at most what each client had with it. All else goes elsewhere.
        assert_eq!((request.asked_in < LOSS_SEEN, request.status), (true, 502));
        assert_eq!(request.worker, None);
    }
    assert!(failed.len() <= 4, "{} failed", failed.len());
    rig.wait_for_idle().await;
    rig.wait_for_events().await;
    rig.wait_for_streams("live").await;
    for worker in 1..=3 {
        for number in 0..12 {
            rig.wait_for_events().await;
            let body = chat(&prose(number, 60), &prose(number, 10));
            let (predicted, found) = predict_and_ask(&rig, worker, &body).await;
            assert_eq!(predicted, found, "worker {worker}, prompt {number}");
        }
    }
}
