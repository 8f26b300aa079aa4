#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]
#![cfg(all(feature = "server", target_os = "linux"))]
//! A mock engine that is dropped ends every thread that it started. Alone in its file: it counts the
//! process's threads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvroute::prompt::Encoder;
use kvroute::worker::mock::{MockEngine, MockSettings};

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// On a runtime without threads of its own, so that all that come are the engine's and ZMQ's.
#[tokio::test]
async fn a_dropped_engine_leaves_no_thread_behind() {
    let before = threads();
    let encoder = Arc::new(Encoder::tiny().unwrap());
    for _ in 0..3 {
        let engine = MockEngine::start(MockSettings::new(Arc::clone(&encoder))).await.unwrap();
        assert!(threads() > before, "the publisher has a thread of its own");
        drop(engine);
        // A joined thread may stay listed for a moment after it has ended.
        let deadline = Instant::now() + Duration::from_secs(5);
        while threads() > before && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(threads(), before);
    }
}
