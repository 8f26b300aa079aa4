//! Hashing a prompt into memory that has seen its like before allocates nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod counting_allocator;

use crate::counting_allocator::allocations;
use kvroute::hash::{BlockHasher, BlockObjects, BlockSize, Identity, Prompt, chain};

#[test]
fn a_warm_hasher_allocates_nothing() {
    let tokens: Vec<u32> = (0..4096).collect();
    let objects = [7, 3, 9];
    let multimodal = [BlockObjects { block: 2, objects: &objects }];
    for size in [1, 16, 32, 64, 128] {
        let (mut hashes, mut sequence) = (Vec::new(), Vec::new());
        let mut hash = || {
            // Making a hasher is part of every request, and so is of the promise.
            let hasher = BlockHasher::new(BlockSize::new(size).unwrap(), Identity::new(Some("a"), None));
            for eagle in [false, true] {
                let prompt = Prompt { tokens: &tokens, multimodal: &multimodal, eagle };
                hasher.hash(&prompt, &mut hashes);
                chain(&hashes, &mut sequence);
            }
        };
        assert!(allocations(&mut hash) > 0, "the first prompt makes the memory grow");
        assert_eq!(allocations(&mut hash), 0, "blocks of {size} tokens");
    }
}
