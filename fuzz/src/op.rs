//! What is done to the index, as bytes spell it.

use arbitrary::Arbitrary;
use kvroute::{
    event::{Event, Tier},
    hash::BlockHash,
    slot::Slot,
};

use crate::twin::{Twin, mix, removed, stored};

const SLOTS: u8 = 9;
/// Names of raw blocks; few, so that they move and collide.
const NAMES: u8 = 12;
const CONTENTS: u8 = 3;
/// Blocks of a chain for each step of an operation's bounds.
const STRIDE: usize = 7;

#[derive(Clone, Debug, Arbitrary)]
pub(crate) enum Op {
    /// A stretch of one of a few long chains that fork from each other.
    Store {
        slot: u8,
        tier: u8,
        chain: u8,
        from: u8,
        to: u8,
        voice: u8,
    },
    Remove {
        slot: u8,
        tier: u8,
        chain: u8,
        from: u8,
        to: u8,
        voice: u8,
        backwards: bool,
    },
    /// Blocks under names that mean nothing, some of them names only.
    RawStore {
        slot: u8,
        tier: u8,
        parent: Option<u8>,
        blocks: Vec<(u8, Option<u8>)>,
    },
    RawRemove {
        slot: u8,
        tier: u8,
        names: Vec<u8>,
        remaining: Option<Vec<u8>>,
    },
    Clear {
        slot: u8,
        tier: Option<u8>,
    },
    Retire {
        slot: u8,
    },
    Renew {
        slot: u8,
    },
    Late {
        slot: u8,
    },
    Tidy {
        to_the_end: bool,
    },
    Expect {
        thousands: u8,
    },
    Look {
        contents: Vec<u8>,
    },
}

pub(crate) struct World {
    twin: Twin,
    generations: [u32; SLOTS as usize],
}

impl World {
    pub(crate) fn new(pending_limit: usize) -> Self {
        Self { twin: Twin::new(pending_limit), generations: [1; SLOTS as usize] }
    }

    fn slot(&self, number: u8) -> Slot {
        let number = number % SLOTS;
        Slot { index: u32::from(number) * 7_001, generation: self.generations[number as usize] }
    }

    pub(crate) fn run(&mut self, op: &Op) {
        match op {
            Op::Store { slot, tier, chain, from, to, voice } => {
                let (from, to) = bounds(*from, *to);
                let name = |at| name(*voice, *chain, at);
                let blocks = (from..to).map(|at| (name(at), Some(content(*chain, at))));
                let event = stored(tier_of(*tier), (from > 0).then(|| name(from - 1)), blocks);
                self.twin.apply(self.slot(*slot), &event);
                self.look_at_chain(*chain);
            }
            Op::Remove { slot, tier, chain, from, to, voice, backwards } => {
                let (from, to) = bounds(*from, *to);
                let mut names: Vec<u64> = (from..to).map(|at| name(*voice, *chain, at)).collect();
                if *backwards {
                    names.reverse();
                }
                self.twin.apply(self.slot(*slot), &removed(tier_of(*tier), names, None));
                self.look_at_chain(*chain);
            }
            Op::RawStore { slot, tier, parent, blocks } => {
                let parent = parent.map(|name| u64::from(name % NAMES));
                let known = |content: Option<u8>| content.map(|content| u64::from(content % CONTENTS));
                let blocks = blocks.iter().map(|&(name, content)| (u64::from(name % NAMES), known(content)));
                // A block at the start of a prompt has a content, or it would be known by nothing.
                self.twin.apply(self.slot(*slot), &stored(tier_of(*tier), parent, blocks));
                self.look_at_raw();
            }
            Op::RawRemove { slot, tier, names, remaining } => {
                let names = names.iter().map(|name| u64::from(name % NAMES));
                let remaining =
                    remaining.as_ref().map(|all| all.iter().map(|left| u32::from(left % 4)).collect());
                self.twin.apply(self.slot(*slot), &removed(tier_of(*tier), names, remaining));
                self.look_at_raw();
            }
            Op::Clear { slot, tier } => self.twin.apply(self.slot(*slot), &Event::Cleared(tier.map(tier_of))),
            Op::Retire { slot } => self.twin.retire(self.slot(*slot)),
            Op::Renew { slot } => self.generations[(slot % SLOTS) as usize] += 1,
            Op::Late { slot } => {
                let slot = self.slot(*slot);
                let late = Slot { generation: slot.generation - 1, ..slot };
                self.twin.apply(late, &stored(Tier::Gpu, None, [(1, Some(1))]));
            }
            Op::Tidy { to_the_end: true } => {
                self.twin.tidy();
                self.twin.compare_totals(true);
            }
            Op::Tidy { .. } => _ = self.twin.writer.tidy(),
            Op::Expect { thousands } => self.twin.writer.expect(usize::from(*thousands) * 1_000),
            Op::Look { contents } => self.look(contents.iter().map(|content| u64::from(content % CONTENTS))),
        }
        (0..SLOTS).for_each(|slot| self.twin.compare_blocks(self.slot(slot)));
        self.twin.compare_totals(false);
    }

    pub(crate) fn end(mut self) {
        (0..4).for_each(|chain| self.look_at_chain(chain));
        self.twin.drain();
    }

    fn look(&mut self, contents: impl Iterator<Item = u64>) {
        let prompt: Vec<BlockHash> = contents.map(BlockHash).collect();
        self.twin.compare(&prompt);
    }

    fn look_at_chain(&mut self, chain: u8) {
        self.look((0..900).map(|at| content(chain, at)));
    }

    fn look_at_raw(&mut self) {
        for prompt in 0..27_u64 {
            self.look([prompt % 3, prompt / 3 % 3, prompt / 9, 0, prompt % 3].into_iter());
        }
    }
}

fn tier_of(tier: u8) -> Tier {
    // Mostly the GPU.
    Tier::ALL[usize::from(tier % 8).saturating_sub(4)]
}

/// Mostly short, or from the start on.
fn bounds(from: u8, to: u8) -> (usize, usize) {
    let (from, to) = (usize::from(from % 128), usize::from(to % 128));
    let from = if from < 64 { 0 } else { (from - 64) * STRIDE };
    let to = if to < 64 { from + to } else { (to - 64) * STRIDE };
    (from, to.max(from + 1))
}

/// Chains 1, 2 and 3 are as chain 0 for a while.
fn content(chain: u8, at: usize) -> u64 {
    let chain = chain % 4;
    let own = at >= usize::from(chain) * 97;
    mix(at as u64, u64::from(if own { chain } else { 0 }) + 1)
}

/// What an engine calls a block: as most do, as a few do, or as one that tells apart what others do not.
fn name(voice: u8, chain: u8, at: usize) -> u64 {
    let content = content(chain, at);
    match voice % 16 {
        0..12 => content,
        12 | 13 => mix(content, u64::from(voice % 2)),
        14 => content % 50,
        _ => content % 2 + at as u64,
    }
}
