//! The hardware under a slot.
//!
//! Here is what a choice needs to know of it: whether a slot computes on a CPU or on an accelerator, how many CPU slots one
//! accelerator is worth, and how fast a slot has been so far. Reading the hardware is not done here.

mod class;
mod ratio;
mod speed;

pub use class::DeviceClass;
pub use ratio::{DEFAULT_ACCELERATOR_TO_CPU_RATIO, GroupLoad, cpu_has_room};
pub use speed::{MeanSpeed, Speed};
