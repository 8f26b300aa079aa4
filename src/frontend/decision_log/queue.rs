//! The way to the writer: bounded, and never waited for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, bounded};
use tracing::warn;

use super::memory::Kept;
use crate::decisions::Outcome;

/// How many records may wait, and how much memory they may take.
const RECORDS: usize = 4096;
const BYTES: u64 = 64 << 20;

/// How long a flush may take, each way.
const PATIENCE: Duration = Duration::from_secs(5);

/// A record on its way.
pub(super) enum Item {
    /// A decision.
    Decision(Arc<Kept>),
    /// What came of one, by its number.
    Outcome(u64, Outcome),
    /// Says when all before it is written.
    Flush(Sender<()>),
}

/// What became of records. Every access is Relaxed: statistics, and a limit that may be overshot by a record a thread.
#[derive(Debug, Default)]
pub(super) struct LogCounters {
    /// Records in the file.
    pub(super) written: AtomicU64,
    /// Records that found the queue full.
    pub(super) dropped: AtomicU64,
    /// Records that could not be written.
    pub(super) lost: AtomicU64,
    /// Bytes written.
    pub(super) bytes: AtomicU64,
    /// Whether the last attempt to write failed.
    pub(super) failing: AtomicBool,
    /// Records that wait, and what they take in memory.
    pub(super) waiting: AtomicI64,
    waiting_bytes: AtomicU64,
}

/// The end that records are put into.
pub(super) struct Queue {
    items: Sender<Item>,
    bytes: u64,
    pub(super) counters: Arc<LogCounters>,
}

/// The end that the writer has.
pub(super) struct Waiting {
    pub(super) items: Receiver<Item>,
    pub(super) counters: Arc<LogCounters>,
}

impl Queue {
    pub(super) fn new() -> (Self, Waiting) {
        Self::with_limits(RECORDS, BYTES)
    }

    pub(super) fn with_limits(records: usize, bytes: u64) -> (Self, Waiting) {
        let (items, taken) = bounded(records);
        let counters = Arc::new(LogCounters::default());
        let waiting = Waiting { items: taken, counters: Arc::clone(&counters) };
        (Self { items, bytes, counters }, waiting)
    }

    /// Puts a record in, if there is room; whether there was.
    pub(super) fn put(&self, item: Item) -> bool {
        let Self { items, bytes: limit, counters } = self;
        let bytes = item.bytes();
        let waiting = counters.waiting_bytes.fetch_add(bytes, Relaxed);
        counters.waiting.fetch_add(1, Relaxed);
        if waiting + bytes <= *limit && items.try_send(item).is_ok() {
            return true;
        }
        counters.waiting_bytes.fetch_sub(bytes, Relaxed);
        counters.waiting.fetch_sub(1, Relaxed);
        if counters.dropped.fetch_add(1, Relaxed) == 0 {
            warn!(
                "the decision log does not keep up: records are dropped and counted \
                 (kvroute_decision_log_records_total); this is not said again. A smaller sample= in --decision-log, or a \
                 faster disk, keeps them"
            );
        }
        false
    }

    /// Waits until all that was put in is written, for a while; whether it is.
    pub(super) fn flush(&self) -> bool {
        let (done, written) = bounded(1);
        self.items.send_timeout(Item::Flush(done), PATIENCE).is_ok() && written.recv_timeout(PATIENCE).is_ok()
    }
}

impl Waiting {
    /// Says that a record waits no more.
    pub(super) fn taken(&self, item: &Item) {
        if !matches!(item, Item::Flush(_)) {
            self.counters.waiting_bytes.fetch_sub(item.bytes(), Relaxed);
            self.counters.waiting.fetch_sub(1, Relaxed);
        }
    }
}

impl Item {
    fn bytes(&self) -> u64 {
        match self {
            Self::Decision(kept) => kept.bytes() as u64,
            Self::Outcome(..) | Self::Flush(_) => size_of::<Self>() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::decision_log::memory::tests::kept;

    #[test]
    fn what_finds_no_room_is_dropped_and_counted_and_nobody_waits() {
        let (queue, waiting) = Queue::with_limits(3, u64::MAX);
        let puts: Vec<_> =
            (0..5).map(|number| queue.put(Item::Outcome(number, Outcome::default()))).collect();
        assert_eq!(puts, [true, true, true, false, false]);
        let counts = |of: &LogCounters| (of.waiting.load(Relaxed), of.dropped.load(Relaxed));
        assert_eq!(counts(&queue.counters), (3, 2));
        let first = waiting.items.recv().unwrap();
        waiting.taken(&first);
        assert!(queue.put(Item::Outcome(5, Outcome::default())), "there is room again");
        assert_eq!(counts(&queue.counters), (3, 2));
    }

    #[test]
    fn large_decisions_fill_it_sooner() {
        let decision = kept(1, "r", 100);
        let (queue, waiting) = Queue::with_limits(100, 2 * decision.bytes() as u64);
        let put = || queue.put(Item::Decision(Arc::clone(&decision)));
        assert_eq!([put(), put(), put()], [true, true, false]);
        waiting.taken(&waiting.items.recv().unwrap());
        assert!(put());
        assert_eq!(queue.counters.waiting_bytes.load(Relaxed), 2 * decision.bytes() as u64);
    }
}
