//! Where blocks are, and how often.

use super::*;

#[test]
fn a_stored_chain_counts_from_the_start_only() {
    let mut f = Fixture::new();
    assert_eq!(f.store(A, None, &chain(3)), Applied { stored: 3, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2, 3, 4]), 3);
    assert_eq!(f.gpu(A, &[1, 2]), 2);
    assert_eq!(f.gpu(A, &[1, 9, 3]), 1);
    assert_eq!(f.gpu(A, &[2, 3]), 0);
    assert_eq!(f.gpu(A, &[]), 0);
    assert_eq!(f.gpu(B, &[1, 2, 3]), 0);
}

#[test]
fn slots_of_one_depth_share_a_level() {
    let mut f = Fixture::new();
    f.store(C, None, &chain(2));
    f.store(B, None, &chain(3));
    f.store(A, None, &chain(2));
    let mut scratch = Scratch::new();
    let overlaps = f.index.overlap(&[BlockHash(1), BlockHash(2), BlockHash(3)], &mut scratch);
    let mut levels: Vec<_> = overlaps.levels().map(|(depth, slots)| (depth, slots.to_vec())).collect();
    levels.iter_mut().for_each(|(_, slots)| slots.sort());
    levels.sort();
    assert_eq!(levels, [(2, vec![A, C]), (3, vec![B])]);
    assert!(overlaps.extensions().is_empty());
}

#[test]
fn same_content_after_other_prefixes_is_another_place() {
    let mut f = Fixture::new();
    f.store(A, None, &[(11, 1), (12, 5)]);
    f.store(B, None, &[(21, 2), (22, 5)]);
    assert_eq!((f.gpu(A, &[1, 5]), f.gpu(B, &[1, 5])), (2, 0));
    assert_eq!((f.gpu(A, &[2, 5]), f.gpu(B, &[2, 5])), (0, 2));
    assert_eq!(f.totals().places, 4);
}

#[test]
fn engines_may_name_one_place_differently() {
    let mut f = Fixture::new();
    f.store(A, None, &[(11, 1), (12, 2)]);
    f.store(B, None, &[(21, 1), (22, 2)]);
    assert_eq!(f.totals(), Totals { places: 2, blocks: [4, 0, 0, 0], ..Totals::default() });
    assert_eq!(f.remove(A, &[22]), Applied { unknown: 1, ..NOTHING });
    f.remove(B, &[22]);
    assert_eq!((f.gpu(A, &[1, 2]), f.gpu(B, &[1, 2])), (2, 1));
}

// Dynamo: a repeated identical store changes nothing. Ours counts a copy, because vLLM reports one removal a
// copy; Dynamo counts in the publisher beside the engine instead, which a direct connection does not have.
#[test]
fn a_block_stored_twice_goes_with_its_last_copy() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(2));
    assert_eq!(f.store(A, None, &chain(2)), Applied { already: 2, ..NOTHING });
    assert_eq!(f.index.blocks(A), [2, 0, 0, 0]);
    assert_eq!(f.remove(A, &[12]), Applied { kept: 1, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2]), 2);
    assert_eq!(f.remove(A, &[12]), Applied { removed: 1, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2]), 1);
    assert_eq!(f.remove(A, &[12]), Applied { unknown: 1, ..NOTHING });
}

#[test]
fn copies_are_counted_for_each_tier_and_slot() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(1));
    f.store(B, None, &chain(1));
    f.store_in(A, Tier::Host, None, &chain(1));
    assert_eq!(f.remove(A, &[11]), Applied { removed: 1, ..NOTHING });
    assert_eq!((f.overlap(A, &[1]), f.overlap(B, &[1])), ([0, 1, 0, 0], [1, 0, 0, 0]));
}

#[test]
fn the_engines_own_count_of_copies_wins() {
    let mut f = Fixture::new();
    for _ in 0..3 {
        f.store(A, None, &chain(1));
    }
    assert_eq!(f.remove_leaving(A, 11, vec![1]), Applied { kept: 1, ..NOTHING });
    assert_eq!(f.remove(A, &[11]), Applied { removed: 1, ..NOTHING });
    for _ in 0..3 {
        f.store(A, None, &chain(1));
    }
    assert_eq!(f.remove_leaving(A, 11, vec![0]), Applied { removed: 1, ..NOTHING });
    assert_eq!(
        f.remove_leaving(A, 11, vec![5]),
        Applied { unknown: 1, ..NOTHING },
        "not ours, whatever it says"
    );
    f.store(A, None, &chain(1));
    assert_eq!(f.remove_leaving(A, 11, vec![]), Applied { removed: 1, ..NOTHING }, "no count, one copy");
    f.assert_empty();
}
