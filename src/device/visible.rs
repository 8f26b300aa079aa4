//! Which of a machine's devices an engine was given.

use thiserror::Error;

use super::DeviceReading;

/// What `CUDA_VISIBLE_DEVICES`, `NVIDIA_VISIBLE_DEVICES` or an operator says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Visible {
    /// All devices: the engine's own number of ranks says how many of them it took, so this names none.
    All,
    /// No device.
    None,
    /// These, in order.
    Listed(Vec<String>),
}

/// A list that does not say which devices are meant.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Unresolved {
    /// A number, among devices that CUDA may order otherwise than NVML.
    #[error(
        "device number {0} may be another device for CUDA than for NVML, since the GPUs here differ: name UUIDs, or set \
         CUDA_DEVICE_ORDER=PCI_BUS_ID"
    )]
    Number(String),
    /// A UUID that begins like several.
    #[error("'{0}' begins the UUID of more than one device: write more of it")]
    Ambiguous(String),
    /// A device that is not there.
    #[error("no device '{0}' on this machine; kvroute gpus lists those that there are")]
    Unknown(String),
}

impl Visible {
    /// Reads a list as CUDA does: entries after a negative one do not count, and a list that begins with one names none.
    /// `none`, `void` and nothing at all name none, `all` names all.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        match text.to_ascii_lowercase().as_str() {
            "" | "none" | "void" | "nodevfiles" => return Self::None,
            "all" => return Self::All,
            _ => {}
        }
        let entries = text.split(',').map(str::trim);
        let listed: Vec<_> = entries
            .take_while(|entry| !entry.is_empty() && !entry.starts_with('-'))
            .map(str::to_owned)
            .collect();
        if listed.is_empty() { Self::None } else { Self::Listed(listed) }
    }

    /// The list if it names every device by its UUID. Numbers in `NVIDIA_VISIBLE_DEVICES` are those of the host: in a container,
    /// where the driver lists only what is visible there, they mean other devices.
    #[must_use]
    pub fn by_name(self) -> Option<Self> {
        match &self {
            Self::Listed(entries) if entries.iter().all(|entry| entry.parse::<usize>().is_err()) => {
                Some(self)
            }
            _ => None,
        }
    }

    /// The UUIDs of the devices meant, of those in a sample; none unless some are listed. A UUID may be cut short, as CUDA
    /// has it. A number is CUDA's: it is NVML's too where `pci_order` says so, or where all GPUs that say their kind are of one.
    ///
    /// # Errors
    /// See [`Unresolved`].
    pub fn resolve(&self, sample: &[DeviceReading], pci_order: bool) -> Result<Vec<String>, Unresolved> {
        let Self::Listed(entries) = self else { return Ok(Vec::new()) };
        let gpus: Vec<_> = sample.iter().filter(|reading| reading.parent.is_none()).collect();
        // One that is lost says no name, and the others must not lose their numbers for it.
        let mut names = gpus.iter().filter_map(|gpu| gpu.name.as_value());
        let alike = names.next().is_none_or(|first| names.all(|name| name == first));
        let one = |entry: &String| {
            if let Ok(number) = entry.parse::<usize>() {
                if !(pci_order || alike) {
                    return Err(Unresolved::Number(entry.clone()));
                }
                let gpu = gpus.get(number).ok_or_else(|| Unresolved::Unknown(entry.clone()))?;
                return Ok(gpu.uuid.clone());
            }
            let mut matching = sample.iter().filter(|reading| reading.uuid.starts_with(entry.as_str()));
            let first = matching.next().ok_or_else(|| Unresolved::Unknown(entry.clone()))?;
            if first.uuid != *entry && matching.next().is_some() {
                return Err(Unresolved::Ambiguous(entry.clone()));
            }
            Ok(first.uuid.clone())
        };
        entries.iter().map(one).collect()
    }

    /// Splits an engine's devices over its data-parallel ranks, in order; where they do not divide evenly, nobody knows
    /// whose is whose, and each rank has all of them.
    #[must_use]
    pub fn by_rank(uuids: &[String], ranks: u32) -> Vec<Vec<String>> {
        let ranks = usize::try_from(ranks.max(1)).unwrap_or(1);
        if uuids.len() >= ranks && uuids.len().is_multiple_of(ranks) {
            uuids.chunks(uuids.len() / ranks).map(<[String]>::to_vec).collect()
        } else {
            vec![uuids.to_vec(); ranks]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Reading;

    fn sample(names: &[&str]) -> Vec<DeviceReading> {
        let gpu = |(number, name): (usize, &&str)| DeviceReading {
            name: Reading::Value((*name).to_owned()),
            ..DeviceReading::of(&format!("GPU-{number}{number}-x"))
        };
        let mut all: Vec<_> = names.iter().enumerate().map(gpu).collect();
        let mut instance = DeviceReading::of("MIG-77-x");
        instance.inherit(&all[0]);
        all.insert(1, instance);
        all
    }

    #[test]
    fn lists_are_read_as_cuda_reads_them() {
        let listed =
            |entries: &[&str]| Visible::Listed(entries.iter().map(|&entry| entry.to_owned()).collect());
        for (text, expected) in [
            ("0, 2", listed(&["0", "2"])),
            ("GPU-1,MIG-2", listed(&["GPU-1", "MIG-2"])),
            ("0,-1,2", listed(&["0"])),
            ("0,,2", listed(&["0"])),
            ("-1", Visible::None),
            ("", Visible::None),
            ("NoDevFiles", Visible::None),
            ("void", Visible::None),
            ("All", Visible::All),
        ] {
            assert_eq!(Visible::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn uuids_may_be_short_and_numbers_need_one_order() {
        let resolve = |text: &str, names: &[&str], pci| Visible::parse(text).resolve(&sample(names), pci);
        let alike = ["H200", "H200", "H200"];
        assert_eq!(resolve("1,GPU-00,MIG-7", &alike, false).unwrap(), ["GPU-11-x", "GPU-00-x", "MIG-77-x"]);
        assert_eq!(resolve("all", &alike, false).unwrap(), [""; 0]);
        let mixed = ["H200", "T4"];
        assert_eq!(resolve("1", &mixed, false), Err(Unresolved::Number("1".into())));
        assert_eq!(resolve("1", &mixed, true).unwrap(), ["GPU-11-x"]);
        assert_eq!(resolve("GPU-", &mixed, true), Err(Unresolved::Ambiguous("GPU-".into())));
        for missing in ["2", "GPU-9"] {
            assert_eq!(resolve(missing, &mixed, true), Err(Unresolved::Unknown(missing.into())));
        }
    }

    /// Of a GPU that is lost nothing can be read, its name included, and the others are no less alike for it.
    #[test]
    fn a_gpu_that_is_lost_takes_no_other_s_number() {
        let resolve = |text: &str, sample: &[DeviceReading]| Visible::parse(text).resolve(sample, false);
        let mut devices = sample(&["H200", "H200", "H200"]);
        for (lost, name) in [(0, Reading::Lost), (3, Reading::Unread)] {
            devices[lost].name = name;
            assert_eq!(resolve("0,1,2", &devices).unwrap(), ["GPU-00-x", "GPU-11-x", "GPU-22-x"]);
        }
        let mut mixed = sample(&["H200", "T4", "H200", "T4"]);
        mixed[2].name = Reading::Lost;
        assert_eq!(resolve("0", &mixed), Err(Unresolved::Number("0".into())));
    }

    #[test]
    fn the_host_s_numbers_name_nobody_in_a_container() {
        let by_name = |text: &str| Visible::parse(text).by_name().is_some();
        assert!(by_name("GPU-1,MIG-2") && !by_name("2,3") && !by_name("GPU-1,3") && !by_name("all"));
    }

    #[test]
    fn ranks_share_evenly_or_have_all() {
        let uuids: Vec<_> = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        assert_eq!(Visible::by_rank(&uuids, 2), [&uuids[..2], &uuids[2..]]);
        assert_eq!(Visible::by_rank(&uuids, 3), vec![uuids.clone(); 3]);
        assert_eq!(Visible::by_rank(&uuids, 1), [uuids]);
        assert_eq!(Visible::by_rank(&[], 2), [[""; 0], [""; 0]]);
    }
}
