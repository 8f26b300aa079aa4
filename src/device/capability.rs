//! How much of its speed a device has.

use super::DeviceReading;

/// What a device is taken to be capable of at the least: a clock that reads 0 is a reading, not a standstill.
pub const LEAST_CAPABILITY: f64 = 0.05;

/// The share of the highest clock that a healthy device runs at under a power cap. Below the cap's usual effect there is
/// something else to it, such as a cap that somebody lowered.
const USUAL_AT_POWER_CAP: f64 = 0.7;

/// What the device is capable of now, 1 being all, never below [`LEAST_CAPABILITY`].
///
/// While something holds its clocks down (heat, the power supply, a device that it is tied to), it is the lesser of SM clock / highest
/// SM clock and memory clock / highest memory clock, no unit: prefill follows the first, decode the second. At its power
/// cap, as most devices are under full load, only what is below 0.7 counts, and 0.7 as 1. Else it is 1, whatever the
/// clocks: they fall when nothing runs. Clocks that cannot be read are at their highest, as far as anybody knows.
#[must_use]
pub fn capability(reading: &DeviceReading) -> f64 {
    let Some(throttle) = reading.throttle.value() else { return 1.0 };
    let usual = if throttle.holds_back() {
        1.0
    } else if throttle.at_power_cap() {
        USUAL_AT_POWER_CAP
    } else {
        return 1.0;
    };
    let share = |now: Option<u32>, most: Option<u32>| match (now, most) {
        (Some(now), Some(most)) if most > 0 => f64::from(now) / f64::from(most) / usual,
        _ => 1.0,
    };
    let sm = share(reading.sm_clock_mhz.value(), reading.sm_clock_max_mhz.value());
    let memory = share(reading.memory_clock_mhz.value(), reading.memory_clock_max_mhz.value());
    sm.min(memory).clamp(LEAST_CAPABILITY, 1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::{Reading, Throttle};

    const IDLE: u64 = 0x1;
    const POWER_CAP: u64 = 0x4;
    const HOT: u64 = 0x40;

    fn at(reasons: u64, sm: u32, memory: u32) -> DeviceReading {
        DeviceReading {
            throttle: Reading::Value(Throttle::from_bits(reasons)),
            sm_clock_mhz: Reading::Value(sm),
            sm_clock_max_mhz: Reading::Value(2000),
            memory_clock_mhz: Reading::Value(memory),
            memory_clock_max_mhz: Reading::Value(3000),
            ..DeviceReading::default()
        }
    }

    #[test]
    fn clocks_count_while_something_holds_them_down() {
        for (reading, expected) in [
            (at(HOT, 1000, 3000), 0.5),
            (at(HOT | POWER_CAP, 1000, 3000), 0.5),
            (at(HOT, 1600, 1500), 0.5),
            (at(HOT, 0, 3000), LEAST_CAPABILITY),
            (at(HOT, 2100, 3000), 1.0),
            (at(0, 1000, 3000), 1.0),
            (at(IDLE, 210, 405), 1.0),
            (at(POWER_CAP, 1500, 3000), 1.0),
            (at(POWER_CAP, 700, 3000), 0.5),
            (at(1 << 30, 700, 3000), 1.0),
        ] {
            assert!((capability(&reading) - expected).abs() < 1e-12, "{reading:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_takes_nothing_away() {
        let hot = at(HOT, 1000, 3000);
        let without = |change: fn(&mut DeviceReading)| {
            let mut reading = hot.clone();
            change(&mut reading);
            capability(&reading)
        };
        assert_eq!(without(|reading| reading.throttle = Reading::NotSupported), 1.0);
        assert_eq!(without(|reading| reading.sm_clock_mhz = Reading::NoPermission), 1.0);
        assert_eq!(without(|reading| reading.sm_clock_max_mhz = Reading::Value(0)), 1.0);
    }

    proptest! {
        #[test]
        fn it_is_a_share_and_grows_with_the_clock(bits: u64, sm in 0_u32..5000, more in 0_u32..5000, memory: u32) {
            let (slow, fast) = (capability(&at(bits, sm, memory)), capability(&at(bits, sm + more, memory)));
            prop_assert!((LEAST_CAPABILITY..=1.0).contains(&slow) && slow <= fast && fast <= 1.0);
        }
    }
}
