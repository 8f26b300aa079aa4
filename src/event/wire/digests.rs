//! Names of blocks that came as digests, whole.

use super::reader::{Item, Reader};
use crate::event::EngineHash;

/// Digests that may be names of blocks, each beside the 64 bits that [`decode`](super::decode) makes of it, in the order of the
/// payload. Whoever recomputes names needs them whole: a name is hashed into that of the block after it.
///
/// Nothing but the length tells a digest from other bytes (16: XXH3-128, 32: SHA-256), so it is looked up by a name that is known.
pub fn digests(payload: &[u8]) -> impl Iterator<Item = (EngineHash, &[u8])> {
    let mut reader = Reader::new(payload);
    // Heads of containers are values too, so nothing has to be entered or left.
    std::iter::from_fn(move || reader.head().ok()).filter_map(|item| match item {
        Item::Bytes(bytes) if matches!(bytes.len(), 16 | 32) => {
            Some((EngineHash(u64::from_be_bytes(*bytes.last_chunk()?)), bytes))
        }
        _ => None,
    })
}
