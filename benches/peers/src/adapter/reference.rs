//! What is right: kvroute's literal index, which is made to be read and not to be fast.

use super::{Opened, kvroute};
use crate::workload::Workload;

/// An empty literal index. The public face is the literal one as long as there is no other.
pub(crate) fn open(workload: &Workload) -> Opened {
    kvroute::open(workload)
}
