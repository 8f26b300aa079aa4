//! The judgement of a parity check, case by case: what was seen, what is found, and what follows. No engine runs.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod evidence;
mod names;

use kvroute::{
    doctor::{
        Admission::{Admit, LoadOnly, Refuse},
        Check, Evidence, Listening, Observation, Sample, Source,
        Verdict::{self, Differs, Unknown},
        judge,
    },
    fleet::{StreamDirection, StreamState, WorkerSpec},
    proxy::Usage,
};

use crate::evidence::{
    AS_ANNOUNCED, Stored, canary, evidence, expect, heard, judged, run, served, spec, usage,
};

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
