//! What a frontend says of routing, for worker sets that do not say it themselves.

use serde_json::{Value, json};

use super::{
    device_weights::DeviceWeights,
    fingerprint::{canonical, differing_paths},
    router_config::RouterConfig,
};

/// A frontend's say in routing, under a number. It is replaced as a whole, never changed: a request decides on the one in its view.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FrontendRouting {
    /// 1 at the start; goes up with every change while the frontend runs.
    pub generation: u64,
    /// What worker sets inherit.
    pub config: RouterConfig,
    /// Whether decode sets without prefill workers refuse requests instead of serving alone.
    pub enforce_disagg: bool,
}

impl FrontendRouting {
    /// What a frontend starts with.
    pub(super) fn first(config: RouterConfig) -> Self {
        Self { generation: 1, config, enforce_disagg: false }
    }

    /// What follows it, and the settings in which that differs, with their paths; `None` if it does in none.
    pub(super) fn followed_by(
        &self,
        config: RouterConfig,
        enforce_disagg: bool,
    ) -> Option<(Self, Vec<String>)> {
        let next = Self { generation: self.generation + 1, config, enforce_disagg };
        let is_other = next.config != self.config || next.enforce_disagg != self.enforce_disagg;
        is_other.then(|| {
            let changed = differing_paths(&self.spelled(), &next.spelled());
            (next, changed)
        })
    }

    /// Every setting, by the names that cards have for them, and flags for what is on no card.
    fn spelled(&self) -> Value {
        let Self { generation: _, config, enforce_disagg } = self;
        let tuning = &config.tuning;
        canonical(json!({
            "router_config": config,
            "router_cost_model": tuning.cost_model.name(),
            "router_hold": tuning.hold_seconds(),
            "device_weights": DeviceWeights(tuning.device_weights),
            "router_accelerator_to_cpu_ratio": tuning.accelerator_to_cpu_ratio,
            "enforce_disagg": enforce_disagg,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::{Mode, Tuning};

    #[test]
    fn what_is_the_same_does_not_follow_and_what_differs_is_named() {
        let first = FrontendRouting::first(RouterConfig::default());
        assert_eq!(first.followed_by(RouterConfig::default(), false), None);
        let tuning = Tuning {
            overlap_score_credit: 2.0,
            accelerator_to_cpu_ratio: std::num::NonZeroU32::MIN,
            hold: Some(std::time::Duration::from_secs(2)),
            ..Tuning::default()
        };
        let config = RouterConfig { mode: Mode::Random, tuning };
        let (next, changed) = first.followed_by(config, true).unwrap();
        assert_eq!(next.generation, 2);
        assert_eq!(
            changed,
            [
                "enforce_disagg",
                "router_accelerator_to_cpu_ratio",
                "router_config.kv_router_config.overlap_score_credit",
                "router_config.router_mode",
                "router_hold",
            ]
        );
    }
}
