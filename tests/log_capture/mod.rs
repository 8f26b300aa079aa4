//! What this process logs, for tests to read.

#![allow(dead_code, reason = "each test file that includes this uses its part of it")]

use std::{
    io::{self, Write},
    sync::Arc,
};

use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;

/// What is logged from its start on.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// What passes a filter as `RUST_LOG` has it. A process can be asked for this once.
    pub(crate) fn start(filter: &str) -> Self {
        let log = Self::default();
        let writer = log.clone();
        tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .init();
        log
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }

    /// How many lines contain `part`.
    pub(crate) fn lines_with(&self, part: &str) -> usize {
        self.text().lines().filter(|line| line.contains(part)).count()
    }

    /// Forgets what was logged so far.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
