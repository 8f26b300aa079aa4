//! Machines on which no GPU can be used: everything works, and it is said once that there is none, and why.

use kvroute::accel::{Accelerator, AcceleratorSettings, DeviceState, HashDevice, Where};

use crate::{
    batches::{hash_some, settings},
    child::{self, Library},
    log_capture::Log,
};

/// Nothing hashes on a device, from the first batch or from the first large one on, and the one line of the log says `why`.
fn nothing(settings: AcceleratorSettings, at_first: DeviceState, why: &str) {
    let log = Log::start("info");
    let accelerator = Accelerator::new(settings);
    assert_eq!(accelerator.status().state(), at_first, "{}", accelerator.status().reason());
    for _ in 0..3 {
        assert_eq!(hash_some(&accelerator, 40), Where::NoDevice);
    }
    let state = accelerator.status().state();
    assert!(matches!(state, DeviceState::Absent | DeviceState::Off), "{state:?}");
    assert!(accelerator.status().reason().contains(why), "{}", accelerator.status().reason());
    let lines = usize::from(state == DeviceState::Absent);
    let counts = [" INFO ", " WARN ", " ERROR "].map(|level| log.lines_with(level));
    assert_eq!(counts, [lines, 0, 0], "{}", log.text());
    assert!(state == DeviceState::Off || log.text().contains(why), "{}", log.text());
}

macro_rules! absent {
    ($($name:ident, $library:expr, $at_first:ident, $why:literal;)*) => {$(
        #[test]
        fn $name() {
            let name = concat!("cuda_absent::", stringify!($name));
            child::run(name, $library, || nothing(settings(1), DeviceState::$at_first, $why));
        }
    )*};
}

absent! {
    cuda_has_no_library, Library::None, Absent, "no CUDA driver";
    cuda_lacks_a_symbol, Library::Without("cuLaunchKernel"), Absent, "no cuLaunchKernel";
    cuda_driver_is_old, Library::StandIn("driver=10020"), Absent, "is for CUDA 10.2";
    cuda_driver_does_not_say_its_version, Library::StandIn("cuDriverGetVersion=999"), Absent, "cuDriverGetVersion failed";
    cuda_lists_no_device, Library::StandIn("devices=0"), Unused, "CUDA_ERROR_NO_DEVICE";
    cuda_does_not_start, Library::StandIn("cuInit=999"), Unused, "cuInit failed";
    cuda_device_is_old, Library::StandIn("capability=61"), Unused, "compute capability 7.0";
    cuda_makes_no_context, Library::StandIn("cuDevicePrimaryCtxRetain=999"), Unused, "cuDevicePrimaryCtxRetain";
    cuda_takes_no_ptx_so_new, Library::StandIn("cuModuleLoadData=222"), Unused, "UNSUPPORTED_PTX_VERSION";
    cuda_lacks_a_kernel, Library::StandIn("cuModuleGetFunction@3=500"), Unused, "cuModuleGetFunction failed";
}

#[test]
fn cuda_lists_another_uuid() {
    child::run("cuda_absent::cuda_lists_another_uuid", Library::StandIn("devices=2"), || {
        let uuid = "GPU-5e7f2f6a-0d2c-4b8e-9a37-41b1f0c7d2aa".to_owned();
        let settings = AcceleratorSettings { device: HashDevice::Uuid(uuid), ..settings(1) };
        nothing(settings, DeviceState::Unused, "it lists GPU-00000000-0000-0000-0000-000000000000, GPU-");
    });
}

#[test]
fn cuda_is_off() {
    child::run("cuda_absent::cuda_is_off", Library::StandIn(""), || {
        let settings = AcceleratorSettings { device: HashDevice::Off, ..settings(1) };
        nothing(settings, DeviceState::Off, "not to be used");
    });
}

#[test]
fn cuda_is_left_alone_where_nvml_does_not_tell_of_memory() {
    let name = "cuda_absent::cuda_is_left_alone_where_nvml_does_not_tell_of_memory";
    child::run(name, Library::StandIn(""), || {
        let settings = AcceleratorSettings { device: HashDevice::Auto, ..settings(1) };
        nothing(settings, DeviceState::Unused, "name one by its UUID");
    });
}
