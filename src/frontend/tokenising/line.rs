//! Threads that serve one bounded queue of work.
//!
//! A piece of work leaves the queue when a thread takes it, or when nobody waits for it any more. Threads are started when
//! there is work for them, and stay.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;
use tracing::{error, warn};

/// The face of a queue and its threads. Dropping it ends the threads, each after what it is at.
#[derive(Debug)]
pub(super) struct Line(Arc<Shared>);

/// How a line is set up.
#[derive(Clone, Debug)]
pub(super) struct LineSettings {
    /// Of its threads, and in metrics.
    pub(super) name: &'static str,
    /// Threads at most; at least one.
    pub(super) threads: usize,
    /// How much work may wait while all of them are busy.
    pub(super) limit: usize,
    /// Whether the threads give way to others, where the platform can do that.
    pub(super) gives_way: bool,
}

#[derive(Debug)]
struct Shared {
    settings: LineSettings,
    state: Mutex<State>,
    /// There is work, or the end.
    changed: Condvar,
    /// Relaxed: a statistic.
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Job>,
    last_number: u64,
    threads: usize,
    /// Threads that wait for work. One that was woken counts until it has taken what it was woken for.
    idle: usize,
    closed: bool,
}

struct Job {
    number: u64,
    work: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Why there is no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotDone {
    /// As much waits as may.
    Full,
    /// The work panicked, or no thread could be started for it.
    Broken,
}

/// Says whether anybody still waits for a result.
pub(super) struct Waiter<T>(oneshot::Sender<T>);

impl<T> Waiter<T> {
    pub(super) fn has_left(&self) -> bool {
        self.0.is_closed()
    }
}

/// Lets work leave the queue with whoever waits for it.
struct Place {
    line: Arc<Shared>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.line.state.lock();
        let place = state.waiting.iter().position(|job| job.number == self.number);
        let left = place.and_then(|place| state.waiting.remove(place));
        drop(state);
        // The prompt in it is freed outside of the lock.
        drop(left);
    }
}

impl Line {
    pub(super) fn new(settings: LineSettings) -> Self {
        Self(Arc::new(Shared {
            settings,
            state: Mutex::default(),
            changed: Condvar::new(),
            refused: AtomicU64::new(0),
        }))
    }

    /// Has a thread do `work`, and waits for what it returns; `None` from it means that it gave up because nobody waits.
    ///
    /// # Errors
    /// [`NotDone`].
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Waiter<T>) -> Option<T> + Send + 'static,
    ) -> Result<T, NotDone> {
        let (sender, receiver) = oneshot::channel();
        let waiter = Waiter(sender);
        let number = self.0.push(Box::new(move || {
            if let Some(result) = work(&waiter) {
                // Whoever left meanwhile does not want it.
                let _ = waiter.0.send(result);
            }
        }))?;
        let _place = Place { line: Arc::clone(&self.0), number };
        receiver.await.map_err(|_| NotDone::Broken)
    }

    /// Has a thread do `work` that nobody waits for.
    ///
    /// # Errors
    /// [`NotDone`].
    pub(super) fn leave(&self, work: impl FnOnce() + Send + 'static) -> Result<(), NotDone> {
        self.0.push(Box::new(work)).map(drop)
    }

    pub(super) fn name(&self) -> &'static str {
        self.0.settings.name
    }

    /// How much work no thread has taken yet.
    pub(super) fn waiting(&self) -> usize {
        self.0.state.lock().waiting.len()
    }

    /// How much work was refused.
    pub(super) fn refused(&self) -> u64 {
        self.0.refused.load(Relaxed)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        let left = std::mem::take(&mut state.waiting);
        drop(state);
        self.0.changed.notify_all();
        drop(left);
    }
}

impl Shared {
    fn push(self: &Arc<Self>, work: Box<dyn FnOnce() + Send>) -> Result<u64, NotDone> {
        let mut state = self.state.lock();
        let free = state.idle + (self.settings.threads.max(1) - state.threads);
        if state.waiting.len() >= free.saturating_add(self.settings.limit) {
            self.refused.fetch_add(1, Relaxed);
            return Err(NotDone::Full);
        }
        state.last_number += 1;
        let number = state.last_number;
        state.waiting.push_back(Job { number, work });
        if state.waiting.len() > state.idle && state.threads < self.settings.threads.max(1) {
            match self.start() {
                Ok(()) => state.threads += 1,
                // Those that run will come to it.
                Err(_) if state.threads > 0 => {}
                Err(problem) => {
                    error!(%problem, "no thread can be started to tokenise prompts");
                    state.waiting.pop_back();
                    return Err(NotDone::Broken);
                }
            }
        }
        drop(state);
        self.changed.notify_one();
        Ok(number)
    }

    fn start(self: &Arc<Self>) -> io::Result<()> {
        let line = Arc::clone(self);
        let name = format!("tokenise-{}", self.settings.name);
        thread::Builder::new().name(name).spawn(move || line.serve()).map(drop)
    }

    fn serve(&self) {
        if self.settings.gives_way {
            give_way();
        }
        while let Some(job) = self.next() {
            // A panic is the one prompt's trouble, which learns of it by its result not coming.
            if catch_unwind(AssertUnwindSafe(job.work)).is_err() {
                warn!("tokenising a prompt panicked; it is routed by load alone");
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(job) = state.waiting.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            self.changed.wait(&mut state);
            state.idle -= 1;
        }
    }
}

/// Lets other threads go first. On Linux a thread has a priority of its own; elsewhere it would be the whole process's.
#[cfg(target_os = "linux")]
fn give_way() {
    /// About a tenth of an ordinary thread's share, where both want to run.
    const NICENESS: i32 = 10;

    if let Err(problem) = rustix::process::nice(NICENESS) {
        warn!(%problem, "threads that tokenise long prompts run at the priority of all others");
    }
}

#[cfg(not(target_os = "linux"))]
fn give_way() {}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn line(threads: usize, limit: usize) -> Line {
        Line::new(LineSettings { name: "test", threads, limit, gives_way: true })
    }

    /// Occupies a thread until the sender is dropped.
    fn occupy(line: &Line) -> mpsc::Sender<()> {
        let (open, gate) = mpsc::channel::<()>();
        let (begun, began) = mpsc::channel();
        line.leave(move || {
            begun.send(()).unwrap();
            let _ = gate.recv();
        })
        .unwrap();
        began.recv().unwrap();
        open
    }

    #[tokio::test]
    async fn work_is_done_and_its_result_returned() {
        let line = line(2, 1);
        for number in 0..100 {
            assert_eq!(line.run(move |_| Some(number)).await, Ok(number));
        }
        assert_eq!((line.waiting(), line.refused()), (0, 0));
    }

    #[tokio::test]
    async fn beyond_the_limit_work_is_refused_and_within_it_waits() {
        let line = line(2, 1);
        let gates = [occupy(&line), occupy(&line)];
        let mut waits = std::pin::pin!(line.run(|_| Some("waited")));
        assert!(futures_util::poll!(&mut waits).is_pending());
        assert_eq!(line.waiting(), 1);
        assert_eq!(line.run(|_| Some(())).await, Err(NotDone::Full));
        assert_eq!(line.refused(), 1);
        drop(gates);
        assert_eq!(waits.await, Ok("waited"));
        assert_eq!(line.waiting(), 0);
    }

    #[tokio::test]
    async fn whoever_leaves_takes_their_work_out_of_the_queue() {
        let line = line(1, 1);
        let gate = occupy(&line);
        {
            let mut leaves = std::pin::pin!(line.run(|_: &Waiter<()>| panic!("nobody waits for this")));
            assert!(futures_util::poll!(&mut leaves).is_pending());
            assert_eq!(line.waiting(), 1);
        }
        assert_eq!(line.waiting(), 0);
        let mut takes_the_place = std::pin::pin!(line.run(|_| Some(7)));
        assert!(futures_util::poll!(&mut takes_the_place).is_pending());
        drop(gate);
        assert_eq!(takes_the_place.await, Ok(7));
    }

    #[tokio::test]
    async fn work_that_is_under_way_can_see_that_nobody_waits() {
        let line = line(1, 0);
        let (told, tells) = mpsc::channel();
        let (open, gate) = mpsc::channel::<()>();
        {
            let mut leaves = std::pin::pin!(line.run(move |waiter: &Waiter<()>| {
                told.send(waiter.has_left()).unwrap();
                let _ = gate.recv();
                told.send(waiter.has_left()).unwrap();
                None
            }));
            assert!(futures_util::poll!(&mut leaves).is_pending());
            assert!(!tells.recv().unwrap());
        }
        drop(open);
        assert!(tells.recv().unwrap());
    }

    #[tokio::test]
    async fn a_panic_breaks_one_piece_of_work_and_not_the_thread() {
        let line = line(1, 1);
        assert_eq!(line.run(|_: &Waiter<()>| panic!("a bad prompt")).await, Err(NotDone::Broken));
        assert_eq!(line.run(|_| Some(1)).await, Ok(1));
    }

    #[tokio::test]
    async fn threads_end_with_the_line() {
        let (shared, open) = {
            let line = line(1, 5);
            let gate = occupy(&line);
            line.leave(|| panic!("it waits for ever")).unwrap();
            (Arc::downgrade(&line.0), gate)
        };
        drop(open);
        while shared.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
