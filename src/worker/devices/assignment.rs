//! Which of the machine's GPUs are the engine's.

use super::{DeviceSettings, watch::whole_devices};
use crate::device::DeviceReading;

/// The engine's GPUs, and who says so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Assignment {
    pub(super) uuids: Vec<String>,
    pub(super) by: &'static str,
}

/// Finds them in a sample: what somebody named counts for sure; then where the engine's processes are; then what the
/// environment shows. A machine's only device is not taken for an engine's on no other ground.
///
/// # Errors
/// Why it cannot be said, and what to do.
pub(super) fn assign(
    settings: &DeviceSettings,
    sample: &[DeviceReading],
    is_engine: impl Fn(u32) -> bool,
) -> Result<Assignment, String> {
    if let Some(named) = &settings.named {
        let uuids = named.resolve(sample, settings.pci_order);
        let uuids = uuids.map_err(|problem| format!("--engine-gpus: {problem}"))?;
        return Ok(Assignment { uuids, by: "--engine-gpus" });
    }
    let has_engine = |device: &&DeviceReading| {
        device.processes.clone().value().unwrap_or_default().into_iter().any(&is_engine)
    };
    let uuids: Vec<_> = whole_devices(sample).filter(has_engine).map(|device| device.uuid.clone()).collect();
    if !uuids.is_empty() {
        return Ok(Assignment { uuids, by: "the engine's processes" });
    }
    let unknown = "the engine's processes are on none of them, as far as the driver tells, and the environment names none: \
                   give --engine-gpus";
    let shown = settings.shown.as_ref().ok_or_else(|| unknown.to_owned())?;
    let uuids = shown.resolve(sample, settings.pci_order).map_err(|problem| problem.to_string())?;
    if uuids.is_empty() { Err(unknown.to_owned()) } else { Ok(Assignment { uuids, by: "the environment" }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Reading, Visible};

    fn sample() -> Vec<DeviceReading> {
        let gpu = |uuid: &str, processes: &[u32]| DeviceReading {
            processes: Reading::Value(processes.to_vec()),
            ..DeviceReading::of(uuid)
        };
        let divided = gpu("GPU-c", &[7]);
        let mut instance = gpu("MIG-c", &[7]);
        instance.inherit(&divided);
        vec![gpu("GPU-a", &[1]), gpu("GPU-b", &[7, 2]), divided, instance]
    }

    #[test]
    fn what_is_named_comes_before_processes_and_these_before_the_environment() {
        let named = DeviceSettings { named: Some(Visible::parse("GPU-a")), ..DeviceSettings::default() };
        let shown = DeviceSettings { shown: Some(Visible::parse("GPU-a")), ..DeviceSettings::default() };
        let of = |settings: &DeviceSettings, engine: u32| assign(settings, &sample(), |pid| pid == engine);
        let assigned = |settings, engine| of(settings, engine).map(|found| (found.uuids, found.by)).unwrap();
        assert_eq!(assigned(&named, 7), (vec!["GPU-a".to_owned()], "--engine-gpus"));
        assert_eq!(
            assigned(&shown, 7),
            (vec!["GPU-b".to_owned(), "MIG-c".to_owned()], "the engine's processes")
        );
        assert_eq!(assigned(&shown, 9), (vec!["GPU-a".to_owned()], "the environment"));
        let error = of(&DeviceSettings::default(), 9).unwrap_err();
        assert!(error.contains("--engine-gpus"), "{error}");
        let all = DeviceSettings { shown: Some(Visible::All), ..DeviceSettings::default() };
        assert!(of(&all, 9).is_err(), "nobody says how many of them it took");
    }

    #[test]
    fn a_name_that_is_none_is_told() {
        let named = DeviceSettings { named: Some(Visible::parse("GPU-z")), ..DeviceSettings::default() };
        let error = assign(&named, &sample(), |_| true).unwrap_err();
        assert!(error.contains("--engine-gpus: no device 'GPU-z'"), "{error}");
        let none = DeviceSettings { named: Some(Visible::None), ..DeviceSettings::default() };
        assert_eq!(assign(&none, &sample(), |_| true).unwrap().uuids, [""; 0]);
    }
}
