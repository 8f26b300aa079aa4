//! What recomputed names say of an engine.

use ahash::AHashMap;

use super::{Reported, Rule, Seed, recompute};
use crate::{
    doctor::{
        blocks::Match,
        evidence::{CanaryRun, Observation, Told},
        finding::{Admission, Check, Finding, Verdict},
    },
    event::{EngineHash, wire},
};

/// The names under which the canary's blocks were reported, and those of the canary under an adapter. Nothing where no block was
/// recognised: then nobody knows whose names they are.
pub(in crate::doctor) fn finding(
    told: &Told,
    canary: (&CanaryRun, Option<&Match>),
    adapter: Option<(&CanaryRun, Option<&Match>)>,
) -> Option<Finding> {
    let mut finding = of_run(told, canary.0, canary.1?);
    let adapter = adapter.and_then(|(run, found)| Some(of_run(told, run, found?)));
    if let Some(Finding { verdict, admission, found, change, .. }) = adapter {
        finding.found = format!("{}; {found}", finding.found);
        if (admission, verdict == Verdict::Differs) > (finding.admission, finding.verdict == Verdict::Differs)
        {
            (finding.admission, finding.change) = (admission, change);
        }
        finding.verdict = match (finding.verdict, verdict) {
            (Verdict::Differs, _) | (_, Verdict::Differs) => Verdict::Differs,
            (Verdict::Unknown, _) | (_, Verdict::Unknown) => Verdict::Unknown,
            (Verdict::Ok, Verdict::Ok) => Verdict::Ok,
        };
    }
    Some(finding)
}

fn of_run(told: &Told, run: &CanaryRun, found: &Match) -> Finding {
    let under = run.lora.as_ref().map_or_else(String::new, |name| format!("under '{name}' "));
    if let Some(block) = found.unlinked {
        let after =
            if block == 0 { "after another block" } else { "after another block than the one before" };
        return differs(
            format!("{under}the canary's block {block} is reported {after}"),
            "worker: the event endpoint of this engine and of no other",
        );
    }
    let Some(rule) = rule(told, run, found) else {
        let says = match told.hash_algorithm.as_deref() {
            Some(algorithm) => format!("; GET /metrics says {algorithm}"),
            None => String::new(),
        };
        return Finding::unknown(
            Check::EngineHash,
            format!("{under}they follow none of vLLM's rules from a seed that can be known{says}"),
        )
        .change(
            "engine, if it is vLLM and others are to make the same names: PYTHONHASHSEED=0; without it xxhash, and vLLM before \
             0.30, begin with random bytes",
        );
    };
    let text = format!("{under}{} of {} follow from {}", rule.of, found.names.len(), said(&rule));
    if !rule.salted {
        return differs(
            format!("{text}, without the salt: the cache gives prompts with a salt what others computed"),
            "engine: a version that keeps prompts of different salts apart",
        );
    }
    if !rule.adapted {
        return differs(
            format!("{text}, without the adapter: the cache gives its prompts what the base model computed"),
            "engine: a version that keeps adapters apart in its prefix cache",
        );
    }
    if rule.of < found.names.len() {
        return Finding::unknown(Check::EngineHash, text);
    }
    let with = match (&rule.seed, &run.lora) {
        (Seed::Unknown, _) => "",
        (_, None) => ", the salt in the first",
        (_, Some(_)) => ", the adapter in each",
    };
    Finding::ok(Check::EngineHash, text + with)
}

fn differs(found: String, change: &str) -> Finding {
    Finding::differs(Check::EngineHash, Admission::LoadOnly, found).change(change)
}

fn said(rule: &Rule) -> String {
    let algorithm = rule.algorithm.name();
    match &rule.seed {
        Seed::Fixed => format!("{algorithm} and vLLM's own seed"),
        Seed::Given(seed) => format!("{algorithm} and PYTHONHASHSEED={seed}"),
        Seed::Unknown => {
            format!("{algorithm} and the first of them, whose seed is random or not a small number")
        }
    }
}

fn rule(told: &Told, run: &CanaryRun, found: &Match) -> Option<Rule> {
    let Observation::Heard { payloads, .. } = &run.heard else { return None };
    let whole: AHashMap<EngineHash, &[u8]> =
        payloads.iter().flat_map(|payload| wire::digests(payload)).collect();
    let lora = run.lora.as_deref().map(|name| {
        let served = told.models.iter().find(|served| served.id == name);
        (name, served.and_then(|served| served.root.as_deref()))
    });
    recompute(&Reported {
        tokens: &run.tokens,
        block_size: found.reading.block_size as usize,
        salt: &run.salt,
        lora,
        names: &found.names,
        whole: &|name| whole.get(&name).copied(),
    })
}
