//! Texts of all kinds.

use std::sync::LazyLock;

use kvroute::prompt::{ChatInput, Encoder};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    images::{image, text},
    model,
};

static ENCODER: LazyLock<Encoder> = LazyLock::new(|| Encoder::tiny().unwrap());
static JOINERS: LazyLock<Vec<Encoder>> = LazyLock::new(|| (0..24).map(joiner).collect());

/// A model over a few characters that joins whatever its pre-tokenizer leaves together: letters
/// with apostrophes, spaces with punctuation, punctuation with line breaks.
fn joiner(seed: u64) -> Encoder {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut tokens: Vec<String> = ["a", "s", "Ġ", "Ċ", "!", "'", "1"].map(str::to_owned).into();
    let mut merges = Vec::new();
    while merges.len() < 250 {
        // The early tokens often, so that most neighbours in a text can join.
        let mut pick = || rng.usize(..tokens.len()).min(rng.usize(..tokens.len()));
        let (left, right) = (pick(), pick());
        let joined = format!("{}{}", tokens[left], tokens[right]);
        if joined.chars().count() <= 5 && !tokens.contains(&joined) {
            merges.push(format!("{} {}", tokens[left], tokens[right]));
            tokens.push(joined);
        }
    }
    let newer =
        r"(?i:'s)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let newest =
        r"[^\r\n\p{L}\p{N}]?\p{L}+(?i:'s)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let pre_tokenizer = match seed % 3 {
        0 => bytes(true),
        1 => json!({"type": "Sequence", "pretokenizers": [split(newer), bytes(false)]}),
        _ => json!({"type": "Sequence", "pretokenizers": [split(newest), bytes(false)]}),
    };
    let vocabulary: serde_json::Map<String, Value> =
        tokens.into_iter().enumerate().map(|(id, token)| (token, id.into())).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": pre_tokenizer, "decoder": bytes(false),
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    });
    let template =
        "{% for m in messages %}{% for p in m.content %}{{ p.text or '?' }}{% endfor %}{% endfor %}";
    let config = json!({"chat_template": template});
    let directory = model(&config, &[("tokenizer.json", &tokenizer.to_string())]);
    Encoder::load(directory.path(), None).unwrap()
}

static ANOTHER: LazyLock<Encoder> = LazyLock::new(|| Encoder::tiny().unwrap());

/// Words, code, spaces and line breaks as well as any characters at all.
fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[a-zA-Z]{1,9}[ ,.!?\n]{0,3}",
        1 => "[ \t\r\n]{1,5}",
        1 => "[0-9]{1,6}",
        1 => "\\PC{0,8}",
        1 => any::<String>(),
        1 => Just("<|im_start|>".to_owned()),
        1 => Just("it's".to_owned()),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decoding_undoes_encoding(text in any_text()) {
        let encoder = &*ENCODER;
        let first = encoder.encode_text(&text, true).unwrap();
        let again = ANOTHER.encode_text(&text, true).unwrap();
        prop_assert_eq!(&first, &again);
        prop_assert_eq!(encoder.decode(&first.tokens), text);
    }

    /// Whatever follows, and whatever the engine puts in place of an image, what we claim
    /// before it is there.
    #[test]
    fn cut_prompts_are_prefixes(before in any_text(), after in any_text()) {
        for continuation in [after.as_str(), "", " ", "s", "\n", "\n\n", ".", "1", "'s", "!?", "<|image|>", "<|im_end|>"] {
            check_prefix(&ENCODER, &before, &after, continuation)?;
        }
    }

    #[test]
    fn joined_tokens_at_the_cut_are_not_claimed(
        before in "([as]| |!|'s|1|\n){0,12}",
        after in "([as]| |!|'s|1|\n){0,4}",
    ) {
        for encoder in JOINERS.iter() {
            check_prefix(encoder, &before, "", &after)?;
        }
    }
}

fn check_prefix(
    encoder: &Encoder,
    before: &str,
    behind: &str,
    continuation: &str,
) -> Result<(), TestCaseError> {
    let encode = |content: Value| {
        let messages = json!([{"role": "user", "content": content}]);
        encoder.encode_chat(&ChatInput::new(&messages)).unwrap()
    };
    let cut = encode(json!([text(before), image(), text(behind)]));
    prop_assert!(!cut.complete);
    let whole = encode(json!([text(before), text(continuation)]));
    prop_assert!(whole.complete);
    prop_assert!(
        whole.tokens.starts_with(&cut.tokens),
        "{:?} is no prefix of {:?} + {:?}",
        encoder.decode(&cut.tokens),
        before,
        continuation
    );
    Ok(())
}
