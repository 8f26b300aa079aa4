//! What becomes of a booking.

use super::*;

#[test]
fn prefill_goes_once_and_output_fills_blocks() {
    let tuning = Tuning { router_track_output_blocks: true, ..Tuning::default() };
    let mut fleet = Fleet::new(Mode::Kv, tuning, 1);
    let prompt = Prompt::new("ab");
    let demand = Demand { isl_tokens: 10, ..prompt.demand() };
    let (_, booking) = fleet.admit(&prompt, &demand).unwrap();
    assert_eq!(fleet.load(0), load(1, 10, 2));
    booking.prefill_done();
    booking.prefill_done();
    assert_eq!(fleet.load(0), load(1, 0, 2));
    let blocks: Vec<_> = [0, 1, 1, 1, 4, 100]
        .map(|tokens| {
            booking.output(tokens);
            fleet.load(0).decode_blocks
        })
        .to_vec();
    // 10, 11, 12, 13, 17 and 117 tokens in blocks of 4.
    assert_eq!(blocks, [2, 3, 3, 4, 5, 30]);
    drop(booking);
    assert_eq!(fleet.load(0), SlotLoad::default());
}

#[test]
fn rebinding_moves_everything() {
    let mut fleet = Fleet::new(Mode::Kv, Tuning::default(), 2);
    let (first, second) = (Prompt::new("abc"), Prompt::new("abd"));
    let on = |index| Demand { pin: pin(index), ..first.demand() };
    let (_, mut moving) = fleet.admit(&first, &on(0)).unwrap();
    let (_, staying) = fleet.admit(&second, &Demand { sequence: &second.sequence, ..on(1) }).unwrap();
    moving.rebind(member(1).slot, Duration::ZERO);
    assert_eq!(moving.slot(), member(1).slot);
    assert_eq!(fleet.load(0), SlotLoad::default());
    assert_eq!(fleet.load(1), load(2, 24, 4), "shared with what is there");
    drop(staying);
    assert_eq!(fleet.load(1), load(1, 12, 3));
    drop(moving);
    assert_eq!(fleet.load(1), SlotLoad::default());
}

#[test]
fn a_booking_of_a_forgotten_slot_returns_nothing_and_can_move_on() {
    let loads = Loads::new();
    let prompt = Prompt::new("abc");
    let claim = Claim { prefill_tokens: 12, sequence: &prompt.sequence, ..Claim::default() };
    let old = member(0).slot;
    let new = Slot { generation: 1, ..old };
    let (gone, mut moving) =
        (loads.book(old, &claim, Duration::ZERO), loads.book(old, &claim, Duration::ZERO));
    loads.forget(old);
    let successor = loads.book(new, &claim, Duration::ZERO);
    gone.prefill_done();
    drop(gone);
    assert_eq!((loads.get(old), loads.get(new)), (SlotLoad::default(), load(1, 12, 3)));
    moving.rebind(new, Duration::ZERO);
    assert_eq!(loads.get(new), load(2, 24, 6), "the names of its blocks are gone: it shares none");
    drop(moving);
    drop(successor);
    assert_eq!(loads.get(new), SlotLoad::default());
}
