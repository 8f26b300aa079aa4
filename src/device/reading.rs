//! What one sample says of a device.

use super::Throttle;

/// One field of a device, or why there is no value. Drivers, cards and permissions differ, and on some devices nearly
/// every field is missing: each field stands for itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Reading<T> {
    /// The value.
    Value(T),
    /// Nobody asked.
    #[default]
    Unread,
    /// The device, the driver or its library does not have it.
    NotSupported,
    /// It is there, but not for this process.
    NoPermission,
    /// The device does not answer any more: it fell off its bus.
    Lost,
    /// The device answers nothing until it is reset.
    NeedsReset,
    /// There was an answer that nobody here can read, such as a number from a newer driver.
    Unreadable,
    /// The question failed, for another reason.
    Failed,
}

impl<T> Reading<T> {
    /// The value, if there is one.
    pub fn value(self) -> Option<T> {
        if let Self::Value(value) = self { Some(value) } else { None }
    }

    /// The same without taking it.
    pub const fn as_value(&self) -> Option<&T> {
        if let Self::Value(value) = self { Some(value) } else { None }
    }

    /// The same reading with another value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Value(value) => Reading::Value(change(value)),
            Self::Unread => Reading::Unread,
            Self::NotSupported => Reading::NotSupported,
            Self::NoPermission => Reading::NoPermission,
            Self::Lost => Reading::Lost,
            Self::NeedsReset => Reading::NeedsReset,
            Self::Unreadable => Reading::Unreadable,
            Self::Failed => Reading::Failed,
        }
    }

    /// This reading if it is a value, else the other one where that is a value, or where nobody asked for this one.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match (&self, &other) {
            (Self::Value(_), _) => self,
            (Self::Unread, _) | (_, Self::Value(_)) => other,
            _ => self,
        }
    }

    /// Why there is no value, in a word as reports spell it; `None` if there is one.
    pub const fn absence(&self) -> Option<&'static str> {
        Some(match self {
            Self::Value(_) => return None,
            Self::Unread => "unread",
            Self::NotSupported => "not_supported",
            Self::NoPermission => "no_permission",
            Self::Lost => "lost",
            Self::NeedsReset => "needs_reset",
            Self::Unreadable => "unreadable",
            Self::Failed => "failed",
        })
    }

    /// Every word of [`Reading::absence`].
    pub const ABSENCES: [&'static str; 7] =
        ["unread", "not_supported", "no_permission", "lost", "needs_reset", "unreadable", "failed"];

    /// The reading that [`Reading::absence`] calls so.
    #[must_use]
    pub fn absent(word: &str) -> Option<Self> {
        [
            Self::Unread,
            Self::NotSupported,
            Self::NoPermission,
            Self::Lost,
            Self::NeedsReset,
            Self::Unreadable,
            Self::Failed,
        ]
        .into_iter()
        .find(|reading| reading.absence() == Some(word))
    }
}

/// One sample of one GPU, or of one MIG instance. Shares are 0 to 1.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DeviceReading {
    /// `GPU-...` or `MIG-...`; `index-N` where the driver does not tell.
    pub uuid: String,
    /// The product's name.
    pub name: Reading<String>,
    /// The GPU that a MIG instance is a part of.
    pub parent: Option<String>,
    /// Whether it was there before and is not any more.
    pub missing: bool,
    /// Share of the last sampling period of the driver (up to a second) in which any kernel ran. It does not say how
    /// much of the device that kernel used.
    pub sm_utilisation: Reading<f64>,
    /// Share of that time in which device memory was read or written.
    pub memory_utilisation: Reading<f64>,
    /// Device memory that is taken, in bytes. Shown, never judged.
    pub memory_used_bytes: Reading<u64>,
    /// All of it, in bytes.
    pub memory_total_bytes: Reading<u64>,
    /// Draw of the board, in watts.
    pub power_watts: Reading<f64>,
    /// What it may draw, in watts.
    pub power_cap_watts: Reading<f64>,
    /// Temperature of the chip, in degrees Celsius.
    pub temperature_celsius: Reading<u32>,
    /// Where the hardware begins to slow down, in degrees Celsius.
    pub slowdown_celsius: Reading<u32>,
    /// Clock of the multiprocessors, in MHz.
    pub sm_clock_mhz: Reading<u32>,
    /// The highest that it can have, in MHz.
    pub sm_clock_max_mhz: Reading<u32>,
    /// Clock of device memory, in MHz.
    pub memory_clock_mhz: Reading<u32>,
    /// The highest that it can have, in MHz.
    pub memory_clock_max_mhz: Reading<u32>,
    /// What holds the clocks down.
    pub throttle: Reading<Throttle>,
    /// Generation of the PCIe link. It falls when the device idles.
    pub pcie_generation: Reading<u32>,
    /// The highest that device and slot can have.
    pub pcie_generation_max: Reading<u32>,
    /// Lanes of the PCIe link.
    pub pcie_width: Reading<u32>,
    /// The most that device and slot can have.
    pub pcie_width_max: Reading<u32>,
    /// NVLinks that are up.
    pub nvlinks_up: Reading<u32>,
    /// NVLinks that there are.
    pub nvlinks: Reading<u32>,
    /// Memory errors since the driver was loaded that ECC could not correct.
    pub ecc_uncorrectable: Reading<u64>,
    /// MIG instances that it is divided into; 0 if MIG is off.
    pub mig_instances: Reading<u32>,
    /// Processes with a compute context on it, by the ids that the driver tells. In a container they may be none.
    pub processes: Reading<Vec<u32>>,
    /// XID errors since the sample before: the driver's numbers for what went wrong.
    pub xids: Vec<u64>,
}

impl DeviceReading {
    /// A device of which nothing is known yet.
    #[must_use]
    pub fn of(uuid: &str) -> Self {
        Self { uuid: uuid.to_owned(), ..Self::default() }
    }

    /// Every field that is a number, by the name that it has in reports and metrics; the unit is the end of the name.
    #[must_use]
    pub fn numbers(&self) -> [(&'static str, Reading<f64>); 21] {
        let whole = |reading: Reading<u32>| reading.map(f64::from);
        // Beyond 2^53 a byte more or less is not seen.
        let large = |reading: Reading<u64>| reading.map(|value| value as f64);
        [
            ("sm_utilisation", self.sm_utilisation),
            ("memory_utilisation", self.memory_utilisation),
            ("memory_used_bytes", large(self.memory_used_bytes)),
            ("memory_total_bytes", large(self.memory_total_bytes)),
            ("power_watts", self.power_watts),
            ("power_cap_watts", self.power_cap_watts),
            ("temperature_celsius", whole(self.temperature_celsius)),
            ("slowdown_celsius", whole(self.slowdown_celsius)),
            ("sm_clock_mhz", whole(self.sm_clock_mhz)),
            ("sm_clock_max_mhz", whole(self.sm_clock_max_mhz)),
            ("memory_clock_mhz", whole(self.memory_clock_mhz)),
            ("memory_clock_max_mhz", whole(self.memory_clock_max_mhz)),
            ("pcie_generation", whole(self.pcie_generation)),
            ("pcie_generation_max", whole(self.pcie_generation_max)),
            ("pcie_width", whole(self.pcie_width)),
            ("pcie_width_max", whole(self.pcie_width_max)),
            ("nvlinks_up", whole(self.nvlinks_up)),
            ("nvlinks", whole(self.nvlinks)),
            ("ecc_uncorrectable", large(self.ecc_uncorrectable)),
            ("mig_instances", whole(self.mig_instances)),
            ("throttle_reasons", self.throttle.map(|throttle| throttle.bits() as f64)),
        ]
    }

    /// Fills in what a MIG instance does not have itself and its GPU has for all of it: clocks, power, temperature, links
    /// and errors. Utilisation and memory are not among them: the GPU's are those of all instances.
    pub fn inherit(&mut self, gpu: &Self) {
        self.parent = Some(gpu.uuid.clone());
        self.name = self.name.clone().or(gpu.name.clone());
        macro_rules! from_gpu {
            ($($field:ident)+) => { $(self.$field = self.$field.or(gpu.$field);)+ };
        }
        from_gpu!(power_watts power_cap_watts temperature_celsius slowdown_celsius sm_clock_mhz sm_clock_max_mhz
            memory_clock_mhz memory_clock_max_mhz throttle pcie_generation pcie_generation_max pcie_width pcie_width_max
            nvlinks_up nvlinks ecc_uncorrectable);
        self.xids.extend(&gpu.xids);
        self.missing |= gpu.missing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_absence_has_a_word_of_its_own_that_reads_back() {
        for word in Reading::<u32>::ABSENCES {
            assert_eq!(Reading::<u32>::absent(word).unwrap().absence(), Some(word));
        }
        assert_eq!(Reading::Value(1).absence(), None);
        assert_eq!(Reading::<u32>::absent("value"), None);
    }

    #[test]
    fn an_instance_has_its_gpu_s_clocks_and_errors_and_not_its_load() {
        let gpu = DeviceReading {
            sm_utilisation: Reading::Value(0.9),
            sm_clock_mhz: Reading::Value(900),
            power_watts: Reading::Value(300.0),
            ecc_uncorrectable: Reading::Value(1),
            xids: vec![79],
            ..DeviceReading::of("GPU-a")
        };
        let mut instance = DeviceReading {
            sm_utilisation: Reading::NotSupported,
            sm_clock_mhz: Reading::NotSupported,
            power_watts: Reading::Value(1.0),
            ..DeviceReading::of("MIG-a")
        };
        let gpu = DeviceReading { nvlinks: Reading::NoPermission, ..gpu };
        instance.inherit(&gpu);
        assert_eq!(instance.nvlinks, Reading::NoPermission);
        assert_eq!(instance.parent.as_deref(), Some("GPU-a"));
        assert_eq!(instance.sm_utilisation, Reading::NotSupported);
        assert_eq!((instance.sm_clock_mhz, instance.power_watts), (Reading::Value(900), Reading::Value(1.0)));
        assert_eq!((instance.ecc_uncorrectable, instance.xids), (Reading::Value(1), vec![79]));
    }

    #[test]
    fn names_are_told_once() {
        let mut names = DeviceReading::default().numbers().map(|(name, _)| name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 21);
    }
}
