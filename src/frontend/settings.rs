//! What a frontend can be told.

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use http::StatusCode;
use serde::Deserialize;

use super::{
    access_log::AccessLogTarget, admin_token::AdminToken, api_keys::ApiKeys,
    decision_log::DecisionLogSettings, index_snapshot::SnapshotSource, retry::RetryBudget,
    routing_reload::RoutingSource, tokenising::TokenizerSettings, traces::OtlpEndpoint,
};
use crate::{
    accel::AcceleratorSettings,
    fleet::{DEFAULT_INHIBITION, Namespaces, OnConfigMismatch},
    ingest::IngestSettings,
    proxy::PoolSettings,
    tls::Identity,
};

/// Settings of a frontend's two listeners and of what it does with a request.
#[derive(Clone, Debug)]
pub struct FrontendSettings {
    /// Where clients connect. Default `0.0.0.0:8080`.
    pub public: SocketAddr,
    /// Where operators connect: metrics, explain, worker registration. Default `127.0.0.1:9091`.
    pub admin: SocketAddr,
    /// The bearer token that the admin listener asks for; `None` asks for nothing. Default `None`.
    pub admin_token: Option<AdminToken>,
    /// What the admin listener shows over TLS; `None` is plain HTTP. Default `None`.
    pub admin_tls: Option<Arc<Identity>>,
    /// What the public listener shows over TLS; `None` is plain HTTP. Default `None`.
    pub tls: Option<Arc<Identity>>,
    /// The keys of which a client has to show one; `None` asks for nothing. Default `None`.
    pub api_keys: Option<Arc<ApiKeys>>,
    /// Largest request body, in bytes; a larger one is a 413. Default 20 MiB.
    pub max_body_bytes: usize,
    /// Largest head of a request on the public listener, in bytes of the names and values of its fields; a larger one is a 431.
    /// Default 64 KiB.
    pub max_header_bytes: usize,
    /// For how long nothing may come of a TLS handshake, of a request's head, of a next request, and how long a body may take.
    /// Zero: for ever. Default 60 s.
    pub read_timeout: Duration,
    /// How many requests with a body may be in at a time; one more is a 503. `None`: as many as come. Default `None`.
    pub max_concurrent_requests: Option<usize>,
    /// How many connections each listener has at a time; more wait to be accepted. `None`: as many as come. Default `None`.
    pub max_connections: Option<usize>,
    /// Bytes that the indexes may use together. Default: no limit.
    pub index_memory_limit: Option<u64>,
    /// Replays of KV events, of all ranks, that may run at once. Default 16.
    pub concurrent_replays: NonZeroUsize,
    /// Another frontend whose index this one begins with. Default: none.
    pub index_snapshot_from: Option<SnapshotSource>,
    /// What open requests get to finish in when the frontend stops. Default 30 s.
    pub drain_timeout: Duration,
    /// How many other workers are tried when one fails before it answers. Default 2.
    pub retries: u32,
    /// What all retries together may be. Default: a fifth of the requests, and ten a second.
    pub retry_budget: RetryBudget,
    /// For how long a request is served, from its last byte in to the last byte of its answer. Zero: for ever. Default zero.
    pub total_timeout: Duration,
    /// What becomes of worker sets whose members' cards differ. Default: they stop.
    pub on_config_mismatch: OnConfigMismatch,
    /// The namespaces whose workers are served. Default: every.
    pub namespaces: Namespaces,
    /// Whether a decode set without prefill workers refuses requests instead of serving alone. Default false.
    pub enforce_disagg: bool,
    /// What becomes of a request whose prefill workers are known and cannot serve it. Default
    /// [`PrefillFallback::None`].
    pub prefill_fallback: PrefillFallback,
    /// Where decisions are recorded. Default: nowhere.
    pub decision_log: Option<DecisionLogSettings>,
    /// Where requests are logged. Default: nowhere.
    pub access_log: Option<AccessLogTarget>,
    /// Whose OTLP receiver is sent the traces of requests; for binaries with the feature `otel`. Default: nobody's.
    pub otlp_endpoint: Option<OtlpEndpoint>,
    /// How many requests may wait in the router for each worker of a set; where tenants take turns, of each tenant. Default 256.
    pub queue_limit: u64,
    /// The same of prompt tokens; `None`: as many as come. Default `None`.
    pub queue_token_limit: Option<u64>,
    /// Whether tenants take turns among requests that wait. Default [`QueueTurns::None`].
    pub queue_turns: QueueTurns,
    /// What a request is answered with that finds all workers over a busy threshold. Default 529.
    pub overload_status: StatusCode,
    /// For how long a worker gets no requests after it failed one; each further failure doubles it, up to a minute. Zero: it goes on
    /// getting them. Default 5 s.
    pub inhibition: Duration,
    /// For how long a worker that is new or recovered weighs less in choices. Zero: not at all. Default zero.
    pub slow_start: Duration,
    /// How often each worker is asked for its health. Zero: never. Default zero.
    pub health_check_interval: Duration,
    /// Whether workers are held against their registrations. Default [`AdmissionCheck::Off`].
    pub admission_check: AdmissionCheck,
    /// What tokenising may use.
    pub tokenizer: TokenizerSettings,
    /// Connections to workers.
    pub upstream: PoolSettings,
    /// What hashes prompts that come in bulk.
    pub accelerator: AcceleratorSettings,
    /// Where the routing configuration is read again while the frontend serves. Default: nowhere.
    pub routing: Option<Arc<dyn RoutingSource>>,
}

impl Default for FrontendSettings {
    fn default() -> Self {
        Self {
            public: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080)),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 9091)),
            admin_token: None,
            admin_tls: None,
            tls: None,
            api_keys: None,
            max_body_bytes: 20 << 20,
            max_header_bytes: 64 << 10,
            read_timeout: Duration::from_secs(60),
            max_concurrent_requests: None,
            max_connections: None,
            index_memory_limit: None,
            concurrent_replays: IngestSettings::default().replays,
            index_snapshot_from: None,
            drain_timeout: Duration::from_secs(30),
            retries: 2,
            retry_budget: RetryBudget::default(),
            total_timeout: Duration::ZERO,
            on_config_mismatch: OnConfigMismatch::Stop,
            namespaces: Namespaces::Every,
            enforce_disagg: false,
            prefill_fallback: PrefillFallback::None,
            decision_log: None,
            access_log: None,
            otlp_endpoint: None,
            queue_limit: 256,
            queue_token_limit: None,
            queue_turns: QueueTurns::None,
            overload_status: StatusCode::from_u16(529).unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
            inhibition: DEFAULT_INHIBITION,
            slow_start: Duration::ZERO,
            health_check_interval: Duration::ZERO,
            admission_check: AdmissionCheck::Off,
            tokenizer: TokenizerSettings::default(),
            upstream: PoolSettings::default(),
            accelerator: AcceleratorSettings::default(),
            routing: None,
        }
    }
}

/// Whether tenants take turns among requests that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueTurns {
    /// They do not: all requests of a worker set go in one order.
    #[default]
    None,
    /// They do: what a request's `x-tenant-id` names gets as much prefill as any other, whatever waits of it.
    Tenant,
}

impl FromStr for QueueTurns {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "none" => Ok(Self::None),
            "tenant" => Ok(Self::Tenant),
            _ => Err("expected none or tenant".to_owned()),
        }
    }
}

/// What is done about a worker whose engine is not what it was announced as.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdmissionCheck {
    /// Nothing, and nobody looks: engines get no request that no client sent.
    #[default]
    Off,
    /// It is said: in the log, the metrics and on the admin listener.
    Warn,
    /// Its overlaps count 0 until they are shown to be predicted rightly; one that would fail its requests is refused.
    Strict,
}

impl AdmissionCheck {
    /// The name in flags and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Strict => "strict",
        }
    }
}

impl FromStr for AdmissionCheck {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "off" => Ok(Self::Off),
            "warn" => Ok(Self::Warn),
            "strict" => Ok(Self::Strict),
            _ => Err("expected off, warn or strict".to_owned()),
        }
    }
}

/// What becomes of a request whose prefill workers are known and cannot serve it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefillFallback {
    /// It fails.
    #[default]
    None,
    /// The decode worker computes the prompt too.
    Decode,
}

impl FromStr for PrefillFallback {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "none" => Ok(Self::None),
            "decode" => Ok(Self::Decode),
            _ => Err("expected none or decode".to_owned()),
        }
    }
}
