//! Prompts that share beginnings, as a fleet's do, and what engines call their blocks.

use fastrand::Rng;
use kvroute::hash::BlockHash;

use crate::twin::mix;

/// A chain of blocks from the start of a prompt.
#[derive(Clone, Default)]
pub(crate) struct Chain {
    pub(crate) contents: Vec<u64>,
    /// What engines that name alike call each block.
    names: Vec<u64>,
}

impl Chain {
    pub(crate) fn len(&self) -> usize {
        self.contents.len()
    }

    pub(crate) fn push(&mut self, content: u64) {
        let before = self.names.last().copied().unwrap_or(1);
        self.contents.push(content);
        self.names.push(mix(before, content));
    }

    pub(crate) fn prompt(&self, depth: usize) -> Vec<BlockHash> {
        self.contents[..depth].iter().copied().map(BlockHash).collect()
    }
}

/// How engines name their blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Naming {
    /// Every slot gives a block the same name.
    Shared,
    /// Every slot has its own.
    Own,
    /// Slots in three groups, each with its names.
    Groups,
    /// As shared, but names are so few that they come back at other places.
    Few(u64),
}

impl Naming {
    pub(crate) fn name(self, slot: u32, chain: &Chain, at: usize) -> u64 {
        let name = chain.names[at];
        match self {
            Self::Shared => name,
            Self::Own => mix(name, u64::from(slot)),
            Self::Groups => mix(name, u64::from(slot % 3)),
            Self::Few(names) => name % names,
        }
    }
}

/// A pool of chains that fork from each other.
pub(crate) struct Prompts {
    pub(crate) chains: Vec<Chain>,
    tail: usize,
    most: usize,
}

impl Prompts {
    /// Chains of up to `most` blocks, forked with tails of up to `tail`.
    pub(crate) fn new(rng: &mut Rng, count: usize, tail: usize, most: usize) -> Self {
        let mut prompts = Self { chains: Vec::new(), tail, most };
        for _ in 0..count {
            prompts.renew(rng);
        }
        prompts
    }

    /// One chain goes, or none if the pool is not full yet, and another is forked.
    pub(crate) fn renew(&mut self, rng: &mut Rng) {
        let mut chain = Chain::default();
        if !self.chains.is_empty() && rng.u8(..8) > 0 {
            let other = &self.chains[rng.usize(..self.chains.len())];
            for &content in &other.contents[..rng.usize(..=other.len()).min(self.most - 1)] {
                chain.push(content);
            }
        }
        let tail = rng.usize(1..=self.tail).min(self.most - chain.len());
        // Few contents now and then: the same tokens after different prefixes, and forks that meet again.
        let contents = if rng.u8(..4) == 0 { 3 } else { u64::MAX };
        for _ in 0..tail {
            chain.push(rng.u64(..contents));
        }
        if self.chains.len() >= 48 {
            let at = rng.usize(..self.chains.len());
            self.chains[at] = chain;
        } else {
            self.chains.push(chain);
        }
    }

    pub(crate) fn any(&self, rng: &mut Rng) -> &Chain {
        &self.chains[rng.usize(..self.chains.len())]
    }

    /// A prompt that follows a chain for a while, and perhaps leaves it.
    pub(crate) fn prompt(&self, rng: &mut Rng) -> Vec<BlockHash> {
        let chain = self.any(rng);
        let depth = if rng.bool() { chain.len() } else { rng.usize(..=chain.len()) };
        let mut prompt = chain.prompt(depth);
        if rng.bool() {
            prompt.extend([BlockHash(rng.u64(..3)), BlockHash(rng.u64(..3))]);
        }
        prompt
    }
}
