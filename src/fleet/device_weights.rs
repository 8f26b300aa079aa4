//! `device_weights` as a card spells it: a key of its own beside `router_config`, which is Dynamo's.

use serde::{Deserialize, Serialize};

use crate::device::{Weights, WeightsError};

/// What a worker wants devices to have to say in its set. It replaces the frontend's as a whole.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub struct DeviceWeights(pub Weights);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Wire {
    enabled: bool,
    external: f64,
    least: f64,
    stale_secs: f64,
}

impl Default for Wire {
    fn default() -> Self {
        DeviceWeights(Weights::default()).into()
    }
}

impl From<DeviceWeights> for Wire {
    fn from(DeviceWeights(weights): DeviceWeights) -> Self {
        let Weights { enabled, external, least, stale_secs } = weights;
        // Adding zero makes -0.0 the 0.0 that it is equal to, so that equal weights are written alike.
        Self { enabled, external: external + 0.0, least, stale_secs }
    }
}

impl TryFrom<Wire> for DeviceWeights {
    type Error = WeightsError;

    fn try_from(wire: Wire) -> Result<Self, WeightsError> {
        let Wire { enabled, external, least, stale_secs } = wire;
        let weights = Weights { enabled, external, least, stale_secs };
        weights.validate().map(|()| Self(weights))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<DeviceWeights, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_is_the_default_and_what_is_written_reads_back() {
        assert_eq!(read("{}").unwrap(), DeviceWeights(Weights::default()));
        let off = read(r#"{"enabled":false,"least":0.5}"#).unwrap();
        assert_eq!(off.0, Weights { enabled: false, least: 0.5, ..Weights::default() });
        assert_eq!(read(&serde_json::to_string(&off).unwrap()).unwrap(), off);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (json, part) in [
            (r#"{"least":0}"#, "least"),
            (r#"{"external":2}"#, "external"),
            (r#"{"stale_secs":0}"#, "stale_secs"),
            (r#"{"weight":1}"#, "unknown field `weight`"),
        ] {
            assert!(read(json).unwrap_err().contains(part), "{json}");
        }
    }
}
