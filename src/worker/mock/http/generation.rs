//! From a parsed request to running requests, and back to what they said.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::App;
use super::body::{Sampling, header};
use super::error::ApiError;
use crate::worker::mock::engine::Command;
use crate::worker::mock::scheduler::{Finish, Produced, Request, Sink};
use crate::worker::mock::sequence::{Namespace, Naming, Sequence};
use crate::worker::mock::vocabulary::Detokenizer;

/// One HTTP request that is being generated: one choice per prompt and `n`. Dropping it abandons the choices:
/// the scheduler notices that nobody listens.
pub(super) struct Generation {
    pub(super) app: Arc<App>,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) choices: Vec<Choice>,
    pub(super) return_token_ids: bool,
    /// Whether the answer says where the prompt's blocks are.
    hands_over: bool,
    received: UnboundedReceiver<Produced>,
}

/// What one choice has said so far.
pub(super) struct Choice {
    pub(super) prompt: Arc<[u32]>,
    /// Whether the prompt counts in the usage: the first of `n` choices only.
    counts_prompt: bool,
    pub(super) cached_tokens: usize,
    pub(super) output: Detokenizer,
    pub(super) text: String,
    pub(super) finish: Option<Finish>,
}

impl Generation {
    /// Submits one request per choice. `prefix` starts the id (`chatcmpl` or `cmpl`); `default_max_tokens` is
    /// for requests that name no limit, where `None` means all that fits.
    pub(super) fn start(
        app: &Arc<App>,
        headers: &HeaderMap,
        prefix: &str,
        prompts: Vec<Vec<u32>>,
        sampling: &Sampling,
        default_max_tokens: Option<usize>,
    ) -> Result<Self, ApiError> {
        sampling.validate()?;
        let n = sampling.choices()?;
        let namespace = Arc::new(namespace(app, headers, sampling)?);
        check_rank(app, headers)?;
        let mut requests = Vec::with_capacity(prompts.len() * n);
        let mut choices = Vec::with_capacity(prompts.len() * n);
        let (sink, received) = unbounded_channel();
        for prompt in prompts {
            let max_tokens = app.output_limit(&prompt, sampling, default_max_tokens)?;
            let prompt: Arc<[u32]> = prompt.into();
            for copy in 0..n {
                let choice = choices.len();
                choices.push(Choice {
                    prompt: Arc::clone(&prompt),
                    counts_prompt: copy == 0,
                    cached_tokens: 0,
                    output: Detokenizer::default(),
                    text: String::new(),
                    finish: None,
                });
                app.check_transfer(sampling, prompt.len())?;
                let sequence = Sequence::new(app.naming(), Arc::clone(&namespace), prompt.to_vec());
                requests.push(app.request(sequence, (choice, copy), max_tokens, sampling, sink.clone()));
            }
        }
        for request in requests {
            app.commands.send(Command::Submit(request)).map_err(|_| ApiError::engine_gone())?;
        }
        let id = header(headers, "x-request-id")
            .map_or_else(|| format!("{:032x}", fastrand::u128(..)), str::to_owned);
        Ok(Self {
            app: Arc::clone(app),
            id: format!("{prefix}-{id}"),
            created: unix_seconds(),
            model: sampling.model.clone().unwrap_or_else(|| app.settings.model.clone()),
            choices,
            return_token_ids: sampling.return_token_ids.unwrap_or(false),
            hands_over: app.hands_over(sampling),
            received,
        })
    }

    /// The next token of any choice, with the text that it adds. `None` when every choice has finished.
    pub(super) async fn next(&mut self) -> Option<Result<(Produced, String), ApiError>> {
        if self.choices.iter().all(|choice| choice.finish.is_some()) {
            return None;
        }
        let Some(produced) = self.received.recv().await else { return Some(Err(ApiError::engine_gone())) };
        let choice = &mut self.choices[produced.choice];
        choice.cached_tokens = produced.cached_tokens;
        choice.finish = produced.finish;
        let piece = choice.output.push(&self.app.settings.encoder, produced.token);
        Some(Ok((produced, piece)))
    }

    /// Waits for the end of every choice.
    pub(super) async fn complete(&mut self) -> Result<(), ApiError> {
        while let Some(next) = self.next().await {
            let (produced, piece) = next?;
            self.choices[produced.choice].text.push_str(&piece);
        }
        Ok(())
    }

    /// What was used so far.
    pub(super) fn usage(&self) -> Value {
        let counted = || self.choices.iter().filter(|choice| choice.counts_prompt);
        let prompt: usize = counted().map(|choice| choice.prompt.len()).sum();
        let cached: usize = counted().map(|choice| choice.cached_tokens).sum();
        let completion: usize = self.choices.iter().map(|choice| choice.output.tokens().len()).sum();
        let details = self.app.settings.prompt_tokens_details.then(|| json!({ "cached_tokens": cached }));
        json!({
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": details,
        })
    }

    /// Where the prompt's blocks are, for an engine that was asked to compute them for another. As in vLLM not if
    /// the model ended the output itself: then there is nothing to go on with.
    pub(super) fn kv_transfer_params(&self) -> Value {
        match self.choices.first() {
            Some(choice) if self.hands_over && choice.finish == Some(Finish::Length) => {
                self.app.transfer_params(&self.id, choice.prompt.len())
            }
            _ => Value::Null,
        }
    }

    /// `value`, or null where the request did not ask for token ids.
    pub(super) fn ids(&self, tokens: &[u32]) -> Value {
        if self.return_token_ids { json!(tokens) } else { Value::Null }
    }
}

pub(super) fn finish_reason(finish: Option<Finish>) -> Value {
    match finish {
        Some(Finish::Stop) => "stop".into(),
        Some(Finish::Length) => "length".into(),
        None => Value::Null,
    }
}

pub(super) fn unix_seconds() -> u64 {
    since_the_epoch().as_secs()
}

pub(super) fn since_the_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn namespace(app: &App, headers: &HeaderMap, sampling: &Sampling) -> Result<Namespace, ApiError> {
    Ok(Namespace {
        lora: app.resolve(sampling.model.as_deref())?,
        salt: sampling.cache_salt.clone(),
        session: header(headers, "x-session-id").map(str::to_owned),
    })
}

/// There is one rank. Another one in the header is refused; what is no number is ignored, as vLLM does.
fn check_rank(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    match header(headers, "x-data-parallel-rank").and_then(|rank| rank.parse::<i64>().ok()) {
        Some(rank) if rank != i64::from(app.settings.data_parallel_rank) => {
            let message = format!("data_parallel_rank {rank} is out of range: this engine has one rank");
            Err(ApiError::bad_request(None, message))
        }
        _ => Ok(()),
    }
}

impl App {
    pub(super) fn naming(&self) -> Naming {
        Naming { seed: self.settings.naming_seed, block_size: self.settings.block_size as usize }
    }

    /// Checks a prompt against the model and returns how many tokens may follow it.
    fn output_limit(
        &self,
        prompt: &[u32],
        sampling: &Sampling,
        default: Option<usize>,
    ) -> Result<usize, ApiError> {
        let longest = self.settings.max_model_len as usize;
        if prompt.is_empty() {
            return Err(ApiError::bad_request(Some("prompt"), "the prompt has no tokens"));
        }
        let vocabulary = self.settings.encoder.count_vocab();
        if let Some(token) = prompt.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(ApiError::bad_request(
                Some("prompt"),
                format!("Token id {token} is out of vocabulary"),
            ));
        }
        let room = longest.saturating_sub(prompt.len());
        if room == 0 {
            let message = format!(
                "This model's maximum context length is {longest} tokens. However, your prompt has {} tokens \
                 and leaves no room for output. Please shorten it.",
                prompt.len()
            );
            return Err(ApiError::bad_request(Some("prompt"), message));
        }
        let Some(asked) = sampling.max_completion_tokens.or(sampling.max_tokens) else {
            return Ok(default.unwrap_or(room).min(room));
        };
        match usize::try_from(asked) {
            Err(_) | Ok(0) => {
                let message = format!("max_tokens must be at least 1, got {asked}.");
                Err(ApiError::bad_request(Some("max_tokens"), message))
            }
            Ok(asked) if asked > room => {
                let message = format!(
                    "This model's maximum context length is {longest} tokens. However, you requested {asked} \
                     output tokens on top of a prompt of {} tokens. Please reduce one of them.",
                    prompt.len()
                );
                Err(ApiError::bad_request(Some("max_tokens"), message))
            }
            Ok(asked) => Ok(asked),
        }
    }

    fn request(
        &self,
        sequence: Sequence,
        (choice, copy): (usize, usize),
        max_tokens: usize,
        sampling: &Sampling,
        sink: Sink,
    ) -> Request {
        let bytes: Vec<u8> = sequence.tokens().iter().flat_map(|token| token.to_le_bytes()).collect();
        let seed = sampling.seed.unwrap_or(0).cast_unsigned().wrapping_add(copy as u64);
        let mut draws = fastrand::Rng::with_seed(xxh3_64_with_seed(&bytes, seed));
        let mut limit = (max_tokens, Finish::Length);
        if let Some(mean) = self.settings.mean_output_tokens.filter(|_| !sampling.ignore_eos) {
            let mean = mean.max(1) as usize;
            let natural = draws.usize(mean.div_ceil(2)..=mean + mean / 2).max(sampling.min_tokens);
            if natural <= max_tokens {
                limit = (natural, Finish::Stop);
            }
        }
        Request {
            choice,
            prompt_tokens: sequence.tokens().len(),
            sequence,
            limit,
            stop_token_ids: sampling.stop_token_ids.clone().unwrap_or_default(),
            report_reused: sampling.reports_reused(),
            transferred: self.takes_over(sampling),
            draws,
            sink,
            cached_tokens: None,
        }
    }
}
