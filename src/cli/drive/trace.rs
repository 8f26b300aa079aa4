//! Mooncake traces (`{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [..]}`, one
//! request a line, one hash id per 512 tokens) turned into requests with token ids.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use thiserror::Error;

/// Tokens that one hash id of a trace stands for.
const TOKENS_PER_ID: usize = 512;

/// The latest that a request is sent: timestamps beyond reason must not overflow the clock.
const LATEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// One request of a trace.
#[derive(Deserialize, Clone, Debug)]
pub(in crate::cli) struct TraceRequest {
    /// Milliseconds since the trace began.
    timestamp: u64,
    input_length: usize,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// A trace that cannot be used.
#[derive(Debug, Error)]
pub(in crate::cli) enum TraceError {
    /// It cannot be read.
    #[error("--trace: cannot read {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A line that is not a request.
    #[error(
        "--trace: {path}, line {line}: {problem}; each line is {{\"timestamp\": ms, \"input_length\": n, \"output_length\": n, \
         \"hash_ids\": [...]}}"
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and in which column.
        problem: String,
    },
    /// No requests at all.
    #[error("--trace: {0} has no requests")]
    Empty(PathBuf),
}

/// Reads the first `limit` requests.
///
/// # Errors
/// See [`TraceError`].
pub(in crate::cli) fn read(path: &Path, limit: usize) -> Result<Vec<TraceRequest>, TraceError> {
    let unreadable = |error| TraceError::Read { path: path.to_owned(), error };
    let file = BufReader::new(File::open(path).map_err(unreadable)?);
    let mut requests = Vec::new();
    for (number, line) in file.lines().enumerate() {
        if requests.len() == limit {
            break;
        }
        let line = line.map_err(unreadable)?;
        if line.trim().is_empty() {
            continue;
        }
        requests.push(serde_json::from_str(&line).map_err(|error| TraceError::Line {
            path: path.to_owned(),
            line: number + 1,
            // The parser sees one line at a time, and would call each of them line 1.
            problem: error.to_string().replace("at line 1 column", "at column"),
        })?);
    }
    if requests.is_empty() { Err(TraceError::Empty(path.to_owned())) } else { Ok(requests) }
}

impl TraceRequest {
    /// When it was sent, `rate` times as fast as recorded; at most [`LATEST`].
    pub(in crate::cli) fn due(&self, rate: f64) -> Duration {
        let seconds = self.timestamp as f64 / 1000.0 / rate;
        Duration::try_from_secs_f64(seconds).map_or(LATEST, |due| due.min(LATEST))
    }

    pub(in crate::cli) const fn output_length(&self) -> u32 {
        self.output_length
    }

    /// Tokens of the prompt.
    pub(in crate::cli) const fn input_length(&self) -> usize {
        self.input_length
    }

    /// What the prompt's pages hold, one id for each.
    pub(in crate::cli) fn hash_ids(&self) -> &[u64] {
        &self.hash_ids
    }

    /// The prompt in tokens drawn from `vocabulary`: equal ids give equal tokens, so prompts share exactly
    /// the prefixes that the trace says.
    pub(in crate::cli) fn tokens(&self, vocabulary: &[u32]) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(self.hash_ids.len() * TOKENS_PER_ID);
        for &id in &self.hash_ids {
            let mut rng = fastrand::Rng::with_seed(id);
            tokens.extend((0..TOKENS_PER_ID).map(|_| vocabulary[rng.usize(..vocabulary.len())]));
        }
        tokens.truncate(self.input_length.max(1));
        tokens
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn trace(text: &str, limit: usize) -> Result<Vec<TraceRequest>, TraceError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        read(file.path(), limit)
    }

    const TWO: &str = concat!(
        r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}"#,
        "\n\n",
        r#"{"timestamp": 3000, "input_length": 1024, "output_length": 5, "hash_ids": [0, 2]}"#,
    );

    #[test]
    fn equal_ids_give_equal_tokens() {
        let requests = trace(TWO, 10).unwrap();
        let vocabulary: Vec<u32> = (100..400).collect();
        let [a, b] = [0, 1].map(|i| requests[i].tokens(&vocabulary));
        assert_eq!((a.len(), b.len()), (600, 1024));
        assert_eq!(a[..512], b[..512]);
        assert_ne!(a[512..600], b[512..600]);
        assert_eq!(requests[1].due(3.0), Duration::from_secs(1));
        assert_eq!(requests[1].due(f64::MIN_POSITIVE), LATEST);
    }

    #[test]
    fn a_broken_line_is_named() {
        let error = trace("{\"timestamp\": 0}\n", 10).unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("input_length"), "{error}");
        let error = trace(&format!("{TWO}\nbroken"), 10).unwrap_err().to_string();
        assert!(error.contains("line 4: expected value at column 1"), "{error}");
        assert!(matches!(trace("\n", 10), Err(TraceError::Empty(_))));
        assert_eq!(trace(TWO, 1).unwrap().len(), 1);
    }
}
