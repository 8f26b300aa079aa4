//! A prompt on its way to tokens, with those already there that were made for an earlier one.
//!
//! Making a draft is quick: the template is rendered, the text cut, the pieces looked up. What is left to tokenise is
//! told in bytes ([`Draft::open_bytes`]), so that the caller can decide where that is done.

use std::{ops::Range, sync::Arc};

use super::{
    encoder::{Encoded, PromptError},
    segment_cache::{SegmentCache, SegmentKey},
    segments::Piece,
    tokenizer::{Tokenizer, settled_len},
};

/// A prompt whose tokens are known in part.
pub struct Draft {
    text: String,
    add_special_tokens: bool,
    /// False for a prompt that goes on with what is not text: then its last tokens are in doubt.
    complete: bool,
    parts: Vec<Part>,
    open_bytes: usize,
    cached_bytes: usize,
}

enum Part {
    Token(u32),
    Known(Arc<[u32]>),
    Open(Range<usize>, SegmentKey),
    /// The last pieces of an incomplete prompt, of which only the tokens that end by so many bytes count.
    End(Vec<Piece>, usize),
    /// All of the text, tokenised in one go, special tokens included.
    Whole,
}

impl Draft {
    pub(super) fn new(
        tokenizer: &Tokenizer,
        text: String,
        add_special_tokens: bool,
        complete: bool,
        cache: &SegmentCache,
    ) -> Self {
        let parts = Vec::new();
        let mut draft = Self { text, add_special_tokens, complete, parts, open_bytes: 0, cached_bytes: 0 };
        let can_be_joined = !add_special_tokens || tokenizer.around().is_some();
        if cache.is_on() && can_be_joined && !draft.text.is_empty() {
            draft.look_up(tokenizer, cache);
        } else {
            draft.open_bytes = draft.text.len();
            draft.parts.push(Part::Whole);
        }
        draft
    }

    fn look_up(&mut self, tokenizer: &Tokenizer, cache: &SegmentCache) {
        let mut pieces = tokenizer.cut(&self.text);
        let settled = if self.complete { self.text.len() } else { settled_len(&self.text) };
        let certain = pieces.iter().take_while(|piece| piece.range().end <= settled).count();
        let end = pieces.split_off(certain);
        self.parts.reserve(pieces.len() + 1);
        for piece in pieces {
            let part = match piece {
                Piece::Token { id, .. } => Part::Token(id),
                Piece::Text(range) => {
                    let key = cache.key(tokenizer.number(), &self.text[range.clone()], range.start == 0);
                    match cache.get(&key) {
                        Some(tokens) => {
                            self.cached_bytes += range.len();
                            Part::Known(tokens)
                        }
                        None => {
                            self.open_bytes += range.len();
                            Part::Open(range, key)
                        }
                    }
                }
            };
            self.parts.push(part);
        }
        if let Some(first) = end.first() {
            self.open_bytes += self.text.len() - first.range().start;
            self.parts.push(Part::End(end, settled));
        }
    }

    /// Bytes of text that are still to be tokenised.
    #[must_use]
    pub const fn open_bytes(&self) -> usize {
        self.open_bytes
    }

    /// Tokenises what is open. `given_up` is asked before each piece; once it says so there is no result.
    pub(super) fn finish(
        mut self,
        tokenizer: &Tokenizer,
        cache: &SegmentCache,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Option<Encoded>, PromptError> {
        let mut work = Work { tokenizer, cache, text: &self.text, found_bytes: 0, tokens: Vec::new() };
        let around = tokenizer.around().filter(|_| self.add_special_tokens);
        work.tokens.reserve(self.text.len() / 3);
        work.tokens.extend(around.iter().flat_map(|around| &around.before));
        let (mut joined, mut ended) = (true, false);
        for part in std::mem::take(&mut self.parts) {
            if given_up() {
                return Ok(None);
            }
            joined = match part {
                Part::Token(id) => work.push(&[id]),
                Part::Known(tokens) => work.push(&tokens),
                Part::Open(range, key) => work.tokenise(range, key)?,
                Part::End(pieces, settled) => {
                    ended = true;
                    work.end(&pieces, settled, around.map_or(&[], |around| &around.after))?
                }
                Part::Whole => false,
            };
            if !joined {
                break;
            }
        }
        let Work { found_bytes, mut tokens, .. } = work;
        if !joined {
            cache.count(0, self.text.len());
            return tokenizer.encode_prompt(&self.text, self.add_special_tokens, self.complete).map(Some);
        }
        cache.count(self.cached_bytes + found_bytes, self.open_bytes - found_bytes);
        if !ended {
            tokens.extend(around.iter().flat_map(|around| &around.after));
        }
        Ok(Some(Encoded { tokens, complete: self.complete }))
    }
}

impl std::fmt::Debug for Draft {
    /// Never the text.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draft").field("open_bytes", &self.open_bytes).finish_non_exhaustive()
    }
}

/// The tokens so far. Its steps return false where a piece has no tokens of its own, so that the text has to be
/// tokenised whole.
struct Work<'a> {
    tokenizer: &'a Tokenizer,
    cache: &'a SegmentCache,
    text: &'a str,
    /// Bytes that were open when the draft was made, and have been tokenised for another prompt since.
    found_bytes: usize,
    tokens: Vec<u32>,
}

impl Work<'_> {
    fn push(&mut self, tokens: &[u32]) -> bool {
        self.tokens.extend_from_slice(tokens);
        true
    }

    fn tokenise(&mut self, range: Range<usize>, key: SegmentKey) -> Result<bool, PromptError> {
        if let Some(tokens) = self.cache.get(&key) {
            self.found_bytes += range.len();
            return Ok(self.push(&tokens));
        }
        let first = range.start == 0;
        let Some(tokens) = self.tokenizer.encode_piece(&self.text[range], first)? else { return Ok(false) };
        self.push(&tokens);
        self.cache.insert(key, tokens.into());
        Ok(true)
    }

    /// The tokens of the last `pieces` that end by `settled`, but not the very last one of all; see
    /// [`Tokenizer::encode_settled`].
    fn end(&mut self, pieces: &[Piece], settled: usize, after: &[u32]) -> Result<bool, PromptError> {
        let mut last = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Token { id, range } => last.push((*id, range.end)),
                Piece::Text(range) => {
                    let text = &self.text[range.clone()];
                    let Some(tokens) = self.tokenizer.encode_piece_with_ends(text, range.start == 0)? else {
                        return Ok(false);
                    };
                    last.extend(tokens.into_iter().map(|(id, end)| (id, range.start + end)));
                }
            }
        }
        // What post-processing adds stands nowhere in the text.
        last.extend(after.iter().map(|&id| (id, 0)));
        let all = self.tokens.len() + last.len();
        let settled = last.iter().take_while(|(_, end)| *end <= settled).map(|(id, _)| *id);
        self.tokens.extend(settled);
        self.tokens.truncate(all.saturating_sub(1));
        Ok(true)
    }
}
