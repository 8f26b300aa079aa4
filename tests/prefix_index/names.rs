//! What engines call their blocks.

use super::*;

#[test]
fn a_block_of_which_only_the_name_is_said_goes_where_the_name_leads() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(2));
    assert_eq!(f.store_in(A, Tier::Host, None, &[(12, 0), (11, 0)]), Applied { stored: 2, ..NOTHING });
    f.remove(A, &[12, 11]);
    assert_eq!(f.overlap(A, &[1, 2]), [0, 2, 0, 0], "the names live on with the copies in host memory");
    assert_eq!(
        f.store_in(B, Tier::Disk, None, &[(11, 0)]),
        Applied { stored: 1, ..NOTHING },
        "a name of A's"
    );
    assert_eq!(f.overlap(B, &[1, 2]), [0, 0, 1, 0]);
}

#[test]
fn a_name_that_leads_nowhere_yet_waits() {
    let mut f = Fixture::new();
    assert_eq!(f.store_in(A, Tier::Host, None, &[(12, 0)]), Applied { pending: 1, ..NOTHING });
    assert_eq!(f.store_in(B, Tier::Host, None, &[(12, 0)]), Applied { pending: 1, ..NOTHING });
    assert_eq!(f.store(A, None, &chain(2)), Applied { stored: 2, attached: 2, ..NOTHING });
    assert_eq!((f.index.blocks(A), f.index.blocks(B)), ([2, 1, 0, 0], [0, 1, 0, 0]));
    f.remove(A, &[12]);
    assert_eq!(f.overlap(A, &[1, 2]), [1, 1, 0, 0]);
}

#[test]
fn a_block_with_content_follows_one_without() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(2));
    f.store_in(A, Tier::Host, None, &[(12, 0), (13, 3)]);
    assert_eq!(f.overlap(A, &[1, 2, 3]), [2, 1, 0, 0]);
}

#[test]
fn a_name_that_comes_back_elsewhere_is_held_at_its_last_place_only() {
    let mut f = Fixture::new();
    f.store(A, None, &[(11, 1)]);
    f.store_in(A, Tier::Host, None, &[(11, 1)]);
    assert_eq!(f.store(A, None, &[(11, 2)]), Applied { stored: 1, moved: 1, ..NOTHING });
    assert_eq!((f.overlap(A, &[1]), f.overlap(A, &[2])), ([0; 4], [1, 0, 0, 0]));
    assert_eq!(f.remove(A, &[11]), Applied { removed: 1, ..NOTHING });
    f.assert_empty();
}

#[test]
fn a_name_that_moves_leaves_other_slots_alone() {
    let mut f = Fixture::new();
    f.store(A, None, &[(11, 1)]);
    f.store(B, None, &[(11, 1)]);
    f.store(A, None, &[(11, 2)]);
    assert_eq!((f.gpu(A, &[1]), f.gpu(B, &[1]), f.gpu(A, &[2])), (0, 1, 1));
}

#[test]
fn a_name_that_comes_back_with_other_content_and_no_known_parent_leaves_its_place() {
    let mut f = Fixture::new();
    f.store(A, None, &[(11, 1), (12, 2)]);
    assert_eq!(f.store(A, Some(99), &[(12, 3)]), Applied { pending: 1, moved: 1, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2]), 1);
    assert_eq!(f.store(A, Some(98), &[(12, 4)]), Applied { pending: 1, moved: 1, ..NOTHING });
    f.store(A, None, &[(98, 7), (99, 8)]);
    assert_eq!((f.gpu(A, &[7, 4]), f.gpu(A, &[7, 8, 3])), (2, 2));
}

#[test]
fn a_known_block_stored_again_under_a_lost_parent_is_another_copy() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(2));
    f.remove(A, &[11]);
    assert_eq!(f.store(A, Some(11), &[(12, 2)]), Applied { already: 1, ..NOTHING });
    f.remove(A, &[12]);
    f.store(A, None, &chain(1));
    assert_eq!(f.gpu(A, &[1, 2]), 2);
}

#[test]
fn a_name_that_slots_disagree_on_is_not_known_to_others() {
    let mut f = Fixture::new();
    f.store(A, None, &[(11, 1)]);
    f.store(B, None, &[(11, 2)]);
    assert_eq!(f.store(C, Some(11), &[(12, 5)]), Applied { pending: 1, ..NOTHING });
    assert_eq!(f.store(A, Some(11), &[(12, 5)]), Applied { stored: 1, ..NOTHING }, "A knows what it means");
    assert_eq!(f.gpu(A, &[1, 5]), 2);
    assert_eq!(f.remove(B, &[11]), Applied { removed: 1, attached: 1, ..NOTHING }, "now they agree");
    f.store(C, None, &[(11, 1)]);
    assert_eq!(f.gpu(C, &[1, 5]), 2);
}

#[test]
fn a_place_with_two_names_is_held_until_both_are_gone() {
    let mut f = Fixture::new();
    f.store(A, None, &[(11, 1)]);
    assert_eq!(f.store(A, None, &[(12, 1)]), Applied { stored: 1, ..NOTHING });
    assert_eq!(f.index.blocks(A), [2, 0, 0, 0]);
    f.remove(A, &[11]);
    assert_eq!(f.gpu(A, &[1]), 1);
    f.remove(A, &[12]);
    f.assert_empty();
}
