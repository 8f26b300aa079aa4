//! What an operator says about a worker's fence.

use std::sync::atomic::{AtomicU8, Ordering};

use serde::Deserialize;
use tracing::info;

use super::registry::Fleet;
use crate::slot::WorkerId;

/// Whether device telemetry fences a worker, or an operator decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fence {
    /// Telemetry does.
    #[default]
    Auto,
    /// It is fenced, whatever telemetry says, and without any.
    On,
    /// It is not, whatever telemetry says.
    Off,
}

impl Fence {
    const ALL: [Self; 3] = [Self::Auto, Self::On, Self::Off];

    /// The name on the admin listener.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// A fence that is set by one and read by all. Relaxed on both sides: nothing else hangs on it, and a request that misses a
/// fresh value is one of the last.
#[derive(Debug, Default)]
pub(super) struct FenceCell(AtomicU8);

impl FenceCell {
    pub(super) fn get(&self) -> Fence {
        Fence::ALL.get(usize::from(self.0.load(Ordering::Relaxed))).copied().unwrap_or_default()
    }

    pub(super) fn set(&self, fence: Fence) {
        self.0.store(fence as u8, Ordering::Relaxed);
    }
}

impl Fleet {
    /// Says whether telemetry fences a worker, or fences it or not in its place. False if there is no such worker.
    pub fn set_fence(&self, id: WorkerId, fence: Fence) -> bool {
        let view = self.view();
        let Some(worker) = view.worker(id) else { return false };
        worker.set_fence(fence);
        info!(worker = %id, fence = fence.name(), "an operator set the worker's fence");
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_read() {
        let cell = FenceCell::default();
        assert_eq!(cell.get(), Fence::Auto);
        for fence in Fence::ALL {
            cell.set(fence);
            assert_eq!(cell.get(), fence);
        }
    }
}
