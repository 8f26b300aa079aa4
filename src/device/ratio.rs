//! How work is split between CPUs and accelerators.

use std::num::NonZeroU32;

/// How many CPU slots one accelerator is worth unless configured otherwise.
pub const DEFAULT_ACCELERATOR_TO_CPU_RATIO: NonZeroU32 = NonZeroU32::MIN.saturating_add(7);

/// The slots of one class and what they do together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupLoad {
    /// How many slots.
    pub members: u64,
    /// Requests in flight on all of them.
    pub requests: u64,
}

/// Whether the next request should go to a CPU, where both classes are present.
///
/// The CPUs may hold `floor(accelerator requests * CPUs / (ratio * accelerators))` requests; they get one more
/// while they hold fewer. In balance a slot of either class is loaded in proportion to what it is worth,
/// and an idle fleet starts on its accelerators. With no accelerator there is nothing to spare it:
/// the answer is true.
#[must_use]
pub const fn cpu_has_room(cpu: GroupLoad, accelerator: GroupLoad, ratio: NonZeroU32) -> bool {
    // u128: no product of the three can overflow.
    let worth = ratio.get() as u128 * accelerator.members as u128;
    let work = accelerator.requests as u128 * cpu.members as u128;
    match work.checked_div(worth) {
        Some(allowed) => (cpu.requests as u128) < allowed,
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(members: u64, requests: u64) -> GroupLoad {
        GroupLoad { members, requests }
    }

    #[test]
    fn two_cpus_beside_one_busy_accelerator() {
        let accelerator = group(1, 8);
        let room = |requests| cpu_has_room(group(2, requests), accelerator, DEFAULT_ACCELERATOR_TO_CPU_RATIO);
        assert_eq!([0, 1, 2, 3].map(room), [true, true, false, false]);
    }

    #[test]
    fn an_idle_fleet_starts_on_its_accelerators() {
        assert!(!cpu_has_room(group(4, 0), group(1, 0), DEFAULT_ACCELERATOR_TO_CPU_RATIO));
    }

    #[test]
    fn the_quotient_is_floored() {
        let ratio = DEFAULT_ACCELERATOR_TO_CPU_RATIO;
        assert!(!cpu_has_room(group(1, 0), group(1, 7), ratio));
        assert!(cpu_has_room(group(1, 0), group(1, 8), ratio));
    }

    #[test]
    fn extremes_do_not_overflow() {
        let most = group(u64::MAX, u64::MAX);
        assert!(!cpu_has_room(most, most, NonZeroU32::MAX));
        assert!(cpu_has_room(most, group(0, 0), NonZeroU32::MIN));
    }
}
