//! One hash a block.

use super::multimodal::{self, Words};
use super::xxh3::Xxh3;
use super::{BlockSize, Identity, Prompt};

/// The hash of one block's tokens, whatever stands before the block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct BlockHash(pub u64);

/// Hashes prompts of one [`Identity`] in blocks of one [`BlockSize`].
///
/// Making one folds the seed into 320 bytes of keys, about the time of a few blocks; keep it where prompts
/// of one identity follow each other.
///
/// ```
/// use kvroute::hash::{BlockHasher, BlockSize, Identity, Prompt};
///
/// let size = BlockSize::new(16)?;
/// let tokens: Vec<u32> = (0..40).collect();
/// let (mut ours, mut theirs) = (Vec::new(), Vec::new());
/// BlockHasher::new(size, Identity::plain()).hash(&Prompt::text(&tokens), &mut ours);
/// BlockHasher::new(size, Identity::new(None, Some("tenant-a"))).hash(&Prompt::text(&tokens), &mut theirs);
/// assert_eq!(ours.len(), 2); // 8 tokens are left over
/// assert_ne!(ours[0], theirs[0]); // other salt, other blocks
/// # Ok::<(), kvroute::hash::BlockSizeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BlockHasher {
    block_size: BlockSize,
    identity: Identity,
    xxh3: Xxh3,
}

impl BlockHasher {
    /// A hasher for blocks of `block_size` tokens under `identity`.
    #[must_use]
    pub fn new(block_size: BlockSize, identity: Identity) -> Self {
        Self { block_size, identity, xxh3: Xxh3::new(identity.seed()) }
    }

    /// The block size given to [`new`](Self::new).
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// The identity given to [`new`](Self::new).
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Replaces the content of `out` by the hashes of the prompt's complete blocks, in order.
    ///
    /// Allocates only to grow `out`, or for a block that has objects and, with them, takes more than 2 KiB.
    pub fn hash(&self, prompt: &Prompt<'_>, out: &mut Vec<BlockHash>) {
        out.clear();
        self.append(prompt, out);
    }

    /// How many hashes `prompt` yields: `tokens / block_size`, rounded down, and with EAGLE
    /// `(tokens - 1) / block_size`.
    #[must_use]
    pub fn count(&self, prompt: &Prompt<'_>) -> usize {
        prompt.tokens.len().saturating_sub(usize::from(prompt.eagle)) / self.block_size.tokens()
    }

    /// [`hash`](Self::hash) behind what `out` already holds.
    ///
    /// The sizes that engines ship with have loops of their own, in which the length of a block is known.
    pub(super) fn append(&self, prompt: &Prompt<'_>, out: &mut Vec<BlockHash>) {
        let start = out.len();
        match (prompt.eagle, self.block_size.get()) {
            (false, 16) => self.fixed::<16>(prompt.tokens, out),
            (false, 32) => self.fixed::<32>(prompt.tokens, out),
            (false, 64) => self.fixed::<64>(prompt.tokens, out),
            (false, 128) => self.fixed::<128>(prompt.tokens, out),
            _ => out.extend(
                (0..self.count(prompt)).map(|block| BlockHash(self.xxh3.digest(self.window(prompt, block)))),
            ),
        }
        if !prompt.multimodal.is_empty() {
            self.add_objects(prompt, 0, &mut out[start..]);
        }
    }

    /// The hashes of as many blocks as `out` has places, from block `first` on, all of them below
    /// [`count`](Self::count).
    ///
    /// For several threads, each with blocks and places of its own.
    pub(super) fn fill(&self, prompt: &Prompt<'_>, first: usize, out: &mut [BlockHash]) {
        let tokens = || &prompt.tokens[first * self.block_size.tokens()..];
        match (prompt.eagle, self.block_size.get()) {
            (false, 16) => self.fill_fixed::<16>(tokens(), out),
            (false, 32) => self.fill_fixed::<32>(tokens(), out),
            (false, 64) => self.fill_fixed::<64>(tokens(), out),
            (false, 128) => self.fill_fixed::<128>(tokens(), out),
            _ => {
                for (block, hash) in (first..).zip(&mut *out) {
                    *hash = BlockHash(self.xxh3.digest(self.window(prompt, block)));
                }
            }
        }
        if !prompt.multimodal.is_empty() {
            self.add_objects(prompt, first, out);
        }
    }

    fn fill_fixed<const N: usize>(&self, tokens: &[u32], out: &mut [BlockHash]) {
        let (blocks, _) = tokens.as_chunks::<N>();
        for (block, hash) in blocks.iter().zip(out) {
            *hash = BlockHash(self.xxh3.digest_block(block));
        }
    }

    fn fixed<const N: usize>(&self, tokens: &[u32], out: &mut Vec<BlockHash>) {
        let (blocks, _) = tokens.as_chunks::<N>();
        out.extend(blocks.iter().map(|block| BlockHash(self.xxh3.digest_block(block))));
    }

    /// The tokens that the hash of a block below [`count`](Self::count) covers: the block and, with EAGLE,
    /// the token after it.
    #[inline(always)]
    pub(crate) fn window<'a>(&self, prompt: &Prompt<'a>, block: usize) -> &'a [u32] {
        let stride = self.block_size.tokens();
        &prompt.tokens[block * stride..][..stride + usize::from(prompt.eagle)]
    }

    /// Replaces those of `hashes`, of the blocks from `first` on, whose blocks have objects.
    pub(crate) fn add_objects(&self, prompt: &Prompt<'_>, first: usize, hashes: &mut [BlockHash]) {
        let mut words = Words::new();
        for entry in prompt.multimodal {
            let place = entry.block.checked_sub(first).and_then(|place| hashes.get_mut(place));
            let Some(hash) = place else { continue };
            multimodal::join(self.window(prompt, entry.block), entry.objects, &mut words);
            *hash = BlockHash(self.xxh3.digest(&words));
        }
    }
}
