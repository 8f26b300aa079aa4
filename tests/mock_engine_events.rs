#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]
#![cfg(feature = "server")]
//! The mock engine over ZMQ: what a subscriber and a router see of it.

mod mock_client;

use std::sync::Arc;
use std::time::Duration;

use kvroute::worker::mock::{Endpoint, MockEngine, MockSettings};
use mock_client::{complete, eventually, post, post_with, settings, start, tokens};
use rmpv::Value as Pack;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn socket(kind: zmq::SocketType, endpoint: &str) -> zmq::Socket {
    let socket = zmq::Context::new().socket(kind).unwrap();
    socket.set_linger(0).unwrap();
    socket.set_rcvtimeo(5000).unwrap();
    if kind == zmq::SUB {
        socket.set_subscribe(b"").unwrap();
    }
    socket.connect(endpoint).unwrap();
    socket
}

/// A subscriber that certainly sees everything from now on. Until a subscription has arrived messages are
/// lost, so prompts are sent until the last of them was received.
async fn subscribe(engine: &MockEngine) -> zmq::Socket {
    let socket = socket(zmq::SUB, engine.events_endpoint().unwrap());
    for family in 1000.. {
        complete(engine, &tokens(family, 16)).await;
        let last = engine.last_sequence().unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        while let Ok(frames) = socket.recv_multipart(zmq::DONTWAIT) {
            if sequence(&frames[1]) == last {
                return socket;
            }
        }
        assert!(family < 1200, "the subscription never arrives");
    }
    unreachable!()
}

fn sequence(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame.try_into().unwrap())
}

fn decode(payload: &[u8]) -> Pack {
    rmpv::decode::read_value(&mut &payload[..]).unwrap()
}

/// The events of the next live batch.
fn next_batch(socket: &zmq::Socket) -> Vec<Pack> {
    let frames = socket.recv_multipart(0).expect("a batch within five seconds");
    assert_eq!(frames.len(), 3);
    decode(&frames[2])[1].as_array().unwrap().clone()
}

fn field<'a>(event: &'a Pack, name: &str) -> &'a Pack {
    let found = event.as_map().unwrap().iter().find(|(key, _)| key.as_str() == Some(name));
    &found.unwrap_or_else(|| panic!("no {name} in {event}")).1
}

/// Field names in order, each with its kind of value; lists by their first element.
fn shape(value: &Pack) -> String {
    match value {
        Pack::Map(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(key, value)| format!("{}: {}", key.as_str().unwrap(), shape(value)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
        Pack::Array(items) => format!("[{}]", items.first().map_or_else(String::new, shape)),
        Pack::Integer(_) => "integer".into(),
        Pack::F64(_) => "float64".into(),
        Pack::String(text) => format!("{:?}", text.as_str().unwrap()),
        other => other.to_string(),
    }
}

fn recorded(name: &str) -> Pack {
    let lines = include_str!("fixtures/vllm_0_32_batches.hex").lines();
    let payload = lines.filter_map(|line| line.split_once(' ')).find(|(key, _)| *key == name);
    decode(&hex::decode(payload.unwrap_or_else(|| panic!("no {name}")).1).unwrap())
}

/// The shape of a batch, with every event's.
fn batch_shape(batch: &Pack) -> (usize, String, String, Vec<String>) {
    let parts = batch.as_array().unwrap();
    (
        parts.len(),
        shape(&parts[0]),
        shape(&parts[2]),
        parts[1].as_array().unwrap().iter().map(shape).collect(),
    )
}

/// Everything that a replay from `start` answers, without the end marker.
fn replay(engine: &MockEngine, start: u64) -> Vec<Vec<Vec<u8>>> {
    let socket = socket(zmq::DEALER, engine.replay_endpoint().unwrap());
    socket.send_multipart([&[][..], &start.to_be_bytes()], 0).unwrap();
    let mut batches = Vec::new();
    loop {
        let frames = socket.recv_multipart(0).expect("an answer within five seconds");
        assert_eq!((frames.len(), frames[0].len()), (4, 0));
        if frames[2] == [0xff; 8] {
            assert!(frames[1].is_empty() && frames[3].is_empty());
            return batches;
        }
        batches.push(frames);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_have_the_shape_of_recorded_ones_field_by_field() {
    let settings =
        MockSettings { topic: "kv@a@m".into(), num_gpu_blocks: 15, max_model_len: 224, ..settings() };
    let engine = MockEngine::start(settings).await.unwrap();
    let branch = [tokens(1, 16), tokens(2, 24)].concat();
    let replies = [
        ("stored-cold", json!({"prompt": tokens(1, 40)}), None),
        ("stored-child", json!({"prompt": branch}), None),
        ("stored-again", json!({"prompt": tokens(1, 32)}), None),
        ("stored-salt", json!({"prompt": tokens(1, 40), "cache_salt": "s1"}), None),
        ("stored-lora", json!({"prompt": tokens(1, 40), "model": "ad1"}), None),
        ("stored-lora-salt", json!({"prompt": tokens(1, 40), "model": "ad1", "cache_salt": "s2"}), None),
        ("stored-session", json!({"prompt": tokens(3, 40)}), Some(("x-session-id", "sess-1"))),
    ];
    for (index, (name, mut body, header)) in replies.into_iter().enumerate() {
        body["max_tokens"] = 1.into();
        let headers: Vec<_> = header.into_iter().collect();
        assert_eq!(post_with(&engine, "/v1/completions", &body, &headers).await.status, 200, "{name}");
        assert_eq!(engine.last_sequence(), Some(index as u64), "{name} is one batch");
        let batch = replay(&engine, index as u64).into_iter().next().unwrap();
        assert_eq!(&batch[1], b"kv@a@m");
        assert_eq!(batch_shape(&decode(&batch[3])), batch_shape(&recorded(name)), "{name}");
    }
    let reset = post(&engine, "/reset_prefix_cache", json!({})).await.json();
    assert_eq!((reset, engine.cached_blocks()), (json!({"success": true}), 0));
    assert_eq!(engine.last_sequence(), Some(6), "an idle engine tells at its next step");
    complete(&engine, &tokens(4, 40)).await;
    let batch = replay(&engine, 7).into_iter().next().unwrap();
    assert_eq!(batch_shape(&decode(&batch[3])), batch_shape(&recorded("cleared-then-stored")));

    complete(&engine, &tokens(5, 200)).await;
    let batch = decode(&replay(&engine, 8).into_iter().next().unwrap()[3]);
    let events = batch_shape(&batch).3;
    let theirs = batch_shape(&recorded("removed-then-stored")).3;
    assert!(events.len() > 1, "fourteen blocks do not hold both prompts");
    assert!(events[..events.len() - 1].iter().all(|event| *event == theirs[0]), "{events:?}");
    assert_eq!(events.last(), theirs.last());
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_batches_are_missing_live_and_there_in_the_replay() {
    let engine = start().await;
    let live = subscribe(&engine).await;
    let first = engine.last_sequence().unwrap() + 1;
    engine.drop_batches(2);
    for family in 1..=3 {
        complete(&engine, &tokens(family, 20)).await;
    }
    let frames = live.recv_multipart(0).unwrap();
    assert_eq!(sequence(&frames[1]), first + 2, "a gap of two");
    let batches = replay(&engine, first);
    assert_eq!(
        batches.iter().map(|frames| sequence(&frames[2])).collect::<Vec<_>>(),
        [first, first + 1, first + 2]
    );
    assert_eq!(batches[2][3], frames[2], "the same bytes as live");
    assert_eq!(replay(&engine, 1_000_000), Vec::<Vec<Vec<u8>>>::new());

    engine.stall_events(true);
    complete(&engine, &tokens(4, 20)).await;
    complete(&engine, &tokens(5, 20)).await;
    assert_eq!(replay(&engine, first + 3).len(), 0, "neither sent nor buffered");
    assert!(live.recv_multipart(zmq::DONTWAIT).is_err());
    engine.stall_events(false);
    for expected in [first + 3, first + 4] {
        assert_eq!(sequence(&live.recv_multipart(0).unwrap()[1]), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_without_a_star_is_connected_to() {
    let proxy = zmq::Context::new().socket(zmq::SUB).unwrap();
    proxy.set_subscribe(b"").unwrap();
    proxy.bind("tcp://127.0.0.1:*").unwrap();
    let address = proxy.get_last_endpoint().unwrap().unwrap();
    let events = Some(Endpoint::new(address.clone()));
    let engine = MockEngine::start(MockSettings { events, replay: None, ..settings() }).await.unwrap();
    assert_eq!((engine.events_endpoint(), engine.replay_endpoint()), (Some(address.as_str()), None));
    let mut received = None;
    for family in 0..200 {
        complete(&engine, &tokens(family, 20)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        received = proxy.recv_multipart(zmq::DONTWAIT).ok();
        if received.is_some() {
            break;
        }
    }
    assert_eq!(received.expect("the engine connects and sends").len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_report_publishes_the_reused_prefix_again() {
    let engine = start().await;
    complete(&engine, &tokens(1, 40)).await;
    complete(&engine, &tokens(1, 40)).await;
    assert_eq!(engine.last_sequence(), Some(0), "a repeated prompt says nothing");
    let body =
        json!({"prompt": tokens(1, 40), "max_tokens": 1, "vllm_xargs": {"kv_cache_report_mode": "full"}});
    assert_eq!(post(&engine, "/v1/completions", body).await.status, 200);
    let batches: Vec<Pack> = replay(&engine, 0).iter().map(|frames| decode(&frames[3])).collect();
    assert_eq!(batches.len(), 2);
    assert_eq!(batches[0][1], batches[1][1], "to a reader of events it looks like a second copy");
    assert_eq!(engine.cached_blocks(), 2, "which it is not");
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_fill_while_decoding_come_one_at_a_time() {
    let engine = start().await;
    let live = subscribe(&engine).await;
    let body = json!({"prompt": tokens(1, 30), "max_tokens": 40, "return_token_ids": true});
    let reply = post(&engine, "/v1/completions", body).await.json();
    let output: Vec<u64> = serde_json::from_value(reply["choices"][0]["token_ids"].clone()).unwrap();
    let all: Vec<u64> = tokens(1, 30).into_iter().map(u64::from).chain(output).collect();
    let mut parent = Pack::Nil;
    // Of 70 tokens 69 are computed: four full blocks.
    for index in 0..4 {
        let events = next_batch(&live);
        assert_eq!(events.len(), 1);
        let tokens: Vec<u64> = field(&events[0], "token_ids")
            .as_array()
            .unwrap()
            .iter()
            .map(|token| token.as_u64().unwrap())
            .collect();
        assert_eq!(tokens, all[index * 16..][..16]);
        assert_eq!(*field(&events[0], "parent_block_hash"), parent);
        parent = field(&events[0], "block_hashes")[0].clone();
    }
    assert_eq!(engine.used_blocks(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_engine_is_back_on_the_same_ports_with_nothing() {
    let first = start().await;
    let live = subscribe(&first).await;
    complete(&first, &tokens(1, 40)).await;
    next_batch(&live);
    let again = MockSettings {
        http: first.http_addr(),
        events: Some(Endpoint::bind(first.events_endpoint().unwrap())),
        replay: Some(Endpoint::bind(first.replay_endpoint().unwrap())),
        ..settings()
    };
    let (http, events) = (first.http_addr(), first.events_endpoint().unwrap().to_owned());
    let mut cut = tokio::net::TcpStream::connect(http).await.unwrap();
    cut.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    first.stop().await;
    assert_eq!(cut.read(&mut [0; 64]).await.unwrap_or(0), 0, "open connections break");
    assert!(tokio::net::TcpStream::connect(http).await.is_err());

    let second = MockEngine::start(again).await.expect("the ports are free");
    assert_eq!((second.http_addr(), second.events_endpoint()), (http, Some(events.as_str())));
    assert_eq!(second.last_sequence(), None);
    let mut cached = Vec::new();
    let mut reconnected = false;
    // The old subscriber comes back by itself; its first message then is of the new process.
    for family in 0..200 {
        cached.push(complete(&second, &tokens(1 + family, 40)).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
        if let Ok(frames) = live.recv_multipart(zmq::DONTWAIT) {
            reconnected = sequence(&frames[1]) <= second.last_sequence().unwrap();
            break;
        }
    }
    assert_eq!(cached[0], 0, "its cache is empty");
    assert!(reconnected);
    assert_eq!(sequence(&replay(&second, 0)[0][2]), 0, "sequences start again");
}

#[tokio::test(flavor = "multi_thread")]
async fn resets_are_refused_while_a_request_runs_unless_it_may_start_over() {
    let settings = MockSettings { speedup: 10.0, ..settings() };
    let engine = Arc::new(MockEngine::start(settings).await.unwrap());
    let body = json!({"prompt": tokens(1, 40), "max_tokens": 60});
    let running = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { post(&engine, "/v1/completions", body).await.json() }
    });
    eventually("it runs", || engine.running() == 1).await;
    assert_eq!(post(&engine, "/reset_prefix_cache", json!({})).await.json(), json!({"success": false}));
    let forced = post(&engine, "/reset_prefix_cache?reset_running_requests=true", json!({})).await.json();
    assert_eq!(forced, json!({"success": true}));
    let reply = running.await.unwrap();
    assert_eq!(reply["usage"]["completion_tokens"], 60, "it loses its blocks, not its tokens");
    assert_eq!(engine.preemptions(), 1);
    let kinds: Vec<String> = replay(&engine, 0)
        .iter()
        .flat_map(|frames| decode(&frames[3])[1].as_array().unwrap().clone())
        .map(|event| field(&event, "type").as_str().unwrap().to_owned())
        .collect();
    let cleared = kinds.iter().position(|kind| kind == "AllBlocksCleared").expect("the reset is told");
    assert_eq!(kinds[cleared + 1], "BlockStored", "what it had is stored again");
}
