//! Batches that are not taken, and an index that is built anew.

use std::time::Duration;

use kvroute::ingest::{Output, StreamMachine};

use crate::script::{replayable, settings, unreplayable};

#[test]
fn what_is_not_taken_is_replayed_once_there_is_room() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("refused 1", "gap, incomplete"),
        // Dropped, and not held: a replay brings them.
        ("live 2", ""),
        ("live 3", ""),
        ("seconds 100", ""),
        ("room", "heal from 0, replaying"),
        ("live 4", ""),
        ("replayed 0", ""),
        ("replayed 1", "apply a1"),
        ("replayed 2", "apply a2"),
        ("replayed 3", "apply a3, apply a4, live"),
    ]);
}

#[test]
fn what_fell_out_of_the_ring_during_an_overload_is_lost() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("refused 1", "gap, incomplete"),
        ("room", "heal from 0, replaying"),
        ("replayed 7", "clear, apply a7, replaying"),
        ("end", "incomplete"),
    ]);
}

#[test]
fn an_engine_that_restarts_during_an_overload_is_replayed_from_its_start() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("refused 1", "gap, incomplete"),
        ("disconnected", "unproven"),
        ("connected", ""),
        ("live b0", "restart, clear, incomplete"),
        ("room", "heal from 0, replaying"),
        ("replayed b0", "apply b0"),
        ("end", "live"),
    ]);
}

#[test]
fn without_a_replay_endpoint_what_is_not_taken_is_lost_at_once() {
    unreplayable(&[
        ("connected", ""),
        ("live 0", "apply a0, live"),
        ("live 1", "apply a1"),
        ("refused 1", "gap, clear, incomplete"),
        ("live 2", ""),
        ("room", "incomplete"),
        ("live 3", "gap, apply a3"),
    ]);
}

#[test]
fn without_a_replay_endpoint_what_a_new_engine_says_during_an_overload_is_lost_too() {
    unreplayable(&[
        ("connected", ""),
        ("live 0", "apply a0, live"),
        ("live 1", "apply a1"),
        ("refused 1", "gap, clear, incomplete"),
        ("live b0", "restart"),
        ("live b1", ""),
        ("room", "incomplete"),
        ("live b2", "gap, apply b2"),
    ]);
}

#[test]
fn overloads_end_no_sooner_after_one_another_than_they_may() {
    let mut machine = StreamMachine::<Vec<u8>>::new(settings(), true);
    let second = Duration::from_secs;
    let outputs = |machine: &mut StreamMachine<Vec<u8>>| while machine.next_output().is_some() {};
    machine.connected(second(0));
    machine.replay_ended(second(0));
    outputs(&mut machine);
    let overload = |machine: &mut StreamMachine<Vec<u8>>, now, sequence: u64| {
        machine.live(now, sequence, vec![0]);
        let batch = std::iter::from_fn(|| machine.next_output());
        assert_eq!(batch.filter(|output| matches!(output, Output::Apply { .. })).count(), 1);
        machine.refused(now, sequence);
        outputs(machine);
    };
    machine.live(second(1), 0, vec![0]);
    outputs(&mut machine);
    overload(&mut machine, second(1), 1);
    // The first ends as soon as there is room.
    assert!(!machine.wants_room(second(1)) && machine.wants_room(second(2)));
    // Without room it is asked for again, a moment later.
    assert!(!machine.wants_room(second(2)) && machine.next_wake() < Some(second(3)));
    machine.room(second(3));
    machine.replayed(second(3), 0, vec![0]);
    machine.replayed(second(3), 1, vec![0]);
    machine.replay_ended(second(3));
    outputs(&mut machine);
    overload(&mut machine, second(4), 2);
    assert!(!machine.wants_room(second(12)));
    assert!(machine.wants_room(second(13)));
}

#[test]
fn what_the_index_holds_is_built_anew_on_demand() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("rebuild", "clear, anew, heal from 0, replaying"),
        ("live 2", ""),
        ("replayed 0", "apply a0"),
        ("replayed 1", "apply a1, apply a2, live"),
    ]);
    // A replay was quicker than the live socket, from which the same still comes: by that the rank would go back.
    for doubt in ["rebuild", "resync"] {
        replayable(&[
            ("connected", "heal from 0, replaying"),
            ("replayed 0", "apply a0"),
            ("replayed 1", "apply a1"),
            ("end", "live"),
            (doubt, "clear, anew, heal from 0, replaying"),
            ("live 0", ""),
            ("replayed 0", "apply a0"),
            ("live 1", ""),
            ("live 2", ""),
            ("replayed 1", "apply a1, apply a2, live"),
            ("live 3", "apply a3"),
        ]);
    }
    unreplayable(&[
        ("connected", ""),
        ("live 0", "apply a0, live"),
        ("rebuild", "clear, incomplete"),
        ("live 1", "gap, apply a1"),
    ]);
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("live 0", "apply a0, live"),
        ("disconnected", "unproven"),
        ("rebuild", "clear, anew, unproven"),
        ("connected", "heal from 0, replaying"),
    ]);
}

#[test]
fn an_engine_that_has_less_to_say_than_was_forgotten_is_another_one() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("replayed 1", "apply a1"),
        ("replayed 2", "apply a2"),
        ("end", "live"),
        ("rebuild", "clear, anew, heal from 0, replaying"),
        ("started", "heal from 0"),
        ("replayed b0", "apply b0"),
        ("end", "live"),
        ("live b1", "apply b1"),
    ]);
}

/// Numbers that a dead engine came to say nothing about those of the next, whatever was dropped from the index in between.
#[test]
fn an_engine_that_has_yet_to_be_proven_is_proven_before_it_is_built_anew() {
    for doubt in ["connected", "started"] {
        let before = [
            ("connected", "heal from 0, replaying"),
            ("replayed 0", "apply a0"),
            ("replayed 1", "apply a1"),
            ("end", "live"),
            (doubt, "prove from 1, unproven"),
            ("rebuild", "clear, unproven"),
            ("rebuild", "clear, unproven"),
        ];
        let after: [&[(&str, &str)]; 5] = [
            &[
                ("replayed 1", "anew, heal from 0, replaying"),
                ("live 2", ""),
                ("replayed 0", "apply a0"),
                ("replayed 1", "apply a1, apply a2, live"),
            ],
            &[
                ("end", "restart, clear, heal from 0, replaying"),
                ("replayed b0", "apply b0"),
                ("replayed b1", "apply b1"),
                ("replayed b2", "apply b2"),
                ("end", "live"),
                // It was said before the replay.
                ("live b0", ""),
                ("live b3", "apply b3"),
            ],
            // No number stands in for the answer, for there is nothing in the index that it could follow.
            &[("seconds 5", ""), ("live 2", "prove from 1"), ("replayed 1", "anew, heal from 0, replaying")],
            &[("live 2", ""), ("seconds 5", "clear, apply a2, incomplete")],
            &[
                ("disconnected", ""),
                ("connected", "prove from 1"),
                ("replayed 1", "anew, heal from 0, replaying"),
            ],
        ];
        for after in after {
            replayable(&[&before, after].concat());
        }
    }
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("refused 1", "gap, incomplete"),
        ("connected", "unproven"),
        ("rebuild", "clear, unproven"),
        ("room", "prove from 0, unproven"),
        ("replayed 0", "anew, heal from 0, replaying"),
    ]);
    // Nothing was taken, so there is nothing to prove.
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("live 0", "apply a0, live"),
        ("refused 0", "gap, incomplete"),
        ("connected", "unproven"),
        ("rebuild", "clear, anew, unproven"),
        ("room", "heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("end", "live"),
        ("live 1", "apply a1"),
    ]);
}
