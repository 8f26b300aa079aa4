//! What the binary makes of flags and variables before it serves anybody.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::process::Command;

/// Runs `kvroute` with nothing but these variables; its exit code and what it says on stderr.
fn kvroute(args: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvroute"));
    let output = command.args(args).env_clear().envs(variables.iter().copied()).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// A frontend that never starts, because it gets to reading its file and there is none.
const NO_FILE: [&str; 3] = ["frontend", "--config", "/no/such/file"];

#[test]
fn an_empty_variable_counts_as_unset() {
    let empty = ["DYN_ROUTER_MODE", "DYN_ROUTER_TEMPERATURE", "KVROUTE_PORT", "KVROUTE_HOST", "KVROUTE_LOG"];
    let variables: Vec<_> = empty.iter().map(|&name| (name, "")).collect();
    let (code, says) = kvroute(&NO_FILE, &variables);
    assert!(code == 1 && says.contains("/no/such/file"), "{code}: {says}");
    let (code, says) = kvroute(&["frontend"], &[("KVROUTE_CONFIG", "/no/such/file")]);
    assert!(code == 1 && says.contains("/no/such/file"), "{code}: {says}");
}

#[test]
fn a_value_that_does_not_read_names_its_flag() {
    let (code, says) = kvroute(&NO_FILE, &[("KVROUTE_PORT", "many")]);
    assert!(code == 2 && says.contains("--port") && says.contains("many"), "{code}: {says}");
    let (code, says) = kvroute(&["frontend"], &[("DYN_ROUTER_MODE", "bogus")]);
    assert!(code == 1 && says.contains("DYN_ROUTER_MODE") && says.contains("'bogus'"), "{code}: {says}");
    let (code, says) = kvroute(&["frontend", "--router-queue-threshold", "2"], &[]);
    assert!(code == 2 && says.contains("--router-queue-threshold"), "{code}: {says}");
}

#[test]
fn a_misspelt_mode_to_compare_is_found_before_anything_runs() {
    let mut trace = tempfile::NamedTempFile::new().unwrap();
    let line = r#"{"timestamp": 0, "input_length": 6, "output_length": 1, "hash_ids": [0]}"#;
    std::io::Write::write_all(&mut trace, line.as_bytes()).unwrap();
    let path = trace.path().to_str().unwrap();
    let (code, says) = kvroute(&["drive", "--trace", path, "--compare", "kv,bogus"], &[]);
    assert!(code == 1 && says.contains("--compare") && says.contains("'bogus'"), "{code}: {says}");
}
