//! A stream that goes on from where a snapshot stood.

use kvroute::ingest::{Memory, StreamMachine};
use xxhash_rust::xxh3::xxh3_64;

use crate::script::{play_on, settings};

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
