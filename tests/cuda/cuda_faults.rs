//! Devices that fail in the middle: every batch is hashed right, and a device is let go when it has to be.

use kvroute::accel::{DeviceState, Where};

use crate::{
    batches::{accelerator, hash_some},
    child::{self, Library},
    log_capture::Log,
};

/// Finds too little memory when it is opened.
fn full(name: &str, settings: &str) {
    child::run(name, Library::StandIn(settings), || {
        let log = Log::start("info");
        let accelerator = accelerator();
        assert_eq!([hash_some(&accelerator, 40), hash_some(&accelerator, 40)], [Where::Busy; 2]);
        assert_eq!(accelerator.status().state(), DeviceState::Unused, "it may have some later");
        assert_eq!(log.lines_with(" WARN "), 0, "{}", log.text());
    });
}

#[test]
fn cuda_has_too_little_memory() {
    full("cuda_faults::cuda_has_too_little_memory", "memory_mib=32");
}

#[test]
fn cuda_runs_out_of_memory() {
    full("cuda_faults::cuda_runs_out_of_memory", "cuMemAlloc_v2@3=2");
}

#[test]
fn cuda_pins_no_memory() {
    full("cuda_faults::cuda_pins_no_memory", "cuMemHostAlloc=2");
}

#[test]
fn cuda_fails_a_launch_and_goes_on() {
    let name = "cuda_faults::cuda_fails_a_launch_and_goes_on";
    child::run(
        name,
        Library::StandIn("cuLaunchKernel@2=701,cuMemcpyDtoHAsync_v2@3=999,report=REPORT"),
        || {
            let log = Log::start("info");
            let accelerator = accelerator();
            let places = [(); 6].map(|()| hash_some(&accelerator, 40));
            // The third copy back is that of the fourth batch: the second one did not get so far.
            assert_eq!(places, [Where::Gpu, Where::Error, Where::Gpu, Where::Error, Where::Gpu, Where::Gpu]);
            assert_eq!(accelerator.status().state(), DeviceState::Ready);
            assert_eq!(log.lines_with(" WARN "), 0, "{}", log.text());
            drop(accelerator);
            assert!(!child::report().contains("wrong "), "{}", child::report());
        },
    );
}

#[test]
fn cuda_fails_in_the_middle_of_a_batch() {
    let name = "cuda_faults::cuda_fails_in_the_middle_of_a_batch";
    child::run(name, Library::StandIn("cuMemcpyHtoDAsync_v2@4=999"), || {
        let accelerator = accelerator();
        // Four chunks, and hashes of the first are there already.
        let blocks = (3 << 16) + 1;
        assert_eq!(
            [hash_some(&accelerator, blocks), hash_some(&accelerator, blocks)],
            [Where::Error, Where::Gpu]
        );
    });
}

#[test]
fn cuda_fails_again_and_again() {
    child::run("cuda_faults::cuda_fails_again_and_again", Library::StandIn("cuLaunchKernel=701"), || {
        let log = Log::start("info");
        let accelerator = accelerator();
        let places = [(); 5].map(|()| hash_some(&accelerator, 40));
        assert_eq!(places, [Where::Error, Where::Error, Where::Error, Where::NoDevice, Where::NoDevice]);
        assert_eq!(accelerator.status().state(), DeviceState::Failed);
        assert_eq!(log.lines_with(" WARN "), 1, "{}", log.text());
    });
}

/// Ends the context at some call; the device is let go at once, with one WARN.
fn ends(name: &str, settings: &str, code: &str) {
    child::run(name, Library::StandIn(settings), || {
        let log = Log::start("info");
        let accelerator = accelerator();
        let places = [(); 4].map(|()| hash_some(&accelerator, 40));
        assert_eq!(places, [Where::Gpu, Where::Error, Where::NoDevice, Where::NoDevice]);
        assert_eq!(accelerator.status().state(), DeviceState::Failed);
        assert!(accelerator.status().reason().contains(code), "{}", accelerator.status().reason());
        assert_eq!(log.lines_with(" WARN "), 1, "{}", log.text());
        // Nothing hangs or fails on the way out.
        drop(accelerator);
    });
}

#[test]
fn cuda_ends_with_an_illegal_address() {
    let name = "cuda_faults::cuda_ends_with_an_illegal_address";
    ends(name, "cuStreamSynchronize@2=700", "CUDA_ERROR_ILLEGAL_ADDRESS");
}

#[test]
fn cuda_ends_with_a_failed_launch() {
    ends("cuda_faults::cuda_ends_with_a_failed_launch", "cuLaunchKernel@2=719", "CUDA_ERROR_LAUNCH_FAILED");
}

#[test]
fn cuda_ends_with_an_error_nobody_knows() {
    // It is not known to be the end; but nothing works after it.
    let name = "cuda_faults::cuda_ends_with_an_error_nobody_knows";
    ends(name, "cuLaunchKernel@2=999,cuStreamSynchronize@2=999", "999");
}
