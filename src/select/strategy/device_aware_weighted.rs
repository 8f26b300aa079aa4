//! The least loaded, with devices weighed by what they are worth.

use super::eligible;
use crate::{
    device::{DeviceClass, GroupLoad, cpu_has_room},
    select::{Row, Tuning, draw::least},
};
use fastrand::Rng;

/// Without telemetry, where both classes are present, [`cpu_has_room`] says which of them gets the request; in it the
/// least loaded row does. With telemetry of any row, the request goes where it makes the least load for what a row is
/// worth, see [`worth`], within and across classes. Ties have equal chances.
pub(in crate::select) fn device_aware_weighted(
    rows: &[Row],
    tuning: &Tuning,
    rng: &mut Rng,
) -> Option<usize> {
    let told = |row: &Row| row.device.is_some_and(|terms| terms.freshness > 0.0);
    if eligible(rows).any(|(_, row)| told(row)) {
        let load = |row: &Row| row.requests_for_weight() / worth(row, tuning);
        return least(eligible(rows).map(|(position, row)| (position, load(row))), rng);
    }
    let (cpu, accelerator) = (group(rows, DeviceClass::Cpu), group(rows, DeviceClass::Accelerator));
    let class = if accelerator.members == 0
        || (cpu.members > 0 && cpu_has_room(cpu, accelerator, tuning.accelerator_to_cpu_ratio))
    {
        DeviceClass::Cpu
    } else {
        DeviceClass::Accelerator
    };
    let of_class = eligible(rows).filter(|(_, row)| row.class == class);
    least(of_class.map(|(position, row)| (position, row.requests_for_weight())), rng)
}

/// What a row's devices are worth, in CPUs: the ratio for an accelerator, 1 for a CPU, times the weight; a row without
/// telemetry weighs 1.
fn worth(row: &Row, tuning: &Tuning) -> f64 {
    let class = match row.class {
        DeviceClass::Cpu => 1.0,
        DeviceClass::Accelerator => f64::from(tuning.accelerator_to_cpu_ratio.get()),
    };
    class * row.device.map_or(1.0, |terms| terms.weight)
}

fn group(rows: &[Row], class: DeviceClass) -> GroupLoad {
    let of_class = eligible(rows).filter(|(_, row)| row.class == class);
    of_class.fold(GroupLoad::default(), |group, (_, row)| GroupLoad {
        members: group.members + 1,
        requests: group.requests + u64::from(row.load.requests),
    })
}
