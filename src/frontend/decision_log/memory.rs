//! The last decisions, in memory.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;

use crate::{
    decisions::{Decision, Outcome},
    fleet::RouterConfig,
    select::Row,
};

/// A decision that can be asked about, with what the file does not need.
#[derive(Debug)]
pub(in crate::frontend) struct Kept {
    pub(in crate::frontend) decision: Decision,
    pub(in crate::frontend) config: Arc<RouterConfig>,
    /// As `explain` names them.
    pub(in crate::frontend) set_state: &'static str,
    pub(in crate::frontend) config_from: &'static str,
    pub(in crate::frontend) tokens_from: &'static str,
    pub(in crate::frontend) tokens_complete: bool,
    pub(in crate::frontend) tokens_problem: Option<String>,
    /// Set once, when the request is over.
    pub(in crate::frontend) outcome: OnceLock<Outcome>,
}

impl Kept {
    /// What it takes in memory, in bytes, near enough.
    pub(super) fn bytes(&self) -> usize {
        let problem = self.tokens_problem.as_ref().map_or(0, String::len);
        size_of::<Self>()
            + self.decision.rows.len() * size_of::<Row>()
            + self.decision.request.len()
            + problem
    }
}

/// How many decisions are kept, and in how much memory.
const DECISIONS: usize = 1000;
const BYTES: usize = 32 << 20;

/// The last decisions. The lock is held for a push, or for a look through all of them.
#[derive(Debug)]
pub(super) struct Memory {
    limits: (usize, usize),
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    decisions: VecDeque<Arc<Kept>>,
    bytes: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self { limits: (DECISIONS, BYTES), last: Mutex::default() }
    }
}

impl Memory {
    pub(super) fn push(&self, kept: Arc<Kept>) {
        let (most, most_bytes) = self.limits;
        let mut gone = Vec::new();
        {
            let Last { decisions, bytes } = &mut *self.last.lock();
            *bytes += kept.bytes();
            decisions.push_back(kept);
            while (decisions.len() > most || *bytes > most_bytes)
                && decisions.len() > 1
                && let Some(oldest) = decisions.pop_front()
            {
                *bytes -= oldest.bytes();
                gone.push(oldest);
            }
        }
        // Freed without the lock.
        drop(gone);
    }

    /// The decisions of a request, the first made first.
    pub(super) fn of(&self, request: &str) -> Vec<Arc<Kept>> {
        let last = self.last.lock();
        last.decisions.iter().filter(|kept| kept.decision.request == request).cloned().collect()
    }

    /// How many there are, what they take in bytes, and when the oldest was made.
    pub(super) fn extent(&self) -> (usize, usize, Option<u64>) {
        let Last { decisions, bytes } = &*self.last.lock();
        (decisions.len(), *bytes, decisions.front().map(|kept| kept.decision.at_ms))
    }

    pub(super) const fn limits(&self) -> (usize, usize) {
        self.limits
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        decisions::{Question, Rule, Verdict},
        hash::BlockSize,
        select::{Demand, Member},
        slot::{Rank, Slot, WorkerId},
    };

    /// A decision among so many rows.
    pub(in crate::frontend::decision_log) fn kept(number: u64, request: &str, rows: u32) -> Arc<Kept> {
        let block_size = BlockSize::new(16).unwrap();
        let row = |index| {
            Row::new(&Member::new(Slot { index, generation: 0 }, WorkerId(u64::from(index)), Rank(0)))
        };
        let config = Arc::new(RouterConfig::default());
        let rule = Rule {
            worker_set: "set".to_owned(),
            model: "m".to_owned(),
            fingerprint: None,
            block_size,
            mode: config.mode,
            tuning: config.tuning,
        };
        let decision = Decision {
            number,
            request: request.to_owned(),
            at_ms: 1000 + number,
            generation: 1,
            config_generation: 1,
            rule: Arc::new(rule),
            question: Question::of(&Demand::new(100, block_size, &[])),
            turn: 0,
            now: Duration::ZERO,
            seed: 1,
            rows: (0..rows).map(row).collect(),
            verdict: Verdict::Chosen { row: 0, cost: None },
        };
        Arc::new(Kept {
            decision,
            config,
            set_state: "serving",
            config_from: "frontend",
            tokens_from: "router",
            tokens_complete: true,
            tokens_problem: None,
            outcome: OnceLock::new(),
        })
    }

    #[test]
    fn the_last_ones_are_kept_by_count_and_by_bytes() {
        let one = kept(0, "r", 10).bytes();
        let memory = |limits| Memory { limits, ..Memory::default() };
        for memory in [memory((3, usize::MAX)), memory((100, 3 * one + one / 2))] {
            for number in 0..10 {
                let request = if number % 2 == 0 { "even" } else { "odds" };
                memory.push(kept(number, request, 10));
            }
            let numbers =
                |request| -> Vec<_> { memory.of(request).iter().map(|kept| kept.decision.number).collect() };
            assert_eq!((numbers("even"), numbers("odds")), (vec![8], vec![7, 9]));
            let (count, bytes, oldest) = memory.extent();
            assert_eq!((count, oldest), (3, Some(1007)));
            assert!(bytes <= 3 * (one + 8), "{bytes}");
        }
    }

    #[test]
    fn one_that_is_too_large_is_kept_until_the_next() {
        let memory = Memory { limits: (10, 1), ..Memory::default() };
        memory.push(kept(0, "a", 5));
        assert_eq!(memory.of("a").len(), 1);
        memory.push(kept(1, "b", 5));
        assert_eq!((memory.of("a").len(), memory.of("b").len()), (0, 1));
    }
}
