//! What all ranks of a worker share: its card, its adapters, and whether it takes requests.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwap;
use http::Uri;

use super::{
    breaker::{Breaker, BreakerState},
    fence::{Fence, FenceCell},
    health_check::{HealthCell, HealthChecks},
    parity::ParityStatus,
    slow_start::SlowStart,
    worker_spec::WorkerSpec,
};
use crate::{load::Capacity, select::Exclusion, slot::WorkerId};

/// The facts of one worker that all its ranks share.
#[derive(Debug)]
pub struct WorkerInfo {
    /// Its id.
    pub id: WorkerId,
    /// Base URL of its server.
    pub url: Uri,
    /// How it was announced.
    pub spec: WorkerSpec,
    /// The LoRA adapters that it serves now, sorted.
    adapters: ArcSwap<Vec<String>>,
    /// When it was registered, in milliseconds since the Unix epoch: as it says itself, else when it came here.
    pub registered_ms: u64,
    /// Set when the worker is on its way out: in-flight requests finish, no new ones come.
    draining: AtomicBool,
    /// Whether requests are kept away because it failed some, on the fleet's clock.
    pub(super) breaker: Breaker,
    pub(super) health: HealthCell,
    pub(super) slow_start: SlowStart,
    fence: FenceCell,
    /// What a parity check said of it, if there was one.
    pub parity: ParityStatus,
}

impl WorkerInfo {
    pub(super) fn new(
        id: WorkerId,
        url: Uri,
        spec: WorkerSpec,
        registered_ms: u64,
        parity: ParityStatus,
        slow_start: SlowStart,
    ) -> Self {
        let draining = AtomicBool::new(false);
        let adapters = ArcSwap::from_pointee(sorted(&spec.lora_adapters));
        let (breaker, health, fence) = <(Breaker, HealthCell, FenceCell)>::default();
        Self { id, url, spec, adapters, registered_ms, draining, breaker, health, slow_start, fence, parity }
    }

    /// The LoRA adapters that it serves now, sorted.
    #[must_use]
    pub fn adapters(&self) -> Arc<Vec<String>> {
        self.adapters.load_full()
    }

    /// Whether it serves `adapter` now.
    #[must_use]
    pub fn serves(&self, adapter: &str) -> bool {
        self.adapters.load().binary_search_by(|known| known.as_str().cmp(adapter)).is_ok()
    }

    /// Adapters were loaded or unloaded; whether it is any other than before.
    pub(super) fn set_adapters(&self, adapters: &[String]) -> bool {
        let adapters = sorted(adapters);
        *self.adapters.swap(Arc::new(adapters.clone())) != adapters
    }

    /// Where decode engines meet it, if they can: host and port.
    #[must_use]
    pub fn bootstrap(&self) -> Option<(&str, u16)> {
        let host = self.spec.bootstrap_host.as_deref().or(self.url.host()).unwrap_or_default();
        self.spec.bootstrap_port.map(|port| (host, port))
    }

    /// What each rank's engine can take, as far as it was said.
    #[must_use]
    pub const fn capacity(&self) -> Capacity {
        Capacity { kv_blocks: self.spec.total_kv_blocks, batch_tokens: self.spec.max_num_batched_tokens }
    }

    /// Keeps new requests away for good.
    pub(super) fn drain(&self) {
        // Relaxed: see `is_draining`.
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_draining(&self) -> bool {
        // Relaxed: a flag that only ever goes up; a request that just misses it is one of the last.
        self.draining.load(Ordering::Relaxed)
    }

    /// What active checks found out about it; `None` if nobody asked.
    #[must_use]
    pub fn checks(&self) -> Option<Arc<HealthChecks>> {
        self.health.get()
    }

    /// Whether active checks keep requests away.
    pub(super) fn is_down(&self) -> bool {
        self.health.is_down()
    }

    /// How its breaker stands at `now_ms`.
    #[must_use]
    pub fn breaker(&self, now_ms: u64) -> BreakerState {
        self.breaker.state(now_ms)
    }

    /// For how many milliseconds from `now_ms` requests are kept away because it failed some, or because one tries it.
    #[must_use]
    pub fn inhibited_ms(&self, now_ms: u64) -> u64 {
        self.breaker.until_ms().saturating_sub(now_ms)
    }

    /// How many times in a row it failed, as far as that is counted.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.breaker.failures()
    }

    /// What an operator said about its fence.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence.get()
    }

    pub(super) fn set_fence(&self, fence: Fence) {
        self.fence.set(fence);
    }

    /// Why the worker takes no request at `now_ms`, if it does not.
    #[must_use]
    pub fn exclusion(&self, now_ms: u64) -> Option<Exclusion> {
        if self.is_draining() {
            Some(Exclusion::Draining)
        } else if self.is_down() {
            Some(Exclusion::Unhealthy)
        } else if self.inhibited_ms(now_ms) > 0 {
            Some(Exclusion::Unroutable)
        } else {
            None
        }
    }
}

fn sorted(adapters: &[String]) -> Vec<String> {
    let mut adapters = adapters.to_vec();
    adapters.sort_unstable();
    adapters
}
