//! The thread that writes.

use std::{
    fs::{File, Metadata, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use tracing::{error, info};

use super::settings::AccessLogTarget;
use crate::frontend::log_queue::{self, Entry, Limits, Waiting};

/// How many lines may wait. The longest has two thousand bytes.
pub(super) const LIMITS: Limits = Limits { entries: 8192, bytes: u64::MAX };

pub(in crate::frontend) type Queue = log_queue::Queue<Logged>;

/// A line with its end.
pub(in crate::frontend) struct Logged(pub(super) Vec<u8>);

impl Entry for Logged {
    const DROPPED: &str = "the access log does not keep up: lines are dropped and counted (kvroute_access_log_lines_total); this is not \
                           said again. A faster disk, or a reader that does not stand still, keeps them";

    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

/// How often it is looked whether the file still lies where it was opened.
const LOOK: Duration = Duration::from_secs(1);

enum Destination {
    Stdout,
    File { path: PathBuf, file: File, looked: Instant },
}

/// Writes lines.
pub(super) struct Writer {
    destination: Destination,
    waiting: Waiting<Logged>,
    /// Lines that are taken and not written, and how many they are.
    batch: Vec<u8>,
    lines: u64,
}

impl Writer {
    pub(super) fn open(target: &AccessLogTarget, waiting: Waiting<Logged>) -> io::Result<Self> {
        let destination = match target {
            AccessLogTarget::Stdout => Destination::Stdout,
            AccessLogTarget::File(path) => {
                Destination::File { path: path.clone(), file: append_to(path)?, looked: Instant::now() }
            }
        };
        Ok(Self { destination, waiting, batch: Vec::new(), lines: 0 })
    }
}

impl log_queue::Writer for Writer {
    type Entry = Logged;

    fn waiting(&self) -> &Waiting<Logged> {
        &self.waiting
    }

    fn unwritten(&self) -> usize {
        self.batch.len()
    }

    fn take(&mut self, Logged(line): Logged) {
        self.batch.extend_from_slice(&line);
        self.lines += 1;
    }

    fn write(&mut self) {
        if self.lines == 0 {
            return;
        }
        let counters = &self.waiting.counters;
        match self.destination.append(&self.batch) {
            Ok(()) => {
                counters.written.fetch_add(self.lines, Relaxed);
                if counters.failing.swap(false, Relaxed) {
                    info!(lost = counters.lost.load(Relaxed), "the access log is written again");
                }
            }
            Err(error) => {
                counters.lost.fetch_add(self.lines, Relaxed);
                if !counters.failing.swap(true, Relaxed) {
                    error!(
                        %error,
                        "the access log cannot be written: lines are lost until it can, and requests are served all the same"
                    );
                }
            }
        }
        self.batch.clear();
        self.lines = 0;
    }
}

impl Destination {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes)?;
                out.flush()
            }
            Self::File { path, file, looked } => {
                if looked.elapsed() >= LOOK {
                    *looked = Instant::now();
                    // Whoever rotates logs moves the file away and expects a new one.
                    if !is_at(file, path) {
                        *file = append_to(path)?;
                    }
                }
                file.write_all(bytes)
            }
        }
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Whether an open file is what lies at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    let inode = |of: Metadata| (of.dev(), of.ino());
    let open = file.metadata().map(inode);
    open.is_ok_and(|open| path.metadata().is_ok_and(|there| inode(there) == open))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::tempdir;

    use super::*;
    use crate::frontend::log_queue::step;

    #[test]
    fn a_file_that_is_moved_away_gets_a_successor_and_a_full_disk_costs_lines_alone() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("access");
        fs::write(&path, "before\n").unwrap();
        let (queue, waiting) = Queue::new(LIMITS);
        let mut writer = Writer::open(&AccessLogTarget::File(path.clone()), waiting).unwrap();
        let put = |writer: &mut Writer, line: &str| {
            queue.put(Logged(format!("{line}\n").into_bytes()));
            assert!(step(writer));
        };
        put(&mut writer, "one");
        let moved = folder.path().join("access.1");
        fs::rename(&path, &moved).unwrap();
        let Destination::File { looked, .. } = &mut writer.destination else { panic!() };
        *looked -= LOOK;
        put(&mut writer, "two");
        assert_eq!(fs::read_to_string(&moved).unwrap(), "before\none\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");

        let Destination::File { file, .. } = &mut writer.destination else { panic!() };
        let good = std::mem::replace(file, OpenOptions::new().write(true).open("/dev/full").unwrap());
        put(&mut writer, "three");
        let Destination::File { file, .. } = &mut writer.destination else { panic!() };
        *file = good;
        let count = |writer: &Writer| {
            let counters = &writer.waiting.counters;
            (counters.written.load(Relaxed), counters.lost.load(Relaxed), counters.failing.load(Relaxed))
        };
        assert_eq!(count(&writer), (2, 1, true));
        put(&mut writer, "four");
        assert_eq!(count(&writer), (3, 1, false));
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\nfour\n");
    }
}
