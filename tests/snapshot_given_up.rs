//! Ranks of a snapshot that never register: their time ends, and the log says so, whether or not anybody reads metrics.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod log_capture;
mod rig;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use kvroute::{
    fleet::{Fleet, RouterConfig, StreamState},
    frontend::{App, Frontend, Prompts},
    ingest::{FleetStreams, IngestSettings, Snapshot},
    select::{Mode, Tuning},
    worker::mock::MockEngine,
};

use crate::{
    log_capture::Log,
    rig::{engine_settings, eventually, plan, worker},
};

fn fleet(streams: &FleetStreams) -> Arc<Fleet> {
    let router = RouterConfig { mode: Mode::Kv, tuning: Tuning::default() };
    Arc::new(Fleet::new(router, Box::new(streams.clone())))
}

/// What a router knows of one engine.
async fn snapshot() -> Snapshot {
    let engine = MockEngine::start(engine_settings()).await.unwrap();
    let streams = FleetStreams::new(IngestSettings::default());
    let fleet = fleet(&streams);
    let spec = worker(1, &engine);
    tokio::task::block_in_place(|| fleet.register(spec, None).unwrap());
    // A stream that has heard nothing has nothing to hand on.
    let url = format!("http://{}/v1/completions", engine.http_addr());
    let body = serde_json::json!({ "model": rig::MODEL, "prompt": rig::prose(1, 60), "max_tokens": 1 });
    assert_eq!(rig::Http::new().post(&url, &body).await.status, 200);
    eventually("the engine's blocks are known", async || {
        let view = fleet.view();
        view.members().all(|(_, rank)| {
            rank.status.state() == StreamState::Live && rank.status.cursor() == engine.last_sequence()
        })
    })
    .await;
    let mut bytes = Vec::new();
    let put = |piece: Bytes| {
        bytes.extend_from_slice(&piece);
        true
    };
    tokio::task::block_in_place(|| streams.write_snapshot(None, put)).unwrap();
    engine.stop().await;
    Snapshot::read(&Bytes::from(bytes)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_snapshot_is_given_up_with_a_word_though_nobody_reads_metrics() {
    let log = Log::start("info");
    let snapshot = snapshot().await;
    assert_eq!(snapshot.ranks(), 1);
    let settings = IngestSettings { snapshot_kept: Duration::from_millis(600), ..IngestSettings::default() };
    let streams = FleetStreams::new(settings);
    streams.keep(snapshot);
    assert_eq!(streams.snapshots().waiting, 1);
    let app = App::new(plan(Mode::Kv, Vec::new()).settings, fleet(&streams), Prompts::new(), streams.clone());
    let frontend = Frontend::start(app).await.unwrap();
    let word = "the rest of the snapshot is given up";
    eventually("it is said", async || log.lines_with(word) > 0).await;
    assert_eq!(streams.snapshots().waiting, 0);
    assert!(log.text().lines().any(|line| line.contains(word) && line.contains("ranks=1")), "{}", log.text());
    // Once.
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(log.lines_with(word), 1);
    drop(frontend);
}
