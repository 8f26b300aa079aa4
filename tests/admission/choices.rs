//! Who is chosen, and what is booked there.

use super::*;

#[test]
fn bookings_can_go_anywhere() {
    fn goes_anywhere<T: Send + Sync + 'static>() {}
    goes_anywhere::<Booking>();
}

#[test]
fn kv_books_what_is_not_cached_where_the_prefix_is() {
    let mut fleet = Fleet::new(Mode::Kv, blocks_model(), 3);
    fleet.store(member(1).slot, Tier::Gpu, "abc");
    fleet.store(member(1).slot, Tier::Host, "abcd");
    let prompt = Prompt::new("abcde");
    let (choice, booking) = fleet.admit(&prompt, &prompt.demand()).unwrap();
    assert_eq!((choice.slot, choice.worker, choice.rank), (member(1).slot, WorkerId(101), Rank(0)));
    assert_eq!(choice.overlap, Overlap { gpu: 3, host: 1, ..Overlap::default() });
    // 3 blocks and three quarters of one, of 4 tokens each.
    assert_eq!((choice.cached_tokens, choice.prefill_tokens), (15, 5));
    assert_eq!((choice.candidates, choice.excluded), (3, 0));
    assert_eq!(choice.cost.map(|cost| cost.total()), Some(5.0 - 3.75 + 5.0));
    let rows = fleet.scratch.rows();
    assert_eq!(rows[choice.row].cost, choice.cost);
    assert_eq!(in_blocks(&rows[0]).total, 10.0);
    assert_eq!(fleet.load(1), load(1, 5, 5));
    drop(booking);
    assert_eq!(fleet.selector.loads().total(), SlotLoad::default());
}

#[test]
fn shared_blocks_of_a_slot_count_once() {
    let mut fleet = Fleet::new(Mode::Kv, blocks_model(), 2);
    let (first, second) = (Prompt::new("abcd"), Prompt::new("abxyz"));
    let demand = Demand { pin: pin(0), ..first.demand() };
    let (_, one) = fleet.admit(&first, &demand).unwrap();
    let choice = fleet.explain(&second, &second.demand()).unwrap();
    let rows = fleet.scratch.rows();
    assert_eq!((rows[0].new_blocks, rows[1].new_blocks), (3, 5));
    assert_eq!(in_blocks(&rows[0]).decode, 4.0 + 3.0);
    assert_eq!(choice.slot, member(1).slot);
    let demand = Demand { pin: pin(0), ..second.demand() };
    let (_, two) = fleet.admit(&second, &demand).unwrap();
    assert_eq!(fleet.load(0), load(2, 16 + 20, 7));
    drop(one);
    assert_eq!(fleet.load(0), load(1, 20, 5), "the blocks of the one that is left");
    drop(two);
    assert_eq!(fleet.load(0), SlotLoad::default());
}

#[test]
fn an_unproven_overlap_is_shown_and_not_credited() {
    let mut fleet = Fleet::new(Mode::Kv, blocks_model(), 1);
    fleet.store(member(0).slot, Tier::Gpu, "ab");
    fleet.members[0].credits_overlap = false;
    let prompt = Prompt::new("abc");
    let (choice, _booking) = fleet.admit(&prompt, &prompt.demand()).unwrap();
    assert_eq!((choice.overlap, choice.cached_tokens), (Overlap::default(), 0));
    assert_eq!(choice.prefill_tokens, prompt.tokens());
    let row = fleet.scratch.rows()[choice.row];
    assert_eq!(row.withheld, Some(Overlap { gpu: 2, ..Overlap::default() }));
    assert_eq!(in_blocks(&row).credit, 0.0);
}

#[test]
fn a_successor_is_not_credited_with_what_another_generation_holds() {
    let mut fleet = Fleet::new(Mode::Kv, Tuning::default(), 1);
    fleet.store(member(0).slot, Tier::Gpu, "ab");
    fleet.members[0].slot.generation = 1;
    let prompt = Prompt::new("ab");
    let choice = fleet.explain(&prompt, &prompt.demand()).unwrap();
    assert_eq!(choice.overlap, Overlap::default());
}

#[test]
fn explaining_changes_nothing() {
    let mut fleet = Fleet::new(Mode::RoundRobin, Tuning::default(), 3);
    let prompt = Prompt::new("ab");
    let (_, _one) = fleet.admit(&prompt, &prompt.demand()).unwrap();
    let before = fleet.selector.loads().total();
    for _ in 0..3 {
        assert_eq!(fleet.explain(&prompt, &prompt.demand()).unwrap().slot, member(1).slot);
    }
    assert_eq!(fleet.selector.loads().total(), before);
    let (choice, _two) = fleet.admit(&prompt, &prompt.demand()).unwrap();
    assert_eq!(choice.slot, member(1).slot, "the explanation took no turn");
    assert_eq!(choice.cost, None);
}

#[test]
fn a_pinned_request_is_booked_and_takes_no_turn() {
    let mut fleet = Fleet::new(Mode::RoundRobin, Tuning::default(), 2);
    let prompt = Prompt::new("ab");
    let pinned = Demand { pin: pin(1), ..prompt.demand() };
    let (choice, _booking) = fleet.admit(&prompt, &pinned).unwrap();
    assert_eq!((choice.slot, choice.candidates, choice.excluded), (member(1).slot, 1, 1));
    assert_eq!(fleet.scratch.rows()[0].exclusion, Some(Exclusion::NotPinned));
    assert_eq!(fleet.load(1).requests, 1);
    let (choice, _next) = fleet.admit(&prompt, &prompt.demand()).unwrap();
    assert_eq!(choice.slot, member(0).slot);
}

#[test]
fn a_refused_request_is_not_booked() {
    for mode in Mode::ALL {
        let mut fleet = Fleet::new(mode, Tuning::default(), 2);
        for member in &mut fleet.members {
            member.exclusion = Some(Exclusion::Overloaded);
        }
        let prompt = Prompt::new("ab");
        assert!(fleet.admit(&prompt, &prompt.demand()).is_err(), "{mode}");
        assert_eq!(fleet.selector.loads().total(), SlotLoad::default());
    }
}

#[test]
fn a_worker_that_failed_is_not_tried_again() {
    let mut fleet = Fleet::new(Mode::LeastLoaded, Tuning::default(), 3);
    let prompt = Prompt::new("ab");
    let tried = [member(0).worker, member(2).worker];
    let demand = Demand { avoid: &tried, ..prompt.demand() };
    let (choice, _booking) = fleet.admit(&prompt, &demand).unwrap();
    assert_eq!(choice.slot, member(1).slot);
    let tried = [0, 1, 2].map(|index| member(index).worker);
    let demand = Demand { avoid: &tried, ..prompt.demand() };
    let refusal = fleet.admit(&prompt, &demand).unwrap_err();
    assert_eq!(refusal.to_string(), "no workers available: 3 already tried");
}

#[test]
fn a_member_that_retired_meanwhile_is_not_chosen() {
    let mut fleet = Fleet::new(Mode::LeastLoaded, Tuning::default(), 2);
    fleet.selector.loads().forget(member(0).slot);
    let prompt = Prompt::new("ab");
    let (choice, _booking) = fleet.admit(&prompt, &prompt.demand()).unwrap();
    assert_eq!(choice.slot, member(1).slot);
    assert_eq!(fleet.scratch.rows()[0].exclusion, Some(Exclusion::Retired));
    fleet.members[0].slot.generation = 1;
    let (choice, _next) = fleet.admit(&prompt, &prompt.demand()).unwrap();
    assert_eq!(choice.slot, fleet.members[0].slot, "its successor is idle");
}

#[test]
fn two_admissions_do_not_both_see_an_idle_slot() {
    let mut fleet = Fleet::new(Mode::LeastLoaded, Tuning::default(), 8);
    let prompt = Prompt::new("ab");
    let bookings: Vec<_> = (0..24).map(|_| fleet.admit(&prompt, &prompt.demand()).unwrap().1).collect();
    assert!((0..8).all(|index| fleet.load(index).requests == 3));
    drop(bookings);
}

#[test]
fn what_is_not_tracked_is_not_booked() {
    let prompt = Prompt::new("abc");
    let booked = |tuning: Tuning, overrides: Overrides| {
        let mut fleet = Fleet::new(Mode::Kv, tuning, 1);
        let demand = Demand { overrides, ..prompt.demand() };
        let bookings = [fleet.admit(&prompt, &demand).unwrap().1, fleet.admit(&prompt, &demand).unwrap().1];
        bookings[0].output(1);
        let booked = fleet.load(0);
        drop(bookings);
        assert_eq!(fleet.load(0), SlotLoad::default());
        booked
    };
    let (tuning, none) = (Tuning::default(), Overrides::default());
    assert_eq!(booked(tuning, none), load(2, 24, 3));
    assert_eq!(booked(Tuning { router_track_prefill_tokens: false, ..tuning }, none), load(2, 0, 3));
    assert_eq!(booked(Tuning { router_track_active_blocks: false, ..tuning }, none), load(2, 24, 0));
    assert_eq!(booked(Tuning { router_assume_kv_reuse: false, ..tuning }, none), load(2, 24, 6));
    assert_eq!(booked(Tuning { router_track_output_blocks: true, ..tuning }, none), load(2, 24, 4));
    let overrides = Overrides { assume_kv_reuse: Some(false), track_prefill_tokens: Some(false), ..none };
    assert_eq!(booked(tuning, overrides), load(2, 0, 6));
}

#[test]
fn a_prompt_that_was_not_hashed_counts_its_complete_blocks() {
    let mut fleet = Fleet::new(Mode::RoundRobin, Tuning::default(), 1);
    let prompt = Prompt::new("");
    let demand = Demand::new(11, block_size(), &[]);
    let (_, _booking) = fleet.admit(&prompt, &demand).unwrap();
    assert_eq!(fleet.load(0), load(1, 11, 2));
}
