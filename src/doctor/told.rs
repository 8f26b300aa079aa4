//! An engine's answers, read. What does not read counts as not told.

use serde_json::Value;

use super::evidence::{Served, Source, Told};

pub(super) fn read_models(answer: &Value, told: &mut Told) {
    for model in answer["data"].as_array().into_iter().flatten() {
        let Some(id) = model["id"].as_str() else { continue };
        let is_adapter = model["parent"].is_string();
        let root = model["root"].as_str().map(str::to_owned);
        told.models.push(Served { id: id.to_owned(), is_adapter, root });
        if !is_adapter && told.max_model_len.is_none() {
            told.max_model_len = model["max_model_len"].as_u64().filter(|&tokens| tokens > 0);
        }
    }
}

/// vLLM: an object with an entry for each rank.
pub(super) fn read_sources(answer: &Value) -> Option<Vec<Source>> {
    let entries = answer.as_object()?.iter().filter_map(|(rank, source)| {
        Some(Source {
            rank: rank.parse().ok()?,
            endpoint: source["endpoint"].as_str()?.to_owned(),
            replay: source["replay_endpoint"].as_str().map(str::to_owned),
        })
    });
    let mut sources: Vec<_> = entries.collect();
    sources.sort_by_key(|source| source.rank);
    Some(sources)
}

/// vLLM's page: the block size is a label, and every engine has series of its own.
pub(super) fn read_metrics(page: &str, told: &mut Told) {
    let series = page.lines().filter(|line| line.starts_with("vllm:"));
    let config = series.clone().find_map(|line| line.strip_prefix("vllm:cache_config_info{"));
    told.block_size = config.and_then(|labels| label(labels, "block_size")?.parse().ok());
    told.hash_algorithm =
        config.and_then(|labels| label(labels, "prefix_caching_hash_algo")).map(str::to_owned);
    let running = series.filter_map(|line| line.strip_prefix("vllm:num_requests_running{"));
    let mut engines: Vec<_> = running.filter_map(|labels| label(labels, "engine")).collect();
    engines.sort_unstable();
    engines.dedup();
    told.engines = u32::try_from(engines.len()).ok().filter(|&count| count > 0);
}

/// The value of a label; one whose name merely ends alike is another.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = labels;
    loop {
        let (before, after) = rest.split_once(&format!("{name}=\""))?;
        if before.is_empty() || before.ends_with(',') {
            return after.split('"').next();
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn models_sources_and_labels_are_read() {
        let mut told = Told::default();
        let models = json!({"data": [{"id": "a", "parent": "m", "root": "/a"}, {"id": "m", "parent": null, "max_model_len": 7}]});
        read_models(&models, &mut told);
        let served = [("a", true, Some("/a")), ("m", false, None)];
        let served = served.map(|(id, is_adapter, root)| Served {
            id: id.into(),
            is_adapter,
            root: root.map(str::to_owned),
        });
        assert_eq!((told.models.as_slice(), told.max_model_len), (&served[..], Some(7)));
        let mut silent = Told::default();
        read_models(&json!({"data": [{"id": "m", "max_model_len": 0}]}), &mut silent);
        assert_eq!(silent.max_model_len, None);
        let sources =
            read_sources(&json!({"1": {"endpoint": "b"}, "0": {"endpoint": "a", "replay_endpoint": "r"}}));
        let sources = sources.unwrap();
        assert_eq!((sources[0].rank, sources[0].replay.as_deref(), sources[1].rank), (0, Some("r"), 1));
        assert_eq!(read_sources(&json!({})), Some(Vec::new()));
        assert_eq!(read_sources(&json!(null)), None);
        let page = "vllm:cache_config_info{mamba_block_size=\"8\",block_size=\"32\",prefix_caching_hash_algo=\"sha256\"} 1.0\n\
                    vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 0.0\n\
                    vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 0.0\n";
        read_metrics(page, &mut told);
        assert_eq!((told.block_size, told.engines), (Some(32), Some(2)));
        assert_eq!(told.hash_algorithm.as_deref(), Some("sha256"));
    }
}
