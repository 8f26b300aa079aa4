//! What is hashed: tokens, the objects in them, and how blocks are cut.

/// A prompt, borrowed from whoever holds its tokens.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Prompt<'a> {
    /// Token ids from the start of the prompt.
    pub tokens: &'a [u32],
    /// The blocks that contain images, audio or other objects, at most one entry a block, in any order.
    /// Of two entries for one block the later counts; an entry for a block that the tokens do not complete
    /// is ignored. Empty where the engine hashes objects as pad tokens (see [`pad_token`]).
    ///
    /// [`pad_token`]: super::pad_token
    pub multimodal: &'a [BlockObjects<'a>],
    /// The engine drafts with EAGLE: each block's hash covers one token more, the first of the next block,
    /// and a block is complete only once that token is there.
    pub eagle: bool,
}

/// The objects that touch one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockObjects<'a> {
    /// Which block, counted from 0 at the start of the prompt.
    pub block: usize,
    /// The [`object_hash`] of each object with at least one token in the block, in any order; one that is
    /// there twice counts twice. With none the block is hashed as text.
    ///
    /// [`object_hash`]: super::object_hash
    pub objects: &'a [u64],
}

impl<'a> Prompt<'a> {
    /// A prompt of text alone.
    #[must_use]
    pub const fn text(tokens: &'a [u32]) -> Self {
        Self { tokens, multimodal: &[], eagle: false }
    }
}
