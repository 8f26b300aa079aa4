//! How the device stands, and what was hashed where.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;

/// How the device stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceState {
    /// It is not to be used.
    Off,
    /// There is none that can be used; [`Status::reason`] says why.
    Absent,
    /// There is a driver, and no batch was worth asking it for more.
    Unused,
    /// It hashes.
    Ready,
    /// It failed, and is not asked again.
    Failed,
}

impl DeviceState {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Off, Self::Absent, Self::Unused, Self::Ready, Self::Failed];

    /// Its name on the metrics page.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Absent => "absent",
            Self::Unused => "unused",
            Self::Ready => "ready",
            Self::Failed => "failed",
        }
    }
}

/// Where a batch was hashed, and of those on the CPU why there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where {
    /// On the device.
    Gpu,
    /// On the CPU: there is no device to use.
    NoDevice,
    /// On the CPU, where that is faster.
    Small,
    /// On the CPU: the device has work of an engine's, is held back, or has no memory to spare.
    Busy,
    /// On the CPU: another batch was on the device.
    Taken,
    /// On the CPU, after the device failed in the middle.
    Error,
}

impl Where {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Gpu, Self::NoDevice, Self::Small, Self::Busy, Self::Taken, Self::Error];

    /// Its name on the metrics page.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::NoDevice => "cpu_no_device",
            Self::Small => "cpu_small",
            Self::Busy => "cpu_busy",
            Self::Taken => "cpu_taken",
            Self::Error => "cpu_error",
        }
    }
}

/// What an [`Accelerator`](super::Accelerator) tells about itself.
#[derive(Debug)]
pub struct Status {
    state: RwLock<(DeviceState, String)>,
    batches: [AtomicU64; Where::ALL.len()],
    blocks: [AtomicU64; Where::ALL.len()],
}

impl Status {
    pub(super) fn new(state: DeviceState, reason: String) -> Self {
        Self { state: RwLock::new((state, reason)), batches: Default::default(), blocks: Default::default() }
    }

    /// How the device stands.
    #[must_use]
    pub fn state(&self) -> DeviceState {
        self.state.read().0
    }

    /// Of a device that is ready its name and UUID, of one that is not why.
    #[must_use]
    pub fn reason(&self) -> String {
        self.state.read().1.clone()
    }

    /// Batches hashed there.
    #[must_use]
    pub fn batches(&self, place: Where) -> u64 {
        // Relaxed, here and below: statistics.
        self.batches[place as usize].load(Relaxed)
    }

    /// Blocks of those batches.
    #[must_use]
    pub fn blocks(&self, place: Where) -> u64 {
        self.blocks[place as usize].load(Relaxed)
    }

    #[cfg(feature = "cuda")]
    pub(super) fn set(&self, state: DeviceState, reason: String) {
        *self.state.write() = (state, reason);
    }

    pub(super) fn count(&self, place: Where, blocks: usize) {
        self.batches[place as usize].fetch_add(1, Relaxed);
        self.blocks[place as usize].fetch_add(blocks as u64, Relaxed);
    }
}
