//! The tokens of a store to the hashes that prompts are looked up by.

use super::keys::Keys;
use crate::event::Rejection;
use crate::event::wire::{Batch, BlockObject, StoredRecord};
use crate::hash::{BlockHash, BlockHasher, BlockObjects, BlockSize, Identity, Prompt};

/// How one rank's blocks are hashed.
#[derive(Debug)]
pub(super) struct Hashing {
    block_size: BlockSize,
    eagle: bool,
    /// For blocks without adapter and salt, which are most.
    plain: BlockHasher,
}

impl Hashing {
    pub(super) fn new(block_size: BlockSize, eagle: bool) -> Self {
        Self { block_size, eagle, plain: BlockHasher::new(block_size, Identity::plain()) }
    }

    /// Fills `out` with the hashes of the leading blocks that can be hashed: `Err` tells why not all of them can.
    pub(super) fn hash(
        &self,
        batch: &Batch,
        record: &StoredRecord,
        salt: Option<&str>,
        keys: &Keys<'_>,
        out: &mut Vec<BlockHash>,
    ) -> Result<(), Rejection> {
        out.clear();
        if record.block_size != Some(self.block_size.get()) {
            return Err(Rejection::BlockSizeMismatch);
        }
        let eagle = self.eagle || record.bigram;
        let (size, ahead) = (self.block_size.get() as usize, usize::from(eagle));
        let tokens = batch.tokens(record.tokens);
        let wanted = record.hashes.len();
        let blocks = wanted.min(tokens.len().saturating_sub(ahead) / size);
        if blocks > 0 {
            let hashes: Vec<u64> = keys.objects.iter().map(|object| object.hash).collect();
            let multimodal = by_block(&keys.objects, &hashes);
            let prompt = Prompt { tokens: &tokens[..blocks * size + ahead], multimodal: &multimodal, eagle };
            match (record.lora_name.map(|name| batch.text(name)), salt) {
                (None, None) => self.plain.hash(&prompt, out),
                (lora, salt) => {
                    BlockHasher::new(self.block_size, Identity::new(lora, salt)).hash(&prompt, out);
                }
            }
        }
        if blocks < wanted { Err(Rejection::TokensRunOut) } else { Ok(()) }
    }
}

/// `hashes`, those of `objects`, cut where the block changes.
fn by_block<'a>(objects: &[BlockObject], mut hashes: &'a [u64]) -> Vec<BlockObjects<'a>> {
    let mut blocks = Vec::new();
    for run in objects.chunk_by(|a, b| a.block == b.block) {
        let (of_block, rest) = hashes.split_at(run.len());
        blocks.push(BlockObjects { block: run[0].block, objects: of_block });
        hashes = rest;
    }
    blocks
}
