//! Whether the engine is still the one that it was.

use crate::script::{play, replayable, settings, unreplayable};

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
fn what_the_live_socket_still_brings_of_an_engine_whose_ring_has_moved_on_is_old() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("live 1", "apply a1"),
        ("live 2", "apply a2"),
        ("connected", "prove from 2, unproven"),
        ("replayed b7", "gap, clear, apply b7, replaying"),
        ("end", "incomplete"),
        // The one before had come that far.
        ("live b1", ""),
        ("live b2", ""),
        ("live b8", "apply b8"),
        ("live c0", "restart, clear, apply c0, live"),
    ]);
    // And where nobody answers, what another came to is nothing to it.
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("replayed 1", ""),
        ("live 1", "apply a1"),
        ("live 2", "apply a2"),
        ("rebuild", "clear, anew, heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("replayed 1", "apply a1"),
        ("connected", "prove from 1, unproven"),
        ("live b3", ""),
        ("seconds 5", "clear, apply b3, incomplete"),
        ("live b4", "apply b4"),
    ]);
    // What was held was heard of this one.
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("connected", "prove from 0, unproven"),
        ("live b6", ""),
        ("replayed b5", "gap, clear, apply b5, apply b6, incomplete"),
        ("live c6", "restart, clear, gap, heal from 0, replaying"),
    ]);
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
        ("seconds 9", ""),
        ("seconds 1", "prove from 0"),
        ("replayed 0", "replaying"),
        ("end", "live"),
    ]);
}

#[test]
fn each_question_in_a_row_that_stays_unanswered_doubles_the_pause_up_to_a_bound() {
    let before = [
        ("connected", "heal from 0, replaying"),
        ("end", "live"),
        ("live 0", "apply a0"),
        ("disconnected", "unproven"),
        ("connected", "prove from 0"),
    ];
    // Each is given up after five seconds; then it is waited for another.
    let mut script = before.to_vec();
    for wait in ["seconds 4", "seconds 9", "seconds 19", "seconds 39", "seconds 79", "seconds 79"] {
        script.extend([("seconds 5", ""), (wait, ""), ("seconds 1", "prove from 0")]);
    }
    // An answer ends the row.
    script.extend([("replayed 0", "replaying"), ("seconds 5", "unproven"), ("seconds 4", "")]);
    script.push(("seconds 1", "prove from 0"));
    replayable(&script);
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

/// The replay may have reached an engine to which a connection stood already, though that was heard of only later.
#[test]
fn on_a_new_connection_a_number_that_a_replay_brought_waits_for_the_answer() {
    let before = [
        ("connected", "heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("replayed 1", "apply a1"),
        ("replayed 2", "apply a2"),
        ("end", "live"),
        ("disconnected", "unproven"),
        ("connected", "prove from 2"),
    ];
    let after: [&[(&str, &str)]; 5] = [
        &[
            ("live 1", ""),
            ("live 2", ""),
            ("live 3", ""),
            ("replayed 2", "apply a3, live"),
            ("live 4", "apply a4"),
        ],
        &[
            ("live 1", ""),
            ("replayed 2", "replaying"),
            ("live 2", ""),
            ("end", "live"),
            ("live 3", "apply a3"),
        ],
        &[("live b1", ""), ("replayed b2", "restart, clear, heal from 0, replaying")],
        &[("live b1", ""), ("end", "restart, clear, heal from 0, replaying"), ("live b2", "")],
        // Without an answer the number decides, and not one that happens to follow.
        &[
            ("live b1", ""),
            ("live b2", ""),
            ("live b3", ""),
            ("seconds 5", "restart, clear, heal from 0, replaying"),
        ],
    ];
    for after in after {
        replayable(&[&before, after].concat());
    }
    // Nor is it forgotten by whoever asks again.
    for again in ["started", "connected"] {
        let asked = [("live b1", ""), (again, "prove from 2"), ("live b3", "")];
        let answer = [("seconds 5", "restart, clear, heal from 0, replaying")];
        replayable(&[&before[..], &asked, &answer].concat());
    }
    for (asked, low) in [("failed", "live b1"), ("seconds 5", "live b2")] {
        let late = [(asked, ""), (low, "restart, clear, gap, heal from 0, replaying")];
        replayable(&[&before[..], &late].concat());
    }
}

#[test]
fn a_number_that_a_replay_brought_waits_for_the_end_of_an_overload_too() {
    let before = [
        ("connected", "heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("replayed 1", "apply a1"),
        ("refused 1", "gap, incomplete"),
        ("connected", "unproven"),
        ("live 0", ""),
        ("room", "prove from 0, unproven"),
    ];
    let after: [&[(&str, &str)]; 2] = [
        &[("replayed 0", "replaying"), ("replayed 1", "apply a1"), ("end", "live")],
        &[("seconds 5", "restart, clear, heal from 0, replaying")],
    ];
    for after in after {
        replayable(&[&before, after].concat());
    }
}

/// The connection is the old one: what a replay overtook still comes over it.
#[test]
fn an_engine_that_is_said_to_have_started_anew_and_has_not_goes_on() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("replayed 1", "apply a1"),
        ("end", "live"),
        ("started", "prove from 1, unproven"),
        ("live 0", ""),
        ("replayed 1", "replaying"),
        ("replayed 2", "apply a2"),
        ("end", "live"),
        ("live 1", ""),
        ("live 2", ""),
        ("live 3", "apply a3"),
    ]);
}

#[test]
fn and_one_that_has_over_the_same_connection_is_found_by_its_answer() {
    replayable(&[
        ("connected", "heal from 0, replaying"),
        ("replayed 0", "apply a0"),
        ("replayed 1", "apply a1"),
        ("end", "live"),
        ("started", "prove from 1, unproven"),
        ("live b0", ""),
        ("replayed b1", "restart, clear, heal from 0, replaying"),
        ("replayed b0", "apply b0"),
        ("replayed b1", "apply b1"),
        ("end", "live"),
        ("live b2", "apply b2"),
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
    let after: [&[(&str, &str)]; 7] = [
        &[("replayed 0", ""), ("end", ""), ("seconds 30", "check from 0")],
        &[
            ("replayed 0", ""),
            ("replayed 1", "gap, apply a1, replaying"),
            ("end", "live"),
            // What came by the replay alone the live socket should have brought: after another silence it counts as dead.
            ("seconds 29", ""),
            ("seconds 1", "reconnect"),
            ("disconnected", "unproven"),
            ("connected", "prove from 1"),
            ("replayed 1", "replaying"),
            ("end", "live"),
        ],
        &[
            ("replayed 0", ""),
            ("replayed 1", "gap, apply a1, replaying"),
            ("end", "live"),
            // It was late, not dead.
            ("live 1", ""),
            ("seconds 30", "check from 1"),
        ],
        &[
            // Where the engine connects to us nothing can be made anew: it is asked again.
            ("replayed 0", ""),
            ("replayed 1", "gap, apply a1, replaying"),
            ("end", "live"),
            ("seconds 30", "reconnect"),
            ("seconds 30", "check from 1"),
        ],
        &[("end", "restart, clear, heal from 0, replaying"), ("end", "live")],
        &[("seconds 5", ""), ("seconds 29", ""), ("seconds 1", "check from 0")],
        &[("live 1", "apply a1"), ("replayed 0", ""), ("seconds 30", "check from 1")],
    ];
    for after in after {
        replayable(&[&before, after].concat());
    }
}
