//! The examination of one engine: questions, canaries, and an ear at its events.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use serde_json::Value;
use tokio::net::TcpStream;

use super::{
    ask::Engine,
    blocks::{Reading, Sent, find},
    canary::Canary,
    evidence::{CanaryRun, Evidence, Listening, Observation, Sample, Told},
    tap::Tap,
    tokens,
};
use crate::{
    fleet::{Api, EventEndpoint, StreamDirection, StreamState, WorkerSpec},
    hash::Identity,
    ingest::{Endpoint, EndpointMode, Feed, StreamSettings},
    prompt::Encoder,
    proxy::{Caller, PoolSettings, Usage},
};

/// Who is examined.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The worker's description, against which the engine is held.
    pub spec: WorkerSpec,
    /// The tokenizer and template that its prompts get here; `None` where the engine's own is asked.
    pub encoder: Option<Arc<Encoder>>,
    /// How the engine is reached.
    pub upstream: PoolSettings,
}

/// How long each part of an examination may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// An answer, the canary's own included. Default 20 s: the canary queues with everybody else.
    pub answer: Duration,
    /// A connection to the event endpoint. Default 1 s.
    pub connection: Duration,
    /// The canary's events, after it was answered. Default 3 s.
    pub events: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(20),
            connection: Duration::from_secs(1),
            events: Duration::from_secs(3),
        }
    }
}

/// How a canary's blocks are seen to arrive.
pub enum Ears<'a> {
    /// By a subscription of its own, which shows what came where nothing matched.
    Own,
    /// By whoever follows the stream already: the leading blocks of these tokens, under this identity, that are credited
    /// to the rank, and how far its stream is trusted. Where the engine connects to us, nobody else can listen.
    Index(&'a (dyn Fn(&[u32], Identity) -> Credited + Sync)),
}

/// What a router's index credits a rank with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credited {
    /// Leading blocks of the prompt.
    pub blocks: usize,
    /// The state of the stream.
    pub state: StreamState,
}

/// Asks an engine what it is, and sends it nothing else.
///
/// # Errors
/// Why it does not answer.
pub async fn look(spec: &WorkerSpec, upstream: &PoolSettings, patience: Duration) -> Result<Told, String> {
    let url = spec.base_url().map_err(|error| error.to_string())?;
    Engine { url: &url, caller: Caller::over(upstream, patience), rank: spec.first_rank }.tell().await
}

/// Examines an engine from end to end.
///
/// # Errors
/// Why it does not answer.
pub async fn examine(subject: &Subject, patience: Patience, ears: Ears<'_>) -> Result<Evidence, String> {
    let Subject { spec, encoder, upstream } = subject;
    let url = spec.base_url().map_err(|error| error.to_string())?;
    let caller = Caller::over(upstream, patience.answer);
    let engine = Engine { url: &url, caller, rank: spec.first_rank };
    let told = engine.tell().await?;
    let model = &spec.model;
    let encoder = encoder.as_deref();
    let text = sample(&engine, encoder.map(tokens::our_text), &tokens::text_body(model)).await;
    let our_chat = |with_tools| encoder.map(|encoder| tokens::our_chat(encoder, with_tools));
    let chat = sample(&engine, our_chat(false), &tokens::chat_body(model, false)).await;
    let tools = sample(&engine, our_chat(true), &tokens::chat_body(model, true)).await;
    let mut evidence = Evidence { told, text, chat, tools, canary: None, adapter_canary: None };
    if spec.model_type.serves(Api::Completions) {
        let flight = Flight { engine: &engine, spec, told: &evidence.told, patience, ears: &ears };
        let adapter = spec.lora_adapters.iter().find(|name| serves(&evidence.told, name));
        let canary = flight.run(None).await;
        let adapter_canary = match adapter {
            Some(name) if canary.first.is_ok() => Some(flight.run(Some(name)).await),
            _ => None,
        };
        (evidence.canary, evidence.adapter_canary) = (Some(canary), adapter_canary);
    }
    Ok(evidence)
}

fn serves(told: &Told, name: &str) -> bool {
    told.models.iter().any(|model| model.id == name)
}

async fn sample(engine: &Engine<'_>, ours: Option<Result<Vec<u32>, String>>, body: &Value) -> Sample {
    Sample { ours, theirs: engine.tokenise(body).await }
}

/// What every canary of one examination has in common.
struct Flight<'a> {
    engine: &'a Engine<'a>,
    spec: &'a WorkerSpec,
    told: &'a Told,
    patience: Patience,
    ears: &'a Ears<'a>,
}

impl Flight<'_> {
    async fn run(&self, lora: Option<&str>) -> CanaryRun {
        let sizes = [Some(self.spec.block_size), self.told.block_size];
        let sizes: Vec<_> = sizes.into_iter().flatten().collect();
        let longest = self.spec.max_model_len.or(self.told.max_model_len);
        let canary = Canary::draw(&mut Rng::new(), &sizes, longest);
        let body = canary.body(lora.unwrap_or(&self.spec.model));
        let (first, heard) = match self.ears {
            Ears::Own => self.listen(&canary, lora, &body).await,
            Ears::Index(credited) => self.look_up(&canary, lora, &body, credited).await,
        };
        let repeat = match &first {
            Ok(_) => self.engine.complete(&body).await,
            Err(_) => Err("it was not sent again".to_owned()),
        };
        let Canary { tokens, salt } = canary;
        CanaryRun { tokens, salt, lora: lora.map(str::to_owned), first, repeat, heard }
    }

    async fn listen(
        &self,
        canary: &Canary,
        lora: Option<&str>,
        body: &Value,
    ) -> (Result<Usage, String>, Observation) {
        let opened = self.feed().map(|feed| feed.and_then(|feed| Tap::open(&feed).map(|tap| (feed, tap))));
        let (feed, tap) = match opened {
            None => return (self.engine.complete(body).await, Observation::NoEndpoint),
            Some(Err(problem)) => return (self.engine.complete(body).await, Observation::Deaf(problem)),
            Some(Ok(opened)) => opened,
        };
        // Half as long again as a replay is waited for.
        tap.settle(self.patience.connection * 3 / 2).await;
        tap.forget();
        let first = self.engine.complete(body).await;
        let sent = Sent { tokens: &canary.tokens, salt: &canary.salt, lora };
        let reading = announced(self.spec);
        let whole =
            |payloads: &[Vec<u8>]| find(payloads, sent, reading).is_some_and(|found| found.is_whole());
        let limit = if first.is_ok() { self.patience.events } else { Duration::ZERO };
        let payloads = tap.wait(limit, whole).await;
        let limit = self.patience.connection;
        let listening = match feed.endpoint.mode {
            EndpointMode::Connect => answers(&feed.endpoint.address, limit).await,
            EndpointMode::Bind => Listening::NotAsked,
        };
        let replay = match &feed.replay {
            Some(address) => answers(address, limit).await,
            None => Listening::NotAsked,
        };
        let heard = Observation::Heard { payloads, state: tap.state(), listening, replay };
        tap.close().await;
        (first, heard)
    }

    async fn look_up(
        &self,
        canary: &Canary,
        lora: Option<&str>,
        body: &Value,
        credited: &(dyn Fn(&[u32], Identity) -> Credited + Sync),
    ) -> (Result<Usage, String>, Observation) {
        if self.spec.kv_events_endpoint.is_none() {
            return (self.engine.complete(body).await, Observation::NoEndpoint);
        }
        let first = self.engine.complete(body).await;
        let identity = Identity::new(lora, Some(&canary.salt));
        let of = announced(self.spec).blocks(canary.tokens.len());
        let look = || credited(&canary.tokens, identity);
        let arrived = async {
            while look().blocks < of {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if first.is_ok() {
            let _ = tokio::time::timeout(self.patience.events, arrived).await;
        }
        let Credited { blocks, state } = look();
        (first, Observation::Indexed { blocks, state })
    }

    /// The event stream of the rank that is examined, if the worker has one.
    fn feed(&self) -> Option<Result<Feed, String>> {
        let spec = self.spec;
        let host = self.engine.url.host().unwrap_or("127.0.0.1");
        let of_rank = |text: &str, direction| {
            let endpoint =
                EventEndpoint::parse(text, host, direction).and_then(|e| e.of_rank(spec.first_rank));
            endpoint.map_err(|error| error.to_string())
        };
        let events = spec.kv_events_endpoint.as_deref()?;
        let feed = || {
            let direction = spec.kv_events_direction;
            let endpoint = Endpoint::new(direction, of_rank(events, direction)?);
            let replay = spec.kv_replay_endpoint.as_deref();
            let replay = replay.map(|replay| of_rank(replay, StreamDirection::Connect)).transpose()?;
            // Live batches are held while a replay is waited for, and a canary's are not to wait for one that never comes.
            let settings =
                StreamSettings { replay_timeout: self.patience.connection, ..StreamSettings::default() };
            Ok(Feed { replay, settings, ..Feed::new(endpoint) })
        };
        Some(feed())
    }
}

/// The one reading of an engine's blocks that the router has.
pub(super) fn announced(spec: &WorkerSpec) -> Reading {
    Reading { block_size: spec.block_size, eagle: spec.eagle, salted: true, adapted: true }
}

/// Whether anybody listens at a ZMQ address.
async fn answers(address: &str, limit: Duration) -> Listening {
    let Some(address) = address.strip_prefix("tcp://") else { return Listening::NotAsked };
    match tokio::time::timeout(limit, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Listening::Yes,
        Ok(Err(error)) => Listening::No(error.to_string()),
        Err(_) => Listening::No(format!("no answer within {limit:?}")),
    }
}
