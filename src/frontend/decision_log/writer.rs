//! The thread that writes.

use std::{
    io,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use tracing::{error, info};

use super::{file::LogFile, record::Record};
use crate::{
    decisions::Encoder,
    frontend::log_queue::{self, Waiting},
};

/// How long a file that could not be written is left alone. What comes meanwhile is lost.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a full file that could not be put aside is written on.
const ROTATION_PAUSE: Duration = Duration::from_secs(60);

/// Writes what waits, until nobody can put anything in any more.
pub(super) struct Writer {
    file: LogFile,
    max_bytes: u64,
    waiting: Waiting<Record>,
    encoder: Encoder,
    /// Records that are encoded and not written, and how many they are.
    batch: Vec<u8>,
    records: u64,
    /// Since when nothing can be written, and how many records that cost so far.
    failure: Option<Failure>,
    /// When it is tried again to put a full file aside, once that has failed.
    next_rotation: Option<Instant>,
}

struct Failure {
    next_attempt: Instant,
    lost: u64,
}

impl log_queue::Writer for Writer {
    type Entry = Record;

    fn waiting(&self) -> &Waiting<Record> {
        &self.waiting
    }

    fn unwritten(&self) -> usize {
        self.batch.len()
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Decision(kept) => self.encoder.decision(&kept.decision, &mut self.batch),
            Record::Outcome(number, outcome) => self.encoder.outcome(number, &outcome, &mut self.batch),
        }
        self.records += 1;
        if self.file.length() + self.batch.len() as u64 >= self.max_bytes {
            self.write();
            self.rotate();
        }
    }

    fn write(&mut self) {
        if self.records == 0 {
            return;
        }
        let rests = self.failure.as_ref().is_some_and(|failure| Instant::now() < failure.next_attempt);
        let written = if rests { None } else { Some(self.file.append(&self.batch)) };
        let counters = &self.waiting.counters;
        match written {
            Some(Ok(())) => {
                counters.written.fetch_add(self.records, Relaxed);
                counters.bytes.fetch_add(self.batch.len() as u64, Relaxed);
                if let Some(Failure { lost, .. }) = self.failure.take() {
                    counters.failing.store(false, Relaxed);
                    info!(path = %self.file.path().display(), lost, "the decision log is written again");
                }
            }
            Some(Err(error)) => self.fail(&error),
            None => self.lose(),
        }
        self.batch.clear();
        self.records = 0;
    }
}

impl Writer {
    pub(super) fn new(file: LogFile, max_bytes: u64, waiting: Waiting<Record>) -> Self {
        let (encoder, batch) = (Encoder::new(), Vec::new());
        Self { file, max_bytes, waiting, encoder, batch, records: 0, failure: None, next_rotation: None }
    }

    fn rotate(&mut self) {
        if self.failure.is_some() || self.next_rotation.is_some_and(|next| Instant::now() < next) {
            return;
        }
        match self.file.rotate() {
            Ok(()) => {
                self.encoder = Encoder::new();
                self.next_rotation = None;
            }
            Err(error) => {
                error!(
                    path = %self.file.path().display(), %error,
                    "the decision log is full and no new file can be begun: the full one is written on, and grows"
                );
                self.next_rotation = Some(Instant::now() + ROTATION_PAUSE);
            }
        }
    }

    fn fail(&mut self, error: &io::Error) {
        if self.failure.is_none() {
            error!(
                path = %self.file.path().display(), %error,
                "the decision log cannot be written: decisions are lost until it can, and requests are routed all the same"
            );
        }
        self.lose();
        if let Some(failure) = &mut self.failure {
            failure.next_attempt = Instant::now() + PAUSE;
        }
    }

    /// Gives up what is encoded.
    fn lose(&mut self) {
        let counters = &self.waiting.counters;
        counters.failing.store(true, Relaxed);
        counters.lost.fetch_add(self.records, Relaxed);
        self.failure.get_or_insert_with(|| Failure { next_attempt: Instant::now(), lost: 0 }).lost +=
            self.records;
        // Rules that were lost have to be written again.
        self.encoder = Encoder::new();
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use tempfile::tempdir;

    use super::*;
    use crate::{
        decisions::{Entry, Outcome, Reader},
        frontend::{
            decision_log::{
                memory::tests::kept,
                record::{LIMITS, Queue},
                settings::DecisionLogSettings,
            },
            log_queue::step,
        },
    };

    fn entries(path: impl AsRef<std::path::Path>) -> Vec<Entry> {
        Reader::new(&*fs::read(path).unwrap()).unwrap().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn every_file_can_be_read_by_itself() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("d");
        let settings = DecisionLogSettings { max_bytes: 2000, keep: 10, ..DecisionLogSettings::new(&path) };
        let (queue, waiting) = Queue::new(LIMITS);
        let mut writer = Writer::new(LogFile::open(&settings).unwrap(), settings.max_bytes, waiting);
        let one = kept(0, "r", 4);
        for _ in 0..40 {
            queue.put(Record::Decision(Arc::clone(&one)));
            queue.put(Record::Outcome(0, Outcome::default()));
        }
        drop(queue);
        while step(&mut writer) {}
        let full: Vec<_> = (1..=10)
            .map(|number| folder.path().join(format!("d.{number}")))
            .filter(|file| file.exists())
            .collect();
        assert!(full.len() >= 2, "{full:?}");
        let counts = full.iter().chain([&path]).map(|file| entries(file).len());
        assert_eq!(counts.sum::<usize>(), 80);
        for file in &full {
            let length = fs::metadata(file).unwrap().len();
            assert!((2000..2400).contains(&length), "{length}");
        }
        assert_eq!(writer.waiting.counters.written.load(Relaxed), 80);
        assert_eq!(writer.waiting.counters.waiting.load(Relaxed), 0);
    }

    #[test]
    fn a_full_file_is_written_on_while_no_other_can_be_begun() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("d");
        let settings = DecisionLogSettings { max_bytes: 1000, ..DecisionLogSettings::new(&path) };
        let (queue, waiting) = Queue::new(LIMITS);
        let mut writer = Writer::new(LogFile::open(&settings).unwrap(), settings.max_bytes, waiting);
        let one = kept(0, "r", 4);
        let put = |writer: &mut Writer| {
            queue.put(Record::Decision(Arc::clone(&one)));
            assert!(step(writer));
        };
        let in_the_way = folder.path().join("d.next");
        fs::create_dir(&in_the_way).unwrap();
        (0..40).for_each(|_| put(&mut writer));
        assert!(fs::metadata(&path).unwrap().len() > 2000);
        assert_eq!((entries(&path).len(), writer.waiting.counters.lost.load(Relaxed)), (40, 0));
        fs::remove_dir(&in_the_way).unwrap();
        writer.next_rotation = Some(Instant::now());
        put(&mut writer);
        put(&mut writer);
        assert_eq!((entries(folder.path().join("d.1")).len(), entries(&path).len()), (41, 1));
    }

    #[test]
    fn a_disk_that_is_full_costs_records_and_nothing_else() {
        let folder = tempdir().unwrap();
        let settings = DecisionLogSettings::new(folder.path().join("d"));
        let (queue, waiting) = Queue::new(LIMITS);
        let mut writer = Writer::new(LogFile::open(&settings).unwrap(), settings.max_bytes, waiting);
        let one = kept(0, "r", 4);
        let put = |writer: &mut Writer| {
            queue.put(Record::Decision(Arc::clone(&one)));
            assert!(step(writer));
        };
        put(&mut writer);
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let file = writer.file.exchange(full);
        put(&mut writer);
        put(&mut writer);
        let count = |writer: &Writer| {
            let counters = &writer.waiting.counters;
            (counters.written.load(Relaxed), counters.lost.load(Relaxed), counters.failing.load(Relaxed))
        };
        assert_eq!(count(&writer), (1, 2, true));
        writer.file.exchange(file);
        writer.failure.as_mut().unwrap().next_attempt = Instant::now();
        put(&mut writer);
        assert_eq!(count(&writer), (2, 2, false));
        assert_eq!(entries(&settings.path).len(), 2, "with the rule that the second needs");
    }
}
