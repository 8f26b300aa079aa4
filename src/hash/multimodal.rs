//! Images, audio and other objects inside a prompt.
//!
//! Every image of one size becomes the same run of placeholder tokens, so the tokens alone would let a
//! picture be answered from another's cache. Two rules tell objects apart. Either each object's hash is
//! appended to the blocks it touches, or its placeholders are replaced by a [`pad_token`] made from the
//! hash. An index must use one of the two for requests and events alike.

use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The input of one block's hash as words. 512 words hold a block of 480 tokens with 16 objects; larger
/// ones spill to the heap.
pub(super) type Words = SmallVec<[u32; 512]>;

/// First token id that no vocabulary uses.
const PAD_BASE: u32 = 1_000_000;
/// Bits of the object hash that tell pad tokens apart; the sum with [`PAD_BASE`] stays below `i32::MAX`.
const PAD_BITS: u32 = 30;

/// The 64-bit hash of the object that an engine or renderer calls `id`; `None` for an empty id.
///
/// An id of exactly 64 hex digits is taken for a SHA-256 or BLAKE3 digest, and its first 16 digits are the
/// hash. Any other id is hashed with XXH3-64, seed 0.
///
/// ```
/// use kvroute::hash::object_hash;
///
/// let digest = "0123456789abcdef".repeat(4);
/// assert_eq!(object_hash(&digest), Some(0x0123_4567_89ab_cdef));
/// assert_eq!(object_hash(""), None);
/// ```
#[must_use]
pub fn object_hash(id: &str) -> Option<u64> {
    if id.is_empty() {
        return None;
    }
    let digest = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let head = if digest { id.get(..16).and_then(|head| u64::from_str_radix(head, 16).ok()) } else { None };
    Some(head.unwrap_or_else(|| xxh3_64_with_seed(id.as_bytes(), 0)))
}

/// The token id that stands for the object in each of its placeholder positions: `1_000_000` plus the low
/// 30 bits of its [`object_hash`].
///
/// ```
/// assert_eq!(kvroute::hash::pad_token(0x0123_4567_89ab_cdef), 163_254_319);
/// ```
#[must_use]
pub const fn pad_token(object_hash: u64) -> u32 {
    PAD_BASE + (object_hash as u32 & ((1 << PAD_BITS) - 1))
}

/// Fills `words` with the input of the hash of a block of `tokens` that `objects` touch: the tokens, then
/// the object hashes ascending, duplicates kept, each as two words, low half first.
pub(super) fn join(tokens: &[u32], objects: &[u64], words: &mut Words) {
    words.clear();
    words.extend_from_slice(tokens);
    let mut sorted: SmallVec<[u64; 16]> = SmallVec::from_slice(objects);
    sorted.sort_unstable();
    for &object in &sorted {
        words.extend_from_slice(&[object as u32, (object >> 32) as u32]);
    }
}
