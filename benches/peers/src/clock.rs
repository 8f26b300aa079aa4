//! Two clocks: ticks around single calls, CPU time around long work.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

/// Now, in ticks of a steady counter. Reading it takes some 10 ns, which are part of every latency here.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    let mut core = 0;
    // SAFETY: every x86-64 processor that runs the peers has the instruction; `core` is a place to write to.
    unsafe { std::arch::x86_64::__rdtscp(&mut core) }
}

/// Now, in nanoseconds.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

/// Nanoseconds a tick, found out once.
pub(crate) fn nanos_per_tick() -> f64 {
    static RATIO: LazyLock<f64> = LazyLock::new(|| {
        let (wall, start) = (Instant::now(), ticks());
        while wall.elapsed() < Duration::from_millis(100) {}
        wall.elapsed().as_nanos() as f64 / (ticks() - start) as f64
    });
    *RATIO
}

/// CPU time that the calling thread has used. Unlike time on the wall it does not grow while others have the core.
pub(crate) fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a place to write to, and the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The threads that a peer starts for itself, so that their CPU time can be told from ours.
pub(crate) struct Threads {
    folders: Vec<PathBuf>,
}

impl Threads {
    /// Runs `start` and remembers the threads that exist since then.
    pub(crate) fn started_by<T>(start: impl FnOnce() -> T) -> (T, Self) {
        let before = list();
        let result = start();
        (result, Self { folders: list().into_iter().filter(|folder| !before.contains(folder)).collect() })
    }

    /// The CPU time they have used; exact while they wait for work.
    pub(crate) fn cpu_time(&self) -> Duration {
        // The kernel brings the figure up to date when a thread goes to sleep, and one that has just told us
        // that it is done may not yet have.
        thread::sleep(Duration::from_millis(2));
        self.folders.iter().map(|folder| running_time(folder.as_path())).sum()
    }
}

fn list() -> Vec<PathBuf> {
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten();
    entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect()
}

fn running_time(thread: &Path) -> Duration {
    let text = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
    let nanos = text.split_whitespace().next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}
