//! `kvroute gpus`: what can be read of this machine's GPUs, and what they would weigh.

use clap::Args;

use super::{Outcome, print};
use crate::config::NvmlArgs;

/// Flags of `kvroute gpus`.
#[derive(Args, Debug)]
pub(super) struct GpusCommand {
    #[command(flatten)]
    nvml: NvmlArgs,
}

impl GpusCommand {
    /// A machine without GPUs is not a failure: there is nothing to list.
    pub(super) fn run(self) -> Outcome {
        print(&listing::of(&self.nvml))
    }
}

#[cfg(not(feature = "nvml"))]
mod listing {
    use crate::config::NvmlArgs;

    pub(super) fn of(_: &NvmlArgs) -> String {
        "No GPUs are read: this kvroute was built without its feature nvml.\n".to_owned()
    }
}

#[cfg(feature = "nvml")]
mod listing {
    use crate::{
        config::NvmlArgs,
        device::{
            Condition, DeviceReading, Reading, Weights, capability, fault,
            nvml::{SamplerSettings, sample_once},
        },
    };

    pub(super) fn of(nvml: &NvmlArgs) -> String {
        let nvml_library = nvml.nvml_library.clone();
        let sample = sample_once(&SamplerSettings { nvml_library, ..SamplerSettings::default() });
        match sample.absence {
            Some(absence) => {
                format!("No GPUs are read: {absence}. Requests are routed without their weights.\n")
            }
            None if sample.devices.is_empty() => "The NVIDIA driver lists no GPUs.\n".to_owned(),
            None => sample.devices.iter().map(device).collect(),
        }
    }

    /// A device in some lines: who it is, what it weighs, each field, and what has no value and why.
    fn device(device: &DeviceReading) -> String {
        let name = device.name.clone().value().unwrap_or_else(|| "unnamed".to_owned());
        let mut text = format!("{}  {name}", device.uuid);
        if let Some(gpu) = &device.parent {
            text += &format!("  (instance of {gpu})");
        }
        let capability = capability(device);
        let terms = Weights::default().terms(Condition { capability, external_load: 0.0, age_ms: 0 });
        let health =
            fault(device).map_or_else(|| "well".to_owned(), |fault| format!("to be fenced: {fault}"));
        text += &format!(
            "\n  health        {health}\n  weight        {:.2} (capability {capability:.2}",
            terms.weight
        );
        let reasons: Vec<_> =
            device.throttle.value().into_iter().flat_map(crate::device::Throttle::names).collect();
        if !reasons.is_empty() {
            text += &format!("; clocks held by {}", reasons.join(", "));
        }
        text += ")\n  readings      ";
        let fields = device.numbers();
        let values = fields.iter().filter(|(name, _)| *name != "throttle_reasons");
        let values: Vec<_> =
            values.filter_map(|(name, reading)| Some(format!("{name} {}", reading.value()?))).collect();
        text += if values.is_empty() { "none" } else { "" };
        text += &lines(&values);
        let processes = match &device.processes {
            Reading::Value(pids) if pids.is_empty() => "none".to_owned(),
            Reading::Value(pids) => pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
            other => other.absence().unwrap_or_default().to_owned(),
        };
        text += &format!("\n  processes     {processes}");
        let absent = |word: &str| -> Vec<String> {
            let fields = fields.iter().filter(|(_, reading)| reading.absence() == Some(word));
            fields.map(|(name, _)| (*name).to_owned()).collect()
        };
        for word in Reading::<f64>::ABSENCES.into_iter().filter(|word| *word != "unread") {
            let fields = absent(word);
            if !fields.is_empty() {
                text += &format!("\n  {:14}{}", word.replace('_', " "), lines(&fields));
            }
        }
        text + "\n"
    }

    /// Words in lines of four, under a column of names.
    fn lines(words: &[String]) -> String {
        let lines: Vec<_> = words.chunks(4).map(|words| words.join(", ")).collect();
        lines.join(",\n                ")
    }
}
