//! `kvroute gpus`.

use std::process::{Command, Output};

use serde_json::json;

use crate::stand_in::{StandIn, gpu_with, lost};

fn gpus(library: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvroute"));
    command.args(["gpus", "--nvml-library", library]).env_clear().output().unwrap()
}

fn listing(stand_in: &StandIn) -> String {
    let output = gpus(stand_in.path().to_str().unwrap());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_device_is_listed_with_its_weight_and_what_was_not_read() {
    let text = listing(&StandIn::with_devices(&[
        gpu_with("GPU-hot", &json!({ "throttle": 0x40, "sm_clock": 500, "processes": [42] })),
        gpu_with(
            "GPU-shy",
            &json!({ "errors": { "nvmlDeviceGetPowerUsage": 4 }, "mig": [{ "uuid": "MIG-1", "processes": [] }], "mig_places": 1 }),
        ),
        lost("GPU-gone"),
    ]));
    for part in [
        "GPU-hot  Test GPU",
        "weight        0.25 (capability 0.25; clocks held by hardware_thermal)",
        "processes     42",
        "no permission power_watts\n",
        "MIG-1  Test GPU  (instance of GPU-shy)",
        "not supported sm_utilisation, memory_utilisation",
        "index-2  unnamed",
        "to be fenced: lost",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn nothing_to_list_is_no_failure() {
    let output = gpus("/none/libnvidia-ml.so.1");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("NVML is not here"), "{text}");
    assert!(listing(&StandIn::with_devices(&[])).contains("lists no GPUs"));
    assert!(listing(&StandIn::new(&json!({ "init": 9 }))).contains("driver does not answer"));
}
