//! `/metrics`, with vLLM's names and labels.

use std::fmt::Write;

use super::settings::MockSettings;
use super::stats::Stats;

/// The share of the usable blocks that running requests hold, 0 to 1.
pub(super) fn cache_usage(settings: &MockSettings, stats: &Stats) -> f64 {
    stats.used_blocks.get() as f64 / f64::from(settings.num_gpu_blocks.saturating_sub(1).max(1))
}

/// The text exposition. A subset of vLLM's metrics: those that routers and autoscalers read. `started`: when the engine was, in seconds
/// since the epoch.
pub(super) fn render(settings: &MockSettings, stats: &Stats, started: f64) -> String {
    let mut text = Exposition { out: String::with_capacity(8192), settings };
    let _ = writeln!(
        text.out,
        "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.\n\
         # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {started:?}"
    );
    text.gauge("num_requests_running", "Number of requests in model execution batches.");
    text.sample("num_requests_running", &[], stats.running.get() as f64);
    text.gauge("num_requests_waiting", "Number of requests waiting to be processed.");
    text.sample("num_requests_waiting", &[], stats.waiting.get() as f64);
    text.gauge("num_requests_waiting_by_reason", "Number of waiting requests by reason.");
    text.sample("num_requests_waiting_by_reason", &[("reason", "capacity")], stats.waiting.get() as f64);
    text.sample("num_requests_waiting_by_reason", &[("reason", "deferred")], 0.0);
    text.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.");
    text.sample("kv_cache_usage_perc", &[], cache_usage(settings, stats));

    let cached = stats.cached_prompt_tokens.get();
    let computed = stats.prompt_tokens.get() - cached;
    let counters = [
        ("prefix_cache_queries", "Prefix cache queries, in tokens.", stats.queried_tokens.get()),
        ("prefix_cache_hits", "Prefix cache hits, in tokens.", stats.hit_tokens.get()),
        ("num_preemptions", "Preemptions so far.", stats.preemptions.get()),
        ("prompt_tokens", "Prefill tokens processed.", stats.prompt_tokens.get()),
        ("prompt_tokens_cached", "Prompt tokens found in the cache.", cached),
        ("generation_tokens", "Generation tokens processed.", stats.generated_tokens.get()),
    ];
    for (name, help, value) in counters {
        text.counter(name, help);
        text.sample(&format!("{name}_total"), &[], value as f64);
    }
    text.counter("prompt_tokens_by_source", "Prompt tokens by source.");
    for (source, value) in
        [("local_compute", computed), ("local_cache_hit", cached), ("external_kv_transfer", 0)]
    {
        text.sample("prompt_tokens_by_source_total", &[("source", source)], value as f64);
    }
    text.counter("request_success", "Requests processed, by how they ended.");
    let ends = [
        ("stop", stats.finished_stop.get()),
        ("length", stats.finished_length.get()),
        ("abort", stats.finished_abort.get()),
        ("error", 0),
    ];
    for (reason, value) in ends {
        text.sample("request_success_total", &[("finished_reason", reason)], value as f64);
    }
    text.cache_config();
    text.adapters();
    text.out
}

struct Exposition<'a> {
    out: String,
    settings: &'a MockSettings,
}

impl Exposition<'_> {
    fn gauge(&mut self, name: &str, help: &str) {
        // Writing to a String cannot fail; this holds for every write here.
        let _ = writeln!(self.out, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} gauge");
    }

    fn counter(&mut self, name: &str, help: &str) {
        let _ = writeln!(self.out, "# HELP vllm:{name}_total {help}\n# TYPE vllm:{name}_total counter");
    }

    /// Labels come sorted by name, as Prometheus' own client writes them.
    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let mut all = vec![("engine", "0"), ("model_name", self.settings.model.as_str())];
        all.extend_from_slice(labels);
        self.line(name, all, value);
    }

    fn line(&mut self, name: &str, mut labels: Vec<(&str, &str)>, value: f64) {
        labels.sort_unstable();
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
        let _ = writeln!(self.out, "vllm:{name}{{{}}} {value:?}", labels.join(","));
    }

    fn cache_config(&mut self) {
        let settings = self.settings;
        let block_size = settings.block_size.to_string();
        let blocks = settings.num_gpu_blocks.to_string();
        let tokens = (u64::from(settings.num_gpu_blocks) * u64::from(settings.block_size)).to_string();
        self.gauge("cache_config_info", "Information of the LLMEngine CacheConfig");
        let labels = vec![
            ("engine", "0"),
            ("block_size", block_size.as_str()),
            ("cache_dtype", "auto"),
            ("enable_prefix_caching", "True"),
            ("gpu_memory_utilization", "0.92"),
            ("kv_cache_size_tokens", tokens.as_str()),
            ("num_cpu_blocks", "None"),
            ("num_gpu_blocks", blocks.as_str()),
            ("num_gpu_blocks_override", "None"),
            ("prefix_caching_hash_algo", "sha256"),
            ("sliding_window", "None"),
        ];
        self.line("cache_config_info", labels, 1.0);
    }

    /// vLLM names the adapters that run or wait; the mock does not tell them apart and names none of them.
    fn adapters(&mut self) {
        if self.settings.loras.is_empty() {
            return;
        }
        self.gauge("lora_requests_info", "Running stats on lora requests.");
        let max = self.settings.loras.len().to_string();
        let labels =
            vec![("max_lora", max.as_str()), ("running_lora_adapters", ""), ("waiting_lora_adapters", "")];
        self.line("lora_requests_info", labels, 1.0);
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
