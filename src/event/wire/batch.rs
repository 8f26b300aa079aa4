//! A decoded batch: records over flat buffers that are reused from batch to batch.

use crate::event::{EngineHash, Rejections, Tier};

/// One decoded batch of events. Keep one and [`decode`](super::decode) into it again and again: its buffers
/// grow to the largest batch met and are then reused, so decoding allocates nothing.
#[derive(Debug, Default)]
pub struct Batch {
    /// When the engine made the batch, in milliseconds since the Unix epoch; 0 when it does not say.
    pub timestamp_ms: u64,
    /// The data-parallel rank that the batch names; `None` when it names none, or none that could be one.
    pub rank: Option<u32>,
    /// The payload ended early: the events before that point are here, the others are lost.
    pub truncated: bool,
    /// Blocks may have gone by an event that could not be decoded, or whose cache nobody can tell: which ones is lost.
    pub lost_removal: bool,
    /// Events that could not be decoded, by reason. The others of the batch are not affected.
    pub rejected: Rejections,
    pub(super) records: Vec<Record>,
    pub(super) tokens: Vec<u32>,
    pub(super) hashes: Vec<EngineHash>,
    pub(super) copies: Vec<u32>,
    pub(super) text: String,
    pub(super) keys: Vec<BlockKey>,
    pub(super) objects: Vec<BlockObject>,
}

/// A stretch of one of the batch's buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::event) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Span {
    pub(in crate::event) const fn len(self) -> usize {
        self.end - self.start
    }
}

/// One event, as the engine said it.
#[derive(Clone, Copy, Debug)]
pub(in crate::event) enum Record {
    Stored(StoredRecord),
    Removed(RemovedRecord),
    Cleared(Scope),
}

/// A chain of blocks that became resident.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::event) struct StoredRecord {
    pub(in crate::event) scope: Scope,
    pub(in crate::event) parent: Option<EngineHash>,
    pub(in crate::event) hashes: Span,
    pub(in crate::event) tokens: Span,
    /// The tokens came as overlapping pairs: one more token than the blocks hold, to look ahead.
    pub(in crate::event) bigram: bool,
    /// `None` when absent or negative; events that carry no tokens need none.
    pub(in crate::event) block_size: Option<u32>,
    /// An adapter's number was given. It means nothing outside the engine.
    pub(in crate::event) has_lora_id: bool,
    pub(in crate::event) lora_name: Option<Span>,
    /// The salt, where the engine has a field for it.
    pub(in crate::event) cache_salt: Option<Span>,
    /// In the order of the blocks.
    pub(in crate::event) keys: Span,
    /// In the order of the blocks.
    pub(in crate::event) objects: Span,
}

/// Blocks that left.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::event) struct RemovedRecord {
    pub(in crate::event) scope: Scope,
    pub(in crate::event) hashes: Span,
    /// As many as there are hashes.
    pub(in crate::event) copies: Option<Span>,
}

/// Which of the engine's caches an event speaks of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::event) struct Scope {
    pub(in crate::event) medium: Medium,
    pub(in crate::event) locality: Locality,
    pub(in crate::event) ownership: Ownership,
    pub(in crate::event) group: Option<i64>,
    pub(in crate::event) kind: Option<AttentionKind>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::event) enum Medium {
    #[default]
    Unnamed,
    Tier(Tier),
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::event) enum Locality {
    #[default]
    Local,
    /// Remote, or a word that nobody knows.
    Elsewhere,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::event) enum Ownership {
    #[default]
    Engine,
    /// A persistent cache beside the engine, which outlives it.
    Unsupported,
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::event) enum AttentionKind {
    /// A prefix's blocks are all there: what prefix matching needs.
    Main,
    /// Blocks come and go by another rule than the prefix.
    Other,
    Unknown,
}

/// One of the extra keys that an engine hashes into a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::event) struct BlockKey {
    pub(in crate::event) block: usize,
    pub(in crate::event) key: Key,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::event) enum Key {
    /// An adapter's name, a salt or an object's identifier: the engine does not say which.
    Text(Span),
    /// An object's identifier, told by the offset beside it.
    Object(Span),
    /// The digest of something that is no token, such as prompt embeddings, folded to 64 bits.
    Digest(u64),
}

/// An object (an image, ...) that a block holds a part of, by its 64-bit hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::event) struct BlockObject {
    pub(in crate::event) block: usize,
    pub(in crate::event) hash: u64,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Events that were decoded.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether no event was decoded.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Empties the batch and keeps its buffers.
    pub fn clear(&mut self) {
        self.timestamp_ms = 0;
        self.rank = None;
        self.truncated = false;
        self.lost_removal = false;
        self.rejected.clear();
        self.records.clear();
        self.tokens.clear();
        self.hashes.clear();
        self.copies.clear();
        self.text.clear();
        self.keys.clear();
        self.objects.clear();
    }

    /// Bytes that the buffers hold on to: at most a small multiple of the largest payload decoded.
    #[must_use]
    pub const fn reserved_bytes(&self) -> usize {
        self.records.capacity() * size_of::<Record>()
            + self.tokens.capacity() * size_of::<u32>()
            + self.hashes.capacity() * size_of::<EngineHash>()
            + self.copies.capacity() * size_of::<u32>()
            + self.text.capacity()
            + self.keys.capacity() * size_of::<BlockKey>()
            + self.objects.capacity() * size_of::<BlockObject>()
    }

    /// How many blocks its events name, whatever becomes of them.
    #[must_use]
    pub fn named_blocks(&self) -> usize {
        self.hashes.len()
    }

    pub(in crate::event) fn records(&self) -> &[Record] {
        &self.records
    }

    pub(in crate::event) fn hashes(&self, span: Span) -> &[EngineHash] {
        &self.hashes[span.start..span.end]
    }

    pub(in crate::event) fn tokens(&self, span: Span) -> &[u32] {
        &self.tokens[span.start..span.end]
    }

    pub(in crate::event) fn copies(&self, span: Span) -> &[u32] {
        &self.copies[span.start..span.end]
    }

    pub(in crate::event) fn text(&self, span: Span) -> &str {
        &self.text[span.start..span.end]
    }

    pub(in crate::event) fn keys(&self, span: Span) -> &[BlockKey] {
        &self.keys[span.start..span.end]
    }

    pub(in crate::event) fn objects(&self, span: Span) -> &[BlockObject] {
        &self.objects[span.start..span.end]
    }

    pub(super) fn push_text(&mut self, text: &str) -> Span {
        let start = self.text.len();
        self.text.push_str(text);
        Span { start, end: self.text.len() }
    }
}
