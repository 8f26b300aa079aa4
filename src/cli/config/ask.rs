//! What a running frontend says of its worker sets.

use std::{fmt::Write as _, path::Path, time::Duration};

use http::{Method, StatusCode, Uri};
use serde::Deserialize as _;
use serde_json::Value;

use crate::{
    cli::{Outcome, print},
    config::read_token,
    fleet::RouterConfig,
    frontend::AdminToken,
    proxy::Caller,
};

const PATIENCE: Duration = Duration::from_secs(10);

/// Prints the worker sets of the frontend at `url`, or the one that `name` stands for.
pub(super) async fn show(url: &Uri, token: Option<&Path>, name: Option<&str>, json: bool) -> Outcome {
    let token = token.map(|path| {
        read_token(path).map_err(|problem| format!("--admin-token-file {}: {problem}", path.display()))
    });
    let token = token.transpose()?;
    let answer = get(url, token.as_ref()).await;
    let mut answer = answer.map_err(|problem| format!("--admin {url}: {problem}"))?;
    let Some(Value::Array(sets)) = answer.get_mut("worker_sets") else {
        return Err(format!("--admin {url}: the answer has no worker_sets; is it an admin listener?").into());
    };
    if let Some(name) = name {
        let known: Vec<_> = sets.iter().filter_map(|set| set["worker_set"].as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        sets.retain(|set| set["worker_set"] == name || set["model"] == name);
        if sets.is_empty() {
            return Err(
                format!("--set {name}: there is no such worker set at {url}; there are {known}").into()
            );
        }
    }
    if json {
        print(&format!("{answer:#}\n"))?;
    } else if let Some(Value::Array(sets)) = answer.get("worker_sets") {
        let texts: Vec<_> = sets.iter().map(set_text).collect();
        print(&if texts.is_empty() { "no worker sets\n".to_owned() } else { texts.join("\n") })?;
    }
    Ok(())
}

async fn get(url: &Uri, token: Option<&AdminToken>) -> Result<Value, String> {
    let authorization = token.map(AdminToken::authorization);
    let reply = Caller::new(PATIENCE).call(url, Method::GET, "/v1/worker-sets", authorization, None).await;
    let reply = reply
        .map_err(|problem| format!("is a frontend running, with its admin listener there? {problem}"))?;
    match reply.status {
        StatusCode::OK => Ok(reply.json()),
        StatusCode::UNAUTHORIZED => {
            Err("it asks for a token: give --admin-token-file FILE with the frontend's".to_owned())
        }
        status => Err(format!("it answers {status}")),
    }
}

/// A set as people read it.
fn set_text(set: &Value) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(text, "worker set {}", plain(&set["worker_set"]));
    for (name, key) in [
        ("state", "state"),
        ("model type", "model_type"),
        ("workers", "workers"),
        ("ranks", "ranks"),
        ("block size", "block_size"),
        ("tokens from", "tokens_from"),
    ] {
        let _ = writeln!(text, "  {name:<14} {}", plain(&set[key]));
    }
    if let Some(state) = set["prefill"]["state"].as_str() {
        let whose = ["worker_set", "problem"].map(|key| &set["prefill"][key]);
        let whose = whose.into_iter().find_map(Value::as_str).unwrap_or_default();
        let _ = writeln!(text, "  {:<14} {state} {whose}", "prefill");
    }
    if set["router_config"].is_null() {
        let _ = writeln!(text, "  router configuration: none, because the workers' cards differ");
    } else {
        let _ = writeln!(text, "  router configuration, from {}", plain(&set["router_config_from"]));
        write_fields(&mut text, "", &as_spelled(&set["router_config"]));
        let _ = writeln!(text, "  cost model, from {}", plain(&set["router_cost_model_from"]));
        let _ = writeln!(text, "    {:<46} {}", "router_cost_model", plain(&set["router_cost_model"]));
        let _ = writeln!(text, "  hold, from {}", plain(&set["router_hold_from"]));
        let _ = writeln!(text, "    {:<46} {}", "router_hold", plain(&set["router_hold"]));
        let _ = writeln!(text, "  device weights, from {}", plain(&set["device_weights_from"]));
        write_fields(&mut text, "device_weights.", &set["device_weights"]);
    }
    let differing: Vec<_> = items(&set["differing_fields"]).iter().map(plain).collect();
    if !differing.is_empty() {
        let _ = writeln!(text, "  cohorts, which differ in {}", differing.join(", "));
        for cohort in items(&set["cohorts"]) {
            write_cohort(&mut text, cohort, &differing);
        }
    }
    text
}

/// The members that agree, with what they say of the fields in which others differ.
fn write_cohort(text: &mut String, cohort: &Value, differing: &[String]) {
    let workers: Vec<_> = items(&cohort["workers"]).iter().map(plain).collect();
    let admitted = if cohort["admitted"] == true { "serves" } else { "waits" };
    let fingerprint = plain(&cohort["fingerprint"]);
    let _ = writeln!(text, "    {fingerprint} {admitted}: workers {}", workers.join(", "));
    for path in differing {
        let value = cohort.pointer(&format!("/{}", path.replace('.', "/"))).unwrap_or(&Value::Null);
        let _ = writeln!(text, "      {path:<44} {}", plain(value));
    }
}

/// A configuration with its mode as flags spell it: a card's `k_v` is `kv` there.
fn as_spelled(config: &Value) -> Value {
    let mut spelled = config.clone();
    if let Ok(read) = RouterConfig::deserialize(config) {
        spelled["router_mode"] = read.mode.name().into();
    }
    spelled
}

/// The innermost fields of an object, by their paths.
fn write_fields(text: &mut String, above: &str, value: &Value) {
    let Value::Object(fields) = value else { return };
    for (key, value) in fields {
        let path = format!("{above}{key}");
        if value.is_object() {
            write_fields(text, &format!("{path}."), value);
        } else {
            let _ = writeln!(text, "    {path:<46} {}", plain(value));
        }
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A text without its quotes, anything else as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
