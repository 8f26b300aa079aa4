//! Scripts: what happens to a machine, and what it does.

use std::time::Duration;

use kvroute::ingest::{Memory, Output, Purpose, StreamMachine, StreamSettings};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn settings() -> StreamSettings {
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

pub(crate) fn say(output: &Output<Vec<u8>>) -> String {
    match output {
        Output::Apply { payload, .. } => format!("apply {}", String::from_utf8_lossy(payload)),
        Output::Clear => "clear".into(),
        Output::AskReplay { from, purpose: Purpose::Heal } => format!("heal from {from}"),
        Output::AskReplay { from, purpose: Purpose::Prove } => format!("prove from {from}"),
        Output::AskReplay { from, purpose: Purpose::Check } => format!("check from {from}"),
        Output::State(state) => state.name().into(),
        Output::GapFound => "gap".into(),
        Output::Anew => "anew".into(),
        Output::RestartFound => "restart".into(),
        Output::Reconnect => "reconnect".into(),
    }
}

/// Plays a script: `(what happens, what the machine does)`. `live 5` and `replayed 5` are batch 5 of engine `a`,
/// `live b5` of engine `b`.
pub(crate) fn play(settings: StreamSettings, can_replay: bool, script: &[(&str, &str)]) {
    play_on(StreamMachine::new(settings, can_replay), script);
}

/// The same from where a machine stands; where it stands in the end.
pub(crate) fn play_on(mut machine: StreamMachine<Vec<u8>>, script: &[(&str, &str)]) -> Option<Memory> {
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
pub(crate) fn replayable(script: &[(&str, &str)]) {
    play(settings(), true, script);
}

/// A script for an engine without.
pub(crate) fn unreplayable(script: &[(&str, &str)]) {
    play(settings(), false, script);
}
