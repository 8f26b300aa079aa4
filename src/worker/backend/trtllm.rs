//! TensorRT-LLM's `trtllm-serve`.
//!
//! Its block size is in a file of its own (`tokens_per_block`), and its KV events are fetched over HTTP, which the
//! router does not do: its cache is guessed unless a bridge publishes them over ZMQ.

use super::{ArgumentError, EngineArguments, Options, options::source};
use crate::worker::facts::{Facts, KvEvents, Stated};

pub(super) fn read(options: &Options<'_>) -> Result<EngineArguments, ArgumentError> {
    let leading = options.leading().map(|model| Stated::new(model.to_owned(), source("model")));
    Ok(EngineArguments {
        host: options.text(&["--host"])?.map(|host| host.value),
        port: options.number(&["--port"])?.map(|port| port.value),
        facts: Facts {
            model: options.text(&["--served-model-name"])?.or(leading),
            events: Some(Stated::new(KvEvents::Silent, "trtllm")),
            ..Facts::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::backend::options::words;

    #[test]
    fn the_model_is_the_word_in_front_or_the_served_name() {
        let model = |line: &str| {
            let facts = read(&Options::parse(&words(line))).unwrap().facts;
            facts.model.map(|model| model.value)
        };
        assert_eq!(model("serve a/b --port 1").as_deref(), Some("a/b"));
        assert_eq!(model("a/b --served_model_name n").as_deref(), Some("n"));
    }
}
