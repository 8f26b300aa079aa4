//! OpenAI's own Python client is served as by OpenAI. It runs where Python has the `openai` package;
//! `KVROUTE_PYTHON` names the interpreter.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a failed expectation is how a test reports, and the interpreter is the developer's to choose"
)]

mod rig;

use std::{
    io::{self, Write as _},
    process::Command,
};

use kvroute::select::Mode;

use crate::rig::{MODEL, Rig};

const CHECKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/openai_stream.py");

/// The interpreter, or why there is none.
fn python() -> Result<String, String> {
    let named = std::env::var("KVROUTE_PYTHON").ok().filter(|name| !name.is_empty());
    let python = named.clone().unwrap_or_else(|| "python3".to_owned());
    let found = Command::new(&python).args(["-c", "import openai"]).output();
    let problem = match found {
        Ok(output) if output.status.success() => return Ok(python),
        Ok(_) => format!("{python} has no openai package (pip install openai)"),
        Err(error) => format!("{python}: {error}"),
    };
    // Whoever names an interpreter wants the checks to run.
    assert!(named.is_none(), "KVROUTE_PYTHON: {problem}");
    Err(problem)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_package_is_served_as_by_openai() {
    let python = match python() {
        Ok(python) => python,
        Err(problem) => {
            // Past the test's captured output, so that a run shows what it left out.
            let _ = writeln!(io::stderr(), "skipped: {problem}; KVROUTE_PYTHON names another interpreter");
            return;
        }
    };
    let rig = Rig::start(Mode::Kv, 2).await;
    let url = format!("{}/v1", rig.public());
    let checks = move || Command::new(python).args([CHECKS, &url, MODEL]).output().unwrap();
    let output = tokio::task::spawn_blocking(checks).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    rig.wait_for_idle().await;
}
