//! What the engine says: which tokens it draws, and their text piece by piece.

use crate::prompt::Encoder;

/// Tokens looked at when the palette is made; more would only make large vocabularies slow to start with.
const PROBES: usize = 8192;

/// Enough different tokens for outputs to be told apart.
const ENOUGH: usize = 64;

/// The ordinary tokens that outputs are drawn from: they decode to printable text that encodes to the same
/// token, and they are not written like a special token. Words with a leading space are preferred where the
/// tokenizer has enough of them: their text joins without merging, so that a reply which comes back in the
/// next turn encodes to the tokens that were generated, and its blocks are found in the cache.
pub(super) fn palette(encoder: &Encoder) -> Vec<u32> {
    let size = encoder.count_vocab();
    let probes = (0..size).step_by(size.div_ceil(PROBES).max(1)).filter_map(|id| u32::try_from(id).ok());
    let (mut words, mut others, mut unstable) = (Vec::new(), Vec::new(), Vec::new());
    for token in probes {
        let text = encoder.decode(&[token]);
        if !is_plain(&text) {
            continue;
        }
        let stable = encoder.encode_text(&text, false).is_ok_and(|encoded| encoded.tokens == [token]);
        match text.strip_prefix(' ') {
            _ if !stable => unstable.push(token),
            Some(word) if !word.is_empty() && word.chars().all(char::is_alphabetic) => words.push(token),
            _ => others.push(token),
        }
    }
    if words.len() >= ENOUGH {
        return words;
    }
    words.append(&mut others);
    if words.is_empty() { unstable } else { words }
}

fn is_plain(text: &str) -> bool {
    let looks_special = text.len() > 1 && text.contains(['<', '[', '|']);
    let printable =
        |c: char| c == ' ' || (!c.is_whitespace() && !c.is_control() && c != char::REPLACEMENT_CHARACTER);
    !text.is_empty() && !looks_special && text.chars().all(printable)
}

/// Turns tokens into text as they come. Text is held back while it may still change: a tokenizer writes a
/// token differently at the start of a text, and a character may be spread over several tokens.
#[derive(Debug, Default)]
pub(super) struct Detokenizer {
    tokens: Vec<u32>,
    /// Where the context of the next piece starts: what is before it no longer matters.
    context: usize,
    /// Up to where text has been given out.
    read: usize,
}

impl Detokenizer {
    /// The text that `token` adds, which is empty while a character is incomplete.
    pub(super) fn push(&mut self, encoder: &Encoder, token: u32) -> String {
        self.tokens.push(token);
        let before = encoder.decode(&self.tokens[self.context..self.read]);
        let after = encoder.decode(&self.tokens[self.context..]);
        if after.ends_with(char::REPLACEMENT_CHARACTER) {
            return String::new();
        }
        let Some(piece) = after.strip_prefix(&before) else { return String::new() };
        self.context = self.read;
        self.read = self.tokens.len();
        piece.to_owned()
    }

    /// All tokens so far.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

#[cfg(test)]
mod tests {
    use super::{Detokenizer, palette};
    use crate::prompt::Encoder;

    #[test]
    fn pieces_join_to_the_whole_text() {
        let encoder = Encoder::tiny().unwrap();
        let palette = palette(&encoder);
        assert!(!palette.is_empty());
        let mut draws = fastrand::Rng::with_seed(3);
        let tokens: Vec<u32> = (0..200).map(|_| palette[draws.usize(..palette.len())]).collect();
        let mut detokenizer = Detokenizer::default();
        let pieces: Vec<String> = tokens.iter().map(|&token| detokenizer.push(&encoder, token)).collect();
        assert_eq!(pieces.concat(), encoder.decode(&tokens));
    }

    #[test]
    fn a_character_of_several_tokens_comes_out_whole() {
        let encoder = Encoder::tiny().unwrap();
        let mut detokenizer = Detokenizer::default();
        let text = "a\u{1F980}b";
        let tokens = encoder.encode_text(text, false).unwrap().tokens;
        let pieces: Vec<String> = tokens.iter().map(|&token| detokenizer.push(&encoder, token)).collect();
        assert_eq!(pieces.concat(), text);
        assert!(pieces.iter().all(|piece| !piece.contains(char::REPLACEMENT_CHARACTER)));
    }
}
