//! What cached blocks are worth.

use crate::{
    hash::BlockSize,
    index::Overlap,
    select::{Demand, Tuning},
};

/// What is left of the credit for GPU blocks on a slot with `waiting` more prefill tokens outstanding than the
/// least busy eligible slot, 0 to 1:
///
/// `1 / (1 + overlap_score_credit_decay * (waiting / block size) / max(1, request blocks))`,
///
/// where the request's blocks count the last, partial one. It is 1 while prefill is not tracked.
#[must_use]
pub fn decay(waiting: u64, demand: &Demand<'_>, tuning: &Tuning) -> f64 {
    if tuning.overlap_score_credit_decay == 0.0 || !tuning.router_track_prefill_tokens {
        return 1.0;
    }
    let blocks = waiting as f64 / f64::from(demand.block_size.get());
    let request_blocks = demand.blocks_begun().max(1) as f64;
    1.0 / (1.0 + tuning.overlap_score_credit_decay * blocks / request_blocks)
}

/// The credit for `overlap`, in blocks. Only GPU blocks decay; disk and external store count alike.
#[must_use]
pub fn credit(overlap: Overlap, decay: f64, tuning: &Tuning) -> f64 {
    tuning.overlap_score_credit * decay * f64::from(overlap.gpu) + slower_tiers(overlap, tuning)
}

/// Prompt tokens that need not be computed: the blocks of `overlap`, those of slower tiers by their weights,
/// rounded to tokens. The credit's own weight does not enter: it is a preference, not a fact.
#[must_use]
pub fn cached_tokens(overlap: Overlap, block_size: BlockSize, tuning: &Tuning) -> u64 {
    let blocks = f64::from(overlap.gpu) + slower_tiers(overlap, tuning);
    // A cast from float to integer saturates.
    (blocks * f64::from(block_size.get())).round() as u64
}

fn slower_tiers(overlap: Overlap, tuning: &Tuning) -> f64 {
    let below_host = f64::from(overlap.disk) + f64::from(overlap.external);
    tuning.host_cache_hit_weight * f64::from(overlap.host) + tuning.disk_cache_hit_weight * below_host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slower_tiers_count_by_their_weights() {
        let overlap = Overlap { gpu: 4, host: 2, disk: 3, external: 1 };
        assert_eq!(credit(overlap, 0.5, &Tuning::default()), 2.0 + 1.5 + 1.0);
        assert_eq!(cached_tokens(overlap, BlockSize::new(16).unwrap(), &Tuning::default()), 104);
    }

    #[test]
    fn cached_tokens_are_rounded() {
        let overlap = Overlap { disk: 1, ..Overlap::default() };
        let tokens = |size| cached_tokens(overlap, BlockSize::new(size).unwrap(), &Tuning::default());
        assert_eq!([1, 2, 3].map(tokens), [0, 1, 1]);
    }

    #[test]
    fn credit_decays_with_prefill_waiting_beyond_the_least() {
        let demand = Demand::new(120, BlockSize::new(16).unwrap(), &[]);
        let tuning = Tuning { overlap_score_credit_decay: 2.0, ..Tuning::default() };
        assert_eq!(decay(0, &demand, &tuning), 1.0);
        assert_eq!(decay(64, &demand, &tuning), 1.0 / (1.0 + 2.0 * 4.0 / 8.0));
        let empty = Demand { isl_tokens: 0, ..demand };
        assert_eq!(decay(16, &empty, &tuning), 1.0 / 3.0);
        let untracked = Tuning { router_track_prefill_tokens: false, ..tuning };
        assert_eq!(decay(64, &demand, &untracked), 1.0);
    }
}
