//! Each row against what it has to be.

use std::ffi::OsString;

use kvroute::{
    config::flags::{Environment, Frontend, Group, RouterFlags, Status, TABLE, Value, Warning, Worker},
    fleet::RouterConfig,
    select::{BypassPolicy, ConditionalDisagg, Mode, Tuning},
};

use crate::{
    build,
    expected::{OLD_NAMES, expected, samples},
    frontend, parse,
};

#[test]
fn the_table_is_what_is_expected() {
    let expected = expected();
    assert_eq!(TABLE.len(), expected.len());
    for (row, expected) in TABLE.iter().zip(&expected) {
        assert_eq!(format!("--{}", row.flag), expected.flag);
        assert_eq!(row.variables().collect::<Vec<_>>(), expected.variables, "{}", expected.flag);
        assert_eq!(!row.frontend_only(), expected.worker, "{}", expected.flag);
        assert_eq!(row.negated.is_some(), expected.accepts == "switch", "{}", expected.flag);
        let settings = frontend(&[]).unwrap().settings;
        let default = &settings.get(row.field).value;
        match expected.default {
            "_" => assert_eq!(*default, Value::Unset, "{}", expected.flag),
            text => assert_eq!(default.to_string(), text, "{}", expected.flag),
        }
    }
    let aliases: Vec<_> = TABLE.iter().filter_map(|row| Some((row.alias?.flag, row.flag))).collect();
    let old_names = OLD_NAMES.map(|(old, new)| (&old[2..], &new[2..]));
    assert_eq!(aliases, old_names);
}

#[test]
fn every_flag_and_variable_reads_what_it_accepts_and_nothing_else() {
    for expected in expected() {
        let (good, bad) = samples(expected.accepts);
        for text in &good {
            for variable in &expected.variables {
                let lookup = |name: &str| (name == *variable).then(|| OsString::from(text));
                let given = RouterFlags::<Frontend>::none().resolve(&Environment::new(&lookup), None);
                assert!(given.is_ok(), "{variable}={text}: {given:?}");
            }
            if expected.accepts != "switch" {
                let flags = parse::<Frontend>(&[expected.flag, text]);
                assert!(flags.is_ok(), "{} {text}: {flags:?}", expected.flag);
            }
        }
        for text in &bad {
            for variable in &expected.variables {
                // A flag that wins does not make a wrong variable right.
                let error = build::<Frontend>(&["--router-mode", "kv"], &[(variable, text)]).unwrap_err();
                assert!(error.starts_with(&format!("{variable}={text}: ")), "{error}");
            }
            if expected.accepts != "switch" {
                let error = parse::<Frontend>(&[expected.flag, text]).unwrap_err();
                assert!(error.contains(expected.flag), "{} {text}: {error}", expected.flag);
            }
        }
    }
}

#[test]
fn every_switch_turns_on_and_off_and_the_last_spelling_wins() {
    for row in TABLE.iter().filter(|row| row.negated.is_some()) {
        let alias = row.alias.map(|alias| (alias.flag, alias.negated.unwrap()));
        for (yes, no) in [Some((row.flag, row.negated.unwrap())), alias].into_iter().flatten() {
            let (yes, no) = (format!("--{yes}"), format!("--{no}"));
            let (on, off) = (row.flag, row.negated.unwrap());
            let (on, off) = (format!("--{on}"), format!("--{off}"));
            for (args, value) in [
                (vec![yes.as_str()], true),
                (vec![&no], false),
                (vec![&no, &on], true),
                (vec![&yes, &off], false),
                (vec![&off, &yes], true),
                (vec![&yes, &yes, &no], false),
            ] {
                let flags = parse::<Frontend>(&args).unwrap();
                let given = flags.resolve(&Environment::empty(), None).unwrap();
                assert_eq!(given.settings().get(row.field).value, Value::Switch(value), "{args:?}");
            }
        }
    }
}

#[test]
fn the_last_value_wins_whatever_its_spelling() {
    for args in [
        ["--router-kv-overlap-score-weight", "1", "--kv-overlap-score-weight", "3"],
        ["--kv-overlap-score-weight", "1", "--router-kv-overlap-score-weight", "3"],
        ["--router-prefill-load-scale", "1", "--router-prefill-load-scale", "3"],
    ] {
        let args = [&["--router-mode", "kv"], args.as_slice()].concat();
        assert_eq!(frontend(&args).unwrap().config.tuning.prefill_load_scale, 3.0, "{args:?}");
    }
}

#[test]
fn every_flag_works_or_is_refused_with_the_reason() {
    for expected in expected() {
        let row = TABLE.iter().find(|row| format!("--{}", row.flag) == expected.flag).unwrap();
        let Status::Refused { reason, needs, .. } = row.status else { continue };
        let args = |value: &'static str| match (expected.accepts, value) {
            ("switch", "true") => vec![expected.flag.to_owned()],
            ("switch", _) => vec![format!("--{}", row.negated.unwrap())],
            _ => vec![expected.flag.to_owned(), value.to_owned()],
        };
        let build = |value| {
            let args = args(value);
            let args: Vec<_> =
                ["--router-mode", "kv"].into_iter().chain(args.iter().map(String::as_str)).collect();
            frontend(&args)
        };
        if expected.default != "_" {
            build(expected.default).unwrap();
        }
        let other = match (expected.accepts, expected.default) {
            ("switch", "true") => "false",
            ("switch", _) => "true",
            ("whole" | "1.." | "1..whole", _) => "7",
            ("1..31536000", _) => "60",
            ("0..1" | "0..", _) => "0.5",
            ("text", _) => "some",
            (words, default) => words.split('|').find(|word| *word != default).unwrap(),
        };
        let error = build(other).unwrap_err();
        // What two flags demand of each other comes first: it stays wrong once both are built.
        if !error.contains("requires") {
            assert!(error.contains("not in this version") && error.contains(reason), "{error}");
            assert!(error.contains(needs) && error.starts_with("--"), "{error}");
        }
    }
}

#[test]
fn every_key_of_a_working_flag_is_one_that_cards_are_read_by() {
    let working = TABLE.iter().filter(|row| row.status == Status::Works && row.deprecated.is_none());
    let keys: Vec<_> = working.filter(|row| row.group == Group::Kv).filter_map(|row| row.key).collect();
    assert_eq!(keys.len(), 18);
    // A card leaves these out while they are at their defaults.
    let rule = ConditionalDisagg {
        policy: BypassPolicy::IslOrLoad,
        prefill_busy_threshold: Some(1.0),
        ..ConditionalDisagg::default()
    };
    let tuning = Tuning {
        decode_active_request_weight: 0.5,
        conditional_disagg: Some(rule),
        router_predicted_ttl_secs: Some(5.0),
        queue_threshold: Some(1.0),
        ..Tuning::default()
    };
    let config = serde_json::to_value(RouterConfig { mode: Mode::Kv, tuning }).unwrap();
    for key in keys {
        assert!(!config["kv_router_config"][key].is_null(), "{key} is not on {config}");
    }
}

#[test]
fn names_are_not_abbreviated() {
    for args in [["--router-m", "kv"], ["--router-temp", "1"], ["--load-awar", "1"]] {
        for error in [parse::<Frontend>(&args).unwrap_err(), parse::<Worker>(&args).unwrap_err()] {
            assert!(error.contains("unexpected argument"), "{error}");
        }
    }
}

#[test]
fn only_old_names_are_warned_of() {
    let old = |built: &[Warning]| {
        built
            .iter()
            .filter(|warning| matches!(warning, Warning::OldName { .. }))
            .map(ToString::to_string)
            .collect()
    };
    for row in TABLE.iter().filter(|row| row.status == Status::Works) {
        let value = row.default().to_string();
        let value = if value == "unset" { "1" } else { value.as_str() };
        let flag = format!("--{}", row.flag);
        let args = match row.default() {
            // It means something beside its switch alone, and has no old name.
            _ if row.flag == "router-conditional-disagg-config" => continue,
            Value::Switch(false) => vec![format!("--no-{}", row.flag)],
            Value::Switch(true) => vec![flag],
            _ if row.flag == "router-mode" => vec![flag, "kv".to_owned()],
            _ => vec![flag, value.to_owned()],
        };
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let said: Vec<String> =
            old(&frontend(&[&["--router-mode", "kv"], args.as_slice()].concat()).unwrap().warnings);
        assert_eq!(said.len(), usize::from(row.flag == "router-kv-overlap-score-weight"), "{said:?}");
    }
    for (args, variables, text) in [
        (vec!["--kv-events"], vec![], "--kv-events is an old name; use --router-kv-events"),
        (
            vec!["--no-assume-kv-reuse"],
            vec![],
            "--no-assume-kv-reuse is an old name; use --no-router-assume-kv-reuse",
        ),
        (
            vec!["--router-kv-overlap-score-weight", "1"],
            vec![],
            "--router-kv-overlap-score-weight is an old name; use --router-prefill-load-scale, or \
             --router-kv-overlap-score-credit 0 for weight 0",
        ),
        (
            vec![],
            vec![("DYN_OVERLAP_SCORE_WEIGHT", "1")],
            "DYN_OVERLAP_SCORE_WEIGHT is an old name; use --router-prefill-load-scale, or \
             --router-kv-overlap-score-credit 0 for weight 0",
        ),
    ] {
        let args = [&["--router-mode", "kv"], args.as_slice()].concat();
        let said: Vec<String> = old(&build::<Frontend>(&args, &variables).unwrap().warnings);
        assert_eq!(said, [text]);
    }
    let quiet = [("DYN_ROUTER_MODE", "kv"), ("DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "1")];
    assert_eq!(build::<Frontend>(&[], &quiet).unwrap().warnings, []);
}

#[test]
fn device_weights_of_a_worker_need_no_mode_and_are_not_its_router_configuration() {
    let built =
        build::<Worker>(&["--device-weight-least", "0.5"], &[("KVROUTE_DEVICE_WEIGHTS", "no")]).unwrap();
    assert_eq!((&built.config, built.warnings.len()), (&None, 0));
    let weights = built.device_weights().unwrap();
    assert_eq!((weights.enabled, weights.least), (false, 0.5));
    let silent = build::<Worker>(&["--router-mode", "kv"], &[]).unwrap();
    assert_eq!(silent.device_weights(), None);
    let idle = |mode: &str| {
        let warnings = frontend(&["--router-mode", mode, "--device-weight-least", "0.5"]).unwrap().warnings;
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    assert_eq!((idle("kv"), idle("device-aware-weighted")), (String::new(), String::new()));
    assert!(idle("random").contains("--device-weight-least 0.5 changes nothing"), "{}", idle("random"));
    // A frontend's are part of what its sets inherit, in every mode.
    for mode in ["kv", "round-robin"] {
        let built = frontend(&["--router-mode", mode, "--no-device-weights"]).unwrap();
        assert!(!built.config.tuning.device_weights.enabled, "{mode}");
    }
}
