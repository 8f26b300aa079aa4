//! How other routers choose, for comparison.
//!
//! These are the rules as their projects' public documents describe them, with the settings that those give as defaults, and not their
//! code. They are shown more than they have: the exact view of caches that the production index has, where the
//! routers themselves estimate it or learn it in their own ways.

mod llm_d;
mod smg;

use fastrand::Rng;

use crate::select::{Demand, Row};

/// Another router.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// SMG's policy `cache_aware`.
    Smg,
    /// llm-d's scheduler with the scorers for prefix cache, queue and cache usage, weighed 3, 2 and 2.
    LlmD,
}

/// What an engine says of itself when it is asked.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Gauge {
    /// Requests that wait for their first step.
    pub(super) waiting: usize,
    /// The share of its cache that sequences use.
    pub(super) usage: f64,
}

impl Peer {
    /// Seconds between two times that engines are asked; `None` if they are not.
    pub(super) const fn asks_every(self) -> Option<f64> {
        match self {
            Self::Smg => None,
            Self::LlmD => Some(50e-3),
        }
    }

    /// Picks a row for `demand`; `gauges` has what each row's engine said last.
    pub(super) fn pick(
        self,
        rows: &[Row],
        gauges: &[Gauge],
        demand: &Demand<'_>,
        rng: &mut Rng,
    ) -> Option<usize> {
        match self {
            Self::Smg => smg::pick(rows, demand, rng),
            Self::LlmD => llm_d::pick(rows, gauges, demand, rng),
        }
    }
}

/// The part of the prompt's blocks that a row holds, the incomplete last one counted.
fn matched(row: &Row, demand: &Demand<'_>) -> f64 {
    let tokens = u64::from(row.overlap.gpu) * u64::from(demand.block_size.get());
    tokens as f64 / (demand.isl_tokens.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use crate::{
        index::Overlap,
        load::SlotLoad,
        select::{Member, Row},
        slot::{Rank, Slot, WorkerId},
    };

    /// A row with so many blocks of the prompt and requests in flight.
    pub(super) fn row(gpu: u32, requests: u32) -> Row {
        let member = Member::new(Slot { index: 0, generation: 0 }, WorkerId(0), Rank(0));
        Row {
            overlap: Overlap { gpu, ..Overlap::default() },
            load: SlotLoad { requests, ..SlotLoad::default() },
            ..Row::new(&member)
        }
    }
}
