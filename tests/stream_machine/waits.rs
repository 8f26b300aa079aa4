//! Replays that wait for their turn.

use crate::script::replayable;

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
