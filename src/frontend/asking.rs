//! What a request asks of placement: its prompt, and which part of the work is placed.

use std::sync::Arc;

use super::{hints::Hints, prompts::Tokens};
use crate::{
    fleet::{SessionId, SetView},
    select::{Overrides, Phase, Pin},
};

/// A prompt as placement sees it.
#[derive(Clone, Debug, Default)]
pub(super) struct Prompt {
    pub(super) tokens: Tokens,
    /// The adapter that the request asks for.
    pub(super) lora: Option<String>,
    /// The cache namespace that the engine will use.
    pub(super) salt: Option<String>,
    /// Whether the answer comes piece by piece, so that its first token can be told from its last.
    pub(super) streams: bool,
    /// The request's name, if its decisions are recorded.
    pub(super) recorded: Option<Arc<str>>,
}

/// One hop of a request: which part of its work is placed, the worker that it insists on, and its session.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Hop {
    pub(super) phase: Phase,
    pub(super) pin: Option<Pin>,
    pub(super) session: Option<SessionId>,
}

impl Hop {
    /// All of the work in one place.
    pub(super) fn whole(hints: &Hints) -> Self {
        Self { phase: Phase::Aggregated, pin: hints.pin, session: hints.session }
    }

    /// The decode hop gets the prompt's blocks from elsewhere: it has nothing to prefill, and its blocks are its own.
    /// What it has cached saves nothing, unless it may compute the rest of a prompt itself.
    pub(super) fn overrides(self, set: &SetView) -> Overrides {
        if self.phase != Phase::Decode {
            return Overrides::default();
        }
        Overrides {
            assume_kv_reuse: Some(false),
            track_prefill_tokens: Some(false),
            overlap_score_credit: set.config.tuning.conditional_disagg.is_none().then_some(0.0),
            ..Overrides::default()
        }
    }
}

/// What a choice needs to know of a request besides its blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking<'a> {
    /// The prompt, whose tokens need not be there any more.
    pub(super) prompt: &'a Prompt,
    pub(super) isl_tokens: usize,
    pub(super) hop: Hop,
}

impl<'a> Asking<'a> {
    pub(super) fn adapter(&self) -> Option<&'a str> {
        self.prompt.lora.as_deref()
    }
}

impl Prompt {
    pub(super) fn asking(&self, hop: Hop) -> Asking<'_> {
        Asking { prompt: self, isl_tokens: self.tokens.ids.len(), hop }
    }

    /// The same without its tokens, for whoever has its blocks.
    pub(super) fn without_tokens(&self) -> Self {
        let Tokens { complete, source, problem, .. } = &self.tokens;
        let tokens =
            Tokens { ids: Vec::new(), complete: *complete, source: *source, problem: problem.clone() };
        Self {
            tokens,
            lora: self.lora.clone(),
            salt: self.salt.clone(),
            streams: self.streams,
            recorded: self.recorded.clone(),
        }
    }
}
