//! From what was seen to findings, each with what to change. No I/O.

use super::{
    events,
    evidence::{CanaryRun, Evidence, Sample, Told},
    finding::{Admission, Check, Finding, Report, Verdict},
    names, tokens,
};
use crate::fleet::WorkerSpec;

/// Everything that follows from an examination.
#[must_use]
pub fn judge(spec: &WorkerSpec, evidence: &Evidence) -> Report {
    let mut findings = judge_told(spec, &evidence.told).findings;
    findings.extend(prompts(evidence));
    let told = &evidence.told;
    let seen = |run: &Option<CanaryRun>| run.as_ref().and_then(|run| events::recognise(spec, run));
    let (found, adapter) = (seen(&evidence.canary), seen(&evidence.adapter_canary));
    match &evidence.canary {
        Some(run) => {
            findings.extend(events::judge(spec, told, run, found.as_ref()));
            let adapter = evidence.adapter_canary.as_ref().map(|run| (run, adapter.as_ref()));
            findings.extend(names::finding(told, (run, found.as_ref()), adapter));
        }
        None => findings.push(Finding::unknown(
            Check::Canary,
            format!("no canary was sent: the worker serves {} and no completions", spec.model_type),
        )),
    }
    let run = evidence.adapter_canary.as_ref();
    findings.extend(run.map(|run| events::adapter(spec, run, adapter.as_ref())));
    // What the events say of the rank counts only where the engine's own word is not wrong already.
    let told_differs =
        |check| move |finding: &&Finding| finding.check == check && finding.verdict == Verdict::Differs;
    let differs = findings.iter().find(told_differs(Check::Ranks)).cloned();
    if let Some(differs) = differs {
        findings.retain(|finding| finding.check != Check::Ranks || *finding == differs);
    }
    findings.sort_by_key(|finding| finding.check);
    Report { findings }
}

/// What follows from the engine's own answers alone: whether requests, sent as announced, would be served at all.
#[must_use]
pub fn judge_told(spec: &WorkerSpec, told: &Told) -> Report {
    Report { findings: vec![model(spec, told), adapters(spec, told), ranks(spec, told)] }
}

fn model(spec: &WorkerSpec, told: &Told) -> Finding {
    let model = &spec.model;
    if told.models.is_empty() {
        return Finding::unknown(Check::Model, "the engine does not tell (GET /v1/models)");
    }
    if told.models.iter().any(|served| served.id == *model) {
        let version = told.version.as_ref().map(|version| format!(", version {version}"));
        return Finding::ok(Check::Model, format!("'{model}'{}", version.unwrap_or_default()));
    }
    let served = list(told.models.iter().map(|served| served.id.as_str()));
    Finding::differs(
        Check::Model,
        Admission::Refuse,
        format!("announced is '{model}', the engine serves {served}"),
    )
    .change(format!(
        "engine: --served-model-name {model}; or worker: --model-name with a name that it serves"
    ))
}

fn adapters(spec: &WorkerSpec, told: &Told) -> Finding {
    let announced = &spec.lora_adapters;
    if told.models.is_empty() && !announced.is_empty() {
        return Finding::unknown(Check::LoraAdapters, "the engine does not tell (GET /v1/models)");
    }
    let served = |name: &String| told.models.iter().any(|model| model.id == *name);
    let missing: Vec<_> = announced.iter().filter(|name| !served(name)).map(String::as_str).collect();
    if !missing.is_empty() {
        let first = missing[0].to_owned();
        return Finding::differs(
            Check::LoraAdapters,
            Admission::Refuse,
            format!("announced and not served: {}", list(missing.into_iter())),
        )
        .change(format!(
            "engine: --enable-lora --lora-modules {first}=PATH; or take it out of lora_adapters on the worker's card"
        ));
    }
    let known = |name: &str| announced.iter().any(|announced| announced == name);
    let loaded = told.models.iter().filter(|model| model.is_adapter && !known(&model.id));
    let unknown: Vec<_> = loaded.map(|model| model.id.as_str()).collect();
    if !unknown.is_empty() {
        return Finding::differs(
            Check::LoraAdapters,
            Admission::Admit,
            format!(
                "served and not announced, so that no client can ask for it: {}",
                list(unknown.into_iter())
            ),
        )
        .change("worker: lora_adapters on its card (kvroute worker lists what the engine serves)");
    }
    let found =
        if announced.is_empty() { "none".to_owned() } else { list(announced.iter().map(String::as_str)) };
    Finding::ok(Check::LoraAdapters, found)
}

fn ranks(spec: &WorkerSpec, told: &Told) -> Finding {
    let Some(theirs) = told.ranks() else {
        return Finding::unknown(
            Check::Ranks,
            "the engine does not tell (GET /kv_event_sources, GET /metrics)",
        );
    };
    let ours = spec.ranks;
    if ours == theirs {
        let first = told.sources.iter().flatten().map(|source| source.rank).min();
        return match first.filter(|&first| first != spec.first_rank) {
            None => Finding::ok(Check::Ranks, ours.to_string()),
            Some(first) => Finding::differs(
                Check::Ranks,
                Admission::LoadOnly,
                format!("announced is rank {}, the engine's is {first}", spec.first_rank),
            )
            .change(format!("worker: first_rank = {first} on its card")),
        };
    }
    let found = format!("announced: {ours}, the engine has {theirs}");
    if ours > theirs {
        return Finding::differs(
            Check::Ranks,
            Admission::Refuse,
            format!("{found}; it refuses requests for the others"),
        )
        .change(format!("worker: --engine-ranks {theirs}; or engine: --data-parallel-size {ours}"));
    }
    Finding::differs(Check::Ranks, Admission::Admit, format!("{found}; the others get no requests"))
        .change(format!("worker: --engine-ranks {theirs}"))
}

fn prompts(evidence: &Evidence) -> [Finding; 3] {
    let tokenizer = sample(
        Check::Tokenizer,
        &evidence.text,
        "router: --tokenizer MODEL=PATH with the files that the engine loads",
    );
    let template = "router: chat_template in the model's [[model]] entry, the file of the engine's --chat-template; or \
                    engine: the model's own template";
    let mut chat = [(Check::ChatTemplate, &evidence.chat), (Check::ToolTemplate, &evidence.tools)]
        .map(|(check, of)| sample(check, of, template));
    if tokenizer.verdict == Verdict::Differs {
        for finding in chat.iter_mut().filter(|finding| finding.verdict == Verdict::Differs) {
            *finding = Finding::unknown(finding.check, "the tokens of plain text differ already");
        }
    }
    let [plain, tools] = chat;
    [tokenizer, plain, tools]
}

fn sample(check: Check, sample: &Sample, change: &str) -> Finding {
    match (&sample.ours, &sample.theirs) {
        (None, Ok(_)) => Finding::unknown(
            check,
            "no tokenizer here: the router asks the engine's /tokenize, which costs every request a round trip",
        )
        .change("router: --tokenizer MODEL=PATH"),
        (None, Err(problem)) => {
            Finding::unknown(check, format!("no tokenizer here, and {problem}")).change("router: --tokenizer MODEL=PATH")
        }
        (Some(Err(ours)), Err(theirs)) => {
            Finding::unknown(check, format!("neither side makes tokens of it: {ours}; {theirs}"))
        }
        (Some(Ok(_)), Err(problem)) => Finding::unknown(check, problem.clone()),
        // Such prompts are routed by load already, each for itself.
        (Some(Err(problem)), Ok(_)) => Finding::differs(
            check,
            Admission::Admit,
            format!("the engine makes tokens of it and the router cannot: {problem}; such prompts are routed by load"),
        )
        .change(change),
        (Some(Ok(ours)), Ok(theirs)) => match tokens::difference(ours, theirs) {
            None => Finding::ok(check, format!("{} tokens, all equal", ours.len())),
            Some(found) => Finding::differs(check, Admission::LoadOnly, found).change(change),
        },
    }
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
}
