//! Keys and certificates of a frontend, read from the files that its flags name.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{ConfigError, token::read_token};
use crate::{
    frontend::{AdminToken, ApiKeys},
    proxy::PoolSettings,
    tls::{ClientTls, Identity},
};

/// Two flags of which either needs the other.
struct Pair {
    certificate: &'static str,
    key: &'static str,
}

const PUBLIC: Pair = Pair { certificate: "--tls-cert", key: "--tls-key" };
const ADMIN: Pair = Pair { certificate: "--admin-tls-cert", key: "--admin-tls-key" };
const WORKERS: Pair = Pair { certificate: "--worker-client-cert", key: "--worker-client-key" };

/// The files that flags, environment and file name together.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) api_keys: Option<PathBuf>,
    pub(super) tls: (Option<PathBuf>, Option<PathBuf>),
    pub(super) admin_tls: (Option<PathBuf>, Option<PathBuf>),
    pub(super) worker_ca: Option<PathBuf>,
    pub(super) worker_client: (Option<PathBuf>, Option<PathBuf>),
    pub(super) worker_api_key: Option<PathBuf>,
}

/// What is in them.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) api_keys: Option<Arc<ApiKeys>>,
    pub(super) tls: Option<Arc<Identity>>,
    pub(super) admin_tls: Option<Arc<Identity>>,
    pub(super) upstream: PoolSettings,
}

impl Files {
    /// Reads all of them; what is about workers goes into `upstream`.
    pub(super) fn open(self, upstream: &PoolSettings) -> Result<Opened, ConfigError> {
        let keys = self.api_keys.map(|path| ApiKeys::open(&path));
        let ca = self.worker_ca.as_deref();
        let tls = ClientTls::new(ca, WORKERS.open(self.worker_client)?)
            .map_err(|error| ConfigError::Certificate { flag: "--worker-ca", error })?;
        let authorization = self.worker_api_key.map(|path| worker_key(&path)).transpose()?;
        let authorization = authorization.map(|key| key.authorization().clone());
        Ok(Opened {
            api_keys: keys.transpose()?.map(Arc::new),
            tls: PUBLIC.open(self.tls)?,
            admin_tls: ADMIN.open(self.admin_tls)?,
            upstream: PoolSettings { tls, authorization, ..upstream.clone() },
        })
    }
}

impl Pair {
    fn open(&self, files: (Option<PathBuf>, Option<PathBuf>)) -> Result<Option<Arc<Identity>>, ConfigError> {
        let Self { certificate, key } = *self;
        match files {
            (None, None) => Ok(None),
            (Some(at), Some(key_at)) => {
                let opened = Identity::open(&at, &key_at);
                let opened = opened.map_err(|error| ConfigError::Certificate {
                    flag: if error.path == key_at { key } else { certificate },
                    error,
                })?;
                Ok(Some(Arc::new(opened)))
            }
            (Some(_), None) => Err(ConfigError::Half { given: certificate, missing: key }),
            (None, Some(_)) => Err(ConfigError::Half { given: key, missing: certificate }),
        }
    }
}

fn worker_key(path: &Path) -> Result<AdminToken, ConfigError> {
    read_token(path).map_err(|problem| ConfigError::WorkerKey { path: path.to_owned(), problem })
}

/// Where in a file the key of a flag stands.
pub(super) fn place(flag: &str) -> String {
    format!("frontend.{}", flag.trim_start_matches('-').replace('-', "_"))
}
