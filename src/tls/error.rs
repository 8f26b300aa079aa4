//! Files that TLS cannot use.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use thiserror::Error;

/// A file of certificates or keys that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{path}: {problem}")]
pub struct TlsFileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it, and what is accepted.
    pub problem: String,
}

impl TlsFileError {
    pub(super) fn new(path: &Path, problem: impl fmt::Display) -> Self {
        Self { path: path.to_owned(), problem: problem.to_string() }
    }
}
