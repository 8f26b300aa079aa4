//! The flags of `kvroute frontend`, and what they become.

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    path::PathBuf,
    time::Duration,
};

use ahash::AHashSet;
use clap::Args;
use http::StatusCode;
use serde::{Deserialize, Deserializer, de::Error as _};

use super::{
    byte_size::ByteSize,
    error::ConfigError,
    file::{ConfigFile, ModelEntry},
    flags::OfTheFrontend,
    protection,
    snapshot_from::{snapshot_source, token},
    workers_flag::{parse_tokenizer, parse_worker},
};
use crate::{
    accel::{AcceleratorSettings, HashDevice},
    fleet::{OnConfigMismatch, RouterConfig, WorkerSpec, without_user},
    frontend::{
        AccessLogTarget, AdmissionCheck, DecisionLogSettings, FrontendSettings, OtlpEndpoint,
        PrefillFallback, QueueTurns, RetryBudget, TokenizerSettings,
    },
};

/// Flags of the frontend as given. The same names, with underscores, are the keys of `[frontend]` in a file.
#[derive(Args, Deserialize, Clone, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct FrontendArgs {
    /// Tokenizer of a model, as a tokenizer.json or the model directory; without MODEL= it is for every model;
    /// repeat it for several models [default: ask the engines]
    #[arg(long, value_name = "[MODEL=]PATH", help_heading = WORKERS)]
    pub tokenizer: Vec<String>,
    /// Address that clients connect to [default: 0.0.0.0]
    #[arg(long, env = "KVROUTE_HOST", value_name = "ADDRESS", help_heading = LISTENERS)]
    pub host: Option<IpAddr>,
    /// Port that clients connect to; 0 takes a free one [default: 8080]
    #[arg(long, env = "KVROUTE_PORT", value_name = "PORT", help_heading = LISTENERS)]
    pub port: Option<u16>,
    /// Address of the admin listener (metrics, explain, worker registration) [default: 127.0.0.1]
    #[arg(long, env = "KVROUTE_ADMIN_HOST", value_name = "ADDRESS", help_heading = LISTENERS)]
    pub admin_host: Option<IpAddr>,
    /// Port of the admin listener; 0 takes a free one [default: 9091]
    #[arg(long, env = "KVROUTE_ADMIN_PORT", value_name = "PORT", help_heading = LISTENERS)]
    pub admin_port: Option<u16>,
    /// File with the token that the admin listener asks for (Authorization: Bearer TOKEN); required when
    /// --admin-host is not a loopback address
    #[arg(long, env = "KVROUTE_ADMIN_TOKEN_FILE", value_name = "FILE", help_heading = LISTENERS)]
    pub admin_token_file: Option<PathBuf>,
    /// File with the keys of clients, one a line; every request then has to show one (Authorization: Bearer KEY)
    #[arg(long, env = "KVROUTE_API_KEYS_FILE", value_name = "FILE", help_heading = LISTENERS)]
    pub api_keys_file: Option<PathBuf>,
    /// Certificate that clients are shown, in PEM, with the intermediate ones behind it: the public listener then speaks TLS
    #[arg(long, env = "KVROUTE_TLS_CERT", value_name = "FILE", help_heading = LISTENERS)]
    pub tls_cert: Option<PathBuf>,
    /// The key to --tls-cert, in PEM
    #[arg(long, env = "KVROUTE_TLS_KEY", value_name = "FILE", help_heading = LISTENERS)]
    pub tls_key: Option<PathBuf>,
    /// The same for the admin listener
    #[arg(long, env = "KVROUTE_ADMIN_TLS_CERT", value_name = "FILE", help_heading = LISTENERS)]
    pub admin_tls_cert: Option<PathBuf>,
    /// The key to --admin-tls-cert
    #[arg(long, env = "KVROUTE_ADMIN_TLS_KEY", value_name = "FILE", help_heading = LISTENERS)]
    pub admin_tls_key: Option<PathBuf>,
    /// Authorities whose certificates count at workers with an https URL, in PEM [default: those that the system trusts]
    #[arg(long, env = "KVROUTE_WORKER_CA", value_name = "FILE", help_heading = WORKERS)]
    pub worker_ca: Option<PathBuf>,
    /// Certificate that workers are shown which ask for one, in PEM
    #[arg(long, env = "KVROUTE_WORKER_CLIENT_CERT", value_name = "FILE", help_heading = WORKERS)]
    pub worker_client_cert: Option<PathBuf>,
    /// The key to --worker-client-cert
    #[arg(long, env = "KVROUTE_WORKER_CLIENT_KEY", value_name = "FILE", help_heading = WORKERS)]
    pub worker_client_key: Option<PathBuf>,
    /// File with the key that workers are shown in place of the client's own (Authorization: Bearer KEY)
    #[arg(long, env = "KVROUTE_WORKER_API_KEY_FILE", value_name = "FILE", help_heading = WORKERS)]
    pub worker_api_key_file: Option<PathBuf>,
    /// Largest request head in bytes; a larger one is answered with 431 [default: 65536]
    #[arg(long, env = "KVROUTE_MAX_HEADER_BYTES", value_name = "BYTES", help_heading = LIMITS)]
    pub max_header_bytes: Option<usize>,
    /// Requests with a body that are served at a time; one beyond is answered with 503 [default: no limit]
    #[arg(long, env = "KVROUTE_MAX_CONCURRENT_REQUESTS", value_name = "N", help_heading = LIMITS)]
    pub max_concurrent_requests: Option<NonZeroUsize>,
    /// Connections that each listener has at a time; more wait [default: no limit]
    #[arg(long, env = "KVROUTE_MAX_CONNECTIONS", value_name = "N", help_heading = LIMITS)]
    pub max_connections: Option<NonZeroUsize>,
    /// Seconds that a TLS handshake, a request's head, the next request on a connection, or a body may take to come; 0 waits
    /// for ever [default: 60]
    #[arg(long, env = "KVROUTE_REQUEST_READ_TIMEOUT", value_name = "SECONDS", help_heading = LIMITS)]
    pub request_read_timeout: Option<u64>,
    /// Largest request body in bytes, 1 or more; a larger one is answered with 413 [default: 20971520]
    #[arg(long, env = "KVROUTE_MAX_BODY_BYTES", value_name = "BYTES", help_heading = LIMITS)]
    pub max_body_bytes: Option<usize>,
    /// Memory that the indexes may use together, as 512MiB, 4GiB or plain bytes; near it, ranks that are matched least hold
    /// no more blocks [default: no limit]
    #[arg(long, env = "KVROUTE_INDEX_MEMORY_LIMIT", value_name = "BYTES", help_heading = LIMITS)]
    pub index_memory_limit: Option<ByteSize>,
    /// Replays of KV events, of all ranks, that run at once; others wait for their turn [default: 16]
    #[arg(long, env = "KVROUTE_CONCURRENT_REPLAYS", value_name = "N", help_heading = LIMITS)]
    pub concurrent_replays: Option<NonZeroUsize>,
    /// Admin listener of a running frontend whose index this one begins with, as http://HOST:PORT or https://HOST:PORT; every rank's engine has to confirm
    /// what it says [default: none]
    #[arg(long, env = "KVROUTE_INDEX_SNAPSHOT_FROM", value_name = "URL", help_heading = WORKERS)]
    pub index_snapshot_from: Option<String>,
    /// File with the token that its admin listener asks for [default: that of --admin-token-file]
    #[arg(long, env = "KVROUTE_INDEX_SNAPSHOT_TOKEN_FILE", value_name = "FILE", help_heading = WORKERS)]
    pub index_snapshot_token_file: Option<PathBuf>,
    /// Seconds that open requests get to finish after SIGTERM or Ctrl-C [default: 30]
    #[arg(long, env = "KVROUTE_DRAIN_TIMEOUT", value_name = "SECONDS", help_heading = LIMITS)]
    pub drain_timeout: Option<u64>,
    /// Milliseconds to wait for a connection to a worker; 0 waits as long as the system does [default: 2000]
    #[arg(long, env = "KVROUTE_CONNECT_TIMEOUT_MS", value_name = "MS", help_heading = LIMITS)]
    pub connect_timeout_ms: Option<u64>,
    /// Seconds from the request to the first byte of the worker's answer; 0 waits for ever [default: 600]
    #[arg(long, env = "KVROUTE_FIRST_BYTE_TIMEOUT", value_name = "SECONDS", help_heading = LIMITS)]
    pub first_byte_timeout: Option<u64>,
    /// Seconds between two pieces of a worker's answer; 0 waits for ever [default: 120]
    #[arg(long, env = "KVROUTE_IDLE_TIMEOUT", value_name = "SECONDS", help_heading = LIMITS)]
    pub idle_timeout: Option<u64>,
    /// Seconds from the request's last byte to the last byte of its answer; 0 is no limit [default: 0]
    #[arg(long, env = "KVROUTE_TOTAL_TIMEOUT", value_name = "SECONDS", help_heading = LIMITS)]
    pub total_timeout: Option<u64>,
    /// What becomes of a worker set whose members' cards differ: stop (it takes no requests until they agree) or
    /// keep-first (those registered first serve until they left, then the next) [default: stop]
    #[arg(long, env = "KVROUTE_ON_CONFIG_MISMATCH", value_name = "POLICY", help_heading = WORKERS)]
    pub on_config_mismatch: Option<OnConfigMismatch>,
    /// Whether workers are held against their registrations, with a prompt of the router's own: off, warn (say what differs) or
    /// strict (route those that differ by load alone, and refuse those that would fail their requests) [default: off]
    #[arg(long, env = "KVROUTE_ADMISSION_CHECK", value_name = "CHECK", help_heading = WORKERS)]
    pub admission_check: Option<AdmissionCheck>,
    /// Other workers to try when one cannot be reached or answers 429, 502 or 503 [default: 2]
    #[arg(long, env = "KVROUTE_RETRIES", value_name = "N", help_heading = LIMITS)]
    pub retries: Option<u32>,
    /// Share of all requests that may be tried again, 0 to 10 [default: 0.2]
    #[arg(long, env = "KVROUTE_RETRY_BUDGET", value_name = "SHARE", help_heading = LIMITS)]
    pub retry_budget: Option<f64>,
    /// Retries a second that may be made on top of that [default: 10]
    #[arg(long, env = "KVROUTE_RETRY_FLOOR", value_name = "N", help_heading = LIMITS)]
    pub retry_floor: Option<u32>,
    /// What becomes of a request whose prefill workers are known and cannot serve it: none refuses it, decode has the
    /// decode worker compute its prompt too [default: none]
    #[arg(long, env = "KVROUTE_PREFILL_FALLBACK", value_name = "FALLBACK", help_heading = LIMITS)]
    pub prefill_fallback: Option<PrefillFallback>,
    /// Requests that may wait in the router for each worker of a set, if its configuration lets any wait; one beyond is
    /// answered with 429 [default: 256]
    #[arg(long, env = "KVROUTE_QUEUE_LIMIT", value_name = "N", help_heading = LIMITS)]
    pub queue_limit: Option<u64>,
    /// The same of prompt tokens [default: no limit]
    #[arg(long, env = "KVROUTE_QUEUE_TOKEN_LIMIT", value_name = "TOKENS", help_heading = LIMITS)]
    pub queue_token_limit: Option<u64>,
    /// Who takes turns among the requests that wait: tenant (by the header x-tenant-id, each with limits of its own) or none
    /// [default: none]
    #[arg(long, env = "KVROUTE_QUEUE_TURNS", value_name = "WHO", help_heading = LIMITS)]
    pub queue_turns: Option<QueueTurns>,
    /// Status that a request is answered with when all workers are over a busy threshold, 400 to 599 [default: 529]
    #[arg(long, env = "DYN_HTTP_OVERLOAD_STATUS_CODE", value_name = "CODE", help_heading = LIMITS)]
    pub overload_status: Option<u16>,
    /// Seconds that a worker gets no requests after it failed one; twice as long with each further failure, up to a minute;
    /// 0 goes on [default: 5]
    #[arg(long, env = "DYN_RUNTIME_INHIBITED_DURATION_SECS", value_name = "SECONDS", help_heading = LIMITS)]
    pub inhibition: Option<u64>,
    /// Seconds from one time that a worker is asked for its health (GET /health) to the next; one that does not answer three times
    /// in a row gets no requests until it does; 0 asks nobody [default: 0]
    #[arg(long, env = "KVROUTE_HEALTH_CHECK_INTERVAL", value_name = "SECONDS", help_heading = LIMITS)]
    pub health_check_interval: Option<u64>,
    /// Seconds in which the weight of a worker that is new or recovered grows from a tenth to 1; 0 is 1 at once [default: 0]
    #[arg(long, env = "KVROUTE_SLOW_START", value_name = "SECONDS", help_heading = LIMITS)]
    pub slow_start: Option<u64>,
    /// Bytes that the tokens of known parts of prompts may take; 0 keeps none [default: 67108864]
    #[arg(long, env = "KVROUTE_TOKENIZER_CACHE_BYTES", value_name = "BYTES", help_heading = LIMITS)]
    pub tokenizer_cache_bytes: Option<u64>,
    /// Threads that tokenise long prompts [default: one less than cores]
    #[arg(long, env = "KVROUTE_TOKENIZER_THREADS", value_name = "N", help_heading = LIMITS)]
    pub tokenizer_threads: Option<NonZeroUsize>,
    /// Prompts that may wait to be tokenised; one beyond is answered with 429 [default: 256]
    #[arg(long, env = "KVROUTE_TOKENIZER_QUEUE_LIMIT", value_name = "N", help_heading = LIMITS)]
    pub tokenizer_queue_limit: Option<usize>,
    /// Record decisions in FILE, for kvroute simulate --decisions and GET /v1/route/decisions/ID: of a SHARE of the requests
    /// (1), a new file from BYTES on (268435456), N full ones kept (3) [default: nowhere]
    #[arg(long, env = "KVROUTE_DECISION_LOG", value_name = DECISION_LOG, help_heading = RECORDS)]
    pub decision_log: Option<DecisionLogSettings>,
    /// Write a line of JSON for every request of a client to the end of a file, or with - to stdout [default: nowhere]
    #[arg(long, env = "KVROUTE_ACCESS_LOG", value_name = "FILE", help_heading = RECORDS)]
    pub access_log: Option<AccessLogTarget>,
    /// Send traces of requests to an OTLP receiver over HTTP, http://localhost:4318 for example; in builds with the feature
    /// otel [default: nowhere]
    #[arg(long, env = "KVROUTE_OTLP_ENDPOINT", value_name = "URL", help_heading = RECORDS)]
    pub otlp_endpoint: Option<OtlpEndpoint>,
    /// GPU that hashes large batches of prompts, where that is faster: auto (one with time and memory to spare, as NVML
    /// tells), off, or a UUID of kvroute gpus [default: auto]
    #[arg(long, env = "KVROUTE_HASH_DEVICE", value_name = "DEVICE", help_heading = LIMITS)]
    #[serde(deserialize_with = "hash_device")]
    pub hash_device: Option<HashDevice>,
}

// The groups of `kvroute frontend --help`, in the order in which they are shown.
pub(crate) const WORKERS: &str = "Workers and models";
const LISTENERS: &str = "Listeners";
const LIMITS: &str = "Limits and timeouts";
const RECORDS: &str = "Records";

const DECISION_LOG: &str = "FILE[,sample=SHARE][,max=BYTES][,keep=N]";

/// Everything a frontend starts with.
#[derive(Debug)]
pub struct FrontendPlan {
    /// The server's settings.
    pub settings: FrontendSettings,
    /// What worker sets inherit.
    pub router: RouterConfig,
    /// Workers that are there from the start.
    pub workers: Vec<WorkerSpec>,
    /// How each model's prompts become tokens; the entry named `*` is for all others.
    pub models: Vec<ModelEntry>,
}

impl FrontendPlan {
    /// The plan with what router flags say that are no part of a router configuration.
    ///
    /// # Errors
    /// [`ConfigError::EnforcedFallback`].
    pub fn with(mut self, flags: OfTheFrontend) -> Result<Self, ConfigError> {
        if flags.enforce_disagg && self.settings.prefill_fallback != PrefillFallback::None {
            return Err(ConfigError::EnforcedFallback);
        }
        self.settings.enforce_disagg = flags.enforce_disagg;
        self.settings.namespaces = flags.namespaces;
        Ok(self)
    }
}

impl FrontendArgs {
    /// Merges flags, environment and file into a plan. The router flags are merged before, see [`flags`](super::flags).
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn plan(
        self,
        router: RouterConfig,
        workers: &[String],
        file: Option<ConfigFile>,
    ) -> Result<FrontendPlan, ConfigError> {
        let file = file.unwrap_or_default();
        let below = file.frontend;
        let mut all = file.worker;
        for text in workers {
            all.push(parse_worker(text)?);
        }
        let mut seen = AHashSet::new();
        if let Some(again) = all.iter().find(|spec| !seen.insert((&spec.url, &spec.model, spec.first_rank))) {
            let url = without_user(&again.url).into_owned();
            return Err(ConfigError::WorkerTwice { url, model: again.model.clone() });
        }
        let flags = self.tokenizer.iter().chain(&below.tokenizer);
        let mut models = flags.map(|text| parse_tokenizer(text)).collect::<Result<Vec<_>, _>>()?;
        file.model.iter().try_for_each(ModelEntry::check)?;
        models.extend(file.model);
        // Flags come first and win over the file.
        let mut named = AHashSet::new();
        models.retain(|entry| named.insert(entry.name.clone()));
        let settings = self.settings(below)?;
        Ok(FrontendPlan { settings, router, workers: all, models })
    }

    fn settings(self, below: Self) -> Result<FrontendSettings, ConfigError> {
        let default = FrontendSettings::default();
        let tokenizer = self.tokenising(&below, default.tokenizer);
        let host = self.host.or(below.host).unwrap_or(default.public.ip());
        let port = self.port.or(below.port).unwrap_or(default.public.port());
        let admin_host = self.admin_host.or(below.admin_host).unwrap_or(default.admin.ip());
        let admin_port = self.admin_port.or(below.admin_port).unwrap_or(default.admin.port());
        let admin_token = match self.admin_token_file.or(below.admin_token_file) {
            Some(path) => Some(token("--admin-token-file", path)?),
            None if admin_host.is_loopback() => None,
            None => return Err(ConfigError::OpenAdmin(admin_host)),
        };
        let index_snapshot_from = snapshot_source(
            self.index_snapshot_from.or(below.index_snapshot_from),
            self.index_snapshot_token_file.or(below.index_snapshot_token_file),
            admin_token.as_ref(),
        )?;
        let seconds = |flag: Option<u64>, default: Duration| flag.map_or(default, Duration::from_secs);
        let overload_status = match self.overload_status.or(below.overload_status) {
            Some(code) => StatusCode::from_u16(code)
                .ok()
                .filter(|status| status.is_client_error() || status.is_server_error())
                .ok_or(ConfigError::OverloadStatus(code))?,
            None => default.overload_status,
        };
        let retry_budget = RetryBudget {
            share: self.retry_budget.or(below.retry_budget).unwrap_or(default.retry_budget.share),
            per_second: self.retry_floor.or(below.retry_floor).unwrap_or(default.retry_budget.per_second),
        };
        if !(0.0..=10.0).contains(&retry_budget.share) {
            return Err(ConfigError::RetryBudget(retry_budget.share));
        }
        let mut upstream = default.upstream;
        if let Some(ms) = self.connect_timeout_ms.or(below.connect_timeout_ms) {
            upstream.connect_timeout = Duration::from_millis(ms);
        }
        if let Some(secs) = self.first_byte_timeout.or(below.first_byte_timeout) {
            upstream.first_byte_timeout = Duration::from_secs(secs);
        }
        upstream.idle_timeout = seconds(self.idle_timeout.or(below.idle_timeout), upstream.idle_timeout);
        let max_header_bytes =
            self.max_header_bytes.or(below.max_header_bytes).unwrap_or(default.max_header_bytes);
        if !(1024..=256 << 10).contains(&max_header_bytes) {
            return Err(ConfigError::HeaderBytes(max_header_bytes));
        }
        let max_body_bytes = self.max_body_bytes.or(below.max_body_bytes).unwrap_or(default.max_body_bytes);
        if max_body_bytes == 0 {
            return Err(ConfigError::BodyBytes(max_body_bytes));
        }
        let files = protection::Files {
            api_keys: self.api_keys_file.or(below.api_keys_file),
            tls: (self.tls_cert.or(below.tls_cert), self.tls_key.or(below.tls_key)),
            admin_tls: (
                self.admin_tls_cert.or(below.admin_tls_cert),
                self.admin_tls_key.or(below.admin_tls_key),
            ),
            worker_ca: self.worker_ca.or(below.worker_ca),
            worker_client: (
                self.worker_client_cert.or(below.worker_client_cert),
                self.worker_client_key.or(below.worker_client_key),
            ),
            worker_api_key: self.worker_api_key_file.or(below.worker_api_key_file),
        };
        let protection::Opened { api_keys, tls, admin_tls, upstream } = files.open(&upstream)?;
        Ok(FrontendSettings {
            public: SocketAddr::new(host, port),
            admin: SocketAddr::new(admin_host, admin_port),
            admin_token,
            admin_tls,
            tls,
            api_keys,
            max_header_bytes,
            read_timeout: seconds(
                self.request_read_timeout.or(below.request_read_timeout),
                default.read_timeout,
            ),
            max_concurrent_requests: self
                .max_concurrent_requests
                .or(below.max_concurrent_requests)
                .map(NonZeroUsize::get),
            max_connections: self.max_connections.or(below.max_connections).map(NonZeroUsize::get),
            max_body_bytes,
            index_memory_limit: self
                .index_memory_limit
                .or(below.index_memory_limit)
                .map(|limit| limit.0)
                .or(default.index_memory_limit),
            concurrent_replays: self
                .concurrent_replays
                .or(below.concurrent_replays)
                .unwrap_or(default.concurrent_replays),
            index_snapshot_from,
            drain_timeout: seconds(self.drain_timeout.or(below.drain_timeout), default.drain_timeout),
            // Router flags say these two, see `FrontendPlan::with`.
            enforce_disagg: default.enforce_disagg,
            namespaces: default.namespaces,
            prefill_fallback: self
                .prefill_fallback
                .or(below.prefill_fallback)
                .unwrap_or(default.prefill_fallback),
            queue_limit: self.queue_limit.or(below.queue_limit).unwrap_or(default.queue_limit),
            queue_token_limit: self.queue_token_limit.or(below.queue_token_limit),
            queue_turns: self.queue_turns.or(below.queue_turns).unwrap_or(default.queue_turns),
            overload_status,
            slow_start: seconds(self.slow_start.or(below.slow_start), default.slow_start),
            health_check_interval: seconds(
                self.health_check_interval.or(below.health_check_interval),
                default.health_check_interval,
            ),
            inhibition: seconds(self.inhibition.or(below.inhibition), default.inhibition),
            retries: self.retries.or(below.retries).unwrap_or(default.retries),
            retry_budget,
            total_timeout: seconds(self.total_timeout.or(below.total_timeout), default.total_timeout),
            on_config_mismatch: self
                .on_config_mismatch
                .or(below.on_config_mismatch)
                .unwrap_or(default.on_config_mismatch),
            decision_log: self.decision_log.or(below.decision_log),
            access_log: self.access_log.or(below.access_log),
            otlp_endpoint: self.otlp_endpoint.or(below.otlp_endpoint),
            admission_check: self
                .admission_check
                .or(below.admission_check)
                .unwrap_or(default.admission_check),
            tokenizer,
            upstream,
            accelerator: AcceleratorSettings {
                device: self.hash_device.or(below.hash_device).unwrap_or_default(),
                ..default.accelerator
            },
            routing: default.routing,
        })
    }
}

impl FrontendArgs {
    fn tokenising(&self, below: &Self, default: TokenizerSettings) -> TokenizerSettings {
        TokenizerSettings {
            cache_bytes: self
                .tokenizer_cache_bytes
                .or(below.tokenizer_cache_bytes)
                .unwrap_or(default.cache_bytes),
            threads: self.tokenizer_threads.or(below.tokenizer_threads).unwrap_or(default.threads),
            queue_limit: self
                .tokenizer_queue_limit
                .or(below.tokenizer_queue_limit)
                .unwrap_or(default.queue_limit),
        }
    }
}

/// Reads what the flag's own parser would.
fn hash_device<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<HashDevice>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(|problem| D::Error::custom(format!("hash_device is '{text}': {problem}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(file: &str, args: FrontendArgs, workers: &[&str]) -> Result<FrontendPlan, ConfigError> {
        let workers: Vec<_> = workers.iter().map(|&text| text.to_owned()).collect();
        args.plan(RouterConfig::default(), &workers, Some(toml::from_str(file).unwrap()))
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let file = "[frontend]\nport = 1\nadmin_port = 2";
        let args = FrontendArgs { port: Some(9), ..FrontendArgs::default() };
        let plan = plan(file, args, &[]).unwrap();
        assert_eq!(plan.settings.public.port(), 9);
        assert_eq!(plan.settings.admin.port(), 2);
        assert_eq!(plan.settings.max_body_bytes, FrontendSettings::default().max_body_bytes);
    }

    #[test]
    fn what_a_mismatch_does_is_one_of_two_words() {
        let policy =
            |file: &str| toml::from_str::<ConfigFile>(file).map(|file| file.frontend.on_config_mismatch);
        let keep_first = "[frontend]\non_config_mismatch = 'keep-first'";
        assert_eq!(policy(keep_first).unwrap(), Some(OnConfigMismatch::KeepFirst));
        assert!(policy("[frontend]\non_config_mismatch = 'keep_first'").is_err());
        let settings = |args: FrontendArgs| plan(keep_first, args, &[]).unwrap().settings.on_config_mismatch;
        assert_eq!(settings(FrontendArgs::default()), OnConfigMismatch::KeepFirst);
        let stop = FrontendArgs { on_config_mismatch: "stop".parse().ok(), ..FrontendArgs::default() };
        assert_eq!(settings(stop), OnConfigMismatch::Stop);
        assert!("first".parse::<OnConfigMismatch>().unwrap_err().contains("stop and keep-first"));
    }

    #[test]
    fn workers_come_from_flags_and_file() {
        let file = "[[worker]]\nurl = 'http://a:1'\nmodel = 'm'";
        let plan = plan(
            file,
            FrontendArgs::default(),
            &["url=http://b:2,model=m,kv-events-endpoint=tcp://*:5557,block_size=32"],
        )
        .unwrap();
        assert_eq!(plan.workers.len(), 2);
        assert_eq!(plan.workers[1].block_size, 32);
        assert_eq!(plan.workers[1].kv_events_endpoint.as_deref(), Some("tcp://*:5557"));
    }

    #[test]
    fn a_bad_worker_flag_says_what_is_accepted() {
        for text in [
            "http://a:1",
            "url=http://a:1",
            "url=http://a:1,model=m,port=3",
            "url=http://a:1,model=m,model=n",
            "url=http://a:1,model=m,block_size=big",
            "url=http://a:1,model=m,lora_adapters=l",
        ] {
            let error = plan("", FrontendArgs::default(), &[text]).unwrap_err().to_string();
            assert!(error.contains("--worker") && error.contains("accepted"), "{error}");
        }
    }

    #[test]
    fn a_model_may_have_a_number_for_a_name() {
        let plan = plan("", FrontendArgs::default(), &["url=http://a:1,model=7,eagle=true"]).unwrap();
        assert_eq!((plan.workers[0].model.as_str(), plan.workers[0].eagle), ("7", true));
    }

    #[test]
    fn a_tokenizer_flag_wins_over_the_file() {
        let file = "[frontend]\ntokenizer = ['m=/file']\n[[model]]\nname = 'm'\ntokenizer = '/model'";
        let args = FrontendArgs { tokenizer: vec!["m=/flag".to_owned()], ..FrontendArgs::default() };
        let models = plan(file, args, &[]).unwrap().models;
        assert_eq!(models.len(), 1);
        assert_eq!(models[0].tokenizer, PathBuf::from("/flag"));
    }

    #[test]
    fn an_admin_listener_beyond_this_machine_needs_a_token() {
        let open = FrontendArgs { admin_host: Some([0, 0, 0, 0].into()), ..FrontendArgs::default() };
        let error = plan("", open.clone(), &[]).unwrap_err().to_string();
        assert!(error.contains("--admin-token-file"), "{error}");
        let token = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(token.path(), "s3cret\n").unwrap();
        let closed = FrontendArgs { admin_token_file: Some(token.path().into()), ..open };
        let token = plan("", closed, &[]).unwrap().settings.admin_token.unwrap();
        assert_eq!(token.authorization(), "Bearer s3cret");
    }

    #[test]
    fn a_tokenizer_may_name_its_model() {
        assert_eq!(parse_tokenizer("m=/a/b").unwrap().name, "m");
        assert_eq!(parse_tokenizer("org/m=/a/b").unwrap().name, "org/m");
        assert_eq!(parse_tokenizer("/a/b=c").unwrap().name, "*");
        assert_eq!(parse_tokenizer("./m").unwrap().tokenizer, PathBuf::from("./m"));
    }
}
