//! Batches of prompts hashed where that is fastest: in threads of the CPU, or on an NVIDIA GPU behind the same interface.
//!
//! ```text
//! Accelerator ---- hasher() ----> AcceleratedHasher: BatchHasher
//!   |  settings, status             |  small batch, or no device ------> CpuBatchHasher
//!   |                               |  large batch: calibrate, then
//!   +-- Gpu (made at first use) <---+     occupancy: is the device free, as NVML tells?
//!         context, kernels                slots: pinned memory -> device -> kernel -> pinned memory
//! ```
//!
//! A GPU's digests are those of the CPU, bit for bit, and whatever fails on it is hashed again on the CPU: a caller sees the same
//! hashes and never an error. The kernels are `kernels/block_hash.cu`; the PTX made of them is in the binary, and the driver, if
//! there is one, compiles that for its device when the first large batch comes.
//!
//! What must hold:
//! * Without a driver, without a GPU, or built without the feature `cuda` everything works; that there is none is said once, in the
//!   log and in [`Status`].
//! * Nothing of a device is touched before a batch that is worth it: no context, no memory. Then it is asked first whether there is
//!   memory to spare. A GPU serves an engine in the first place.
//! * No panic of the bindings leaves this room, and no call is made before the library and its symbols were found.
//! * After an error that a context does not survive the device is let go for good, with one WARN.
//!
//! What it is not: faster for a single prompt, or for a few. Tokens have to get to the device, over PCIe, and that takes about as
//! long as hashing them; `docs/gpu.md` has the figures. So requests are hashed by [`BlockHasher`](crate::hash::BlockHasher), in
//! their own thread.

mod accelerated;
mod accelerator;
mod settings;
mod status;

#[cfg(feature = "cuda")]
mod buffers;
#[cfg(feature = "cuda")]
mod calibrate;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
mod kernels;
#[cfg(feature = "cuda")]
mod measure;
#[cfg(feature = "cuda")]
mod occupancy;
#[cfg(feature = "cuda")]
mod presence;
#[cfg(feature = "cuda")]
mod stage;

pub use accelerated::AcceleratedHasher;
pub use accelerator::Accelerator;
#[cfg(feature = "cuda")]
pub use measure::{BatchTimes, ChunkSteps, MeasuredDevice};
pub use settings::{AcceleratorSettings, HashDevice, UnknownDevice};
pub use status::{DeviceState, Status, Where};
