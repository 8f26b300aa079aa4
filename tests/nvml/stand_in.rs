//! A machine with the GPUs that a test says it has.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::stand_in_library;

/// A library and its state. Each has its own: tests run side by side in one process.
pub(crate) struct StandIn {
    folder: TempDir,
}

impl StandIn {
    /// A library that knows `state`.
    pub(crate) fn new(state: &Value) -> Self {
        let stand_in = Self { folder: tempfile::tempdir().unwrap() };
        stand_in.set(state);
        fs::copy(built(), stand_in.path()).unwrap();
        stand_in
    }

    /// A library with these devices.
    pub(crate) fn with_devices(devices: &[Value]) -> Self {
        Self::new(&json!({ "devices": devices }))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    /// Replaces the state, in one step for whoever reads it.
    pub(crate) fn set(&self, state: &Value) {
        let (next, path) = (self.folder.path().join("next.json"), self.folder.path().join("state.json"));
        fs::write(&next, state.to_string()).unwrap();
        fs::rename(next, path).unwrap();
    }

    /// Replaces the devices.
    pub(crate) fn set_devices(&self, devices: &[Value]) {
        self.set(&json!({ "devices": devices }));
    }
}

/// A GPU that has everything and does nothing.
pub(crate) fn gpu(uuid: &str) -> Value {
    json!({
        "uuid": uuid, "name": "Test GPU", "utilisation": 0, "memory_utilisation": 0,
        "memory_total": 1000, "memory_used": 900, "power_mw": 100_000, "power_cap_mw": 700_000,
        "temperature": 40, "slowdown": 90, "sm_clock": 2000, "sm_clock_max": 2000, "memory_clock": 3000,
        "memory_clock_max": 3000, "throttle": 0, "pcie_generation": 5, "pcie_generation_max": 5, "pcie_width": 16,
        "pcie_width_max": 16, "nvlinks": [1, 1, 0], "ecc_uncorrectable": 0, "mig": null, "processes": [], "xids": [],
    })
}

/// The same with some fields changed; a null takes a field away.
pub(crate) fn gpu_with(uuid: &str, changes: &Value) -> Value {
    let mut gpu = gpu(uuid);
    for (key, value) in changes.as_object().unwrap() {
        gpu[key] = value.clone();
    }
    gpu
}

/// A GPU that answers nothing any more.
pub(crate) fn lost(uuid: &str) -> Value {
    json!({ "uuid": uuid, "errors": { "*": 15 } })
}

fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| stand_in_library::build("nvml-stand-in"))
}
