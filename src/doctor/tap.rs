//! An ear at the event endpoint: the production stream with a sink that keeps what it is given.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    fleet::StreamState,
    ingest::{Contexts, Feed, Note, Pace, Sink, Stream, Taken},
};

/// A stream that is listened to until this is closed or dropped.
pub(super) struct Tap {
    stream: Option<Stream>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    payloads: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Every payload that ever came, those that were forgotten included.
    count: u64,
    state: Option<StreamState>,
}

/// Bytes of payload that are kept. A busy engine says more than its canary; what came first goes first.
const ROOM: usize = 64 << 20;

/// How often a state is looked at while it is waited for.
const GLANCE: Duration = Duration::from_millis(20);

impl Tap {
    /// Listens.
    ///
    /// # Errors
    /// Why it cannot.
    pub(super) fn open(feed: &Feed) -> Result<Self, String> {
        let kept = Arc::default();
        let stream = Stream::open(&Contexts::new(), feed, Recorder(Arc::clone(&kept)));
        Ok(Self { stream: Some(stream.map_err(|error| error.to_string())?), kept })
    }

    /// Waits until the stream knows where it stands, for no longer than `limit`. A connection that has just been made may not
    /// carry the subscription yet, and what is said before it does is lost.
    pub(super) async fn settle(&self, limit: Duration) {
        let settled = async {
            while self.state() == StreamState::Unproven || self.state() == StreamState::Replaying {
                tokio::time::sleep(GLANCE).await;
            }
        };
        let _ = tokio::time::timeout(limit, settled).await;
    }

    /// Forgets what came so far.
    pub(super) fn forget(&self) {
        let mut kept = self.kept.lock();
        kept.payloads.clear();
        kept.bytes = 0;
    }

    /// Waits until `enough` of what came since, looked at whenever there is more, for no longer than `limit`.
    pub(super) async fn wait(&self, limit: Duration, enough: impl Fn(&[Vec<u8>]) -> bool) -> Vec<Vec<u8>> {
        let heard = async {
            let mut seen = None;
            loop {
                let count = self.kept.lock().count;
                if seen != Some(count) {
                    seen = Some(count);
                    if enough(&self.payloads()) {
                        return;
                    }
                }
                tokio::time::sleep(GLANCE).await;
            }
        };
        let _ = tokio::time::timeout(limit, heard).await;
        self.payloads()
    }

    pub(super) fn state(&self) -> StreamState {
        self.kept.lock().state.unwrap_or(StreamState::Unproven)
    }

    fn payloads(&self) -> Vec<Vec<u8>> {
        self.kept.lock().payloads.iter().cloned().collect()
    }

    /// Stops listening. The stream's thread is waited for where that holds nobody up.
    pub(super) async fn close(mut self) {
        let stream = self.stream.take();
        let _ = tokio::task::spawn_blocking(move || drop(stream)).await;
    }
}

struct Recorder(Arc<Mutex<Kept>>);

impl Sink for Recorder {
    fn apply(&mut self, _sequence: u64, payload: &[u8], _pace: Pace, _stopped: &dyn Fn() -> bool) -> Taken {
        let mut kept = self.0.lock();
        kept.count += 1;
        kept.bytes += payload.len();
        kept.payloads.push_back(payload.to_vec());
        while kept.bytes > ROOM
            && let Some(first) = kept.payloads.pop_front()
        {
            kept.bytes -= first.len();
        }
        Taken::Taken
    }

    fn clear(&mut self) {}

    fn publish(&mut self, state: StreamState) {
        self.0.lock().state = Some(state);
    }

    fn note(&mut self, _note: Note) {}
}
