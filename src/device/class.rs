//! What kind of hardware a slot computes on.

/// The two kinds that routing tells apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum DeviceClass {
    /// The host's processor.
    Cpu,
    /// Anything else.
    #[default]
    Accelerator,
}

impl DeviceClass {
    /// The class of the `device_type` that a worker registers with: `cpu`, in any case, is the CPU; a type that
    /// is missing or unknown counts as an accelerator.
    #[must_use]
    pub fn from_device_type(device_type: Option<&str>) -> Self {
        match device_type {
            Some(name) if name.trim().eq_ignore_ascii_case("cpu") => Self::Cpu,
            _ => Self::Accelerator,
        }
    }

    /// The name used in `explain` and in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Accelerator => "accelerator",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_cpu_is_named() {
        assert_eq!(DeviceClass::from_device_type(Some("CPU")), DeviceClass::Cpu);
        for other in [None, Some("cuda"), Some(""), Some("tpu")] {
            assert_eq!(DeviceClass::from_device_type(other), DeviceClass::Accelerator);
        }
    }
}
