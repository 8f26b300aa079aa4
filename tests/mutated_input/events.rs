//! Batches of KV events, as engines would publish them.

use kvroute::{
    event::{
        Normaliser,
        wire::{Batch, decode},
    },
    hash::BlockSize,
};

use crate::mutation::Inputs;

fn corpus() -> Vec<Vec<u8>> {
    let frames = include_str!("../fixtures/kv_event_frames.jsonl").lines().skip(1).map(|line| {
        let frame: serde_json::Value = serde_json::from_str(line).unwrap();
        frame["payload"].as_str().unwrap().to_owned()
    });
    let batches = include_str!("../fixtures/vllm_0_32_batches.hex").lines();
    let batches = batches.filter_map(|line| Some(line.split_once(' ')?.1.to_owned()));
    frames.chain(batches).filter_map(|payload| hex::decode(payload).ok()).collect()
}

#[test]
fn damaged_batches_are_read_as_far_as_they_are_whole() {
    let corpus = corpus();
    assert!(corpus.len() > 10);
    let (mut readable, mut unreadable) = (0, 0);
    let mut batch = Batch::new();
    let mut events = Vec::new();
    let mut normalisers = [16, 32, 128].map(|size| Normaliser::new(BlockSize::new(size).unwrap(), false));
    for input in Inputs::of(&corpus) {
        match decode(&input.bytes, &mut batch) {
            Ok(()) => readable += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                unreadable += 1;
            }
        }
        let normaliser = &mut normalisers[readable % 3];
        events.clear();
        normaliser.normalise(&batch, &mut events);
        // A byte cannot say more than an event, or a block of one.
        assert!(events.len() <= input.bytes.len(), "{} events of {} bytes", events.len(), input.bytes.len());
        if normaliser.salted_blocks() > 10_000 {
            normaliser.reset();
        }
        // What was read before does not show in what is read next.
        let mut anew = Batch::new();
        let (again, fresh) = (decode(&corpus[0], &mut batch), decode(&corpus[0], &mut anew));
        assert_eq!((again, format!("{batch:?}")), (fresh, format!("{anew:?}")));
    }
    println!("{readable} readable, {unreadable} not");
    assert!(readable > 0 && unreadable > 0);
}
