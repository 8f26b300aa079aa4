//! What engines call their blocks.

use kvroute::{
    doctor::{
        Admission::{self, Admit, LoadOnly},
        Check, Evidence, Served,
        Verdict::{self, Differs, Unknown},
    },
    fleet::WorkerSpec,
    proxy::Usage,
};

use crate::evidence::{
    AS_ANNOUNCED, Stored, canary, evidence, expect, heard, judged, run, served, spec, usage,
};

#[test]
fn the_engine_s_own_names() {
    fn named(evidence: &mut Evidence, names: &'static str, whole: bool) {
        canary(evidence).heard = heard(vec![Stored { names, whole, ..AS_ANNOUNCED }.payload()]);
    }
    let own = "3 of 3 follow from sha256 and vLLM's own seed, the salt in the first";
    expect(&[
        (|_, _| {}, Check::EngineHash, Verdict::Ok, Admit, own),
        (
            |_, e| named(e, "judged canary, given seed", false),
            Check::EngineHash,
            Verdict::Ok,
            Admit,
            "sha256_cbor and PYTHONHASHSEED=7",
        ),
        (
            |_, e| named(e, "judged canary, secret", true),
            Check::EngineHash,
            Verdict::Ok,
            Admit,
            "3 of 3 follow from xxhash_cbor and the first of them",
        ),
        (
            |_, e| named(e, "judged canary, secret", false),
            Check::EngineHash,
            Unknown,
            Admit,
            "GET /metrics says sha256",
        ),
        (
            // The router's hash rule holds, whatever the engine's is.
            |_, e| named(e, "judged canary, secret", false),
            Check::HashRule,
            Verdict::Ok,
            Admit,
            "3 of the canary's 3",
        ),
        (
            |_, e| canary(e).heard = heard(vec![Stored { parted: true, ..AS_ANNOUNCED }.payload()]),
            Check::EngineHash,
            Differs,
            LoadOnly,
            "block 2 is reported after another block than the one before",
        ),
    ]);
}

/// What is found of the engine's names if it reports the adapter's blocks so; the adapter's weights are at `root`.
fn adapter_names(names: &'static str, root: Option<&str>) -> (Verdict, Admission, String) {
    let spec = WorkerSpec { lora_adapters: vec!["ad".to_owned()], ..spec() };
    let mut evidence = evidence();
    evidence.told.models.push(Served { root: root.map(str::to_owned), ..served("ad", true) });
    let payload = Stored { lora: Some(("ad", true)), names, ..AS_ANNOUNCED }.payload();
    evidence.adapter_canary = Some(run(Some("ad"), heard(vec![payload])));
    judged(&spec, &evidence, Check::EngineHash)
}

#[test]
fn the_engine_s_own_names_under_an_adapter() {
    let (verdict, admission, text) = adapter_names("judged canary, adapter", Some("/models/ad"));
    assert_eq!((verdict, admission), (Verdict::Ok, Admit), "{text}");
    assert!(text.contains("under 'ad' 3 of 3 follow") && text.contains("the adapter in each"), "{text}");
    let (verdict, admission, text) = adapter_names("judged canary, adapter", None);
    assert_eq!((verdict, admission), (Unknown, Admit), "where its weights are is part of the name: {text}");
    let (verdict, admission, text) = adapter_names("judged canary, shared adapter", Some("/models/ad"));
    assert_eq!((verdict, admission), (Differs, LoadOnly), "{text}");
    assert!(text.contains("under 'ad'") && text.contains("without the adapter"), "{text}");
}

/// What is found of the names in a batch that vLLM 0.32.0 sent, and what its prompt was salted with.
fn recorded_names(about: &str) -> (Verdict, Admission, String) {
    let frames = include_str!("../fixtures/kv_event_frames.jsonl").lines().skip(1);
    let mut frames = frames.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let frame = frames.find(|frame| frame["from"].as_str().unwrap().ends_with(about)).unwrap();
    let mut stored = frame["events"].as_array().unwrap().iter().map(|event| &event["stored"]);
    let stored = stored.find(|stored| stored.is_object()).unwrap();
    let mut evidence = evidence();
    let run = canary(&mut evidence);
    run.tokens = stored["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
    run.salt = stored["salt"].as_str().unwrap_or("none").to_owned();
    run.first = Ok(Usage { prompt_tokens: run.tokens.len() as u64, ..usage(Some(0)) });
    run.heard = heard(vec![hex::decode(frame["payload"].as_str().unwrap()).unwrap()]);
    judged(&WorkerSpec { block_size: 32, ..spec() }, &evidence, Check::EngineHash)
}

#[test]
fn names_that_vllm_sent_are_recomputed() {
    let (verdict, _, text) = recorded_names("a cold prompt with cache_salt s1");
    assert_eq!(verdict, Verdict::Ok, "{text}");
    assert!(
        text.starts_with("6 of 6 follow from sha256 and vLLM's own seed, the salt in the first"),
        "{text}"
    );
    // Prompts without a salt, held against one that has some.
    for (about, algorithm) in [("CPU: a cold prompt", "sha256 and"), ("32-byte hashes", "sha256_cbor and")] {
        let (verdict, admission, text) = recorded_names(about);
        assert_eq!((verdict, admission), (Differs, LoadOnly), "{text}");
        assert!(text.contains(algorithm) && text.contains("without the salt"), "{text}");
    }
    let (verdict, _, text) = recorded_names("two data-parallel ranks, rank 1");
    assert!(verdict == Differs && text.contains("2 of 2 follow from sha256"), "{text}");
}
