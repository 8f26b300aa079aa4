//! Tokenizers and chat templates of the shapes that model families have, made of the tiny tokenizer's vocabulary.

use std::path::Path;

use kvroute::prompt::Encoder;
use serde_json::{Map, Value, json};

/// A family's encoder, and what a test has to know of it.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) encoder: Encoder,
    /// Written in messages, these would be tokens.
    pub(crate) specials: Vec<String>,
    /// Whether special tokens that cut stand between messages.
    pub(crate) cuts: bool,
    /// Whether some of its tokens take whitespace along.
    pub(crate) strips: bool,
}

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const LLAMA3: &str = "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n\
    {{ m.content | trim }}<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n";
const MISTRAL: &str = "<s>{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}</s>\
    {% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}";
const GEMMA: &str = "<bos>{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}\
    <start_of_turn>model\n";
const DEEPSEEK: &str = "<｜begin▁of▁sentence｜>{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}\
    {% elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}<｜end▁of▁sentence｜>{% else %}{{ m.content }}{% endif %}\
    {% endfor %}<｜Assistant｜>";
const PHI: &str =
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}<|assistant|>\n";
const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}[SEP]{% endfor %}";

const QWEN_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Every family.
pub(crate) fn all() -> Vec<Family> {
    let byte_level = [qwen(), llama3(), prefix_space(), deepseek(), phi4()];
    let spaced = [mistral_legacy(), mistral(), gemma(), phi3(), metaspace("always"), metaspace("never")];
    let other = [unigram(), word_piece(), normalised(), odd(), single_word()];
    byte_level.into_iter().chain(spaced).chain(other).collect()
}

fn qwen() -> Family {
    let added = specials(&["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>"]);
    let words = words(QWEN_WORDS);
    family(
        "qwen",
        byte_level(),
        &added,
        CHATML,
        json!({"normalizer": {"type": "NFC"}, "pre_tokenizer": words}),
    )
}

fn llama3() -> Family {
    let names = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"];
    let post = json!({"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
        around(&["<|begin_of_text|>"], &[]),
    ]});
    let changes = json!({"pre_tokenizer": words(LLAMA3_WORDS), "post_processor": post});
    family("llama 3", byte_level(), &specials(&names), LLAMA3, changes)
}

/// Every piece gets a space in front, not only the first.
fn prefix_space() -> Family {
    let added = specials(&["<|endoftext|>", "<|im_start|>", "<|im_end|>"]);
    let spaced =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    let changes = json!({"pre_tokenizer": spaced, "post_processor": spaced});
    family("byte level with a prefix space", byte_level(), &added, CHATML, changes)
}

fn deepseek() -> Family {
    let names = [
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜fim▁hole｜>",
    ];
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let words = json!({"type": "Sequence", "pretokenizers": [
        split(r"\p{N}{1,3}"),
        split(r"[一-龥぀-ゟ゠-ヿ]+"),
        split(r"[!-/:-~]?[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]});
    let post = around(&["<｜begin▁of▁sentence｜>"], &[]);
    let changes = json!({"normalizer": {"type": "Sequence", "normalizers": []}, "pre_tokenizer": words, "post_processor": post});
    family("deepseek", byte_level(), &specials(&names), DEEPSEEK, changes)
}

/// Phi's role tokens take the whitespace behind them along.
fn phi_tokens() -> Vec<Value> {
    let mut added = specials(&["<|endoftext|>", "<s>", "</s>"]);
    for name in ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"] {
        added.push(token(name, &["rstrip", "special"]));
    }
    added
}

fn phi4() -> Family {
    family("phi, byte level", byte_level(), &phi_tokens(), PHI, json!({"pre_tokenizer": words(LLAMA3_WORDS)}))
}

fn phi3() -> Family {
    family("phi, spaced", spaced(), &phi_tokens(), PHI, json!({"normalizer": legacy()}))
}

/// SentencePiece as it was first converted: a normaliser writes the spaces, one of them in front of each piece.
fn mistral_legacy() -> Family {
    let changes = json!({"normalizer": legacy(), "post_processor": around(&["<s>"], &[])});
    family("mistral, legacy", spaced(), &specials(&["<unk>", "<s>", "</s>"]), MISTRAL, changes)
}

/// The same as it is converted now: only what begins the prompt gets a space.
fn mistral() -> Family {
    let added = specials(&["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]);
    let first = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    let changes = json!({"pre_tokenizer": first, "post_processor": around(&["<s>"], &[])});
    family("mistral", spaced(), &added, MISTRAL, changes)
}

fn metaspace(scheme: &'static str) -> Family {
    let added = specials(&["<s>", "</s>", "[INST]", "[/INST]"]);
    let rule = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let name = if scheme == "always" { "metaspace always" } else { "metaspace never" };
    family(name, spaced(), &added, MISTRAL, json!({"pre_tokenizer": rule}))
}

fn gemma() -> Family {
    let mut added = specials(&["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]);
    added.extend(["\n", "\n\n", "\n\n\n", "▁▁", "<table>"].map(|name| token(name, &[])));
    let normalizer = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let split = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
    let post = around(&["<bos>"], &[]);
    let changes = json!({"normalizer": normalizer, "pre_tokenizer": split, "post_processor": post});
    family("gemma", spaced(), &added, GEMMA, changes)
}

fn unigram() -> Family {
    let mut vocabulary = vec![json!(["<unk>", 0.0]), json!(["</s>", 0.0])];
    let scored = (0..).zip(spaced_vocabulary().0);
    vocabulary.extend(scored.map(|(rank, piece)| json!([piece, -3.0 - f64::from(rank) / 200.0])));
    let model = json!({"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": false});
    let added = specials(&["<unk>", "</s>", "<s>", "[INST]", "[/INST]"]);
    let changes = json!({
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Strip", "strip_left": false, "strip_right": true}]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true},
        "post_processor": around(&[], &["</s>"]),
    });
    family("unigram", model, &added, MISTRAL, changes)
}

fn word_piece() -> Family {
    let mut vocabulary = Map::new();
    let (pieces, _) = spaced_vocabulary();
    let words = pieces
        .iter()
        .map(|piece| piece.strip_prefix('▁').map_or_else(|| format!("##{piece}"), str::to_owned));
    for word in ["[UNK]", "[CLS]", "[SEP]"].map(str::to_owned).into_iter().chain(words) {
        let id = vocabulary.len();
        vocabulary.entry(word).or_insert(json!(id));
    }
    let model = json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": vocabulary});
    let changes = json!({
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
    });
    family("word piece", model, &specials(&["[UNK]", "[CLS]", "[SEP]"]), PLAIN, changes)
}

/// All special tokens are looked for after normalising, so nothing cuts.
fn normalised() -> Family {
    let added: Vec<_> = ["<s>", "</s>"].map(|name| token(name, &["normalized", "special"])).into();
    let family = family("normalised", spaced(), &added, MISTRAL, json!({"normalizer": legacy()}));
    Family { cuts: false, ..family }
}

/// Tokens that contain, follow and strip each other, of spaces too, and a normaliser that changes them.
fn odd() -> Family {
    let mut added =
        specials(&["<|im_start|>", "<|im_end|>", "<|", "<|im_start|>user", "|>", "ab", "abc", "\u{301}"]);
    added.push(token("<mask>", &["lstrip", "special"]));
    added.push(token("<both>", &["lstrip", "rstrip"]));
    added.push(token("   ", &[]));
    added.push(token("Hello", &["normalized"]));
    added.push(token("</S>", &["normalized", "single_word"]));
    let changes =
        json!({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFD"}]}});
    family("odd", byte_level(), &added, CHATML, changes)
}

/// A token that counts only as a word of its own: texts are not cut.
fn single_word() -> Family {
    let mut added = specials(&["<|im_start|>", "<|im_end|>"]);
    added.push(token("user", &["single_word"]));
    Family { cuts: false, ..family("single word", byte_level(), &added, CHATML, json!({})) }
}

/// A tokenizer with the tokens and the changes given, and its template.
fn family(name: &'static str, base: Value, added: &[Value], template: &str, changes: Value) -> Family {
    let mut tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null});
    tokenizer["model"] = base;
    if tokenizer["model"]["vocab"].get("Ġ").is_some() {
        tokenizer["pre_tokenizer"] =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    }
    let Value::Object(changes) = changes else { panic!("{name}: an object of changes") };
    for (key, value) in changes {
        tokenizer[key] = value;
    }
    let mut free = 5000;
    let vocabulary = tokenizer["model"]["vocab"].clone();
    let id_of = |content: &Value| {
        let entries = vocabulary.as_array().into_iter().flatten();
        let listed = entries.into_iter().position(|entry| entry[0] == *content).map(|at| at as u64);
        listed.or_else(|| vocabulary.get(content.as_str().unwrap())?.as_u64())
    };
    let numbered = added.iter().map(|token| {
        let mut token = token.clone();
        token["id"] = json!(id_of(&token["content"]).unwrap_or_else(|| {
            free += 1;
            free
        }));
        token
    });
    tokenizer["added_tokens"] = numbered.collect();
    let text = tokenizer.to_string();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokenizer.json");
    std::fs::write(&path, text).unwrap();
    let template_path = directory.path().join("chat_template.jinja");
    std::fs::write(template_path, template).unwrap();
    let encoder = Encoder::load(directory.path(), None).unwrap_or_else(|error| panic!("{name}: {error}"));
    let specials = added.iter().map(|token| token["content"].as_str().unwrap().to_owned()).collect();
    let strips = added.iter().any(|token| token["lstrip"] == true || token["rstrip"] == true);
    Family { name, encoder, specials, cuts: true, strips }
}

/// An added token with the marks named.
fn token(content: &str, marks: &[&str]) -> Value {
    let mut token = json!({"id": 0, "content": content});
    for mark in ["single_word", "lstrip", "rstrip", "normalized", "special"] {
        token[mark] = json!(marks.contains(&mark));
    }
    token
}

fn specials(names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| token(name, &["special"])).collect()
}

/// A template post-processor that puts tokens around the text.
fn around(before: &[&str], after: &[&str]) -> Value {
    let special = |name: &&str| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let text = || json!({"Sequence": {"id": "A", "type_id": 0}});
    let single: Vec<_> =
        before.iter().map(special).chain([text()]).chain(after.iter().map(special)).collect();
    let ids = before.iter().chain(after);
    let tokens: Map<_, _> = (7000..)
        .zip(ids)
        .map(|(id, name)| ((*name).to_owned(), json!({"id": name, "ids": [id], "tokens": [name]})))
        .collect();
    let pair = json!([text(), {"Sequence": {"id": "B", "type_id": 1}}]);
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens})
}

fn legacy() -> Value {
    json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]})
}

fn words(regex: &str) -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]})
}

/// The tiny tokenizer's model.
fn byte_level() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/tokenizer.json");
    let tiny: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    tiny["model"].clone()
}

/// What the tiny tokenizer knows in plain text, with SentencePiece's mark for spaces: pieces, and pairs that merge.
fn spaced_vocabulary() -> (Vec<String>, Vec<(String, String)>) {
    let tiny = byte_level();
    let spaced = |piece: &str| -> Option<String> {
        let plain = |character| match character {
            'Ġ' => Some('▁'),
            'Ċ' => Some('\n'),
            character => Some(character).filter(char::is_ascii),
        };
        piece.chars().map(plain).collect()
    };
    let vocabulary = tiny["vocab"].as_object().unwrap();
    let pieces = vocabulary.keys().filter(|piece| !piece.starts_with("<|")).filter_map(|piece| spaced(piece));
    let merges =
        tiny["merges"].as_array().unwrap().iter().filter_map(|pair| {
            Some((spaced(pair[0].as_str().unwrap())?, spaced(pair[1].as_str().unwrap())?))
        });
    (pieces.collect(), merges.collect())
}

/// A byte-pair model over characters, as SentencePiece makes them, which falls back to bytes.
fn spaced() -> Value {
    let (pieces, merges) = spaced_vocabulary();
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let all = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter().chain(bytes).chain(pieces);
    let vocabulary: Map<_, _> = all.enumerate().map(|(id, piece)| (piece, json!(id))).collect();
    json!({"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
        "vocab": vocabulary, "merges": merges.iter().map(|(left, right)| json!([left, right])).collect::<Vec<_>>()})
}
