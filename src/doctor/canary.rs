//! The prompt that is sent: tokens by chance under a salt by chance, so that it shares a cached block with nobody.

use fastrand::Rng;
use serde_json::{Value, json};

/// A prompt that nobody else has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Canary {
    pub(super) tokens: Vec<u32>,
    pub(super) salt: String,
}

/// Tokens that every vocabulary has, and that mean nothing to a tokenizer of bytes.
const TOKENS: std::ops::Range<u32> = 32..256;

/// Long enough for an engine whose blocks are larger than announced to fill some.
const LEAST: usize = 448;

/// No block is so large that more were needed.
const MOST: usize = 16_384;

impl Canary {
    /// Some blocks of the larger of the sizes and half of one more, so that the last full block, too, comes from the cache at
    /// the second time: engines compute at least a prompt's last token. Shorter if the model takes no more.
    pub(super) fn draw(rng: &mut Rng, block_sizes: &[u32], max_model_len: Option<u64>) -> Self {
        let largest = block_sizes.iter().copied().max().unwrap_or(16).max(1) as usize;
        let wanted = LEAST.div_ceil(largest).max(3) * largest + largest / 2;
        // One token is generated.
        let room = max_model_len.map_or(MOST, |len| usize::try_from(len).unwrap_or(MOST).saturating_sub(1));
        let length = wanted.min(room).min(MOST);
        let tokens = (0..length).map(|_| rng.u32(TOKENS)).collect();
        Self { tokens, salt: format!("kvroute-canary-{:016x}", rng.u64(..)) }
    }

    /// The body of a completion that generates one token.
    pub(super) fn body(&self, model: &str) -> Value {
        json!({
            "model": model,
            "prompt": self.tokens,
            "max_tokens": 1,
            "temperature": 0,
            "cache_salt": self.salt,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_full_blocks_of_every_size_and_never_ends_with_one_of_the_largest() {
        let mut rng = Rng::with_seed(1);
        for sizes in [&[16][..], &[16, 32], &[128], &[512], &[7], &[]] {
            let canary = Canary::draw(&mut rng, sizes, None);
            let largest = sizes.iter().copied().max().unwrap_or(16) as usize;
            assert!(canary.tokens.len() / largest >= 3, "{sizes:?}");
            assert_ne!(canary.tokens.len() % largest, 0, "{sizes:?}");
        }
    }

    #[test]
    fn it_fits_the_model_and_repeats_nobody() {
        let mut rng = Rng::with_seed(2);
        let canary = Canary::draw(&mut rng, &[16], Some(100));
        assert_eq!(canary.tokens.len(), 99);
        assert_ne!(Canary::draw(&mut rng, &[16], Some(100)), canary);
        assert_ne!(Canary::draw(&mut rng, &[16], Some(100)).salt, canary.salt);
    }
}
