//! What a frontend can be told.

use std::{
    net::{Ipv4Addr, SocketAddr},
    str::FromStr,
    time::Duration,
};

use serde::Deserialize;

use super::{admin_token::AdminToken, decision_log::DecisionLogSettings};
use crate::{
    fleet::{Namespaces, OnConfigMismatch},
    proxy::PoolSettings,
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
    /// Largest request body, in bytes; a larger one is a 413. Default 20 MiB.
    pub max_body_bytes: usize,
    /// What open requests get to finish in when the frontend stops. Default 30 s.
    pub drain_timeout: Duration,
    /// How many other workers are tried when one cannot be reached. Default 2.
    pub retries: u32,
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
    /// Connections to workers.
    pub upstream: PoolSettings,
}

impl Default for FrontendSettings {
    fn default() -> Self {
        Self {
            public: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080)),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 9091)),
            admin_token: None,
            max_body_bytes: 20 << 20,
            drain_timeout: Duration::from_secs(30),
            retries: 2,
            on_config_mismatch: OnConfigMismatch::Stop,
            namespaces: Namespaces::Every,
            enforce_disagg: false,
            prefill_fallback: PrefillFallback::None,
            decision_log: None,
            upstream: PoolSettings::default(),
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
