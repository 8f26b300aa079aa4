//! How many replays run at once, over all streams.
//!
//! After a frontend's start every rank wants a replay, and each is as much as its engine's buffer holds. All at once they would
//! share the network and the appliers so that none is through for long, and would hold what arrives live meanwhile. So a few
//! run, and the others wait in the order in which they asked; what arrives for them meanwhile their own replays bring.

use std::{
    collections::VecDeque,
    fmt,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;

/// The replays of all streams that share it.
#[derive(Debug)]
pub(super) struct Replays {
    limit: NonZeroUsize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    running: usize,
    /// Whoever asked first is first.
    waiting: VecDeque<Arc<Asker>>,
}

/// Replays at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplayTotals {
    /// How many may run.
    pub limit: usize,
    /// How many do.
    pub running: usize,
    /// Streams that wait for one.
    pub waiting: usize,
}

struct Asker {
    granted: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asker").field("granted", &self.granted).finish_non_exhaustive()
    }
}

/// A replay that may run, or waits until it may. Dropping it lets the next one run.
#[derive(Debug)]
pub(super) struct Permit {
    replays: Arc<Replays>,
    asker: Arc<Asker>,
}

impl Replays {
    pub(super) fn new(limit: NonZeroUsize) -> Arc<Self> {
        Arc::new(Self { limit, queue: Mutex::default() })
    }

    /// Asks for a replay. If it has to wait, `wake` is called once it may run, from another thread.
    pub(super) fn ask(self: &Arc<Self>, wake: impl Fn() + Send + Sync + 'static) -> Permit {
        let mut queue = self.queue.lock();
        let runs = queue.running < self.limit.get();
        let asker = Arc::new(Asker { granted: AtomicBool::new(runs), wake: Box::new(wake) });
        if runs {
            queue.running += 1;
        } else {
            queue.waiting.push_back(Arc::clone(&asker));
        }
        Permit { replays: Arc::clone(self), asker }
    }

    pub(super) fn totals(&self) -> ReplayTotals {
        let queue = self.queue.lock();
        ReplayTotals { limit: self.limit.get(), running: queue.running, waiting: queue.waiting.len() }
    }
}

impl Permit {
    /// Whether the replay may run.
    pub(super) fn is_granted(&self) -> bool {
        // Relaxed: a fact of its own. Whoever is told by `wake` looks after it, and that goes through a pipe.
        self.asker.granted.load(Relaxed)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut queue = self.replays.queue.lock();
        // Grants are given under the lock, so this does not change meanwhile.
        if !self.is_granted() {
            queue.waiting.retain(|asker| !Arc::ptr_eq(asker, &self.asker));
            return;
        }
        queue.running -= 1;
        let Some(next) = queue.waiting.pop_front() else { return };
        queue.running += 1;
        next.granted.store(true, Relaxed);
        drop(queue);
        (next.wake)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Arc<Replays> {
        Replays::new(NonZeroUsize::new(2).unwrap())
    }

    #[test]
    fn those_who_asked_first_run_first() {
        let (replays, order) = (two(), Arc::new(Mutex::new(Vec::new())));
        let ask = |number: u32| {
            let order = Arc::clone(&order);
            replays.ask(move || order.lock().push(number))
        };
        let mut permits: VecDeque<Permit> = (0..5).map(ask).collect();
        assert_eq!(replays.totals(), ReplayTotals { limit: 2, running: 2, waiting: 3 });
        while let Some(permit) = permits.pop_front() {
            assert!(permit.is_granted());
        }
        assert_eq!(*order.lock(), [2, 3, 4]);
        assert_eq!(replays.totals(), ReplayTotals { limit: 2, running: 0, waiting: 0 });
    }

    #[test]
    fn whoever_gives_up_waiting_is_not_woken() {
        let replays = two();
        let woken = Arc::new(AtomicBool::new(false));
        let first = replays.ask(|| {});
        let _second = replays.ask(|| {});
        let third = replays.ask(|| panic!("it has left"));
        let seen = Arc::clone(&woken);
        let fourth = replays.ask(move || seen.store(true, Relaxed));
        drop(third);
        drop(first);
        assert!(fourth.is_granted() && woken.load(Relaxed));
        assert_eq!(replays.totals(), ReplayTotals { limit: 2, running: 2, waiting: 0 });
    }
}
