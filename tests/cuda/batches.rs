//! Batches, what they should hash to, and accelerators that hash them.

use std::sync::Arc;

use kvroute::{
    accel::{Accelerator, AcceleratorSettings, HashDevice, Where},
    hash::{BatchHasher, BatchPrompt, BlockHash, BlockSize, HashedBatch, Identity, Prompt},
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What the stand-in's first device calls itself.
pub(crate) const UUID: &str = "GPU-00000000-0000-0000-0000-000000000000";

/// Settings by which the stand-in's device gets every batch of at least `least` blocks.
pub(crate) fn settings(least: usize) -> AcceleratorSettings {
    AcceleratorSettings {
        device: HashDevice::Uuid(UUID.to_owned()),
        least_blocks: Some(least),
        nvml_library: Some("/none/libnvidia-ml.so.1".into()),
        ..AcceleratorSettings::default()
    }
}

pub(crate) fn accelerator() -> Arc<Accelerator> {
    Accelerator::new(settings(1))
}

pub(crate) fn tokens(count: usize, seed: u64) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| rng.u32(..)).collect()
}

pub(crate) fn text(tokens: &[u32]) -> [BatchPrompt<'_>; 1] {
    [BatchPrompt { identity: Identity::plain(), prompt: Prompt::text(tokens) }]
}

/// What the hashes of `tokens` are, by the crate that everyone takes.
pub(crate) fn expected(tokens: &[u32], block_size: u32, seed: u64) -> Vec<BlockHash> {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let blocks = bytes.chunks_exact(4 * block_size as usize);
    blocks.map(|block| BlockHash(xxh3_64_with_seed(block, seed))).collect()
}

/// Hashes a batch of text that is right wherever it is hashed, and says where that was.
pub(crate) fn hash_some(accelerator: &Arc<Accelerator>, blocks: usize) -> Where {
    let before = Where::ALL.map(|place| accelerator.status().batches(place));
    let tokens = tokens(16 * blocks, blocks as u64);
    let mut out = HashedBatch::new();
    accelerator.hasher(BlockSize::new(16).unwrap()).hash(&text(&tokens), &mut out).unwrap();
    assert_eq!(out.all(), expected(&tokens, 16, 1337), "right, wherever it was hashed");
    let place = Where::ALL.into_iter().zip(before);
    place.into_iter().find(|(place, before)| accelerator.status().batches(*place) > *before).unwrap().0
}
