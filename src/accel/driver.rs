//! The CUDA driver's calls that are made here, each with its failure, and the context that they are made in.
//!
//! The bindings panic where the library or a symbol is missing, so `presence.rs` looks for all of [`SYMBOLS`] before any of them
//! is called.

#![allow(unsafe_code, reason = "the driver is a C library")]

use std::{
    ffi::{CStr, c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

use cudarc::driver::sys::{self, CUresult};
use thiserror::Error;

/// Every function of the driver that this room calls.
pub(super) const SYMBOLS: [&CStr; 31] = [
    c"cuCtxSetCurrent",
    c"cuDeviceGet",
    c"cuDeviceGetAttribute",
    c"cuDeviceGetCount",
    c"cuDeviceGetName",
    c"cuDeviceGetUuid",
    c"cuDevicePrimaryCtxRelease_v2",
    c"cuDevicePrimaryCtxRetain",
    c"cuDevicePrimaryCtxSetFlags_v2",
    c"cuDriverGetVersion",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuEventElapsedTime",
    c"cuEventRecord",
    c"cuEventSynchronize",
    c"cuGetErrorName",
    c"cuInit",
    c"cuLaunchKernel",
    c"cuMemAlloc_v2",
    c"cuMemFreeHost",
    c"cuMemFree_v2",
    c"cuMemGetInfo_v2",
    c"cuMemHostAlloc",
    c"cuMemcpyDtoHAsync_v2",
    c"cuMemcpyHtoDAsync_v2",
    c"cuModuleGetFunction",
    c"cuModuleLoadData",
    c"cuModuleUnload",
    c"cuStreamCreate",
    c"cuStreamDestroy_v2",
    c"cuStreamSynchronize",
];

/// Why something could not be done on the device.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(super) enum Failure {
    /// A call.
    #[error("{function} failed: {name} ({code})")]
    Call {
        function: &'static str,
        code: u32,
        /// The driver's name for the code.
        name: String,
    },
    /// The bindings.
    #[error("the CUDA bindings panicked: {0}")]
    Panic(String),
}

impl Failure {
    /// Whether there was too little memory, of whichever kind.
    pub(super) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Call { code, .. } if *code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32)
    }

    /// Whether the context answers nothing else any more, or nobody knows what state it is in. All that CUDA's manual says to
    /// leave the process in an inconsistent state.
    pub(super) fn is_sticky(&self) -> bool {
        let Self::Call { code, .. } = self else { return true };
        const STICKY: [CUresult; 9] = [
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            CUresult::CUDA_ERROR_ASSERT,
            CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUresult::CUDA_ERROR_INVALID_PC,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
        ];
        STICKY.iter().any(|sticky| *sticky as u32 == *code)
            || *code == CUresult::CUDA_ERROR_ECC_UNCORRECTABLE as u32
    }
}

/// The failure of a call, if it failed.
pub(super) fn check(function: &'static str, result: CUresult) -> Result<(), Failure> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name = ptr::null();
    // SAFETY: `name` has room for a pointer.
    let known = unsafe { sys::cuGetErrorName(result, &raw mut name) };
    let name = if known == CUresult::CUDA_SUCCESS && !name.is_null() {
        // SAFETY: the driver's names are strings that end in a zero byte, and last as long as it is loaded.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    } else {
        "unnamed".to_owned()
    };
    Err(Failure::Call { function, code: result as u32, name })
}

/// `work`, with a panic in it as a failure.
pub(super) fn contained<R>(work: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    // Whoever gets `Failure::Panic` lets go of all that `work` had in hand, so it does not matter in what state that is.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
        Err(Failure::Panic(text.to_owned()))
    })
}

/// A device, as the driver lists it.
#[derive(Clone, Debug)]
pub(super) struct Device {
    handle: sys::CUdevice,
    pub(super) name: String,
    /// As NVML writes it: `GPU-...`.
    pub(super) uuid: String,
    /// Compute capability.
    pub(super) capability: (i32, i32),
}

/// Makes the driver ready, and lists its devices.
pub(super) fn devices() -> Result<Vec<Device>, Failure> {
    // SAFETY: no conditions.
    check("cuInit", unsafe { sys::cuInit(0) })?;
    let mut count = 0;
    // SAFETY: room for a number, here and below.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    (0..count).map(device).collect()
}

fn device(ordinal: c_int) -> Result<Device, Failure> {
    let mut handle = 0;
    // SAFETY: room for a handle.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut handle, ordinal) })?;
    let mut name = [0; 128];
    // SAFETY: room for 128 characters, one less than is told, so that there is a zero at the end.
    check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), 127, handle) })?;
    let name = name.map(|c| c as u8);
    let name = CStr::from_bytes_until_nul(&name).map(|name| name.to_string_lossy().into_owned());
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: room for a UUID.
    check("cuDeviceGetUuid", unsafe { sys::cuDeviceGetUuid(&raw mut uuid, handle) })?;
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: room for a number.
        let result = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, handle) };
        check("cuDeviceGetAttribute", result).map(|()| value)
    };
    let major = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(Device {
        handle,
        name: name.unwrap_or_default(),
        uuid: uuid_text(uuid.bytes.map(|byte| byte as u8)),
        capability: (major, minor),
    })
}

fn uuid_text(bytes: [u8; 16]) -> String {
    let number = u128::from_be_bytes(bytes);
    let digits = format!("{number:032x}");
    let group = |range: std::ops::Range<usize>| digits.get(range).unwrap_or_default();
    format!("GPU-{}-{}-{}-{}-{}", group(0..8), group(8..12), group(12..16), group(16..20), group(20..32))
}

/// A device's primary context, which nobody else in this process uses.
#[derive(Debug)]
pub(super) struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
}

// SAFETY: a context may be used from any thread that made it current, which `enter` does.
unsafe impl Send for Context {}

impl Context {
    /// Makes the context, and makes it current in this thread.
    pub(super) fn new(device: &Device) -> Result<Self, Failure> {
        let blocking = sys::CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC as u32;
        // Who waits for the device sleeps: a router has other use for its cores than to watch a flag.
        // SAFETY: no conditions.
        let result = unsafe { sys::cuDevicePrimaryCtxSetFlags_v2(device.handle, blocking) };
        check("cuDevicePrimaryCtxSetFlags_v2", result)?;
        let mut handle = ptr::null_mut();
        // SAFETY: room for a handle.
        let result = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut handle, device.handle) };
        check("cuDevicePrimaryCtxRetain", result)?;
        let context = Self { device: device.handle, handle };
        context.enter()?;
        Ok(context)
    }

    /// Makes it current in this thread, as every call below needs it.
    pub(super) fn enter(&self) -> Result<(), Failure> {
        // SAFETY: the context lives until this is dropped.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.handle) })
    }

    /// Free device memory in bytes.
    pub(super) fn free_bytes(&self) -> Result<usize, Failure> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: room for two numbers.
        check("cuMemGetInfo_v2", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok(free)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, in `new`. Whatever was made in it is gone: its owners are dropped before it.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// A stream: what is queued in it runs in order.
#[derive(Debug)]
pub(super) struct Stream(sys::CUstream);

// SAFETY: a stream may be used from any thread in which its context is current.
unsafe impl Send for Stream {}

impl Stream {
    pub(super) fn new() -> Result<Self, Failure> {
        let mut handle = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: room for a handle.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut handle, flags) })?;
        Ok(Self(handle))
    }

    pub(super) const fn handle(&self) -> sys::CUstream {
        self.0
    }

    /// Waits for all that is queued.
    pub(super) fn wait(&self) -> Result<(), Failure> {
        // SAFETY: the stream lives until this is dropped.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created in `new`, and not used after this.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

/// A point in a stream, with its time.
#[derive(Debug)]
pub(super) struct Event(sys::CUevent);

impl Event {
    /// Records the point after all that is queued in `stream`.
    pub(super) fn record(stream: &Stream) -> Result<Self, Failure> {
        let mut handle = ptr::null_mut();
        // SAFETY: room for a handle.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut handle, 0) })?;
        let event = Self(handle);
        // SAFETY: both live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.0, stream.0) })?;
        Ok(event)
    }

    /// Waits for this point, and returns the microseconds from `start`, which is before it in the same stream.
    pub(super) fn microseconds_since(&self, start: &Self) -> Result<f64, Failure> {
        // SAFETY: the event lives until this is dropped.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.0) })?;
        let mut milliseconds = 0.0;
        // SAFETY: room for a number; both events are recorded, and have been passed.
        let result = unsafe { sys::cuEventElapsedTime(&raw mut milliseconds, start.0, self.0) };
        check("cuEventElapsedTime", result)?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `record`, and not used after this.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// A module: the kernels of one PTX text, compiled for the device.
#[derive(Debug)]
pub(super) struct Module(sys::CUmodule);

// SAFETY: a module may be used from any thread in which its context is current.
unsafe impl Send for Module {}

impl Module {
    pub(super) fn load(ptx: &CStr) -> Result<Self, Failure> {
        let mut handle = ptr::null_mut();
        // SAFETY: room for a handle; PTX is a string that ends in a zero byte.
        let result = unsafe { sys::cuModuleLoadData(&raw mut handle, ptx.as_ptr().cast()) };
        check("cuModuleLoadData", result)?;
        Ok(Self(handle))
    }

    pub(super) fn function(&self, name: &CStr) -> Result<Function, Failure> {
        let mut handle = ptr::null_mut();
        // SAFETY: room for a handle; the module lives.
        let result = unsafe { sys::cuModuleGetFunction(&raw mut handle, self.0, name.as_ptr()) };
        check("cuModuleGetFunction", result)?;
        Ok(Function(handle))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded in `load`; its functions are not launched after this, see `Function`.
        let _ = unsafe { sys::cuModuleUnload(self.0) };
    }
}

/// A kernel of a [`Module`], which its owner must keep for as long as it launches this.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function(sys::CUfunction);

// SAFETY: as its module.
unsafe impl Send for Function {}

impl Function {
    /// Queues a launch of `blocks` blocks of `threads` threads.
    ///
    /// # Safety
    /// `arguments` points to as many values as the kernel has parameters, each of its parameter's type. Memory that they name is
    /// there, is as large as the kernel takes it to be, and is not touched by others, until the stream has been waited for.
    pub(super) unsafe fn launch(
        self,
        stream: &Stream,
        [blocks, threads]: [u32; 2],
        arguments: &mut [*mut c_void],
    ) -> Result<(), Failure> {
        // SAFETY: by the conditions above. The driver copies the arguments before it returns.
        let result = unsafe {
            sys::cuLaunchKernel(
                self.0,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream.0,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_written_as_nvml_does() {
        let bytes =
            [0x5e, 0x7f, 0x2f, 0x6a, 0x0d, 0x2c, 0x4b, 0x8e, 0x9a, 0x37, 0x41, 0xb1, 0xf0, 0xc7, 0xd2, 0xaa];
        assert_eq!(uuid_text(bytes), "GPU-5e7f2f6a-0d2c-4b8e-9a37-41b1f0c7d2aa");
    }

    #[test]
    fn a_panic_is_a_failure_that_ends_it() {
        let failure = contained::<()>(|| panic!("symbol {}", "cuThing")).unwrap_err();
        assert!(failure.to_string().contains("symbol cuThing") && failure.is_sticky());
    }
}
