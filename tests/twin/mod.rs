//! The index and the reference, driven side by side: whatever is done to one is done to the other, and both must say
//! the same.
#![allow(dead_code, reason = "each test file that includes this uses its part of it")]

use std::num::NonZeroUsize;

use ahash::AHashSet;
use kvroute::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::BlockHash,
    index::{Applied, IndexWriter, Overlap, Overlaps, PrefixIndex, Scratch, Totals, reference::Reference},
    slot::Slot,
};

/// Who holds how much of a prompt, in order of slot.
pub(crate) type Answer = Vec<(Slot, Overlap)>;

/// Slots beyond are left out of dense answers.
const DENSE: usize = 2_048;

/// One shard and its reference.
pub(crate) struct Twin {
    pub(crate) index: PrefixIndex,
    pub(crate) writer: IndexWriter,
    pub(crate) reference: Reference,
    scratch: [Scratch; 2],
    answers: [Answer; 2],
    depths: Vec<u32>,
    slots: AHashSet<Slot>,
}

impl Twin {
    pub(crate) fn new(pending_limit: usize) -> Self {
        let (index, mut writers) = PrefixIndex::with_pending_limit(NonZeroUsize::MIN, pending_limit);
        Self {
            index,
            writer: writers.remove(0),
            reference: Reference::new(pending_limit),
            scratch: [Scratch::new(), Scratch::new()],
            answers: [Answer::new(), Answer::new()],
            depths: vec![7; DENSE],
            slots: AHashSet::new(),
        }
    }

    pub(crate) fn apply(&mut self, slot: Slot, event: &Event) {
        self.slots.insert(slot);
        let expected = self.reference.apply(slot, event);
        assert_eq!(self.writer.apply(slot, event), expected, "{slot}: {event:?}");
    }

    /// All events in one call.
    pub(crate) fn apply_all(&mut self, events: &[(Slot, Event)]) {
        let mut expected: Vec<Applied> = Vec::new();
        for (slot, event) in events {
            self.slots.insert(*slot);
            expected.push(self.reference.apply(*slot, event));
        }
        let events: Vec<(Slot, &Event)> = events.iter().map(|(slot, event)| (*slot, event)).collect();
        let mut applied: Vec<Applied> = Vec::new();
        self.writer.apply_all(&events, |_, done| applied.push(done));
        for ((event, found), expected) in events.iter().zip(&applied).zip(&expected) {
            assert_eq!(found, expected, "{event:?}");
        }
        assert_eq!(applied.len(), expected.len());
    }

    pub(crate) fn retire(&mut self, slot: Slot) {
        self.slots.insert(slot);
        let expected = self.reference.retire(slot);
        assert_eq!(self.writer.retire(slot), expected, "{slot} retires");
    }

    pub(crate) fn tidy(&mut self) {
        while self.writer.tidy() {}
    }

    /// The whole answer to a prompt.
    pub(crate) fn compare(&mut self, prompt: &[BlockHash]) {
        let [scratch, other] = &mut self.scratch;
        let [found, expected] = &mut self.answers;
        let is_empty = {
            let overlaps = self.index.overlap(prompt, scratch);
            collect(&overlaps, found);
            overlaps.is_empty()
        };
        collect(&self.reference.overlap(prompt, other), expected);
        assert_eq!(found, expected, "who holds what of {} blocks: {prompt:?}", prompt.len());
        assert_eq!(is_empty, expected.is_empty());
        self.index.gpu_depths(prompt, scratch, &mut self.depths);
        assert_eq!(self.depths, depths(expected, DENSE), "of {} blocks: {prompt:?}", prompt.len());
    }

    pub(crate) fn compare_blocks(&self, slot: Slot) {
        assert_eq!(self.index.blocks(slot), self.reference.blocks(slot), "blocks of {slot}");
    }

    /// What is counted at once; places only after [`Self::tidy`].
    pub(crate) fn compare_totals(&self, places_too: bool) {
        let (found, expected) = (self.index.totals(), self.reference.totals());
        let places = if places_too { expected.places } else { found.places };
        assert_eq!(found, Totals { bytes: found.bytes, places, ..expected });
    }

    /// Every slot retires, and nothing is left.
    pub(crate) fn drain(&mut self) {
        for slot in std::mem::take(&mut self.slots) {
            self.retire(slot);
        }
        self.tidy();
        let Totals { dropped, bytes, .. } = self.index.totals();
        assert_eq!(self.index.totals(), Totals { dropped, bytes, ..Totals::default() }, "after all are gone");
    }
}

/// The answer in order; no slot twice, no empty part.
pub(crate) fn collect(overlaps: &Overlaps<'_>, answer: &mut Answer) {
    answer.clear();
    for (depth, level) in overlaps.levels() {
        assert!(depth > 0 && !level.is_empty(), "a level without blocks or slots");
        answer.extend(level.iter().map(|&slot| (slot, Overlap { gpu: depth, ..Overlap::default() })));
    }
    answer.sort_unstable_by_key(|(slot, _)| *slot);
    assert!(answer.windows(2).all(|two| two[0].0 != two[1].0), "a slot is in two levels: {answer:?}");
    for extension in overlaps.extensions() {
        let at = answer.binary_search_by_key(&extension.slot, |(slot, _)| *slot).unwrap_or_else(|at| {
            answer.insert(at, (extension.slot, Overlap::default()));
            at
        });
        let overlap = &mut answer[at].1;
        let blocks = match extension.tier {
            Tier::Gpu => unreachable!("{extension:?}"),
            Tier::Host => &mut overlap.host,
            Tier::Disk => &mut overlap.disk,
            Tier::External => &mut overlap.external,
        };
        assert!(*blocks == 0 && extension.blocks > 0, "{extension:?}, and {overlap:?} before");
        *blocks = extension.blocks;
    }
}

/// The GPU part of an answer, by slot index.
pub(crate) fn depths(answer: &Answer, length: usize) -> Vec<u32> {
    let mut depths = vec![0; length];
    for (slot, overlap) in answer {
        if let Some(depth) = depths.get_mut(slot.index as usize) {
            *depth = overlap.gpu;
        }
    }
    depths
}

pub(crate) fn stored(
    tier: Tier,
    parent: Option<u64>,
    blocks: impl IntoIterator<Item = (u64, Option<u64>)>,
) -> Event {
    let block = |(name, content): (u64, Option<u64>)| StoredBlock {
        engine: EngineHash(name),
        content: content.map(BlockHash),
    };
    let blocks = blocks.into_iter().map(block).collect();
    Event::Stored(Stored { tier, parent: parent.map(EngineHash), blocks })
}

pub(crate) fn removed(
    tier: Tier,
    names: impl IntoIterator<Item = u64>,
    remaining_copies: Option<Vec<u32>>,
) -> Event {
    let hashes = names.into_iter().map(EngineHash).collect();
    Event::Removed(Removed { tier, hashes, remaining_copies })
}

/// Mixes two words into one.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    (a ^ b.wrapping_add(0x5851_f42d_4c95_7f2d)).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(23)
}
