//! Prefix hashes: one number for a block and everything before it.

use super::BlockHash;
use super::identity::PLAIN_SEED;
use super::xxh3::Xxh3;

/// The hash of a block and its whole prefix, made by the router from [`BlockHash`]es.
///
/// Load tracking uses it to see that two running requests share blocks. It is not an engine's name for the
/// block: engines chain with algorithms of their own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct SequenceHash(pub u64);

/// Chains block hashes to sequence hashes, one for each; `out` is cleared first.
///
/// The first is the block hash itself, each further one `XXH3(LE64(previous) || LE64(block), seed 1337)`.
/// The seed is the same for every [`Identity`]: adapter and salt are in the block hashes already.
///
/// [`Identity`]: super::Identity
///
/// ```
/// use kvroute::hash::{BlockHash, SequenceHash, chain};
///
/// let mut sequence = Vec::new();
/// chain(&[BlockHash(1), BlockHash(2)], &mut sequence);
/// assert_eq!(sequence, [SequenceHash(1), SequenceHash(16740963408272063728)]);
/// ```
pub fn chain(blocks: &[BlockHash], out: &mut Vec<SequenceHash>) {
    const HASH: Xxh3 = Xxh3::new(PLAIN_SEED);
    out.clear();
    let Some((&first, rest)) = blocks.split_first() else { return };
    out.reserve(blocks.len());
    let mut last = first.0;
    out.push(SequenceHash(last));
    out.extend(rest.iter().map(|block| {
        last = HASH.pair(last, block.0);
        SequenceHash(last)
    }));
}
