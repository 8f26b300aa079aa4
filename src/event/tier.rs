//! Where a block lies.

use std::fmt;

/// A kind of memory that holds KV blocks, fastest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tier {
    /// The memory of the GPU that computes.
    Gpu,
    /// Memory of the host.
    Host,
    /// A local disk.
    Disk,
    /// Somewhere else: a store shared over the network.
    External,
}

impl Tier {
    /// Every tier, fastest first.
    pub const ALL: [Self; 4] = [Self::Gpu, Self::Host, Self::Disk, Self::External];

    /// Position in [`Tier::ALL`], for arrays with one entry a tier.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The tier that an engine's `medium` names, in any case; `None` for a medium that nobody knows, whose
    /// events are dropped. A missing or empty medium means the GPU.
    #[must_use]
    pub fn from_medium(medium: &str) -> Option<Self> {
        const MEDIA: [(&str, Tier); 14] = [
            ("", Tier::Gpu),
            ("GPU", Tier::Gpu),
            ("DEVICE", Tier::Gpu),
            ("CPU", Tier::Host),
            ("CPU_PINNED", Tier::Host),
            ("CPU_TIER1", Tier::Host),
            ("CPU_TIER2", Tier::Disk),
            ("DISK", Tier::Disk),
            ("NVME", Tier::Disk),
            ("STORAGE", Tier::Disk),
            ("EXTERNAL", Tier::External),
            ("NETWORK", Tier::External),
            ("REMOTE", Tier::External),
            ("SHARED", Tier::External),
        ];
        MEDIA.iter().find(|(name, _)| name.eq_ignore_ascii_case(medium)).map(|&(_, tier)| tier)
    }

    /// The name used in metrics and in `explain`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Host => "host",
            Self::Disk => "disk",
            Self::External => "external",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
