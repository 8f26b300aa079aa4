//! Mooncake traces: one request a line, `{"timestamp": ms, "input_length": tokens, "output_length": tokens,
//! "hash_ids": [..]}`, one hash id per 512 tokens.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// Tokens that one hash id stands for.
pub(crate) const TOKENS_PER_ID: usize = 512;

/// One request: how long, and which 512-token pieces it is made of.
#[derive(Deserialize, Clone, Debug)]
pub(crate) struct Request {
    pub(crate) input_length: usize,
    pub(crate) output_length: usize,
    pub(crate) hash_ids: Vec<u64>,
}

/// A trace that cannot be used.
#[derive(thiserror::Error, Debug)]
pub(crate) enum TraceError {
    #[error("--trace: cannot read {path}: {error}")]
    Read { path: PathBuf, error: io::Error },
    #[error("--trace: {path}, line {line} is no request of a Mooncake trace: {error}")]
    Line { path: PathBuf, line: usize, error: serde_json::Error },
    #[error("--trace: {0} has no requests")]
    Empty(PathBuf),
}

/// Reads all requests of a trace.
pub(crate) fn read(path: &Path) -> Result<Vec<Request>, TraceError> {
    let unreadable = |error| TraceError::Read { path: path.to_owned(), error };
    let mut requests = Vec::new();
    for (at, line) in BufReader::new(File::open(path).map_err(unreadable)?).lines().enumerate() {
        let line = line.map_err(unreadable)?;
        if !line.trim().is_empty() {
            let broken = |error| TraceError::Line { path: path.to_owned(), line: at + 1, error };
            requests.push(serde_json::from_str(&line).map_err(broken)?);
        }
    }
    if requests.is_empty() { Err(TraceError::Empty(path.to_owned())) } else { Ok(requests) }
}
