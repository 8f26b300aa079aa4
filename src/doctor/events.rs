//! What the canary's events say: whether they come, and whether they are what the router expects. No I/O.

use super::{
    blocks::{Match, Sent, Stock, explain, stock},
    evidence::{CanaryRun, Listening, Observation, Source, Told},
    examine::announced,
    finding::{Admission, Check, Finding},
};
use crate::{
    event::Rejection,
    fleet::{StreamDirection, StreamState, WorkerSpec},
};

const PUBLISH: &str = "engine: --kv-events-config '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\
    \"endpoint\":\"tcp://*:5557\",\"replay_endpoint\":\"tcp://*:5558\"}'";

/// The canary's blocks, as far as they were heard of.
pub(super) fn recognise(spec: &WorkerSpec, run: &CanaryRun) -> Option<Match> {
    let Observation::Heard { payloads, .. } = &run.heard else { return None };
    let sent = Sent { tokens: &run.tokens, salt: &run.salt, lora: run.lora.as_deref() };
    explain(payloads, sent, announced(spec))
}

/// All that a canary without an adapter shows.
pub(super) fn judge(spec: &WorkerSpec, told: &Told, run: &CanaryRun, found: Option<&Match>) -> Vec<Finding> {
    let usage = match &run.first {
        Ok(usage) => usage,
        Err(problem) => {
            return vec![
                Finding::unknown(Check::Canary, format!("the engine did not take it: {problem}")),
                told_block_size(spec, told),
            ];
        }
    };
    let sent = run.tokens.len();
    let canary = if usage.prompt_tokens == sent as u64 {
        Finding::ok(Check::Canary, format!("{sent} tokens"))
    } else {
        Finding::differs(
            Check::Canary,
            Admission::LoadOnly,
            format!("{sent} tokens were sent, the engine counts {}: it changes prompts", usage.prompt_tokens),
        )
        .change("engine: switch off what adds to prompts that come as tokens")
    };
    let mut findings = vec![canary];
    if spec.kv_events_endpoint.is_some() {
        findings.push(replay(spec, told, &run.heard));
    }
    match &run.heard {
        Observation::NoEndpoint => findings.extend([no_endpoint(told), told_block_size(spec, told)]),
        Observation::Deaf(problem) => {
            let deaf =
                || Finding::unknown(Check::Events, format!("they cannot be listened to here: {problem}"));
            // An address that is taken may be so because the engine listens there.
            let source = source(spec, told).flatten();
            let other = source.filter(|source| source.direction() != spec.kv_events_direction);
            let event =
                other.map_or_else(deaf, |theirs| wrong_direction(&theirs.endpoint, spec.kv_events_direction));
            findings.extend([event, told_block_size(spec, told)]);
        }
        Observation::Indexed { blocks, state } => {
            findings.extend(indexed(spec, told, sent, *blocks, *state));
        }
        Observation::Heard { payloads, state, listening, .. } => {
            let stock = stock(payloads, spec.block_size, spec.eagle);
            findings.extend(heard(spec, told, found, &stock, (*state, listening)));
        }
    }
    findings.push(cached(spec, run, found));
    findings
}

/// What a canary under an adapter shows beyond that.
pub(super) fn adapter(spec: &WorkerSpec, run: &CanaryRun, found: Option<&Match>) -> Finding {
    let name = run.lora.as_deref().unwrap_or_default();
    if let Err(problem) = &run.first {
        return Finding::unknown(Check::LoraName, format!("'{name}' did not take a canary: {problem}"));
    }
    let change = "engine: a version whose events carry lora_name (vLLM 0.16 or later)";
    match &run.heard {
        Observation::NoEndpoint | Observation::Deaf(_) => Finding::unknown(Check::LoraName, "no events were heard"),
        Observation::Indexed { blocks, .. } if *blocks > 0 => {
            Finding::ok(Check::LoraName, format!("blocks of '{name}' are reported under its name"))
        }
        Observation::Indexed { .. } => {
            Finding::unknown(Check::LoraName, format!("no block of '{name}' was credited"))
        }
        Observation::Heard { payloads, .. } => match found {
            Some(found) if found.reading.adapted => {
                Finding::ok(Check::LoraName, format!("blocks of '{name}' are reported under its name"))
            }
            Some(_) => Finding::differs(
                Check::LoraName,
                Admission::LoadOnly,
                format!("blocks of '{name}' are reported under no adapter: they would be credited to the base model"),
            )
            .change(change),
            None => {
                let came = stock(payloads, spec.block_size, spec.eagle);
                if came.rejections.get(Rejection::UnnamedLora) > 0 {
                    let found = format!("blocks of '{name}' are reported by a number and no name");
                    Finding::differs(Check::LoraName, Admission::LoadOnly, found).change(change)
                } else if came.stored_blocks > 0 {
                    let found = format!("blocks are reported, and none is that of '{name}' under this name");
                    Finding::differs(Check::LoraName, Admission::LoadOnly, found).change(change)
                } else {
                    Finding::unknown(Check::LoraName, "no block was reported")
                }
            }
        },
    }
}

fn heard(
    spec: &WorkerSpec,
    told: &Told,
    found: Option<&Match>,
    stock: &Stock,
    (state, listening): (StreamState, &Listening),
) -> Vec<Finding> {
    if stock.batches == 0 {
        return vec![silence(spec, told, state, listening), told_block_size(spec, told)];
    }
    let came = format!("batches from {}: {}", endpoint(spec), stock.batches);
    let Some(found) = found else {
        return not_recognised(spec, told, came, stock);
    };
    let mut findings =
        vec![Finding::ok(Check::Events, came), block_size(spec, found), hash_rule(spec, found)];
    findings.push(if found.reading.salted {
        Finding::ok(Check::CacheSalt, "blocks of a salted prompt are reported under its salt")
    } else {
        Finding::differs(
            Check::CacheSalt,
            Admission::LoadOnly,
            "blocks of a salted prompt are reported without its salt: they would be credited to prompts without one",
        )
        .change("engine: a version whose events carry the salt (extra_keys: vLLM 0.20.2 or later)")
    });
    if let Some(rank) = found.rank.filter(|&rank| rank != spec.first_rank) {
        findings.push(
            Finding::differs(
                Check::Ranks,
                Admission::LoadOnly,
                format!(
                    "events at the endpoint of rank {} name rank {rank}, and are dropped",
                    spec.first_rank
                ),
            )
            .change(format!(
                "worker: first_rank = {rank} on its card, or the endpoint of rank {}",
                spec.first_rank
            )),
        );
    }
    findings
}

fn block_size(spec: &WorkerSpec, found: &Match) -> Finding {
    let (ours, theirs) = (spec.block_size, found.reading.block_size);
    if ours == theirs {
        return Finding::ok(Check::BlockSize, format!("{ours} tokens"));
    }
    Finding::differs(
        Check::BlockSize,
        Admission::LoadOnly,
        format!("announced are {ours} tokens, blocks in events have {theirs}"),
    )
    .change(format!(
        "worker: --engine-block-size {theirs} (block_size on its card); or engine: --block-size {ours}"
    ))
}

/// The engine's word alone: blocks that nobody saw may have another size.
fn told_block_size(spec: &WorkerSpec, told: &Told) -> Finding {
    match told.block_size {
        None => Finding::unknown(Check::BlockSize, "no block was seen, and the engine does not tell"),
        Some(size) if size == spec.block_size => {
            Finding::ok(Check::BlockSize, format!("{size} tokens, as GET /metrics says; no block was seen"))
        }
        Some(size) => Finding::differs(
            Check::BlockSize,
            Admission::LoadOnly,
            format!("announced are {} tokens, GET /metrics says {size}", spec.block_size),
        )
        .change(format!(
            "worker: --engine-block-size {size} (block_size on its card); or engine: --block-size {}",
            spec.block_size
        )),
    }
}

fn hash_rule(spec: &WorkerSpec, found: &Match) -> Finding {
    if found.reading.eagle != spec.eagle {
        let (theirs, say) = if found.reading.eagle { ("look", "true") } else { ("do not look", "false") };
        return Finding::differs(
            Check::HashRule,
            Admission::LoadOnly,
            format!("the engine's blocks {theirs} one token ahead"),
        )
        .change(format!("worker: eagle = {say} on its card"));
    }
    let found_of = format!("{} of the canary's {} blocks are found in events", found.names.len(), found.of);
    if found.is_whole() {
        Finding::ok(Check::HashRule, found_of)
    } else {
        Finding::unknown(Check::HashRule, found_of)
    }
}

fn not_recognised(spec: &WorkerSpec, told: &Told, came: String, stock: &Stock) -> Vec<Finding> {
    let refused = stock.rejections.iter().filter(|&(_, count)| count > 0);
    let refused: Vec<_> = refused.map(|(reason, count)| format!("{reason} {count}")).collect();
    let mut found = format!("{} blocks are reported, and none is the canary's", stock.stored_blocks);
    if !refused.is_empty() {
        found.push_str(&format!("; not used: {}", refused.join(", ")));
    }
    if stock.unreadable > 0 {
        found.push_str(&format!("; {} batches cannot be read", stock.unreadable));
    }
    vec![
        Finding::ok(Check::Events, came),
        told_block_size(spec, told),
        Finding::differs(Check::HashRule, Admission::LoadOnly, found).change(
            "worker: the event endpoint of this engine and of no other; engine: prefix caching on \
             (--enable-prefix-caching)",
        ),
    ]
}

/// Why nothing came.
fn silence(spec: &WorkerSpec, told: &Told, state: StreamState, listening: &Listening) -> Finding {
    let differs = |found: String| Finding::differs(Check::Events, Admission::LoadOnly, found);
    let here = endpoint(spec);
    match source(spec, told) {
        Some(None) => {
            return differs("the engine publishes none (GET /kv_event_sources is empty)".to_owned())
                .change(PUBLISH);
        }
        Some(Some(theirs)) if theirs.direction() != spec.kv_events_direction => {
            return wrong_direction(&theirs.endpoint, spec.kv_events_direction);
        }
        // The wildcard says nothing of the host, so it is the port that tells.
        Some(Some(theirs)) if port(&theirs.endpoint) != port(here) => {
            return differs(format!("none came from {here}; the engine publishes at {}", theirs.endpoint))
                .change(format!("worker: --kv-events-endpoint {}", theirs.endpoint));
        }
        _ => {}
    }
    match listening {
        Listening::No(why) => differs(format!("nobody listens at {here}: {why}")).change(
            "engine: an endpoint with a wildcard, tcp://*:PORT, so that it binds; or worker: kv_events_direction = \
             \"bind\" on its card",
        ),
        Listening::NotAsked if state == StreamState::Unproven && spec.kv_events_direction == StreamDirection::Bind => {
            differs(format!("no engine connected to {here}")).change(
                "engine: an endpoint without a wildcard that leads here, so that it connects; or worker: \
                 kv_events_direction = \"connect\" on its card",
            )
        }
        Listening::Yes | Listening::NotAsked => {
            differs(format!("none came from {here} for a prompt of several blocks")).change(PUBLISH)
        }
    }
}

/// Where the engine says that it publishes: `None` if it does not tell, nothing within if it does not publish.
fn source<'a>(spec: &WorkerSpec, told: &'a Told) -> Option<Option<&'a Source>> {
    told.sources.as_ref().map(|sources| {
        let of_rank = sources.iter().find(|source| source.rank == spec.first_rank);
        of_rank.or(sources.first())
    })
}

fn wrong_direction(theirs: &str, ours: StreamDirection) -> Finding {
    let (found, change) = match ours {
        StreamDirection::Connect => (
            format!("the engine connects to {theirs}, and so does the router: nobody listens"),
            "engine: an endpoint with a wildcard, tcp://*:PORT, so that it binds; or worker: kv_events_direction = \
             \"bind\" on its card",
        ),
        StreamDirection::Bind => (
            format!("the engine listens at {theirs}, and so does the router: nobody connects"),
            "worker: kv_events_direction = \"connect\" on its card; or engine: an endpoint without a wildcard, so that \
             it connects",
        ),
    };
    Finding::differs(Check::Events, Admission::LoadOnly, found).change(change)
}

/// A router guesses then what is cached, from what it sent there: less exact, and nothing that would be wrong of the worker.
fn no_endpoint(told: &Told) -> Finding {
    let differs = |found: String| {
        let found = format!("{found}; what it has cached is guessed from what it is sent");
        Finding::differs(Check::Events, Admission::Admit, found)
    };
    match told.sources.as_deref() {
        Some([source, ..]) => differs(format!(
            "the worker has no event endpoint, and the engine publishes at {}",
            source.endpoint
        ))
        .change(format!("worker: --kv-events-endpoint {}", source.endpoint)),
        Some([]) => {
            differs("the engine publishes none (GET /kv_event_sources is empty)".to_owned()).change(PUBLISH)
        }
        None => differs("the worker has no event endpoint, and the engine does not tell one".to_owned())
            .change(format!("{PUBLISH}, and worker: --kv-events-endpoint with its endpoint")),
    }
}

fn indexed(spec: &WorkerSpec, told: &Told, sent: usize, blocks: usize, state: StreamState) -> Vec<Finding> {
    let of = announced(spec).blocks(sent);
    let found = format!("the index credits {blocks} of the canary's {of} blocks; its stream is {state}");
    if blocks == of {
        return vec![
            Finding::ok(Check::Events, found.clone()),
            Finding::ok(Check::BlockSize, format!("{} tokens", spec.block_size)),
            Finding::ok(Check::HashRule, found),
            Finding::ok(Check::CacheSalt, "blocks of a salted prompt are reported under its salt"),
        ];
    }
    let events = match silence(spec, told, state, &Listening::NotAsked) {
        // Something came, or may have: what was seen says more than the guess.
        silent if state == StreamState::Unproven => silent,
        _ => Finding::differs(Check::Events, Admission::LoadOnly, found)
            .change("kvroute doctor, with the router stopped, says what the engine's events have"),
    };
    vec![events, told_block_size(spec, told)]
}

fn replay(spec: &WorkerSpec, told: &Told, heard: &Observation) -> Finding {
    let Some(ours) = &spec.kv_replay_endpoint else {
        let source = told.sources.iter().flatten().find_map(|source| source.replay.as_deref());
        let change = match source {
            Some(theirs) => format!("worker: --kv-replay-endpoint {theirs}"),
            None => {
                "engine: replay_endpoint in --kv-events-config; and worker: --kv-replay-endpoint".to_owned()
            }
        };
        let found =
            "none: what a router misses stays unknown to it, and so does what was cached before it started";
        return Finding::differs(Check::Replay, Admission::Admit, found).change(change);
    };
    match heard {
        Observation::Heard { replay: Listening::No(why), .. } => {
            let found = format!("nobody listens at {ours}: {why}");
            Finding::differs(Check::Replay, Admission::Admit, found)
                .change("worker: --kv-replay-endpoint with the engine's replay_endpoint")
        }
        Observation::Heard { state: StreamState::Live, .. }
        | Observation::Indexed { state: StreamState::Live, .. } => {
            Finding::ok(Check::Replay, "it was asked, and reaches back to the engine's start")
        }
        Observation::Heard { state: StreamState::Incomplete, .. }
        | Observation::Indexed { state: StreamState::Incomplete, .. } => Finding::unknown(
            Check::Replay,
            "it does not reach back to the engine's start; what was cached before is not known",
        ),
        _ => Finding::unknown(Check::Replay, "it was not asked: no event stream was followed"),
    }
}

/// What the repetition took from the cache: all full blocks, but never a prompt's last token.
fn cached(spec: &WorkerSpec, run: &CanaryRun, found: Option<&Match>) -> Finding {
    let usage = match &run.repeat {
        Ok(usage) => usage,
        Err(problem) => return Finding::unknown(Check::CachedTokens, problem.clone()),
    };
    let Some(cached) = usage.cached_tokens else {
        return Finding::unknown(
            Check::CachedTokens,
            "the engine does not report them: predictions cannot be compared with what it does",
        )
        .change("engine: --enable-prompt-tokens-details (vLLM), --enable-cache-report (SGLang)");
    };
    let size = found.map_or(spec.block_size, |found| found.reading.block_size).max(1) as usize;
    let predicted = run.tokens.len().saturating_sub(1) / size * size;
    let found = format!("{cached} of {} at the second time, predicted were {predicted}", run.tokens.len());
    if cached == predicted as u64 {
        return Finding::ok(Check::CachedTokens, found);
    }
    if cached == 0 {
        return Finding::differs(Check::CachedTokens, Admission::LoadOnly, found).change(
            "engine: prefix caching on (--enable-prefix-caching, and not --no-enable-prefix-caching)",
        );
    }
    // A busy engine may have evicted some, or counts blocks that it took from elsewhere.
    Finding::unknown(Check::CachedTokens, found)
}

fn endpoint(spec: &WorkerSpec) -> &str {
    spec.kv_events_endpoint.as_deref().unwrap_or_default()
}

fn port(endpoint: &str) -> Option<&str> {
    endpoint.strip_prefix("tcp://")?.rsplit(':').next()
}
