//! The prompts of a world: few, short and related, so that engines share, evict and recompute the same blocks again and again.

use std::sync::Arc;

use kvroute::{
    hash::{BlockHash, BlockHasher, BlockSize, Identity, Prompt},
    worker::mock::{Lora, Namespace},
};

/// Tokens that fit into any prompt with what the model says to it.
const LONGEST: usize = 48;

/// A prompt and what the model says to it: the same each time, so that lookups of the whole text find what is stored while
/// it is decoded.
pub(crate) struct Text {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) tokens: Vec<u32>,
    /// How many of the tokens are the prompt.
    pub(crate) prompt: usize,
}

/// All of a world's prompts.
pub(crate) struct Prompts {
    pub(crate) texts: Vec<Text>,
}

impl Prompts {
    pub(crate) fn new(rng: &mut fastrand::Rng) -> Self {
        let mut token = |tokens: usize| (0..tokens).map(|_| rng.u32(..3)).collect::<Vec<_>>();
        let stems = [token(24), token(20), token(8)];
        let salted = || Namespace { salt: Some("s1".into()), ..Namespace::default() };
        let adapted = || Namespace { lora: Some(Lora { id: 1, name: "ad1".into() }), ..Namespace::default() };
        let text = |at: usize| {
            let stem = &stems[rng.usize(..stems.len())];
            let mut tokens = stem[..rng.usize(..=stem.len())].to_vec();
            let prompt = tokens.len() + rng.usize(2..=16);
            let length = (prompt + rng.usize(..=8)).min(LONGEST);
            tokens.extend((tokens.len()..length).map(|_| rng.u32(..3)));
            let namespace = match at % 8 {
                6 => salted(),
                7 => adapted(),
                _ => Namespace::default(),
            };
            Text { namespace: Arc::new(namespace), prompt: prompt.min(length), tokens }
        };
        Self { texts: (0..20).map(text).collect() }
    }

    /// Every text's blocks, as lookups ask for them.
    pub(crate) fn hashes(&self, block_size: u32) -> Vec<Vec<BlockHash>> {
        let hash = |text: &Text| {
            let lora = text.namespace.lora.as_ref().map(|lora| lora.name.as_str());
            let identity = Identity::new(lora, text.namespace.salt.as_deref());
            let mut hashes = Vec::new();
            BlockHasher::new(BlockSize::new(block_size).unwrap(), identity)
                .hash(&Prompt::text(&text.tokens), &mut hashes);
            hashes
        };
        self.texts.iter().map(hash).collect()
    }
}
