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
    let hit_rate = |row: usize| number(&rows[row][9]);
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
    assert_eq!((&rows[0][1][..], &rows[0][9]), ("2", &expected), "{text}");
    assert!(text.contains("1 requests were not served"), "{text}");
}

#[test]
fn a_sweep_over_rates_is_written_as_json_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, svg) = (file("figures.json"), file("figures.svg"));
    let args =
        "--workload groups --seconds 10 --engines 2 --seeds 2 --first-seed 7 --rate 1,2 --policy time,smg";
    let args: Vec<_> = args.split(' ').chain(["--json", &json, "--svg", &svg]).collect();
    let (text, rows) = simulate(&args);
    let names: Vec<_> = rows.iter().map(|row| (row[0].as_str(), row[1].as_str())).collect();
    assert_eq!(names, [("1", "time"), ("1", "smg"), ("2", "time"), ("2", "smg")], "{text}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(report["seeds"], serde_json::json!([7, 8]));
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    for (result, row) in results.iter().zip(&rows) {
        let runs = result["runs"].as_array().unwrap().iter().map(|run| run["ttft"]["mean"].as_f64().unwrap());
        let (mean, apart) = (number(&row[3]), number(&row[4]));
        assert!((runs.clone().sum::<f64>() / 2.0 - mean).abs() < 1e-3, "{result}");
        assert!(runs.map(|run| (run - mean).abs()).all(|off| (off - apart).abs() < 2e-3), "{result}");
    }
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains(">smg</text>"));
}

#[test]
fn engines_slow_down_die_and_come() {
    let usual = "--workload agents --rate 4 --seconds 60 --engines 3 --seeds 1 --policy time";
    let with = |more: &str| {
        let args = format!("{usual} {more}");
        simulate(&args.split(' ').collect::<Vec<_>>())
    };
    let (_, rows) = with("--jobs 1");
    let slower = with("--throttle 1:0.2@0,2:0.5@10-50").1;
    assert!(number(&slower[0][7]) > number(&rows[0][7]), "answers take longer");
    // Blocks know no speed, and weigh what telemetry tells.
    let [blind, told] = ["", " --telemetry"].map(|more| {
        let args = format!("{usual} --throttle 1:0.2@0{more}").replace("--policy time", "--policy blocks");
        simulate(&args.split(' ').collect::<Vec<_>>()).1
    });
    assert!(number(&told[0][6]) < number(&blind[0][6]), "{told:?} {blind:?}");
    let (text, failed) = with("--fail 2@30-40 --join 3@5");
    assert!(text.contains("answers broke off"), "{text}");
    assert!(number(&failed[0][1]) > 0.0);
}

#[test]
fn what_cannot_be_simulated_is_refused_with_what_can() {
    for (args, needle) in [
        (&["--engines", "4"][..], "--trace"),
        (&["--workload", "agents", "--policy", "fastest"], "round-robin"),
        (&["--workload", "agents", "--policy", "blocks:20"], "blocks:20:2"),
        (&["--workload", "agents", "--speeds", "1,0"], "above 0"),
        (&["--workload", "agents", "--warm-up", "1"], "0 to 0.9"),
        (&["--workload", "agents", "--engines", "2", "--fail", "3@5"], "there is no engine 3"),
        (&["--workload", "agents", "--throttle", "1@5"], "1:0.3@300-600"),
        (
            &["--workload", "agents", "--seconds", "1", "--json", "/nowhere/figures.json"],
            "/nowhere/figures.json",
        ),
        (&["--trace", "/nowhere/trace.jsonl"], "/nowhere/trace.jsonl"),
    ] {
        let ended = Process::run(&[&["simulate"], args].concat());
        assert_ne!(ended.code, Some(0), "{args:?}");
        assert!(ended.stderr.contains(needle), "{args:?}: {}", ended.stderr);
    }
}
