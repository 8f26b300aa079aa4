//! XID errors, which the driver tells once to whoever registered for them.

use ahash::AHashMap;
use nvml_wrapper::{
    Device, EventSet, Nvml, bitmasks::event::EventTypes, enums::event::XidError, error::NvmlError,
};

/// How many are taken from a device in one sample; the driver keeps the rest.
const AT_ONCE: usize = 32;

/// The registrations, by the devices' UUIDs. A device that has none does not support it, and is not asked again.
#[derive(Default)]
pub(super) struct Events<'nvml>(AHashMap<String, Option<EventSet<'nvml>>>);

impl<'nvml> Events<'nvml> {
    /// The XIDs of a device since it was last asked; none the first time.
    pub(super) fn take(&mut self, nvml: &'nvml Nvml, device: &Device<'nvml>, uuid: &str) -> Vec<u64> {
        let Some(set) = self.0.get(uuid) else {
            self.0.insert(uuid.to_owned(), register(nvml, device));
            return Vec::new();
        };
        let Some(set) = set else { return Vec::new() };
        let mut xids = Vec::new();
        for _ in 0..AT_ONCE {
            match set.wait(0) {
                Ok(event) => xids.extend(match event.event_data {
                    Some(XidError::Value(number)) => Some(number),
                    Some(XidError::Unknown) | None => None,
                }),
                // A timeout is the usual end; what else it may be, the readings say.
                Err(_) => break,
            }
        }
        xids
    }
}

fn register<'nvml>(nvml: &'nvml Nvml, device: &Device<'nvml>) -> Option<EventSet<'nvml>> {
    let attempt = || -> Result<EventSet<'nvml>, NvmlError> {
        let set = nvml.create_event_set()?;
        // A set of its own for each device: a registration that fails takes its set along.
        device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|failed| failed.error)
    };
    attempt().ok()
}
