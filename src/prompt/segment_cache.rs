//! The tokens of segments that were seen before, bounded by bytes.
//!
//! A conversation comes again with every turn, longer by a message or two; so do system prompts and tools. Its segments (see
//! [`segments`](super::segments)) are looked up here by a hash of their text, and only what is new is tokenised.
//!
//! The hash has 128 bits and is keyed by bytes that are drawn when the cache is made and shown to nobody: two texts that share
//! one can be neither expected nor arranged. The text itself is not kept.
//!
//! What is new comes in at a trial: it has half of the room, the rest belongs to what was asked for again. So a flood of
//! prompts that nobody repeats leaves the conversations that go on where they are.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use quick_cache::{Lifecycle, OptionsBuilder, Weighter, sync::Cache};
use xxhash_rust::xxh3::xxh3_128_with_secret;

/// Tokens of segments, shared by all tokenizers and threads.
///
/// Every access of the counters is Relaxed: each is a statistic of its own.
pub struct SegmentCache {
    kept: Option<Kept>,
    secret: [u8; SECRET_BYTES],
    cached_bytes: AtomicU64,
    tokenised_bytes: AtomicU64,
    evictions: Arc<AtomicU64>,
}

type Kept = Cache<SegmentKey, Arc<[u32]>, Bytes, ahash::RandomState, CountEvictions>;

/// Names a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct SegmentKey {
    hash: u128,
    /// Which tokenizer it is for.
    tokenizer: u64,
    /// It begins the prompt.
    first: bool,
}

/// As XXH3 asks for.
const SECRET_BYTES: usize = 192;

/// Of 64 bytes of memory for a key, a pointer and a link, and 16 more in front of the tokens.
const ENTRY_BYTES: u64 = 96;

/// What a shard has at least, so that a segment of a million tokens fits into one.
const SHARD_BYTES: u64 = 8 << 20;

/// Share of the room for what was asked for more than once.
const SETTLED_SHARE: f64 = 0.5;

impl SegmentCache {
    /// A cache of so many bytes; with 0 nothing is kept, and texts are not even cut.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let evictions = Arc::default();
        let shards = usize::try_from((bytes / SHARD_BYTES).clamp(1, 64)).unwrap_or(1);
        let options = OptionsBuilder::new()
            // Rounded down, since the cache rounds up.
            .shards(1 << shards.ilog2())
            .estimated_items_capacity(usize::try_from(bytes / 1024).unwrap_or(usize::MAX).max(64))
            .weight_capacity(bytes)
            .hot_allocation(SETTLED_SHARE)
            .build();
        let kept = options.ok().filter(|_| bytes > 0).map(|options| {
            let counting = CountEvictions(Arc::clone(&evictions));
            Cache::with_options(options, Bytes, ahash::RandomState::new(), counting)
        });
        Self {
            kept,
            secret: secret(),
            cached_bytes: AtomicU64::new(0),
            tokenised_bytes: AtomicU64::new(0),
            evictions,
        }
    }

    /// Whether anything is kept at all.
    pub(super) fn is_on(&self) -> bool {
        self.kept.is_some()
    }

    pub(super) fn key(&self, tokenizer: u64, text: &str, first: bool) -> SegmentKey {
        SegmentKey { hash: xxh3_128_with_secret(text.as_bytes(), &self.secret), tokenizer, first }
    }

    pub(super) fn get(&self, key: &SegmentKey) -> Option<Arc<[u32]>> {
        self.kept.as_ref()?.get(key)
    }

    pub(super) fn insert(&self, key: SegmentKey, tokens: Arc<[u32]>) {
        if let Some(kept) = &self.kept {
            kept.insert(key, tokens);
        }
    }

    /// Counts the text of a prompt by where its tokens came from.
    pub(super) fn count(&self, cached_bytes: usize, tokenised_bytes: usize) {
        self.cached_bytes.fetch_add(cached_bytes as u64, Relaxed);
        self.tokenised_bytes.fetch_add(tokenised_bytes as u64, Relaxed);
    }

    /// Bytes of prompts whose tokens were found.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.cached_bytes.load(Relaxed)
    }

    /// Bytes of prompts that were tokenised.
    #[must_use]
    pub fn tokenised_bytes(&self) -> u64 {
        self.tokenised_bytes.load(Relaxed)
    }

    /// Segments that gave way to others.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Relaxed)
    }

    /// Bytes in use; never more than the limit.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.kept.as_ref().map_or(0, Cache::weight)
    }

    /// Segments kept.
    #[must_use]
    pub fn segments(&self) -> u64 {
        self.kept.as_ref().map_or(0, |kept| kept.len() as u64)
    }
}

impl std::fmt::Debug for SegmentCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SegmentCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

/// Bytes that nobody can guess: the system's randomness, through the standard library's keyed hash.
fn secret() -> [u8; SECRET_BYTES] {
    let key = RandomState::new();
    let mut secret = [0; SECRET_BYTES];
    for (number, bytes) in secret.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&key.hash_one(number).to_le_bytes());
    }
    secret
}

/// What an entry takes.
#[derive(Clone)]
struct Bytes;

impl Weighter<SegmentKey, Arc<[u32]>> for Bytes {
    fn weight(&self, _: &SegmentKey, tokens: &Arc<[u32]>) -> u64 {
        ENTRY_BYTES + size_of_val(&**tokens) as u64
    }
}

#[derive(Clone)]
struct CountEvictions(Arc<AtomicU64>);

impl Lifecycle<SegmentKey, Arc<[u32]>> for CountEvictions {
    /// Freed once the cache's lock is released.
    type RequestState = Vec<Arc<[u32]>>;

    fn on_evict(&self, evicted: &mut Self::RequestState, _: SegmentKey, tokens: Arc<[u32]>) {
        self.0.fetch_add(1, Relaxed);
        evicted.push(tokens);
    }
}
