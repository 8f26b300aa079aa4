//! Blocks whose parent is not known yet.

use super::*;

// Dynamo: rejected whole (`parent_block_not_found`), the blocks are lost.
#[test]
fn blocks_under_an_unknown_parent_wait_and_are_not_credited() {
    let mut f = Fixture::new();
    assert_eq!(f.store(A, Some(11), &[(12, 2), (13, 3)]), Applied { pending: 2, ..NOTHING });
    assert_eq!((f.gpu(A, &[2, 3]), f.gpu(A, &[1, 2, 3])), (0, 0));
    assert_eq!(f.totals(), Totals { pending: 2, ..Totals::default() });
    assert_eq!(f.index.blocks(A), [0; 4]);
    assert_eq!(f.store(A, None, &[(11, 1)]), Applied { stored: 1, attached: 2, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2, 3]), 3);
    assert_eq!(f.totals().pending, 0);
}

// Dynamo: the parent must be held by the same worker. Ours knows the place from any rank: the blocks are held, and
// count once the rank holds what is above them.
#[test]
fn a_parent_that_another_rank_holds_gives_the_place() {
    let mut f = Fixture::new();
    f.store(B, None, &[(11, 1)]);
    assert_eq!(f.store(A, Some(11), &[(12, 2)]), Applied { stored: 1, ..NOTHING });
    assert_eq!((f.gpu(A, &[1, 2]), f.index.blocks(A)), (0, [1, 0, 0, 0]));
    f.store(A, None, &[(91, 1)]);
    assert_eq!(f.gpu(A, &[1, 2]), 2, "healed, under another name even");
}

#[test]
fn waiting_blocks_attach_when_another_rank_makes_the_parent_known() {
    let mut f = Fixture::new();
    f.store(A, Some(12), &[(13, 3)]);
    f.store(C, Some(13), &[(14, 4)]);
    f.store(B, Some(11), &[(12, 2)]);
    assert_eq!(f.totals().pending, 3);
    assert_eq!(f.store_in(B, Tier::Disk, None, &[(11, 1)]), Applied { stored: 1, attached: 3, ..NOTHING });
    assert_eq!(f.totals().places, 4);
    assert_eq!(f.overlap(B, &[1, 2, 3, 4]), [0, 0, 1, 0]);
    f.store(A, None, &chain(2));
    assert_eq!(f.gpu(A, &[1, 2, 3, 4]), 3);
}

#[test]
fn removals_and_clears_reach_waiting_blocks() {
    let mut f = Fixture::new();
    f.store(A, Some(11), &[(12, 2), (13, 3)]);
    f.store(A, Some(11), &[(12, 2)]);
    assert_eq!(f.remove(A, &[12]), Applied { kept: 1, ..NOTHING });
    assert_eq!(f.remove(A, &[12, 13]), Applied { removed: 2, ..NOTHING });
    assert_eq!(f.totals().pending, 0);

    f.store(A, Some(11), &[(12, 2)]);
    f.store_in(A, Tier::Host, Some(12), &[(13, 3)]);
    f.store(B, Some(11), &[(12, 2)]);
    assert_eq!(f.clear(A, Some(Tier::Host)), Applied { cleared: 1, ..NOTHING });
    assert_eq!(f.clear(A, None), Applied { cleared: 1, ..NOTHING });
    assert_eq!(f.store(C, None, &chain(1)).attached, 1, "only B's is left");
    f.store(A, None, &chain(1));
    f.store(B, None, &chain(1));
    assert_eq!((f.gpu(A, &[1, 2]), f.gpu(B, &[1, 2])), (1, 2));
}

#[test]
fn a_waiting_block_brings_its_copies_along() {
    let mut f = Fixture::new();
    f.store(A, Some(11), &[(12, 2)]);
    f.store(A, Some(11), &[(12, 2)]);
    f.store_in(A, Tier::Host, None, &[(12, 0)]);
    f.store(A, None, &chain(1));
    assert_eq!(f.index.blocks(A), [2, 1, 0, 0]);
    assert_eq!(f.remove(A, &[12]), Applied { kept: 1, ..NOTHING });
    assert_eq!(f.remove(A, &[12]), Applied { removed: 1, ..NOTHING });
    assert_eq!(f.overlap(A, &[1, 2]), [1, 1, 0, 0]);
}

#[test]
fn the_oldest_waiting_blocks_are_dropped_at_the_limit() {
    let mut f = Fixture::with_pending_limit(2);
    f.store(B, Some(91), &[(92, 2)]);
    assert_eq!(
        f.store(A, Some(11), &[(12, 2), (13, 3), (14, 4)]),
        Applied { pending: 3, dropped: 1, ..NOTHING }
    );
    assert_eq!(f.totals(), Totals { pending: 3, dropped: 1, ..Totals::default() }, "two each at most");
    assert_eq!(
        f.store(A, None, &chain(1)),
        Applied { stored: 1, ..NOTHING },
        "12 is gone, the others wait for it"
    );
    assert_eq!(f.remove(A, &[12]), Applied { unknown: 1, ..NOTHING });
    assert_eq!(f.store(B, None, &chain(2)), Applied { stored: 2, attached: 2, ..NOTHING });
    assert_eq!((f.gpu(A, &[1, 2, 3, 4]), f.index.blocks(A)), (1, [3, 0, 0, 0]));
}

#[test]
fn a_limit_of_zero_keeps_no_waiting_blocks() {
    let mut f = Fixture::with_pending_limit(0);
    assert_eq!(f.store(A, Some(11), &[(12, 2)]), Applied { pending: 1, dropped: 1, ..NOTHING });
    assert_eq!(f.store(A, None, &chain(1)), Applied { stored: 1, ..NOTHING });
}

// Dynamo: rejected, because the worker lost the parent. Ours: the parent's name is gone with the block, so the child
// waits, and counts when the parent is back. The blocks behind the hole were never lost.
#[test]
fn a_store_under_a_parent_that_the_rank_lost_waits_for_it() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(3));
    f.remove(A, &[12]);
    assert_eq!(f.store(A, Some(12), &[(23, 5)]), Applied { pending: 1, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2, 5]), 1);
    assert_eq!(f.store(A, Some(11), &[(12, 2)]), Applied { stored: 1, attached: 1, ..NOTHING });
    assert_eq!((f.gpu(A, &[1, 2, 5]), f.gpu(A, &[1, 2, 3])), (3, 3));
}

// Dynamo: `invalid_block`, or the whole store dropped. Ours has a meaning for it: the name moves to its last place.
#[test]
fn a_parent_that_appears_among_its_own_blocks_moves_down() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(1));
    assert_eq!(f.store(A, Some(11), &[(12, 2), (11, 3)]), Applied { stored: 2, moved: 1, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2, 3]), 0, "its first block is no longer held");
    f.store(A, None, &[(91, 1)]);
    assert_eq!(f.gpu(A, &[1, 2, 3]), 3);
    f.remove(A, &[91, 12, 11]);
    f.assert_empty();
}

#[test]
fn one_name_twice_in_a_store_is_held_at_its_last_place() {
    let mut f = Fixture::new();
    assert_eq!(f.store(A, None, &[(11, 1), (11, 2)]), Applied { stored: 2, moved: 1, ..NOTHING });
    assert_eq!((f.index.blocks(A), f.totals().places), ([1, 0, 0, 0], 2));
    f.remove(A, &[11]);
    f.assert_empty();
}
