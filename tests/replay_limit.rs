//! Of many ranks that want a replay a few have one at a time, in the order in which they asked; the others say that they wait.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::JoinHandle,
};

use kvroute::{fleet::WorkerSpec, select::Mode};
use serde_json::json;

use crate::rig::{MODEL, Rig, eventually, plan};

const RANKS: u64 = 6;

/// The sockets of an engine that has said nothing, and answers replays when it is told to.
struct Silent {
    events: String,
    replay: String,
    asked: Arc<AtomicUsize>,
    answers: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Silent {
    fn start() -> Self {
        let context = zmq::Context::new();
        let bound = |kind| {
            let socket = context.socket(kind).unwrap();
            socket.set_linger(0).unwrap();
            socket.bind("tcp://127.0.0.1:*").unwrap();
            let endpoint = socket.get_last_endpoint().unwrap().unwrap();
            (socket, endpoint)
        };
        let (events, events_endpoint) = bound(zmq::PUB);
        let (replay, replay_endpoint) = bound(zmq::ROUTER);
        replay.set_rcvtimeo(20).unwrap();
        let (asked, answers) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let over = Arc::new(AtomicBool::new(false));
        let (count, may, stop) = (Arc::clone(&asked), Arc::clone(&answers), Arc::clone(&over));
        let thread = std::thread::spawn(move || {
            let _events = events;
            let mut waiting = Vec::new();
            while !stop.load(SeqCst) {
                if let Ok(request) = replay.recv_multipart(0) {
                    count.fetch_add(1, SeqCst);
                    waiting.push(request[0].clone());
                }
                if may.load(SeqCst) {
                    for asker in waiting.drain(..) {
                        let end = (-1_i64).to_be_bytes();
                        let _ = replay.send_multipart([&asker[..], b"", b"", &end, b""], zmq::DONTWAIT);
                    }
                }
            }
        });
        let (events, replay) = (events_endpoint, replay_endpoint);
        Self { events, replay, asked, answers, over, thread: Some(thread) }
    }

    fn was_asked(&self) -> bool {
        self.asked.load(SeqCst) > 0
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        let _ = self.thread.take().unwrap().join();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replays_at_a_time() {
    let engines: Vec<Silent> = (0..RANKS).map(|_| Silent::start()).collect();
    let workers = (1..).zip(&engines).map(|(id, engine)| WorkerSpec {
        id: Some(id),
        kv_events_endpoint: Some(engine.events.clone()),
        kv_replay_endpoint: Some(engine.replay.clone()),
        ..WorkerSpec::new(&format!("http://127.0.0.1:{id}"), MODEL)
    });
    let mut plan = plan(Mode::Kv, workers.collect());
    plan.settings.concurrent_replays = NonZeroUsize::new(2).unwrap();
    let rig = Rig::start_plan(plan, Vec::new()).await;

    let asked = || engines.iter().filter(|engine| engine.was_asked()).count();
    for done in 0..RANKS as usize {
        let running = 2.min(RANKS as usize - done);
        eventually("as many are asked as may be, and the rest wait", async || {
            let replaying = rig.metric("kvroute_replays_running", "").await as usize;
            let waiting = rig.metric("kvroute_replays_waiting", "").await as usize;
            assert!(replaying <= 2, "{replaying} at once");
            let workers = rig.workers().await;
            let say_so = workers.iter().filter(|worker| worker["stream"]["replay_waits"] == true);
            let in_state =
                |state: &str| workers.iter().filter(|worker| worker["stream"]["state"] == state).count();
            let waits = RANKS as usize - done - running;
            (replaying, waiting, say_so.count(), asked()) == (running, waits, waits, done + running)
                && (in_state("live"), in_state("replaying"), in_state("incomplete")) == (done, running, waits)
        })
        .await;
        let next = engines.iter().find(|e| e.was_asked() && !e.answers.load(SeqCst)).unwrap();
        next.answers.store(true, SeqCst);
    }
    rig.wait_for_streams("live").await;
    assert_eq!(rig.metric("kvroute_replays_running", "").await, 0.0);
    assert_eq!(rig.metric("kvroute_replays_limit", "").await, 2.0);
    assert!(engines.iter().all(|engine| engine.asked.load(SeqCst) == 1), "each asked once");
    let explained = rig.explain(&json!({ "model": MODEL, "prompt": "x" })).await;
    assert_eq!(explained["candidates"].as_array().unwrap().len(), RANKS as usize);
}
