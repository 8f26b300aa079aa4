//! What engines are told of a prompt that passes from one to another, and what they say: `kv_transfer_params`, in the
//! fields of vLLM's `NixlConnector`; or where they meet: `bootstrap_host`, `bootstrap_port` and `bootstrap_room`, in the
//! fields of SGLang.
//!
//! The bodies are the client's own, with single fields replaced: what the router does not know reaches both engines as
//! it came.

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::{bootstrap::Meeting, error::ApiError, openai::Fields};
use crate::fleet::WorkerType;

/// Which of a client's fields must not reach a worker of this type, split or not. A decode worker would by these fetch blocks from where
/// the client says, another client's perhaps, or keep its own until somebody comes for them and answer where that is. Workers that
/// serve prompts whole get them like any other field that the router does not know.
pub(super) fn not_for(worker: WorkerType, fields: &Fields<'_>) -> impl Iterator<Item = &'static str> {
    let between_engines = MEETING.into_iter().chain(["kv_transfer_params"]);
    between_engines.filter(move |name| worker == WorkerType::Decode && fields.raw(name).is_some())
}

/// Refuses several prompts at once: their blocks would come back as one answer's, and be taken for another prompt's.
pub(super) fn one_prompt(body: &[u8]) -> Result<(), ApiError> {
    let fields = Fields::parse(body)?;
    let Some(prompt) = fields.raw("prompt") else { return Ok(()) };
    let list = prompt.strip_prefix('[').map(str::trim_start);
    let of_prompts = list.is_some_and(|list| list.starts_with(['"', '[']));
    if of_prompts && fields.get::<Vec<IgnoredAny>>("prompt")?.is_some_and(|prompts| prompts.len() > 1) {
        return Err(ApiError::bad_field(
            "prompt",
            "several prompts in one request are not served by separate prefill and decode workers; send one request for \
             each",
        ));
    }
    Ok(())
}

/// Whether one answer is wanted; the prefill hop makes no more.
pub(super) fn one_answer(body: &[u8]) -> bool {
    let fields = Fields::parse(body).ok();
    fields.is_some_and(|fields| {
        ["n", "best_of"].iter().all(|name| matches!(fields.raw(name), None | Some("1")))
    })
}

/// Fields that the prefill hop has its own values of, or must not have.
const PREFILL_DROPS: [&str; 8] = [
    "best_of",
    "kv_transfer_params",
    "max_completion_tokens",
    "max_tokens",
    "min_tokens",
    "n",
    "stream",
    "stream_options",
];

/// The fields that cut a request down to its prompt.
fn only_the_prompt(fields: &Fields<'_>) -> String {
    let mut own = "\"max_tokens\":1,\"stream\":false".to_owned();
    if fields.raw("max_completion_tokens").is_some() {
        own += ",\"max_completion_tokens\":1";
    }
    // A prefill that may not end the output does not: an end would be taken for the whole answer.
    if !matches!(fields.raw("min_tokens"), None | Some("0" | "null")) {
        own += ",\"min_tokens\":1";
    }
    own
}

/// The client's request, cut down to its prompt.
pub(super) fn prefill_body(body: &[u8]) -> Result<Bytes, ApiError> {
    let fields = Fields::parse(body)?;
    let own = only_the_prompt(&fields)
        + ",\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":null,\
            \"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}";
    Ok(fields.replace(&PREFILL_DROPS, Some(&own)))
}

/// The client's request, with where its prompt's blocks are. A client's own `kv_transfer_params` would point the engine
/// to blocks of its choosing.
pub(super) fn decode_body(body: &[u8], params: Option<&str>) -> Result<Bytes, ApiError> {
    let own = params.map(|params| format!("\"kv_transfer_params\":{params}"));
    Ok(Fields::parse(body)?.replace(&["kv_transfer_params"], own.as_deref()))
}

/// Fields by which SGLang's engines meet.
const MEETING: [&str; 3] = ["bootstrap_host", "bootstrap_port", "bootstrap_room"];

fn meeting_fields(meeting: &Meeting) -> String {
    let Meeting { host, port, room } = meeting;
    format!(
        "\"bootstrap_host\":{},\"bootstrap_port\":{port},\"bootstrap_room\":{room}",
        Value::from(host.as_str())
    )
}

/// The client's request, cut down to its prompt, with where its blocks are waited for.
pub(super) fn bootstrap_prefill_body(body: &[u8], meeting: &Meeting) -> Result<Bytes, ApiError> {
    let fields = Fields::parse(body)?;
    let own = meeting_fields(meeting) + "," + &only_the_prompt(&fields);
    Ok(fields.replace(&[&MEETING[..], &PREFILL_DROPS].concat(), Some(&own)))
}

/// The client's request, with where its prompt's blocks come from. A client's own fields would point the engine
/// elsewhere.
pub(super) fn bootstrap_decode_body(body: &[u8], meeting: &Meeting) -> Result<Bytes, ApiError> {
    let drops = [&MEETING[..], &["kv_transfer_params"]].concat();
    Ok(Fields::parse(body)?.replace(&drops, Some(&meeting_fields(meeting))))
}

/// What an engine's answer hands over, and whether the model ended the output itself; `None` if it is no answer.
pub(super) fn handover(answer: &[u8]) -> Option<(Option<String>, bool)> {
    let fields = Fields::parse(answer).ok()?;
    let params = fields.raw("kv_transfer_params").filter(|params| params.starts_with('{'));
    let choices: Vec<Value> = fields.get("choices").ok().flatten().unwrap_or_default();
    let ended = !choices.is_empty() && choices.iter().all(|choice| choice["finish_reason"] == "stop");
    Some((params.map(str::to_owned), ended))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn json(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn the_prefill_hop_asks_for_one_token_and_for_the_blocks() {
        let body =
            br#"{"model":"m","max_tokens":9,"max_completion_tokens":9,"min_tokens":3,"stream":true,"n":2,
            "stream_options":{"include_usage":true},"kv_transfer_params":{"mine":1},"cache_salt":"s"}"#;
        let sent = json(&prefill_body(body).unwrap());
        let params = &sent["kv_transfer_params"];
        assert_eq!(
            (&params["do_remote_decode"], &params["do_remote_prefill"]),
            (&json!(true), &json!(false))
        );
        let mut rest = sent.as_object().unwrap().clone();
        rest.remove("kv_transfer_params");
        let expected = json!({
            "model": "m", "max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1, "stream": false, "cache_salt": "s",
        });
        assert_eq!(Value::Object(rest), expected);
        for unknown in [r#"{"model":"m"}"#, r#"{"model":"m","min_tokens":0}"#] {
            let plain = json(&prefill_body(unknown.as_bytes()).unwrap());
            for field in ["max_completion_tokens", "min_tokens"] {
                assert!(plain.get(field).is_none(), "an engine may not know '{field}'");
            }
        }
    }

    #[test]
    fn the_decode_hop_has_the_engine_s_parameters_and_never_the_client_s() {
        let body = br#"{"model":"m","max_tokens":9,"kv_transfer_params":{"mine":1}}"#;
        let with = json(&decode_body(body, Some(r#"{"remote":2}"#)).unwrap());
        assert_eq!(with, json!({ "model": "m", "max_tokens": 9, "kv_transfer_params": { "remote": 2 } }));
        assert_eq!(json(&decode_body(body, None).unwrap()), json!({ "model": "m", "max_tokens": 9 }));
    }

    #[test]
    fn both_hops_are_told_the_same_meeting_and_never_the_client_s() {
        let meeting = Meeting { host: "h\"1".to_owned(), port: 8998, room: (1 << 63) - 1 };
        let body =
            br#"{"model":"m","max_tokens":9,"stream":true,"bootstrap_room":1,"kv_transfer_params":{}}"#;
        let (room, host) = (9_223_372_036_854_775_807_u64, "h\"1");
        assert_eq!(
            json(&bootstrap_prefill_body(body, &meeting).unwrap()),
            json!({
                "bootstrap_host": host, "bootstrap_port": 8998, "bootstrap_room": room, "max_tokens": 1,
                "stream": false, "model": "m",
            })
        );
        assert_eq!(
            json(&bootstrap_decode_body(body, &meeting).unwrap()),
            json!({
                "bootstrap_host": host, "bootstrap_port": 8998, "bootstrap_room": room, "max_tokens": 9,
                "stream": true, "model": "m",
            })
        );
    }

    #[test]
    fn an_answer_hands_over_or_ends() {
        let read = |text: &str| handover(text.as_bytes());
        let params = Some(r#"{"a":1}"#.to_owned());
        let length = r#"[{"finish_reason":"length"}]"#;
        let stop = r#"[{"finish_reason":"stop"}]"#;
        let with =
            |choices: &str, params: &str| format!(r#"{{"choices":{choices},"kv_transfer_params":{params}}}"#);
        assert_eq!(read(&with(length, r#"{"a":1}"#)), Some((params, false)));
        assert_eq!(read(&with(stop, "null")), Some((None, true)));
        assert_eq!(read(&with(length, "null")), Some((None, false)));
        assert_eq!(read(&with(length, "7")), Some((None, false)));
        assert_eq!(read("{}"), Some((None, false)));
        assert_eq!(read("<html>"), None);
    }

    #[test]
    fn several_prompts_are_refused_and_one_is_not() {
        for one in [r#""a""#, "[1,2]", r#"["a"]"#, "[[1,2]]", "[ [1] ]"] {
            assert!(one_prompt(format!(r#"{{"prompt":{one}}}"#).as_bytes()).is_ok(), "{one}");
        }
        for several in [r#"["a","b"]"#, "[[1],[2]]", r#"[ "a", "b"]"#] {
            let error = one_prompt(format!(r#"{{"prompt":{several}}}"#).as_bytes()).unwrap_err();
            assert_eq!(error.status, 400, "{several}");
        }
        assert!(one_prompt(br#"{"messages":[]}"#).is_ok());
    }
}
