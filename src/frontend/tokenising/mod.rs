//! Prompts to tokens, so that a long one does not hold up the short ones.
//!
//! What is cached of a prompt (see [`SegmentCache`]) costs next to nothing. By the bytes that are left to tokenise it is
//! done
//!
//! * at once on the request's own thread, if they are few: it takes less time than going anywhere else, or not much more;
//! * on a *short* line of threads, if they take some milliseconds;
//! * else on a *long* line of fewer threads, which give way to all others. There, prompts of seconds wait for each other
//!   and for nobody else.
//!
//! Both queues are bounded. A prompt beyond is refused, not routed by load alone: it would make some worker compute
//! what another has, at the very time when there is too much to do.

mod line;
mod page;
mod settings;

use std::{sync::Arc, time::Duration};

use self::line::{Line, LineSettings, NotDone, Waiter};
pub(super) use self::page::write;
pub use self::settings::TokenizerSettings;
use super::{
    app::App,
    error::ApiError,
    prompts::{Chat, PromptInput, TokenSource, Tokens},
};
use crate::{
    fleet::SetView,
    prompt::{Draft, Encoded, Encoder, PromptError, SegmentCache},
};

/// Bytes to tokenise up to which it is done on the request's thread: about a millisecond.
const INLINE_BYTES: usize = 4 << 10;

/// Bytes up to which it is done on the short line.
const SHORT_BYTES: usize = 32 << 10;

/// Size of a body up to which its prompt is rendered and looked up on the request's thread: well below a millisecond.
const RENDER_INLINE_BYTES: usize = 128 << 10;

/// What turns prompts into tokens: threads, queues, and what is known already.
#[derive(Debug)]
pub(super) struct Tokenising {
    cache: Arc<SegmentCache>,
    short: Line,
    long: Line,
    queue_limit: usize,
}

/// A prompt that is not tokens yet.
enum Written {
    Chat(Box<Chat>),
    Text { text: String, add_special_tokens: bool },
}

/// Why a prompt has no tokens.
enum Untold {
    /// The request is refused.
    Refused(ApiError),
    /// The request is routed without.
    Problem(String),
}

impl From<PromptError> for Untold {
    fn from(error: PromptError) -> Self {
        Self::Problem(error.to_string())
    }
}

impl Tokenising {
    pub(super) fn new(settings: &TokenizerSettings) -> Self {
        let TokenizerSettings { cache_bytes, threads, queue_limit } = *settings;
        let line = |name, threads, gives_way| {
            Line::new(LineSettings { name, threads, limit: queue_limit, gives_way })
        };
        let threads = threads.get();
        Self {
            cache: Arc::new(SegmentCache::new(cache_bytes)),
            short: line("short", threads.saturating_add(1), false),
            long: line("long", threads, true),
            queue_limit,
        }
    }

    /// The tokens of a prompt that came in a body of so many bytes.
    async fn tokens(&self, encoder: &Arc<Encoder>, written: Written, bytes: usize) -> Result<Tokens, Untold> {
        let draft = if bytes <= RENDER_INLINE_BYTES {
            draft(encoder, written, &self.cache)?
        } else {
            let (encoder, cache) = (Arc::clone(encoder), Arc::clone(&self.cache));
            let drafted = self.short.run(move |_| Some(draft(&encoder, written, &cache)));
            drafted.await.map_err(|reason| self.untold(&reason))??
        };
        if draft.open_bytes() <= INLINE_BYTES {
            return self.finish_here(encoder, draft);
        }
        let line = if draft.open_bytes() <= SHORT_BYTES { &self.short } else { &self.long };
        let (encoder, cache) = (Arc::clone(encoder), Arc::clone(&self.cache));
        let finished = line
            .run(move |waiter: &Waiter<_>| encoder.finish(draft, &cache, &|| waiter.has_left()).transpose());
        Ok(tokens(finished.await.map_err(|reason| self.untold(&reason))??))
    }

    fn finish_here(&self, encoder: &Encoder, draft: Draft) -> Result<Tokens, Untold> {
        // Nobody gives up in the middle of a step, so there is always a result.
        let finished = encoder.finish(draft, &self.cache, &|| false)?;
        finished.map(tokens).ok_or_else(|| Untold::Problem("tokenising was given up".to_owned()))
    }

    fn untold(&self, reason: &NotDone) -> Untold {
        match reason {
            NotDone::Full => Untold::Refused(ApiError::turned_away(
                "tokenizer_queue_full",
                format!(
                    "{} prompts wait to be tokenised already, as many as may (--tokenizer-queue-limit); try again later",
                    self.queue_limit
                ),
                Duration::ZERO,
            )),
            NotDone::Broken => Untold::Problem("tokenising the prompt failed inside the router".to_owned()),
        }
    }
}

fn draft(encoder: &Encoder, written: Written, cache: &SegmentCache) -> Result<Draft, PromptError> {
    match written {
        Written::Chat(chat) => encoder.draft_chat(&chat.input(), cache),
        Written::Text { text, add_special_tokens } => Ok(encoder.draft_text(text, add_special_tokens, cache)),
    }
}

fn tokens(encoded: Encoded) -> Tokens {
    Tokens { ids: encoded.tokens, complete: encoded.complete, source: TokenSource::Tokenizer, problem: None }
}

impl App {
    /// The tokens of a prompt for the set's model. What cannot be tokenised here (a conversation that the template refuses,
    /// say) has no known tokens, and the engine judges it.
    ///
    /// # Errors
    /// 429 when too many prompts wait to be tokenised.
    pub(super) async fn tokenise(
        &self,
        set: &SetView,
        input: PromptInput,
        bytes: usize,
    ) -> Result<Tokens, ApiError> {
        let (encoder, written) = match (input, self.prompts.encoder(&set.key.model)) {
            (PromptInput::Tokens(ids), _) => return Ok(Tokens::known(ids, TokenSource::Client)),
            (PromptInput::Chat(chat), Some(encoder)) if chat.own_template.is_none() => {
                (encoder, Written::Chat(chat))
            }
            (PromptInput::Text { text, add_special_tokens }, Some(encoder)) => {
                (encoder, Written::Text { text, add_special_tokens })
            }
            (input, _) => return Ok(self.ask_engine(set, &input).await),
        };
        match self.tokenising.tokens(encoder, written, bytes).await {
            Ok(tokens) => Ok(tokens),
            Err(Untold::Problem(problem)) => Ok(self.counters.nobody(problem)),
            Err(Untold::Refused(error)) => Err(error),
        }
    }

    /// Has a thread for long prompts do `work` once it is its turn, as if it were a prompt. Returns whether it could be
    /// queued. For tests and measurements that need these threads busy.
    pub fn occupy_tokenizer(&self, work: impl FnOnce() + Send + 'static) -> bool {
        self.tokenising.long.leave(work).is_ok()
    }
}
