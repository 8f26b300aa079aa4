//! A slot that may not grow: it holds less than its engine, and never anything that its engine has not.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::num::NonZeroUsize;

use kvroute::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::BlockHash,
    index::{Applied, IndexWriter, Overlap, PrefixIndex, Scratch},
    slot::Slot,
};

const SLOT: Slot = Slot { index: 0, generation: 0 };
const OTHER: Slot = Slot { index: 1, generation: 0 };

struct Index {
    index: PrefixIndex,
    writer: IndexWriter,
}

fn block(name: u64, content: u64) -> StoredBlock {
    StoredBlock { engine: EngineHash(name), content: Some(BlockHash(content)) }
}

fn stored(parent: Option<u64>, blocks: &[(u64, u64)]) -> Event {
    let blocks = blocks.iter().map(|&(name, content)| block(name, content)).collect();
    Event::Stored(Stored { tier: Tier::Gpu, parent: parent.map(EngineHash), blocks })
}

fn removed(names: &[u64]) -> Event {
    let hashes = names.iter().copied().map(EngineHash).collect();
    Event::Removed(Removed { tier: Tier::Gpu, hashes, remaining_copies: None })
}

impl Index {
    fn new() -> Self {
        let (index, mut writers) = PrefixIndex::new(NonZeroUsize::MIN);
        Self { index, writer: writers.remove(0) }
    }

    fn overlap(&self, slot: Slot, prompt: &[u64]) -> u32 {
        let prompt: Vec<_> = prompt.iter().copied().map(BlockHash).collect();
        self.index.overlap(&prompt, &mut Scratch::new()).of(slot).gpu
    }
}

#[test]
fn new_blocks_are_passed_over_and_removals_count() {
    let mut index = Index::new();
    index.writer.apply(SLOT, &stored(None, &[(1, 11), (2, 12)]));
    let used = index.writer.used_bytes();
    let applied = index.writer.apply_without_growth(SLOT, &stored(Some(2), &[(3, 13), (4, 14)]));
    assert_eq!(applied, Applied { refused: 2, ..Applied::default() });
    // What hangs below them does not wait for them either.
    let applied = index.writer.apply_without_growth(SLOT, &stored(Some(4), &[(5, 15)]));
    assert_eq!(applied, Applied { refused: 1, ..Applied::default() });
    assert_eq!((index.overlap(SLOT, &[11, 12, 13]), index.index.totals().pending), (2, 0));
    assert!(index.writer.used_bytes() <= used);
    let applied = index.writer.apply_without_growth(SLOT, &removed(&[3, 2]));
    assert_eq!((applied.unknown, applied.removed), (1, 1));
    assert_eq!(index.overlap(SLOT, &[11, 12, 13]), 1);
    index.writer.apply_without_growth(SLOT, &removed(&[1]));
    assert!(index.writer.used_bytes() < used);
}

#[test]
fn blocks_that_it_holds_are_stored_again_as_ever() {
    let mut index = Index::new();
    index.writer.apply(SLOT, &stored(None, &[(1, 11), (2, 12)]));
    let applied = index.writer.apply_without_growth(SLOT, &stored(None, &[(1, 11), (2, 12), (3, 13)]));
    assert_eq!((applied.already, applied.refused), (2, 1));
    // A second copy each: the first removal leaves them.
    let applied = index.writer.apply_without_growth(SLOT, &removed(&[2, 1]));
    assert_eq!((applied.kept, applied.removed), (2, 0));
    assert_eq!(index.overlap(SLOT, &[11, 12]), 2);
}

#[test]
fn a_name_that_comes_back_elsewhere_is_no_longer_held_where_it_was() {
    let mut index = Index::new();
    index.writer.apply(SLOT, &stored(None, &[(1, 11), (2, 12)]));
    let applied = index.writer.apply_without_growth(SLOT, &stored(Some(1), &[(2, 99)]));
    assert_eq!((applied.stored, applied.moved), (1, 1));
    assert_eq!((index.overlap(SLOT, &[11, 12]), index.overlap(SLOT, &[11, 99])), (1, 2));
    // With a parent that is not known the place cannot be told, and the old one is wrong all the same.
    let applied = index.writer.apply_without_growth(SLOT, &stored(Some(77), &[(2, 12)]));
    assert_eq!(applied.moved, 1);
    assert_eq!((index.overlap(SLOT, &[11, 12]), index.overlap(SLOT, &[11, 99])), (1, 1));
}

#[test]
fn waiting_blocks_may_get_their_place_and_others_grow() {
    let mut index = Index::new();
    index.writer.apply(SLOT, &stored(Some(1), &[(2, 12)]));
    assert_eq!(index.index.totals().pending, 1);
    index.writer.apply_without_growth(SLOT, &removed(&[2]));
    assert_eq!(index.index.totals().pending, 0);
    index.writer.apply_without_growth(SLOT, &Event::Cleared(None));
    index.writer.apply(OTHER, &stored(None, &[(1, 11), (2, 12)]));
    assert_eq!((index.overlap(SLOT, &[11, 12]), index.overlap(OTHER, &[11, 12])), (0, 2));
}

/// Random events to two indexes, of which one holds some slots back for a while.
#[test]
fn a_slot_that_was_held_back_is_never_credited_more_than_it_would_be() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..300 {
        let (mut whole, mut held_back) = (Index::new(), Index::new());
        let mut stopped = [false; 3];
        let mut ever = [false; 3];
        for _ in 0..120 {
            let at = rng.usize(..3);
            let slot = Slot { index: at as u32, generation: 0 };
            // A name says its path, as engines' names do: 1 to 3 for one block, 11 to 33 for two, and so on.
            let path: Vec<u64> = (0..rng.usize(1..6)).map(|_| rng.u64(1..4)).collect();
            let name = |length: usize| path[..length].iter().fold(0, |name, content| name * 10 + content);
            let from = rng.usize(..path.len());
            let blocks: Vec<_> = (from..path.len()).map(|at| (name(at + 1), path[at])).collect();
            let event = match rng.u8(..20) {
                0 => Event::Cleared(None),
                1..9 => removed(&[name(path.len())]),
                _ => stored((from > 0).then(|| name(from)), &blocks),
            };
            if rng.u8(..10) == 0 {
                stopped[at] = !stopped[at];
                ever[at] |= stopped[at];
            }
            whole.writer.apply(slot, &event);
            if stopped[at] {
                held_back.writer.apply_without_growth(slot, &event);
            } else {
                held_back.writer.apply(slot, &event);
            }
            let mut scratch = [Scratch::new(), Scratch::new()];
            let prompt: Vec<_> = path.iter().copied().map(BlockHash).collect();
            let [exact, less] = &mut scratch;
            let (exact, less) = (whole.index.overlap(&prompt, exact), held_back.index.overlap(&prompt, less));
            for index in 0..3 {
                let slot = Slot { index, generation: 0 };
                let (exact, less): (Overlap, Overlap) = (exact.of(slot), less.of(slot));
                assert!(less.gpu <= exact.gpu, "slot {index}: {} of {}", less.gpu, exact.gpu);
                // As long as nobody was held back, nothing is missing.
                assert!(ever != [false; 3] || less == exact);
            }
        }
    }
}
