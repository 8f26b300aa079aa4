//! Where a prompt stops being text.
//!
//! An image, a sound or a video is expanded into tokens by the engine, and only the engine knows
//! which. A prompt that has one is therefore hashed up to the first of them. Where that is in the
//! rendered text is found without knowing the template: it is rendered twice, and the text is
//! trusted as far as both renderings agree and no mark has appeared.
//!
//! * In the first rendering the template sees the parts as the server would show them, so a
//!   template that changes its opening when there is an image disagrees with itself there.
//! * In the second each of them is a mark, a text that occurs nowhere in the request.
//!
//! A template that drops the marks leaves nothing to trust, and the prompt is empty.

use serde_json::Value;

/// Two texts that occur nowhere in a request and differ in their first character.
pub(super) struct Marks {
    pub(super) first: String,
    pub(super) second: String,
}

impl Marks {
    /// Marks for `messages`. They consist of private-use characters and digits, so that no
    /// trimming or change of case in a template alters them.
    pub(super) fn for_request(messages: &Value) -> Self {
        let mut number = 0_u64;
        loop {
            let marks = Self {
                first: format!("\u{E000}\u{E010}{number}\u{E010}"),
                second: format!("\u{E001}\u{E010}{number}\u{E010}"),
            };
            if !mentions(messages, &marks.first) && !mentions(messages, &marks.second) {
                return marks;
            }
            number += 1;
        }
    }
}

fn mentions(value: &Value, mark: &str) -> bool {
    match value {
        Value::String(text) => text.contains(mark),
        Value::Array(items) => items.iter().any(|item| mentions(item, mark)),
        Value::Object(map) => map.iter().any(|(key, item)| key.contains(mark) || mentions(item, mark)),
        _ => false,
    }
}

/// The part of `marked` that is certain: up to the first `mark`, and as far as `shown` agrees.
pub(super) fn certain<'t>(shown: &str, marked: &'t str, mark: &str) -> &'t str {
    let Some(end) = marked.find(mark) else { return "" };
    let marked = &marked[..end];
    let agreed = shown.chars().zip(marked.chars()).take_while(|(left, right)| left == right);
    &marked[..agreed.map(|(character, _)| character.len_utf8()).sum()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn certain_text_ends_at_the_first_doubt() {
        assert_eq!(certain("user: <image>", "user: #1", "#1"), "user: ");
        assert_eq!(certain("with image: <image>", "without: #1", "#1"), "with");
        assert_eq!(certain("<image><image>hello", "hello#1#1", "#1"), "");
        assert_eq!(certain("hello", "hello", "#1"), "", "a dropped mark proves nothing");
        assert_eq!(certain("é!", "è#1", "#1"), "");
    }

    #[test]
    fn marks_avoid_the_request() {
        let plain = Marks::for_request(&json!([]));
        let busy = json!([{"content": [{"text": format!("x{}y", plain.second)}]}]);
        let marks = Marks::for_request(&busy);
        assert!(!mentions(&busy, &marks.first) && !mentions(&busy, &marks.second));
        assert_ne!(marks.first.chars().next(), marks.second.chars().next());
    }
}
