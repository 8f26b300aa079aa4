//! What one rank is expected to have cached, because of what it was sent.
//!
//! An engine without KV events says nothing of its cache, but what it computes it caches, and what it was not asked for
//! for long it evicts. So the blocks of each prompt that is sent there count as cached from then on, until a time is over
//! or as many others were sent as fit. Nothing here is known: it is a guess, and marked as one.
//!
//! What is expected goes into the index as the events of an engine would, so that a lookup finds it as it finds everything
//! else. A block's name is the hash of the whole prefix.

use std::{collections::VecDeque, time::Duration};

use crate::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    fleet::ExpectedLimits,
    hash::{BlockHash, ChainEnd, ChainTree, SequenceHash},
};

/// A block of a prompt: its content, and its name.
pub(super) type Block = (BlockHash, SequenceHash);

/// The blocks that one rank is expected to hold.
#[derive(Debug)]
pub(super) struct Expected {
    limits: ExpectedLimits,
    /// Each run with the stamp of when it was last sent.
    held: ChainTree<u64>,
    /// How many they are.
    blocks: usize,
    /// In the order in which they leave. Of a prompt that was sent again in part, that part leaves by the later entry.
    order: VecDeque<Entry>,
    stamp: u64,
    /// Names of the prompt at hand, kept for its memory.
    names: Vec<SequenceHash>,
}

/// What was sent at one time: the runs with its stamp, from this one back. Of a prompt the last block leaves first, so that
/// what stays is always a prefix. Void once the last run has another stamp, since the ones before it were sent with it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    last: ChainEnd,
    stamp: u64,
    sent: Duration,
}

impl Expected {
    pub(super) fn new(limits: ExpectedLimits) -> Self {
        let (held, order) = (ChainTree::default(), VecDeque::new());
        Self { limits, held, blocks: 0, order, stamp: 0, names: Vec::new() }
    }

    /// A prompt was sent there. What that changes goes to `apply`, in order.
    pub(super) fn sent(&mut self, prompt: &[Block], now: Duration, mut apply: impl FnMut(Event)) {
        // Of a prompt that does not fit, an engine keeps what comes first for longest.
        let prompt = &prompt[..prompt.len().min(self.limits.most)];
        if prompt.is_empty() {
            return;
        }
        self.names.clear();
        self.names.extend(prompt.iter().map(|&(_, name)| name));
        self.stamp += 1;
        let stamp = self.stamp;
        let (before, last) = self.held.enter(&self.names, |of_run| *of_run = stamp);
        if before < prompt.len() {
            self.blocks += prompt.len() - before;
            apply(stored(prompt, before));
        }
        self.order.push_back(Entry { last, stamp, sent: now });
        let surplus = self.blocks.saturating_sub(self.limits.most);
        self.leave(surplus, &mut apply, |_| true);
        self.compact();
    }

    /// Ends what has been expected for long enough.
    pub(super) fn expire(&mut self, now: Duration, mut apply: impl FnMut(Event)) {
        let Some(ttl) = self.limits.ttl else { return };
        self.leave(usize::MAX, &mut apply, |entry| entry.sent.saturating_add(ttl) <= now);
    }

    /// When the next block's time is over, or some time before: it may have been sent again.
    pub(super) fn due(&self) -> Option<Duration> {
        Some(self.order.front()?.sent.saturating_add(self.limits.ttl?))
    }

    /// Nothing is expected any more.
    pub(super) fn clear(&mut self) -> Event {
        self.held = ChainTree::default();
        self.blocks = 0;
        self.order.clear();
        Event::Cleared(None)
    }

    /// Lets up to `most` blocks go, in their order, as long as `goes` says so of what was sent at one time.
    fn leave(&mut self, most: usize, apply: &mut impl FnMut(Event), goes: impl Fn(&Entry) -> bool) {
        let Self { held, order, blocks, .. } = self;
        let mut hashes = smallvec::SmallVec::new();
        while let Some(entry) = order.front_mut() {
            if held.get(entry.last) != Some(&entry.stamp) {
                order.pop_front();
                continue;
            }
            if hashes.len() == most || !goes(entry) {
                break;
            }
            let before = held.before(entry.last);
            if !held.shorten(entry.last, most - hashes.len(), |name| hashes.push(engine(name))) {
                break;
            }
            match before {
                Some(before) => entry.last = before,
                None => drop(order.pop_front()),
            }
        }
        *blocks -= hashes.len();
        if !hashes.is_empty() {
            apply(Event::Removed(Removed { tier: Tier::Gpu, hashes, remaining_copies: None }));
        }
    }

    /// Keeps void entries from outnumbering the others.
    fn compact(&mut self) {
        if self.order.len() > 2 * self.held.runs() + 64 {
            let Self { held, order, .. } = self;
            order.retain(|entry| held.get(entry.last) == Some(&entry.stamp));
        }
    }
}

/// That the blocks of `prompt` from `first` on are there from now on.
fn stored(prompt: &[Block], first: usize) -> Event {
    let parent = first.checked_sub(1).map(|parent| engine(prompt[parent].1));
    let block = |&(content, name): &Block| StoredBlock { engine: engine(name), content: Some(content) };
    Event::Stored(Stored { tier: Tier::Gpu, parent, blocks: prompt[first..].iter().map(block).collect() })
}

const fn engine(name: SequenceHash) -> EngineHash {
    EngineHash(name.0)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, num::NonZeroUsize};

    use proptest::prelude::*;

    use super::*;
    use crate::{
        hash,
        index::{PrefixIndex, Scratch},
        slot::Slot,
    };

    const SLOT: Slot = Slot { index: 0, generation: 0 };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn blocks(contents: &[u64]) -> Vec<Block> {
        let contents: Vec<_> = contents.iter().map(|&content| BlockHash(content)).collect();
        let mut names = Vec::new();
        hash::chain(&contents, &mut names);
        contents.into_iter().zip(names).collect()
    }

    /// What is expected, and the index that it is written to.
    struct World {
        expected: Expected,
        index: PrefixIndex,
        writer: crate::index::IndexWriter,
    }

    impl World {
        fn new(ttl: Option<Duration>, most: usize) -> Self {
            let (index, mut writers) = PrefixIndex::new(NonZeroUsize::MIN);
            let expected = Expected::new(ExpectedLimits { ttl, most });
            Self { expected, index, writer: writers.remove(0) }
        }

        fn sent(&mut self, contents: &[u64], now: u64) {
            let Self { expected, writer, .. } = self;
            expected.sent(&blocks(contents), seconds(now), |event| {
                writer.apply(SLOT, &event);
            });
        }

        fn expire(&mut self, now: u64) {
            let Self { expected, writer, .. } = self;
            expected.expire(seconds(now), |event| {
                writer.apply(SLOT, &event);
            });
        }

        fn depth(&self, contents: &[u64]) -> u32 {
            let prompt: Vec<_> = contents.iter().map(|&content| BlockHash(content)).collect();
            self.index.overlap(&prompt, &mut Scratch::new()).of(SLOT).gpu
        }

        fn held(&self) -> u64 {
            self.index.blocks(SLOT)[Tier::Gpu.index()]
        }
    }

    #[test]
    fn a_prompt_is_expected_for_a_time_that_begins_anew_when_it_is_sent_again() {
        let mut world = World::new(Some(seconds(10)), 100);
        world.sent(&[1, 2, 3], 0);
        world.sent(&[1, 2, 4, 5], 6);
        assert_eq!((world.depth(&[1, 2, 3]), world.depth(&[1, 2, 4, 5, 6]), world.held()), (3, 4, 5));
        world.expire(9);
        assert_eq!(world.depth(&[1, 2, 3]), 3);
        world.expire(10);
        assert_eq!((world.depth(&[1, 2, 3]), world.depth(&[1, 2, 4, 5]), world.held()), (2, 4, 4));
        assert_eq!(world.expected.due(), Some(seconds(16)));
        world.expire(16);
        assert_eq!((world.held(), world.expected.due()), (0, None));
    }

    #[test]
    fn what_was_sent_first_makes_room_and_a_prefix_stays_a_prefix() {
        let mut world = World::new(None, 4);
        world.sent(&[1, 2, 3], 0);
        world.sent(&[7, 8], 0);
        assert_eq!((world.depth(&[1, 2, 3]), world.depth(&[7, 8])), (2, 2));
        world.sent(&[1], 0);
        world.sent(&[9, 10], 0);
        assert_eq!((world.depth(&[1, 2]), world.depth(&[7, 8]), world.depth(&[9, 10])), (1, 1, 2));
        world.sent(&[1, 2, 3, 4, 5, 6], 0);
        assert_eq!((world.depth(&[1, 2, 3, 4, 5, 6]), world.held()), (4, 4), "what comes first");
        world.expire(u64::MAX);
        assert_eq!((world.held(), world.expected.due()), (4, None));
    }

    #[test]
    fn nothing_is_expected_after_a_clear() {
        let mut world = World::new(Some(seconds(10)), 100);
        world.sent(&[1, 2], 0);
        let cleared = world.expected.clear();
        world.writer.apply(SLOT, &cleared);
        assert_eq!((world.held(), world.expected.due()), (0, None));
        world.sent(&[1, 2], 1);
        assert_eq!(world.depth(&[1, 2]), 2);
    }

    proptest! {
        /// Against a map of blocks by when they were last sent, which is searched for the one that leaves next.
        #[test]
        fn it_holds_what_a_literal_cache_holds(
            prompts in prop::collection::vec((prop::collection::vec(0_u64..3, 0..6), 0_u64..5), 0..60),
            most in 1_usize..12,
            ttl in prop::option::of(0_u64..12),
        ) {
            let mut world = World::new(ttl.map(seconds), most);
            // By their path, with the time and the turn in which they were sent.
            let mut literal: BTreeMap<Vec<u64>, (u64, u64)> = BTreeMap::new();
            let (mut now, mut turn) = (0, 0);
            for (prompt, passed) in prompts {
                now += passed;
                world.expire(now);
                literal.retain(|_, &mut (sent, _)| ttl.is_none_or(|ttl| now < sent + ttl));
                world.sent(&prompt, now);
                let kept = &prompt[..prompt.len().min(most)];
                for end in (1..=kept.len()).rev() {
                    turn += 1;
                    literal.insert(kept[..end].to_vec(), (now, turn));
                }
                while literal.len() > most {
                    let first = literal.iter().min_by_key(|(_, (_, turn))| *turn).unwrap().0.clone();
                    literal.remove(&first);
                }
                prop_assert_eq!(world.held(), literal.len() as u64);
                for path in literal.keys() {
                    prop_assert_eq!(world.depth(path), path.len() as u32);
                }
                prop_assert_eq!(world.expected.blocks, literal.len());
                prop_assert!(world.expected.order.len() <= 2 * world.expected.held.runs() + 64);
            }
        }
    }
}
