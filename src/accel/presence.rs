//! Whether there is a driver to speak to at all, found out without speaking to a device.

#![allow(unsafe_code, reason = "the driver is a C library")]

use cudarc::driver::sys;
use thiserror::Error;

use super::driver::{Failure, SYMBOLS, check, contained};

/// CUDA 11.0, as the driver writes it: the first release that has all of [`SYMBOLS`].
const LEAST_DRIVER: i32 = 11_000;

/// Why no GPU hashes. None of these is an error: most machines have none.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(super) enum Absence {
    #[error("there is no CUDA driver here (libcuda.so.1)")]
    NoLibrary,
    #[error("the CUDA driver has no {0}; a driver for CUDA 11.0 or newer is needed")]
    NoSymbol(String),
    #[error("the CUDA driver is for CUDA {}.{}; one for 11.0 or newer is needed", .0 / 1000, .0 % 1000 / 10)]
    OldDriver(i32),
    #[error("the CUDA driver does not answer: {0}")]
    Unanswered(Failure),
    #[error("the CUDA driver lists no GPU of compute capability 7.0 or newer{0}")]
    NoDevice(String),
    #[error("the kernels do not load: {0}")]
    Unloadable(Failure),
}

/// Looks for the library, for all that is called in it, and at its version.
pub(super) fn look() -> Result<(), Absence> {
    // SAFETY: loading the driver's library runs its initialisers, which is what it is for.
    if !unsafe { sys::is_culib_present() } {
        return Err(Absence::NoLibrary);
    }
    let missing = contained(|| {
        // SAFETY: as above; it was found a moment ago, or this panics.
        let library = unsafe { sys::culib() };
        // SAFETY: the type is not used: nothing is called through it.
        let has = |name| unsafe { library.get::<unsafe extern "C" fn()>(name) }.is_ok();
        Ok(SYMBOLS.into_iter().find(|name| !has(name.to_bytes_with_nul())))
    });
    match missing {
        Ok(None) => {}
        Ok(Some(name)) => return Err(Absence::NoSymbol(name.to_string_lossy().into_owned())),
        Err(failure) => return Err(Absence::Unanswered(failure)),
    }
    let version = contained(|| {
        let mut version = 0;
        // SAFETY: room for a number.
        check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
        Ok(version)
    });
    match version {
        Ok(version) if version >= LEAST_DRIVER => Ok(()),
        Ok(version) => Err(Absence::OldDriver(version)),
        Err(failure) => Err(Absence::Unanswered(failure)),
    }
}
