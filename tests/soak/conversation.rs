//! What users say: short and long prompts, and conversations that grow with every answer.

use fastrand::Rng;
use serde_json::{Value, json};

use crate::rig::{
    MODEL,
    pools::{CHAT, COMPLETIONS},
    prose,
};

/// One conversation after another.
pub(crate) struct Conversation {
    messages: Vec<Value>,
    turns_left: u32,
}

/// A request, and how it is asked for.
pub(crate) struct Asked {
    pub(crate) path: &'static str,
    pub(crate) body: Value,
    pub(crate) streams: bool,
}

/// System prompts that conversations have in common.
const SYSTEM_PROMPTS: u64 = 6;

impl Conversation {
    pub(crate) const fn new() -> Self {
        Self { messages: Vec::new(), turns_left: 0 }
    }

    /// What the user says next.
    pub(crate) fn next(&mut self, rng: &mut Rng) -> Asked {
        if self.turns_left == 0 {
            self.turns_left = rng.u32(1..=8);
            // One in eight begins with a long document.
            let words = if rng.u8(..8) == 0 { rng.usize(1500..3000) } else { rng.usize(10..200) };
            let (system, first) = (prose(rng.u64(..SYSTEM_PROMPTS), 150), prose(rng.u64(..), words));
            self.messages = vec![said("system", &system), said("user", &first)];
        } else {
            self.messages.push(said("user", &prose(rng.u64(..), rng.usize(5..60))));
        }
        self.turns_left -= 1;
        let streams = rng.bool();
        let mut body = json!({
            "model": MODEL,
            "max_tokens": if rng.u8(..5) == 0 { rng.u32(60..200) } else { rng.u32(1..40) },
            "seed": rng.u32(..1000),
        });
        if streams {
            body["stream"] = json!(true);
            body["stream_options"] = json!({ "include_usage": true });
        }
        let path = if rng.u8(..4) == 0 { COMPLETIONS } else { CHAT };
        if path == CHAT {
            body["messages"] = json!(self.messages);
        } else {
            let texts: Vec<_> =
                self.messages.iter().map(|message| message["content"].as_str().unwrap()).collect();
            body["prompt"] = json!(texts.join("\n"));
        }
        Asked { path, body, streams }
    }

    /// What the engine said, to whatever it was asked last.
    pub(crate) fn answered(&mut self, text: &str) {
        self.messages.push(said("assistant", text));
    }
}

fn said(role: &str, text: &str) -> Value {
    json!({ "role": role, "content": text })
}
