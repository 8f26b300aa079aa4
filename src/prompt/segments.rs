//! Where a text falls apart into segments whose tokens do not depend on each other.
//!
//! The tokenizers library looks for the model's added tokens first, in the text as it came, and then treats what lies between
//! them piece by piece: it normalises, splits and merges within a piece and never across its ends. So the tokens of a text
//! are those of its pieces, one after the other, and the tokens of a piece are a function of its text and of one thing more:
//! whether it begins the prompt, which the rule that puts a space in front of the first word asks for.
//!
//! Added tokens that are marked as normalised are looked for later, within the pieces, and cut nothing here. A token that takes
//! the whitespace beside it along (`lstrip`, `rstrip`) cuts around it. One that counts only as a word of its own (`single_word`)
//! depends on what stands beside it in ways that are not followed here: a tokenizer that has one is not cut at all.

use std::{borrow::Cow, ops::Range};

use aho_corasick::{AhoCorasick, MatchKind};

/// The added tokens that cut a text, and how.
pub(super) struct Cutter {
    matcher: AhoCorasick,
    /// By the matcher's numbers.
    marks: Vec<Mark>,
    /// The one that stands for "not at the beginning", see [`Cutter::alone`].
    anchor: usize,
}

struct Mark {
    id: u32,
    content: String,
    /// Takes the whitespace on its left along.
    lstrip: bool,
    /// Takes the whitespace on its right along.
    rstrip: bool,
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// An added token.
    Token {
        /// Its id.
        id: u32,
        /// Where it stands, with the whitespace that it takes along.
        range: Range<usize>,
    },
    /// The text between two of them, or between one and an end; never empty.
    Text(Range<usize>),
}

impl Piece {
    pub(super) const fn range(&self) -> &Range<usize> {
        match self {
            Self::Token { range, .. } | Self::Text(range) => range,
        }
    }
}

impl Cutter {
    /// The cutter of a tokenizer; `None` if it has no token that cuts, or one that is not followed here.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        let mut added: Vec<_> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        added.retain(|(_, token)| !token.normalized);
        if added.is_empty() || added.iter().any(|(_, token)| token.single_word) {
            return None;
        }
        added.sort_unstable_by_key(|(id, _)| *id);
        let marks: Vec<Mark> = added
            .into_iter()
            .map(|(id, token)| Mark {
                id,
                content: token.content,
                lstrip: token.lstrip,
                rstrip: token.rstrip,
            })
            .collect();
        let plain_first = |at: &usize| (marks[*at].lstrip || marks[*at].rstrip, marks[*at].content.len());
        let anchor = (0..marks.len()).min_by_key(plain_first)?;
        // The library's own rule: the leftmost, and of several that begin there the longest.
        let matcher = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(marks.iter().map(|mark| &mark.content))
            .ok()?;
        Some(Self { matcher, marks, anchor })
    }

    /// Cuts `text` where the library does.
    pub(super) fn cut(&self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut done = 0;
        for found in self.matcher.find_iter(text) {
            let mark = &self.marks[found.pattern().as_usize()];
            let (mut start, mut end) = (found.start(), found.end());
            if mark.lstrip {
                // The one before may have taken this whitespace already.
                start = text[..start].trim_end().len().max(done);
            }
            if mark.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            if done < start {
                pieces.push(Piece::Text(done..start));
            }
            pieces.push(Piece::Token { id: mark.id, range: start..end });
            done = end;
        }
        if done < text.len() {
            pieces.push(Piece::Text(done..text.len()));
        }
        pieces
    }

    /// What to tokenise in place of a piece: itself if it is the `first` of its prompt, else itself behind an added token, so that
    /// it does not begin the prompt. `None` if the library would cut that elsewhere.
    pub(super) fn alone<'a>(&self, text: &'a str, first: bool) -> Option<Alone<'a>> {
        if first {
            return (self.cut(text) == [Piece::Text(0..text.len())]).then_some(Alone::whole(text));
        }
        let anchor = &self.marks[self.anchor];
        let (start, joined) = (anchor.content.len(), [&anchor.content, text].concat());
        let expected = [Piece::Token { id: anchor.id, range: 0..start }, Piece::Text(start..joined.len())];
        let alone = Alone { text: joined.into(), start, anchor: Some(anchor.id) };
        (self.cut(&alone.text) == expected).then_some(alone)
    }
}

/// A text whose tokens are those of a piece, behind an added token or not.
pub(super) struct Alone<'a> {
    /// All of it.
    pub(super) text: Cow<'a, str>,
    /// Where the piece starts.
    pub(super) start: usize,
    /// The token before it.
    pub(super) anchor: Option<u32>,
}

impl<'a> Alone<'a> {
    /// The piece itself.
    pub(super) fn whole(text: &'a str) -> Self {
        Self { text: text.into(), start: 0, anchor: None }
    }
}
