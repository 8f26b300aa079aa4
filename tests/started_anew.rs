//! A worker registers again and says that it was started at another time: its engine may be another one, and nothing of what the
//! last one held is credited until the stream has shown who is there.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::{
    thread,
    time::{Duration, Instant},
};

use kvroute::{
    fleet::{Fleet, RouterConfig, StreamState, WorkerSpec},
    ingest::{FleetStreams, IngestSettings},
};

const PATIENCE: Duration = Duration::from_secs(10);

fn wait_for(fleet: &Fleet, expected: StreamState) {
    let state = || fleet.view().members().next().unwrap().1.status.state();
    let until = Instant::now() + PATIENCE;
    while state() != expected {
        assert!(Instant::now() < until, "{} and not {expected}", state());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_worker_that_was_started_anew_is_unproven_until_its_stream_has_shown_who_is_there() {
    // This kind of socket says who has subscribed.
    let engine = zmq::Context::new().socket(zmq::XPUB).unwrap();
    engine.set_linger(0).unwrap();
    engine.set_rcvtimeo(10_000).unwrap();
    engine.bind("tcp://127.0.0.1:*").unwrap();
    let address = engine.get_last_endpoint().unwrap().unwrap();
    let says = |sequence: u64| {
        let stored = serde_json::json!({
            "type": "BlockStored", "block_hashes": [sequence + 1], "parent_block_hash": null,
            "token_ids": vec![7; 16], "block_size": 16, "medium": "GPU",
        });
        let payload = rmp_serde::to_vec(&serde_json::json!([1.5, [stored]])).unwrap();
        engine.send_multipart([&b""[..], &sequence.to_be_bytes(), &payload], 0).unwrap();
    };
    let fleet = Fleet::new(RouterConfig::default(), Box::new(FleetStreams::new(IngestSettings::default())));
    let started = |registered_ms| WorkerSpec {
        id: Some(1),
        kv_events_endpoint: Some(address.clone()),
        registered_ms: Some(registered_ms),
        ..WorkerSpec::new("http://127.0.0.1:1", "m")
    };
    fleet.register(started(1_000), None).unwrap();
    assert_eq!(engine.recv_bytes(0).unwrap(), [1]);
    says(0);
    wait_for(&fleet, StreamState::Live);

    fleet.register(started(2_000), None).unwrap();
    wait_for(&fleet, StreamState::Unproven);
    // The next number follows: without a replay endpoint that is the proof.
    says(1);
    wait_for(&fleet, StreamState::Live);
    fleet.register(started(2_000), None).unwrap();
    says(2);
    wait_for(&fleet, StreamState::Live);
    let transitions = fleet.view().members().next().unwrap().1.status.transitions();
    assert_eq!(transitions[StreamState::ALL.iter().position(|s| *s == StreamState::Live).unwrap()], 2);
}
