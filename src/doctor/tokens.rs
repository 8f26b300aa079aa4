//! What both sides are asked to tokenise, and how two lists of tokens are compared.

use serde_json::{Value, json};

use crate::prompt::{ChatInput, Encoder};

/// Scripts, digits, spaces and marks that tokenizers cut by different rules.
pub(super) const TEXT: &str = "The router's parity check, 2026: 3.14159 and 1,000,000.\n\n  Two  spaces,\ta tab; caf\u{e9}, na\u{ef}ve, \
    \u{4f60}\u{597d}\u{ff0c}\u{4e16}\u{754c}\u{3002} \u{41f}\u{440}\u{438}\u{432}\u{435}\u{442} \u{1f980} fn main() { x += 1; } https://example.com/?q=a&b=c";

/// Plain words, so that what differs is the template and not the tokenizer.
pub(super) fn messages() -> Value {
    json!([
        { "role": "system", "content": "You are a helpful assistant." },
        { "role": "user", "content": "What is a prefix?" },
        { "role": "assistant", "content": "A beginning that others share." },
        { "role": "user", "content": "And who has it cached?" },
    ])
}

pub(super) fn tools() -> Value {
    json!([{
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Says who holds a block.",
            "parameters": {
                "type": "object",
                "properties": { "block": { "type": "integer", "description": "Its number." } },
                "required": ["block"],
            },
        },
    }])
}

/// The body for the engine's `/tokenize` that asks for a text.
pub(super) fn text_body(model: &str) -> Value {
    json!({ "model": model, "prompt": TEXT, "add_special_tokens": true })
}

/// The same for a conversation.
pub(super) fn chat_body(model: &str, with_tools: bool) -> Value {
    let mut body = json!({ "model": model, "messages": messages(), "add_generation_prompt": true });
    if with_tools {
        body["tools"] = tools();
    }
    body
}

/// Our tokens of the text.
pub(super) fn our_text(encoder: &Encoder) -> Result<Vec<u32>, String> {
    encoder.encode_text(TEXT, true).map(|encoded| encoded.tokens).map_err(|error| error.to_string())
}

/// Our tokens of the conversation.
pub(super) fn our_chat(encoder: &Encoder, with_tools: bool) -> Result<Vec<u32>, String> {
    let (messages, tools) = (messages(), tools());
    let input = ChatInput { tools: with_tools.then_some(&tools), ..ChatInput::new(&messages) };
    encoder.encode_chat(&input).map(|encoded| encoded.tokens).map_err(|error| error.to_string())
}

/// Where two lists part; nothing if they do not.
pub(super) fn difference(ours: &[u32], theirs: &[u32]) -> Option<String> {
    let common = ours.iter().zip(theirs).take_while(|(left, right)| left == right).count();
    let at = |tokens: &[u32]| tokens.get(common).map_or_else(|| "none".to_owned(), u32::to_string);
    (ours != theirs).then(|| {
        format!(
            "{} tokens here, {} there; they part at token {common}: {} here, {} there",
            ours.len(),
            theirs.len(),
            at(ours),
            at(theirs)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_part_at_their_first_difference() {
        assert_eq!(difference(&[1, 2], &[1, 2]), None);
        let text = difference(&[1, 2, 3], &[1, 9]).unwrap();
        assert!(
            text.contains("3 tokens here, 2 there") && text.contains("token 1: 2 here, 9 there"),
            "{text}"
        );
        assert!(difference(&[1], &[1, 2]).unwrap().contains("token 1: none here, 2 there"));
    }
}
