//! How long an engine's steps take.

/// How long a step takes, for what it computes. Simulated engines and the mock engine of the server go by the same one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepTimes {
    /// Seconds that any step takes.
    pub step: f64,
    /// Seconds for each token prefilled.
    pub prefill_token: f64,
    /// Seconds for each token prefilled and token of context before it.
    pub attention: f64,
    /// Seconds more if any sequence decodes, however many do.
    pub decoding: f64,
    /// Seconds for each sequence that decodes.
    pub decode: f64,
    /// Seconds for each token of context that these read.
    pub context_token: f64,
}

impl StepTimes {
    /// A model of 70 billion parameters on four H100s, by arithmetic from data sheets: 141 GB of weights and 141 GFLOP a
    /// token over their bandwidth and throughput, at what engines reach of these.
    pub const H100X4: Self = Self {
        step: 15e-3,
        prefill_token: 80e-6,
        attention: 1.5e-9,
        decoding: 0.0,
        decode: 30e-6,
        context_token: 40e-9,
    };

    /// Speeds that nothing slows down: prompt tokens a second, output tokens a second of each sequence however many decode,
    /// and `step` seconds that every step takes.
    #[must_use]
    pub fn flat(step: f64, prefill_tokens_per_second: f64, decode_tokens_per_second: f64) -> Self {
        Self {
            step,
            prefill_token: prefill_tokens_per_second.recip(),
            attention: 0.0,
            decoding: decode_tokens_per_second.recip(),
            decode: 0.0,
            context_token: 0.0,
        }
    }

    /// Seconds that a step with this batch takes.
    #[must_use]
    pub fn seconds(&self, batch: &Batch) -> f64 {
        self.step
            + self.prefill_seconds(batch)
            + if batch.decoding > 0 { self.decoding } else { 0.0 }
            + self.decode * batch.decoding as f64
            + self.context_token * batch.context as f64
    }

    /// The part of it that the prompts take.
    #[must_use]
    pub fn prefill_seconds(&self, batch: &Batch) -> f64 {
        self.prefill_token * batch.prefill as f64 + self.attention * batch.attended
    }
}

/// What one step computes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Batch {
    /// Tokens prefilled.
    pub prefill: u64,
    /// The sum over these of the context before each.
    pub attended: f64,
    /// Sequences that decode.
    pub decoding: u64,
    /// The tokens of their contexts.
    pub context: u64,
}

impl Batch {
    /// Adds `tokens` of a prompt, of which `before` were computed earlier.
    pub fn prefill(&mut self, tokens: u64, before: u64) {
        self.prefill += tokens;
        self.attended += tokens as f64 * (before as f64 + tokens as f64 / 2.0);
    }

    /// Adds a sequence that decodes its next token after `context` others.
    pub const fn decode(&mut self, context: u64) {
        self.decoding += 1;
        self.context += context;
    }
}

/// An engine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EngineModel {
    /// How long its steps take.
    pub times: StepTimes,
    /// Tokens that fit the KV cache.
    pub cache_tokens: u64,
    /// Tokens that a step computes at most.
    pub step_tokens: u64,
    /// Sequences that a step holds at most.
    pub sequences: usize,
}

impl Default for EngineModel {
    fn default() -> Self {
        Self { times: StepTimes::H100X4, cache_tokens: 448_000, step_tokens: 8192, sequences: 256 }
    }
}

impl EngineModel {
    /// Seconds to the first token of a prompt on an engine that does nothing else and has the first `cached` tokens of it.
    pub(super) fn alone(&self, prompt_tokens: u64, cached: u64) -> f64 {
        let mut computed = cached.min(prompt_tokens.saturating_sub(1));
        let mut seconds = 0.0;
        while computed < prompt_tokens.max(1) {
            let chunk = self.step_tokens.max(1).min(prompt_tokens.max(1) - computed);
            let mut batch = Batch::default();
            batch.prefill(chunk, computed);
            seconds += self.times.seconds(&batch);
            computed += chunk;
        }
        seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_step_costs_its_prompt_tokens_and_one_decode_whatever_the_batch() {
        let times = StepTimes::flat(2e-3, 1000.0, 100.0);
        let seconds =
            |prefill, decoding| times.seconds(&Batch { prefill, decoding, context: 5000, attended: 7000.0 });
        assert_eq!(seconds(0, 0), 2e-3);
        assert_eq!(seconds(8, 0), 10e-3);
        assert_eq!(seconds(0, 1), 12e-3);
        assert_eq!(seconds(0, 64), 12e-3);
    }

    #[test]
    fn a_prompt_alone_takes_its_steps() {
        let model = EngineModel::default();
        let times = model.times;
        let one = times.step + 100.0 * times.prefill_token + 100.0 * 1050.0 * times.attention;
        assert!((model.alone(1100, 1000) - one).abs() < 1e-12);
        assert_eq!(model.alone(1000, 1000), model.alone(1000, 999), "one token is always computed");
        let two = model.alone(8192 + 100, 0) - model.alone(8192, 0);
        assert!(
            (two - (times.step + 100.0 * times.prefill_token + 100.0 * 8242.0 * times.attention)).abs()
                < 1e-12
        );
    }
}
