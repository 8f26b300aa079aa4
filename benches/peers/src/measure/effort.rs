//! How long to measure.

use crate::adapter::Contestant;

/// What a run does and leaves out.
#[derive(Debug)]
pub(crate) struct Effort {
    /// Repetitions of ours and of the peer that comes closest.
    pub(crate) repetitions: usize,
    /// Repetitions of the others, at most as many.
    others: usize,
    /// When prompts are looked up, as fractions of a trace's requests.
    pub(crate) checkpoints: &'static [f64],
    /// The workloads that run if none are asked for.
    pub(crate) letters: &'static str,
    /// Those that are checked and not timed.
    only_checked: &'static str,
}

impl Effort {
    /// Everything.
    pub(crate) const FULL: Self = Self {
        repetitions: 5,
        others: 5,
        checkpoints: &[0.3, 0.5, 0.7, 0.85, 1.0],
        letters: "ABCDEFHSTVW",
        only_checked: "",
    };

    /// What two minutes on two idle cores suffice for: fewer repetitions (of the slower indexes and faces one only), fewer
    /// checkpoints, no A and D, and no times of H.
    pub(crate) const QUICK: Self =
        Self { repetitions: 3, others: 1, checkpoints: &[0.5, 1.0], letters: "BCEFHSTVW", only_checked: "H" };

    /// The same with another number of repetitions.
    pub(crate) const fn with_repetitions(self, repetitions: usize) -> Self {
        let others = if self.others < self.repetitions { self.others } else { repetitions };
        Self { repetitions, others, ..self }
    }

    /// In how many repetitions, from the first on, an index takes part.
    pub(super) fn of(&self, contestant: Contestant) -> usize {
        match contestant {
            Contestant::Kvroute | Contestant::SmgInto => self.repetitions,
            Contestant::SmgMap | Contestant::DynamoCrtc => self.others,
        }
    }

    /// Whether a workload is timed after the check.
    pub(crate) fn times(&self, letter: char) -> bool {
        !self.only_checked.contains(letter)
    }
}
