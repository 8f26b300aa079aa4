//! What a slot will have cached by the time a request gets there.

use crate::index::Overlap;

/// The overlap of a slot of which requests in flight use the first `carried` blocks of the prompt: those blocks are on
/// its GPU, or will be once these requests are prefilled, whatever its events have said so far. Blocks of slower tiers
/// count as far as they reach beyond.
#[must_use]
pub fn predicted(overlap: Overlap, carried: u32) -> Overlap {
    let mut gained = carried.saturating_sub(overlap.gpu);
    let mut rest_of = |blocks: u32| {
        let rest = blocks.saturating_sub(gained);
        gained = gained.saturating_sub(blocks);
        rest
    };
    let [host, disk, external] = [overlap.host, overlap.disk, overlap.external].map(&mut rest_of);
    Overlap { gpu: overlap.gpu.max(carried), host, disk, external }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_carried_takes_the_place_of_slower_tiers() {
        let overlap = Overlap { gpu: 2, host: 3, disk: 4, external: 1 };
        assert_eq!(predicted(overlap, 0), overlap);
        assert_eq!(predicted(overlap, 2), overlap);
        assert_eq!(predicted(overlap, 4), Overlap { gpu: 4, host: 1, disk: 4, external: 1 });
        assert_eq!(predicted(overlap, 6), Overlap { gpu: 6, host: 0, disk: 3, external: 1 });
        assert_eq!(predicted(overlap, 20), Overlap { gpu: 20, ..Overlap::default() });
    }
}
