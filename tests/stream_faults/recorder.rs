//! A sink that remembers all it is told.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use kvroute::{
    fleet::StreamState,
    ingest::{Note, Pace, Sink, Taken},
};
use parking_lot::Mutex;

use crate::PATIENCE;

/// What a stream has told its sink.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) applied: Vec<(u64, Vec<u8>)>,
    pub(crate) state: Option<StreamState>,
    pub(crate) states: Vec<StreamState>,
    pub(crate) clears: u32,
    pub(crate) notes: Vec<Note>,
}

#[derive(Clone, Default)]
pub(crate) struct Recorder {
    pub(crate) seen: Arc<Mutex<Seen>>,
    /// While set, the sink takes nothing and waits.
    pub(crate) blocked: Arc<AtomicBool>,
}

impl Recorder {
    /// Waits until `holds`.
    pub(crate) fn wait(&self, what: &str, holds: impl Fn(&Seen) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !holds(&self.seen.lock()) {
            assert!(Instant::now() < until, "never: {what}; {}", self.describe());
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn wait_state(&self, state: StreamState) {
        self.wait(state.name(), |seen| seen.state == Some(state));
    }

    pub(crate) fn describe(&self) -> String {
        let seen = self.seen.lock();
        let applied: Vec<_> = seen.applied.iter().map(|&(sequence, _)| sequence).collect();
        format!(
            "applied {applied:?}, states {:?}, clears {}, notes {:?}",
            seen.states, seen.clears, seen.notes
        )
    }

    /// The numbers applied since the last clear.
    pub(crate) fn sequences(&self) -> Vec<u64> {
        self.seen.lock().applied.iter().map(|&(sequence, _)| sequence).collect()
    }

    pub(crate) fn count(&self, note: Note) -> usize {
        self.seen.lock().notes.iter().filter(|&&seen| seen == note).count()
    }
}

impl Sink for Recorder {
    fn apply(&mut self, sequence: u64, payload: &[u8], _pace: Pace, stopped: &dyn Fn() -> bool) -> Taken {
        while self.blocked.load(Relaxed) && !stopped() {
            thread::sleep(Duration::from_millis(5));
        }
        self.seen.lock().applied.push((sequence, payload.to_vec()));
        Taken::Taken
    }

    fn clear(&mut self) {
        let mut seen = self.seen.lock();
        seen.applied.clear();
        seen.clears += 1;
        seen.state = Some(StreamState::Unproven);
    }

    fn publish(&mut self, state: StreamState) {
        let mut seen = self.seen.lock();
        seen.state = Some(state);
        seen.states.push(state);
    }

    fn note(&mut self, note: Note) {
        self.seen.lock().notes.push(note);
    }
}
