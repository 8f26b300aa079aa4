//! Load on a device that is not this router's doing.
//!
//! A GPU may serve others: another router, a client that goes around it, another process. NVML's utilisation says for
//! how much of the time *any* kernel ran, and one request of ours keeps a kernel running nearly all the time. So while
//! there is a request of ours, utilisation tells nothing of others; while there is none, all of it is theirs.

use super::weight::share_left;

/// Half of a change in what is seen of others shows after so long, in milliseconds.
const SEEN_HALF_LIFE_MS: f64 = 5_000.0;

/// While nothing can be seen of others, half of what was last seen is believed after so long, in milliseconds.
const UNSEEN_HALF_LIFE_MS: f64 = 30_000.0;

/// An estimate of the share of time that a device works for others, 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct External {
    load: f64,
    /// When it was last changed; none before the first sample.
    at_ms: Option<u64>,
    /// Requests of ours in flight, and all that were ever sent, at the last sample.
    before: (u32, u64),
}

impl External {
    /// How many requests of ours were in flight there since the sample before, on average, as far as two looks tell:
    /// `requests` are in flight now, and `sent` were ever sent. Call it once a sample.
    pub fn own_requests(&mut self, requests: u32, sent: u64) -> f64 {
        let (requests_before, sent_before) = std::mem::replace(&mut self.before, (requests, sent));
        let own = f64::from(requests_before + requests) / 2.0;
        // One that came and went between two samples explains what was seen, too.
        if sent == sent_before { own } else { own.max(1.0) }
    }

    /// Takes in a sample: the device's `utilisation`, 0 to 1, where it is known and is this worker's device for sure
    /// (the engine's own process was among those on it); and our [`own requests`](Self::own_requests) there, each of which
    /// explains one device's worth of utilisation.
    ///
    /// An unknown utilisation is a sample in which nothing is seen. `now_ms` never goes back.
    pub fn observe(&mut self, utilisation: Option<f64>, own_requests: f64, now_ms: u64) {
        let elapsed = self.at_ms.map_or(0.0, |at| now_ms.saturating_sub(at) as f64);
        let first = self.at_ms.is_none();
        self.at_ms = Some(now_ms);
        let unexplained = utilisation
            .filter(|_| own_requests < 1.0)
            .map(|utilisation| (utilisation.clamp(0.0, 1.0) - own_requests.max(0.0)).max(0.0));
        self.load = match unexplained {
            Some(seen) if first => seen,
            Some(seen) => seen + (self.load - seen) * share_left(elapsed, SEEN_HALF_LIFE_MS),
            None => self.load * share_left(elapsed, UNSEEN_HALF_LIFE_MS),
        };
    }

    /// The estimate as of the last sample.
    #[must_use]
    pub const fn load(&self) -> f64 {
        self.load
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_our_own_requests_explain_is_not_others() {
        let mut external = External::default();
        for (utilisation, own, expected) in
            [(Some(0.8), 0.0, 0.8), (Some(0.8), 0.5, 0.3), (Some(0.8), 1.0, 0.0), (None, 0.0, 0.0)]
        {
            external = External::default();
            external.observe(utilisation, own, 0);
            assert!((external.load() - expected).abs() < 1e-12, "{utilisation:?} {own}");
        }
        external.observe(Some(f64::INFINITY), -1.0, 0);
        assert!(external.load() <= 1.0);
    }

    #[test]
    fn our_own_are_those_of_both_looks_and_one_that_came_and_went_between_them() {
        let mut external = External::default();
        let own = [(3, 3), (0, 3), (0, 3), (0, 4), (1, 4), (4, 9)]
            .map(|(requests, sent)| external.own_requests(requests, sent));
        assert_eq!(own, [1.5, 1.5, 0.0, 1.0, 0.5, 2.5]);
    }

    #[test]
    fn it_follows_what_is_seen_and_forgets_slowly_what_is_not() {
        let mut external = External::default();
        external.observe(Some(0.0), 0.0, 0);
        external.observe(Some(1.0), 0.0, 5_000);
        assert!((external.load() - 0.5).abs() < 1e-12);
        external.observe(Some(1.0), 7.0, 5_000 + 30_000);
        assert!((external.load() - 0.25).abs() < 1e-12, "busy with ours: half after half a minute");
        external.observe(Some(0.0), 0.0, 5_000 + 30_000 + 5_000);
        assert!((external.load() - 0.125).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn it_stays_a_share(samples in prop::collection::vec((prop::option::of(any::<f64>()), any::<f64>(), 0_u64..100_000), 1..50)) {
            let mut external = External::default();
            let mut now = 0;
            for (utilisation, own, pause) in samples {
                now += pause;
                external.observe(utilisation.filter(|value| !value.is_nan()), own, now);
                prop_assert!((0.0..=1.0).contains(&external.load()), "{external:?}");
            }
        }
    }
}
