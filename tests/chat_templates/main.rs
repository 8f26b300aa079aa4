//! Chat templates render as jinja2 renders them, and texts become the tokens that Python's
//! `tokenizers` makes. What is expected was written by `fixtures/chat/render.py`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]
#![cfg(feature = "server")]

mod images;
mod properties;

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use kvroute::prompt::{ChatInput, Encoder, LoadError, PromptError};
use serde_json::{Value, json};

use crate::images::{image, text};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(root("tests/fixtures/chat/expected.json")).unwrap()).unwrap()
}

/// A model directory with the tiny tokenizer, the given tokenizer_config.json and further files.
fn model(config: &Value, files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(root("assets/tiny/tokenizer.json"), directory.path().join("tokenizer.json")).unwrap();
    std::fs::write(directory.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    directory
}

/// An encoder whose chat template is `template`.
fn with_template(template: &str) -> Encoder {
    let directory = model(&json!({"chat_template": template}), &[]);
    Encoder::load(directory.path(), None).unwrap()
}

fn render(encoder: &Encoder, messages: &Value) -> Result<String, PromptError> {
    encoder.render_chat(&ChatInput::new(messages)).map(|rendered| rendered.text)
}

#[test]
fn templates_render_as_jinja2_renders_them() {
    let expected = expected();
    let now = UNIX_EPOCH + Duration::from_secs(expected["now"].as_u64().unwrap());
    let mut wrong = Vec::new();
    let cases = expected["cases"].as_array().unwrap();
    for case in cases {
        let template = root("tests/fixtures/chat/templates")
            .join(format!("{}.jinja", case["template"].as_str().unwrap()));
        let directory = model(&expected["special_tokens"], &[]);
        let encoder = Encoder::load(directory.path(), Some(&template)).unwrap();
        let given = |key: &str| case.get(key).filter(|value| !value.is_null());
        let got = encoder.render_chat(&ChatInput {
            messages: &case["messages"],
            tools: given("tools"),
            documents: given("documents"),
            chat_template_kwargs: given("kwargs"),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(true),
            continue_final_message: case["continue_final_message"].as_bool().unwrap_or(false),
            add_special_tokens: false,
            now,
        });
        let got = match got {
            Ok(rendered) => json!({"text": rendered.text}),
            Err(PromptError::Refused(message)) => json!({"refused": message}),
            // An operation on something undefined; the two engines word it differently.
            Err(PromptError::Template(message)) if message.contains("undefined") => {
                json!({"undefined": true})
            }
            Err(error) => json!({"error": error.to_string()}),
        };
        if got != case["expected"] {
            wrong.push(format!("{}\n  jinja2:  {}\n  kvroute: {got}", case["name"], case["expected"]));
        }
    }
    assert!(cases.len() > 100);
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn texts_become_the_tokens_of_the_python_package() {
    let encoder = Encoder::tiny().unwrap();
    for case in expected()["tokens"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(json!(encoder.encode_text(text, true).unwrap().tokens), case["tokens"], "{text:?}");
    }
}

#[test]
fn the_tiny_model_speaks_chatml() {
    let encoder = Encoder::tiny().unwrap();
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let encoded = encoder.encode_chat(&ChatInput::new(&messages)).unwrap();
    assert!(encoded.complete);
    assert_eq!(encoder.decode(&encoded.tokens), "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(encoder.count_vocab(), 2400);
    let ordinary = encoder.ordinary_tokens();
    assert_eq!(ordinary.len(), 2397, "all but the three special tokens");
    assert!(encoder.decode(&ordinary[..1]) != "<|endoftext|>");
}

#[test]
fn templates_are_looked_for_in_order() {
    let messages = json!([]);
    let text = |directory: &tempfile::TempDir, chat_template: Option<&Path>, tools: Option<&Value>| {
        let encoder = Encoder::load(directory.path(), chat_template).unwrap();
        encoder.render_chat(&ChatInput { tools, ..ChatInput::new(&messages) }).unwrap().text
    };
    let tools = json!([]);
    let list = json!({"bos_token": {"content": "B", "lstrip": false}, "eos_token": null, "chat_template": [
        {"name": "tool_use", "template": "tools{{ bos_token }}"},
        {"name": "default", "template": "plain{{ bos_token }}{{ eos_token }}"},
    ]});

    let directory = model(&list, &[]);
    assert_eq!(text(&directory, None, None), "plainB");
    assert_eq!(text(&directory, None, Some(&tools)), "toolsB");

    let directory = model(&list, &[("chat_template.json", r#"{"chat_template": "json"}"#)]);
    assert_eq!(text(&directory, None, Some(&tools)), "json");

    let files = [("chat_template.jinja", "file"), ("chat_template.json", r#"{"chat_template": "json"}"#)];
    let directory = model(&list, &files);
    assert_eq!(text(&directory, None, Some(&tools)), "file");

    let files = [("chat_template.jinja", "file"), ("additional_chat_templates/tool_use.jinja", "more")];
    let directory = model(&list, &files);
    assert_eq!(text(&directory, None, None), "file");
    assert_eq!(text(&directory, None, Some(&tools)), "more");

    let other = directory.path().join("other.jinja");
    std::fs::write(&other, "other{{ bos_token }}").unwrap();
    assert_eq!(text(&directory, Some(&other), Some(&tools)), "otherB");

    let map = ("special_tokens_map.json", r#"{"eos_token": {"content": "E"}, "bos_token": "not this"}"#);
    let directory = model(&list, &[map]);
    assert_eq!(text(&directory, None, None), "plainBE");

    // A file stands for its directory.
    let encoder = Encoder::load(&directory.path().join("tokenizer.json"), None).unwrap();
    assert_eq!(render(&encoder, &messages).unwrap(), "plainBE");
}

#[test]
fn load_errors_name_the_file_and_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let failure = |path: &Path, template: Option<&Path>| Encoder::load(path, template).unwrap_err();
    let message = |error: &LoadError| error.to_string();

    let error = failure(&directory.path().join("absent"), None);
    assert!(matches!(error, LoadError::NotFound { .. }));
    assert!(message(&error).contains("absent") && message(&error).contains("tokenizer.json"));

    let error = failure(directory.path(), None);
    assert!(matches!(error, LoadError::NoTokenizerFile { .. }), "{error}");

    let wrong = directory.path().join("tokenizer.json");
    for content in ["not json", "{}", r#"{"model": {"type": "Nope"}}"#] {
        std::fs::write(&wrong, content).unwrap();
        let error = failure(directory.path(), None);
        assert!(matches!(error, LoadError::Tokenizer { .. }), "{error}");
        assert!(message(&error).contains(wrong.to_str().unwrap()), "{error}");
    }

    let broken = model(&json!({"chat_template": "a\n{% if %}"}), &[]);
    let error = failure(broken.path(), None);
    assert!(
        message(&error).contains("tokenizer_config.json") && message(&error).contains("line 2"),
        "{error}"
    );

    let error = failure(model(&json!({}), &[]).path(), Some(Path::new("/no/such.jinja")));
    assert!(matches!(error, LoadError::NoTemplateFile { .. }), "{error}");

    let error = failure(model(&json!({"chat_template": 7}), &[]).path(), None);
    assert!(message(&error).contains("chat_template"), "{error}");

    let bare = model(&json!({}), &[]);
    let encoder = Encoder::load(bare.path(), None).unwrap();
    assert!(matches!(render(&encoder, &json!([])), Err(PromptError::NoTemplate)));
    assert!(encoder.encode_text("still fine", true).unwrap().complete);
}

#[test]
fn settings_that_change_prompts_are_ignored() {
    let plain = std::fs::read_to_string(root("assets/tiny/tokenizer.json")).unwrap();
    let mut json: Value = serde_json::from_str(&plain).unwrap();
    json["truncation"] =
        json!({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"
    });
    json["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}
    });
    let directory = model(
        &json!({"chat_template": "{{ messages[0].content }}"}),
        &[("tokenizer.json", &json.to_string())],
    );
    let encoder = Encoder::load(directory.path(), None).unwrap();
    let text = "A sentence of more than three tokens.";
    let tokens = Encoder::tiny().unwrap().encode_text(text, true).unwrap().tokens;
    assert!(tokens.len() > 3);
    assert_eq!(encoder.encode_text(text, false).unwrap().tokens, tokens);
    let with_start: Vec<u32> = std::iter::once(0).chain(tokens.iter().copied()).collect();
    assert_eq!(encoder.encode_text(text, true).unwrap().tokens, with_start);
    // A template brings its own special tokens.
    let messages = json!([{"role": "user", "content": text}]);
    assert_eq!(encoder.encode_chat(&ChatInput::new(&messages)).unwrap().tokens, tokens);
}

#[test]
fn bad_requests_are_told_apart() {
    let encoder = Encoder::tiny().unwrap();
    for (messages, expected) in [
        (json!("text"), "`messages` must be an array"),
        (json!(["text"]), "`messages` must be an array"),
        (json!([{"content": "x"}]), "`messages` must be an array"),
        (json!([{"role": "user", "content": 7}]), "`messages[0].content`"),
        (json!([{"role": "user", "content": ["a", 7]}]), "`messages[0].content[1]`"),
        (json!([{"role": "user", "content": [{"type": "text"}]}]), "`messages[0].content[0]`"),
        (
            json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]),
            "`messages[0].tool_calls[0].function.arguments`",
        ),
    ] {
        let error = encoder.encode_chat(&ChatInput::new(&messages)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.is_request_fault());
    }
    let messages = json!([{"role": "user", "content": "x"}]);
    let both = ChatInput { continue_final_message: true, ..ChatInput::new(&messages) };
    assert!(matches!(encoder.encode_chat(&both), Err(PromptError::ContinueAndGenerate)));
    let empty = json!([]);
    let nothing = ChatInput { add_generation_prompt: false, messages: &empty, ..both };
    assert!(matches!(encoder.encode_chat(&nothing), Err(PromptError::NothingToContinue)));
    let dropped = with_template("{% for m in messages %}{{ m.role }}{% endfor %}");
    let open = ChatInput { add_generation_prompt: false, ..both };
    assert!(matches!(dropped.encode_chat(&open), Err(PromptError::NothingToContinue)));
}

#[test]
fn hostile_templates_end() {
    let messages = json!([{"role": "user", "content": "x".repeat(1000)}]);
    let raw = format!("{{% for i in range(100000) %}}{}{{% endfor %}}", "y".repeat(1000));
    for (template, expected) in [
        ("{% for i in range(100000) %}{{ messages[0].content }}{% endfor %}", "more than"),
        (raw.as_str(), "more than"),
        (
            "{% set t %}{% for i in range(100000) %}{{ messages[0].content }}{% endfor %}{% endset %}",
            "more than",
        ),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "recursion"),
        ("{{ range(10000000000) | list }}", "range"),
    ] {
        let error = with_template(template).encode_chat(&ChatInput::new(&messages)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn text_that_looks_like_a_mark_is_text() {
    let encoder = Encoder::tiny().unwrap();
    let odd = "\u{E000}\u{E010}0\u{E010} \u{E001}\u{E010}0\u{E010} word word word word";
    let messages = json!([{"role": "user", "content": [text(odd), image()]}]);
    let rendered = encoder.render_chat(&ChatInput::new(&messages)).unwrap();
    assert_eq!(rendered.text, format!("<|im_start|>user\n{odd}"));
    let messages = json!([{"role": "user", "content": odd}]);
    let open =
        ChatInput { continue_final_message: true, add_generation_prompt: false, ..ChatInput::new(&messages) };
    assert_eq!(encoder.render_chat(&open).unwrap().text, format!("<|im_start|>user\n{odd}"));
}

#[test]
fn long_texts_neither_overflow_nor_stall() {
    let encoder = Encoder::tiny().unwrap();
    let sentence = "The router sends the answer before the rain begins. ";
    let words = sentence.repeat(25_000);
    let unbroken = ["a".repeat(1 << 20), " ".repeat(1 << 20), "\n".repeat(1 << 20), "你".repeat(1 << 18)];
    let spaced = format!("{}x", " ".repeat(1 << 20));
    for text in unbroken.iter().chain([&words, &spaced]) {
        let encoded = encoder.encode_text(text, true).unwrap();
        assert_eq!(encoder.decode(&encoded.tokens), *text);
    }
    let long = encoder.encode_text(&words, true).unwrap().tokens;
    assert!(long.len() >= 200_000, "{}", long.len());
    // Nothing is lost or cut differently on the way: the end reads as it does alone.
    let alone = encoder.encode_text(sentence.trim_end(), true).unwrap().tokens;
    let tail = encoder.encode_text(words.trim_end(), true).unwrap().tokens;
    assert_eq!(tail[tail.len() - alone.len() + 1..], alone[1..]);
}

#[test]
fn an_encoder_is_shared_between_threads() {
    let encoder = Encoder::tiny().unwrap();
    let text = "An encoder is shared by reference, and threads do not wait for each other.";
    let alone = encoder.encode_text(text, true).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(encoder.encode_text(text, true).unwrap(), alone);
                }
            });
        }
    });
}
