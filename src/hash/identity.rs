//! Whose cache a prompt may share: the adapter it runs under and its cache salt.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The seed of a request without adapter and salt, and of every sequence hash.
pub(super) const PLAIN_SEED: u64 = 1337;

/// What separates equal tokens of different requests: the LoRA adapter and the cache salt.
///
/// Both go into the seed of the block hashes, so prompts of different identities share no hash and the
/// index needs no notion of tenants. An adapter and a salt of the same name differ.
///
/// ```
/// use kvroute::hash::Identity;
///
/// assert_eq!(Identity::new(None, Some("")), Identity::plain()); // empty counts as absent
/// assert_ne!(Identity::new(Some("a"), None), Identity::new(None, Some("a")));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    seed: u64,
}

impl Identity {
    /// The identity of a request that has neither adapter nor salt.
    #[must_use]
    pub const fn plain() -> Self {
        Self { seed: PLAIN_SEED }
    }

    /// The identity under the adapter named `lora` and the cache salt `salt`. Engines number adapters
    /// as they load them, so it is the name that counts. An empty string is the same as `None`.
    ///
    /// Seed: `1337 + XXH3(lora, seed 0) + XXH3(salt, seed 1)`, wrapping, each term only where present.
    #[must_use]
    pub fn new(lora: Option<&str>, salt: Option<&str>) -> Self {
        let term = |name: Option<&str>, kind| match name {
            None | Some("") => 0,
            Some(name) => xxh3_64_with_seed(name.as_bytes(), kind),
        };
        Self { seed: PLAIN_SEED.wrapping_add(term(lora, 0)).wrapping_add(term(salt, 1)) }
    }

    /// The XXH3 seed of the block hashes under this identity.
    #[must_use]
    pub const fn seed(self) -> u64 {
        self.seed
    }
}

impl Default for Identity {
    fn default() -> Self {
        Self::plain()
    }
}
