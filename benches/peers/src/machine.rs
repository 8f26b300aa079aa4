//! Where the figures are from: no number means anything without it.

use std::{fs, thread};

/// One line about the machine and how busy it is.
pub(crate) fn describe() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!(
        "{}, {} cores, load average {}",
        model.map_or("unknown processor", |(_, model)| model),
        thread::available_parallelism().map_or(0, usize::from),
        load.split_whitespace().next().unwrap_or("unknown"),
    )
}
