//! Who has to be heard of, and until when.

use std::time::{Duration, Instant};

use ahash::AHashMap;
use parking_lot::Mutex;

use crate::slot::WorkerId;

/// The leases of all workers. Its mutex is held for a look-up only, so that a heartbeat never waits for a
/// change of the fleet, which may be joining threads.
#[derive(Debug, Default)]
pub(super) struct Leases {
    /// `None` for workers from files and flags, which stay until they are removed.
    of: Mutex<AHashMap<WorkerId, Option<Lease>>>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    length: Duration,
    /// `None` if it lies beyond what the clock can tell.
    expires: Option<Instant>,
}

impl Lease {
    fn from(now: Instant, length: Duration) -> Self {
        Self { length, expires: now.checked_add(length) }
    }

    fn is_over(self, now: Instant) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

impl Leases {
    /// Gives a worker a lease of `length`, in place of the one it may have. A worker that stays without a lease
    /// goes on doing so: what a file says is not undone by a registration.
    pub(super) fn grant(&self, id: WorkerId, length: Option<Duration>, now: Instant) {
        let lease = length.map(|length| Lease::from(now, length));
        self.of.lock().entry(id).and_modify(|known| *known = known.and(lease)).or_insert(lease);
    }

    /// Notes a heartbeat; false if there is no such worker.
    pub(super) fn renew(&self, id: WorkerId, now: Instant) -> bool {
        let mut of = self.of.lock();
        let Some(lease) = of.get_mut(&id) else { return false };
        *lease = lease.map(|lease| Lease::from(now, lease.length));
        true
    }

    /// The worker is gone.
    pub(super) fn end(&self, id: WorkerId) {
        self.of.lock().remove(&id);
    }

    /// Whether any lease is over.
    pub(super) fn any_over(&self, now: Instant) -> bool {
        self.of.lock().values().flatten().any(|lease| lease.is_over(now))
    }

    /// Ends the leases that are over and says whose they were, lowest id first. From here on a heartbeat of
    /// theirs finds nobody.
    pub(super) fn take_over(&self, now: Instant) -> Vec<WorkerId> {
        let mut of = self.of.lock();
        let over = of.extract_if(|_, lease| lease.is_some_and(|lease| lease.is_over(now)));
        let mut ids: Vec<_> = over.map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: WorkerId = WorkerId(1);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_heartbeat_starts_the_lease_anew() {
        let (leases, start) = (Leases::default(), Instant::now());
        leases.grant(A, Some(SECOND), start);
        assert!(leases.renew(A, start + SECOND / 2));
        assert!(!leases.any_over(start + SECOND));
        assert_eq!(leases.take_over(start + SECOND * 2), [A]);
        assert!(!leases.renew(A, start + SECOND * 2), "nobody is left to be heard of");
    }

    #[test]
    fn a_registration_changes_the_length_of_a_lease() {
        let (leases, start) = (Leases::default(), Instant::now());
        leases.grant(A, Some(SECOND), start);
        leases.grant(A, Some(SECOND * 9), start);
        assert!(!leases.any_over(start + SECOND * 8));
        assert!(leases.any_over(start + SECOND * 9));
    }

    #[test]
    fn a_worker_that_stays_never_gets_a_lease() {
        let (leases, start) = (Leases::default(), Instant::now());
        leases.grant(A, None, start);
        leases.grant(A, Some(SECOND), start);
        assert!(!leases.any_over(start + SECOND * 100));
        leases.end(A);
        leases.grant(A, Some(SECOND), start);
        assert!(leases.any_over(start + SECOND));
    }

    #[test]
    fn a_lease_beyond_all_clocks_does_not_end() {
        let (leases, start) = (Leases::default(), Instant::now());
        leases.grant(A, Some(Duration::MAX), start);
        assert!(!leases.any_over(start + SECOND) && leases.renew(A, start));
    }
}
