//! Stands in for the CUDA driver where there is no GPU, and runs kernels by interpreting the PTX it is given.
//!
//! What is tested with it is the host code as it is, from the loading of the library to the last copy, and the very text of
//! the kernels that ships. It is stricter than a device:
//!
//! * An instruction, a type or a directive that the interpreter does not know makes the module invalid; nothing is skipped.
//! * Every access is checked: bounds, alignment, reads of what was never written, words of global or bytes of shared memory
//!   that two threads touch without a barrier between them, barriers that only some threads reach, threads that never end.
//!   Each ends the launch with the code that a driver would give, and the context with it.
//! * Work on a stream runs when somebody waits for it and not before. Copies read and write host memory at that moment. So whoever
//!   looks at a result, or fills a buffer again, without having waited gets it wrong every time, not just sometimes.
//!
//! What it does not show: what `ptxas` and the device make of the PTX, how warps run, speed, and the memory model beyond barriers.
//!
//! [`settings`] says how a test makes calls fail. [`report`] is what is written when the context goes: how often each function was
//! called, and what was not given back.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "this is a package of its own, with no dependencies"
)]

pub mod api;
pub mod driver;
pub mod instruction;
pub mod machine;
pub mod memory;
pub mod module;
pub mod report;
pub mod settings;
