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

mod authority;
mod rig;

use std::{
    fs,
    io::{self, Write as _},
    process::Command,
    sync::Arc,
};

use kvroute::{
    config::FrontendPlan,
    frontend::{ApiKeys, FrontendSettings},
    select::Mode,
};

use crate::{
    authority::Authority,
    rig::{MODEL, Rig, engine_settings, plan, pools::Pools},
};

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

/// Runs the checks with these arguments, where they can be run.
async fn run(rig: &Rig, arguments: Vec<String>) {
    let python = match python() {
        Ok(python) => python,
        Err(problem) => {
            // Past the test's captured output, so that a run shows what it left out.
            let _ = writeln!(io::stderr(), "skipped: {problem}; KVROUTE_PYTHON names another interpreter");
            return;
        }
    };
    let checks = move || Command::new(python).arg(CHECKS).args(arguments).output().unwrap();
    let output = tokio::task::spawn_blocking(checks).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_package_is_served_as_by_openai() {
    let rig = Rig::start(Mode::Kv, 2).await;
    run(&rig, vec![format!("{}/v1", rig.public()), MODEL.to_owned()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_package_is_served_over_tls_with_an_api_key() {
    const KEY: &str = "sk-3f9c2b7a41d84e55";
    let authority = Authority::new();
    let keys = authority.path("keys");
    fs::write(&keys, format!("# clients\n{KEY} python\n")).unwrap();
    let (tls, api_keys) = (authority.identity("front"), ApiKeys::open(&keys).unwrap());
    let guarded = |settings: FrontendSettings| FrontendSettings {
        tls: Some(tls),
        api_keys: Some(Arc::new(api_keys)),
        ..settings
    };
    let pools = Pools::of(vec![engine_settings(); 2]).await;
    let rig = pools.behind_plan(|workers| {
        let plan = plan(Mode::Kv, workers);
        FrontendPlan { settings: guarded(plan.settings), ..plan }
    });
    let rig = rig.await;
    let url = format!("https://localhost:{}/v1", rig.frontend.public_addr().port());
    let ca = authority.ca().display().to_string();
    run(&rig, vec![url, MODEL.to_owned(), KEY.to_owned(), ca]).await;
}
