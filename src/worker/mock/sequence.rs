//! A request's tokens, the names of its full blocks, and the physical blocks that it holds.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::event::EngineHash;

/// What separates two sequences of equal tokens.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Namespace {
    /// The adapter that computes the sequence.
    pub lora: Option<Lora>,
    /// The client's cache salt.
    pub salt: Option<String>,
    /// The client's session. It is reported with the blocks and is no part of their names.
    pub session: Option<String>,
}

/// A LoRA adapter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lora {
    /// Its number, from 1.
    pub id: u32,
    /// The model name that selects it.
    pub name: String,
}

/// How an engine names its blocks: a chained 64-bit hash over the parent's name, the block's tokens and what
/// the namespace adds. It is the engine's own business: nobody outside may compute or assume it.
#[derive(Clone, Copy, Debug)]
pub struct Naming {
    /// Engines with the same seed give the same content the same name, as vLLM's default does.
    pub seed: u64,
    /// Tokens per block, at least 1.
    pub block_size: usize,
}

impl Naming {
    fn name(&self, parent: Option<EngineHash>, tokens: &[u32], namespace: &Namespace) -> EngineHash {
        let mut bytes = Vec::with_capacity(32 + tokens.len() * 4);
        match parent {
            Some(EngineHash(parent)) => bytes.extend_from_slice(&parent.to_le_bytes()),
            None => bytes.extend_from_slice(b"start"),
        }
        for token in tokens {
            bytes.extend_from_slice(&token.to_le_bytes());
        }
        let lora = namespace.lora.as_ref().map(|lora| ("lora", lora.name.as_str()));
        let salt = namespace.salt.as_deref().filter(|_| parent.is_none()).map(|salt| ("salt", salt));
        // The label keeps an adapter and a salt of the same spelling apart, the length one key from the next.
        for (label, key) in lora.into_iter().chain(salt) {
            bytes.extend_from_slice(label.as_bytes());
            bytes.extend_from_slice(&(key.len() as u64).to_le_bytes());
            bytes.extend_from_slice(key.as_bytes());
        }
        EngineHash(xxh3_64_with_seed(&bytes, self.seed))
    }
}

/// One request as the block manager sees it.
///
/// It holds physical blocks from [`BlockManager::admit`](super::BlockManager::admit) until
/// [`BlockManager::release`](super::BlockManager::release); dropping it earlier would leak them.
#[derive(Debug)]
pub struct Sequence {
    pub(super) naming: Naming,
    pub(super) namespace: Arc<Namespace>,
    pub(super) tokens: Vec<u32>,
    /// One name per full block of `tokens`.
    pub(super) names: Vec<EngineHash>,
    /// The physical blocks, in order; empty while not admitted.
    pub(super) blocks: Vec<u32>,
    /// Tokens whose keys and values are in the cache.
    pub(super) computed: usize,
    /// Leading blocks that carry their name in the cache.
    pub(super) published: usize,
}

impl Sequence {
    /// A sequence that holds nothing yet.
    pub fn new(naming: Naming, namespace: Arc<Namespace>, tokens: Vec<u32>) -> Self {
        let names = Vec::with_capacity(tokens.len() / naming.block_size + 1);
        let mut sequence =
            Self { naming, namespace, tokens, names, blocks: Vec::new(), computed: 0, published: 0 };
        sequence.name_full_blocks();
        sequence
    }

    /// Adds a generated token.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.name_full_blocks();
    }

    /// Prompt and output so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The names of its full blocks, in order, whether they are in the cache or not.
    pub fn names(&self) -> &[EngineHash] {
        &self.names
    }

    /// Tokens that are known and not computed yet.
    pub fn uncomputed(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// The physical blocks that it holds, in order.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    fn name_full_blocks(&mut self) {
        let size = self.naming.block_size;
        for start in (self.names.len() * size..).step_by(size) {
            let Some(tokens) = self.tokens.get(start..start + size) else { break };
            let name = self.naming.name(self.names.last().copied(), tokens, &self.namespace);
            self.names.push(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Lora, Namespace, Naming, Sequence};

    fn names(namespace: &Namespace, tokens: &[u32]) -> Vec<u64> {
        let naming = Naming { seed: 7, block_size: 2 };
        let sequence = Sequence::new(naming, Arc::new(namespace.clone()), tokens.to_vec());
        sequence.names.iter().map(|name| name.0).collect()
    }

    #[test]
    fn a_name_stands_for_the_whole_prefix() {
        let plain = Namespace::default();
        let [a, b] = names(&plain, &[1, 2, 1, 2, 9])[..] else { panic!("two full blocks") };
        assert_ne!(a, b, "equal tokens at another place are another block");
        assert_eq!(names(&plain, &[1, 2]), [a]);
    }

    #[test]
    fn adapters_and_salts_separate_every_block() {
        let lora = Namespace { lora: Some(Lora { id: 1, name: "x".into() }), ..Namespace::default() };
        let salt = Namespace { salt: Some("x".into()), ..Namespace::default() };
        let session = Namespace { session: Some("x".into()), ..Namespace::default() };
        let tokens = [1, 2, 3, 4];
        let [plain, lora, salt] = [&Namespace::default(), &lora, &salt].map(|n| names(n, &tokens));
        for index in 0..2 {
            assert_ne!(plain[index], lora[index]);
            assert_ne!(plain[index], salt[index]);
            assert_ne!(lora[index], salt[index]);
        }
        assert_eq!(names(&session, &tokens), plain);
    }
}
