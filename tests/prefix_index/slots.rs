//! Clears, and slots that change hands.

use super::*;

#[test]
fn a_clear_reaches_every_tier_of_its_slot_or_the_one_it_names() {
    let mut f = Fixture::new();
    for slot in [A, B] {
        f.store(slot, None, &chain(2));
        f.store_in(slot, Tier::Host, None, &chain(2));
        f.store_in(slot, Tier::Disk, None, &chain(3));
    }
    assert_eq!(f.clear(A, Some(Tier::Gpu)), Applied { cleared: 2, ..NOTHING });
    assert_eq!(f.overlap(A, &[1, 2, 3]), [0, 2, 1, 0]);
    assert_eq!(f.clear(A, None), Applied { cleared: 5, ..NOTHING });
    assert_eq!((f.overlap(A, &[1, 2, 3]), f.overlap(B, &[1, 2, 3])), ([0; 4], [2, 0, 1, 0]));
    f.store(A, None, &chain(1));
    assert_eq!(f.gpu(A, &[1, 2, 3]), 1, "a cleared slot goes on");
    f.clear(A, None);
    f.clear(B, None);
    f.assert_empty();
}

#[test]
fn a_newer_generation_starts_empty_and_ends_the_older_one() {
    let mut f = Fixture::new();
    let newer = Slot { generation: 1, ..B };
    f.store(B, None, &chain(2));
    f.store(B, Some(99), &[(98, 8)]);
    assert_eq!(f.store(newer, None, &chain(1)), Applied { stored: 1, cleared: 3, ..NOTHING });
    assert_eq!((f.gpu(newer, &[1, 2]), f.gpu(B, &[1, 2])), (1, 0));
    assert_eq!((f.index.blocks(newer), f.index.blocks(B)), ([1, 0, 0, 0], [0; 4]));
    for event in [stored(Tier::Gpu, Some(11), &[(12, 2)]), Event::Cleared(None)] {
        assert_eq!(f.writer.apply(B, &event), Applied { stale: true, ..NOTHING });
    }
    assert_eq!(f.gpu(newer, &[1, 2]), 1);
    assert_eq!(f.writer.retire(B), Applied { stale: true, ..NOTHING });
    assert_eq!(f.gpu(newer, &[1, 2]), 1);
}

#[test]
fn a_retired_slot_is_gone_at_once_and_stays_gone() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(2));
    f.store_in(A, Tier::Host, Some(99), &[(98, 8)]);
    f.store(B, None, &chain(1));
    assert_eq!(f.writer.retire(A), Applied { cleared: 3, ..NOTHING });
    assert_eq!((f.gpu(A, &[1, 2]), f.gpu(B, &[1, 2])), (0, 1));
    assert_eq!(f.totals(), Totals { places: 1, blocks: [1, 0, 0, 0], ..Totals::default() });
    assert_eq!(f.store(A, None, &chain(2)), Applied { stale: true, ..NOTHING });
    assert_eq!(f.writer.retire(A), Applied { stale: true, ..NOTHING });
    let next = Slot { generation: 1, ..A };
    assert_eq!(f.store(next, None, &chain(2)).stored, 2);
    assert_eq!(f.gpu(next, &[1, 2]), 2);
}

#[test]
fn a_slot_retired_before_its_first_event_stays_silent() {
    let mut f = Fixture::new();
    f.writer.retire(C);
    assert!(f.store(C, None, &chain(1)).stale);
    assert!(f.store(Slot { generation: 2, ..C }, None, &chain(1)).stale);
    f.assert_empty();
}
