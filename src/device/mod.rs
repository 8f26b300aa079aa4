//! The hardware under a slot.
//!
//! Two things are here. What *kind* a slot computes on, a CPU or an accelerator ([`DeviceClass`]), and what one of the
//! latter is worth in the former. And how a GPU is *doing*: a [`DeviceReading`] is what one sample says of it, and is folded,
//! step by step, into what a choice needs to know:
//!
//! ```text
//! reading --+-- health      a fault fences its worker, at once; it comes back after clean samples   health.rs
//!           +-- capability  (0, 1]: clocks against their maxima while something holds them down     capability.rs
//!           +-- utilisation, minus what our own requests explain = external load                    external.rs
//! several GPUs of one worker: any fault, the least capability, the most utilisation                 group.rs
//! capability, external load, age of the sample -> weight (0, 1], 1 without telemetry                weight.rs
//! ```
//!
//! Every step is pure: time is an argument, and nothing here knows where readings come from. The sampler that makes them
//! (`nvml`, a feature) is the exception, and apart: it has a thread and a clock. Without a driver, a library or the feature
//! there are no readings, and every weight is 1.
//!
//! How fast a slot has been so far is learned from what it did ([`Speed`]), with and without telemetry.
//!
//! What a GPU has in memory is shown and never judged: an engine takes most of it when it starts, whatever it does.

mod capability;
mod class;
mod external;
mod group;
mod health;
#[cfg(feature = "nvml")]
pub mod nvml;
mod ratio;
mod reading;
mod speed;
mod throttle;
mod visible;
mod weight;

pub use capability::{LEAST_CAPABILITY, capability};
pub use class::DeviceClass;
pub use external::External;
pub use group::{Group, GroupState};
pub use health::{Fault, Health, Healths, Recovery, fault};
pub use ratio::{DEFAULT_ACCELERATOR_TO_CPU_RATIO, GroupLoad, cpu_has_room};
pub use reading::{DeviceReading, Reading};
pub use speed::{MeanSpeed, Speed};
pub use throttle::Throttle;
pub use visible::{Unresolved, Visible};
pub use weight::{Condition, Terms, Weights, WeightsError};
