//! The request's own prefill.

use crate::{
    index::Overlap,
    select::{Demand, Tuning, cost::credit},
};

/// What a request costs an engine besides its tokens, in tokens of work: the share of a step that no prompt is too short
/// for. Halving or doubling it changes little; without it times to first token are 8 % longer in simulation.
pub const FIXED_TOKENS: u64 = 256;

/// The work of a request on a slot that has `overlap` of it, in tokens: what is not cached, and [`FIXED_TOKENS`].
///
/// A block on the GPU is worth `overlap_score_credit`, of which `decay` is left, of its recomputation; one in host memory
/// `host_cache_hit_weight` of it, since it has to be copied, and one below that `disk_cache_hit_weight`. At least
/// one token is always computed.
#[must_use]
pub fn work(overlap: Overlap, decay: f64, demand: &Demand<'_>, tuning: &Tuning) -> f64 {
    let spared = credit(overlap, decay, tuning) * f64::from(demand.block_size.get());
    (demand.isl_tokens as f64 - spared).max(1.0) + FIXED_TOKENS as f64
}

/// Seconds that `work` tokens take at `sigma` seconds a token.
#[must_use]
pub fn own_prefill(sigma: f64, work: f64) -> f64 {
    sigma * work
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::BlockSize;

    fn demand(tokens: usize) -> Demand<'static> {
        Demand::new(tokens, BlockSize::new(16).unwrap(), &[])
    }

    fn gpu(gpu: u32) -> Overlap {
        Overlap { gpu, ..Overlap::default() }
    }

    #[test]
    fn it_is_what_is_not_cached_and_a_fixed_part() {
        let work = |overlap| work(overlap, 1.0, &demand(1000), &Tuning::default());
        assert_eq!(work(gpu(0)), 1000.0 + 256.0);
        assert_eq!(work(gpu(10)), 840.0 + 256.0);
        assert_eq!(work(gpu(62)), 8.0 + 256.0);
        assert_eq!(own_prefill(1e-4, work(gpu(10))), 1e-4 * (1000.0 - 10.0 * 16.0 + 256.0));
    }

    #[test]
    fn at_least_one_token_is_computed() {
        assert_eq!(work(gpu(64), 1.0, &demand(1024), &Tuning::default()), 1.0 + 256.0);
        assert_eq!(work(gpu(0), 1.0, &demand(0), &Tuning::default()), 1.0 + 256.0);
        let greedy = Tuning { overlap_score_credit: 1e300, ..Tuning::default() };
        assert_eq!(work(gpu(u32::MAX), 1.0, &demand(1024), &greedy), 1.0 + 256.0);
    }

    #[test]
    fn slower_tiers_spare_a_part_of_their_recomputation() {
        let overlap = Overlap { gpu: 10, host: 8, disk: 3, external: 1 };
        let spared = 16.0 * (10.0 + 0.75 * 8.0 + 0.25 * 4.0);
        assert_eq!(work(overlap, 1.0, &demand(1000), &Tuning::default()), 1256.0 - spared);
        let tuning = Tuning { overlap_score_credit: 0.5, ..Tuning::default() };
        let spared = 16.0 * (0.5 * 0.8 * 10.0 + 0.75 * 8.0 + 0.25 * 4.0);
        assert_eq!(work(overlap, 0.8, &demand(1000), &tuning), 1256.0 - spared);
    }
}
