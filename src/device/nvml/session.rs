//! One run of the driver: from finding it to losing it.

use ahash::AHashMap;
use nvml_wrapper::{Device, Nvml, error::NvmlError};

use super::{
    events::Events,
    query::{Asker, read, read_instance, reading},
    sampler::Known,
};
use crate::device::{DeviceReading, Reading};

/// What is kept between two samples.
pub(super) struct Session<'nvml> {
    nvml: &'nvml Nvml,
    events: Events<'nvml>,
    /// By UUID, what each device does not have.
    askers: AHashMap<String, Asker>,
}

impl<'nvml> Session<'nvml> {
    pub(super) fn new(nvml: &'nvml Nvml) -> Self {
        Self { nvml, events: Events::default(), askers: AHashMap::new() }
    }

    /// All devices now.
    ///
    /// # Errors
    /// Nothing can be asked any more: the driver is gone, or is being replaced.
    pub(super) fn sample(&mut self, known: &mut Known) -> Result<Vec<DeviceReading>, NvmlError> {
        let count = match self.nvml.device_count() {
            // One that is lost may take the listing with it; the others are then not to be seen either.
            Err(NvmlError::GpuLost) => 0,
            count => count?,
        };
        let mut devices = Vec::new();
        for index in 0..count {
            match self.nvml.device_by_index(index) {
                Ok(device) => self.gpu(index, &device, known, &mut devices),
                Err(error) => devices.push(unreachable(index, error, known)),
            }
        }
        self.askers.retain(|uuid, _| devices.iter().any(|device| device.uuid == *uuid));
        known.complete(&mut devices);
        Ok(devices)
    }

    fn gpu(
        &mut self,
        index: u32,
        device: &Device<'nvml>,
        known: &mut Known,
        devices: &mut Vec<DeviceReading>,
    ) {
        let uuid = device.uuid().unwrap_or_else(|_| name_at(index, known));
        remember(index, &uuid, known);
        let mut gpu = read(device, &uuid, self.asker(&uuid));
        gpu.xids = self.events.take(self.nvml, device, &uuid);
        let divided = device.mig_mode().is_ok_and(|mode| mode.current == 1);
        let instances = if divided { self.instances(device, &gpu) } else { Vec::new() };
        if divided {
            gpu.mig_instances = Reading::Value(u32::try_from(instances.len()).unwrap_or(u32::MAX));
        }
        devices.push(gpu);
        devices.extend(instances);
    }

    /// The places of a GPU are counted by NVML, not the instances: most places may be empty.
    fn instances(&mut self, device: &Device<'nvml>, gpu: &DeviceReading) -> Vec<DeviceReading> {
        let places = device.mig_device_count().unwrap_or(0);
        let there = (0..places).filter_map(|place| device.mig_device_by_index(place).ok());
        let read = there.filter_map(|instance| {
            let uuid = instance.uuid().ok()?;
            let mut reading = read_instance(&instance, &uuid, self.askers.entry(uuid.clone()).or_default());
            reading.inherit(gpu);
            Some(reading)
        });
        read.collect()
    }

    fn asker(&mut self, uuid: &str) -> &mut Asker {
        self.askers.entry(uuid.to_owned()).or_default()
    }
}

/// A device of which there is no handle.
fn unreachable(index: u32, error: NvmlError, known: &Known) -> DeviceReading {
    let state = reading(Err(error));
    DeviceReading { sm_utilisation: state, ..DeviceReading::of(&name_at(index, known)) }
}

/// What a device at an index is called that does not say: what it said before.
fn name_at(index: u32, known: &Known) -> String {
    let before = usize::try_from(index).ok().and_then(|index| known.by_index.get(index)?.clone());
    before.unwrap_or_else(|| format!("index-{index}"))
}

fn remember(index: u32, uuid: &str, known: &mut Known) {
    let Ok(index) = usize::try_from(index) else { return };
    if known.by_index.len() <= index {
        known.by_index.resize(index + 1, None);
    }
    if known.by_index[index].as_deref() != Some(uuid) {
        known.by_index[index] = Some(uuid.to_owned());
    }
}
