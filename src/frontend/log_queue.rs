//! The way from requests to a log: a queue that is bounded and never waited for, before one thread that writes.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, bounded};
use tracing::warn;

/// How long a flush may take, each way.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes that are written at a time, at most, while more waits.
const BATCH: usize = 256 << 10;

/// What a log is made of.
pub(super) trait Entry: Send + 'static {
    /// What is said once, when the first of them finds no room.
    const DROPPED: &str;

    /// What it takes in memory while it waits.
    fn bytes(&self) -> u64;
}

/// How much may wait.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) entries: usize,
    /// What they may take in memory.
    pub(super) bytes: u64,
}

enum Item<T> {
    Entry(T),
    /// Says when all before it is written.
    Flush(Sender<()>),
}

/// What became of entries. Every access is Relaxed: statistics, and a limit that may be overshot by an entry a thread.
#[derive(Debug, Default)]
pub(super) struct LogCounters {
    /// Entries written.
    pub(super) written: AtomicU64,
    /// Entries that found the queue full.
    pub(super) dropped: AtomicU64,
    /// Entries that could not be written.
    pub(super) lost: AtomicU64,
    /// Bytes written.
    pub(super) bytes: AtomicU64,
    /// Whether the last attempt to write failed.
    pub(super) failing: AtomicBool,
    /// Entries that wait, and what they take in memory.
    pub(super) waiting: AtomicI64,
    pub(super) waiting_bytes: AtomicU64,
}

impl LogCounters {
    /// How many entries became what.
    pub(super) fn results(&self) -> [(&'static str, u64); 3] {
        [("written", &self.written), ("dropped", &self.dropped), ("lost", &self.lost)]
            .map(|(result, count)| (result, count.load(Relaxed)))
    }
}

/// The end that entries are put into.
pub(super) struct Queue<T> {
    items: Sender<Item<T>>,
    most_bytes: u64,
    pub(super) counters: Arc<LogCounters>,
}

/// The end that the writer has.
pub(super) struct Waiting<T> {
    items: Receiver<Item<T>>,
    pub(super) counters: Arc<LogCounters>,
}

impl<T: Entry> Queue<T> {
    pub(super) fn new(limits: Limits) -> (Self, Waiting<T>) {
        let (items, taken) = bounded(limits.entries);
        let counters = Arc::new(LogCounters::default());
        let waiting = Waiting { items: taken, counters: Arc::clone(&counters) };
        (Self { items, most_bytes: limits.bytes, counters }, waiting)
    }

    /// Puts an entry in, if there is room; whether there was.
    pub(super) fn put(&self, entry: T) -> bool {
        let Self { items, most_bytes, counters } = self;
        let bytes = entry.bytes();
        let waiting = counters.waiting_bytes.fetch_add(bytes, Relaxed);
        counters.waiting.fetch_add(1, Relaxed);
        if waiting + bytes <= *most_bytes && items.try_send(Item::Entry(entry)).is_ok() {
            return true;
        }
        counters.waiting_bytes.fetch_sub(bytes, Relaxed);
        counters.waiting.fetch_sub(1, Relaxed);
        if counters.dropped.fetch_add(1, Relaxed) == 0 {
            warn!("{}", T::DROPPED);
        }
        false
    }

    /// Waits until all that was put in is written, for a while; whether it is.
    pub(super) fn flush(&self) -> bool {
        let (done, written) = bounded(1);
        self.items.send_timeout(Item::Flush(done), PATIENCE).is_ok() && written.recv_timeout(PATIENCE).is_ok()
    }
}

impl<T: Entry> Waiting<T> {
    /// An item that waits no more.
    fn taken(&self, item: Item<T>) -> Item<T> {
        if let Item::Entry(entry) = &item {
            self.counters.waiting_bytes.fetch_sub(entry.bytes(), Relaxed);
            self.counters.waiting.fetch_sub(1, Relaxed);
        }
        item
    }

    /// Takes the first that waits, in place of a writer.
    #[cfg(test)]
    pub(super) fn skip(&self) {
        drop(self.taken(self.items.try_recv().unwrap()));
    }
}

/// What writes a log.
pub(super) trait Writer: Send + 'static {
    type Entry: Entry;

    /// What it writes.
    fn waiting(&self) -> &Waiting<Self::Entry>;

    /// Bytes that are taken and not written.
    fn unwritten(&self) -> usize;

    fn take(&mut self, entry: Self::Entry);

    /// Writes what is taken.
    fn write(&mut self);
}

/// Starts a writer's thread, which writes until nobody can put anything in any more.
pub(super) fn start(mut writer: impl Writer, name: &str) -> io::Result<()> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(move || while step(&mut writer) {}).map(drop)
}

/// Waits for something, and writes it with what came meanwhile; false once nothing can come any more.
pub(super) fn step(writer: &mut impl Writer) -> bool {
    let Ok(item) = writer.waiting().items.recv() else { return false };
    take(writer, item);
    while writer.unwritten() < BATCH
        && let Ok(item) = writer.waiting().items.try_recv()
    {
        take(writer, item);
    }
    writer.write();
    true
}

fn take<W: Writer>(writer: &mut W, item: Item<W::Entry>) {
    match writer.waiting().taken(item) {
        Item::Entry(entry) => writer.take(entry),
        Item::Flush(done) => {
            writer.write();
            // Whoever asked may have given up.
            let _ = done.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Weighing(u64);

    impl Entry for Weighing {
        const DROPPED: &str = "it does not keep up";

        fn bytes(&self) -> u64 {
            self.0
        }
    }

    fn counts(of: &LogCounters) -> (i64, u64) {
        (of.waiting.load(Relaxed), of.dropped.load(Relaxed))
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted_and_nobody_waits() {
        let (queue, waiting) = Queue::new(Limits { entries: 3, bytes: u64::MAX });
        assert_eq!([0; 5].map(|bytes| queue.put(Weighing(bytes))), [true, true, true, false, false]);
        assert_eq!(counts(&queue.counters), (3, 2));
        waiting.skip();
        assert!(queue.put(Weighing(0)), "there is room again");
        assert_eq!(counts(&queue.counters), (3, 2));
    }

    #[test]
    fn what_takes_more_memory_fills_it_sooner() {
        let (queue, waiting) = Queue::new(Limits { entries: 100, bytes: 20 });
        assert_eq!([10, 10, 1].map(|bytes| queue.put(Weighing(bytes))), [true, true, false]);
        waiting.skip();
        assert!(queue.put(Weighing(10)));
        assert_eq!(queue.counters.waiting_bytes.load(Relaxed), 20);
    }
}
