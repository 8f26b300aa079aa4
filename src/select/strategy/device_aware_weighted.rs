//! The least loaded, with CPUs and accelerators weighed by what they are worth.

use super::eligible;
use crate::{
    device::{DeviceClass, GroupLoad, cpu_has_room},
    select::{Row, Tuning, draw::least},
};
use fastrand::Rng;

/// Where both classes are present, [`cpu_has_room`] says which of them gets the request; in it the least
/// loaded row does, and ties have equal chances.
pub(in crate::select) fn device_aware_weighted(
    rows: &[Row],
    tuning: &Tuning,
    rng: &mut Rng,
) -> Option<usize> {
    let (cpu, accelerator) = (group(rows, DeviceClass::Cpu), group(rows, DeviceClass::Accelerator));
    let class = if accelerator.members == 0
        || (cpu.members > 0 && cpu_has_room(cpu, accelerator, tuning.accelerator_to_cpu_ratio))
    {
        DeviceClass::Cpu
    } else {
        DeviceClass::Accelerator
    };
    let of_class = eligible(rows).filter(|(_, row)| row.class == class);
    least(of_class.map(|(position, row)| (position, row.load.requests)), rng)
}

fn group(rows: &[Row], class: DeviceClass) -> GroupLoad {
    let of_class = eligible(rows).filter(|(_, row)| row.class == class);
    of_class.fold(GroupLoad::default(), |group, (_, row)| GroupLoad {
        members: group.members + 1,
        requests: group.requests + u64::from(row.load.requests),
    })
}
