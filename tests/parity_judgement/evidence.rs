//! An engine in order, and what changes of it lead to.

use std::ops::Range;

use kvroute::{
    doctor::{
        Admission, CanaryRun, Check, Evidence, Listening, Observation, Report, Sample, Served, Source, Told,
        Verdict, judge,
    },
    fleet::{StreamState, WorkerSpec},
    proxy::Usage,
};
use rmpv::Value;

pub(crate) const SALT: &str = "kvroute-canary-1";

pub(crate) fn spec() -> WorkerSpec {
    WorkerSpec {
        kv_events_endpoint: Some("tcp://*:5557".to_owned()),
        kv_replay_endpoint: Some("tcp://*:5558".to_owned()),
        ..WorkerSpec::new("http://10.0.0.5:8000", "m")
    }
}

pub(crate) fn tokens() -> Vec<u32> {
    (0..56).map(|n| n * 7 % 200 + 32).collect()
}

/// What vLLM calls the blocks of a prompt; tests/fixtures/vllm_block_names.py makes them.
pub(crate) fn vllm_names(about: &str) -> Vec<Vec<u8>> {
    let text = include_str!("../fixtures/vllm_block_names.json");
    let fixture: serde_json::Value = serde_json::from_str(text).unwrap();
    let mut cases = fixture["cases"].as_array().unwrap().iter();
    let case = cases.find(|case| case["about"] == about).unwrap();
    let names = case["names"].as_array().unwrap().iter();
    names.map(|name| hex::decode(name.as_str().unwrap()).unwrap()).collect()
}

/// A stored event of an engine: what it says of the prompt's full blocks.
#[derive(Clone, Copy)]
pub(crate) struct Stored {
    pub(crate) block_size: usize,
    pub(crate) salt: bool,
    pub(crate) lora: Option<(&'static str, bool)>,
    pub(crate) rank: u32,
    /// Which of vllm_names; other blocks than those of 16 are called 1, 2, ...
    pub(crate) names: &'static str,
    /// Names are told whole, not their end.
    pub(crate) whole: bool,
    /// The last block is reported by itself, after the first one.
    pub(crate) parted: bool,
}

pub(crate) const AS_ANNOUNCED: Stored = Stored {
    block_size: 16,
    salt: true,
    lora: None,
    rank: 0,
    names: "judged canary",
    whole: false,
    parted: false,
};

impl Stored {
    pub(crate) fn payload(&self) -> Vec<u8> {
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

pub(crate) fn usage(cached_tokens: Option<u64>) -> Usage {
    Usage { prompt_tokens: tokens().len() as u64, completion_tokens: 1, cached_tokens }
}

pub(crate) fn heard(payloads: Vec<Vec<u8>>) -> Observation {
    let yes = Listening::Yes;
    Observation::Heard { payloads, state: StreamState::Live, listening: yes.clone(), replay: yes }
}

pub(crate) fn run(lora: Option<&str>, heard: Observation) -> CanaryRun {
    CanaryRun {
        tokens: tokens(),
        salt: SALT.to_owned(),
        lora: lora.map(str::to_owned),
        first: Ok(usage(Some(0))),
        repeat: Ok(usage(Some(48))),
        heard,
    }
}

pub(crate) fn served(id: &str, is_adapter: bool) -> Served {
    Served { id: id.to_owned(), is_adapter, root: Some(format!("/models/{id}")) }
}

/// An engine that is in order.
pub(crate) fn evidence() -> Evidence {
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
pub(crate) fn judged(spec: &WorkerSpec, evidence: &Evidence, check: Check) -> (Verdict, Admission, String) {
    let report: Report = judge(spec, evidence);
    let mut findings = report.findings.iter().filter(|finding| finding.check == check);
    let found = findings.next().unwrap_or_else(|| panic!("no {check:?}: {report:?}"));
    assert!(findings.next().is_none(), "{check:?} twice: {report:?}");
    let text = format!("{} {}", found.found, found.change.as_deref().unwrap_or_default());
    (found.verdict, report.admission(), text)
}

/// One case: what is changed of an engine in order, which check tells, how, and a word that it says.
pub(crate) type Case = (fn(&mut WorkerSpec, &mut Evidence), Check, Verdict, Admission, &'static str);

pub(crate) fn expect(cases: &[Case]) {
    for (position, (change, check, verdict, admission, word)) in cases.iter().enumerate() {
        let (mut spec, mut evidence) = (spec(), evidence());
        change(&mut spec, &mut evidence);
        let (found, follows, text) = judged(&spec, &evidence, *check);
        assert_eq!((found, follows), (*verdict, *admission), "case {position}: {text}");
        assert!(text.contains(word), "case {position}: '{word}' is not in: {text}");
    }
}

pub(crate) fn canary(evidence: &mut Evidence) -> &mut CanaryRun {
    evidence.canary.as_mut().unwrap()
}
