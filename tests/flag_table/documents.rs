//! The help, the reference page and the sample file.

use std::{fs, path::Path};

use kvroute::config::flags::{
    Frontend, MockFleet, Status, TABLE, Value, Worker, reference_page, sample_section,
};

use crate::{
    build_with_file,
    expected::{OLD_NAMES, expected},
    frontend, help, help_of,
};

#[test]
fn the_help_of_every_flag_has_variable_and_default() {
    let (frontend, fleet, worker) = (help::<Frontend>(), help::<MockFleet>(), help::<Worker>());
    for expected in expected() {
        let text =
            help_of(&frontend, expected.flag).unwrap_or_else(|| panic!("no help for {}", expected.flag));
        let default = if expected.default == "_" { "unset" } else { expected.default };
        assert!(text.contains(&format!("[default: {default}]")), "{text}");
        let variables = format!("[env: {}]", expected.variables.join(", "));
        assert_eq!(text.contains(&variables), !expected.variables.is_empty(), "{text}");
        assert_eq!(help_of(&worker, expected.flag).is_some(), expected.worker, "{}", expected.flag);
    }
    assert!(help_of(&worker, "--router-mode").unwrap().contains("[default: unset]"));
    assert!(help_of(&fleet, "--router-mode").unwrap().contains("[default: kv]"));
    for (old, _) in OLD_NAMES {
        assert_eq!(help_of(&frontend, old), None);
    }
}

#[test]
fn the_page_and_the_sample_are_those_of_the_table() {
    #[expect(clippy::disallowed_methods, reason = "asks the person who runs the test, not the program")]
    let bless = std::env::var_os("KVROUTE_BLESS").is_some();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    for (file, text) in [("router-flags.md", reference_page()), ("router.toml", sample_section())] {
        let path = docs.join(file);
        if bless {
            fs::create_dir_all(&docs).unwrap();
            fs::write(&path, &text).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == text,
            "{} is not what the table says; KVROUTE_BLESS=1 cargo test --test flag_table writes it",
            path.display()
        );
    }
}

/// What a person reads with `--help` and on the page is the same, flag by flag.
#[test]
fn the_page_says_what_the_help_says() {
    let help = help::<Frontend>();
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/router-flags.md")).unwrap();
    let rows: Vec<Vec<_>> = page
        .lines()
        .filter(|line| line.starts_with("| `--"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), TABLE.len());
    for cells in rows {
        // Flag, variable, accepted, default, key, taken by, purpose; of a refused flag also the reason.
        let flag = cells[0].trim_start_matches('`').split(['`', ' ']).next().unwrap();
        let text = help_of(&help, flag).unwrap_or_else(|| panic!("no help for {flag}"));
        let default = cells[3].split(['`', ';', ',']).find(|word| !word.is_empty()).unwrap();
        let variables = cells[1].split('`').filter(|word| word.contains('_'));
        let parts = [cells[6].to_owned(), format!("[default: {default}]")];
        let reason = cells.get(7).map(|reason| format!("Refused: {reason}"));
        for part in parts.into_iter().chain(reason).chain(variables.map(str::to_owned)) {
            assert!(text.contains(&part), "the help of {flag} does not say '{part}': {text}");
        }
    }
}

#[test]
fn the_sample_with_every_line_in_force_says_the_defaults() {
    let sample = sample_section();
    let lines = sample.lines().filter_map(|line| line.strip_prefix("# ")).filter(|line| line.contains(" = "));
    let section = lines.collect::<Vec<_>>().join("\n");
    let built = build_with_file::<Frontend>(&[], &[], &section).unwrap();
    assert_eq!(built.config, frontend(&[]).unwrap().config);
    let defaults = frontend(&[]).unwrap().settings;
    let working = TABLE.iter().filter(|row| row.status == Status::Works && row.deprecated.is_none());
    let set = working.filter(|row| defaults.get(row.field).value != Value::Unset);
    assert_eq!(built.changed().count(), set.count());
}
