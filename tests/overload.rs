//! An applier that is too slow: the rank that sends too much becomes incomplete and catches up by a replay, others go on,
//! and bursts are waited out.

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
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use kvroute::{
    fleet::{StreamState, StreamStatus},
    hash::BlockSize,
    index::PrefixIndex,
    ingest::{Endpoint, Feed, IngestSettings, Ingestor, Source, Stream, StreamSettings},
    slot::{Rank, Slot, WorkerId},
    worker::mock::MockEngine,
};
use serde_json::json;
use tokio::task::JoinSet;

use crate::rig::{Http, MODEL, engine_settings, eventually, prose};

/// Batches that a share has room for.
const SHARE: u64 = 8;

fn settings(before_batch: fn(Slot), patience: Duration) -> IngestSettings {
    IngestSettings {
        stream: StreamSettings { resync_pause: Duration::from_millis(100), ..StreamSettings::default() },
        share_blocks: SHARE * 256,
        patience,
        before_batch: Some(before_batch),
        ..IngestSettings::default()
    }
}

/// Engines whose events go through one applier into one index.
struct World {
    index: PrefixIndex,
    ingestor: Ingestor,
    statuses: Vec<Arc<StreamStatus>>,
    _streams: Vec<Stream>,
}

fn slot(index: usize) -> Slot {
    Slot { index: u32::try_from(index).unwrap(), generation: 0 }
}

impl World {
    fn over(engines: &[Arc<MockEngine>], settings: IngestSettings) -> Self {
        let (index, writers) = PrefixIndex::new(NonZeroUsize::MIN);
        let ingestor = Ingestor::start(writers, settings).unwrap();
        let statuses: Vec<_> =
            engines.iter().map(|_| Arc::new(StreamStatus::new(StreamState::Unproven))).collect();
        let open = |(at, engine): (usize, &Arc<MockEngine>)| {
            let endpoint = Endpoint::connect(engine.events_endpoint().unwrap());
            let replay = engine.replay_endpoint().map(str::to_owned);
            let source = Source {
                slot: slot(at),
                worker: WorkerId(at as u64),
                rank: Rank(0),
                feed: Feed { replay, settings: settings.stream, ..Feed::new(endpoint) },
                block_size: BlockSize::new(16).unwrap(),
                eagle: false,
                room: None,
            };
            ingestor.open(source, Arc::clone(&statuses[at])).unwrap()
        };
        let streams = engines.iter().enumerate().map(open).collect();
        Self { index, ingestor, statuses, _streams: streams }
    }

    /// Waits until everything that the engine has said is applied, and the stream is live.
    async fn settle(&self, at: usize, engine: &MockEngine) {
        let status = &self.statuses[at];
        eventually(&format!("rank {at} is live and complete"), async || {
            status.state() == StreamState::Live && status.cursor() == engine.last_sequence()
        })
        .await;
    }
}

async fn engines(count: usize) -> Vec<Arc<MockEngine>> {
    let mut engines = Vec::new();
    for _ in 0..count {
        engines.push(Arc::new(MockEngine::start(engine_settings()).await.unwrap()));
    }
    engines
}

/// Has an engine publish a few batches.
async fn ask(engine: &MockEngine, seed: u64) {
    let url = format!("http://{}/v1/completions", engine.http_addr());
    let body = json!({ "model": MODEL, "prompt": prose(seed, 60), "max_tokens": 40 });
    assert_eq!(Http::new().post(&url, &body).await.status, 200);
}

/// Has an engine publish at least so many batches.
async fn publish(engine: &Arc<MockEngine>, batches: u64) {
    let until = engine.last_sequence().map_or(0, |last| last + 1) + batches;
    while engine.last_sequence().is_none_or(|last| last + 1 < until) {
        let mut requests = JoinSet::new();
        for _ in 0..8 {
            let engine = Arc::clone(engine);
            requests.spawn(async move { ask(&engine, fastrand::u64(1_000..)).await });
        }
        while let Some(request) = requests.join_next().await {
            request.unwrap();
        }
    }
}

static OVERLOAD_MS: AtomicU64 = AtomicU64::new(0);

#[tokio::test(flavor = "multi_thread")]
async fn an_overloaded_rank_is_incomplete_until_it_has_caught_up_and_others_are_not_held_up() {
    fn slow_for_the_first(slot: Slot) {
        if slot.index == 0 {
            thread::sleep(Duration::from_millis(OVERLOAD_MS.load(Relaxed)));
        }
    }
    let engines = engines(3).await;
    let world = World::over(&engines, settings(slow_for_the_first, Duration::from_millis(20)));
    for (at, engine) in engines.iter().enumerate() {
        ask(engine, at as u64).await;
        world.settle(at, engine).await;
    }

    OVERLOAD_MS.store(50, Relaxed);
    publish(&engines[0], 60).await;
    let status = &world.statuses[0];
    eventually("the first rank is overloaded", async || status.overloaded()).await;
    assert_eq!(status.state(), StreamState::Incomplete);
    // Meanwhile nothing is amiss with the others, and never more waits than shares allow, and changes of state.
    for (at, engine) in engines.iter().enumerate().skip(1) {
        ask(engine, 20 + at as u64).await;
        let waiting = world.ingestor.queued()[0] as u64;
        assert!(waiting <= 3 * SHARE + 20, "{waiting} wait");
        world.settle(at, engine).await;
        let totals = world.statuses[at].totals();
        assert_eq!((totals.overloads, totals.gaps), (0, 0), "rank {at}");
    }

    OVERLOAD_MS.store(0, Relaxed);
    world.settle(0, &engines[0]).await;
    assert!(!status.overloaded());
    let totals = status.totals();
    assert!(totals.overloads >= 1 && totals.gaps >= 1 && totals.replays >= 2, "{totals:?}");
    assert_eq!(totals.restarts, 0);
    // Nothing was applied twice, and nothing left out: a router that comes later learns the same.
    assert_eq!(Some(totals.batches), engines[0].last_sequence().map(|last| last + 1));
    let later = World::over(&engines, IngestSettings::default());
    for (at, engine) in engines.iter().enumerate() {
        later.settle(at, engine).await;
        assert_eq!(world.index.blocks(slot(at)), later.index.blocks(slot(at)), "rank {at}");
    }
    assert!(world.index.blocks(slot(0))[0] > 100);
}

static BURST_MS: AtomicU64 = AtomicU64::new(0);

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_that_is_over_in_time_makes_nothing_incomplete() {
    fn slow(_: Slot) {
        thread::sleep(Duration::from_millis(BURST_MS.load(Relaxed)));
    }
    let engines = engines(2).await;
    let world = World::over(&engines, settings(slow, Duration::from_secs(3_600)));
    for (at, engine) in engines.iter().enumerate() {
        ask(engine, at as u64).await;
        world.settle(at, engine).await;
    }
    BURST_MS.store(5, Relaxed);
    publish(&engines[0], 80).await;
    BURST_MS.store(0, Relaxed);
    for (at, engine) in engines.iter().enumerate() {
        world.settle(at, engine).await;
        let totals = world.statuses[at].totals();
        assert_eq!((totals.overloads, totals.gaps), (0, 0), "rank {at}");
        assert_eq!(Some(totals.batches), engine.last_sequence().map(|last| last + 1));
    }
}
