//! What goes to the file.

use std::sync::Arc;

use super::memory::Kept;
use crate::{
    decisions::Outcome,
    frontend::log_queue::{self, Entry, Limits},
};

/// How many records may wait, and how much memory they may take.
pub(super) const LIMITS: Limits = Limits { entries: 4096, bytes: 64 << 20 };

pub(super) type Queue = log_queue::Queue<Record>;

/// A record on its way.
pub(super) enum Record {
    /// A decision.
    Decision(Arc<Kept>),
    /// What came of one, by its number.
    Outcome(u64, Outcome),
}

impl Entry for Record {
    const DROPPED: &str = "the decision log does not keep up: records are dropped and counted \
                           (kvroute_decision_log_records_total); this is not said again. A smaller sample= in --decision-log, or a \
                           faster disk, keeps them";

    fn bytes(&self) -> u64 {
        match self {
            Self::Decision(kept) => kept.bytes() as u64,
            Self::Outcome(..) => size_of::<Self>() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::frontend::decision_log::memory::tests::kept;

    #[test]
    fn large_decisions_fill_it_sooner() {
        let decision = kept(1, "r", 100);
        let limits = Limits { entries: 100, bytes: 2 * decision.bytes() as u64 };
        let (queue, waiting) = Queue::new(limits);
        let put = || queue.put(Record::Decision(Arc::clone(&decision)));
        assert_eq!([put(), put(), put()], [true, true, false]);
        waiting.skip();
        assert!(put());
        assert_eq!(queue.counters.waiting_bytes.load(Relaxed), 2 * decision.bytes() as u64);
    }

    #[test]
    fn outcomes_find_no_room_once_there_are_too_many() {
        let (queue, waiting) = Queue::new(Limits { entries: 3, bytes: u64::MAX });
        let puts: Vec<_> =
            (0..5).map(|number| queue.put(Record::Outcome(number, Outcome::default()))).collect();
        assert_eq!(puts, [true, true, true, false, false]);
        waiting.skip();
        assert!(queue.put(Record::Outcome(5, Outcome::default())), "there is room again");
    }
}
