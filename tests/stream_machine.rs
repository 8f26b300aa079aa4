//! The stream's state machine, told what happened and asked what to do: every rule by a script.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]
#![cfg(feature = "server")]

use std::time::Duration;

use kvroute::ingest::{Memory, Output, Purpose, StreamMachine, StreamSettings};
use xxhash_rust::xxh3::xxh3_64;

const TIMEOUT: Duration = Duration::from_secs(5);

fn settings() -> StreamSettings {
    StreamSettings {
        replay_timeout: TIMEOUT,
        retry: TIMEOUT,
        idle_check: Some(Duration::from_secs(30)),
        replay_attempts: 3,
        held_batches: 4,
        held_bytes: 1_000,
        resync_pause: Duration::from_secs(10),
    }
}

fn say(output: &Output<Vec<u8>>) -> String {
    match output {
        Output::Apply { payload, .. } => format!("apply {}", String::from_utf8_lossy(payload)),
        Output::Clear => "clear".into(),
        Output::AskReplay { from, purpose: Purpose::Heal } => format!("heal from {from}"),
        Output::AskReplay { from, purpose: Purpose::Prove } => format!("prove from {from}"),
        Output::AskReplay { from, purpose: Purpose::Check } => format!("check from {from}"),
        Output::State(state) => state.name().into(),
        Output::GapFound => "gap".into(),
        Output::RestartFound => "restart".into(),
    }
}

/// Plays a script: `(what happens, what the machine does)`. `live 5` and `replayed 5` are batch 5 of engine `a`,
/// `live b5` of engine `b`.
fn play(settings: StreamSettings, can_replay: bool, script: &[(&str, &str)]) {
    play_on(StreamMachine::new(settings, can_replay), script);
}

/// The same from where a machine stands; where it stands in the end.
fn play_on(mut machine: StreamMachine<Vec<u8>>, script: &[(&str, &str)]) -> Option<Memory> {
    let mut now = Duration::ZERO;
    for (at, &(input, expected)) in script.iter().enumerate() {
        let (verb, argument) = input.split_once(' ').unwrap_or((input, ""));
        let payload = if argument.starts_with(|c: char| c.is_ascii_digit()) {
            format!("a{argument}")
        } else {
            argument.into()
        };
        let sequence = || payload[1..].parse::<u64>().unwrap();
        match verb {
            "connected" => machine.connected(now),
            "disconnected" => machine.disconnected(),
            "live" => machine.live(now, sequence(), payload.clone().into_bytes()),
            "replayed" => machine.replayed(now, sequence(), payload.clone().into_bytes()),
            "end" => machine.replay_ended(now),
            "failed" => machine.replay_failed(now),
            "emptied" => machine.emptied(sequence()),
            "unreadable" => machine.unreadable(sequence()),
            "started" => machine.engine_start_changed(now),
            "refused" => machine.refused(now, sequence()),
            "room" => machine.room(now),
            "rebuild" => machine.rebuild(now),
            "resync" => machine.resync(now),
            "waits" => machine.replay_waits(),
            "begins" => machine.replay_begins(now),
            "seconds" => {
                now += Duration::from_secs(argument.parse().unwrap());
                machine.poll(now);
            }
            other => panic!("no such input: {other}"),
        }
        let did: Vec<_> = std::iter::from_fn(|| machine.next_output()).map(|output| say(&output)).collect();
        assert_eq!(did.join(", "), expected, "step {at}: {input}");
    }
    machine.memory()
}

/// A script for an engine with a replay endpoint.
fn replayable(script: &[(&str, &str)]) {
    play(settings(), true, script);
}

/// A script for an engine without.
fn unreplayable(script: &[(&str, &str)]) {
    play(settings(), false, script);
}

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
        ("resync", "clear, heal from 0, replaying"),
        ("resync", ""),
        ("live 2", ""),
        ("replayed 0", "apply a0"),
        ("replayed 1", "apply a1, apply a2, live"),
        ("seconds 40", "check from 2"),
        ("resync", "clear, heal from 0, replaying"),
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
fn an_engine_that_counts_from_zero_again_is_a_new_one() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("live b0", "restart, clear, apply b0, live"),
        ("live b1", "apply b1"),
    ]);
}

#[test]
fn a_new_engine_whose_start_was_missed_is_replayed_from_its_start() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("live 2", "apply a2"),
        ("live b1", "restart, clear, gap, heal from 0, replaying"),
        ("replayed b0", "apply b0, apply b1, live"),
    ]);
}

#[test]
fn a_restart_while_a_replay_runs_drops_what_was_held() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 5", "gap, heal from 0, replaying"),
        ("live b0", "restart, clear, apply b0, live"),
        ("live b1", "apply b1"),
    ]);
}

#[test]
fn a_lost_connection_is_unproven_until_the_engine_shows_the_last_batch() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("disconnected", "unproven"),
        ("live 2", ""),
        ("connected", "prove from 1"),
        ("live 3", ""),
        ("replayed 1", "replaying"),
        ("replayed 2", "apply a2, apply a3, live"),
    ]);
}

#[test]
fn an_idle_engine_is_proven_the_same() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("disconnected", "unproven"),
        ("connected", "prove from 0"),
        ("replayed 0", "replaying"),
        ("end", "live"),
    ]);
}

#[test]
fn an_idle_engine_that_lacks_the_last_batch_is_a_new_one() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("disconnected", "unproven"),
        ("connected", "prove from 1"),
        ("end", "restart, clear, heal from 0, replaying"),
        ("replayed b0", "apply b0"),
        ("end", "live"),
    ]);
}

#[test]
fn an_engine_that_came_as_far_but_said_something_else_is_a_new_one() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("disconnected", "unproven"),
        ("connected", "prove from 1"),
        // It follows, and is no proof: the other engine's batches 0 and 1 were missed.
        ("live b2", ""),
        ("replayed b1", "restart, clear, heal from 0, replaying"),
        ("replayed b0", "apply b0"),
        ("replayed b1", "apply b1"),
        ("replayed b2", "apply b2"),
        ("end", "live"),
    ]);
}

#[test]
fn a_replay_below_what_was_asked_for_proves_nothing() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("disconnected", "unproven"),
        ("connected", "prove from 1"),
        ("replayed b0", ""),
        ("end", "restart, clear, heal from 0, replaying"),
    ]);
}

#[test]
fn an_engine_whose_ring_has_moved_on_is_incomplete_whoever_it_is() {
    for first in ["replayed 2", "replayed 9"] {
        let applied = first.replace("replayed ", "a");
        replayable(&[
            ("connected", "heal from 0, replaying"),
            ("end", "live"),
            ("live 0", "apply a0"),
            ("live 1", "apply a1"),
            ("disconnected", "unproven"),
            ("connected", "prove from 1"),
            (first, &format!("gap, clear, apply {applied}, replaying")),
            ("end", "incomplete"),
        ]);
    }
}

#[test]
fn an_engine_that_answers_no_proof_is_asked_again() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("disconnected", "unproven"),
        ("connected", "prove from 0"),
        ("seconds 5", ""),
        ("seconds 5", "prove from 0"),
        ("failed", ""),
        ("seconds 5", "prove from 0"),
        ("replayed 0", "replaying"),
        ("end", "live"),
    ]);
}

#[test]
fn where_no_replay_answers_the_next_number_decides() {
    let before = [
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("disconnected", "unproven"),
        ("connected", "prove from 0"),
        ("seconds 5", ""),
    ];
    let after: [&[(&str, &str)]; 3] = [
        &[("live 1", "apply a1, live")],
        &[("live b0", "restart, clear, apply b0, live")],
        &[("live 4", "gap, prove from 0"), ("seconds 5", "clear, apply a4, incomplete")],
    ];
    for after in after {
        replayable(&[&before, after].concat());
    }
}

#[test]
fn held_batches_decide_when_the_proof_times_out() {
    let before = [
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("disconnected", "unproven"),
        ("connected", "prove from 0"),
    ];
    let after: [&[(&str, &str)]; 2] = [
        &[("live 1", ""), ("live 2", ""), ("seconds 5", "apply a1, apply a2, live")],
        &[("live 2", ""), ("seconds 5", "clear, apply a2, incomplete")],
    ];
    for after in after {
        play(settings(), true, &[&before, after].concat());
    }
}

#[test]
fn without_a_replay_endpoint_the_next_number_decides() {
    let before =
        [("connected", ""), ("live 0", "apply a0, live"), ("disconnected", "unproven"), ("connected", "")];
    let after: [&[(&str, &str)]; 4] = [
        &[("live 1", "apply a1, live")],
        &[("live b0", "restart, clear, apply b0, live")],
        &[("live 4", "gap, clear, apply a4, incomplete")],
        // Nothing but a batch can prove it.
        &[("seconds 1000", "")],
    ];
    for after in after {
        unreplayable(&[&before, after].concat());
    }
}

#[test]
fn a_history_that_cannot_be_had_is_asked_for_again() {
    play(
        settings(),
        true,
        &[
            ("connected", "heal from 0, replaying"),
            ("seconds 5", "incomplete"),
            ("seconds 5", "heal from 0, replaying"),
            ("end", "live"),
        ],
    );
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("seconds 5", "incomplete"),
        ("live 0", "apply a0, live"),
        ("seconds 5", ""),
    ]);
}

#[test]
fn the_first_batch_of_all_needs_no_replay_to_be_whole() {
    replayable(&[("connected", "heal from 0, replaying"), ("live 0", "apply a0, live"), ("end", "")]);
}

#[test]
fn a_batch_during_the_last_of_a_replay_ends_it() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("live 1", "apply a1, live"),
    ]);
}

#[test]
fn a_replay_cut_short_by_silence_is_taken_up_where_it_stopped() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("seconds 5", "unproven"),
        ("seconds 5", "prove from 0"),
        ("replayed 0", "replaying"),
        ("replayed 1", "apply a1"),
        ("end", "live"),
    ]);
}

#[test]
fn a_lost_connection_ends_a_replay() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 2", "gap, heal from 0, replaying"),
        ("disconnected", "unproven"),
        ("replayed 1", ""),
        ("connected", "prove from 0"),
        ("replayed 0", "replaying"),
        ("replayed 1", "apply a1"),
        ("replayed 2", "apply a2"),
        ("end", "live"),
        // Heard before the connection broke, so this is a new engine and not a repetition.
        ("live b2", "restart, clear, gap, heal from 0, replaying"),
    ]);
}

#[test]
fn a_replay_that_reaches_the_next_engine_shows_it() {
    let before = [
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("live 3", "gap, heal from 1, replaying"),
    ];
    for answer in ["replayed b1", "end"] {
        let after = [(answer, "restart, clear, heal from 0, replaying"), ("disconnected", "unproven")];
        replayable(&[&before[..], &after].concat());
    }
}

#[test]
fn on_a_new_connection_a_replay_excuses_no_low_number() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("replayed 1", "apply a1"),
        ("replayed 2", "apply a2"),
        ("end", "live"),
        ("disconnected", "unproven"),
        ("connected", "prove from 2"),
        ("live b1", "restart, clear, gap, heal from 0, replaying"),
    ]);
}

#[test]
fn a_second_connection_has_to_be_proven_too() {
    for doubt in ["connected", "started"] {
        replayable(&[
            ("started", ""),
            ("connected", "heal from 0, replaying"),
            ("end", "live"),
            ("live 0", "apply a0"),
            (doubt, "prove from 0, unproven"),
            ("end", "restart, clear, heal from 0, replaying"),
            ("end", "live"),
        ]);
    }
}

#[test]
fn a_silent_engine_is_asked_whether_something_was_missed() {
    let before = [
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("seconds 29", ""),
        ("seconds 1", "check from 0"),
    ];
    let after: [&[(&str, &str)]; 5] = [
        &[("replayed 0", ""), ("end", ""), ("seconds 30", "check from 0")],
        &[("replayed 0", ""), ("replayed 1", "gap, apply a1, replaying"), ("end", "live")],
        &[("end", "restart, clear, heal from 0, replaying"), ("end", "live")],
        &[("seconds 5", ""), ("seconds 29", ""), ("seconds 1", "check from 0")],
        &[("live 1", "apply a1"), ("replayed 0", ""), ("seconds 30", "check from 1")],
    ];
    for after in after {
        replayable(&[&before, after].concat());
    }
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
        ("rebuild", "clear, heal from 0, replaying"),
        ("live 2", ""),
        ("replayed 0", "apply a0"),
        ("replayed 1", "apply a1, apply a2, live"),
    ]);
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
        ("rebuild", "clear, unproven"),
        ("connected", "heal from 0, replaying"),
    ]);
}

/// A script for a stream that goes on from batch 5 of engine `a`.
fn resumed(script: &[(&str, &str)]) -> Option<Memory> {
    resumed_with(None, script)
}

fn resumed_with(lost_before: Option<u64>, script: &[(&str, &str)]) -> Option<Memory> {
    let memory = Memory { sequence: 5, fingerprint: xxh3_64(b"a5"), lost_before };
    play_on(StreamMachine::new(settings(), true).resuming(memory), script)
}

#[test]
fn a_resumed_stream_is_credited_nothing_before_the_engine_has_said_all_that_it_said_since() {
    let memory = resumed(&[
        ("connected", "prove from 5"),
        // It is the same engine; what it has taken away since is still in the index.
        ("replayed 5", ""),
        ("replayed 6", "apply a6"),
        ("live 8", ""),
        ("replayed 7", "apply a7, apply a8, live"),
        ("live 9", "apply a9"),
    ]);
    assert_eq!(memory, Some(Memory { sequence: 9, fingerprint: xxh3_64(b"a9"), lost_before: None }));
}

#[test]
fn a_resumed_stream_with_nothing_new_is_live_at_the_end_of_the_replay() {
    resumed(&[("connected", "prove from 5"), ("replayed 5", ""), ("end", "live")]);
}

#[test]
fn what_was_lost_before_a_snapshot_stays_lost() {
    let script = [("connected", "prove from 5"), ("replayed 5", ""), ("end", "incomplete")];
    assert_eq!(resumed_with(Some(3), &script).unwrap().lost_before, Some(3));
}

#[test]
fn a_snapshot_of_another_incarnation_goes() {
    for (answer, outcome) in [
        ("replayed b5", "restart, clear, heal from 0, replaying"),
        ("end", "restart, clear, heal from 0, replaying"),
        ("replayed 7", "gap, clear, apply a7, replaying"),
    ] {
        resumed(&[("connected", "prove from 5"), (answer, outcome)]);
    }
}

#[test]
fn no_number_that_happens_to_follow_confirms_a_snapshot() {
    // The replay does not answer, and the engine's next batch has the number that would be next.
    resumed(&[("connected", "prove from 5"), ("live 6", ""), ("seconds 5", "clear, apply a6, incomplete")]);
    // Nor does it where nobody had said anything when the answer did not come.
    resumed(&[
        ("connected", "prove from 5"),
        ("seconds 5", ""),
        ("live 6", "prove from 5"),
        ("replayed 5", "apply a6, live"),
    ]);
}

#[test]
fn a_resumed_stream_may_lose_its_connection_and_be_shown_after() {
    resumed(&[
        ("connected", "prove from 5"),
        ("disconnected", ""),
        ("connected", "prove from 5"),
        ("replayed 5", ""),
        ("replayed 6", "apply a6"),
        ("disconnected", ""),
        ("connected", "prove from 6"),
        ("replayed 6", ""),
        ("end", "live"),
    ]);
}

#[test]
fn a_resumed_stream_whose_batches_are_not_taken_goes_on_from_the_last_that_was() {
    resumed(&[
        ("connected", "prove from 5"),
        ("replayed 5", ""),
        ("replayed 6", "apply a6"),
        ("refused 6", "gap"),
        ("room", "heal from 5, unproven"),
        ("replayed 5", ""),
        ("replayed 6", "apply a6"),
        ("end", "live"),
    ]);
}

#[test]
fn a_stream_does_not_say_where_it_stands_while_that_is_not_certain() {
    let stands = |script: &[(&str, &str)]| play_on(StreamMachine::new(settings(), true), script);
    assert_eq!(stands(&[("connected", "heal from 0, replaying"), ("replayed 0", "apply a0")]), None);
    let live = [("connected", "heal from 0, replaying"), ("replayed 0", "apply a0"), ("end", "live")];
    assert_eq!(stands(&live).unwrap().sequence, 0);
    assert_eq!(stands(&[&live[..], &[("disconnected", "unproven")]].concat()), None);
    assert_eq!(stands(&[&live[..], &[("live 2", "gap, heal from 0, replaying")]].concat()), None);
    assert!(stands(&[&live[..], &[("seconds 30", "check from 0")]].concat()).is_some());
    assert_eq!(resumed(&[("connected", "prove from 5"), ("replayed 5", "")]), None);
}

#[test]
fn a_replay_that_waits_holds_nothing_and_brings_it_all() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("waits", "incomplete"),
        // More than may be held.
        ("live 5", ""),
        ("live 6", ""),
        ("live 7", ""),
        ("live 8", ""),
        ("live 9", ""),
        ("live 10", ""),
        ("seconds 3600", ""),
        ("begins", "replaying"),
        ("live 11", ""),
        ("replayed 9", "apply a9"),
        ("replayed 10", "apply a10, apply a11, incomplete"),
    ]);
}

#[test]
fn a_stream_that_has_to_show_who_it_is_stays_unproven_while_it_waits() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("end", "live"),
        ("disconnected", "unproven"),
        ("connected", "prove from 0"),
        ("waits", ""),
        ("live 1", ""),
        ("begins", ""),
        ("replayed 0", "replaying"),
        ("replayed 1", "apply a1"),
        ("end", "live"),
    ]);
}

#[test]
fn a_restart_shows_while_a_replay_waits() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("end", "live"),
        ("live 1", "apply a1"),
        ("live 3", "gap, heal from 1, replaying"),
        ("waits", "incomplete"),
        ("live b0", "restart, clear, apply b0, live"),
    ]);
}

#[test]
fn a_check_that_waits_is_in_nobody_s_way() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("seconds 30", "check from 0"),
        ("waits", ""),
        ("live 1", "apply a1"),
        ("live 2", "apply a2"),
    ]);
}
