//! What keeps flags, environment and file from making a frontend.

use std::{net::IpAddr, path::PathBuf};

use thiserror::Error;

use super::file::FileError;
use crate::{fleet::NameError, frontend::ApiKeysError, tls::TlsFileError};

/// Flags, environment or file that do not make a frontend.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A `--worker` that does not read.
    #[error(
        "--worker '{text}': {problem}; accepted is url=http://HOST:PORT,model=NAME[,kv_events_endpoint=tcp://...]\
         [,kv_replay_endpoint=tcp://...][,block_size=N][,id=N]..."
    )]
    Worker {
        /// The flag's value.
        text: String,
        /// What is wrong.
        problem: String,
    },
    /// A `--tokenizer` of a model that nobody can serve.
    #[error("--tokenizer '{text}': the model's name {error}")]
    Tokenizer {
        /// The flag's value.
        text: String,
        /// What is wrong with the name.
        error: NameError,
    },
    /// A `[[model]]` of the same kind.
    #[error("[[model]] with name = {name:?}: the name {error}")]
    Model {
        /// The name.
        name: String,
        /// What is wrong with it.
        error: NameError,
    },
    /// The same engine as two workers, each with half of its load.
    #[error(
        "worker {url} is given twice for model '{model}'; leave one out, of the flags (--worker) or of the file"
    )]
    WorkerTwice {
        /// Its URL.
        url: String,
        /// The model.
        model: String,
    },
    /// The admin listener would be open to the network.
    #[error(
        "--admin-host {0} is not a loopback address: give --admin-token-file FILE with a join token, or leave the admin \
         listener on 127.0.0.1"
    )]
    OpenAdmin(IpAddr),
    /// Both a demand and a way around it.
    #[error("--enforce-disagg and --prefill-fallback decode contradict each other; leave one out")]
    EnforcedFallback,
    /// A status that is no error.
    #[error("--overload-status {0} is not usable; accepted are 400 to 599")]
    OverloadStatus(u16),
    /// A share of what there is not.
    #[error("--retry-budget {0} is not usable; accepted are 0 to 10, as 0.2 for a fifth of the requests")]
    RetryBudget(f64),
    /// A limit that would turn everybody away, or could not be kept.
    #[error("--max-header-bytes {0} is not usable; accepted are 1024 to 262144")]
    HeaderBytes(usize),
    /// A limit that would turn everybody away.
    #[error("--max-body-bytes {0} is not usable; accepted are 1 or more")]
    BodyBytes(usize),
    /// The keys of clients.
    #[error("--api-keys-file {0}")]
    ApiKeys(#[from] ApiKeysError),
    /// A file of certificates or keys.
    #[error("{flag} {error}")]
    Certificate {
        /// The flag that names it.
        flag: &'static str,
        /// What is wrong.
        error: TlsFileError,
    },
    /// A certificate without its key, or the other way round.
    #[error("{given} needs {missing}: give both, or neither")]
    Half {
        /// The flag that is there.
        given: &'static str,
        /// The one that is not.
        missing: &'static str,
    },
    /// The key for workers.
    #[error("--worker-api-key-file {path}: {problem}")]
    WorkerKey {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// No address of a frontend.
    #[error(
        "--index-snapshot-from '{0}' is not usable; accepted is http://HOST:PORT or https://HOST:PORT, without a user, of a frontend's admin listener"
    )]
    SnapshotUrl(String),
    /// A token for nobody.
    #[error("--index-snapshot-token-file {0} is of no use without --index-snapshot-from")]
    SnapshotToken(PathBuf),
    /// A token file.
    #[error("{flag} {path}: {problem}")]
    Token {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}
