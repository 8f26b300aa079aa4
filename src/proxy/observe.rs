//! What can be learned from an answer while it passes.

use serde::Deserialize;

use super::error::ErrorKind;

/// Hears what an answer is doing, on the task that relays it, between two of its bytes.
///
/// The [`ProxyBody`](super::ProxyBody) owns its observer and drops it at the moment the answer is over, right after
/// [`Observer::end`]; so a field of it is also the guard of whatever the request holds. Every method has an empty
/// default and must return quickly: nothing here may block or wait.
pub trait Observer: Send + 'static {
    /// The first byte of the body is on its way to the client. Called at most once, before all others.
    fn first_byte(&mut self) {}

    /// The first event of a stream with generated content is complete. At most once; never for a body that is not a
    /// stream, where the first token cannot be told from the last.
    fn first_token(&mut self) {}

    /// `steps` more events with generated content. An event is counted once whatever number of tokens it holds, so
    /// the total is a lower bound of the output; [`Usage::completion_tokens`] is exact. The first event is counted
    /// too, after [`Observer::first_token`].
    fn output(&mut self, steps: u32) {
        let _ = steps;
    }

    /// The worker's own account. More than once where the client asked for usage in every event; the last one stands.
    fn usage(&mut self, usage: Usage) {
        let _ = usage;
    }

    /// The answer is over. Called exactly once, and last.
    fn end(&mut self, end: End) {
        let _ = end;
    }
}

/// Observes nothing.
impl Observer for () {}

/// How an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The worker ended it as HTTP says it should.
    Complete,
    /// It failed after its first byte: the worker broke off, or was silent for too long.
    Cut(ErrorKind),
    /// The body was dropped first, which is how a client that left looks from here.
    Dropped,
}

/// An engine's `usage` object. A field that is absent or null is 0, or `None` where that says something.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// Tokens of the prompt that the engine found in its cache; `None` if it does not say, which is an engine's
    /// default (vLLM needs `--enable-prompt-tokens-details`).
    pub cached_tokens: Option<u64>,
}

impl Usage {
    /// Reads a `usage` object; `None` if it is not one.
    pub(super) fn parse(json: &[u8]) -> Option<Self> {
        let wire: WireUsage = serde_json::from_slice(json).ok()?;
        Some(Self {
            prompt_tokens: wire.prompt_tokens.unwrap_or(0),
            completion_tokens: wire.completion_tokens.unwrap_or(0),
            cached_tokens: wire.prompt_tokens_details.and_then(|details| details.cached_tokens),
        })
    }
}

#[derive(Deserialize)]
struct WireUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<WireDetails>,
}

#[derive(Deserialize)]
struct WireDetails {
    cached_tokens: Option<u64>,
}
