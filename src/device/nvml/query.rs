//! The questions, one a field.

use ahash::AHashMap;
use nvml_wrapper::{
    Device,
    enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold},
    error::NvmlError,
};

use crate::device::{DeviceReading, Reading, Throttle};

/// How many samples pass before a device is asked again for what it does not support. A change of its mode may bring it.
const ASK_AGAIN: u32 = 60;

/// The most NVLinks that a GPU has.
const NVLINKS: u32 = 18;

/// Asks one device, and remembers what it does not support.
#[derive(Default)]
pub(super) struct Asker {
    /// Samples that pass before a field is asked for again.
    rests: AHashMap<&'static str, u32>,
}

impl Asker {
    fn ask<T>(&mut self, field: &'static str, question: impl FnOnce() -> Result<T, NvmlError>) -> Reading<T> {
        if let Some(rest) = self.rests.get_mut(field)
            && *rest > 0
        {
            *rest -= 1;
            return Reading::NotSupported;
        }
        let answer = reading(question());
        if matches!(answer, Reading::NotSupported) {
            self.rests.insert(field, ASK_AGAIN);
        }
        answer
    }
}

/// An answer, or what the lack of it means.
pub(super) fn reading<T>(answer: Result<T, NvmlError>) -> Reading<T> {
    match answer {
        Ok(value) => Reading::Value(value),
        Err(error) => match error {
            NvmlError::NotSupported
            | NvmlError::InvalidArg
            | NvmlError::NotFound
            | NvmlError::NoData
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::FunctionNotFound
            | NvmlError::VgpuEccNotSupported => Reading::NotSupported,
            NvmlError::NoPermission | NvmlError::OperatingSystem => Reading::NoPermission,
            NvmlError::GpuLost => Reading::Lost,
            NvmlError::ResetRequired => Reading::NeedsReset,
            NvmlError::UnexpectedVariant(_) | NvmlError::IncorrectBits(_) | NvmlError::Utf8Error(_) => {
                Reading::Unreadable
            }
            _ => Reading::Failed,
        },
    }
}

/// Everything about a GPU but its XIDs.
pub(super) fn read(device: &Device<'_>, uuid: &str, asker: &mut Asker) -> DeviceReading {
    let mut of = read_instance(device, uuid, asker);
    of.power_watts = asker.ask("power", || device.power_usage()).map(watts);
    of.power_cap_watts = asker.ask("power cap", || device.enforced_power_limit()).map(watts);
    of.temperature_celsius = asker.ask("temperature", || device.temperature(TemperatureSensor::Gpu));
    of.slowdown_celsius =
        asker.ask("slowdown", || device.temperature_threshold(TemperatureThreshold::Slowdown));
    of.sm_clock_mhz = asker.ask("SM clock", || device.clock_info(Clock::SM));
    of.sm_clock_max_mhz = asker.ask("SM clock max", || device.max_clock_info(Clock::SM));
    of.memory_clock_mhz = asker.ask("memory clock", || device.clock_info(Clock::Memory));
    of.memory_clock_max_mhz = asker.ask("memory clock max", || device.max_clock_info(Clock::Memory));
    // Reasons that only newer drivers know are dropped, not refused.
    of.throttle = asker
        .ask("throttle", || device.current_throttle_reasons())
        .map(|reasons| Throttle::from_bits(reasons.bits()));
    of.pcie_generation = asker.ask("PCIe generation", || device.current_pcie_link_gen());
    of.pcie_generation_max = asker.ask("PCIe generation max", || device.max_pcie_link_gen());
    of.pcie_width = asker.ask("PCIe width", || device.current_pcie_link_width());
    of.pcie_width_max = asker.ask("PCIe width max", || device.max_pcie_link_width());
    let links = asker.ask("NVLinks", || links(device));
    of.nvlinks_up = links.map(|(up, _)| up);
    of.nvlinks = links.map(|(_, all)| all);
    of.ecc_uncorrectable =
        asker.ask("ECC", || device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile));
    of.mig_instances = asker.ask("MIG", || device.mig_mode()).map(|_| 0);
    of
}

/// What a MIG instance has of its own.
pub(super) fn read_instance(device: &Device<'_>, uuid: &str, asker: &mut Asker) -> DeviceReading {
    let utilisation = asker.ask("utilisation", || device.utilization_rates());
    let memory = asker.ask("memory", || device.memory_info());
    let processes = asker.ask("processes", || device.running_compute_processes());
    DeviceReading {
        name: asker.ask("name", || device.name()),
        sm_utilisation: utilisation.clone().map(|of| share(of.gpu)),
        memory_utilisation: utilisation.map(|of| share(of.memory)),
        memory_used_bytes: memory.clone().map(|of| of.used),
        memory_total_bytes: memory.map(|of| of.total),
        processes: processes.map(|all| all.into_iter().map(|process| process.pid).collect()),
        ..DeviceReading::of(uuid)
    }
}

/// How many NVLinks are up, and how many there are. A link that is not there ends the count.
fn links(device: &Device<'_>) -> Result<(u32, u32), NvmlError> {
    let (mut up, mut all) = (0, 0);
    for number in 0..NVLINKS {
        match device.link_wrapper_for(number).is_active() {
            Ok(active) => {
                all += 1;
                up += u32::from(active);
            }
            Err(error) if all == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok((up, all))
}

fn share(percent: u32) -> f64 {
    f64::from(percent.min(100)) / 100.0
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1000.0
}
