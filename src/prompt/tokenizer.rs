//! Text to tokens and back, through a Hugging Face `tokenizer.json`.

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use tokenizers::{Encoding, Token};

use super::{
    encoder::{Encoded, LoadError, PromptError},
    segments::{Alone, Cutter, Piece},
};

/// One model's tokenizer, immutable after loading and shared by reference between threads.
///
/// Encoding takes no lock: the only cache of the byte-pair step is one per thread. Time grows with
/// the length of the text, also for one word of a megabyte. A run of half a million spaces or more
/// exceeds the budget of the pattern matcher, and the text from there on is cut otherwise than in
/// the engine: such a prompt misses its cached prefix, nothing worse.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Ids of all tokens that are not special, ascending.
    ordinary: Vec<u32>,
    vocabulary: usize,
    /// No other tokenizer of this process has it.
    number: u64,
    /// How texts are cut, if they are.
    cutter: Option<Cutter>,
    /// What post-processing puts around a text, if that is all that it does.
    around: Option<Around>,
}

/// Tokens around a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Around {
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`LoadError::Read`] when the file cannot be read, [`LoadError::Tokenizer`] when it is no
    /// `tokenizer.json`.
    pub fn from_file(path: &Path) -> Result<Self, LoadError> {
        let json = std::fs::read(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
        Self::from_json(&json, path)
    }

    /// Parses the bytes of a `tokenizer.json`; `path` is only named in the error.
    ///
    /// # Errors
    /// [`LoadError::Tokenizer`] when the bytes are no `tokenizer.json`.
    pub fn from_json(json: &[u8], path: &Path) -> Result<Self, LoadError> {
        let unusable = |reason: String| LoadError::Tokenizer { path: path.to_owned(), reason };
        let mut inner =
            tokenizers::Tokenizer::from_bytes(json).map_err(|error| unusable(error.to_string()))?;
        // The file may carry the settings of some training run. A truncated or padded prompt is
        // not the engine's prompt, and servers switch both off.
        inner.with_truncation(None).map_err(|error| unusable(error.to_string()))?;
        inner.with_padding(None);
        let added = inner.get_added_tokens_decoder();
        let mut ordinary: Vec<u32> = inner
            .get_vocab(true)
            .into_values()
            .filter(|id| !added.get(id).is_some_and(|token| token.special))
            .collect();
        ordinary.sort_unstable();
        ordinary.dedup();
        let vocabulary = inner.get_vocab_size(true);
        let (cutter, around) = (Cutter::of(&inner), Around::of(&inner));
        Ok(Self { inner, ordinary, vocabulary, number: next_number(), cutter, around })
    }

    /// The tokens of `text`. Special tokens written out in the text become their ids, as in the
    /// engines. With `add_special_tokens`, the tokenizer's own post-processing is applied too
    /// (a leading begin-of-sequence token in many models).
    ///
    /// # Errors
    /// [`PromptError::Tokenizer`] when the model cannot represent the text at all.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, PromptError> {
        let encoding = self
            .inner
            .encode_fast(text, add_special_tokens)
            .map_err(|error| PromptError::Tokenizer(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The tokens of a prompt: all of them if it is `complete`, else those that are [settled](Self::encode_settled).
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub(super) fn encode_prompt(
        &self,
        text: &str,
        add_special_tokens: bool,
        complete: bool,
    ) -> Result<Encoded, PromptError> {
        let tokens = if complete {
            self.encode(text, add_special_tokens)?
        } else {
            self.encode_settled(text, add_special_tokens)?
        };
        Ok(Encoded { tokens, complete })
    }

    /// The tokens of `text` that stay the same whatever text follows it.
    ///
    /// Tokens are made within words, so only the end of the text is in doubt: what follows may
    /// merge with it. Everything that touches the last [`OPEN_RUNS`] runs of one character class
    /// is dropped, and always at least the last token.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub(super) fn encode_settled(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, PromptError> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let settled = settled_len(text);
        let encoding = self.encode_with_offsets(text, add_special_tokens)?;
        let keep = encoding.get_offsets().iter().take_while(|(_, end)| *end <= settled).count();
        let keep = keep.min(encoding.get_ids().len().saturating_sub(1));
        Ok(encoding.get_ids()[..keep].to_vec())
    }

    fn encode_with_offsets(&self, text: &str, add_special_tokens: bool) -> Result<Encoding, PromptError> {
        let encoding = self.inner.encode(text, add_special_tokens);
        encoding.map_err(|error| PromptError::Tokenizer(error.to_string()))
    }

    /// No other tokenizer of this process has the same.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The text's pieces, whose tokens are the text's, one after the other. A tokenizer that is not cut has one piece of all.
    pub(super) fn cut(&self, text: &str) -> Vec<Piece> {
        match &self.cutter {
            Some(cutter) => cutter.cut(text),
            None if text.is_empty() => Vec::new(),
            None => vec![Piece::Text(0..text.len())],
        }
    }

    /// What [`Self::encode`] puts around a text when it adds special tokens; `None` if it does more than that.
    pub(super) fn around(&self) -> Option<&Around> {
        self.around.as_ref()
    }

    /// The tokens of a piece of a text, which is the `first` if it begins it. `None` if they cannot be had without the rest.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub(super) fn encode_piece(&self, text: &str, first: bool) -> Result<Option<Vec<u32>>, PromptError> {
        let Some(alone) = self.alone(text, first) else { return Ok(None) };
        let tokens = self.encode(&alone.text, false)?;
        Ok(match alone.anchor {
            None => Some(tokens),
            Some(anchor) => tokens.strip_prefix(&[anchor]).map(<[u32]>::to_vec),
        })
    }

    /// The same with the end of each token, in bytes of the piece.
    pub(super) fn encode_piece_with_ends(
        &self,
        text: &str,
        first: bool,
    ) -> Result<Option<Vec<(u32, usize)>>, PromptError> {
        let Some(alone) = self.alone(text, first) else { return Ok(None) };
        let encoding = self.encode_with_offsets(&alone.text, false)?;
        let ends = encoding.get_offsets().iter().map(|(_, end)| end.saturating_sub(alone.start));
        let mut tokens = encoding.get_ids().iter().copied().zip(ends);
        if alone.anchor.is_some_and(|anchor| tokens.next().is_none_or(|(id, _)| id != anchor)) {
            return Ok(None);
        }
        Ok(Some(tokens.collect()))
    }

    /// What to tokenise in place of a piece to have its tokens; `None` if there is nothing.
    fn alone<'a>(&self, text: &'a str, first: bool) -> Option<Alone<'a>> {
        match &self.cutter {
            Some(cutter) => cutter.alone(text, first),
            None => first.then_some(Alone::whole(text)),
        }
    }

    /// The text of `tokens`, special tokens included, so that it undoes [`Self::encode`] for a
    /// byte-level tokenizer. Bytes that form no character become U+FFFD; unknown ids vanish.
    pub fn decode(&self, tokens: &[u32]) -> String {
        self.inner.decode(tokens, false).unwrap_or_default()
    }

    /// Number of distinct tokens, added tokens included.
    pub fn count_vocab(&self) -> usize {
        self.vocabulary
    }

    /// Ids of all tokens that are not special, ascending: what a generator may emit.
    pub fn ordinary_tokens(&self) -> &[u32] {
        &self.ordinary
    }
}

impl Around {
    /// Sees what becomes of one token that no vocabulary has. Post-processors are templates: what they do depends on nothing
    /// in the text.
    fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        const MARK: u32 = u32::MAX;
        let marked = Encoding::from_tokens(vec![Token::new(MARK, String::new(), (0, 0))], 0);
        let processed = tokenizer.post_process(marked, None, true).ok()?;
        let mut parts = processed.get_ids().split(|&id| id == MARK);
        let (Some(before), Some(after), None) = (parts.next(), parts.next(), parts.next()) else {
            return None;
        };
        Some(Self { before: before.to_vec(), after: after.to_vec() })
    }
}

/// A number for a tokenizer.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: that no two get the same is all that is asked for.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

/// How many runs of characters at the end of a text may still change their tokens.
///
/// Pre-tokenizers cut text by pattern, left to right, and only the last piece can grow. In the
/// patterns in use a piece spans at most four runs: a space, a word, an apostrophe, an ending.
const OPEN_RUNS: usize = 4;

/// Length in bytes of the part of `text` before its last [`OPEN_RUNS`] runs.
pub(super) fn settled_len(text: &str) -> usize {
    let mut runs = 0;
    let mut previous = None;
    for (at, character) in text.char_indices().rev() {
        let class = Class::of(character);
        if previous != Some(class) {
            runs += 1;
            if runs > OPEN_RUNS {
                return at + character.len_utf8();
            }
            previous = Some(class);
        }
    }
    0
}

/// The character classes that pre-tokenizers tell apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Space,
    Digit,
    Punctuation,
    /// Letters, and all that some pattern joins with letters: combining marks, joiners, symbols.
    /// Too long a run only drops more.
    Word,
}

impl Class {
    fn of(character: char) -> Self {
        match character {
            _ if character.is_whitespace() => Self::Space,
            _ if character.is_numeric() => Self::Digit,
            _ if character.is_ascii_punctuation() || character.is_ascii_control() => Self::Punctuation,
            '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205E}' => Self::Punctuation,
            '\u{3001}'..='\u{3003}' | '\u{3008}'..='\u{3011}' | '\u{3014}'..='\u{301F}' => Self::Punctuation,
            '\u{FF01}'..='\u{FF0F}' | '\u{FF1A}'..='\u{FF20}' => Self::Punctuation,
            _ => Self::Word,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_four_runs_are_open() {
        assert_eq!(settled_len("one two!\n"), "one".len());
        assert_eq!(settled_len("one two it's"), "one two".len());
        assert_eq!(settled_len("one two"), 0);
        assert_eq!(settled_len("1a, b"), "1".len());
        assert_eq!(settled_len("是，价格是，很好。"), "是，".len());
        assert_eq!(settled_len("x e\u{301}e\u{301}e\u{301}y"), 0, "marks belong to their word");
        assert_eq!(settled_len(""), 0);
    }
}
