//! `kvroute config show`.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use serde_json::{Value, json};

use super::ask;
use crate::{
    cli::{Outcome, frontend::FrontendCommand, print, router::build},
    config::{
        ConfigFile, FlagOrigins, FrontendArgs, FrontendPlan, ModelEntry, Origin,
        flags::{Settings, Status, Warning, row},
    },
    fleet::{WorkerSpec, base_url, without_user},
    frontend::{ApiKeys, FrontendSettings, PrefillFallback, QueueTurns},
    tls::Identity,
};

/// Flags of `kvroute config show`.
#[derive(Args, Debug)]
pub(super) struct ShowCommand {
    /// Worker set to show, by its address or its model, of the frontend at --admin
    #[arg(long, value_name = "NAME", help_heading = ASKING)]
    set: Option<String>,
    /// Ask the frontend whose admin listener is at this URL, and show all its worker sets unless --set names one; its
    /// token is in --admin-token-file [default: http://127.0.0.1:9091]
    #[arg(long, value_name = "URL", help_heading = ASKING)]
    admin: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    // Before the flags that it is about, which are taken out of what it looks at.
    #[command(flatten)]
    origins: FlagOrigins,
    #[command(flatten)]
    frontend: FrontendCommand,
}

const ASKING: &str = "A running frontend";

/// A setting, its value and where that came from.
struct Line {
    name: &'static str,
    value: String,
    from: String,
}

/// All there is to show.
struct Shown {
    frontend: Vec<Line>,
    router: Vec<Line>,
    warnings: Vec<Warning>,
    models: Vec<ModelEntry>,
    workers: Vec<WorkerSpec>,
}

impl ShowCommand {
    pub(super) async fn run(self) -> Outcome {
        if self.set.is_some() || self.admin.is_some() {
            let url = self.admin.as_deref().unwrap_or("http://127.0.0.1:9091");
            let url = base_url(url).ok_or_else(|| {
                format!("--admin {}: accepted is http://HOST:PORT or https://HOST:PORT", without_user(url))
            })?;
            let token = self.frontend.frontend.admin_token_file.as_deref();
            return ask::show(&url, token, self.set.as_deref(), self.json).await;
        }
        let json = self.json;
        let shown = self.shown()?;
        print(&if json { format!("{:#}\n", shown.json()) } else { shown.text() })
    }

    fn shown(self) -> Result<Shown, Box<dyn std::error::Error + Send + Sync>> {
        let FrontendCommand { file, worker, frontend, router } = self.frontend;
        let file = file.config.as_deref().map(ConfigFile::read).transpose()?;
        let built = build(&router, file.as_ref().map(ConfigFile::router_section))?;
        let flags = built.of_the_frontend();
        let (path, below) = file
            .as_ref()
            .map(|file| (file.path.display().to_string(), file.frontend.clone()))
            .unwrap_or_default();
        let token_file = frontend.admin_token_file.clone().or_else(|| below.admin_token_file.clone());
        let worker_key = frontend.worker_api_key_file.clone().or_else(|| below.worker_api_key_file.clone());
        let snapshot_token = &frontend.index_snapshot_token_file;
        let snapshot_token = snapshot_token.clone().or_else(|| below.index_snapshot_token_file.clone());
        let plan = frontend.plan(built.config, &worker, file)?.with(flags)?;
        let FrontendPlan { settings, models, workers, .. } = plan;
        let named = |path: Option<PathBuf>| {
            path.map_or_else(|| "unset".to_owned(), |path| path.display().to_string())
        };
        let files = [token_file, worker_key, snapshot_token].map(named);
        let lines = values(&settings, &below, files).into_iter().map(|(name, value, filed)| {
            let from = match self.origins.get(&name.replace('-', "_")) {
                Some(Origin::Flag) => format!("--{name}"),
                Some(Origin::Variable(variable)) => variable.clone(),
                None if filed => path.clone(),
                None => "default".to_owned(),
            };
            Line { name, value, from }
        });
        Ok(Shown {
            frontend: lines.collect(),
            router: router_lines(&built.settings),
            warnings: built.warnings,
            models,
            workers,
        })
    }
}

/// The settings of the frontend, each with whether the file says something of it.
fn values(
    settings: &FrontendSettings,
    below: &FrontendArgs,
    [token_file, worker_key, snapshot_token]: [String; 3],
) -> Vec<(&'static str, String, bool)> {
    let (upstream, tokenizer) = (&settings.upstream, &settings.tokenizer);
    let fallback = match settings.prefill_fallback {
        PrefillFallback::None => "none",
        PrefillFallback::Decode => "decode",
    };
    let turns = match settings.queue_turns {
        QueueTurns::None => "none",
        QueueTurns::Tenant => "tenant",
    };
    let token_limit =
        settings.queue_token_limit.map_or_else(|| "unset".to_owned(), |limit| limit.to_string());
    let memory_limit =
        settings.index_memory_limit.map_or_else(|| "unset".to_owned(), |limit| limit.to_string());
    let unset = || "unset".to_owned();
    let count = |limit: Option<usize>| limit.map_or_else(unset, |limit| limit.to_string());
    let file = |path: Option<&Path>| path.map_or_else(unset, |path| path.display().to_string());
    let certificate = |of: Option<&Arc<Identity>>| file(of.map(|of| of.certificate()));
    let key = |of: Option<&Arc<Identity>>| file(of.map(|of| of.key()));
    let (tls, admin_tls) = (settings.tls.as_ref(), settings.admin_tls.as_ref());
    let client = upstream.tls.identity();
    let access_log = settings.access_log.as_ref().map_or_else(unset, ToString::to_string);
    let otlp_endpoint = settings.otlp_endpoint.as_ref().map_or_else(unset, ToString::to_string);
    let snapshot_from = &settings.index_snapshot_from;
    let snapshot_from = snapshot_from.as_ref().map_or_else(|| "unset".to_owned(), |of| of.url.to_string());
    let decision_log = settings.decision_log.as_ref().map_or_else(|| "unset".to_owned(), ToString::to_string);
    vec![
        ("host", settings.public.ip().to_string(), below.host.is_some()),
        ("port", settings.public.port().to_string(), below.port.is_some()),
        ("admin-host", settings.admin.ip().to_string(), below.admin_host.is_some()),
        ("admin-port", settings.admin.port().to_string(), below.admin_port.is_some()),
        ("admin-token-file", token_file, below.admin_token_file.is_some()),
        ("admin-tls-cert", certificate(admin_tls), below.admin_tls_cert.is_some()),
        ("admin-tls-key", key(admin_tls), below.admin_tls_key.is_some()),
        (
            "api-keys-file",
            file(settings.api_keys.as_deref().map(ApiKeys::path)),
            below.api_keys_file.is_some(),
        ),
        ("tls-cert", certificate(tls), below.tls_cert.is_some()),
        ("tls-key", key(tls), below.tls_key.is_some()),
        ("worker-ca", file(upstream.tls.ca()), below.worker_ca.is_some()),
        ("worker-client-cert", certificate(client), below.worker_client_cert.is_some()),
        ("worker-client-key", key(client), below.worker_client_key.is_some()),
        ("worker-api-key-file", worker_key, below.worker_api_key_file.is_some()),
        ("max-header-bytes", settings.max_header_bytes.to_string(), below.max_header_bytes.is_some()),
        (
            "max-concurrent-requests",
            count(settings.max_concurrent_requests),
            below.max_concurrent_requests.is_some(),
        ),
        ("max-connections", count(settings.max_connections), below.max_connections.is_some()),
        (
            "request-read-timeout",
            settings.read_timeout.as_secs().to_string(),
            below.request_read_timeout.is_some(),
        ),
        ("access-log", access_log, below.access_log.is_some()),
        ("otlp-endpoint", otlp_endpoint, below.otlp_endpoint.is_some()),
        ("max-body-bytes", settings.max_body_bytes.to_string(), below.max_body_bytes.is_some()),
        ("drain-timeout", settings.drain_timeout.as_secs().to_string(), below.drain_timeout.is_some()),
        (
            "connect-timeout-ms",
            upstream.connect_timeout.as_millis().to_string(),
            below.connect_timeout_ms.is_some(),
        ),
        (
            "first-byte-timeout",
            upstream.first_byte_timeout.as_secs().to_string(),
            below.first_byte_timeout.is_some(),
        ),
        ("idle-timeout", upstream.idle_timeout.as_secs().to_string(), below.idle_timeout.is_some()),
        ("total-timeout", settings.total_timeout.as_secs().to_string(), below.total_timeout.is_some()),
        ("on-config-mismatch", settings.on_config_mismatch.to_string(), below.on_config_mismatch.is_some()),
        ("admission-check", settings.admission_check.name().to_owned(), below.admission_check.is_some()),
        ("retries", settings.retries.to_string(), below.retries.is_some()),
        ("retry-budget", settings.retry_budget.share.to_string(), below.retry_budget.is_some()),
        ("retry-floor", settings.retry_budget.per_second.to_string(), below.retry_floor.is_some()),
        ("prefill-fallback", fallback.to_owned(), below.prefill_fallback.is_some()),
        ("queue-limit", settings.queue_limit.to_string(), below.queue_limit.is_some()),
        ("queue-token-limit", token_limit, below.queue_token_limit.is_some()),
        ("queue-turns", turns.to_owned(), below.queue_turns.is_some()),
        ("overload-status", settings.overload_status.as_u16().to_string(), below.overload_status.is_some()),
        ("inhibition", settings.inhibition.as_secs().to_string(), below.inhibition.is_some()),
        (
            "health-check-interval",
            settings.health_check_interval.as_secs().to_string(),
            below.health_check_interval.is_some(),
        ),
        ("slow-start", settings.slow_start.as_secs().to_string(), below.slow_start.is_some()),
        ("index-memory-limit", memory_limit, below.index_memory_limit.is_some()),
        ("concurrent-replays", settings.concurrent_replays.to_string(), below.concurrent_replays.is_some()),
        ("index-snapshot-from", snapshot_from, below.index_snapshot_from.is_some()),
        ("index-snapshot-token-file", snapshot_token, below.index_snapshot_token_file.is_some()),
        ("tokenizer-cache-bytes", tokenizer.cache_bytes.to_string(), below.tokenizer_cache_bytes.is_some()),
        ("tokenizer-threads", tokenizer.threads.to_string(), below.tokenizer_threads.is_some()),
        ("tokenizer-queue-limit", tokenizer.queue_limit.to_string(), below.tokenizer_queue_limit.is_some()),
        ("decision-log", decision_log, below.decision_log.is_some()),
        ("hash-device", settings.accelerator.device.to_string(), below.hash_device.is_some()),
    ]
}

/// The router settings that this version does.
fn router_lines(settings: &Settings) -> Vec<Line> {
    let works = settings.iter().filter(|setting| row(setting.field).status == Status::Works);
    works
        .map(|setting| Line {
            name: row(setting.field).flag,
            value: setting.value.to_string(),
            from: setting.source.to_string(),
        })
        .collect()
}

impl Shown {
    fn json(&self) -> Value {
        let lines = |lines: &[Line]| -> Vec<_> {
            let object = |line: &Line| json!({ "name": line.name, "value": line.value, "from": line.from });
            lines.iter().map(object).collect()
        };
        let models: Vec<_> = self
            .models
            .iter()
            .map(|entry| {
                json!({
                    "name": entry.name,
                    "tokenizer": entry.tokenizer,
                    "chat_template": entry.chat_template,
                })
            })
            .collect();
        let warnings: Vec<_> = self.warnings.iter().map(ToString::to_string).collect();
        json!({
            "frontend": lines(&self.frontend),
            "router": lines(&self.router),
            "models": models,
            "workers": self.workers,
            "warnings": warnings,
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        for (title, lines) in [("frontend", &self.frontend), ("router", &self.router)] {
            let _ = writeln!(text, "{title}");
            for Line { name, value, from } in lines {
                let _ = writeln!(text, "  {name:<36} {value:<16} {from}");
            }
        }
        let _ = writeln!(text, "models");
        for entry in &self.models {
            let _ = writeln!(text, "  {:<36} {}", entry.name, entry.tokenizer.display());
        }
        let _ = writeln!(text, "workers");
        for worker in &self.workers {
            let _ = writeln!(text, "  {:<36} {}", worker.url, worker.model);
        }
        for warning in &self.warnings {
            let _ = writeln!(text, "warning: {warning}");
        }
        text
    }
}
