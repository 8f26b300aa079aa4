//! Prompts: tokens that can be made again at any time, and their block hashes.

use fastrand::Rng;
use kvroute::hash::{BlockHash, BlockHasher, BlockSize, Identity, Prompt};

const VOCABULARY: u32 = 152_064;

/// Some blocks of tokens drawn from `seed`: equal seeds begin equally, whatever their lengths.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Segment {
    pub(crate) seed: u64,
    pub(crate) blocks: u32,
}

/// Turns segments into tokens, and tokens into the block hashes that all the indexes here agree on.
pub(crate) struct Text {
    hasher: BlockHasher,
    tokens: Vec<u32>,
}

impl Text {
    pub(crate) fn new(block_size: BlockSize) -> Self {
        Self { hasher: BlockHasher::new(block_size, Identity::plain()), tokens: Vec::new() }
    }

    /// The tokens of the segments, one after another.
    pub(crate) fn tokens(&mut self, segments: &[Segment]) -> &[u32] {
        self.tokens.clear();
        for segment in segments {
            let mut rng = Rng::with_seed(segment.seed);
            let tokens = segment.blocks * self.hasher.block_size().get();
            self.tokens.extend((0..tokens).map(|_| rng.u32(..VOCABULARY)));
        }
        &self.tokens
    }

    /// The hashes of the segments' blocks.
    pub(crate) fn hashes(&mut self, segments: &[Segment]) -> Vec<BlockHash> {
        self.tokens(segments);
        let mut hashes = Vec::new();
        self.hasher.hash(&Prompt::text(&self.tokens), &mut hashes);
        hashes
    }
}

/// What an engine calls a block with the content `content` below the block called `parent`: as random as the
/// digests that engines use.
pub(crate) fn name(parent: Option<u64>, content: BlockHash) -> u64 {
    let mut mixed = parent.unwrap_or(0x6b76_726f_7574_6531).rotate_left(23) ^ content.0;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The names of a chain of blocks below `parent`.
pub(crate) fn names(mut parent: Option<u64>, contents: &[BlockHash]) -> Vec<u64> {
    let mut below = |&content| {
        let name = name(parent, content);
        parent = Some(name);
        name
    };
    contents.iter().map(&mut below).collect()
}
