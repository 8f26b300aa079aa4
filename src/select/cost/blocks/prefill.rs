//! The prefill that waits on a slot and the request's own.

use crate::select::{Demand, Tuning};

/// Prefill work with the request there, before any credit, in blocks: `outstanding` tokens plus the prompt, and
/// never less than what is cached of it, so that a credit finds what it is taken from. 0 while prefill is
/// not tracked.
#[must_use]
pub fn prefill_blocks(outstanding: u64, cached: u64, demand: &Demand<'_>, tuning: &Tuning) -> f64 {
    if !tuning.router_track_prefill_tokens {
        return 0.0;
    }
    let prompt = demand.isl_tokens as u64;
    let tokens = outstanding.saturating_add(prompt.saturating_sub(cached)).saturating_add(cached);
    tokens as f64 / f64::from(demand.block_size.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::BlockSize;

    #[test]
    fn the_prompt_comes_on_top_of_what_waits() {
        let demand = Demand::new(100, BlockSize::new(16).unwrap(), &[]);
        let blocks = |cached| prefill_blocks(60, cached, &demand, &Tuning::default());
        assert_eq!([0, 64, 100].map(blocks), [10.0; 3]);
        assert_eq!(blocks(132), 12.0, "more cached than asked for counts in full");
    }

    #[test]
    fn untracked_prefill_costs_nothing() {
        let demand = Demand::new(100, BlockSize::new(16).unwrap(), &[]);
        let tuning = Tuning { router_track_prefill_tokens: false, ..Tuning::default() };
        assert_eq!(prefill_blocks(60, 0, &demand, &tuning), 0.0);
    }
}
