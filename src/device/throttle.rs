//! Why clocks are lower than they could be.

/// A set of reasons, as NVML's bits (`nvmlClocksThrottleReason*`). Bits that nobody here knows are kept and mean nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Throttle(u64);

/// A reason: its bit, its name, and whether it takes away from what the device can do.
type Reason = (u64, &'static str, bool);

/// Nothing runs, an application or an administrator chose other clocks, or a display asked for some: that is how the
/// device is meant to run. A power cap is a case of its own, see `capability`.
const REASONS: [Reason; 9] = [
    (0x001, "idle", false),
    (0x002, "application_clocks", false),
    (0x004, "power_cap", false),
    (0x008, "hardware_slowdown", true),
    (0x010, "sync_boost", true),
    (0x020, "software_thermal", true),
    (0x040, "hardware_thermal", true),
    (0x080, "power_brake", true),
    (0x100, "display_clocks", false),
];

impl Throttle {
    /// The draw is at its cap.
    pub const POWER_CAP: Self = Self(0x004);

    /// The set with these bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether any reason is among them that takes away from what the device can do: heat, the power supply, or another
    /// device that it is tied to.
    #[must_use]
    pub fn holds_back(self) -> bool {
        REASONS.iter().any(|&(bit, _, slows)| slows && self.0 & bit != 0)
    }

    /// Whether the draw is at its cap, as it is on most devices under full load.
    #[must_use]
    pub const fn at_power_cap(self) -> bool {
        self.0 & Self::POWER_CAP.0 != 0
    }

    /// The names of the known reasons.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        REASONS.into_iter().filter(move |&(bit, ..)| self.0 & bit != 0).map(|(_, name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_takes_away_holds_back() {
        for (bit, name, slows) in REASONS {
            let throttle = Throttle::from_bits(bit);
            assert_eq!(throttle.holds_back(), slows, "{name}");
            assert_eq!(throttle.names().collect::<Vec<_>>(), [name]);
        }
    }

    #[test]
    fn unknown_bits_are_kept_and_mean_nothing() {
        let throttle = Throttle::from_bits(1 << 40);
        assert!(!throttle.holds_back() && !throttle.at_power_cap() && throttle.names().next().is_none());
        assert_eq!(throttle.bits(), 1 << 40);
    }
}
