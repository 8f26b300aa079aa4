//! Whether files have changed since they were read.
//!
//! Files are looked at once a second, and have changed once two looks in a row saw the same change: whoever replaces a
//! certificate and its key does so one after the other, and an editor may write a file in several steps.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use parking_lot::Mutex;

/// How often files are looked at.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// Files that are read together.
pub(super) struct FileChanges {
    paths: Vec<PathBuf>,
    seen: Mutex<Seen>,
}

/// How files stood.
struct Seen {
    /// When they were last read.
    read: Stamps,
    /// When they were last looked at.
    last: Stamps,
}

type Stamps = Vec<Option<Stamp>>;

/// What changes with a file: what lies there, when it was written, and how long it is.
type Stamp = (u64, u64, i64, i64, u64);

fn stamp(path: &Path) -> Option<Stamp> {
    let of = fs::metadata(path).ok()?;
    Some((of.dev(), of.ino(), of.mtime(), of.mtime_nsec(), of.size()))
}

impl FileChanges {
    /// Of files that are about to be read.
    pub(super) fn since_now(paths: Vec<PathBuf>) -> Self {
        let now: Stamps = paths.iter().map(|path| stamp(path)).collect();
        Self { paths, seen: Mutex::new(Seen { read: now.clone(), last: now }) }
    }

    fn stamps(&self) -> Stamps {
        self.paths.iter().map(|path| stamp(path)).collect()
    }

    /// Looks at them: whether they have changed, and not further since the last look. Who is told so is about to read them.
    pub(super) fn have_settled(&self) -> bool {
        let now = self.stamps();
        let mut seen = self.seen.lock();
        let settled = now != seen.read && now == seen.last;
        seen.last.clone_from(&now);
        if settled {
            seen.read = now;
        }
        settled
    }

    /// They are about to be read, changed or not.
    pub(super) fn note_reading(&self) {
        let now = self.stamps();
        self.seen.lock().read = now;
    }
}
