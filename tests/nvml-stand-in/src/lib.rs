//! Stands in for NVML where there is no GPU.
//!
//! What it answers is in `state.json` beside the library, which is read anew at every call, so that a test can change the
//! world while somebody looks at it:
//!
//! ```json
//! { "init": 0, "errors": { "nvmlDeviceGetCount_v2": 9 },
//!   "devices": [{ "uuid": "GPU-1", "name": "Test", "utilisation": 87, "power_mw": 512000, "processes": [42], "xids": [79],
//!                 "errors": { "nvmlDeviceGetPowerUsage": 4, "*": 15 }, "mig": [{ "uuid": "MIG-1" }] }] }
//! ```
//!
//! A number in `errors` is what the function of that name returns, `*` is every function of that device. What is not
//! there is not supported. An XID is told once, in order. A device with `"lost_every": 3` is lost each third time that somebody
//! asks for its handle.
//!
//! Each copy of the library has a state of its own: it looks for the file beside the copy.

#![allow(clippy::disallowed_types, reason = "no dependency for the sake of one lock")]
#![allow(non_snake_case, clippy::missing_safety_doc, reason = "the names and the contracts are NVML's")]

use std::{
    ffi::c_char,
    fs,
    path::PathBuf,
    sync::{Mutex, OnceLock, PoisonError},
};

use serde_json::Value;

type Code = u32;
type Handle = usize;

const SUCCESS: Code = 0;
const UNINITIALIZED: Code = 1;
const INVALID_ARGUMENT: Code = 2;
const NOT_SUPPORTED: Code = 3;
const NOT_FOUND: Code = 6;
const INSUFFICIENT_SIZE: Code = 7;
const TIMEOUT: Code = 10;
const GPU_IS_LOST: Code = 15;

/// What callers did.
struct Calls {
    inits: u32,
    /// For handles.
    asked: u64,
    /// Per event set, the device that was registered, and how many of its XIDs were told.
    sets: Vec<(Handle, usize)>,
}

static CALLS: Mutex<Calls> = Mutex::new(Calls { inits: 0, asked: 0, sets: Vec::new() });

fn calls<R>(change: impl FnOnce(&mut Calls) -> R) -> R {
    change(&mut CALLS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The file beside the library: the mapping that this very function lies in has its path.
fn state_path() -> Option<&'static PathBuf> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let here = state_path as *const () as usize;
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let line = maps.lines().find(|line| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let bounds = range.map(|(low, high)| [low, high].map(|end| usize::from_str_radix(end, 16)));
            matches!(bounds, Some([Ok(low), Ok(high)]) if (low..high).contains(&here))
        })?;
        Some(PathBuf::from(&line[line.find('/')?..]).with_file_name("state.json"))
    };
    PATH.get_or_init(find).as_ref()
}

fn state() -> Value {
    let bytes = state_path().and_then(|path| fs::read(path).ok()).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or(Value::Null)
}

fn error(of: &Value, function: &str) -> Option<Code> {
    let errors = &of["errors"];
    let code = errors.get(function).or_else(|| errors.get("*"))?;
    u32::try_from(code.as_u64()?).ok()
}

/// The device of a handle, if `function` may be asked of it.
fn device(handle: Handle, function: &str) -> Result<Value, Code> {
    if calls(|calls| calls.inits) == 0 {
        return Err(UNINITIALIZED);
    }
    let state = state();
    if let Some(code) = error(&state, function) {
        return Err(code);
    }
    let (gpu, instance) = (handle >> 8, handle & 0xff);
    let gpu = gpu.checked_sub(1).and_then(|index| state["devices"].get(index)).ok_or(INVALID_ARGUMENT)?;
    if let Some(code) = error(gpu, function) {
        return Err(code);
    }
    let found = match instance.checked_sub(1) {
        Some(index) => gpu["mig"].get(index).ok_or(INVALID_ARGUMENT)?,
        None => gpu,
    };
    error(found, function).map_or(Ok(found.clone()), Err)
}

fn number(of: &Value, key: &str) -> Result<u64, Code> {
    of[key].as_u64().ok_or(NOT_SUPPORTED)
}

fn code(outcome: Result<(), Code>) -> Code {
    outcome.err().unwrap_or(SUCCESS)
}

/// Writes through an out pointer of the caller.
unsafe fn put<T>(out: *mut T, value: T) -> Result<(), Code> {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: NVML's contract: the caller hands in room for one value.
    unsafe { out.write(value) };
    Ok(())
}

unsafe fn put_text(out: *mut c_char, room: u32, text: &str) -> Result<(), Code> {
    if text.len() >= room as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    for (offset, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: NVML's contract: `out` has `room` bytes, and the text with its end fits.
        unsafe { out.add(offset).write(byte as c_char) };
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Code {
    let code = state()["init"].as_u64().and_then(|code| u32::try_from(code).ok()).unwrap_or(SUCCESS);
    if code == SUCCESS {
        calls(|calls| calls.inits += 1);
    }
    code
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Code {
    calls(|calls| match calls.inits.checked_sub(1) {
        Some(left) => {
            calls.inits = left;
            SUCCESS
        }
        None => UNINITIALIZED,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut u32) -> Code {
    if calls(|calls| calls.inits) == 0 {
        return UNINITIALIZED;
    }
    let state = state();
    if let Some(code) = error(&state, "nvmlDeviceGetCount_v2") {
        return code;
    }
    let devices = state["devices"].as_array().map_or(0, Vec::len);
    // SAFETY: the caller's out pointer.
    code(unsafe { put(count, devices as u32) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, out: *mut Handle) -> Code {
    let handle = (index as usize + 1) << 8;
    let found = device(handle, "nvmlDeviceGetHandleByIndex_v2").and_then(|device| {
        let asked = calls(|calls| {
            calls.asked += u64::from(device["lost_every"].is_u64());
            calls.asked
        });
        let lost = device["lost_every"].as_u64().is_some_and(|every| asked.is_multiple_of(every.max(1)));
        if lost { Err(GPU_IS_LOST) } else { Ok(()) }
    });
    // SAFETY: the caller's out pointer.
    code(found.and_then(|()| unsafe { put(out, handle) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    handle: Handle,
    index: u32,
    out: *mut Handle,
) -> Code {
    let found = device(handle, "nvmlDeviceGetMigDeviceHandleByIndex");
    let there = |gpu: Value| match gpu["mig"].get(index as usize) {
        Some(Value::Null) | None => Err(NOT_FOUND),
        Some(_) => Ok(()),
    };
    // SAFETY: the caller's out pointer.
    code(found.and_then(there).and_then(|()| unsafe { put(out, handle | (index as usize + 1)) }))
}

/// Functions that answer with one number, or with one for what `which` names.
macro_rules! numbers {
    ($($function:ident($key:literal) -> $type:ty;)+) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function(handle: Handle, out: *mut $type) -> Code {
            let found = device(handle, stringify!($function)).and_then(|device| number(&device, $key));
            // SAFETY: the caller's out pointer.
            code(found.and_then(|value| unsafe { put(out, value as $type) }))
        }
    )+ };
    ($($function:ident[$($which:literal: $key:literal),+];)+) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function(handle: Handle, which: u32, out: *mut u32) -> Code {
            let key = match which { $($which => $key,)+ _ => return INVALID_ARGUMENT };
            let found = device(handle, stringify!($function)).and_then(|device| number(&device, key));
            // SAFETY: the caller's out pointer.
            code(found.and_then(|value| unsafe { put(out, value as u32) }))
        }
    )+ };
}

numbers! {
    nvmlDeviceGetPowerUsage("power_mw") -> u32;
    nvmlDeviceGetEnforcedPowerLimit("power_cap_mw") -> u32;
    nvmlDeviceGetCurrentClocksThrottleReasons("throttle") -> u64;
    nvmlDeviceGetCurrPcieLinkGeneration("pcie_generation") -> u32;
    nvmlDeviceGetCurrPcieLinkWidth("pcie_width") -> u32;
    nvmlDeviceGetMaxPcieLinkGeneration("pcie_generation_max") -> u32;
    nvmlDeviceGetMaxPcieLinkWidth("pcie_width_max") -> u32;
    nvmlDeviceGetMaxMigDeviceCount("mig_places") -> u32;
}

numbers! {
    nvmlDeviceGetTemperature[0: "temperature"];
    nvmlDeviceGetTemperatureThreshold[1: "slowdown"];
    nvmlDeviceGetClockInfo[1: "sm_clock", 2: "memory_clock"];
    nvmlDeviceGetMaxClockInfo[1: "sm_clock_max", 2: "memory_clock_max"];
}

macro_rules! texts {
    ($($function:ident($key:literal);)+) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function(handle: Handle, out: *mut c_char, room: u32) -> Code {
            let found = device(handle, stringify!($function));
            code(found.and_then(|device| {
                let text = device[$key].as_str().ok_or(NOT_SUPPORTED)?;
                // SAFETY: the caller's buffer and its length.
                unsafe { put_text(out, room, text) }
            }))
        }
    )+ };
}

texts! {
    nvmlDeviceGetUUID("uuid");
    nvmlDeviceGetName("name");
}

#[repr(C)]
pub struct Utilisation {
    gpu: u32,
    memory: u32,
}

#[repr(C)]
pub struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[repr(C)]
pub struct Process {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

#[repr(C)]
pub struct Event {
    device: Handle,
    kind: u64,
    data: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

// The sizes of NVML's own structs: callers lay them out for themselves.
const _: () = assert!(size_of::<MemoryV2>() == 40);
const _: () = assert!(size_of::<Process>() == 24);
const _: () = assert!(size_of::<Event>() == 32);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(handle: Handle, out: *mut Utilisation) -> Code {
    let found = device(handle, "nvmlDeviceGetUtilizationRates").and_then(|device| {
        let gpu = number(&device, "utilisation")? as u32;
        Ok(Utilisation { gpu, memory: number(&device, "memory_utilisation").unwrap_or(0) as u32 })
    });
    // SAFETY: the caller's out pointer.
    code(found.and_then(|value| unsafe { put(out, value) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: Handle, out: *mut MemoryV2) -> Code {
    let version = size_of::<MemoryV2>() as u32 | (2 << 24);
    let found = device(handle, "nvmlDeviceGetMemoryInfo_v2").and_then(|device| {
        let (total, used) = (number(&device, "memory_total")?, number(&device, "memory_used")?);
        Ok(MemoryV2 { version, total, reserved: 0, free: total.saturating_sub(used), used })
    });
    // SAFETY: the caller's out pointer.
    code(found.and_then(|value| unsafe { put(out, value) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: Handle,
    count: *mut u32,
    out: *mut Process,
) -> Code {
    let found = device(handle, "nvmlDeviceGetComputeRunningProcesses_v3").and_then(|device| {
        let pids = device["processes"].as_array().ok_or(NOT_SUPPORTED)?.clone();
        // SAFETY: the caller says here how many fit, and is told how many there are.
        let room = unsafe { count.read() } as usize;
        unsafe { put(count, pids.len() as u32)? };
        if pids.is_empty() {
            return Ok(());
        }
        if out.is_null() || room < pids.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        for (offset, pid) in pids.iter().enumerate() {
            let pid = pid.as_u64().unwrap_or(0) as u32;
            // As in containers, where the memory of others is not told.
            let none = u32::MAX;
            let process = Process { pid, used: u64::MAX, gpu_instance: none, compute_instance: none };
            // SAFETY: `room` says that there is space.
            unsafe { out.add(offset).write(process) };
        }
        Ok(())
    });
    code(found)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkState(handle: Handle, link: u32, out: *mut u32) -> Code {
    let found = device(handle, "nvmlDeviceGetNvLinkState").and_then(|device| {
        let links = device["nvlinks"].as_array().ok_or(NOT_SUPPORTED)?;
        links.get(link as usize).and_then(Value::as_u64).ok_or(INVALID_ARGUMENT)
    });
    // SAFETY: the caller's out pointer.
    code(found.and_then(|value| unsafe { put(out, value as u32) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    handle: Handle,
    kind: u32,
    counter: u32,
    out: *mut u64,
) -> Code {
    let key = match (kind, counter) {
        (1, 0) => "ecc_uncorrectable",
        _ => return NOT_SUPPORTED,
    };
    let found = device(handle, "nvmlDeviceGetTotalEccErrors").and_then(|device| number(&device, key));
    // SAFETY: the caller's out pointer.
    code(found.and_then(|value| unsafe { put(out, value) }))
}

/// On exactly if there are instances, or `"mig": []`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(handle: Handle, now: *mut u32, next: *mut u32) -> Code {
    let found = device(handle, "nvmlDeviceGetMigMode")
        .and_then(|device| device.get("mig").map(|mig| u32::from(mig.is_array())).ok_or(NOT_SUPPORTED));
    // SAFETY: the caller's out pointers.
    code(found.and_then(|on| unsafe { put(now, on).and_then(|()| put(next, on)) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(out: *mut Handle) -> Code {
    let set = calls(|calls| {
        calls.sets.push((0, 0));
        calls.sets.len()
    });
    // SAFETY: the caller's out pointer.
    code(unsafe { put(out, set) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceRegisterEvents(handle: Handle, _kinds: u64, set: Handle) -> Code {
    let found = device(handle, "nvmlDeviceRegisterEvents")
        .and_then(|device| device["xids"].as_array().map(Vec::len).ok_or(NOT_SUPPORTED));
    // What happened before somebody registered is not told.
    code(found.map(|told| calls(|calls| calls.sets[set - 1] = (handle, told))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(set: Handle, out: *mut Event, _timeout_ms: u32) -> Code {
    let (handle, told) = calls(|calls| calls.sets[set - 1]);
    let found = device(handle, "nvmlEventSetWait_v2")
        .and_then(|device| device["xids"].get(told).and_then(Value::as_u64).ok_or(TIMEOUT));
    code(found.and_then(|data| {
        calls(|calls| calls.sets[set - 1].1 += 1);
        let none = u32::MAX;
        let event = Event { device: handle, kind: 8, data, gpu_instance: none, compute_instance: none };
        // SAFETY: the caller's out pointer.
        unsafe { put(out, event) }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(_set: Handle) -> Code {
    SUCCESS
}
