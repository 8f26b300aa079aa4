//! The judgement of a parity check, case by case: what was seen, what is found, and what follows. No engine runs.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::ops::Range;

use kvroute::{
    doctor::{
        Admission::{self, Admit, LoadOnly, Refuse},
        CanaryRun, Check, Evidence, Listening, Observation, Report, Sample, Served, Source, Told,
        Verdict::{self, Differs, Unknown},
        judge,
    },
    fleet::{StreamDirection, StreamState, WorkerSpec},
    proxy::Usage,
};
use rmpv::Value;

const SALT: &str = "kvroute-canary-1";

fn spec() -> WorkerSpec {
    WorkerSpec {
        kv_events_endpoint: Some("tcp://*:5557".to_owned()),
        kv_replay_endpoint: Some("tcp://*:5558".to_owned()),
        ..WorkerSpec::new("http://10.0.0.5:8000", "m")
    }
}

fn tokens() -> Vec<u32> {
    (0..56).map(|n| n * 7 % 200 + 32).collect()
}

/// What vLLM calls the blocks of a prompt; tests/fixtures/vllm_block_names.py makes them.
fn vllm_names(about: &str) -> Vec<Vec<u8>> {
    let text = include_str!("fixtures/vllm_block_names.json");
    let fixture: serde_json::Value = serde_json::from_str(text).unwrap();
    let mut cases = fixture["cases"].as_array().unwrap().iter();
    let case = cases.find(|case| case["about"] == about).unwrap();
    let names = case["names"].as_array().unwrap().iter();
    names.map(|name| hex::decode(name.as_str().unwrap()).unwrap()).collect()
}

/// A stored event of an engine: what it says of the prompt's full blocks.
#[derive(Clone, Copy)]
struct Stored {
    block_size: usize,
    salt: bool,
    lora: Option<(&'static str, bool)>,
    rank: u32,
    /// Which of vllm_names; other blocks than those of 16 are called 1, 2, ...
    names: &'static str,
    /// Names are told whole, not their end.
    whole: bool,
    /// The last block is reported by itself, after the first one.
    parted: bool,
}

const AS_ANNOUNCED: Stored = Stored {
    block_size: 16,
    salt: true,
    lora: None,
    rank: 0,
    names: "judged canary",
    whole: false,
    parted: false,
};

impl Stored {
    fn payload(&self) -> Vec<u8> {
        let blocks = tokens().len() / self.block_size;
        let end = |name: Vec<u8>| Value::from(u64::from_be_bytes(*name.last_chunk().unwrap()));
        let told = |name| if self.whole { Value::Binary(name) } else { end(name) };
        let names: Vec<_> = match self.block_size {
            16 => vllm_names(self.names).into_iter().map(told).collect(),
            _ => (1..=blocks as u64).map(Value::from).collect(),
        };
        let keys = |block: usize| {
            let lora = self.lora.filter(|(_, named)| *named).map(|(name, _)| Value::from(name));
            let salt = (self.salt && block == 0).then(|| Value::from(SALT));
            let keys: Vec<_> = lora.into_iter().chain(salt).collect();
            if keys.is_empty() { Value::Nil } else { Value::Array(keys) }
        };
        let name = self.lora.filter(|(_, named)| *named).map_or(Value::Nil, |(name, _)| Value::from(name));
        let event = |range: Range<usize>, parent: Value| {
            let tokens = &tokens()[range.start * self.block_size..range.end * self.block_size];
            Value::Map(vec![
                ("type".into(), "BlockStored".into()),
                ("block_hashes".into(), Value::Array(names[range.clone()].to_vec())),
                ("parent_block_hash".into(), parent),
                ("token_ids".into(), Value::Array(tokens.iter().map(|&id| Value::from(id)).collect())),
                ("block_size".into(), Value::from(self.block_size)),
                ("lora_id".into(), self.lora.map_or(Value::Nil, |_| Value::from(1))),
                ("medium".into(), "GPU".into()),
                ("lora_name".into(), name.clone()),
                ("extra_keys".into(), Value::Array(range.map(keys).collect())),
            ])
        };
        let events = match self.parted {
            false => vec![event(0..blocks, Value::Nil)],
            true => vec![event(0..blocks - 1, Value::Nil), event(blocks - 1..blocks, names[0].clone())],
        };
        let batch = Value::Array(vec![Value::F64(1.0), Value::Array(events), Value::from(self.rank)]);
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &batch).unwrap();
        bytes
    }
}

fn usage(cached_tokens: Option<u64>) -> Usage {
    Usage { prompt_tokens: tokens().len() as u64, completion_tokens: 1, cached_tokens }
}

fn heard(payloads: Vec<Vec<u8>>) -> Observation {
    let yes = Listening::Yes;
    Observation::Heard { payloads, state: StreamState::Live, listening: yes.clone(), replay: yes }
}

fn run(lora: Option<&str>, heard: Observation) -> CanaryRun {
    CanaryRun {
        tokens: tokens(),
        salt: SALT.to_owned(),
        lora: lora.map(str::to_owned),
        first: Ok(usage(Some(0))),
        repeat: Ok(usage(Some(48))),
        heard,
    }
}

fn served(id: &str, is_adapter: bool) -> Served {
    Served { id: id.to_owned(), is_adapter, root: Some(format!("/models/{id}")) }
}

/// An engine that is in order.
fn evidence() -> Evidence {
    let sample = |tokens: &[u32]| Sample { ours: Some(Ok(tokens.to_vec())), theirs: Ok(tokens.to_vec()) };
    let source =
        Source { rank: 0, endpoint: "tcp://*:5557".to_owned(), replay: Some("tcp://*:5558".to_owned()) };
    Evidence {
        told: Told {
            version: Some("0.32.0".to_owned()),
            models: vec![served("m", false)],
            max_model_len: Some(2048),
            sources: Some(vec![source]),
            block_size: Some(16),
            hash_algorithm: Some("sha256".to_owned()),
            engines: Some(1),
        },
        text: sample(&[1, 2, 3]),
        chat: sample(&[4, 5]),
        tools: sample(&[4, 5, 6]),
        canary: Some(run(None, heard(vec![AS_ANNOUNCED.payload()]))),
        adapter_canary: None,
    }
}

/// What the judgement of one check is, in a word, and what follows from all of them.
fn judged(spec: &WorkerSpec, evidence: &Evidence, check: Check) -> (Verdict, Admission, String) {
    let report: Report = judge(spec, evidence);
    let mut findings = report.findings.iter().filter(|finding| finding.check == check);
    let found = findings.next().unwrap_or_else(|| panic!("no {check:?}: {report:?}"));
    assert!(findings.next().is_none(), "{check:?} twice: {report:?}");
    let text = format!("{} {}", found.found, found.change.as_deref().unwrap_or_default());
    (found.verdict, report.admission(), text)
}

/// One case: what is changed of an engine in order, which check tells, how, and a word that it says.
type Case = (fn(&mut WorkerSpec, &mut Evidence), Check, Verdict, Admission, &'static str);

fn expect(cases: &[Case]) {
    for (position, (change, check, verdict, admission, word)) in cases.iter().enumerate() {
        let (mut spec, mut evidence) = (spec(), evidence());
        change(&mut spec, &mut evidence);
        let (found, follows, text) = judged(&spec, &evidence, *check);
        assert_eq!((found, follows), (*verdict, *admission), "case {position}: {text}");
        assert!(text.contains(word), "case {position}: '{word}' is not in: {text}");
    }
}

fn canary(evidence: &mut Evidence) -> &mut CanaryRun {
    evidence.canary.as_mut().unwrap()
}

#[test]
fn an_engine_in_order_is_admitted_and_everything_is_ok() {
    let report = judge(&spec(), &evidence());
    assert!(report.findings.iter().all(|finding| finding.verdict == Verdict::Ok), "{report:?}");
    assert_eq!((report.admission(), report.reason()), (Admit, String::new()));
}

#[test]
fn what_the_engine_says_of_itself() {
    expect(&[
        (|s, _| s.model = "x".into(), Check::Model, Differs, Refuse, "the engine serves 'm'"),
        (|_, e| e.told.models.clear(), Check::Model, Unknown, Admit, "/v1/models"),
        (|s, _| s.lora_adapters = vec!["a".into()], Check::LoraAdapters, Differs, Refuse, "'a'"),
        (|_, e| e.told.models.push(served("a", true)), Check::LoraAdapters, Differs, Admit, "not announced"),
        (|s, _| s.ranks = 2, Check::Ranks, Differs, Refuse, "--engine-ranks 1"),
        (
            |_, e| e.told.sources.as_mut().unwrap()[0].rank = 4,
            Check::Ranks,
            Differs,
            LoadOnly,
            "announced is rank 0, the engine's is 4",
        ),
        (
            |_, e| {
                let second = e.told.sources.as_ref().unwrap()[0].clone();
                e.told.sources.as_mut().unwrap().push(Source { rank: 1, ..second });
            },
            Check::Ranks,
            Differs,
            Admit,
            "--engine-ranks 2",
        ),
        (
            |_, e| (e.told.sources, e.told.engines) = (None, None),
            Check::Ranks,
            Unknown,
            Admit,
            "does not tell",
        ),
    ]);
}

#[test]
fn tokens_and_templates() {
    expect(&[
        (|_, e| e.text.theirs = Ok(vec![1, 9]), Check::Tokenizer, Differs, LoadOnly, "part at token 1"),
        (|_, e| e.chat.theirs = Ok(vec![4]), Check::ChatTemplate, Differs, LoadOnly, "chat_template"),
        (|_, e| e.tools.theirs = Ok(vec![4]), Check::ToolTemplate, Differs, LoadOnly, "chat_template"),
        (
            // What differs already is not said of the template.
            |_, e| (e.text.theirs, e.chat.theirs) = (Ok(vec![]), Ok(vec![])),
            Check::ChatTemplate,
            Unknown,
            LoadOnly,
            "already",
        ),
        (|_, e| e.text.theirs = Err("404".into()), Check::Tokenizer, Unknown, Admit, "404"),
        (|_, e| e.text.ours = None, Check::Tokenizer, Unknown, Admit, "--tokenizer"),
        (
            |_, e| e.chat.ours = Some(Err("no template".into())),
            Check::ChatTemplate,
            Differs,
            Admit,
            "by load",
        ),
        (
            |_, e| e.chat = Sample { ours: Some(Err("no template".into())), theirs: Err("400".into()) },
            Check::ChatTemplate,
            Unknown,
            Admit,
            "neither side",
        ),
    ]);
}

#[test]
fn what_events_say() {
    expect(&[
        (
            |_, e| canary(e).heard = heard(vec![Stored { block_size: 8, ..AS_ANNOUNCED }.payload()]),
            Check::BlockSize,
            Differs,
            LoadOnly,
            "--engine-block-size 8",
        ),
        (|s, _| s.eagle = true, Check::HashRule, Differs, LoadOnly, "eagle = false"),
        (
            |_, e| canary(e).heard = heard(vec![Stored { salt: false, ..AS_ANNOUNCED }.payload()]),
            Check::CacheSalt,
            Differs,
            LoadOnly,
            "without its salt",
        ),
        (
            |_, e| canary(e).heard = heard(vec![Stored { rank: 3, ..AS_ANNOUNCED }.payload()]),
            Check::Ranks,
            Differs,
            LoadOnly,
            "first_rank = 3",
        ),
        (
            |_, e| {
                canary(e).tokens[0] += 1;
            },
            Check::HashRule,
            Differs,
            LoadOnly,
            "3 blocks are reported, and none is the canary's",
        ),
        (
            |_, e| canary(e).heard = heard(vec![vec![0xc1]]),
            Check::HashRule,
            Differs,
            LoadOnly,
            "cannot be read",
        ),
        (
            // The last block is not there: perhaps it only has not come yet.
            |_, e| canary(e).tokens.extend([1; 16]),
            Check::HashRule,
            Unknown,
            LoadOnly,
            "3 of the canary's 4",
        ),
    ]);
}

#[test]
fn adapters_in_events() {
    let judged = |lora: Option<(&'static str, bool)>, asked: &str| {
        let spec = WorkerSpec { lora_adapters: vec!["ad".to_owned()], ..spec() };
        let mut evidence = evidence();
        evidence.told.models.push(served("ad", true));
        let payload = Stored { lora, ..AS_ANNOUNCED }.payload();
        evidence.adapter_canary = Some(run(Some(asked), heard(vec![payload])));
        judged(&spec, &evidence, Check::LoraName)
    };
    assert_eq!(judged(Some(("ad", true)), "ad").0, Verdict::Ok);
    let (verdict, admission, text) = judged(Some(("ad", false)), "ad");
    assert_eq!((verdict, admission), (Differs, LoadOnly));
    assert!(text.contains("by a number"), "{text}");
    let (verdict, _, text) = judged(None, "ad");
    assert!(verdict == Differs && text.contains("no adapter"), "{text}");
    let (verdict, _, text) = judged(Some(("other", true)), "ad");
    assert!(verdict == Differs && text.contains("none is that of 'ad'"), "{text}");
}

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
    let frames = include_str!("fixtures/kv_event_frames.jsonl").lines().skip(1);
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

#[test]
fn why_nothing_comes() {
    fn silent(evidence: &mut Evidence, state: StreamState, listening: Listening) {
        let replay = Listening::Yes;
        canary(evidence).heard = Observation::Heard { payloads: Vec::new(), state, listening, replay };
    }
    expect(&[
        (
            |_, e| {
                silent(e, StreamState::Unproven, Listening::No("refused".into()));
                e.told.sources = Some(Vec::new());
            },
            Check::Events,
            Differs,
            LoadOnly,
            "enable_kv_cache_events",
        ),
        (
            |_, e| {
                silent(e, StreamState::Unproven, Listening::No("refused".into()));
                e.told.sources.as_mut().unwrap()[0].endpoint = "tcp://127.0.0.1:5557".into();
            },
            Check::Events,
            Differs,
            LoadOnly,
            "nobody listens",
        ),
        (
            |s, e| {
                silent(e, StreamState::Unproven, Listening::NotAsked);
                s.kv_events_direction = StreamDirection::Bind;
            },
            Check::Events,
            Differs,
            LoadOnly,
            "nobody connects",
        ),
        (
            |s, e| {
                canary(e).heard = Observation::Deaf("in use".into());
                s.kv_events_direction = StreamDirection::Bind;
            },
            Check::Events,
            Differs,
            LoadOnly,
            "nobody connects",
        ),
        (
            |_, e| canary(e).heard = Observation::Deaf("in use".into()),
            Check::Events,
            Unknown,
            Admit,
            "in use",
        ),
        (
            |s, e| {
                silent(e, StreamState::Live, Listening::Yes);
                s.kv_events_endpoint = Some("tcp://*:6000".into());
            },
            Check::Events,
            Differs,
            LoadOnly,
            "--kv-events-endpoint tcp://*:5557",
        ),
        (
            |_, e| {
                silent(e, StreamState::Unproven, Listening::No("refused".into()));
                e.told.sources = None;
            },
            Check::Events,
            Differs,
            LoadOnly,
            "refused",
        ),
        (|_, e| silent(e, StreamState::Live, Listening::Yes), Check::Events, Differs, LoadOnly, "none came"),
        (
            |s, e| {
                (s.kv_events_endpoint, s.kv_replay_endpoint) = (None, None);
                canary(e).heard = Observation::NoEndpoint;
            },
            Check::Events,
            Differs,
            Admit,
            "--kv-events-endpoint tcp://*:5557",
        ),
        (
            |_, e| {
                silent(e, StreamState::Live, Listening::Yes);
                e.told.block_size = Some(64);
            },
            Check::BlockSize,
            Differs,
            LoadOnly,
            "--engine-block-size 64",
        ),
    ]);
}

#[test]
fn what_the_index_credits() {
    fn indexed(evidence: &mut Evidence, blocks: usize, state: StreamState) {
        canary(evidence).heard = Observation::Indexed { blocks, state };
    }
    expect(&[
        (|_, e| indexed(e, 3, StreamState::Live), Check::HashRule, Verdict::Ok, Admit, "3 of the canary's 3"),
        (|_, e| indexed(e, 0, StreamState::Live), Check::Events, Differs, LoadOnly, "kvroute doctor"),
        (
            |s, e| {
                indexed(e, 0, StreamState::Unproven);
                s.kv_events_direction = StreamDirection::Bind;
                e.told.sources.as_mut().unwrap()[0].endpoint = "tcp://10.0.0.1:5557".into();
            },
            Check::Events,
            Differs,
            LoadOnly,
            "no engine connected",
        ),
    ]);
}

#[test]
fn what_comes_from_the_cache_and_from_replay() {
    expect(&[
        (
            |_, e| canary(e).repeat = Ok(usage(None)),
            Check::CachedTokens,
            Unknown,
            Admit,
            "--enable-prompt-tokens-details",
        ),
        (
            |_, e| canary(e).repeat = Ok(usage(Some(0))),
            Check::CachedTokens,
            Differs,
            LoadOnly,
            "--enable-prefix-caching",
        ),
        (
            |_, e| canary(e).repeat = Ok(usage(Some(32))),
            Check::CachedTokens,
            Unknown,
            Admit,
            "predicted were 48",
        ),
        (|_, e| canary(e).repeat = Err("busy".into()), Check::CachedTokens, Unknown, Admit, "busy"),
        (|_, e| canary(e).first = Err("400".into()), Check::Canary, Unknown, Admit, "did not take it: 400"),
        (|_, e| e.canary = None, Check::Canary, Unknown, Admit, "no canary was sent"),
        (
            |_, e| canary(e).first = Ok(Usage { prompt_tokens: 57, ..usage(None) }),
            Check::Canary,
            Differs,
            LoadOnly,
            "the engine counts 57",
        ),
        (
            |s, _| s.kv_replay_endpoint = None,
            Check::Replay,
            Differs,
            Admit,
            "--kv-replay-endpoint tcp://*:5558",
        ),
        (
            |_, e| {
                let Observation::Heard { replay, .. } = &mut canary(e).heard else { return };
                *replay = Listening::No("refused".into());
            },
            Check::Replay,
            Differs,
            Admit,
            "refused",
        ),
        (
            |_, e| {
                let Observation::Heard { state, .. } = &mut canary(e).heard else { return };
                *state = StreamState::Incomplete;
            },
            Check::Replay,
            Unknown,
            Admit,
            "reach back",
        ),
    ]);
}
