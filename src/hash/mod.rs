//! Tokens to block hashes: the names under which everything else speaks of a prompt.
//!
//! An engine caches a prompt in blocks of `block_size` consecutive tokens. The router cannot know how an
//! engine names a block with its whole prefix, so it names the block's *content* instead: [`BlockHash`] is
//! the XXH3-64 of the tokens as little-endian `u32`s, and depends on nothing before the block. The index
//! walks these hashes; engine names are labels on what it finds.
//!
//! ```text
//!           Identity (LoRA, cache salt)          the seed
//!               |
//! Prompt -> BlockHasher -> [BlockHash] -> chain -> [SequenceHash]
//!   tokens, objects, eagle     one a block             one a prefix
//! ```
//!
//! What must hold:
//! * Equal content under an equal [`Identity`] gives equal hashes, whoever computes them: digests are those
//!   of plain XXH3-64 with a seed, bit for bit, on every machine and byte order.
//! * Only complete blocks have a hash. An incomplete tail is dropped, never padded.
//! * After `out` has grown once, hashing text allocates nothing.
//!
//! What it is not: XXH3 is no secret and no defence against someone who crafts collisions. A match says
//! where a prefix is probably cached; the engine checks its own cache again.
//!
//! ```
//! use kvroute::hash::{BlockHash, BlockHasher, BlockSize, Identity, Prompt};
//!
//! let hasher = BlockHasher::new(BlockSize::new(4)?, Identity::plain());
//! let mut hashes = Vec::new();
//! hasher.hash(&Prompt::text(&[0, 1, 2, 3, 4, 5]), &mut hashes);
//! assert_eq!(hashes, [BlockHash(9143094415614847814)]); // tokens 4 and 5 fill no block
//! # Ok::<(), kvroute::hash::BlockSizeError>(())
//! ```

mod batch;
mod block;
mod block_size;
mod chain_tree;
mod identity;
mod multimodal;
mod prompt;
mod sequence;
mod xxh3;

pub use batch::{BatchError, BatchHasher, BatchPrompt, CpuBatchHasher, HashedBatch};
pub use block::{BlockHash, BlockHasher};
pub use block_size::{BlockSize, BlockSizeError};
pub(crate) use chain_tree::{ChainEnd, ChainTree};
pub use identity::Identity;
pub use multimodal::{object_hash, pad_token};
pub use prompt::{BlockObjects, Prompt};
pub use sequence::{SequenceHash, chain};
