//! The outcome of a decision.

use super::{Mode, Row, cost::Cost};
use crate::{
    index::Overlap,
    slot::{Rank, Slot, WorkerId},
};

/// Who was picked, in short. Why is in the rows of the [`Scratch`](super::Scratch) that the decision
/// was made in, until the next one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Choice {
    /// The slot picked.
    pub slot: Slot,
    /// Its worker.
    pub worker: WorkerId,
    /// Its rank.
    pub rank: Rank,
    /// The rule that picked it.
    pub mode: Mode,
    /// What it costs, where the rule prices candidates.
    pub cost: Option<Cost>,
    /// Leading blocks of the prompt that it was credited with.
    pub overlap: Overlap,
    /// Prompt tokens that it need not compute, slower tiers counted in part.
    pub cached_tokens: u64,
    /// Prompt tokens booked as waiting for prefill.
    pub prefill_tokens: u64,
    /// How many rows were eligible.
    pub candidates: u32,
    /// How many rows were not.
    pub excluded: u32,
    /// Where the picked row is in the scratch.
    pub row: usize,
}

impl Choice {
    pub(super) fn of(mode: Mode, rows: &[Row], picked: usize, prefill_tokens: u64) -> Self {
        let row = &rows[picked];
        let eligible = rows.iter().filter(|row| row.is_eligible()).count();
        Self {
            slot: row.slot,
            worker: row.worker,
            rank: row.rank,
            mode,
            cost: row.cost,
            overlap: row.overlap,
            cached_tokens: row.cached_tokens,
            prefill_tokens,
            candidates: u32::try_from(eligible).unwrap_or(u32::MAX),
            excluded: u32::try_from(rows.len() - eligible).unwrap_or(u32::MAX),
            row: picked,
        }
    }
}
