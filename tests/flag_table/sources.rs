//! Flags, environment and file: what wins, and what is told.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _};

use kvroute::{
    config::flags::{Built, Environment, Frontend, Kind, RouterFlags, Source, TABLE, Worker},
    fleet::RouterConfig,
};

use crate::{build, build_with_file, worker};

#[test]
fn a_flag_wins_over_its_variable_that_over_the_file_that_over_the_default() {
    let file = "router_mode = 'kv'\nrouter_temperature = 3";
    let variables = [("DYN_ROUTER_TEMPERATURE", "2")];
    let args = ["--router-temperature", "1"];
    let source = |built: &Built<RouterConfig>| {
        let row = TABLE.iter().find(|row| row.flag == "router-temperature").unwrap();
        (built.config.tuning.router_temperature, built.settings.get(row.field).source.clone())
    };
    let file_source = Source::File("k.toml".into());
    for (args, variables, file, value) in [
        (&args[..], &variables[..], file, (1.0, Source::Flag("router-temperature"))),
        (&[], &variables, file, (2.0, Source::Variable("DYN_ROUTER_TEMPERATURE"))),
        (&[], &[], file, (3.0, file_source)),
        (&[], &[], "router_mode = 'kv'", (0.0, Source::Default)),
    ] {
        assert_eq!(source(&build_with_file::<Frontend>(args, variables, file).unwrap()), value);
    }
}

#[test]
fn where_each_value_came_from_is_told() {
    let file = "router_host_cache_hit_weight = 1";
    let variables = [("DYN_ROUTER_MODE", "kv"), ("DYN_ROUTER_TRACK_OUTPUT_BLOCKS", "ON")];
    let built = build_with_file::<Frontend>(&["--no-assume-kv-reuse"], &variables, file).unwrap();
    let told: Vec<_> = built.changed().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "DYN_ROUTER_MODE=kv",
            "router_host_cache_hit_weight in k.toml (1.0)",
            "DYN_ROUTER_TRACK_OUTPUT_BLOCKS=true",
            "--no-assume-kv-reuse"
        ]
    );
}

#[test]
fn an_empty_variable_is_an_unset_one() {
    for row in &TABLE {
        for variable in row.variables() {
            let built = build::<Frontend>(&[], &[(variable, "")]).unwrap();
            assert_eq!(built.changed().count(), 0, "{variable}");
            assert!(worker(&[], &[(variable, "")]).unwrap().warnings.is_empty(), "{variable}");
        }
    }
    // The second variable is read where the first is empty.
    let variables = [
        ("DYN_ROUTER_MODE", "kv"),
        ("DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", ""),
        ("DYN_OVERLAP_SCORE_WEIGHT", "4"),
    ];
    assert_eq!(build::<Frontend>(&[], &variables).unwrap().config.tuning.prefill_load_scale, 4.0);
}

#[test]
fn a_variable_that_is_not_text_is_named() {
    let lookup = |name: &str| (name == "DYN_ROUTER_MODE").then(|| OsString::from_vec(vec![0xff]));
    let error = RouterFlags::<Worker>::none().resolve(&Environment::new(&lookup), None).unwrap_err();
    assert_eq!(error.to_string(), "DYN_ROUTER_MODE is not UTF-8 text");
}

#[test]
fn none_is_unset_where_unset_has_a_meaning() {
    for row in ["queue-threshold", "active-decode-blocks-threshold", "active-prefill-tokens-threshold-frac"] {
        let row = TABLE.iter().find(|candidate| candidate.flag.ends_with(row)).unwrap();
        assert!(build::<Frontend>(&[], &[(row.variable.unwrap(), "None")]).is_ok(), "{}", row.flag);
    }
    assert!(build::<Frontend>(&[], &[("DYN_ROUTER_TEMPERATURE", "None")]).is_err());
}

#[test]
fn a_variable_without_a_flag_is_not_ignored() {
    let variable = ("DYN_ROUTER_WORKER_SELECTION_POLICY", "mine");
    let error = build::<Frontend>(&[], &[variable]).unwrap_err();
    assert!(error.starts_with("DYN_ROUTER_WORKER_SELECTION_POLICY=mine: not in this version"), "{error}");
    assert!(worker(&[], &[variable]).is_ok(), "it speaks to frontends");
}

#[test]
fn the_section_of_a_file_is_checked_like_the_flags() {
    for (file, needle) in [
        ("router_mod = 'kv'", "unknown key `router_mod` in [router]"),
        ("kv_events = true", "unknown key `kv_events`"),
        ("router_mode = 'bogus'", "router_mode: unknown router mode 'bogus'"),
        ("router_mode = 1", "router_mode: a string is needed, not integer 1"),
        ("router_temperature = '1'", "router_temperature: a number is needed, not string"),
        ("router_temperature = -1", "router_temperature must be finite and non-negative"),
        ("load_aware = 1", "load_aware: true or false is needed"),
        ("router_event_threads = 1.5", "router_event_threads: '1.5' is not a whole number"),
        ("use_remote_indexer = true", "use_remote_indexer in k.toml (true): not in this version"),
    ] {
        let error = build_with_file::<Frontend>(&[], &[], file).unwrap_err();
        assert!(error.contains(needle), "{file}: {error}");
    }
}

/// A worker's file has the same section, and what holds for its flags holds there.
#[test]
fn a_worker_s_file_advertises_only_with_a_mode() {
    let file = "router_mode = 'kv'\nrouter_temperature = 3";
    let variables = [("DYN_ROUTER_TEMPERATURE", "2")];
    let temperature = |args: &[&str], variables: &[(&str, &str)], file: &str| {
        let built = build_with_file::<Worker>(args, variables, file).unwrap();
        let row = TABLE.iter().find(|row| row.flag == "router-temperature").unwrap();
        let source = built.settings.get(row.field).source.clone();
        (built.config.map(|config| config.tuning.router_temperature), source)
    };
    let flag = ["--router-temperature", "1"];
    assert_eq!(temperature(&flag, &variables, file), (Some(1.0), Source::Flag("router-temperature")));
    assert_eq!(temperature(&[], &variables, file), (Some(2.0), Source::Variable("DYN_ROUTER_TEMPERATURE")));
    assert_eq!(temperature(&[], &[], file), (Some(3.0), Source::File("k.toml".into())));
    assert_eq!(temperature(&[], &[], "router_mode = 'kv'"), (Some(0.0), Source::Default));
    assert_eq!(temperature(&[], &[], ""), (None, Source::Default));
    // The mode may come from elsewhere.
    let weight = "router_temperature = 3";
    let filed = (Some(3.0), Source::File("k.toml".into()));
    assert_eq!(temperature(&["--router-mode", "kv"], &[], weight), filed);
    assert_eq!(temperature(&[], &[("DYN_ROUTER_MODE", "kv")], weight), filed);
    // Nobody shares a file by accident, so without a mode it is an error that names both.
    let error = build_with_file::<Worker>(&[], &[], weight).unwrap_err();
    let begins = "router_temperature in k.toml (3.0) needs --router-mode on a worker (router_mode in a file)";
    assert!(error.starts_with(begins), "{error}");
}

#[test]
fn a_worker_s_file_has_no_say_in_what_is_the_frontend_s() {
    for row in TABLE.iter().filter(|row| row.frontend_only()) {
        let value = match row.kind {
            Kind::Switch { .. } => "false",
            Kind::Whole { .. } => "1",
            Kind::Choice { .. } => "'none'",
            _ => "'x'",
        };
        for mode in ["", "router_mode = 'kv'\n"] {
            let file = format!("{mode}{} = {value}", row.file_key());
            let error = build_with_file::<Worker>(&[], &[], &file).unwrap_err();
            assert!(
                error.starts_with(&row.file_key()) && error.contains("belongs to the frontend"),
                "{error}"
            );
        }
    }
}
