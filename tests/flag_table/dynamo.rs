//! The table against what Dynamo 1.6.1's own parsers and its own worker say.

use kvroute::{
    config::flags::{Group, Kind, Row, TABLE, Value, Worker},
    fleet::RouterConfig,
    select::Mode,
};
use serde_json::Value as Json;

use crate::{
    build,
    expected::{DEPARTURES, OURS},
    frontend, worker,
};

const FLAGS: &str = include_str!("../fixtures/dynamo_router_flags.txt");

struct Line {
    spellings: Vec<&'static str>,
    taken_by: &'static str,
    variable: Option<&'static str>,
    default: &'static str,
    choices: Option<&'static str>,
    hidden: bool,
}

fn lines() -> Vec<Line> {
    let lines = FLAGS.lines().filter(|line| line.starts_with("--"));
    lines
        .map(|line| {
            let cells: Vec<_> = line.split('\t').collect();
            let &[spellings, taken_by, variable, default, choices, note] = cells.as_slice() else {
                panic!("not six cells: {line}")
            };
            let cell = |text: &'static str| (text != "-").then_some(text);
            Line {
                spellings: spellings.split(", ").collect(),
                taken_by,
                variable: cell(variable),
                default: default.split(' ').next().unwrap(),
                choices: cell(choices),
                hidden: note == "hidden",
            }
        })
        .collect()
}

fn row(line: &Line) -> Option<&'static Row> {
    TABLE.iter().find(|row| line.spellings.contains(&format!("--{}", row.flag).as_str()))
}

#[test]
fn every_flag_of_dynamo_is_a_row_with_its_spellings_variable_default_and_choices() {
    let lines = lines();
    for line in &lines {
        let name = line.spellings[0];
        let row = row(line).unwrap_or_else(|| panic!("no row for {name}"));
        let mut ours: Vec<_> = row.spellings().map(|name| format!("--{name}")).collect();
        let mut theirs = line.spellings.clone();
        ours.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(ours, theirs);
        assert_eq!(row.frontend_only(), line.taken_by == "frontend", "{name}");
        if let Kind::Choice { words, .. } = row.kind {
            let mut words = words.to_vec();
            let mut choices: Vec<_> = line.choices.unwrap().split('|').collect();
            words.sort_unstable();
            choices.sort_unstable();
            assert_eq!(words, choices, "{name}");
        }
        // The help of a hidden flag gives neither variable nor default.
        if line.hidden {
            continue;
        }
        assert_eq!(row.variable, line.variable, "{name}");
        let settings = frontend(&[]).unwrap().settings;
        let ours = match &settings.get(row.field).value {
            Value::Unset => "None".to_owned(),
            Value::Switch(true) => "True".to_owned(),
            Value::Switch(false) => "False".to_owned(),
            value => value.to_string(),
        };
        match DEPARTURES.iter().find(|departure| departure.0 == name) {
            Some((_, theirs, departed)) => assert_eq!((line.default, ours.as_str()), (*theirs, *departed)),
            None => assert_eq!(ours, line.default, "{name}"),
        }
    }
    for row in TABLE.iter().filter(|row| row.group != Group::Devices) {
        let flag = format!("--{}", row.flag);
        let theirs = lines.iter().any(|line| line.spellings.contains(&flag.as_str()));
        assert_ne!(theirs, OURS.contains(&flag.as_str()), "{flag}");
    }
}

/// The `router_config` of a card that Dynamo's worker wrote.
fn card(text: &str) -> Option<RouterConfig> {
    let record: Json = serde_json::from_str(text).unwrap();
    let config = record["card_json"].get("router_config")?;
    Some(serde_json::from_value(config.clone()).unwrap())
}

/// The flags are those that the cards were recorded with.
#[test]
fn the_same_flags_make_the_configuration_that_dynamo_puts_on_a_card() {
    let weights = "--router-mode kv --router-kv-overlap-score-credit 2.5 --router-kv-overlap-score-credit-decay 0.5 \
                   --router-prefill-load-scale 1.25 --router-decode-active-request-weight 0.75 \
                   --router-host-cache-hit-weight 0.5 --router-disk-cache-hit-weight 0.125 --router-temperature 0.25 \
                   --router-track-output-blocks --no-router-assume-kv-reuse";
    macro_rules! recorded {
        ($name:literal) => {
            include_str!(concat!("../fixtures/cards/dynamo-1.6.1-", $name, ".json"))
        };
    }
    for (flags, card_text) in [
        ("", recorded!("inherit")),
        ("--router-mode kv --router-kv-overlap-score-credit 2.5", recorded!("kv-credit-2.5")),
        ("--router-mode kv --router-kv-overlap-score-weight 0", recorded!("kv-legacy-weight-0")),
        (weights, recorded!("kv-weights")),
        ("--router-mode round-robin", recorded!("round-robin")),
        ("--router-mode random", recorded!("random")),
        ("--router-mode power-of-two", recorded!("power-of-two")),
        ("--router-mode least-loaded", recorded!("least-loaded")),
        ("--router-mode direct", recorded!("direct")),
        ("--router-mode device-aware-weighted", recorded!("device-aware-weighted")),
    ] {
        let args: Vec<_> = flags.split_whitespace().collect();
        assert_eq!(worker(&args, &[]).unwrap().config, card(card_text), "{flags}");
    }
    // The same from the environment.
    let variables = [("DYN_ROUTER_MODE", "kv"), ("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", "2.5")];
    let config = build::<Worker>(&[], &variables).unwrap().config;
    assert_eq!(config, card(recorded!("kv-credit-2.5")));
    assert_eq!(config.unwrap().mode, Mode::Kv);
}
