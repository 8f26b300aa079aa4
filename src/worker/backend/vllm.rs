//! vLLM, as of 0.32.

use serde_json::Value;

use super::{
    ArgumentError, EngineArguments, Options,
    options::{embeds, source},
};
use crate::worker::facts::{Facts, KvEvents, Stated};

pub(super) fn read(options: &Options<'_>) -> Result<EngineArguments, ArgumentError> {
    let leading = options.leading().map(|model| Stated::new(model.to_owned(), source("model_tag")));
    let model = options.text(&["--served-model-name"])?.or(leading).or(options.text(&["--model"])?);
    let (first_rank, ranks) = ranks(options)?;
    let pooling = options.text(&["--runner"])?.filter(|runner| runner.value == "pooling");
    let mut events = options.kv_events(publishes)?;
    if let Some(switch) = options.has("--no-enable-prefix-caching") {
        // Without a prefix cache no block is ever stored.
        events = Some(Stated::new(KvEvents::Silent, source(switch)));
    }
    Ok(EngineArguments {
        host: options.text(&["--host"])?.map(|host| host.value),
        port: options.number(&["--port"])?.map(|port| port.value),
        facts: Facts {
            model,
            block_size: options.number(&["--block-size"])?,
            first_rank,
            ranks,
            model_type: embeds(pooling.map(|_| "--runner")),
            max_num_batched_tokens: batch(options)?,
            events,
            ..Facts::default()
        },
    })
}

/// vLLM also reads `8k` and the like, which is left to it: what is not known then is how busy its prefill is.
fn batch(options: &Options<'_>) -> Result<Option<Stated<u64>>, ArgumentError> {
    let given = options.text(&["--max-num-batched-tokens"])?;
    Ok(given.and_then(|given| Some(Stated::new(given.value.parse().ok()?, given.by))))
}

/// A publisher without a name is ZMQ once events are switched on.
fn publishes(config: &Value) -> bool {
    config["enable_kv_cache_events"] == true && matches!(config["publisher"].as_str(), None | Some("zmq"))
}

type Rank = Option<Stated<u32>>;

/// The ranks behind this process's URL: all of them, or its own where another process balances between them.
fn ranks(options: &Options<'_>) -> Result<(Rank, Rank), ArgumentError> {
    let own: Rank = options.number(&["--data-parallel-rank", "-dpn"])?;
    if let Some(own) = own {
        let one = Stated::new(1, own.by.clone());
        return Ok((Some(own), Some(one)));
    }
    let first = options.number(&["--data-parallel-start-rank", "-dpr"])?;
    let local = options.number(&["--data-parallel-size-local", "-dpl"])?;
    let hybrid = options.has("--data-parallel-hybrid-lb").or(options.has("-dph")).is_some();
    if hybrid && local.is_some() {
        return Ok((first, local));
    }
    Ok((None, options.number(&["--data-parallel-size", "-dp"])?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fleet::StreamDirection, worker::backend::options::words};

    fn facts(line: &str) -> Facts {
        read(&Options::parse(&words(line))).unwrap().facts
    }

    #[test]
    fn the_served_name_wins_over_the_model() {
        let model = |line: &str| facts(line).model.map(|model| (model.value, model.by));
        let from = |name: &str, by: &str| Some((name.to_owned(), format!("engine argument {by}")));
        assert_eq!(model("--model a/b"), from("a/b", "--model"));
        assert_eq!(model("serve a/b --port 1"), from("a/b", "model_tag"));
        assert_eq!(model("a/b --served_model_name n m --port 1"), from("n", "--served_model_name"));
        assert_eq!(model("--port 1"), None);
    }

    #[test]
    fn the_size_of_a_batch_is_read_where_it_is_a_plain_number() {
        let batch = |line: &str| facts(line).max_num_batched_tokens.map(|batch| batch.value);
        assert_eq!(batch("m --max-num-batched-tokens 4096"), Some(4096));
        assert_eq!(batch("m --max-num-batched-tokens=8k"), None);
        assert_eq!(batch("m"), None);
    }

    #[test]
    fn events_are_where_the_configuration_says() {
        let events = |line: &str| facts(line).events.map(|events| events.value);
        let published = |endpoint: &str, replay: Option<&str>, direction| {
            let (endpoint, replay) = (endpoint.to_owned(), replay.map(str::to_owned));
            Some(KvEvents::Published { endpoint, replay, direction })
        };
        let on = r#"--kv-events-config {"enable_kv_cache_events":true,"publisher":"zmq"}"#;
        assert_eq!(events(on), published("tcp://*:5557", None, StreamDirection::Connect));
        let all = r#"--kv-events-config={"enable_kv_cache_events":true,"endpoint":"tcp://h:1","replay_endpoint":"tcp://*:2"}"#;
        assert_eq!(events(all), published("tcp://h:1", Some("tcp://*:2"), StreamDirection::Bind));
        let keys = "--kv-events-config.enable_kv_cache_events true --kv-events-config.endpoint tcp://*:9";
        assert_eq!(events(keys), published("tcp://*:9", None, StreamDirection::Connect));
        let off = r#"--kv-events-config {"enable_kv_cache_events":false,"endpoint":"tcp://*:1"}"#;
        assert_eq!(events(off), Some(KvEvents::Silent));
        assert_eq!(events(&format!("{on} --no-enable-prefix-caching")), Some(KvEvents::Silent));
        assert_eq!(events("--port 1"), None);
        let broken = read(&Options::parse(&words("--kv-events-config {")));
        assert!(broken.unwrap_err().to_string().contains("--kv-events-config: '{' is not JSON"));
    }

    #[test]
    fn a_pooling_model_embeds() {
        let model_type = |line: &str| facts(line).model_type.map(|known| known.value.to_string());
        assert_eq!(model_type("--runner pooling").as_deref(), Some("embedding"));
        assert_eq!(model_type("--runner generate"), None);
        assert_eq!(model_type(""), None);
    }

    #[test]
    fn ranks_are_those_behind_this_process() {
        let ranks = |line: &str| {
            let facts = facts(line);
            (facts.first_rank.map(|first| first.value), facts.ranks.map(|ranks| ranks.value))
        };
        assert_eq!(ranks("--data-parallel-size 4"), (None, Some(4)));
        assert_eq!(ranks("-dp 4 -dpn 2"), (Some(2), Some(1)));
        assert_eq!(ranks("-dp 4 -dpl 2 -dpr 2 --data-parallel-hybrid-lb"), (Some(2), Some(2)));
        assert_eq!(ranks("-dp 4 -dpl 2"), (None, Some(4)));
    }
}
