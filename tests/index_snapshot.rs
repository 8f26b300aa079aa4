//! What a slot holds is written out of one index and built again in another: to every prompt, and to every event that comes
//! later, the second must answer as the first would have. The literal index is the judge.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a failed expectation is how a test reports, and tests may read the environment"
)]

mod cases;

use std::num::NonZeroUsize;

use kvroute::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::BlockHash,
    index::{
        Applied, IndexWriter, Overlap, PrefixIndex, Scratch,
        reference::Reference,
        snapshot::{Held, Import, Parent, Part, STRETCH_BLOCKS, Stretch, Waits},
    },
    slot::Slot,
};
use proptest::prelude::*;

use crate::cases::cases;

const SLOTS: u32 = 4;
/// Few, so that blocks are dropped for it.
const PENDING: usize = 6;

/// How engines name their blocks.
#[derive(Clone, Copy, Debug)]
enum Naming {
    /// All alike.
    Shared,
    /// Each in its own way.
    Own,
}

impl Naming {
    fn name(self, slot: u32, path: &[u64]) -> EngineHash {
        let start = if matches!(self, Self::Own) { 1 + u64::from(slot) } else { 0 };
        EngineHash(path.iter().fold(start, |name, content| {
            (name ^ content.wrapping_add(0x5851)).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(23)
        }))
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Blocks behind `from`, some told by name only; an odd store names its blocks as nobody else does.
    Store {
        slot: u32,
        tier: usize,
        from: Vec<u64>,
        blocks: Vec<(u64, bool)>,
        odd: bool,
    },
    Remove {
        slot: u32,
        tier: usize,
        path: Vec<u64>,
        odd: bool,
        left: Option<u32>,
    },
    Clear {
        slot: u32,
        tier: Option<usize>,
    },
}

impl Op {
    fn event(&self, naming: Naming) -> (Slot, Event) {
        let name = |slot, path: &[u64], odd: bool| {
            EngineHash(naming.name(slot, path).0.wrapping_add(u64::from(odd)))
        };
        match self {
            Self::Store { slot: of, tier, from, blocks, odd } => {
                let mut path = from.clone();
                let parent = (!from.is_empty()).then(|| name(*of, from, false));
                let blocks = blocks.iter().map(|&(content, has_content)| {
                    path.push(content);
                    let content = has_content.then_some(BlockHash(content));
                    StoredBlock { engine: name(*of, &path, *odd), content }
                });
                (
                    slot(*of),
                    Event::Stored(Stored { tier: Tier::ALL[*tier], parent, blocks: blocks.collect() }),
                )
            }
            Self::Remove { slot: of, tier, path, odd, left } => {
                let hashes = [name(*of, path, *odd)].into_iter().collect();
                let remaining_copies = left.map(|left| vec![left]);
                (slot(*of), Event::Removed(Removed { tier: Tier::ALL[*tier], hashes, remaining_copies }))
            }
            Self::Clear { slot: of, tier } => (slot(*of), Event::Cleared(tier.map(|tier| Tier::ALL[tier]))),
        }
    }
}

fn slot(index: u32) -> Slot {
    Slot { index, generation: 7 }
}

fn content() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0_u64), 2 => Just(1), 1 => Just(2)]
}

fn path(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(content(), len)
}

fn tier() -> impl Strategy<Value = usize> {
    prop_oneof![5 => Just(0_usize), 2 => Just(1), 1 => Just(2), 1 => Just(3)]
}

fn op() -> impl Strategy<Value = Op> {
    let block = (content(), prop::bool::weighted(0.9));
    let store = (0..SLOTS, tier(), path(0..4), prop::collection::vec(block, 1..6), prop::bool::weighted(0.1));
    let remove =
        (0..SLOTS, tier(), path(1..6), prop::bool::weighted(0.1), prop::option::weighted(0.2, 0_u32..4));
    prop_oneof![
        10 => store.prop_map(|(slot, tier, from, blocks, odd)| Op::Store { slot, tier, from, blocks, odd }),
        7 => remove.prop_map(|(slot, tier, path, odd, left)| Op::Remove { slot, tier, path, odd, left }),
        1 => (0..SLOTS, prop::option::of(tier())).prop_map(|(slot, tier)| Op::Clear { slot, tier }),
    ]
}

fn ops(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), len)
}

fn new_index() -> (PrefixIndex, IndexWriter) {
    let (index, mut writers) = PrefixIndex::with_pending_limit(NonZeroUsize::MIN, PENDING);
    (index, writers.remove(0))
}

/// All that a slot holds, a few blocks at a time; `between` is called between two steps.
fn export(writer: &mut IndexWriter, of: Slot, mut between: impl FnMut(&mut IndexWriter)) -> Vec<Part> {
    let mut export = writer.export(of);
    let mut parts = Vec::new();
    while writer.export_some(&mut export, 3, |part| parts.push(part)) {
        between(writer);
    }
    parts
}

/// Puts the parts of all slots in, those that wait last, as they were all in one index.
fn import(writer: &mut IndexWriter, slots: &[(Slot, Vec<Part>)]) {
    for waiting in [false, true] {
        for (slot, parts) in slots {
            let mut import = Import::new(*slot, 0x5eed ^ u64::from(slot.index));
            let of_kind = |part: &&Part| matches!(part, Part::Waits(_)) == waiting;
            parts.iter().filter(of_kind).for_each(|part| {
                import.put(writer, part);
            });
            while import.finish(writer, 2) {}
        }
    }
}

fn overlap(index: &PrefixIndex, of: Slot, prompt: &[BlockHash]) -> Overlap {
    index.overlap(prompt, &mut Scratch::new()).of(of)
}

/// Every prompt of up to five blocks of three contents.
fn all_prompts() -> Vec<Vec<BlockHash>> {
    let mut prompts: Vec<Vec<BlockHash>> = vec![Vec::new()];
    let mut first = 0;
    for _ in 0..5 {
        let last = prompts.len();
        for at in first..last {
            for content in 0..3 {
                let mut prompt = prompts[at].clone();
                prompt.push(BlockHash(content));
                prompts.push(prompt);
            }
        }
        first = last;
    }
    prompts
}

fn same(index: &PrefixIndex, reference: &Reference, slots: std::ops::Range<u32>) {
    let mut scratch = Scratch::new();
    for prompt in all_prompts() {
        let expected = reference.overlap(&prompt, &mut scratch);
        for of in slots.clone().map(slot) {
            assert_eq!(overlap(index, of, &prompt), expected.of(of), "{of}: {prompt:?}");
        }
    }
    for of in slots.map(slot) {
        assert_eq!(index.blocks(of), reference.blocks(of), "{of}");
    }
}

/// An index that was told all of `ops`, and the literal one.
fn told(naming: Naming, ops: &[Op]) -> (IndexWriter, Reference) {
    let (_, mut index) = new_index();
    let mut reference = Reference::new(PENDING);
    for op in ops {
        let (slot, event) = op.event(naming);
        index.apply(slot, &event);
        reference.apply(slot, &event);
    }
    (index, reference)
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn a_rebuilt_index_answers_and_goes_on_as_the_first(
        shared: bool, before in ops(1..60), after in ops(0..40),
    ) {
        let naming = if shared { Naming::Shared } else { Naming::Own };
        let (mut first, mut reference) = told(naming, &before);
        let slots: Vec<_> =
            (0..SLOTS).map(slot).map(|slot| (slot, export(&mut first, slot, |_| {}))).collect();
        let (index, mut second) = new_index();
        import(&mut second, &slots);
        same(&index, &reference, 0..SLOTS);
        prop_assert_eq!(index.totals().pending, reference.totals().pending);
        while second.tidy() {}
        prop_assert_eq!(index.totals().places, reference.totals().places);
        for op in &after {
            let (slot, event) = op.event(naming);
            let (found, expected) = (second.apply(slot, &event), reference.apply(slot, &event));
            prop_assert_eq!(Applied { stale: false, ..found }, expected, "{:?}", op);
        }
        same(&index, &reference, 0..SLOTS);
    }

    /// The other slots go on between the steps of an export; what comes out is of the moment at which it began.
    #[test]
    fn an_export_is_of_one_moment(shared: bool, before in ops(1..60), meanwhile in ops(0..120)) {
        let naming = if shared { Naming::Shared } else { Naming::Own };
        let (mut first, reference) = told(naming, &before);
        let mut others = meanwhile.iter().map(|op| op.event(naming)).filter(|(of, _)| *of != slot(0));
        let parts = export(&mut first, slot(0), |writer| {
            for (slot, event) in others.by_ref().take(4) {
                writer.apply(slot, &event);
            }
        });
        let (index, mut second) = new_index();
        import(&mut second, &[(slot(0), parts)]);
        same(&index, &reference, 0..1);
    }
}

#[test]
fn a_long_chain_comes_in_stretches_and_a_hole_stays_one() {
    let blocks = STRETCH_BLOCKS as u64 * 2 + 100;
    let block = |at: u64| StoredBlock { engine: EngineHash(1_000 + at), content: Some(BlockHash(at)) };
    let (_, mut first) = new_index();
    let stored = Stored { tier: Tier::Gpu, parent: None, blocks: (0..blocks).map(block).collect() };
    first.apply(slot(0), &Event::Stored(stored));
    // Where a stretch ends, so that the next one hangs behind what is not held.
    let hole = STRETCH_BLOCKS as u64 - 1;
    let hashes = [EngineHash(1_000 + hole)].into_iter().collect();
    let removed = Removed { tier: Tier::Gpu, hashes, remaining_copies: None };
    first.apply(slot(0), &Event::Removed(removed));
    let parts = export(&mut first, slot(0), |_| {});
    assert!(parts.len() >= 3, "{}", parts.len());
    assert!(parts.iter().all(|part| part.blocks() <= STRETCH_BLOCKS));

    let (index, mut second) = new_index();
    import(&mut second, &[(slot(0), parts)]);
    let prompt: Vec<_> = (0..blocks).map(BlockHash).collect();
    assert_eq!(u64::from(overlap(&index, slot(0), &prompt).gpu), hole);
    assert_eq!(index.blocks(slot(0))[0], blocks - 1);
    let parent = Some(EngineHash(1_000 + hole - 1));
    let again = Stored { tier: Tier::Gpu, parent, blocks: [block(hole)].into_iter().collect() };
    second.apply(slot(0), &Event::Stored(again));
    assert_eq!(u64::from(overlap(&index, slot(0), &prompt).gpu), blocks, "what is behind the hole was kept");
}

#[test]
fn nothing_comes_of_a_slot_that_is_over_or_unknown() {
    let (_, mut writer) = new_index();
    let block = StoredBlock { engine: EngineHash(1), content: Some(BlockHash(1)) };
    let stored = Stored { tier: Tier::Gpu, parent: None, blocks: [block].into_iter().collect() };
    writer.apply(slot(0), &Event::Stored(stored));
    assert_eq!(export(&mut writer, slot(0), |_| {}).len(), 1);
    assert!(export(&mut writer, Slot { index: 0, generation: 6 }, |_| {}).is_empty());
    assert!(export(&mut writer, slot(3), |_| {}).is_empty());
    writer.retire(slot(0));
    assert!(export(&mut writer, slot(0), |_| {}).is_empty());
}

/// Whoever wrote it, a part does no harm.
#[test]
fn parts_that_make_no_sense_are_put_in_as_far_as_they_go() {
    let (index, mut writer) = new_index();
    let held = |offset, copies| Held { offset, name: EngineHash(u64::from(offset) + 1), copies };
    let mut import = Import::new(slot(0), 1);
    for parent in
        [Parent::Start, Parent::Named(EngineHash(99)), Parent::Unheld { stretch: u32::MAX, offset: u32::MAX }]
    {
        let contents = vec![BlockHash(1), BlockHash(2)];
        let held = vec![held(0, [0; 4]), held(1, [u32::MAX; 4]), held(1, [1, 0, 0, 0]), held(9, [1; 4])];
        import.put(&mut writer, &Part::Stretch(Stretch { parent, contents, held }));
    }
    let empty = Stretch { parent: Parent::Start, contents: Vec::new(), held: vec![held(0, [1; 4])] };
    import.put(&mut writer, &Part::Stretch(empty));
    let waits = Waits { name: EngineHash(5), below: None, copies: [0; 4] };
    import.put(&mut writer, &Part::Waits(waits));
    while import.finish(&mut writer, 1) {}
    assert_eq!(overlap(&index, slot(0), &[BlockHash(1), BlockHash(2)]), Overlap::default());
}
