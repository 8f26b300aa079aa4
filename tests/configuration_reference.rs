//! `docs/configuration.md`, `--help` and the keys of a file say the same.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::{collections::BTreeSet, fmt::Debug, process::Command};

use kvroute::config::{
    ConfigFile, WorkerFile,
    flags::{Field, TABLE, Value},
};

use serde::de::DeserializeOwned;

const REFERENCE: &str = include_str!("../docs/configuration.md");

/// A flag, its variable and its default; the latter two may be empty.
type Flag = (String, String, String);

fn help(command: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_kvroute"))
        .args(command.split(' '))
        .arg("--help")
        .env_clear()
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// What `[name: ...]` in a flag's help holds.
fn bracketed<'a>(help: &'a str, name: &str) -> &'a str {
    help.split_once(&format!("[{name}: "))
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("", |(value, _)| value)
}

/// The flags that a command's help lists. Descriptions are indented deeper than the flags.
fn shown(command: &str) -> BTreeSet<Flag> {
    let mut entries: Vec<String> = Vec::new();
    for line in help(command).lines() {
        match line.strip_prefix("      --") {
            Some(flag) => entries.push(flag.to_owned()),
            None if line.starts_with("       ") => {
                // The one of -h comes before all flags.
                let Some(entry) = entries.last_mut() else { continue };
                entry.push(' ');
                entry.push_str(line.trim());
            }
            None => {}
        }
    }
    let flag = |entry: &String| {
        let name = entry.split_whitespace().next().unwrap();
        let variable = bracketed(entry, "env").trim_end_matches('=');
        (format!("--{name}"), variable.to_owned(), bracketed(entry, "default").to_owned())
    };
    entries.iter().map(flag).collect()
}

/// The section under a heading, to the next one of the same depth or above.
fn section(heading: &str) -> &'static str {
    let depth = heading.split_once(' ').unwrap().0.len();
    let (_, rest) = REFERENCE.split_once(&format!("\n{heading}\n")).expect(heading);
    let ends = (2..=depth).filter_map(|depth| rest.find(&format!("\n{} ", "#".repeat(depth))));
    &rest[..ends.min().unwrap_or(rest.len())]
}

fn rows(section: &str) -> impl Iterator<Item = Vec<&str>> {
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
}

fn described(heading: &str) -> BTreeSet<Flag> {
    let flag = |cells: Vec<&str>| {
        let name = cells[0].trim_matches('`').split(' ').next().unwrap();
        (name.to_owned(), cells[1].trim_matches('`').to_owned(), cells[2].to_owned())
    };
    rows(section(heading)).map(flag).collect()
}

#[test]
fn flags_variables_and_defaults_are_those_of_help() {
    let everywhere = "## Every command";
    let engine = "## Mock engine flags";
    let (worker, attached) = ("### Of every worker", "### Beside a running engine");
    for (command, headings) in [
        ("worker vllm", &[worker, attached][..]),
        ("worker sglang", &[worker, attached]),
        ("worker trtllm", &[worker, attached]),
        ("worker mock", &[worker]),
        ("frontend", &["## `kvroute frontend`"][..]),
        ("config show", &["## `kvroute config`", "## `kvroute frontend`"]),
        ("up", &["## `kvroute up`", engine]),
        ("drive", &["## `kvroute drive`", engine]),
        ("mock", &["## `kvroute mock`", engine]),
        ("gpus", &["## `kvroute gpus`"]),
        ("doctor", &["## `kvroute doctor`"]),
        ("simulate", &["## `kvroute simulate`"]),
    ] {
        let described: BTreeSet<_> =
            headings.iter().chain([&everywhere]).flat_map(|heading| described(heading)).collect();
        let mut shown = shown(command);
        let all = shown.len();
        // They have a page of their own, made from their table.
        let router: Vec<_> = match command.split(' ').next() {
            Some("mock" | "gpus" | "doctor") => Vec::new(),
            Some("worker") => TABLE.iter().filter(|row| !row.frontend_only()).collect(),
            _ => TABLE.iter().collect(),
        };
        shown.retain(|(flag, ..)| router.iter().all(|row| row.flag != &flag[2..]));
        assert_eq!(all - shown.len(), router.len(), "{command}");
        assert!(shown.len() > 2, "{command}: {shown:?}");
        let missing: Vec<_> = shown.difference(&described).collect();
        let foreign: Vec<_> = described.difference(&shown).collect();
        assert!(
            missing.is_empty() && foreign.is_empty(),
            "{command} --help has {missing:?}, docs/configuration.md has {foreign:?}"
        );
    }
}

/// The keys that a table of a file takes, as its error for an unknown one lists them.
fn accepted<File: DeserializeOwned + Debug>(table: &str) -> BTreeSet<String> {
    let error = toml::from_str::<File>(&format!("{table}\nno-such-key = 1")).unwrap_err();
    let (_, list) = error.message().split_once("expected one of ").unwrap_or_else(|| panic!("{error}"));
    list.split(", ").map(|key| key.trim_matches('`').to_owned()).collect()
}

fn keys_of(flags: BTreeSet<Flag>) -> BTreeSet<String> {
    flags.into_iter().map(|(flag, _, _)| flag.trim_start_matches("--").replace('-', "_")).collect()
}

#[test]
fn keys_of_the_file_are_those_described() {
    let mut frontend = keys_of(described("## `kvroute frontend`"));
    assert!(frontend.remove("config") && frontend.remove("worker"));
    assert_eq!(accepted::<ConfigFile>("[frontend]"), frontend);
    let mut worker = keys_of(described("### Of every worker"));
    assert!(worker.remove("worker_config") && worker.remove("no_publish_kv_events"));
    assert_eq!(accepted::<WorkerFile>("[worker]"), worker);
    assert_eq!(accepted::<WorkerFile>("[engine]"), keys_of(described("### Beside a running engine")));
    for table in ["[[model]]", "[[worker]]"] {
        let described: BTreeSet<_> = rows(section(&format!("### `{table}`")))
            .map(|cells| cells[0].trim_matches('`').to_owned())
            .collect();
        assert_eq!(accepted::<ConfigFile>(table), described, "{table}");
    }
}

#[test]
fn the_sample_files_read() {
    let samples = REFERENCE.split("```toml\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    let [frontend, worker] = samples.collect::<Vec<_>>()[..] else { panic!("not two samples") };
    let file: WorkerFile = toml::from_str(worker).unwrap();
    assert_eq!(file.router.get(Field::RouterMode), Some(&Value::Text("kv".to_owned())));
    let file: ConfigFile = toml::from_str(frontend).unwrap();
    assert_eq!((file.model.len(), file.worker.len()), (1, 1));
    assert_eq!(file.router.get(Field::RouterMode), Some(&Value::Text("kv".to_owned())));
}
