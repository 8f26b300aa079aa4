//! The thread that samples.

use std::{
    ffi::OsStr,
    io,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use nvml_wrapper::{Nvml, error::NvmlError};

use super::{Absence, Sample, session::Session};
use crate::device::DeviceReading;

/// What a sampler is started with.
#[derive(Clone, Debug)]
pub struct SamplerSettings {
    /// The library; `None` takes the driver's, as the system finds it.
    pub nvml_library: Option<PathBuf>,
    /// From one sample to the next. Default 1 s.
    pub interval: Duration,
    /// From a look for library and driver that found none to the next. Default 30 s.
    pub retry: Duration,
}

impl Default for SamplerSettings {
    fn default() -> Self {
        Self { nvml_library: None, interval: Duration::from_secs(1), retry: Duration::from_secs(30) }
    }
}

/// Samples for as long as it lives.
#[derive(Debug)]
pub struct Sampler {
    /// Dropping it ends the thread, after the call that it is in. Nobody waits for that: the call may hang.
    _alive: Sender<()>,
}

impl Sampler {
    /// Starts a thread that hands every sample to `sink`, which should not take long.
    ///
    /// # Errors
    /// The system has no thread to give. No GPU, driver or library is not an error.
    pub fn start(settings: SamplerSettings, sink: impl FnMut(Sample) + Send + 'static) -> io::Result<Self> {
        let (alive, ended) = crossbeam_channel::bounded(0);
        let mut work = Work { settings, ended, sink, known: Known::default() };
        thread::Builder::new().name("nvml".to_owned()).spawn(move || work.run())?;
        Ok(Self { _alive: alive })
    }
}

/// One sample, on this thread. There is none before it, so it has no XIDs.
#[must_use]
pub fn sample_once(settings: &SamplerSettings) -> Sample {
    let outcome = load(settings).and_then(|nvml| Session::new(&nvml).sample(&mut Known::default()));
    sample(outcome)
}

fn load(settings: &SamplerSettings) -> Result<Nvml, NvmlError> {
    match settings.nvml_library.as_deref().map(OsStr::new) {
        Some(path) => Nvml::builder().lib_path(path).init(),
        None => Nvml::init(),
    }
}

fn sample(outcome: Result<Vec<DeviceReading>, NvmlError>) -> Sample {
    let taken = Instant::now();
    match outcome {
        Ok(devices) => Sample { taken, absence: None, devices },
        Err(error) => Sample { taken, absence: Some(Absence::from(error)), devices: Vec::new() },
    }
}

/// The devices that were there, over driver reloads.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// By NVML's index, in the last sample.
    pub(super) by_index: Vec<Option<String>>,
    /// All of them, MIG instances too, in the order in which they were first seen.
    uuids: Vec<String>,
}

/// How many devices are remembered. MIG instances get new names whenever a GPU is divided anew.
const MOST_KNOWN: usize = 1024;

impl Known {
    /// Notes who is there, and adds those who are not any more.
    pub(super) fn complete(&mut self, devices: &mut Vec<DeviceReading>) {
        let gone = self.uuids.iter().filter(|uuid| devices.iter().all(|device| device.uuid != **uuid));
        let gone: Vec<_> =
            gone.map(|uuid| DeviceReading { missing: true, ..DeviceReading::of(uuid) }).collect();
        for device in devices.iter() {
            if !self.uuids.contains(&device.uuid) {
                self.uuids.push(device.uuid.clone());
            }
        }
        let surplus = self.uuids.len().saturating_sub(MOST_KNOWN);
        self.uuids.drain(..surplus);
        devices.extend(gone);
    }
}

struct Work<S> {
    settings: SamplerSettings,
    ended: Receiver<()>,
    sink: S,
    known: Known,
}

impl<S: FnMut(Sample)> Work<S> {
    fn run(&mut self) {
        loop {
            let outcome = load(&self.settings);
            match outcome {
                Ok(nvml) => {
                    if self.follow(&nvml) {
                        return;
                    }
                }
                Err(error) => (self.sink)(sample(Err(error))),
            }
            if self.pause(self.settings.retry) {
                return;
            }
        }
    }

    /// Samples until the driver is gone, or, which is true, until the sampler is.
    fn follow(&mut self, nvml: &Nvml) -> bool {
        let mut session = Session::new(nvml);
        loop {
            let outcome = session.sample(&mut self.known);
            let failed = outcome.is_err();
            (self.sink)(sample(outcome));
            if failed {
                return false;
            }
            if self.pause(self.settings.interval) {
                return true;
            }
        }
    }

    /// Whether the sampler ended meanwhile.
    fn pause(&self, length: Duration) -> bool {
        self.ended.recv_timeout(length) != Err(RecvTimeoutError::Timeout)
    }
}
