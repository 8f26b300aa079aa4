//! The way to the writer: bounded, and never waited for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, bounded};
use tracing::warn;

/// How many lines may wait. The longest has two thousand bytes.
const LINES: usize = 8192;

/// How long a flush may take, each way.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) enum Item {
    /// A line with its end.
    Line(Vec<u8>),
    /// Says when all before it is written.
    Flush(Sender<()>),
}

/// What became of lines. Every access is Relaxed: statistics.
#[derive(Debug, Default)]
pub(super) struct LogCounters {
    /// Lines written.
    pub(super) written: AtomicU64,
    /// Lines that found the queue full.
    pub(super) dropped: AtomicU64,
    /// Lines that could not be written.
    pub(super) lost: AtomicU64,
    /// Whether the last attempt to write failed.
    pub(super) failing: AtomicBool,
}

/// The end that lines are put into.
pub(in crate::frontend) struct Queue {
    items: Sender<Item>,
    pub(super) counters: Arc<LogCounters>,
}

/// The end that the writer has.
pub(super) struct Waiting {
    pub(super) items: Receiver<Item>,
    pub(super) counters: Arc<LogCounters>,
}

impl Queue {
    pub(super) fn new() -> (Self, Waiting) {
        Self::with_limit(LINES)
    }

    pub(super) fn with_limit(lines: usize) -> (Self, Waiting) {
        let (items, taken) = bounded(lines);
        let counters = Arc::new(LogCounters::default());
        let waiting = Waiting { items: taken, counters: Arc::clone(&counters) };
        (Self { items, counters }, waiting)
    }

    /// Puts a line in, if there is room.
    pub(super) fn put(&self, line: Vec<u8>) {
        if self.items.try_send(Item::Line(line)).is_err() && self.counters.dropped.fetch_add(1, Relaxed) == 0
        {
            warn!(
                "the access log does not keep up: lines are dropped and counted (kvroute_access_log_lines_total); this is not \
                 said again. A faster disk, or a reader that does not stand still, keeps them"
            );
        }
    }

    /// How many lines wait.
    pub(super) fn waiting(&self) -> usize {
        self.items.len()
    }

    /// Waits until all that was put in is written, for a while; whether it is.
    pub(super) fn flush(&self) -> bool {
        let (done, written) = bounded(1);
        self.items.send_timeout(Item::Flush(done), PATIENCE).is_ok() && written.recv_timeout(PATIENCE).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_dropped_and_counted_and_nobody_waits() {
        let (queue, waiting) = Queue::with_limit(2);
        (0..5).for_each(|_| queue.put(vec![b'\n']));
        assert_eq!((queue.waiting(), queue.counters.dropped.load(Relaxed)), (2, 3));
        drop(waiting.items.recv().unwrap());
        queue.put(vec![b'\n']);
        assert_eq!((queue.waiting(), queue.counters.dropped.load(Relaxed)), (2, 3), "there is room again");
    }
}
