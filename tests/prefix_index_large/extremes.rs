//! Shapes that random fleets do not reach: chains longer than a run can be, tables that split many times, years of churn.

use fastrand::Rng;
use kvroute::{
    event::{Event, Tier},
    hash::BlockHash,
    slot::Slot,
};

use crate::{
    prompts::{Chain, Naming},
    twin::{Twin, removed, stored},
};

/// Where a run is full: nothing depends on it but what these tests reach.
const RUN: usize = 32_704;

fn slot(index: u32) -> Slot {
    Slot { index, generation: 0 }
}

fn chain(rng: &mut Rng, length: usize) -> Chain {
    let mut chain = Chain::default();
    (0..length).for_each(|_| chain.push(rng.u64(..)));
    chain
}

fn part(chain: &Chain, tier: Tier, from: usize, to: usize) -> Event {
    let name = |at| Naming::Shared.name(0, chain, at);
    let parent = (from > 0).then(|| name(from - 1));
    stored(tier, parent, (from..to).map(|at| (name(at), Some(chain.contents[at]))))
}

fn names(chain: &Chain, tier: Tier, blocks: impl Iterator<Item = usize>) -> Event {
    removed(tier, blocks.map(|at| Naming::Shared.name(0, chain, at)), None)
}

/// Prompts through a chain that end, or leave it, about where runs do.
fn compare(twin: &mut Twin, chain: &Chain, rng: &mut Rng) {
    let depth = [RUN - 1, RUN, RUN + 1, RUN + 900, chain.len()][rng.usize(..5)].min(chain.len());
    let mut prompt = chain.prompt(depth);
    prompt.push(BlockHash(rng.u64(..)));
    twin.compare(&prompt);
    (0..8).for_each(|index| twin.compare_blocks(slot(index)));
    twin.compare_totals(false);
}

pub(crate) fn chains_beyond_a_run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut twin = Twin::new(4_096);
    let length = RUN + rng.usize(3_000..6_000);
    let chain = chain(&mut rng, length);
    // One slot goes all the way, in events of all sizes; others join here and there.
    let mut at = 0;
    while at < chain.len() {
        let end = (at + [1, 900, 9_000, 40_000][rng.usize(..4)]).min(chain.len());
        twin.apply(slot(0), &part(&chain, Tier::Gpu, at, end));
        at = end;
        if rng.u8(..4) == 0 {
            compare(&mut twin, &chain, &mut rng);
        }
    }
    for index in 1..8 {
        let tier = if index < 6 { Tier::Gpu } else { Tier::Host };
        let from = if index == 5 { RUN - 2 } else { 0 };
        let to = [RUN - 1, RUN, RUN + 1, RUN + 900, chain.len()][rng.usize(..5)];
        twin.apply(slot(index), &part(&chain, tier, from, to));
        compare(&mut twin, &chain, &mut rng);
    }
    // A fork exactly where the first run is full, and one a block before.
    for (index, at) in [(1, RUN), (2, RUN - 1)] {
        let fork = stored(
            Tier::Gpu,
            Some(Naming::Shared.name(0, &chain, at - 1)),
            (0..5).map(|block| (block + 10 * at as u64, Some(block))),
        );
        twin.apply(slot(index), &fork);
        compare(&mut twin, &chain, &mut rng);
    }
    twin.apply(slot(0), &names(&chain, Tier::Gpu, (length - 3_000..length).rev()));
    compare(&mut twin, &chain, &mut rng);
    twin.apply(slot(0), &names(&chain, Tier::Gpu, RUN - 20..RUN + 20));
    compare(&mut twin, &chain, &mut rng);
    twin.apply(slot(0), &part(&chain, Tier::Gpu, RUN - 20, RUN + 20));
    compare(&mut twin, &chain, &mut rng);
    twin.apply(slot(3), &names(&chain, Tier::Gpu, 0..100));
    compare(&mut twin, &chain, &mut rng);
    for index in [0, 6, 1] {
        twin.apply(slot(index), &Event::Cleared(None));
        compare(&mut twin, &chain, &mut rng);
    }
    twin.tidy();
    twin.compare_totals(true);
    twin.drain();
}

/// Thousands of short chains: children of the start, and names, by the thousand.
pub(crate) fn tables_that_split(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut twin = Twin::new(16);
    let mut chains: Vec<(Chain, Slot)> = Vec::new();
    for step in 0..12_000 {
        if rng.u8(..3) < 2 || chains.len() < 100 {
            let length = rng.usize(1..6);
            let chain = chain(&mut rng, length);
            let slot = slot(rng.u32(..100));
            twin.apply(slot, &part(&chain, Tier::Gpu, 0, chain.len()));
            chains.push((chain, slot));
        } else {
            let (chain, slot) = chains.swap_remove(rng.usize(..chains.len()));
            twin.apply(slot, &names(&chain, Tier::Gpu, (0..chain.len()).rev()));
            twin.compare(&chain.prompt(chain.len()));
        }
        let (chain, slot) = &chains[rng.usize(..chains.len())];
        twin.compare(&chain.prompt(chain.len()));
        twin.compare_blocks(*slot);
        if step == 6_000 {
            twin.writer.expect(100_000);
        }
    }
    twin.compare_totals(true);
    chains.iter().for_each(|(chain, _)| twin.compare(&chain.prompt(chain.len())));
    twin.drain();
}

/// A fleet at constant size takes constant memory, however often everything is replaced.
pub(crate) fn churn_is_bounded(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut twin = Twin::new(0);
    let mut bytes = Vec::new();
    for round in 0..12_u32 {
        for index in 0..20 {
            let slot = Slot { index, generation: round };
            let length = rng.usize(1..900);
            let chain = chain(&mut rng, length);
            let mut at = 0;
            while at < length {
                let end = (at + rng.usize(1..80)).min(length);
                twin.apply(slot, &part(&chain, Tier::Gpu, at, end));
                at = end;
            }
            if round % 3 == 0 {
                twin.apply(slot, &names(&chain, Tier::Gpu, (0..length).rev()));
            }
            twin.compare(&chain.prompt(length));
        }
        twin.tidy();
        bytes.push(twin.index.totals().bytes);
    }
    assert!(bytes[11] <= bytes[3] * 5 / 4, "memory grows: {bytes:?}");
    twin.drain();
}
