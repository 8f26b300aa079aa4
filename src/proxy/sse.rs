//! Server-sent events, read in passing.
//!
//! [`Framer`] finds the payloads of a stream that comes in any pieces: `data` fields, whatever the line ends (LF,
//! CRLF or CR), comments, other fields and a byte order mark around them, as the WHATWG specification frames them.
//! It keeps no byte of the stream. [`SseReader`] looks at each payload with a [`Skim`] and says what it saw.

use super::{
    observe::Usage,
    skim::{Facts, Skim},
};

const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];
const DATA: &[u8] = b"data";
const DONE: &[u8] = b"[DONE]";

/// A part of a stream that matters.
pub(super) enum Piece<'a> {
    /// Bytes of a `data` field, not necessarily all.
    Data(&'a [u8]),
    /// Another `data` field of the same event begins: the payload goes on after a line feed.
    Another,
    /// The blank line after an event that has a `data` field.
    End,
}

/// Where in the stream we are, between two chunks.
#[derive(Default)]
pub(super) struct Framer {
    line: Line,
    /// The last byte ended a line and was a CR: an LF now belongs to it.
    after_cr: bool,
    /// Bytes of the byte order mark seen, or 3 once it cannot come any more.
    mark: usize,
    /// The event has a `data` field.
    has_data: bool,
    /// Lines have come since the last blank one.
    in_event: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Line {
    /// Nothing of the line yet.
    #[default]
    Start,
    /// So many bytes of the field name, all as in `data`.
    Name(usize),
    /// After `data:`, where one space is not part of the payload.
    Space,
    Data,
    /// A comment or another field.
    Other,
}

impl Framer {
    /// Reads a chunk; `sink` gets each piece and its place in the chunk.
    pub(super) fn read<'a>(&mut self, chunk: &'a [u8], mut sink: impl FnMut(Piece<'a>, usize)) {
        let mut at = 0;
        while let Some(&byte) = chunk.get(at) {
            if std::mem::take(&mut self.after_cr) && byte == b'\n' {
                at += 1;
                continue;
            }
            if self.mark < BYTE_ORDER_MARK.len() {
                if byte == BYTE_ORDER_MARK[self.mark] {
                    self.mark += 1;
                    at += 1;
                    continue;
                }
                if self.mark > 0 {
                    self.line = Line::Other;
                }
                self.mark = BYTE_ORDER_MARK.len();
            }
            if matches!(byte, b'\r' | b'\n') {
                if self.end_line() {
                    sink(Piece::End, at);
                }
                self.after_cr = byte == b'\r';
                at += 1;
                continue;
            }
            let rest = &chunk[at..];
            match self.line {
                Line::Data | Line::Other => {
                    let part = &rest[..line_length(rest)];
                    if self.line == Line::Data {
                        sink(Piece::Data(part), at);
                    }
                    at += part.len();
                }
                Line::Space => {
                    self.line = Line::Data;
                    at += usize::from(byte == b' ');
                }
                Line::Start | Line::Name(_) => {
                    if self.name(byte) && self.has_data {
                        sink(Piece::Another, at);
                    }
                    at += 1;
                }
            }
        }
    }

    /// Whether an event written now would be read as one, rather than as the rest of another.
    pub(super) fn at_boundary(&self) -> bool {
        self.line == Line::Start && !self.in_event && matches!(self.mark, 0 | 3)
    }

    /// Reads one byte of a field name; true if it ends `data:`.
    fn name(&mut self, byte: u8) -> bool {
        let matched = if let Line::Name(matched) = self.line { matched } else { 0 };
        self.line = match DATA.get(matched) {
            Some(&expected) if expected == byte => Line::Name(matched + 1),
            None if byte == b':' => Line::Space,
            _ => Line::Other,
        };
        self.line == Line::Space
    }

    /// Ends a line; true if it ends an event that has data.
    fn end_line(&mut self) -> bool {
        match std::mem::take(&mut self.line) {
            Line::Start => {
                self.in_event = false;
                return std::mem::take(&mut self.has_data);
            }
            Line::Space | Line::Data => self.has_data = true,
            Line::Name(matched) if matched == DATA.len() => self.has_data = true,
            Line::Name(_) | Line::Other => {}
        }
        self.in_event = true;
        false
    }
}

/// Bytes before the first line end, or all. By blocks, since a payload is one long line and the compiler compares a
/// whole block at once.
fn line_length(bytes: &[u8]) -> usize {
    const BLOCK: usize = 32;
    let ends = |byte: u8| matches!(byte, b'\r' | b'\n');
    let clear = |block: &&[u8]| !block.iter().fold(false, |found, &byte| found | ends(byte));
    let skipped = bytes.chunks_exact(BLOCK).take_while(clear).count() * BLOCK;
    let rest = &bytes[skipped..];
    skipped + rest.iter().position(|&byte| ends(byte)).unwrap_or(rest.len())
}

/// What one chunk of a stream, or several added up, told.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Observed {
    /// Events with generated content.
    pub(super) steps: u32,
    /// The last `usage`.
    pub(super) usage: Option<Usage>,
}

/// Follows a stream of chat or text completion events.
#[derive(Default)]
pub(super) struct SseReader {
    framer: Framer,
    skim: Skim,
    /// Bytes of the payload that are as in `[DONE]`; `None` once one is not.
    done: Done,
    finished: bool,
}

#[derive(Clone, Copy)]
struct Done(Option<usize>);

impl Default for Done {
    fn default() -> Self {
        Self(Some(0))
    }
}

impl SseReader {
    /// Reads a chunk and says what the events that end in it told.
    pub(super) fn read(&mut self, chunk: &[u8]) -> Observed {
        let Self { framer, skim, done, finished } = self;
        let mut observed = Observed::default();
        framer.read(chunk, |piece, _| match piece {
            Piece::Data(bytes) => {
                done.feed(bytes);
                skim.feed(bytes);
            }
            Piece::Another => {
                done.feed(b"\n");
                skim.feed(b"\n");
            }
            Piece::End => {
                let Facts { content, usage, .. } = skim.facts();
                observed.steps += u32::from(content);
                observed.usage = usage.or(observed.usage);
                *finished |= std::mem::take(done).0 == Some(DONE.len());
                skim.reset();
            }
        });
        observed
    }

    /// Whether `[DONE]` has come: nothing that fails afterwards takes anything from the client.
    pub(super) fn finished(&self) -> bool {
        self.finished
    }

    /// See [`Framer::at_boundary`].
    pub(super) fn at_boundary(&self) -> bool {
        self.framer.at_boundary()
    }
}

impl Done {
    fn feed(&mut self, bytes: &[u8]) {
        self.0 =
            self.0.filter(|&matched| DONE[matched..].starts_with(bytes)).map(|matched| matched + bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    impl Observed {
        fn add(&mut self, other: Self) {
            self.steps += other.steps;
            self.usage = other.usage.or(self.usage);
        }
    }

    /// The reference: the whole stream at once, split by the letter of the specification, parsed by serde_json.
    fn reference(stream: &str) -> (Observed, bool) {
        let text = stream.strip_prefix('\u{feff}').unwrap_or(stream);
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let mut observed = Observed::default();
        let mut finished = false;
        let mut data: Vec<&str> = Vec::new();
        // A line counts when it is ended, so what follows the last line feed is not one.
        let lines = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        for line in lines.split('\n') {
            if line.is_empty() {
                if !data.is_empty() {
                    let payload = data.join("\n");
                    finished |= payload == "[DONE]";
                    observed.add(reference_event(&payload));
                }
                data.clear();
            } else if line == "data" {
                data.push("");
            } else if let Some(value) = line.strip_prefix("data:") {
                data.push(value.strip_prefix(' ').unwrap_or(value));
            }
        }
        (observed, finished)
    }

    fn reference_event(payload: &str) -> Observed {
        let Ok(event) = serde_json::from_str::<Value>(payload) else { return Observed::default() };
        let filled = |value: &Value| match value {
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => false,
        };
        let content = event["choices"].as_array().is_some_and(|choices| {
            choices.iter().any(|choice| {
                let delta = &choice["delta"];
                filled(&choice["text"])
                    || ["content", "reasoning_content", "tool_calls"].iter().any(|key| filled(&delta[key]))
            })
        });
        let usage = event["usage"].is_object().then(|| Usage {
            prompt_tokens: event["usage"]["prompt_tokens"].as_u64().unwrap_or(0),
            completion_tokens: event["usage"]["completion_tokens"].as_u64().unwrap_or(0),
            cached_tokens: event["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64(),
        });
        Observed { steps: u32::from(content), usage }
    }

    fn read(chunks: &[&[u8]]) -> (Observed, bool) {
        let mut reader = SseReader::default();
        let mut observed = Observed::default();
        for chunk in chunks {
            observed.add(reader.read(chunk));
        }
        (observed, reader.finished())
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            Just(String::new()),
            Just("\"usage\":{".to_owned()),
            Just("data: [DONE]\n\n".to_owned()),
            "[a-z\\\\\"é漢😀{}\\[\\]:\n\r]{0,12}",
        ]
    }

    fn payload() -> impl Strategy<Value = String> {
        let usage = (0_u64..9, prop::option::of(0_u64..9)).prop_map(|(tokens, cached)| {
            serde_json::json!({"choices": [], "usage": {"prompt_tokens": tokens,
                "prompt_tokens_details": cached.map(|cached| serde_json::json!({"cached_tokens": cached}))}})
        });
        let json = prop_oneof![
            text().prop_map(|text| serde_json::json!({"choices": [{"delta": {"content": text}, "logprobs": null}], "usage": null})),
            text().prop_map(|text| serde_json::json!({"id": text, "choices": [{"text": "", "finish_reason": "stop"}]})),
            text().prop_map(|text| serde_json::json!({"choices": [{"index": 0, "text": text}]})),
            (0_usize..2).prop_map(|calls| serde_json::json!({"choices": [{"delta": {"tool_calls": vec![1; calls]}}]})),
            usage,
        ];
        prop_oneof![
            6 => (json, any::<bool>()).prop_map(|(json, pretty)| {
                if pretty { serde_json::to_string_pretty(&json).unwrap() } else { json.to_string() }
            }),
            1 => Just("[DONE]".to_owned()),
            1 => "[a-z\\[\\]D]{0,6}",
        ]
    }

    prop_compose! {
        /// A stream of events, comments and other fields, with any line ends, cut anywhere.
        fn stream()(
            mark in any::<bool>(),
            events in prop::collection::vec((payload(), 0..6_usize, 0..3_usize), 0..8),
            cut in 0..40_usize,
        ) -> String {
            let mut stream = String::from(if mark { "\u{feff}" } else { "" });
            for (payload, extra, ending) in events {
                let end = ["\n", "\r\n", "\r"][ending];
                stream += ["", ": ping\n", "event: x\r\n", "dat: 1\r", "data\n", "datax: y\n"][extra];
                for line in payload.split('\n') {
                    stream += "data:";
                    stream += if ending == 1 { "" } else { " " };
                    stream += line;
                    stream += end;
                }
                stream += end;
            }
            let kept = stream.chars().count().saturating_sub(cut.saturating_sub(20));
            stream.chars().take(kept).collect()
        }
    }

    proptest! {
        #[test]
        fn any_split_tells_what_the_reference_tells(
            stream in stream(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let bytes = stream.as_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let split: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            prop_assert_eq!(read(&split), reference(&stream));
            let each: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(read(&each), reference(&stream));
        }
    }

    #[test]
    fn a_boundary_is_where_the_next_event_would_be_read_as_one() {
        for (stream, boundary) in [
            ("", true),
            ("data: 1\n\n", true),
            ("data: 1\r\r", true),
            (": ping\n\n", true),
            ("data: 1\n", false),
            ("data: 1", false),
            ("data: 1\n\nda", false),
            (": ping\n", false),
        ] {
            let mut reader = SseReader::default();
            reader.read(stream.as_bytes());
            assert_eq!(reader.at_boundary(), boundary, "{stream:?}");
        }
    }
}
