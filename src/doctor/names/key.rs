//! What vLLM hashes into a block's name, and how.

use ring::digest::{SHA256, digest};
use xxhash_rust::xxh3::xxh3_128;

use super::{cbor, pickle};

/// One block, as it is hashed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key<'a> {
    /// The digest of the block before it.
    pub(super) parent: &'a [u8],
    pub(super) tokens: &'a [u32],
    /// What separates it from blocks of the same tokens; nil where there is nothing.
    pub(super) extra: &'a [Extra<'a>],
}

/// One thing beside the tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Extra<'a> {
    /// As itself.
    Text(&'a str),
    /// In a tuple that begins with what it is.
    Tuple(Vec<&'a str>),
}

/// vLLM's `--prefix-caching-hash-algo`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Algorithm {
    Sha256,
    Sha256Cbor,
    Xxhash,
    XxhashCbor,
}

impl Algorithm {
    /// vLLM's default first.
    pub(super) const ALL: [Self; 4] = [Self::Sha256, Self::Sha256Cbor, Self::Xxhash, Self::XxhashCbor];

    /// As the flag spells it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha256Cbor => "sha256_cbor",
            Self::Xxhash => "xxhash",
            Self::XxhashCbor => "xxhash_cbor",
        }
    }

    /// Bytes of a digest.
    pub(super) const fn len(self) -> usize {
        match self {
            Self::Sha256 | Self::Sha256Cbor => 32,
            Self::Xxhash | Self::XxhashCbor => 16,
        }
    }

    /// What the first block of a prompt has in place of a parent. `None` for what is too large to be hashed here.
    pub(super) fn beginning(self, seed: &str) -> Option<Vec<u8>> {
        Some(match self {
            Self::Sha256 | Self::Xxhash => self.digest(&pickle::text(seed)?),
            Self::Sha256Cbor | Self::XxhashCbor => self.digest(&cbor::text(seed)),
        })
    }

    /// The digest of a block. `None` for what is too large to be hashed here.
    pub(super) fn block(self, key: &Key<'_>) -> Option<Vec<u8>> {
        Some(match self {
            Self::Sha256 | Self::Xxhash => self.digest(&pickle::key(key)?),
            Self::Sha256Cbor | Self::XxhashCbor => self.digest(&cbor::key(key)),
        })
    }

    fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 | Self::Sha256Cbor => digest(&SHA256, bytes).as_ref().to_vec(),
            Self::Xxhash | Self::XxhashCbor => xxh3_128(bytes).to_be_bytes().to_vec(),
        }
    }
}
