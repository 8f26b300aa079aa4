//! A histogram of durations that many cores can observe into at once.

use std::{
    cell::Cell,
    fmt,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use crossbeam_utils::CachePadded;

/// Upper bounds of the buckets, each included in its bucket: 1, 2 and 5 times the powers of ten from 1 µs to 20 s,
/// and 60 s. A bucket without a bound follows the last. Fine enough to tell a routing decision of 5 µs from
/// one of 10 µs, and wide enough for the time to a first token behind a queue.
pub const BOUNDS: [Duration; BOUNDED] = {
    let mut bounds = [Duration::from_secs(60); BOUNDED];
    let mut power = 1;
    let mut at = 0;
    while at + 1 < BOUNDED {
        bounds[at] = Duration::from_micros(power * [1, 2, 5][at % 3]);
        at += 1;
        if at % 3 == 0 {
            power *= 10;
        }
    }
    bounds
};

const BOUNDED: usize = 24;
/// With the one that has no bound.
const BUCKETS: usize = BOUNDED + 1;
/// Copies of the counters. Threads beyond this number share, which costs time and nothing else.
const SHARDS: usize = 16;

/// Counts durations by bucket.
///
/// Each thread adds to one of a few copies of the counters, on cache lines of their own, and whoever reads adds the
/// copies up: observing takes no lock, allocates nothing, and does not make two cores fight over a line.
pub struct Histogram {
    shards: [CachePadded<Shard>; SHARDS],
}

struct Shard {
    buckets: [AtomicU64; BUCKETS],
    /// Nanoseconds; it wraps after 584 years of observed time.
    sum: AtomicU64,
}

/// What a [`Histogram`] held at one moment.
///
/// While others observe, the moment differs by a few observations between buckets and sum; the count is that of
/// the buckets, so it always agrees with them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Observations by bucket, not cumulative: one for each of [`BOUNDS`], and one for what is above all of them.
    pub buckets: [u64; BOUNDED + 1],
    /// All observed durations together.
    pub sum: Duration,
}

impl Histogram {
    /// An empty histogram.
    #[must_use]
    pub fn new() -> Self {
        let shard = || {
            let buckets = std::array::from_fn(|_| AtomicU64::new(0));
            CachePadded::new(Shard { buckets, sum: AtomicU64::new(0) })
        };
        Self { shards: std::array::from_fn(|_| shard()) }
    }

    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        let shard = &self.shards[shard_of_this_thread()];
        let bucket = BOUNDS.partition_point(|&bound| bound < duration);
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: the counters order nothing else, and `snapshot` promises no single moment.
        shard.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        shard.sum.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Reads it.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut buckets = [0; BUCKETS];
        let mut sum = 0_u64;
        for shard in &self.shards {
            for (total, bucket) in buckets.iter_mut().zip(&shard.buckets) {
                // Relaxed: see `observe`.
                *total += bucket.load(Ordering::Relaxed);
            }
            sum = sum.wrapping_add(shard.sum.load(Ordering::Relaxed));
        }
        Snapshot { buckets, sum: Duration::from_nanos(sum) }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

impl Snapshot {
    /// Observations in all.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// The shard that this thread adds to, the same in every histogram: threads take them in turn as they come.
fn shard_of_this_thread() -> usize {
    thread_local! {
        static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    SHARD.with(|shard| {
        shard.get().unwrap_or_else(|| {
            // Relaxed: which thread takes which shard matters to nobody.
            let next = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
            shard.set(Some(next));
            next
        })
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn bounds_ascend_from_a_microsecond_to_a_minute() {
        assert!(BOUNDS.is_sorted_by(|a, b| a < b));
        assert_eq!(BOUNDS[..4], [1, 2, 5, 10].map(Duration::from_micros));
        assert_eq!(BOUNDS[BOUNDED - 3..], [10, 20, 60].map(Duration::from_secs));
    }

    #[test]
    fn a_bound_belongs_to_its_own_bucket() {
        for (bucket, &bound) in BOUNDS.iter().enumerate() {
            let histogram = Histogram::new();
            histogram.observe(bound);
            histogram.observe(bound + Duration::from_nanos(1));
            let buckets = histogram.snapshot().buckets;
            assert_eq!((buckets[bucket], buckets[bucket + 1]), (1, 1), "{bound:?}");
        }
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        let histogram = Histogram::new();
        thread::scope(|scope| {
            for thread in 0..2 * SHARDS as u64 {
                let histogram = &histogram;
                scope.spawn(move || {
                    for i in 0..1000 {
                        histogram.observe(Duration::from_micros(thread * 1000 + i));
                    }
                });
            }
        });
        let total = 2 * SHARDS as u64 * 1000;
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.count(), total);
        assert_eq!(snapshot.sum, Duration::from_micros(total * (total - 1) / 2));
    }

    #[test]
    fn extremes_are_counted() {
        let histogram = Histogram::new();
        histogram.observe(Duration::ZERO);
        histogram.observe(Duration::from_secs(3600));
        let buckets = histogram.snapshot().buckets;
        assert_eq!((buckets[0], buckets[BOUNDED]), (1, 1));
    }
}
