//! Reading a JSON text in passing, for the few members that matter to a router.
//!
//! An answer may come in any pieces and be of any size, so it is neither collected nor parsed: a lexer that knows
//! strings, depth and the last key follows it byte by byte and remembers a handful of facts. Only the `usage`
//! object, which engines keep small, is copied out and parsed. What is not JSON gives no facts and does no harm.

use super::observe::Usage;

/// Bytes of a `usage` object beyond which it is not one of an engine's and is left alone.
const MAX_USAGE: usize = 4096;
/// One more than the longest key looked for; longer keys are not kept.
const MAX_KEY: usize = 24;

/// The facts found in one JSON text so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Facts {
    /// A choice of a stream holds generated content: text, reasoning, a refusal or a tool call.
    pub(super) content: bool,
    /// A choice has a `finish_reason` other than null.
    pub(super) finish: bool,
    /// The root has a member `nvext`.
    pub(super) nvext: bool,
    /// The root is an object with at least one member.
    pub(super) members: bool,
    /// The root is an object.
    pub(super) object: bool,
    /// The root's `usage`, once it is complete.
    pub(super) usage: Option<Usage>,
}

/// The lexer, between two pieces of one JSON text.
#[derive(Default)]
pub(super) struct Skim {
    place: Place,
    /// Containers open; 1 inside the root.
    depth: u32,
    key: Key,
    /// The last token was a string, so a colon makes it a key.
    after_string: bool,
    /// The last token was a colon, so a string is no key.
    after_colon: bool,
    /// What the value that comes next would tell.
    awaited: Awaited,
    /// The string being read is generated text.
    text: bool,
    /// A `tool_calls` array was opened and nothing has been seen in it.
    calls: bool,
    in_choices: bool,
    in_delta: bool,
    capturing: bool,
    capture: Vec<u8>,
    facts: Facts,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    #[default]
    Structure,
    String,
    /// After a backslash.
    Escape,
    /// The root container was closed: what follows is not looked at.
    Closed,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Awaited {
    #[default]
    Nothing,
    Text,
    Calls,
    Finish,
    Usage,
}

impl Skim {
    pub(super) fn facts(&self) -> Facts {
        self.facts
    }

    /// Forgets the text read so far; the capture buffer keeps its memory.
    pub(super) fn reset(&mut self) {
        let mut capture = std::mem::take(&mut self.capture);
        capture.clear();
        *self = Self { capture, ..Self::default() };
    }

    /// Reads on. Returns where in `bytes` the root's closing bracket is, if this piece has it.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        let mut captured = 0;
        while let Some(&byte) = bytes.get(at) {
            match self.place {
                Place::Closed => return None,
                Place::Escape => {
                    self.place = Place::String;
                    at += 1;
                }
                Place::String => at += self.string(&bytes[at..]),
                Place::Structure => {
                    let was_capturing = self.capturing;
                    self.structure(byte);
                    match (was_capturing, self.capturing) {
                        (false, true) => captured = at,
                        (true, false) => {
                            self.keep(&bytes[captured..=at]);
                            self.facts.usage = Usage::parse(&self.capture).or(self.facts.usage);
                            self.capture.clear();
                        }
                        _ => {}
                    }
                    if self.place == Place::Closed {
                        return Some(at);
                    }
                    at += 1;
                }
            }
        }
        if self.capturing {
            self.keep(&bytes[captured..]);
        }
        None
    }

    /// Reads the part of a string that is in `bytes`; returns its length, with the byte that ended it.
    fn string(&mut self, bytes: &[u8]) -> usize {
        let stop = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\'));
        let part = &bytes[..stop.unwrap_or(bytes.len())];
        self.key.extend(part);
        let escape = stop.is_some_and(|stop| bytes[stop] == b'\\');
        if self.text && (escape || !part.is_empty()) {
            self.facts.content = true;
        }
        let Some(stop) = stop else { return part.len() };
        if escape {
            self.key.spoil();
            self.place = Place::Escape;
        } else {
            self.place = Place::Structure;
            self.after_string = true;
        }
        stop + 1
    }

    /// Reads one byte outside strings.
    fn structure(&mut self, byte: u8) {
        if matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
            return;
        }
        if self.calls {
            self.calls = false;
            self.facts.content |= byte != b']';
        }
        let after_string = std::mem::take(&mut self.after_string);
        let after_colon = std::mem::take(&mut self.after_colon);
        let awaited = std::mem::take(&mut self.awaited);
        match byte {
            b'"' => {
                self.place = Place::String;
                self.key.begin(!after_colon);
                self.text = awaited == Awaited::Text;
                self.facts.finish |= awaited == Awaited::Finish;
            }
            b':' if after_string => {
                self.after_colon = true;
                self.awaited = self.member();
            }
            b'{' | b'[' => {
                self.facts.object |= self.depth == 0 && byte == b'{';
                self.depth = self.depth.saturating_add(1);
                self.calls = awaited == Awaited::Calls && byte == b'[';
                self.capturing |= awaited == Awaited::Usage && byte == b'{';
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth <= 1 {
                    self.capturing = false;
                }
                if self.depth == 0 {
                    self.place = Place::Closed;
                }
            }
            _ => {}
        }
    }

    /// The key of a member is complete: notes where it leads and says what its value would tell.
    fn member(&mut self) -> Awaited {
        let key = self.key.get();
        match self.depth {
            1 => {
                self.facts.members = true;
                self.in_choices = key == b"choices";
                self.in_delta = false;
                self.facts.nvext |= key == b"nvext";
                if key == b"usage" { Awaited::Usage } else { Awaited::Nothing }
            }
            // The array of choices is depth 2, a choice 3, its delta 4.
            3 if self.in_choices => {
                self.in_delta = key == b"delta";
                match key {
                    b"text" => Awaited::Text,
                    b"finish_reason" => Awaited::Finish,
                    _ => Awaited::Nothing,
                }
            }
            4 if self.in_delta => match key {
                b"content" | b"reasoning_content" | b"reasoning" | b"refusal" => Awaited::Text,
                b"tool_calls" => Awaited::Calls,
                _ => Awaited::Nothing,
            },
            _ => Awaited::Nothing,
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.capture.len() + bytes.len() <= MAX_USAGE {
            self.capture.extend_from_slice(bytes);
        } else {
            // What is left is no JSON object, so nothing is read from it when it closes.
            self.capture.clear();
            self.capturing = false;
        }
    }
}

/// The string read last, as far as it can be a key that is looked for.
#[derive(Clone, Copy, Default)]
struct Key {
    bytes: [u8; MAX_KEY],
    length: usize,
    spoiled: bool,
}

impl Key {
    /// A string begins, which may be a key or not.
    fn begin(&mut self, possible: bool) {
        self.length = 0;
        self.spoiled = !possible;
    }

    fn extend(&mut self, part: &[u8]) {
        if self.spoiled {
            return;
        }
        match self.bytes.get_mut(self.length..self.length + part.len()) {
            Some(room) => {
                room.copy_from_slice(part);
                self.length += part.len();
            }
            None => self.spoil(),
        }
    }

    fn spoil(&mut self) {
        self.spoiled = true;
    }

    /// Empty if the string was too long or had an escape.
    fn get(&self) -> &[u8] {
        if self.spoiled { b"" } else { &self.bytes[..self.length] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(json: &str) -> Facts {
        let mut whole = Skim::default();
        whole.feed(json.as_bytes());
        // Byte by byte is the hardest split there is.
        let mut bytes = Skim::default();
        for byte in json.as_bytes() {
            bytes.feed(&[*byte]);
        }
        assert_eq!(whole.facts(), bytes.facts(), "{json}");
        whole.facts()
    }

    #[test]
    fn content_is_text_in_a_choice_that_is_not_empty() {
        for json in [
            r#"{"choices":[{"index":0,"delta":{"content":"Hi"}}]}"#,
            r#"{"choices":[{"delta":{"role":"assistant","content":"","reasoning_content":"\n"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
            r#"{ "choices" : [ { "text" : "a" } ] }"#,
            r#"{"choices":[{"delta":{}},{"delta":{"content":"second"}}]}"#,
        ] {
            assert!(facts(json).content, "{json}");
        }
        for json in [
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"delta":{"content":null,"tool_calls":[]}}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":1}}"#,
            r#"{"id":"content","content":"x","text":"y"}"#,
            r#"{"choices":[{"logprobs":{"content":"x"},"text":""}]}"#,
            r#"{"other":[{"delta":{"content":"x"}}]}"#,
            "[DONE]",
        ] {
            assert!(!facts(json).content, "{json}");
        }
    }

    #[test]
    fn usage_is_read_wherever_the_root_has_it() {
        let usage = Usage { prompt_tokens: 200, completion_tokens: 7, cached_tokens: Some(192) };
        for json in [
            r#"{"choices":[],"usage":{"prompt_tokens":200,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":192}}}"#,
            r#"{"usage" : {"prompt_tokens_details":{"audio":[1],"cached_tokens":192},"completion_tokens":7,"x":{},"prompt_tokens":200}, "id":"a"}"#,
        ] {
            assert_eq!(facts(json).usage, Some(usage), "{json}");
        }
        for json in [
            r#"{"usage":null}"#,
            r#"{"choices":[{"delta":{"content":"{\"usage\":{\"prompt_tokens\":1}}"}}]}"#,
            r#"{"a":{"usage":{"prompt_tokens":1}}}"#,
            r#"{"usage":{"prompt_tokens":"many"}}"#,
        ] {
            assert_eq!(facts(json).usage, None, "{json}");
        }
        let silent =
            facts(r#"{"usage":{"prompt_tokens":3,"completion_tokens":null,"prompt_tokens_details":null}}"#);
        assert_eq!(silent.usage, Some(Usage { prompt_tokens: 3, completion_tokens: 0, cached_tokens: None }));
    }

    #[test]
    fn an_oversized_usage_is_not_kept() {
        let mut skim = Skim::default();
        skim.feed(br#"{"usage":{"prompt_tokens":1,"padding":""#);
        for _ in 0..1000 {
            skim.feed(&[b'x'; 100]);
            assert!(skim.capture.capacity() <= 2 * MAX_USAGE);
        }
        skim.feed(br#""},"nvext":{}}"#);
        assert_eq!(skim.facts().usage, None);
        assert!(skim.facts().nvext);
    }

    #[test]
    fn the_closing_bracket_is_found_once() {
        let mut skim = Skim::default();
        assert_eq!(skim.feed(br#"{"a":"}","b":{}"#), None);
        assert_eq!(skim.feed(b"} }"), Some(0));
        assert_eq!(skim.feed(b"}"), None);
    }

    #[test]
    fn a_finish_reason_counts_unless_it_is_null() {
        assert!(facts(r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#).finish);
        assert!(!facts(r#"{"choices":[{"delta":{},"finish_reason":null}]}"#).finish);
        assert!(!facts(r#"{"finish_reason":"stop"}"#).finish);
    }
}
