//! Batches that get lost on the way are found missing and asked for again.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use kvroute::select::Mode;
use serde_json::Value;

use crate::rig::{Rig, chat, eventually, plan, prose, worker};

/// What the router says of the stream of the first worker.
async fn stream(rig: &Rig) -> Value {
    rig.workers().await[0]["stream"].clone()
}

/// Asks for chat `number` and returns what was predicted and what the engine found, in tokens.
async fn predict_and_ask(rig: &Rig, number: u64) -> (u64, u64) {
    let body = chat(&prose(number, 60), "again");
    let credited = rig.explain(&body).await["choice"]["overlap_blocks"].as_u64().unwrap();
    let answer = rig.post("/v1/chat/completions", &body).await;
    // The engine always computes the last token, and with it that token's block.
    let reachable = (answer.prompt_tokens() - 1) / 16;
    (credited.min(reachable) * 16, answer.cached_tokens())
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_lost_batches_are_replayed_and_nothing_is_missing_afterwards() {
    let rig = Rig::start(Mode::Kv, 1).await;
    let engine = &rig.engines[0];
    predict_and_ask(&rig, 0).await;
    rig.wait_for_events().await;
    let before = stream(&rig).await;

    engine.drop_batches(10);
    let first_lost = engine.last_sequence().unwrap() + 1;
    let mut asked = 1;
    while engine.last_sequence().unwrap() < first_lost + 10 {
        predict_and_ask(&rig, asked).await;
        asked += 1;
    }
    // The eleventh went out, so the gap shows.
    rig.wait_for_events().await;
    rig.wait_for_streams("live").await;

    let after = stream(&rig).await;
    let grown = |what: &str| after[what].as_u64().unwrap() - before[what].as_u64().unwrap();
    assert!(grown("gaps") >= 1 && grown("replays") >= 1, "{after}");
    assert_eq!((grown("restarts"), grown("rejected_batches")), (0, 0), "{after}");
    let published = engine.last_sequence().unwrap() - before["cursor"].as_u64().unwrap();
    assert_eq!(grown("batches"), published, "each batch is applied once: {after}");
    assert_eq!(rig.metric("kvroute_worker_event_gaps_total", "worker=\"1\"").await as u64, after["gaps"]);
    assert_eq!(
        rig.metric("kvroute_worker_event_replays_total", "worker=\"1\"").await as u64,
        after["replays"]
    );

    for number in 0..asked {
        rig.wait_for_events().await;
        let (predicted, found) = predict_and_ask(&rig, number).await;
        assert_eq!(predicted, found, "chat {number}");
        assert!(found > 0, "chat {number} was cached");
    }

    // A router that comes later asks for everything from the start: it knows what this one has to know.
    rig.wait_for_events().await;
    let later = Rig::start_plan(plan(Mode::Kv, vec![worker(1, engine)]), Vec::new()).await;
    eventually("the later router has caught up", async || {
        stream(&later).await["cursor"].as_u64() == engine.last_sequence()
    })
    .await;
    assert_eq!(rig.workers().await[0]["cached_blocks"], later.workers().await[0]["cached_blocks"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_one_stream_is_not_counted_at_another() {
    let rig = Rig::start(Mode::RoundRobin, 2).await;
    rig.engines[1].drop_batches(1);
    for number in 0..6 {
        rig.post("/v1/chat/completions", &chat(&prose(number, 60), "hello")).await;
    }
    rig.wait_for_events().await;
    rig.wait_for_streams("live").await;
    let workers = rig.workers().await;
    let gaps = |worker: usize| workers[worker]["stream"]["gaps"].as_u64().unwrap();
    assert_eq!((gaps(0), gaps(1)), (0, 1));
}
