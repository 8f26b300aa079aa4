//! What an operator may say about hashing batches.

use std::{fmt, num::NonZeroUsize, path::PathBuf, str::FromStr, thread, time::Duration};

/// Which GPU hashes large batches.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum HashDevice {
    /// Of those that NVML knows, the one with the most free memory, if any has some to spare; none where NVML does not say.
    #[default]
    Auto,
    /// None.
    Off,
    /// The one with this UUID (`GPU-...`, as `kvroute gpus` lists them). Where NVML does not say how busy it is it is
    /// taken to be free.
    Uuid(String),
}

/// A device that is none of `auto`, `off` and a UUID.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected auto, off, or the UUID of a GPU as 'kvroute gpus' lists it (GPU-...)")]
pub struct UnknownDevice;

impl FromStr for HashDevice {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            uuid if is_uuid(uuid) => Ok(Self::Uuid(uuid.to_owned())),
            _ => Err(UnknownDevice),
        }
    }
}

/// `GPU-` and 32 hexadecimal digits in five groups.
fn is_uuid(text: &str) -> bool {
    let Some(digits) = text.strip_prefix("GPU-") else { return false };
    let groups = digits.split('-').map(str::len);
    groups.eq([8, 4, 4, 4, 12]) && digits.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
}

impl fmt::Display for HashDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Uuid(uuid) => uuid,
        })
    }
}

/// What an [`Accelerator`](super::Accelerator) is made with.
#[derive(Clone, Debug)]
pub struct AcceleratorSettings {
    /// The GPU for large batches. Default [`HashDevice::Auto`].
    pub device: HashDevice,
    /// Threads for what is hashed on the CPU, the caller's among them. Default: half of those that run at once here, at
    /// most 8.
    pub threads: NonZeroUsize,
    /// NVML's library, by which it is seen how busy a GPU is; `None` takes the driver's, as the system finds it.
    pub nvml_library: Option<PathBuf>,
    /// From one look at how busy the GPU is to the next. Default 1 s.
    pub look_every: Duration,
    /// Batches of at least so many blocks go to the GPU, whatever would be faster. Default `None`: found by measuring, at the
    /// first large batch of each block size.
    pub least_blocks: Option<usize>,
}

impl Default for AcceleratorSettings {
    fn default() -> Self {
        let at_once = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            device: HashDevice::Auto,
            threads: NonZeroUsize::new((at_once / 2).min(8)).unwrap_or(NonZeroUsize::MIN),
            nvml_library: None,
            look_every: Duration::from_secs(1),
            least_blocks: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        let uuid = "GPU-5e7f2f6a-0d2c-4b8e-9a37-41b1f0c7d2aa";
        for text in ["auto", "off", uuid] {
            assert_eq!(text.parse::<HashDevice>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "0",
            "cuda:0",
            "GPU-",
            "GPU-5e7f2f6a",
            "MIG-5e7f2f6a-0d2c-4b8e-9a37-41b1f0c7d2aa",
            "GPU-zzzzzzzz-0d2c-4b8e-9a37-41b1f0c7d2aa",
        ] {
            assert_eq!(text.parse::<HashDevice>(), Err(UnknownDevice), "{text}");
        }
    }
}
