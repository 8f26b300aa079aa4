//! Prompts with parts that are no text.

use kvroute::prompt::{ChatInput, Encoder};
use serde_json::{Value, json};

use crate::with_template;

pub(crate) fn image() -> Value {
    json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})
}

pub(crate) fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

#[test]
fn a_prompt_with_an_image_ends_before_it() {
    let encoder = Encoder::tiny().unwrap();
    let messages = json!([
        {"role": "system", "content": "Describe what you see."},
        {"role": "user", "content": [text("What is on this picture, please?\n"), image(), text("And here?"), image()]},
    ]);
    let rendered = encoder.render_chat(&ChatInput::new(&messages)).unwrap();
    assert!(!rendered.complete);
    assert_eq!(
        rendered.text,
        "<|im_start|>system\nDescribe what you see.<|im_end|>\n<|im_start|>user\nWhat is on this picture, please?\n"
    );
    let encoded = encoder.encode_chat(&ChatInput::new(&messages)).unwrap();
    assert!(!encoded.complete);
    // The end is in doubt and the last word with it, but not more.
    let kept = encoder.decode(&encoded.tokens);
    assert!(kept.ends_with("on this picture,"), "{kept:?}");
    for kind in ["input_audio", "video_url", "file", "something_new"] {
        let messages = json!([{"role": "user", "content": [text("one two three"), {"type": kind}]}]);
        let rendered = encoder.render_chat(&ChatInput::new(&messages)).unwrap();
        assert_eq!((rendered.text.as_str(), rendered.complete), ("<|im_start|>user\none two three", false));
    }
}

#[test]
fn placeholders_stand_first_where_a_template_wants_text() {
    // Servers put the placeholder of an image before the text of its message then, wherever the
    // image was.
    let encoder = with_template("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}");
    let messages = json!([
        {"role": "user", "content": [text("first"), text("question")]},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": [text("look"), image()]},
    ]);
    let rendered = encoder.render_chat(&ChatInput::new(&messages)).unwrap();
    assert_eq!(
        (rendered.text.as_str(), rendered.complete),
        ("<user>first\nquestion<assistant>answer<user>", false)
    );
}

#[test]
fn templates_that_move_parts_are_not_trusted_beyond_them() {
    let messages = json!([{"role": "user", "content": [text("some words"), image(), text("more"), image()]}]);
    let cut = |template: &str| {
        let encoder = with_template(template);
        let rendered = encoder.render_chat(&ChatInput::new(&messages)).unwrap();
        assert!(!rendered.complete);
        // Whatever is cut off, encoding works and claims nothing beyond the text.
        let encoded = encoder.encode_chat(&ChatInput::new(&messages)).unwrap();
        assert!(rendered.text.starts_with(&encoder.decode(&encoded.tokens)));
        rendered.text
    };
    let loops = "{% for m in messages %}{% for p in m.content %}";
    let end = "{% endfor %}{% endfor %}";
    // Images first.
    assert_eq!(
        cut(&format!(
            "A{loops}{{% if p.type == 'image' %}}<img>{{% endif %}}{end}{loops}{{{{ p.text }}}}{end}"
        )),
        "A"
    );
    // In place.
    assert_eq!(cut(&format!("{loops}{{{{ p.text or '<img>' }}}} {end}")), "some words ");
    // An opening that depends on there being an image.
    let opening =
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}{% set ns.seen = true %}";
    assert_eq!(
        cut(&format!(
            "{{% set ns = namespace(seen=false) %}}Start {opening}{{% endif %}}{end}\
             {{{{ 'with' if ns.seen else 'without' }}}} images {loops}{{{{ p.text }}}}{end}"
        )),
        "Start with"
    );
    // Parts that are dropped, text that is dropped.
    assert_eq!(cut(&format!("{loops}{end}words that stand there always")), "");
    assert_eq!(cut(&format!("{loops}{{{{ p.text | replace('\u{E001}', '') }}}}{end}")), "");
}
