//! What was missed, and how it is brought.

use std::time::Duration;

use kvroute::ingest::{Output, StreamMachine, StreamSettings};

use crate::script::{play, replayable, say, settings, unreplayable};

#[test]
fn an_engine_that_has_said_nothing_is_live_at_once() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
    ]);
}

#[test]
fn what_was_said_before_is_replayed() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("live 2", ""),
        ("live 3", ""),
        ("replayed 1", "apply a1, apply a2, apply a3, live"),
        // Published before the answer, heard after it.
        ("live 4", "apply a4"),
    ]);
}

#[test]
fn a_replay_may_overtake_the_live_socket() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("replayed 1", "apply a1"),
        ("replayed 2", "apply a2"),
        ("end", "live"),
        ("live 1", ""),
        ("live 2", ""),
        ("live 3", "apply a3"),
    ]);
}

#[test]
fn a_first_batch_above_zero_asks_for_what_came_before() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 2", "gap, heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("replayed 1", "apply a1, apply a2, live"),
    ]);
}

#[test]
fn a_gap_is_healed() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 3", "gap, heal from 0, replaying"),
        ("live 4", ""),
        ("replayed 0", ""),
        ("replayed 1", "apply a1"),
        ("replayed 2", "apply a2, apply a3, apply a4, live"),
        ("replayed 3", ""),
        ("end", ""),
        ("live 5", "apply a5"),
    ]);
}

#[test]
fn a_stream_that_is_doubted_is_dropped_and_taken_anew() {
    replayable(&[
        ("resync", ""),
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("resync", "clear, anew, heal from 0, replaying"),
        ("resync", ""),
        ("live 2", ""),
        ("replayed 0", "apply a0"),
        ("replayed 1", "apply a1, apply a2, live"),
        ("seconds 40", "check from 2"),
        ("resync", "clear, anew, heal from 0, replaying"),
        ("end", "live"),
    ]);
    // What cannot be had anew is kept.
    play(settings(), false, &[("connected", ""), ("live 0", "apply a0, live"), ("resync", "")]);
}

#[test]
fn a_replayed_batch_that_is_known_is_never_a_restart() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("live 3", "gap, heal from 1, replaying"),
        ("replayed 0", ""),
        ("replayed 1", ""),
        ("replayed 2", "apply a2, apply a3, live"),
    ]);
}

#[test]
fn a_gap_inside_what_is_held_is_healed_by_the_same_replay() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 2", "gap, heal from 0, replaying"),
        ("live 4", ""),
        ("replayed 0", ""),
        ("replayed 1", "apply a1, apply a2"),
        ("replayed 2", ""),
        ("replayed 3", "apply a3, apply a4, live"),
    ]);
}

#[test]
fn a_ring_that_no_longer_holds_it_leaves_the_stream_incomplete() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("replayed 7", "apply a7"),
        ("replayed 8", "apply a8"),
        ("end", "incomplete"),
        ("live 9", "apply a9"),
        ("live 20", "gap, heal from 9, replaying"),
        ("replayed 15", "clear, apply a15, replaying"),
        ("replayed 16", "apply a16"),
        ("replayed 18", "clear, apply a18, replaying"),
        ("replayed 19", "apply a19, apply a20, incomplete"),
    ]);
}

#[test]
fn a_ring_shorter_than_what_was_heard_live_is_not_waited_for() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 5", "gap, heal from 0, replaying"),
        ("live 6", ""),
        ("replayed 6", "clear, apply a5, apply a6, incomplete"),
    ]);
}

#[test]
fn a_replay_that_is_not_answered_leaves_the_stream_incomplete() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 3", "gap, heal from 0, replaying"),
        ("seconds 4", ""),
        ("live 4", ""),
        ("seconds 1", "clear, apply a3, apply a4, incomplete"),
        ("live 5", "apply a5"),
    ]);
}

#[test]
fn progress_keeps_a_slow_replay_alive() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 2", "gap, heal from 0, replaying"),
        ("seconds 4", ""),
        ("replayed 0", "apply a0"),
        ("seconds 4", ""),
        ("replayed 1", "apply a1, apply a2, live"),
    ]);
}

#[test]
fn a_replay_that_ends_too_early_is_asked_for_again_and_then_given_up() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 4", "gap, heal from 0, replaying"),
        ("replayed 0", ""),
        ("replayed 1", "apply a1"),
        ("end", "heal from 1"),
        ("replayed 1", ""),
        ("replayed 2", "apply a2"),
        ("end", "heal from 2"),
        ("replayed 2", ""),
        ("end", "clear, apply a4, incomplete"),
    ]);
}

#[test]
fn more_held_batches_than_the_limit_end_the_replay() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 3", "gap, heal from 0, replaying"),
        ("live 4", ""),
        ("live 6", ""),
        ("live 7", ""),
        // Among the held batches is another gap, which gets a chance of its own.
        ("live 8", "clear, apply a3, apply a4, gap, heal from 4, replaying"),
        ("replayed 4", ""),
        ("replayed 5", "apply a5, apply a6, apply a7, apply a8, incomplete"),
    ]);
}

#[test]
fn at_the_limit_a_number_that_follows_proves_nothing() {
    let tight = StreamSettings { held_batches: 1, ..settings() };
    let script = [
        ("connected", "heal from 0, replaying"),
        ("live 0", "apply a0, live"),
        ("disconnected", "unproven"),
        ("connected", "prove from 0"),
        ("live 1", ""),
        ("live 2", "clear, apply a1, apply a2, incomplete"),
    ];
    play(tight, true, &script);
}

#[test]
fn more_held_bytes_than_the_limit_end_the_replay() {
    play(
        StreamSettings { held_bytes: 3, ..settings() },
        true,
        &[
            ("connected", "heal from 0, replaying"),
            ("end", "live"),
            ("live 0", "apply a0"),
            ("live 2", "gap, heal from 0, replaying"),
            ("live 3", "clear, apply a2, apply a3, incomplete"),
        ],
    );
}

#[test]
fn without_a_replay_endpoint_a_gap_clears_at_once() {
    unreplayable(&[
        ("connected", ""),
        ("live 0", "apply a0, live"),
        ("live 2", "gap, clear, apply a2, incomplete"),
        ("live 3", "apply a3"),
        ("seconds 100", ""),
    ]);
}

#[test]
fn without_a_replay_endpoint_a_late_first_batch_is_incomplete() {
    unreplayable(&[("connected", ""), ("live 7", "gap, apply a7, incomplete")]);
}

#[test]
fn an_emptied_cache_makes_an_incomplete_stream_whole() {
    unreplayable(&[
        ("connected", ""),
        ("live 7", "gap, apply a7, incomplete"),
        ("live 8", "apply a8"),
        ("emptied 8", "live"),
        ("live 11", "gap, clear, apply a11, incomplete"),
        // Older than what was lost: it says nothing about it.
        ("emptied 8", ""),
    ]);
}

#[test]
fn an_unreadable_batch_clears() {
    unreplayable(&[
        ("connected", ""),
        ("live 0", "apply a0, live"),
        ("live 1", "apply a1"),
        ("unreadable 1", "clear, incomplete"),
        ("live 2", "apply a2"),
    ]);
}

#[test]
fn an_unreadable_batch_clears_before_those_behind_it_are_applied() {
    let mut machine = StreamMachine::<Vec<u8>>::new(settings(), true);
    let payload = |sequence: u64| format!("a{sequence}").into_bytes();
    machine.connected(Duration::ZERO);
    for sequence in [1, 2] {
        machine.live(Duration::ZERO, sequence, payload(sequence));
    }
    while machine.next_output().is_some() {}
    machine.replayed(Duration::ZERO, 0, payload(0));
    let mut did = Vec::new();
    while let Some(output) = machine.next_output() {
        did.push(say(&output));
        match output {
            Output::Apply { sequence: 0, .. } => machine.unreadable(0),
            Output::Apply { sequence: 2, .. } => machine.emptied(2),
            _ => {}
        }
    }
    assert_eq!(did.join(", "), "apply a0, clear, apply a1, apply a2, incomplete, live");
}

#[test]
fn no_number_however_odd_breaks_it() {
    let top = u64::MAX.to_string();
    unreplayable(&[
        ("connected", ""),
        ("live 0", "apply a0, live"),
        (&format!("live {top}"), &format!("gap, clear, apply a{top}, incomplete")),
        ("live 1", "restart, clear, gap, apply a1, incomplete"),
    ]);
}
