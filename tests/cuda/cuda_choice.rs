//! Which batches go to the device.

use std::{
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use kvroute::{
    accel::{Accelerator, AcceleratorSettings, HashDevice, Where},
    hash::{BatchHasher, BlockSize, HashedBatch},
};
use serde_json::json;

use crate::{
    batches::{UUID, accelerator, expected, hash_some, settings, text, tokens},
    child::{self, Library},
    nvml::{StandIn, gpu_with},
};

#[test]
fn cuda_is_not_touched_by_small_batches() {
    let name = "cuda_choice::cuda_is_not_touched_by_small_batches";
    // Whoever initialised it would see it fail.
    child::run(name, Library::StandIn("cuInit=999"), || {
        let by_size = Accelerator::new(AcceleratorSettings { least_blocks: None, ..settings(1) });
        assert_eq!(hash_some(&by_size, 4095), Where::Small, "65520 tokens");
        let by_blocks = Accelerator::new(settings(41));
        assert_eq!(hash_some(&by_blocks, 40), Where::Small);
        assert_eq!(hash_some(&by_blocks, 41), Where::NoDevice, "it was asked");
    });
}

#[test]
fn cuda_is_slower_here_and_that_is_found_out() {
    let name = "cuda_choice::cuda_is_slower_here_and_that_is_found_out";
    child::run(name, Library::StandIn(""), || {
        let accelerator = Accelerator::new(AcceleratorSettings { least_blocks: None, ..settings(1) });
        // An interpreter is no match for a CPU: measured once, and never again used for this block size.
        assert_eq!([hash_some(&accelerator, 5000), hash_some(&accelerator, 50_000)], [Where::Small; 2]);
    });
}

#[test]
fn cuda_serves_one_batch_at_a_time() {
    child::run("cuda_choice::cuda_serves_one_batch_at_a_time", Library::StandIn(""), || {
        let accelerator = accelerator();
        let tokens = tokens(1 << 20, 1);
        let start = Barrier::new(2);
        let hash = || {
            let mut out = HashedBatch::new();
            start.wait();
            accelerator.hasher(BlockSize::new(64).unwrap()).hash(&text(&tokens), &mut out).unwrap();
            out
        };
        // Whoever comes second is not made to wait. On a busy machine it may come when the first has left.
        let count = |place| accelerator.status().batches(place);
        for round in 1..=20 {
            let (one, other) = thread::scope(|scope| {
                let other = scope.spawn(hash);
                (hash(), other.join().unwrap())
            });
            assert_eq!(one.all(), expected(&tokens, 64, 1337));
            assert_eq!(one, other);
            assert_eq!(count(Where::Gpu) + count(Where::Taken), 2 * round);
            if count(Where::Taken) > 0 {
                return;
            }
        }
        panic!("the two never met");
    });
}

/// Hashes until that happens at `place`.
fn until(accelerator: &Arc<Accelerator>, place: Where) {
    let start = Instant::now();
    while hash_some(accelerator, 40) != place {
        assert!(start.elapsed() < Duration::from_secs(60), "never {place:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn cuda_gives_way_to_an_engine() {
    child::run("cuda_choice::cuda_gives_way_to_an_engine", Library::StandIn(""), || {
        let gpu = |utilisation: u64, throttle: u64| {
            let memory = json!({ "memory_total": 80_u64 << 30, "memory_used": 70_u64 << 30 });
            let mut gpu = gpu_with(UUID, &memory);
            (gpu["utilisation"], gpu["throttle"]) = (json!(utilisation), json!(throttle));
            gpu
        };
        let nvml = StandIn::with_devices(&[gpu(10, 0)]);
        let accelerator = Accelerator::new(AcceleratorSettings {
            device: HashDevice::Auto,
            nvml_library: Some(nvml.path()),
            look_every: Duration::from_millis(10),
            ..settings(1)
        });
        assert_eq!(hash_some(&accelerator, 40), Where::Gpu, "found by itself");
        nvml.set_devices(&[gpu(90, 0)]);
        until(&accelerator, Where::Busy);
        nvml.set_devices(&[gpu(0, 0)]);
        until(&accelerator, Where::Gpu);
        // Hot, and the clocks are at half.
        let mut hot = gpu(0, 0x40);
        hot["sm_clock"] = json!(1000);
        nvml.set_devices(&[hot]);
        until(&accelerator, Where::Busy);
    });
}

#[test]
fn cuda_takes_no_memory_that_is_not_there() {
    let name = "cuda_choice::cuda_takes_no_memory_that_is_not_there";
    // Whoever made a context would see it fail for good.
    child::run(name, Library::StandIn("cuDevicePrimaryCtxRetain=999"), || {
        let full = json!({ "memory_total": 80_u64 << 30, "memory_used": (80_u64 << 30) - (512 << 20) });
        let nvml = StandIn::with_devices(&[gpu_with(UUID, &full)]);
        for device in [HashDevice::Auto, HashDevice::Uuid(UUID.to_owned())] {
            let nvml_library = Some(nvml.path());
            let accelerator = Accelerator::new(AcceleratorSettings { device, nvml_library, ..settings(1) });
            assert_eq!([hash_some(&accelerator, 40), hash_some(&accelerator, 40)], [Where::Busy; 2]);
        }
    });
}
