//! From an engine's socket to the index: what the ingestor makes of real batches, and when others see it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]
#![cfg(feature = "server")]

use std::{
    num::NonZeroUsize,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use kvroute::{
    fleet::{StreamState, StreamStatus},
    hash::{BlockHasher, BlockSize, Identity, Prompt},
    index::{PrefixIndex, Scratch},
    ingest::{Endpoint, Feed, IngestSettings, Ingestor, Source},
    slot::{Rank, Slot, WorkerId},
};

const PATIENCE: Duration = Duration::from_secs(20);
const BLOCK: usize = 4;

/// Three slots, so that the shards have one or two each.
const SLOT: Slot = Slot { index: 2, generation: 7 };

struct Rig {
    engine: zmq::Socket,
    next: u64,
    index: PrefixIndex,
    ingestor: Arc<Ingestor>,
    slot: Slot,
    status: Arc<StreamStatus>,
    stream: Option<kvroute::ingest::Stream>,
}

impl Rig {
    fn new() -> Self {
        let (index, writers) = PrefixIndex::new(NonZeroUsize::new(2).unwrap());
        let ingestor = Ingestor::start(writers, IngestSettings::default()).unwrap();
        Self::of(index, Arc::new(ingestor), SLOT, 1_000)
    }

    /// Of an engine whose cache has room for so many blocks.
    fn with_room(room: u64) -> Self {
        let (index, writers) = PrefixIndex::new(NonZeroUsize::MIN);
        let ingestor = Ingestor::start(writers, IngestSettings::default()).unwrap();
        Self::of(index, Arc::new(ingestor), SLOT, room)
    }

    /// Another rank, in the same shard of the same index.
    fn beside(&self) -> Self {
        let slot = Slot { index: SLOT.index - 2, generation: 0 };
        Self::of(self.index.clone(), Arc::clone(&self.ingestor), slot, 1_000)
    }

    fn of(index: PrefixIndex, ingestor: Arc<Ingestor>, slot: Slot, room: u64) -> Self {
        let engine = zmq::Context::new().socket(zmq::PUB).unwrap();
        engine.set_linger(0).unwrap();
        engine.bind("tcp://127.0.0.1:*").unwrap();
        let address = engine.get_last_endpoint().unwrap().unwrap();
        let status = Arc::new(StreamStatus::new(StreamState::Unproven));
        let source = Source {
            slot,
            worker: WorkerId(1),
            rank: Rank(3),
            feed: Feed::new(Endpoint::connect(address)),
            block_size: BlockSize::new(u32::try_from(BLOCK).unwrap()).unwrap(),
            eagle: false,
            room: Some(room),
        };
        let stream = ingestor.open(source, Arc::clone(&status)).unwrap();
        let mut rig = Self { engine, next: 0, index, ingestor, slot, status, stream: Some(stream) };
        // Say nothing, over and over, until the subscription has reached the publisher.
        let until = Instant::now() + PATIENCE;
        while rig.status.cursor().is_none() {
            assert!(Instant::now() < until, "the engine is not heard");
            rig.send(&batch(&[], None));
            thread::sleep(Duration::from_millis(20));
        }
        rig.settle();
        rig
    }

    fn send(&mut self, payload: &[u8]) {
        let sequence = self.next.to_be_bytes();
        self.engine.send_multipart([&b""[..], &sequence[..], payload], 0).unwrap();
        self.next += 1;
    }

    /// Waits until the last batch sent is in the index.
    fn settle(&self) {
        let until = Instant::now() + PATIENCE;
        while self.status.cursor() != self.next.checked_sub(1) {
            assert!(Instant::now() < until, "cursor {:?} of {}", self.status.cursor(), self.next);
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn apply(&mut self, payload: &[u8]) {
        self.send(payload);
        self.settle();
    }

    fn held(&self) -> u64 {
        self.index.blocks(self.slot).iter().sum()
    }

    /// How many blocks of the prompt that these names stand for are credited.
    fn credited(&self, names: &[u64]) -> u32 {
        let tokens: Vec<u32> = names.iter().flat_map(|&name| [u32::try_from(name).unwrap(); BLOCK]).collect();
        let block_size = BlockSize::new(u32::try_from(BLOCK).unwrap()).unwrap();
        let mut blocks = Vec::new();
        BlockHasher::new(block_size, Identity::plain()).hash(&Prompt::text(&tokens), &mut blocks);
        self.index.overlap(&blocks, &mut Scratch::new()).of(self.slot).gpu
    }

    fn wait_state(&self, state: StreamState) {
        let until = Instant::now() + PATIENCE;
        while self.status.state() != state {
            assert!(Instant::now() < until, "{} and not {state}", self.status.state());
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// One event as vLLM writes it.
enum Event {
    Stored(&'static [u64]),
    /// Under a parent.
    StoredUnder(u64, &'static [u64]),
    Removed(&'static [u64]),
    Cleared,
}

fn batch(events: &[Event], rank: Option<u32>) -> Vec<u8> {
    let events: Vec<_> = events.iter().map(event).collect();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    rmp_serde::to_vec(&serde_json::json!([now, events, rank])).unwrap()
}

fn event(event: &Event) -> serde_json::Value {
    let stored = |parent: Option<u64>, names: &[u64]| {
        let tokens: Vec<_> = names.iter().flat_map(|&name| vec![name; BLOCK]).collect();
        serde_json::json!({
            "type": "BlockStored", "block_hashes": names, "parent_block_hash": parent, "token_ids": tokens,
            "block_size": BLOCK, "lora_id": null, "medium": "GPU",
        })
    };
    match event {
        Event::Stored(names) => stored(None, names),
        Event::StoredUnder(parent, names) => stored(Some(*parent), names),
        Event::Removed(names) => {
            serde_json::json!({"type": "BlockRemoved", "block_hashes": names, "medium": "GPU"})
        }
        Event::Cleared => serde_json::json!({"type": "AllBlocksCleared"}),
    }
}

#[test]
fn events_change_what_the_index_holds() {
    let mut rig = Rig::new();
    rig.apply(&batch(&[Event::Stored(&[11, 12, 13])], Some(3)));
    assert_eq!(rig.held(), 3);
    rig.apply(&batch(&[Event::Removed(&[13])], None));
    assert_eq!(rig.held(), 2);
    rig.apply(&batch(&[Event::Cleared, Event::Stored(&[21])], Some(3)));
    assert_eq!(rig.held(), 1);
    let totals = rig.ingestor.counters().totals();
    assert_eq!((totals.stored_events, totals.removed_events, totals.cleared_events), (2, 1, 1));
    assert_eq!((totals.blocks.stored, totals.blocks.removed, totals.blocks.cleared), (4, 1, 2));
    assert!(rig.status.totals().last_batch_ms > 0);
}

#[test]
fn a_gap_that_nothing_fills_clears_and_an_emptied_cache_makes_up_for_it() {
    let mut rig = Rig::new();
    rig.apply(&batch(&[Event::Stored(&[11, 12])], Some(3)));
    rig.next += 1;
    rig.apply(&batch(&[Event::Stored(&[21])], Some(3)));
    assert_eq!(rig.held(), 1);
    rig.wait_state(StreamState::Incomplete);
    rig.apply(&batch(&[Event::Cleared, Event::Stored(&[31, 32, 33])], Some(3)));
    rig.wait_state(StreamState::Live);
    assert_eq!(rig.held(), 3);
}

#[test]
fn a_new_engine_whose_numbers_happen_to_go_on_is_rid_of_its_predecessor_by_its_first_clear() {
    let mut rig = Rig::new();
    rig.apply(&batch(&[Event::Stored(&[11, 12])], Some(3)));
    let (address, gaps) = (rig.engine.get_last_endpoint().unwrap().unwrap(), rig.status.totals().gaps);
    // Without a replay endpoint nothing but numbers tells the two apart. This kind of socket says who has subscribed.
    rig.engine = zmq::Context::new().socket(zmq::XPUB).unwrap();
    rig.wait_state(StreamState::Unproven);
    let until = Instant::now() + PATIENCE;
    while let Err(error) = rig.engine.bind(&address) {
        assert!(Instant::now() < until, "{error}");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(rig.engine.recv_bytes(0).unwrap(), [1], "the router has subscribed to everything");
    rig.apply(&batch(&[Event::Cleared, Event::Stored(&[21])], Some(3)));
    rig.wait_state(StreamState::Live);
    assert_eq!((rig.held(), rig.status.totals().gaps), (1, gaps));
}

#[test]
fn a_batch_of_another_rank_is_counted_and_dropped() {
    let mut rig = Rig::new();
    rig.apply(&batch(&[Event::Stored(&[11])], Some(4)));
    assert_eq!(rig.held(), 0);
    assert_eq!(rig.ingestor.counters().totals().foreign_rank_batches, 1);
}

#[test]
fn a_batch_that_cannot_be_read_clears() {
    let mut rig = Rig::new();
    let readable = batch(&[Event::Stored(&[11, 12])], Some(3));
    // Whether 12 went nobody can tell.
    let removal = serde_json::json!({"type": "BlockRemoved", "block_hashes": [11, null], "medium": "GPU"});
    let removal = rmp_serde::to_vec(&serde_json::json!([1.5, [removal], 3])).unwrap();
    let broken = [&b"\xc1not msgpack"[..], &readable[..readable.len() / 2], &removal];
    for (times, broken) in broken.into_iter().enumerate() {
        rig.apply(&readable);
        assert_eq!(rig.held(), 2);
        rig.send(broken);
        // The clear that follows takes the cursor away.
        let until = Instant::now() + PATIENCE;
        while rig.held() > 0 || rig.status.cursor().is_some() {
            assert!(Instant::now() < until, "still held: {}", rig.held());
            thread::sleep(Duration::from_millis(1));
        }
        rig.wait_state(StreamState::Incomplete);
        assert_eq!(rig.ingestor.counters().totals().unreadable_batches, times as u64 + 1);
    }
}

#[test]
fn a_rank_that_seems_to_hold_more_than_its_engine_has_begins_anew_and_not_at_once_again() {
    let mut rig = Rig::with_room(4);
    rig.apply(&batch(&[Event::Stored(&[11, 12, 13, 14])], Some(3)));
    assert_eq!(rig.held(), 4);
    rig.send(&batch(&[Event::Stored(&[21])], Some(3)));
    let until = Instant::now() + PATIENCE;
    while rig.held() > 0 {
        assert!(Instant::now() < until, "still held: {}", rig.held());
        thread::sleep(Duration::from_millis(1));
    }
    rig.wait_state(StreamState::Incomplete);
    // Whose room is stated wrongly is left alone for a while.
    rig.apply(&batch(&[Event::Stored(&[31, 32, 33, 34, 35])], Some(3)));
    rig.apply(&batch(&[Event::Stored(&[41])], Some(3)));
    assert_eq!(rig.held(), 6);
}

#[test]
fn an_engine_that_announces_more_than_any_batch_has_is_disconnected() {
    let mut rig = Rig::new();
    rig.apply(&batch(&[Event::Stored(&[11])], Some(3)));
    rig.send(&vec![0; (64 << 20) + 1]);
    rig.wait_state(StreamState::Unproven);
    assert_eq!(rig.ingestor.counters().totals().unreadable_batches, 0, "nobody took it");
}

#[test]
fn an_event_that_cannot_be_read_costs_only_itself() {
    let mut rig = Rig::new();
    let odd = serde_json::json!([1.5, [{"type": "BlockStored", "block_hashes": true}, event(&Event::Stored(&[11]))], 3]);
    rig.apply(&rmp_serde::to_vec(&odd).unwrap());
    assert_eq!(rig.held(), 1);
    let rejected = rig.ingestor.counters().totals().rejected;
    assert_eq!(rejected.iter().map(|&(_, count)| count).sum::<u64>(), 1, "{rejected:?}");
}

#[test]
fn an_engine_that_goes_away_is_credited_nothing() {
    let mut rig = Rig::new();
    rig.apply(&batch(&[Event::Stored(&[11])], Some(3)));
    assert!(rig.status.state().credits_overlap());
    rig.engine = zmq::Context::new().socket(zmq::PUB).unwrap();
    rig.wait_state(StreamState::Unproven);
}

/// A decode rank gets a prompt's blocks from elsewhere and says nothing of them, only of what it computed after them.
#[test]
fn a_decode_rank_that_stores_children_of_transferred_blocks_is_credited_no_prompt() {
    let mut decode = Rig::new();
    let state = decode.status.state();
    decode.apply(&batch(&[Event::StoredUnder(12, &[13, 14])], Some(3)));
    assert_eq!((decode.held(), decode.credited(&[11, 12, 13, 14])), (0, 0), "nobody knows where they belong");
    assert_eq!(decode.ingestor.counters().totals().blocks.pending, 2);

    // The prefill rank's own events tell where that is. The decode rank's blocks have their place then, and no way to it.
    let mut prefill = decode.beside();
    prefill.apply(&batch(&[Event::Stored(&[11, 12])], Some(3)));
    assert_eq!((prefill.held(), prefill.credited(&[11, 12, 13, 14])), (2, 2));
    assert_eq!(decode.credited(&[11, 12, 13, 14]), 0);
    decode.apply(&batch(&[Event::StoredUnder(14, &[15])], Some(3)));
    assert_eq!(decode.credited(&[11, 12, 13, 14, 15]), 0);

    // Once it has computed the prompt itself, all of it is in one piece.
    decode.apply(&batch(&[Event::Stored(&[11, 12])], Some(3)));
    assert_eq!((decode.held(), decode.credited(&[11, 12, 13, 14, 15])), (5, 5));
    assert_eq!(prefill.credited(&[11, 12, 13, 14, 15]), 2, "what one rank computed is not another's");
    decode.apply(&batch(&[Event::Removed(&[12])], Some(3)));
    assert_eq!((decode.held(), decode.credited(&[11, 12, 13, 14, 15])), (4, 1));
    assert_eq!(decode.status.state(), state, "none of that is a fault of the stream");
}

#[test]
fn a_retired_slot_holds_nothing() {
    let mut rig = Rig::new();
    rig.apply(&batch(&[Event::Stored(&[11, 12])], Some(3)));
    rig.stream = None;
    rig.ingestor.retire(SLOT);
    let until = Instant::now() + PATIENCE;
    while rig.held() > 0 {
        assert!(Instant::now() < until, "still held: {}", rig.held());
        thread::sleep(Duration::from_millis(1));
    }
}
