//! What a parity check said of a worker, as requests and operators see it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwap;

use super::registry::Fleet;

/// How the last check of a worker ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParityVerdict {
    /// There was none yet, or checks are off.
    Unchecked,
    /// What is predicted is what the engine does.
    Admit,
    /// What it has cached cannot be predicted, or was not shown to be.
    LoadOnly,
    /// Requests that are sent to it as announced would fail.
    Refuse,
    /// It did not answer, or not in time.
    NoAnswer,
}

impl ParityVerdict {
    /// Every verdict.
    pub const ALL: [Self; 5] = [Self::Unchecked, Self::Admit, Self::LoadOnly, Self::Refuse, Self::NoAnswer];

    /// The name in metrics and on the admin listener.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unchecked => "unchecked",
            Self::Admit => "admit",
            Self::LoadOnly => "load_only",
            Self::Refuse => "refuse",
            Self::NoAnswer => "no_answer",
        }
    }
}

/// How a worker stands, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parity {
    /// The last check's verdict.
    pub verdict: ParityVerdict,
    /// What it follows from; empty where all is well.
    pub reason: String,
}

/// The standing of one worker. Written after a check, read by every request.
#[derive(Debug)]
pub struct ParityStatus {
    /// Whether the worker's overlaps count 0. Relaxed on both sides: nothing else hangs on it, and a request that misses a fresh
    /// value is one of the last.
    withheld: AtomicBool,
    stands: ArcSwap<Parity>,
}

impl ParityStatus {
    /// The standing before any check.
    pub(super) fn unchecked(withheld: bool) -> Self {
        let parity = Parity { verdict: ParityVerdict::Unchecked, reason: String::new() };
        Self { withheld: AtomicBool::new(withheld), stands: ArcSwap::from_pointee(parity) }
    }

    /// Whether what the index says of the worker counts nothing.
    #[must_use]
    pub fn withholds(&self) -> bool {
        self.withheld.load(Ordering::Relaxed)
    }

    /// How it stands.
    #[must_use]
    pub fn get(&self) -> Arc<Parity> {
        self.stands.load_full()
    }

    /// Takes a check's outcome in; true if it is another than before. Checks of one worker come one after the other.
    pub fn set(&self, parity: Parity, withheld: bool) -> bool {
        self.withheld.store(withheld, Ordering::Relaxed);
        let parity = Arc::new(parity);
        *self.stands.swap(Arc::clone(&parity)) != *parity
    }
}

impl Fleet {
    /// The same; with `withhold`, workers are credited no overlap until a parity check says so.
    #[must_use]
    pub fn withholding_unchecked(mut self, withhold: bool) -> Self {
        self.withhold_unchecked = withhold;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_holds_and_news_is_told_from_repetition() {
        let status = ParityStatus::unchecked(true);
        assert!(status.withholds());
        assert_eq!(status.get().verdict, ParityVerdict::Unchecked);
        let differs = || Parity { verdict: ParityVerdict::LoadOnly, reason: "block size".to_owned() };
        assert!(status.set(differs(), true) && !status.set(differs(), false));
        assert!(!status.withholds());
    }
}
