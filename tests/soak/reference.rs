//! What an engine says to a request that nobody disturbs: what a mock engine says depends on the prompt and the seed alone.

use kvroute::worker::mock::{MockEngine, MockSettings};
use serde_json::Value;

use crate::rig::{Answer, Http, engine_settings, pools::CHAT};

/// An engine that takes no time, follows no router and is never killed.
pub(crate) struct Reference {
    engine: MockEngine,
    client: Http,
}

/// What a complete answer says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Expected {
    pub(crate) text: String,
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
}

impl Reference {
    pub(crate) async fn start() -> Self {
        let settings = MockSettings {
            speedup: f64::INFINITY,
            events: None,
            replay: None,
            max_model_len: crate::world::CONTEXT,
            num_gpu_blocks: crate::world::CONTEXT / 16 + 1024,
            ..engine_settings()
        };
        Self { engine: MockEngine::start(settings).await.unwrap(), client: Http::new() }
    }

    /// What is to come of `body` at `path`, streamed or not.
    pub(crate) async fn expect(&self, path: &str, body: &Value) -> Expected {
        let mut body = body.clone();
        let fields = body.as_object_mut().unwrap();
        fields.remove("stream");
        fields.remove("stream_options");
        let answer = self.client.post(&format!("http://{}{path}", self.engine.http_addr()), &body).await;
        assert_eq!(answer.status, 200, "the reference engine: {}", answer.text);
        Expected::of(path, &answer)
    }
}

impl Expected {
    fn of(path: &str, answer: &Answer) -> Self {
        let choice = &answer.json["choices"][0];
        let text = if path == CHAT { &choice["message"]["content"] } else { &choice["text"] };
        let usage = &answer.json["usage"];
        Self {
            text: text.as_str().unwrap().to_owned(),
            prompt_tokens: usage["prompt_tokens"].as_u64().unwrap(),
            completion_tokens: usage["completion_tokens"].as_u64().unwrap(),
        }
    }
}
