//! How long an engine's steps take.

/// An engine of a model of 70 billion parameters on four H100s, by arithmetic from data sheets: 141 GB of weights and 141
/// GFLOP a token over their bandwidth and throughput, at what engines reach of these.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EngineModel {
    /// Seconds that any step takes.
    pub step: f64,
    /// Seconds for each token prefilled.
    pub prefill_token: f64,
    /// Seconds for each token prefilled and token of context before it.
    pub attention: f64,
    /// Seconds for each sequence that decodes.
    pub decode: f64,
    /// Seconds for each token of context that these read.
    pub context_token: f64,
    /// Tokens that fit the KV cache.
    pub cache_tokens: u64,
    /// Tokens that a step computes at most.
    pub step_tokens: u64,
    /// Sequences that a step holds at most.
    pub sequences: usize,
}

impl Default for EngineModel {
    fn default() -> Self {
        Self {
            step: 15e-3,
            prefill_token: 80e-6,
            attention: 1.5e-9,
            decode: 30e-6,
            context_token: 40e-9,
            cache_tokens: 448_000,
            step_tokens: 8192,
            sequences: 256,
        }
    }
}

/// What one step computes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Batch {
    /// Tokens prefilled, and the sum over them of the context before each.
    pub(super) prefill: u64,
    pub(super) attended: f64,
    /// Sequences that decode, and the tokens of their contexts.
    pub(super) decoding: u64,
    pub(super) context: u64,
}

impl EngineModel {
    /// Seconds that a step with this batch takes.
    pub(super) fn seconds(&self, batch: &Batch) -> f64 {
        self.step
            + self.prefill_token * batch.prefill as f64
            + self.attention * batch.attended
            + self.decode * batch.decoding as f64
            + self.context_token * batch.context as f64
    }
}
