//! Removals, and what comes back.

use super::*;

#[test]
fn removing_what_nobody_stored_changes_nothing() {
    let mut f = Fixture::new();
    assert_eq!(f.remove(A, &[11, 12]), Applied { unknown: 2, ..NOTHING });
    f.store(B, None, &chain(1));
    assert_eq!(f.remove(A, &[11]), Applied { unknown: 1, ..NOTHING });
    assert_eq!(f.remove_from(B, Tier::Host, &[11]), Applied { unknown: 1, ..NOTHING });
    assert_eq!(f.gpu(B, &[1]), 1);
}

// Dynamo: the blocks behind the hole are scrubbed, and removing them later is an error. Ours keeps them: they are
// still in the engine's cache, so their removal is known and filling the hole brings them back.
#[test]
fn a_hole_in_the_middle_truncates_and_heals() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(4));
    assert_eq!(f.remove(A, &[12]), Applied { removed: 1, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2, 3, 4]), 1);
    assert_eq!(f.remove(A, &[14]), Applied { removed: 1, ..NOTHING });
    f.store(A, Some(11), &[(12, 2)]);
    assert_eq!(f.gpu(A, &[1, 2, 3, 4]), 3);
}

// Dynamo: depth 1, descendants are not resurrected.
#[test]
fn a_lost_head_stored_again_brings_its_tail_back() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(3));
    f.remove(A, &[11]);
    assert_eq!(f.gpu(A, &[1, 2, 3]), 0);
    f.store(A, None, &chain(1));
    assert_eq!(f.gpu(A, &[1, 2, 3]), 3);
}

// Dynamo's known gap: if another worker keeps the node alive, the remover's coverage below it is not invalidated.
#[test]
fn a_hole_is_a_hole_even_where_others_hold_the_block() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(4));
    f.store(B, None, &chain(4));
    f.remove(A, &[12, 13]);
    f.store(A, Some(11), &[(12, 2)]);
    assert_eq!((f.gpu(A, &[1, 2, 3, 4]), f.gpu(B, &[1, 2, 3, 4])), (2, 4));
}

#[test]
fn empty_stores_and_removals_do_nothing() {
    let mut f = Fixture::new();
    assert_eq!(f.store(A, None, &[]), NOTHING);
    assert_eq!(f.store(A, Some(99), &[]), NOTHING);
    assert_eq!(f.remove(A, &[]), NOTHING);
    f.assert_empty();
}

// Dynamo's positional index stops at the first unknown hash and keeps the rest.
#[test]
fn a_removal_goes_on_past_unknown_hashes() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(3));
    assert_eq!(f.remove(A, &[99, 13, 98, 12, 12]), Applied { removed: 2, unknown: 3, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2, 3]), 1);
}
