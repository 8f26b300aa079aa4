//! Configurations.

use std::num::NonZeroU32;

use super::{BEYOND, Malformed, Source, Wire, codes, fields};
use crate::{
    decisions::Rule,
    device::Weights,
    hash::BlockSize,
    load::Thresholds,
    select::{
        ApproximateCache, ApproximatePolicy, BypassPolicy, ConditionalDisagg, CostModel, Mode,
        SessionAffinity, Tuning, queue::QueuePolicy,
    },
};

codes!(Mode {
    RoundRobin = 1,
    Random = 2,
    PowerOfTwo = 3,
    LeastLoaded = 4,
    Direct = 5,
    DeviceAwareWeighted = 6,
    Kv = 7,
});
codes!(CostModel { Time = 1, Blocks = 2 });
codes!(BypassPolicy { IslBounding = 1, PrefillLoad = 2, IslOrLoad = 3 });
fields!(ConditionalDisagg {
    policy,
    eff_isl_threshold,
    eff_isl_ratio_threshold,
    prefill_busy_threshold,
    decode_busy_threshold,
});
fields!(Weights { enabled, external, least, stale_secs });
codes!(ApproximatePolicy { Ttl = 1, Lru = 2 });
fields!(ApproximateCache { ttl_secs, policy });
codes!(QueuePolicy { Fcfs = 1, Lcfs = 2, Wspt = 3 });
fields!(Thresholds { active_decode_blocks, active_prefill_tokens, active_prefill_tokens_frac });
fields!(SessionAffinity { ttl_secs, mode });
fields!(Tuning {
    cost_model,
    overlap_score_credit,
    overlap_score_credit_decay,
    prefill_load_scale,
    decode_active_request_weight,
    host_cache_hit_weight,
    disk_cache_hit_weight,
    router_temperature,
    router_track_active_blocks,
    router_track_output_blocks,
    router_assume_kv_reuse,
    router_track_prefill_tokens,
    session_affinity,
    use_kv_events,
    approximate_cache,
    router_predicted_ttl_secs,
    conditional_disagg,
    queue_threshold,
    queue_policy,
    hold,
    busy,
    accelerator_to_cpu_ratio,
    device_weights,
});

impl Wire for NonZeroU32 {
    fn put(&self, out: &mut Vec<u8>) {
        self.get().put(out);
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        Self::new(u32::get(from)?).ok_or(BEYOND)
    }
}

impl Wire for BlockSize {
    fn put(&self, out: &mut Vec<u8>) {
        self.get().put(out);
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        Self::new(u32::get(from)?).map_err(|_| BEYOND)
    }
}

impl Wire for Rule {
    fn put(&self, out: &mut Vec<u8>) {
        let Self { worker_set, model, fingerprint, block_size, mode, tuning } = self;
        worker_set.put(out);
        model.put(out);
        fingerprint.put(out);
        block_size.put(out);
        mode.put(out);
        tuning.put(out);
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        let rule = Self {
            worker_set: Wire::get(from)?,
            model: Wire::get(from)?,
            fingerprint: Wire::get(from)?,
            block_size: Wire::get(from)?,
            mode: Wire::get(from)?,
            tuning: Wire::get(from)?,
        };
        // Decisions rely on the ranges. What goes together is not asked: a file that was written can be read.
        let ranges = rule.tuning.validate_ranges();
        ranges.map(|()| rule).map_err(|_| Malformed("a setting in it is out of its range"))
    }
}
