//! What a rank's answers say of the predictions that sent them there.

use parking_lot::Mutex;

use crate::{event::Tier, hash::BlockSize, index::Overlap};

/// Predictions beside what engines reported, as rolling means, by the slowest tier that a prediction counted on: a prediction of
/// blocks on a disk that does not come true says nothing of those on the GPU. Written at the end of an answer.
#[derive(Debug, Default)]
pub struct Predictions {
    tiers: Mutex<[PredictionError; Tier::ALL.len()]>,
    observed: Mutex<Observed>,
}

/// Answers whose prompts' caching had been predicted, and how many of the last said what came of it.
#[derive(Clone, Copy, Debug, Default)]
struct Observed {
    answers: u64,
    share: f64,
}

/// How far predictions were off. Both shares are of prompt tokens, 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct PredictionError {
    /// Answers that were compared.
    pub answers: u64,
    /// Tokens that were predicted to be cached and were not.
    pub missing: f64,
    /// Tokens that were cached and not predicted to be.
    pub surplus: f64,
}

/// Answers that a rolling mean looks back over.
const WINDOW: u64 = 32;

/// Answers before a mean says anything.
const ENOUGH: u64 = 16;

/// The share of prompt tokens that may be missing. Blocks that are evicted between a choice and its request are, too, and a full
/// cache has many of those.
const TOLERATED: f64 = 0.25;

impl PredictionError {
    fn observe(&mut self, missing: f64, surplus: f64) {
        self.answers += 1;
        let weight = 1.0 / self.answers.min(WINDOW) as f64;
        self.missing += (missing - self.missing) * weight;
        self.surplus += (surplus - self.surplus) * weight;
    }

    /// Whether the rank is credited with what is not there, more than evictions explain.
    #[must_use]
    pub fn drifts(&self) -> bool {
        self.answers >= ENOUGH && self.missing > TOLERATED
    }
}

impl Predictions {
    /// Compares one answer with its prediction. An engine computes at least a prompt's last token itself, so of a prompt that
    /// is cached to its end one block less is expected.
    pub fn observe(&self, predicted: Overlap, block_size: BlockSize, prompt_tokens: u64, cached_tokens: u64) {
        if prompt_tokens == 0 {
            return;
        }
        let size = u64::from(block_size.get());
        let expected = (u64::from(predicted.total()) * size).min((prompt_tokens - 1) / size * size);
        let share = |tokens: u64| tokens.min(prompt_tokens) as f64 / prompt_tokens as f64;
        let tier = [predicted.gpu, predicted.host, predicted.disk, predicted.external];
        let slowest = tier.iter().rposition(|&blocks| blocks > 0).unwrap_or(0);
        if let Some(error) = self.tiers.lock().get_mut(slowest) {
            error.observe(
                share(expected.saturating_sub(cached_tokens)),
                share(cached_tokens.saturating_sub(expected)),
            );
        }
    }

    /// Counts an answer to a request whose caching was predicted: whether it says how much was cached.
    pub fn note_answer(&self, says: bool) {
        let mut observed = self.observed.lock();
        observed.answers += 1;
        let weight = 1.0 / observed.answers.min(WINDOW) as f64;
        observed.share += (f64::from(says) - observed.share) * weight;
    }

    /// Of the last answers, the share that could be compared, 0 to 1; 0 before the first. Engines say it on demand
    /// only, and of streams only to clients that ask for it.
    #[must_use]
    pub fn observed_share(&self) -> f64 {
        self.observed.lock().share
    }

    /// The errors now, in the order of [`Tier::ALL`].
    #[must_use]
    pub fn errors(&self) -> [PredictionError; Tier::ALL.len()] {
        *self.tiers.lock()
    }

    /// Forgets what came before something was changed.
    pub fn forget(&self) {
        *self.tiers.lock() = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap(gpu: u32, host: u32) -> Overlap {
        Overlap { gpu, host, ..Overlap::default() }
    }

    #[test]
    fn a_prompt_that_is_cached_to_its_end_misses_nothing_by_its_last_block() {
        let (size, predictions) = (BlockSize::new(16).unwrap(), Predictions::default());
        predictions.observe(overlap(4, 0), size, 64, 48);
        let error = predictions.errors()[0];
        assert_eq!((error.answers, error.missing, error.surplus), (1, 0.0, 0.0));
        predictions.observe(overlap(0, 0), size, 64, 48);
        assert_eq!(predictions.errors()[0].surplus, 0.375);
        predictions.observe(overlap(4, 0), size, 0, 0);
        assert_eq!(predictions.errors()[0].answers, 2, "an answer without a prompt says nothing");
    }

    #[test]
    fn drift_takes_several_answers_and_ends_with_as_many() {
        let (size, predictions) = (BlockSize::new(16).unwrap(), Predictions::default());
        for answers in 0..ENOUGH {
            assert!(!predictions.errors()[0].drifts(), "{answers}");
            predictions.observe(overlap(8, 0), size, 130, 0);
        }
        assert!(predictions.errors()[0].drifts());
        for _ in 0..3 * WINDOW {
            predictions.observe(overlap(8, 0), size, 130, 128);
        }
        assert!(!predictions.errors()[0].drifts());
    }

    #[test]
    fn the_share_observed_is_that_of_the_last_answers() {
        let predictions = Predictions::default();
        assert_eq!(predictions.observed_share(), 0.0);
        [true, false, true, true].into_iter().for_each(|says| predictions.note_answer(says));
        assert_eq!(predictions.observed_share(), 0.75);
        (0..20 * WINDOW).for_each(|_| predictions.note_answer(false));
        assert!(predictions.observed_share() < 0.01);
    }

    #[test]
    fn a_tier_answers_for_its_own_predictions() {
        let (size, predictions) = (BlockSize::new(16).unwrap(), Predictions::default());
        for _ in 0..ENOUGH {
            predictions.observe(overlap(4, 0), size, 130, 64);
            predictions.observe(overlap(2, 6), size, 130, 32);
        }
        let [gpu, host, ..] = predictions.errors();
        assert!(!gpu.drifts() && host.drifts(), "{gpu:?} {host:?}");
        predictions.forget();
        assert_eq!(predictions.errors()[1], PredictionError::default());
    }
}
