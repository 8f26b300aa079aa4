//! What all batches of a process share: the device, if there is one, and what is known about it.

use std::sync::Arc;

use tracing::info;

use super::{AcceleratedHasher, AcceleratorSettings, DeviceState, HashDevice, Status, Where};
use crate::hash::{BatchPrompt, BlockSize, CpuBatchHasher, HashedBatch};

/// Hashes batches, on a GPU where there is one and the batch is large enough to gain by it. One is enough for a process.
///
/// ```
/// use kvroute::accel::{Accelerator, AcceleratorSettings};
/// use kvroute::hash::{BatchHasher, BatchPrompt, BlockSize, HashedBatch, Identity, Prompt};
///
/// let accelerator = Accelerator::new(AcceleratorSettings::default());
/// let mut hasher = accelerator.hasher(BlockSize::new(16)?);
/// let tokens: Vec<u32> = (0..4096).collect();
/// let batch = [BatchPrompt { identity: Identity::plain(), prompt: Prompt::text(&tokens) }];
/// let mut hashed = HashedBatch::new();
/// hasher.hash(&batch, &mut hashed)?; // the same hashes, wherever they come from
/// assert_eq!(hashed.all().len(), 256);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Accelerator {
    pub(super) settings: AcceleratorSettings,
    pub(super) status: Status,
    #[cfg(feature = "cuda")]
    pub(super) stage: parking_lot::Mutex<super::stage::Stage>,
}

impl Accelerator {
    /// Looks whether there is a CUDA driver, and no further. If there is none, or it is too old, the log says so, once and at
    /// INFO: most machines have none.
    #[must_use]
    pub fn new(settings: AcceleratorSettings) -> Arc<Self> {
        let status = if settings.device == HashDevice::Off {
            Status::new(DeviceState::Off, "it is not to be used".to_owned())
        } else {
            match driver_is_there() {
                Ok(()) => Status::new(DeviceState::Unused, "no batch was worth it so far".to_owned()),
                Err(reason) => {
                    info!(reason, "batches of prompts are hashed on the CPU");
                    Status::new(DeviceState::Absent, reason)
                }
            }
        };
        Arc::new(Self {
            settings,
            status,
            #[cfg(feature = "cuda")]
            stage: parking_lot::Mutex::default(),
        })
    }

    /// A hasher for prompts in blocks of `block_size` tokens.
    #[must_use]
    pub fn hasher(self: &Arc<Self>, block_size: BlockSize) -> AcceleratedHasher {
        AcceleratedHasher::new(Arc::clone(self), block_size)
    }

    /// How the device stands, and what was hashed where.
    #[must_use]
    pub const fn status(&self) -> &Status {
        &self.status
    }

    /// Hashes a batch of `blocks` blocks on the device, if that is [`Where::Gpu`]; else `out` is unspecified.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn try_device(
        &self,
        _: &mut CpuBatchHasher,
        _: &[BatchPrompt<'_>],
        _: usize,
        _: &mut HashedBatch,
    ) -> Where {
        Where::NoDevice
    }

    /// Hashes a batch of `blocks` blocks on the device, if that is [`Where::Gpu`]; else `out` is unspecified.
    #[cfg(feature = "cuda")]
    pub(super) fn try_device(
        &self,
        cpu: &mut CpuBatchHasher,
        prompts: &[BatchPrompt<'_>],
        blocks: usize,
        out: &mut HashedBatch,
    ) -> Where {
        if !matches!(self.status.state(), DeviceState::Unused | DeviceState::Ready) {
            return Where::NoDevice;
        }
        if !super::stage::is_worth_a_look(&self.settings, cpu, blocks) {
            return Where::Small;
        }
        // Who finds the device taken does not wait: the CPU is at hand.
        let Some(mut stage) = self.stage.try_lock() else { return Where::Taken };
        stage.hash(self, cpu, prompts, out)
    }
}

#[cfg(feature = "cuda")]
fn driver_is_there() -> Result<(), String> {
    super::presence::look().map_err(|absence| absence.to_string())
}

#[cfg(not(feature = "cuda"))]
fn driver_is_there() -> Result<(), String> {
    Err("built without the feature cuda".to_owned())
}
