//! `kvroute simulate`: a table of policies, the same each time.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod process;

use std::io::Write as _;

use tempfile::NamedTempFile;

use crate::process::Process;

/// What is printed, with the cells of each row.
fn simulate(args: &[&str]) -> (String, Vec<Vec<String>>) {
    let ended = Process::run(&[&["simulate"], args].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let rows = ended.stdout.lines().skip(2).filter(|line| line.starts_with('|'));
    let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let rows = rows.map(cells).collect();
    (ended.stdout, rows)
}

fn number(cell: &str) -> f64 {
    cell.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn policies_stand_side_by_side_and_a_run_repeats() {
    let args = "--workload agents --seconds 20 --engines 4 --seeds 2 --policy time,blocks:20:2,random";
    let args: Vec<_> = args.split(' ').collect();
    let (text, rows) = simulate(&args);
    let names: Vec<_> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(names, ["time", "blocks:20:2", "random"]);
    let hit_rate = |row: usize| number(&rows[row][7]);
    assert!(hit_rate(0) > hit_rate(2) && hit_rate(1) > hit_rate(2), "{text}");
    assert_eq!(simulate(&args).0, text);
}

#[test]
fn a_trace_is_sent_as_it_was_recorded() {
    let mut file = NamedTempFile::new().unwrap();
    for (time, ids) in [(0, "[1, 2, 3]"), (60_000, "[1, 2, 4]"), (120_000, "[5]")] {
        let input = if ids == "[5]" { 700_000 } else { 1_400 };
        writeln!(
            file,
            r#"{{"timestamp": {time}, "input_length": {input}, "output_length": 5, "hash_ids": {ids}}}"#
        )
        .unwrap();
    }
    let path = file.path().to_str().unwrap();
    let (text, rows) = simulate(&["--trace", path, "--warm-up", "0", "--seeds", "1", "--policy", "time"]);
    // The second finds the first's two full pages of 512 tokens; the third fits no engine.
    let expected = format!("{:.1} %", 100.0 * 1024.0 / 2800.0);
    assert_eq!((&rows[0][1][..], &rows[0][7]), ("2", &expected), "{text}");
    assert!(text.contains("1 requests did not fit"), "{text}");
}

#[test]
fn what_cannot_be_simulated_is_refused_with_what_can() {
    for (args, needle) in [
        (&["--engines", "4"][..], "--trace"),
        (&["--workload", "agents", "--policy", "fastest"], "round-robin"),
        (&["--workload", "agents", "--policy", "blocks:20"], "blocks:20:2"),
        (&["--workload", "agents", "--speeds", "1,0"], "above 0"),
        (&["--workload", "agents", "--warm-up", "1"], "0 to 0.9"),
        (&["--trace", "/nowhere/trace.jsonl"], "/nowhere/trace.jsonl"),
    ] {
        let ended = Process::run(&[&["simulate"], args].concat());
        assert_ne!(ended.code, Some(0), "{args:?}");
        assert!(ended.stderr.contains(needle), "{args:?}: {}", ended.stderr);
    }
}
