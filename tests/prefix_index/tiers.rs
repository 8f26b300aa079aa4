//! Blocks that lie elsewhere than on a GPU.

use super::*;

#[test]
fn slower_tiers_go_on_where_faster_ones_end() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(2));
    f.store_in(A, Tier::Host, Some(11), &[(12, 2), (13, 3), (14, 4)]);
    f.store_in(A, Tier::External, Some(14), &[(15, 5)]);
    f.store_in(A, Tier::Disk, Some(15), &[(16, 6)]);
    assert_eq!(f.overlap(A, &[1, 2, 3, 4, 5, 6, 7]), [2, 2, 0, 1]);
    f.store_in(A, Tier::Disk, Some(14), &[(15, 5)]);
    assert_eq!(f.overlap(A, &[1, 2, 3, 4, 5, 6, 7]), [2, 2, 2, 0]);
    f.remove_from(A, Tier::Host, &[13]);
    assert_eq!(f.overlap(A, &[1, 2, 3, 4, 5, 6, 7]), [2, 0, 0, 0]);
    f.store(A, Some(12), &[(13, 3)]);
    assert_eq!(f.overlap(A, &[1, 2, 3, 4, 5, 6, 7]), [3, 1, 2, 0]);
}

#[test]
fn a_slot_may_start_in_any_tier() {
    let mut f = Fixture::new();
    f.store_in(A, Tier::Host, None, &chain(2));
    f.store_in(B, Tier::Disk, None, &chain(3));
    f.store_in(B, Tier::Host, None, &chain(1));
    f.store_in(C, Tier::External, None, &chain(1));
    assert_eq!(f.overlap(A, &[1, 2, 3]), [0, 2, 0, 0]);
    assert_eq!(f.overlap(B, &[1, 2, 3]), [0, 1, 2, 0]);
    assert_eq!(f.overlap(C, &[1, 2, 3]), [0, 0, 0, 1]);
    let mut scratch = Scratch::new();
    let overlaps = f.index.overlap(&[BlockHash(1), BlockHash(2), BlockHash(3)], &mut scratch);
    assert_eq!(overlaps.levels().count(), 0);
    let of_b: Vec<_> = overlaps.extensions().iter().filter(|extension| extension.slot == B).collect();
    let host = Extension { slot: B, tier: Tier::Host, blocks: 1 };
    let disk = Extension { slot: B, tier: Tier::Disk, blocks: 2 };
    assert_eq!(of_b, [&host, &disk], "in order of tier");
}
