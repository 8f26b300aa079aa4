//! What the sampler reads, and that no failure stops it.

use std::{
    path::PathBuf,
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use kvroute::device::{
    DeviceReading, Reading, Throttle,
    nvml::{Absence, Sample, Sampler, SamplerSettings, sample_once},
};
use serde_json::{Value, json};

use crate::stand_in::{StandIn, gpu, gpu_with, lost};

fn settings(stand_in: &StandIn) -> SamplerSettings {
    SamplerSettings {
        nvml_library: Some(stand_in.path()),
        interval: Duration::from_millis(10),
        retry: Duration::from_millis(20),
    }
}

/// A sampler that runs, and its samples.
struct Running {
    samples: Receiver<Sample>,
    _sampler: Sampler,
}

impl Running {
    fn start(stand_in: &StandIn) -> Self {
        let (sender, samples) = channel();
        let sampler = Sampler::start(settings(stand_in), move |sample| drop(sender.send(sample))).unwrap();
        Self { samples, _sampler: sampler }
    }

    /// The first sample from now on that is as wanted.
    fn until(&self, what: &str, wanted: impl Fn(&Sample) -> bool) -> Sample {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            let sample = self.samples.recv_timeout(Duration::from_secs(60)).unwrap();
            if wanted(&sample) {
                return sample;
            }
        }
        panic!("never sampled: {what}");
    }

    fn next(&self) -> Sample {
        self.until("anything", |_| true)
    }
}

fn one(device: &Value) -> DeviceReading {
    let sample = sample_once(&settings(&StandIn::with_devices(std::slice::from_ref(device))));
    assert_eq!(sample.absence, None);
    sample.devices.into_iter().next().unwrap()
}

#[test]
fn every_field_is_read_in_its_unit() {
    let device = one(&gpu_with(
        "GPU-a",
        &json!({ "utilisation": 87, "memory_utilisation": 41, "throttle": 0x48, "processes": [42, 77],
            "sm_clock": 1500, "ecc_uncorrectable": 3 }),
    ));
    let expected = DeviceReading {
        uuid: "GPU-a".to_owned(),
        name: Reading::Value("Test GPU".to_owned()),
        parent: None,
        missing: false,
        sm_utilisation: Reading::Value(0.87),
        memory_utilisation: Reading::Value(0.41),
        memory_used_bytes: Reading::Value(900),
        memory_total_bytes: Reading::Value(1000),
        power_watts: Reading::Value(100.0),
        power_cap_watts: Reading::Value(700.0),
        temperature_celsius: Reading::Value(40),
        slowdown_celsius: Reading::Value(90),
        sm_clock_mhz: Reading::Value(1500),
        sm_clock_max_mhz: Reading::Value(2000),
        memory_clock_mhz: Reading::Value(3000),
        memory_clock_max_mhz: Reading::Value(3000),
        throttle: Reading::Value(Throttle::from_bits(0x48)),
        pcie_generation: Reading::Value(5),
        pcie_generation_max: Reading::Value(5),
        pcie_width: Reading::Value(16),
        pcie_width_max: Reading::Value(16),
        nvlinks_up: Reading::Value(2),
        nvlinks: Reading::Value(3),
        ecc_uncorrectable: Reading::Value(3),
        mig_instances: Reading::Value(0),
        processes: Reading::Value(vec![42, 77]),
        xids: Vec::new(),
    };
    assert_eq!(device, expected);
}

#[test]
fn each_failure_is_a_state_of_its_field_and_stops_no_other() {
    for (code, state) in [
        (3, Reading::NotSupported),
        (4, Reading::NoPermission),
        (15, Reading::Lost),
        (16, Reading::NeedsReset),
        // A code that no header has.
        (4711, Reading::Unreadable),
        (999, Reading::Failed),
    ] {
        let device = one(&gpu_with("GPU-a", &json!({ "errors": { "nvmlDeviceGetPowerUsage": code } })));
        assert_eq!(device.power_watts, state, "{code}");
        assert_eq!(device.power_cap_watts, Reading::Value(700.0), "{code}");
        assert_eq!(device.sm_clock_mhz, Reading::Value(2000), "{code}");
    }
}

#[test]
fn a_device_that_supports_nearly_nothing_is_read_all_the_same() {
    let device = one(&json!({ "uuid": "GPU-vgpu", "utilisation": 12 }));
    assert_eq!(device.sm_utilisation, Reading::Value(0.12));
    let unsupported = device.numbers().into_iter().filter(|(_, reading)| *reading == Reading::NotSupported);
    assert_eq!(unsupported.count(), 19, "all but utilisation, of which memory's share is 0");
    // One that does not even say who it is.
    assert_eq!(one(&json!({ "name": "nameless" })).uuid, "index-0");
}

#[test]
fn memory_that_is_not_told_is_a_state() {
    let device = one(&gpu_with("GPU-unified", &json!({ "memory_total": null })));
    assert_eq!(
        (device.memory_used_bytes, device.memory_total_bytes),
        (Reading::NotSupported, Reading::NotSupported)
    );
}

#[test]
fn reasons_from_a_newer_driver_are_left_out() {
    let device = one(&gpu_with("GPU-a", &json!({ "throttle": (1_u64 << 50) | 0x20 })));
    assert_eq!(device.throttle, Reading::Value(Throttle::from_bits(0x20)));
}

#[test]
fn without_a_library_or_a_driver_there_is_a_reason_and_nothing_else() {
    let nowhere = SamplerSettings {
        nvml_library: Some(PathBuf::from("/none/libnvidia-ml.so.1")),
        ..SamplerSettings::default()
    };
    let sample = sample_once(&nowhere);
    assert!(matches!(sample.absence, Some(Absence::NoLibrary(_))) && sample.devices.is_empty());
    for (code, expected) in
        [(9, "does not answer"), (18, "does not answer"), (4, "permission"), (999, "failed")]
    {
        let sample = sample_once(&settings(&StandIn::new(&json!({ "init": code }))));
        let reason = sample.absence.unwrap().to_string();
        assert!(reason.contains(expected), "{code}: {reason}");
    }
    assert!(sample_once(&settings(&StandIn::with_devices(&[]))).devices.is_empty());
}

#[test]
fn instances_have_memory_and_processes_of_their_own_and_the_gpu_s_clocks() {
    let mig = json!({
        "mig": [{ "uuid": "MIG-a", "memory_total": 100, "memory_used": 5, "processes": [9] }, null],
        "mig_places": 7, "sm_clock": 900, "utilisation": null,
    });
    let sample = sample_once(&settings(&StandIn::with_devices(&[gpu_with("GPU-a", &mig), gpu("GPU-b")])));
    let uuids: Vec<_> = sample.devices.iter().map(|device| device.uuid.as_str()).collect();
    assert_eq!(uuids, ["GPU-a", "MIG-a", "GPU-b"]);
    let (whole, instance) = (&sample.devices[0], &sample.devices[1]);
    assert_eq!((whole.sm_utilisation, whole.mig_instances), (Reading::NotSupported, Reading::Value(1)));
    assert_eq!(instance.parent.as_deref(), Some("GPU-a"));
    assert_eq!((instance.memory_used_bytes, instance.sm_clock_mhz), (Reading::Value(5), Reading::Value(900)));
    assert_eq!(instance.processes, Reading::Value(vec![9]));
    assert_eq!(instance.sm_utilisation, Reading::NotSupported);
}

#[test]
fn a_lost_gpu_keeps_its_name_and_holds_up_nobody() {
    let stand_in = StandIn::with_devices(&[gpu("GPU-a"), gpu("GPU-b")]);
    let running = Running::start(&stand_in);
    running.next();
    stand_in.set_devices(&[lost("GPU-a"), gpu_with("GPU-b", &json!({ "utilisation": 50 }))]);
    let sample =
        running.until("the change", |sample| sample.devices[1].sm_utilisation == Reading::Value(0.5));
    assert_eq!((sample.devices[0].uuid.as_str(), sample.devices[0].sm_utilisation), ("GPU-a", Reading::Lost));
    // It falls out of the listing, and comes back.
    stand_in.set_devices(&[gpu("GPU-b")]);
    let sample = running
        .until("two devices, one missing", |sample| sample.devices.iter().any(|device| device.missing));
    let uuids: Vec<_> = sample.devices.iter().map(|device| (device.uuid.as_str(), device.missing)).collect();
    assert_eq!(uuids, [("GPU-b", false), ("GPU-a", true)]);
    stand_in.set_devices(&[gpu("GPU-a"), gpu("GPU-b")]);
    running.until("both", |sample| sample.devices.iter().all(|device| !device.missing));
}

#[test]
fn an_xid_is_told_once_and_only_if_it_is_new() {
    let with = |xids: &[u64]| gpu_with("GPU-a", &json!({ "xids": xids }));
    let stand_in = StandIn::with_devices(&[with(&[13])]);
    let running = Running::start(&stand_in);
    for _ in 0..3 {
        assert_eq!(running.next().devices[0].xids, [0; 0], "from before the sampler");
    }
    stand_in.set_devices(&[with(&[13, 48, 999, 79])]);
    let sample = running.until("XIDs", |sample| !sample.devices[0].xids.is_empty());
    // 999 stands for one that the driver cannot name.
    assert_eq!(sample.devices[0].xids, [48, 79]);
    assert_eq!(running.next().devices[0].xids, [0; 0]);
}

#[test]
fn a_driver_that_is_replaced_is_found_again() {
    let stand_in = StandIn::new(&json!({ "init": 9 }));
    let running = Running::start(&stand_in);
    assert!(matches!(running.next().absence, Some(Absence::NoDriver(_))));
    stand_in.set_devices(&[gpu("GPU-a")]);
    running.until("a device", |sample| sample.devices.len() == 1);
    stand_in.set(&json!({ "init": 18, "errors": { "nvmlDeviceGetCount_v2": 1 } }));
    let sample = running.until("no driver", |sample| sample.absence.is_some());
    assert!(sample.devices.is_empty(), "nothing is known of a device that nobody can ask about");
    stand_in.set_devices(&[gpu("GPU-a")]);
    let sample = running.until("the device again", |sample| sample.absence.is_none());
    assert!(!sample.devices[0].missing);
}

#[test]
fn what_was_not_supported_is_asked_for_again_after_a_while() {
    let stand_in = StandIn::with_devices(&[gpu_with("GPU-a", &json!({ "utilisation": null }))]);
    let running = Running::start(&stand_in);
    assert_eq!(running.next().devices[0].sm_utilisation, Reading::NotSupported);
    stand_in.set_devices(&[gpu_with("GPU-a", &json!({ "utilisation": 30 }))]);
    running.until("a value", |sample| sample.devices[0].sm_utilisation == Reading::Value(0.3));
}

#[test]
fn a_sampler_that_is_dropped_stops() {
    let stand_in = StandIn::with_devices(&[gpu("GPU-a")]);
    let Running { samples, _sampler } = Running::start(&stand_in);
    samples.recv().unwrap();
    drop(_sampler);
    // The thread's end of the channel goes with it.
    while samples.recv_timeout(Duration::from_secs(60)).is_ok() {}
    assert!(samples.recv().is_err());
}
