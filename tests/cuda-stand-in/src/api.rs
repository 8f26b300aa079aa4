//! The driver's functions, as `libcuda.so.1` has them.

#![allow(non_snake_case, clippy::missing_safety_doc, reason = "the names and the contracts are CUDA's")]

use std::{
    cell::Cell,
    env,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    fs, ptr,
    sync::{Mutex, PoisonError},
};

use crate::{
    driver::{
        Code, Driver, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_SUPPORTED,
        OUT_OF_MEMORY, SUCCESS,
    },
    machine::Launch,
    report,
    settings::{Settings, VARIABLE},
};

type Handle = *mut c_void;

/// What the one context is called.
const CONTEXT: usize = 0x1000;
/// What `cuDeviceGetName` says.
pub const NAME: &CStr = c"CUDA stand-in";

const ATTRIBUTE_MULTIPROCESSORS: c_int = 16;
const ATTRIBUTE_MAJOR: c_int = 75;
const ATTRIBUTE_MINOR: c_int = 76;

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);

thread_local! {
    /// The context that this thread made current.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

fn call(function: &str, body: impl FnOnce(&mut Driver) -> Result<(), Code>) -> Code {
    let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    let driver =
        driver.get_or_insert_with(|| Driver::new(Settings::parse(&env::var(VARIABLE).unwrap_or_default())));
    driver.enter(function).and_then(|()| body(driver)).err().unwrap_or(SUCCESS)
}

/// A call that needs a context.
fn in_context(function: &str, body: impl FnOnce(&mut Driver) -> Result<(), Code>) -> Code {
    call(function, |driver| {
        if CURRENT.get() == CONTEXT && driver.retained > 0 { body(driver) } else { Err(INVALID_CONTEXT) }
    })
}

/// Writes through an out pointer of the caller.
unsafe fn put<T>(out: *mut T, value: T) -> Result<(), Code> {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: CUDA's contract: the caller hands in room for one value.
    unsafe { out.write(value) };
    Ok(())
}

fn handle(number: u64) -> Handle {
    ptr::without_provenance_mut(number as usize)
}

fn number(handle: Handle) -> u64 {
    handle.addr() as u64
}

fn device_exists(driver: &Driver, device: c_int) -> Result<(), Code> {
    if (0..driver.settings.devices).contains(&device) { Ok(()) } else { Err(INVALID_DEVICE) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(_flags: c_uint) -> Code {
    call("cuInit", |driver| {
        driver.initialised = true;
        if driver.settings.devices == 0 { Err(NO_DEVICE) } else { Ok(()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    call("cuDriverGetVersion", |driver| unsafe { put(version, driver.settings.driver) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    call("cuDeviceGetCount", |driver| unsafe { put(count, driver.settings.devices) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Code {
    call("cuDeviceGet", |driver| {
        device_exists(driver, ordinal)?;
        unsafe { put(device, ordinal) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) -> Code {
    call("cuDeviceGetName", |driver| {
        device_exists(driver, device)?;
        let bytes = NAME.to_bytes_with_nul();
        if name.is_null() || (room as usize) < bytes.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: CUDA's contract: `name` has room for `room` characters.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), name, bytes.len()) };
        Ok(())
    })
}

/// Device 0 is `GPU-00000000-0000-0000-0000-000000000000`, device 1 ends in 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) -> Code {
    call("cuDeviceGetUuid", |driver| {
        device_exists(driver, device)?;
        let mut bytes = [0; 16];
        bytes[15] = device as u8;
        unsafe { put(uuid, bytes) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> Code {
    call("cuDeviceGetAttribute", |driver| {
        device_exists(driver, device)?;
        let capability = driver.settings.capability as c_int;
        let known = match attribute {
            ATTRIBUTE_MULTIPROCESSORS => 1,
            ATTRIBUTE_MAJOR => capability / 10,
            ATTRIBUTE_MINOR => capability % 10,
            _ => return Err(NOT_SUPPORTED),
        };
        unsafe { put(value, known) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) -> Code {
    call("cuDevicePrimaryCtxSetFlags_v2", |driver| device_exists(driver, device))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) -> Code {
    call("cuDevicePrimaryCtxRetain", |driver| {
        device_exists(driver, device)?;
        driver.retained += 1;
        unsafe { put(context, handle(CONTEXT as u64)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code {
    call("cuDevicePrimaryCtxRelease_v2", |driver| {
        device_exists(driver, device)?;
        driver.retained = driver.retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        if let (0, Some(path)) = (driver.retained, &driver.settings.report) {
            fs::write(path, report::of(driver)).expect("the report can be written");
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: Handle) -> Code {
    call("cuCtxSetCurrent", |_| {
        CURRENT.set(context.addr());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    in_context("cuMemGetInfo_v2", |driver| {
        unsafe { put(free, driver.memory.free_bytes()) }?;
        unsafe { put(total, driver.memory.size()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> Code {
    in_context("cuModuleLoadData", |driver| {
        // SAFETY: CUDA's contract for PTX: a string that ends in a zero byte.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_str().map_err(|_| NOT_SUPPORTED)?;
        let loaded = driver.load(text)?;
        unsafe { put(module, handle(loaded)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: Handle) -> Code {
    in_context("cuModuleUnload", |driver| driver.unload(number(module)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut Handle,
    module: Handle,
    name: *const c_char,
) -> Code {
    in_context("cuModuleGetFunction", |driver| {
        // SAFETY: CUDA's contract: a string that ends in a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| INVALID_VALUE)?;
        let found = driver.function(number(module), name)?;
        unsafe { put(function, handle(found)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> Code {
    in_context("cuMemAlloc_v2", |driver| {
        let allocated = driver.memory.allocate(bytes).ok_or(OUT_OF_MEMORY)?;
        unsafe { put(address, allocated) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: u64) -> Code {
    in_context("cuMemFree_v2", |driver| driver.free(address))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(address: *mut Handle, bytes: usize, _flags: c_uint) -> Code {
    in_context("cuMemHostAlloc", |driver| {
        let pinned = driver.pin(bytes)?;
        unsafe { put(address, ptr::with_exposed_provenance_mut(pinned)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(address: Handle) -> Code {
    in_context("cuMemFreeHost", |driver| driver.unpin(address.addr()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: Handle,
) -> Code {
    in_context("cuMemcpyHtoDAsync_v2", |driver| {
        driver.upload(number(stream), to, from.expose_provenance(), bytes)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: Handle,
) -> Code {
    in_context("cuMemcpyDtoHAsync_v2", |driver| {
        driver.download(number(stream), to.expose_provenance(), from, bytes)
    })
}

/// One dimension, no dynamic shared memory, and parameters one by one: the rest is refused.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "CUDA's")]
pub unsafe extern "C" fn cuLaunchKernel(
    function: Handle,
    blocks: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    threads: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    shared: c_uint,
    stream: Handle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    in_context("cuLaunchKernel", |driver| {
        if [blocks_y, blocks_z, threads_y, threads_z] != [1; 4] || shared != 0 || !extra.is_null() {
            return Err(NOT_SUPPORTED);
        }
        let mut bytes = Vec::new();
        for (i, (offset, size)) in driver.parameters(number(function))?.into_iter().enumerate() {
            bytes.resize(offset + size, 0);
            // SAFETY: CUDA's contract: as many pointers as the kernel has parameters, each to one of its size.
            let parameter = unsafe { std::slice::from_raw_parts((*parameters.add(i)).cast::<u8>(), size) };
            bytes[offset..].copy_from_slice(parameter);
        }
        driver.launch(number(stream), number(function), Launch { blocks, threads, parameters: bytes })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut Handle, _flags: c_uint) -> Code {
    in_context("cuStreamCreate", |driver| {
        let created = driver.create_stream();
        unsafe { put(stream, handle(created)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: Handle) -> Code {
    in_context("cuStreamSynchronize", |driver| driver.finish(number(stream)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Code {
    in_context("cuStreamDestroy_v2", |driver| driver.destroy_stream(number(stream)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut Handle, _flags: c_uint) -> Code {
    in_context("cuEventCreate", |driver| {
        let created = driver.create_event();
        unsafe { put(event, handle(created)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> Code {
    in_context("cuEventRecord", |driver| driver.record(number(event), number(stream)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: Handle) -> Code {
    in_context("cuEventSynchronize", |driver| driver.wait_for(number(event)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, from: Handle, to: Handle) -> Code {
    in_context("cuEventElapsedTime", |driver| {
        let passed = driver.milliseconds(number(from), number(to))?;
        unsafe { put(milliseconds, passed) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: Handle) -> Code {
    in_context("cuEventDestroy_v2", |driver| driver.destroy_event(number(event)))
}

/// Not counted and never failing: it is asked after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: Code, name: *mut *const c_char) -> Code {
    let known = match code {
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        100 => c"CUDA_ERROR_NO_DEVICE",
        209 => c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        218 => c"CUDA_ERROR_INVALID_PTX",
        222 => c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        _ => return INVALID_VALUE,
    };
    unsafe { put(name, known.as_ptr()) }.err().unwrap_or(SUCCESS)
}
