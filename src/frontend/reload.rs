//! Files that are read again when they change: keys and certificates.
//!
//! What cannot be used changes nothing but a gauge, and is said once.

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use tracing::{error, info};

use super::{
    file_changes::{FileChanges, LOOK},
    settings::FrontendSettings,
};
use crate::{metrics::Page, tls::Identity};

/// What is in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    ApiKeys,
    Certificate,
    AdminCertificate,
    WorkerClientCertificate,
}

impl Kind {
    const ALL: [Self; 4] =
        [Self::ApiKeys, Self::Certificate, Self::AdminCertificate, Self::WorkerClientCertificate];

    const fn name(self) -> &'static str {
        match self {
            Self::ApiKeys => "api_keys",
            Self::Certificate => "tls_cert",
            Self::AdminCertificate => "admin_tls_cert",
            Self::WorkerClientCertificate => "worker_client_cert",
        }
    }
}

/// The files of a frontend that are read again.
#[derive(Default)]
pub(super) struct Files(Vec<Watched>);

/// Files that are read together.
struct Watched {
    kind: Kind,
    changes: FileChanges,
    reload: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// Held from the look at the files until what they say is in force: of two that read, the later one must not be overtaken, or what it
    /// read of keys that are gone would come back.
    turn: Mutex<()>,
    /// Relaxed: statistics.
    reloaded: AtomicU64,
    failed: AtomicU64,
    failing: AtomicBool,
}

impl Files {
    pub(super) fn of(settings: &FrontendSettings) -> Self {
        let mut files = Self::default();
        if let Some(keys) = settings.api_keys.clone() {
            files.add(Kind::ApiKeys, vec![keys.path().to_owned()], move || {
                keys.reload().map_err(|error| error.to_string())
            });
        }
        for (kind, identity) in [
            (Kind::Certificate, settings.tls.as_ref()),
            (Kind::AdminCertificate, settings.admin_tls.as_ref()),
            (Kind::WorkerClientCertificate, settings.upstream.tls.identity()),
        ] {
            let Some(identity) = identity.map(Arc::<Identity>::clone) else { continue };
            let paths = vec![identity.certificate().to_owned(), identity.key().to_owned()];
            files.add(kind, paths, move || identity.reload().map_err(|error| error.to_string()));
        }
        files
    }

    fn add(
        &mut self,
        kind: Kind,
        paths: Vec<PathBuf>,
        reload: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        let watched = Watched {
            kind,
            changes: FileChanges::since_now(paths),
            reload: Box::new(reload),
            turn: Mutex::new(()),
            reloaded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            failing: AtomicBool::new(false),
        };
        // The configuration read them a while ago: what changed between that and the look above would go unnoticed.
        watched.note((watched.reload)().err());
        self.0.push(watched);
    }

    /// Looks at all files now and then, for as long as it is polled.
    pub(super) async fn watch(self: Arc<Self>) {
        if self.0.is_empty() {
            return;
        }
        let mut ticks = tokio::time::interval(LOOK);
        loop {
            ticks.tick().await;
            let files = Arc::clone(&self);
            let _ = tokio::task::spawn_blocking(move || files.look()).await;
        }
    }

    /// Reads again what has changed, and has not changed further since the last look.
    fn look(&self) {
        for watched in &self.0 {
            let _turn = watched.turn.lock();
            if watched.changes.have_settled() {
                watched.read();
            }
        }
    }

    /// Reads all files again, changed or not.
    pub(super) fn reload(&self) {
        for watched in &self.0 {
            let _turn = watched.turn.lock();
            watched.changes.note_reading();
            watched.read();
        }
    }

    /// Writes how reading went; all are 0 for files that there are none of.
    pub(super) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let of = |kind| self.0.iter().find(|watched| watched.kind == kind);
        let count =
            |kind, count: fn(&Watched) -> &AtomicU64| of(kind).map_or(0, |of| count(of).load(Relaxed));
        let rows = Kind::ALL.into_iter().flat_map(|kind| {
            [("ok", count(kind, |of| &of.reloaded)), ("failed", count(kind, |of| &of.failed))]
                .map(|(result, count)| ([("file", kind.name()), ("result", result)], count))
        });
        let rows: Vec<_> = rows.collect();
        let rows = rows.iter().map(|(labels, count)| (&labels[..], *count));
        page.counters("file_reloads", "Times that files of keys and certificates were read again", rows)?;
        let failing = Kind::ALL.into_iter().map(|kind| {
            let failing = of(kind).is_some_and(|of| of.failing.load(Relaxed));
            ([("file", kind.name())], i64::from(failing))
        });
        let failing: Vec<_> = failing.collect();
        page.gauges(
            "file_reload_failing",
            "1 while a file cannot be used and what was read of it before counts on",
            failing.iter().map(|(labels, failing)| (&labels[..], *failing)),
        )
    }
}

impl Watched {
    fn read(&self) {
        let problem = (self.reload)().err();
        if problem.is_none() {
            self.reloaded.fetch_add(1, Relaxed);
            info!(file = self.kind.name(), "read again");
        }
        self.note(problem);
    }

    /// Says why the files cannot be used, or that they can.
    fn note(&self, problem: Option<String>) {
        self.failing.store(problem.is_some(), Relaxed);
        if let Some(problem) = problem {
            self.failed.fetch_add(1, Relaxed);
            error!(file = self.kind.name(), problem, "cannot be used: what was read before counts on");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::tempdir;

    use super::*;

    fn counts(files: &Files) -> (u64, u64, bool) {
        let watched = &files.0[0];
        (watched.reloaded.load(Relaxed), watched.failed.load(Relaxed), watched.failing.load(Relaxed))
    }

    #[test]
    fn a_change_is_read_once_it_has_settled_and_a_bad_file_only_once() {
        let folder = tempdir().unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        fs::write(&paths[0], "1").unwrap();
        fs::write(&paths[1], "1").unwrap();
        let mut files = Files::default();
        let read = paths.clone();
        files.add(Kind::Certificate, paths.to_vec(), move || {
            let [a, b] = read.each_ref().map(|path| fs::read_to_string(path).unwrap_or_default());
            if a == b { Ok(()) } else { Err("they do not fit".to_owned()) }
        });
        files.look();
        assert_eq!(counts(&files), (0, 0, false));

        fs::write(&paths[0], "22").unwrap();
        files.look();
        fs::write(&paths[1], "22").unwrap();
        files.look();
        assert_eq!(counts(&files), (0, 0, false), "half of a change is not read");
        files.look();
        assert_eq!(counts(&files), (1, 0, false));
        files.look();
        assert_eq!(counts(&files), (1, 0, false));

        fs::remove_file(&paths[1]).unwrap();
        (0..4).for_each(|_| files.look());
        assert_eq!(counts(&files), (1, 1, true));
        // Another file in its place, as long and as old as may be.
        fs::write(folder.path().join("c"), "22").unwrap();
        fs::rename(folder.path().join("c"), &paths[1]).unwrap();
        (0..4).for_each(|_| files.look());
        assert_eq!(counts(&files), (2, 1, false));
        files.reload();
        assert_eq!(counts(&files), (3, 1, false));
    }
}
