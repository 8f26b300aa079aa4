//! Streams over real ZMQ sockets: a small publisher in this process loses batches, dies, comes back, and answers
//! replays well, badly or not at all.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]
#![cfg(feature = "server")]

mod publisher;
mod recorder;

use std::{
    io::Write as _,
    thread,
    time::{Duration, Instant},
};

use kvroute::{
    fleet::StreamState,
    ingest::{Contexts, Endpoint, Feed, Note, Purpose, Stream, StreamSettings},
};

use crate::{
    publisher::{Order, Publisher, Replies},
    recorder::Recorder,
};

/// How long anything may take before a test gives up. Nothing here takes nearly as long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(20);
fn feed(address: &str) -> Feed {
    let mut feed = Feed::new(Endpoint::connect(address));
    feed.settings =
        StreamSettings { replay_timeout: Duration::from_millis(300), ..StreamSettings::default() };
    feed
}

fn open(feed: &Feed) -> (Stream, Recorder) {
    let recorder = Recorder::default();
    (Stream::open(&Contexts::new(), feed, recorder.clone()).unwrap(), recorder)
}

/// Opens a stream on a publisher and waits until its batches arrive: the first few after a connection are lost
/// until the subscription has reached the publisher, and healed.
fn follow(publisher: &Publisher) -> (Stream, Recorder) {
    let (stream, recorder) = open(&publisher.feed());
    recorder.wait_state(StreamState::Live);
    publisher.publish(3);
    let until = Instant::now() + PATIENCE;
    let mut published = 3;
    while recorder.sequences().len() < published {
        assert!(Instant::now() < until, "{}", recorder.describe());
        thread::sleep(Duration::from_millis(20));
        if recorder.sequences().is_empty() {
            publisher.publish(1);
            published += 1;
        }
    }
    recorder.wait_state(StreamState::Live);
    (stream, recorder)
}

fn whole(recorder: &Recorder, name: &str, count: usize) {
    recorder.wait("every batch", |seen| seen.applied.len() >= count);
    let seen = recorder.seen.lock();
    let expected: Vec<_> = (0..count).map(|n| (n as u64, format!("{name} {n}").into_bytes())).collect();
    assert_eq!(seen.applied, expected);
}

/// Brings the engine so far that its successor, heard late, does not happen to go on with its numbers. Without a
/// replay nothing else tells the two apart.
fn far_ahead(publisher: &Publisher, recorder: &Recorder) {
    publisher.publish(1_000);
    recorder.wait("a thousand batches", |seen| seen.applied.len() >= 1_000);
}

#[test]
fn an_engine_that_has_said_nothing_is_live() {
    let publisher = Publisher::anywhere(Replies::Four);
    let (_stream, recorder) = open(&publisher.feed());
    recorder.wait_state(StreamState::Live);
    assert!(recorder.sequences().is_empty());
}

#[test]
fn what_was_said_before_is_replayed() {
    for replies in [Replies::Three, Replies::Four] {
        let publisher = Publisher::anywhere(replies);
        publisher.publish(50);
        let (_stream, recorder) = open(&publisher.feed());
        whole(&recorder, "a", 50);
        recorder.wait_state(StreamState::Live);
    }
}

#[test]
fn ten_lost_batches_are_healed() {
    let publisher = Publisher::anywhere(Replies::Four);
    let (_stream, recorder) = follow(&publisher);
    let before = recorder.sequences().len();
    publisher.lose(10);
    publisher.publish(5);
    whole(&recorder, "a", before + 15);
    recorder.wait_state(StreamState::Live);
    assert!(recorder.count(Note::Gap) >= 1);
    assert_eq!(recorder.seen.lock().clears, 0);
}

#[test]
fn batches_lost_at_the_end_of_a_burst_are_found_by_asking() {
    let publisher = Publisher::anywhere(Replies::Four);
    let mut feed = publisher.feed();
    feed.settings.idle_check = Some(Duration::from_millis(100));
    let (_stream, recorder) = open(&feed);
    recorder.wait_state(StreamState::Live);
    publisher.lose(7);
    whole(&recorder, "a", 7);
    recorder.wait_state(StreamState::Live);
    assert!(recorder.count(Note::Replay(Purpose::Check)) >= 1);
}

#[test]
fn a_socket_that_brings_nothing_of_what_is_said_is_made_anew() {
    let publisher = Publisher::anywhere(Replies::Four);
    let mut feed = publisher.feed();
    feed.settings.idle_check = Some(Duration::from_millis(100));
    let (_stream, recorder) = open(&feed);
    recorder.wait_state(StreamState::Live);
    publisher.lose(7);
    whole(&recorder, "a", 7);
    recorder.wait("a new socket", |seen| seen.notes.contains(&Note::Reconnect));
    recorder.wait_state(StreamState::Live);
    publisher.publish(3);
    whole(&recorder, "a", 10);
    assert_eq!(recorder.seen.lock().clears, 0, "{}", recorder.describe());
}

#[test]
fn a_killed_engine_that_returns_silent_is_not_credited_with_its_past() {
    let publisher = Publisher::anywhere(Replies::Four);
    let (_stream, recorder) = follow(&publisher);
    let (events, replay) = publisher.kill();
    recorder.wait_state(StreamState::Unproven);
    // It says nothing, and nobody sends it a request: only its replay endpoint can tell.
    let _publisher = Publisher::again("b", &events, &replay);
    recorder.wait("a clear", |seen| seen.clears == 1);
    recorder.wait_state(StreamState::Live);
    assert!(recorder.sequences().is_empty());
    assert_eq!(recorder.count(Note::Restart), 1);
    let seen = recorder.seen.lock();
    let unproven = seen.states.iter().rposition(|&state| state == StreamState::Unproven).unwrap();
    let credited = seen.states[unproven..].iter().position(|state| state.credits_overlap()).unwrap();
    assert_eq!(seen.states[unproven + credited], StreamState::Replaying, "credited only after the clear");
}

#[test]
fn a_killed_engine_that_returns_and_speaks_is_followed() {
    let publisher = Publisher::anywhere(Replies::Four);
    let (_stream, recorder) = follow(&publisher);
    let (events, replay) = publisher.kill();
    recorder.wait_state(StreamState::Unproven);
    let publisher = Publisher::again("b", &events, &replay);
    // As many as the first one had said and more, some of them before the subscriber is back.
    publisher.publish(40);
    whole(&recorder, "b", 40);
    recorder.wait_state(StreamState::Live);
    publisher.publish(2);
    whole(&recorder, "b", 42);
}

#[test]
fn without_a_replay_endpoint_a_returning_engine_stays_unproven_until_it_speaks() {
    let publisher = Publisher::anywhere(Replies::Never);
    let (_stream, recorder) = open(&feed(&publisher.events));
    let until = Instant::now() + PATIENCE;
    while recorder.sequences().is_empty() {
        assert!(Instant::now() < until);
        publisher.publish(1);
        thread::sleep(Duration::from_millis(20));
    }
    far_ahead(&publisher, &recorder);
    let (events, replay) = publisher.kill();
    recorder.wait_state(StreamState::Unproven);
    let publisher = Publisher::again("b", &events, &replay);
    let until = Instant::now() + PATIENCE;
    while recorder.seen.lock().clears == 0 {
        assert!(Instant::now() < until, "{}", recorder.describe());
        assert_eq!(recorder.seen.lock().state, Some(StreamState::Unproven));
        thread::sleep(Duration::from_millis(300));
        publisher.publish(1);
        thread::sleep(Duration::from_millis(20));
    }
    recorder.wait("a batch", |seen| !seen.applied.is_empty());
    assert!(recorder.seen.lock().applied.iter().all(|(_, payload)| payload.starts_with(b"b")));
}

#[test]
fn an_engine_that_comes_later_is_found() {
    let publisher = Publisher::anywhere(Replies::Four);
    let (events, replay) = publisher.kill();
    let (_stream, recorder) = open(&feed(&events).with_replay(&replay));
    thread::sleep(Duration::from_millis(300));
    assert_eq!(recorder.seen.lock().states, [], "unproven from the start, and nothing has changed");
    let publisher = Publisher::again("a", &events, &replay);
    publisher.publish(5);
    whole(&recorder, "a", 5);
    recorder.wait_state(StreamState::Live);
}

#[test]
fn a_stranger_on_the_port_does_not_end_the_search() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let (_stream, recorder) = open(&feed(&address));
    let (mut stranger, _) = listener.accept().unwrap();
    std::io::Write::write_all(
        &mut stranger,
        b"HTTP/1.1 400 Bad Request\r\n\r\nnothing here speaks ZMQ at all",
    )
    .unwrap();
    drop((stranger, listener));
    let publisher = Publisher::start("a", &Endpoint::connect(&address), "tcp://127.0.0.1:*", Replies::Four);
    let until = Instant::now() + PATIENCE;
    while recorder.sequences().is_empty() {
        assert!(Instant::now() < until, "{}", recorder.describe());
        publisher.publish(1);
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_replay_that_is_never_answered_leaves_the_stream_incomplete() {
    let publisher = Publisher::anywhere(Replies::Never);
    let (_stream, recorder) = open(&publisher.feed());
    recorder.wait_state(StreamState::Incomplete);
    publisher.lose(4);
    let until = Instant::now() + PATIENCE;
    while recorder.sequences().is_empty() {
        assert!(Instant::now() < until, "{}", recorder.describe());
        publisher.publish(1);
        thread::sleep(Duration::from_millis(50));
    }
    recorder.wait_state(StreamState::Incomplete);
    let first = recorder.sequences()[0];
    assert!(first >= 4);
    // A gap in the middle takes away what was known.
    publisher.lose(1);
    publisher.publish(1);
    recorder.wait("a clear", |seen| seen.clears == 1);
    recorder.wait_state(StreamState::Incomplete);
}

#[test]
fn an_engine_that_connects_to_us_is_heard() {
    let recorder = Recorder::default();
    let mut feed = Feed::new(Endpoint::bind("tcp://127.0.0.1:*"));
    feed.settings.replay_timeout = Duration::from_millis(300);
    let stream = Stream::open(&Contexts::new(), &feed, recorder.clone()).unwrap();
    let engine =
        |name| Publisher::start(name, &Endpoint::bind(stream.address()), "tcp://127.0.0.1:*", Replies::Never);
    let publisher = engine("a");
    let hear = |publisher: &Publisher, name: &str| {
        let until = Instant::now() + PATIENCE;
        let heard =
            || recorder.seen.lock().applied.last().is_some_and(|(_, last)| last.starts_with(name.as_bytes()));
        while !heard() {
            assert!(Instant::now() < until, "{}", recorder.describe());
            publisher.publish(1);
            thread::sleep(Duration::from_millis(20));
        }
    };
    hear(&publisher, "a");
    // Somebody who only looks what listens there, or takes it for something else, is no engine that goes away.
    let port = stream.address().rsplit_once(':').unwrap().1;
    let tls = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 502]].concat();
    let postgres = [0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f];
    for said in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &tls, &postgres, &[0; 64]] {
        let mut stranger = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        stranger.write_all(said).unwrap();
        thread::sleep(Duration::from_millis(100));
        drop(stranger);
    }
    let context = zmq::Context::new();
    let listener = context.socket(zmq::SUB).unwrap();
    listener.connect(&format!("tcp://127.0.0.1:{port}")).unwrap();
    thread::sleep(Duration::from_millis(200));
    drop(listener);
    thread::sleep(Duration::from_millis(100));
    assert!(!recorder.seen.lock().states.contains(&StreamState::Unproven), "{}", recorder.describe());
    far_ahead(&publisher, &recorder);
    drop(publisher);
    recorder.wait_state(StreamState::Unproven);
    let publisher = engine("b");
    hear(&publisher, "b");
    assert!(recorder.seen.lock().applied.iter().all(|(_, payload)| payload.starts_with(b"b")));
}

#[test]
fn messages_of_another_shape_are_dropped_and_counted() {
    let publisher = Publisher::anywhere(Replies::Four);
    let (_stream, recorder) = follow(&publisher);
    let before = recorder.sequences().len();
    let eight = || vec![0_u8; 8];
    let odd = [
        vec![b"kv".to_vec()],
        vec![b"kv".to_vec(), eight()],
        vec![b"kv".to_vec(), vec![0; 7], b"payload".to_vec()],
        vec![b"kv".to_vec(), vec![0; 9], b"payload".to_vec()],
        vec![b"kv".to_vec(), vec![0xff; 8], Vec::new()],
        vec![Vec::new(); 100],
    ];
    let count = odd.len();
    odd.into_iter().for_each(|frames| publisher.order(Order::Raw(frames)));
    publisher.publish(1);
    whole(&recorder, "a", before + 1);
    assert_eq!(recorder.count(Note::BadMessage), count);
    assert_eq!(recorder.seen.lock().state, Some(StreamState::Live));
}

#[test]
fn another_topic_is_not_listened_to() {
    let publisher = Publisher::anywhere(Replies::Four);
    let mut feed = publisher.feed();
    feed.topic = "kv".into();
    let (_stream, recorder) = open(&feed);
    recorder.wait_state(StreamState::Live);
    publisher.order(Order::Raw(vec![b"other".to_vec(), 99_u64.to_be_bytes().to_vec(), b"payload".to_vec()]));
    publisher.publish(20);
    whole(&recorder, "a", 20);
    assert_eq!(recorder.count(Note::BadMessage), 0);
}

#[test]
fn a_changed_start_time_withdraws_credit_until_the_engine_has_shown_itself() {
    let publisher = Publisher::anywhere(Replies::Four);
    let (stream, recorder) = follow(&publisher);
    let before = recorder.seen.lock().states.len();
    stream.engine_start_changed();
    recorder.wait("live again", |seen| {
        seen.states[before..].contains(&StreamState::Unproven) && seen.state == Some(StreamState::Live)
    });
    assert_eq!(recorder.seen.lock().clears, 0);
}

#[test]
fn dropping_a_stream_ends_it_promptly() {
    let idle = Publisher::anywhere(Replies::Never);
    let mut feed_of_idle = idle.feed();
    feed_of_idle.settings.replay_timeout = Duration::from_secs(60);
    let (stream, _) = open(&feed_of_idle);
    let absent = open(&feed("tcp://127.0.0.1:1")).0;
    let publisher = Publisher::anywhere(Replies::Four);
    publisher.publish(100);
    let recorder = Recorder::default();
    recorder.blocked.store(true, std::sync::atomic::Ordering::Relaxed);
    let blocked = Stream::open(&Contexts::new(), &publisher.feed(), recorder.clone()).unwrap();
    recorder.wait("replaying", |seen| seen.state == Some(StreamState::Replaying));
    for stream in [stream, absent, blocked] {
        let start = Instant::now();
        drop(stream);
        // Not a measure of speed: far below any of the timeouts that it could be waiting for.
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
}

#[test]
fn a_wrong_address_is_refused_and_named() {
    for (feed, named) in [
        (Feed::new(Endpoint::connect("10.0.0.1:5557")), "10.0.0.1:5557"),
        (Feed::new(Endpoint::bind("tcp://192.0.2.1:5557")), "tcp://192.0.2.1:5557"),
        (Feed::new(Endpoint::connect("tcp://127.0.0.1:5557")).with_replay("tcp://nowhere"), "tcp://nowhere"),
    ] {
        let error = Stream::open(&Contexts::new(), &feed, Recorder::default()).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}
