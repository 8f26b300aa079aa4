//! Bytes that nobody vouches for.

use kvroute::event::wire::{Batch, DecodeError, decode};
use kvroute::event::{Rejection, Tier};
use proptest::prelude::*;
use rmpv::Value;

use crate::encodings::Style;
use crate::engine::*;
use crate::recorded::{frames, payload};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_do_no_harm(payload in proptest::collection::vec(any::<u8>(), 0..400)) {
        survive(&payload);
    }

    #[test]
    fn damaged_payloads_do_no_harm(
        frame in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        cut_it in any::<bool>(),
    ) {
        let frames = frames();
        let mut payload = payload(frame.get(&frames));
        for (at, byte) in damage {
            *at.get_mut(&mut payload) = byte;
        }
        if cut_it {
            payload.truncate(cut.index(payload.len()));
        }
        survive(&payload);
    }

    #[test]
    fn a_cut_batch_gives_the_events_before_the_cut(cut in 1..1000_usize, as_map in any::<bool>()) {
        let events = (0..20).map(|at| remove(&[at], [])).collect();
        let whole = Style(if as_map { 0x60 } else { 0x20 }).batch(Some(300), events);
        // Up to and with the length of the list of events.
        let head = if as_map { 23 } else { 13 };
        let cut = cut.min(whole.len() - 1);
        let mut batch = Batch::new();
        match decode(&whole[..cut], &mut batch) {
            Err(error) => prop_assert!(cut < head && error == DecodeError::Truncated),
            Ok(()) => {
                prop_assert!(cut >= head && batch.rank.is_none());
                prop_assert!(batch.truncated);
                let mut normaliser = normaliser(2);
                let mut events = Vec::new();
                normaliser.normalise(&batch, &mut events);
                let all: Vec<_> = (0..20).map(|at| removed(Tier::Gpu, &[at])).collect();
                prop_assert!(all.starts_with(&events));
                // Only the rank can be cut off without a loss among the events.
                prop_assert_eq!(normaliser.rejections().get(Rejection::Truncated), u64::from(events.len() < 20));
            }
        }
    }
}

/// Decodes and normalises whatever it is: no panic, and no more out of it than its bytes can hold.
fn survive(payload: &[u8]) {
    let mut batch = Batch::new();
    if decode(payload, &mut batch).is_err() {
        assert!(batch.is_empty() && batch.rejected.total() == 0);
        return;
    }
    assert!(batch.reserved_bytes() <= 64 * payload.len() + 4096, "{} bytes", batch.reserved_bytes());
    for block_size in [1, 2, 8, 32] {
        let mut events = Vec::new();
        normaliser(block_size).normalise(&batch, &mut events);
        assert!(events.len() <= batch.len());
    }
}

#[test]
fn a_length_that_lies_reserves_nothing() {
    let mut payload = vec![0x92, 0xc0, 0x91, 0x96, 0xab];
    payload.extend(b"BlockStored");
    payload.extend([0xdd, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]);
    let batch = decoded(&payload);
    assert!(batch.truncated && batch.is_empty());
    assert_eq!(batch.rejected.get(Rejection::Truncated), 1);
    assert!(batch.reserved_bytes() < 4096);
}

#[test]
fn the_buffers_of_a_batch_are_reused() {
    let mut batch = Batch::new();
    let large = batch_of([store(&(0..500).collect::<Vec<_>>(), None, &(0..1000).collect::<Vec<_>>(), [])]);
    decode(&large, &mut batch).unwrap();
    let reserved = batch.reserved_bytes();
    for _ in 0..3 {
        decode(&large, &mut batch).unwrap();
        assert_eq!((batch.len(), batch.reserved_bytes()), (1, reserved));
    }
    decode(&batch_of([]), &mut batch).unwrap();
    assert!(batch.is_empty());
}

#[test]
fn only_a_payload_that_is_no_batch_is_an_error() {
    let mut batch = Batch::new();
    for (payload, error) in [
        (vec![], DecodeError::Truncated),
        (bytes(&"x".into()), DecodeError::NotABatch { found: "a string" }),
        (bytes(&array([])), DecodeError::NoEvents),
        (bytes(&array([1.into()])), DecodeError::NoEvents),
        (bytes(&map([("ts", 1.into())])), DecodeError::NoEvents),
        (bytes(&array([1.into(), 2.into()])), DecodeError::EventsNotAnArray { found: "an integer" }),
        (
            bytes(&map([("events", true.into())])),
            DecodeError::EventsNotAnArray { found: "a boolean or an extension value" },
        ),
    ] {
        assert_eq!(decode(&payload, &mut batch), Err(error));
        assert!(batch.is_empty());
    }
    for odd in [Value::Nil, (-3).into(), "x".into(), Value::F64(f64::NAN), Value::F64(-1.0), map([])] {
        decode(&bytes(&array([odd.clone(), array([]), odd.clone()])), &mut batch).unwrap();
        assert_eq!((batch.timestamp_ms, batch.rank), (0, None), "{odd}");
    }
}
