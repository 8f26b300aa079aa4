//! What a frontend can be told.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use crate::{fleet::OnConfigMismatch, proxy::PoolSettings};

/// Settings of a frontend's two listeners and of what it does with a request.
#[derive(Clone, Debug)]
pub struct FrontendSettings {
    /// Where clients connect. Default `0.0.0.0:8080`.
    pub public: SocketAddr,
    /// Where operators connect: metrics, explain, worker registration. Default `127.0.0.1:9091`.
    pub admin: SocketAddr,
    /// The bearer token that the admin listener asks for; `None` asks for nothing. Default `None`.
    pub admin_token: Option<String>,
    /// Largest request body, in bytes; a larger one is a 413. Default 20 MiB.
    pub max_body_bytes: usize,
    /// What open requests get to finish in when the frontend stops. Default 30 s.
    pub drain_timeout: Duration,
    /// How many other workers are tried when one cannot be reached. Default 2.
    pub retries: u32,
    /// What becomes of worker sets whose members' cards differ. Default: they stop.
    pub on_config_mismatch: OnConfigMismatch,
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
            upstream: PoolSettings::default(),
        }
    }
}
