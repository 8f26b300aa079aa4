//! The engine as a whole: started, looked at, broken on purpose, stopped.

use std::net::SocketAddr;
use std::sync::Arc;

use http::StatusCode;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::block_manager::BlockManager;
use super::http::{App, HttpFaults, listen, router, serve};
use super::pace::Speed;
use super::publisher::Publisher;
use super::scheduler::{Limits, Scheduler};
use super::settings::{MockError, MockSettings};
use super::stats::Stats;
use super::{engine, vocabulary};
use crate::simulate::StepTimes;

/// A running mock engine. Dropping it kills it; [`stop`](Self::stop) does too and waits until its ports are
/// free.
#[derive(Debug)]
pub struct MockEngine {
    http: SocketAddr,
    stats: Arc<Stats>,
    publisher: Option<Arc<Publisher>>,
    faults: Arc<HttpFaults>,
    stop: CancellationToken,
    server: JoinHandle<()>,
    engine: JoinHandle<()>,
}

impl MockEngine {
    /// Binds every socket and starts serving on the current tokio runtime. ZMQ has a thread of its own.
    ///
    /// # Errors
    /// When a setting is out of range, an address cannot be had, or the tokenizer has nothing to say.
    pub async fn start(settings: MockSettings) -> Result<Self, MockError> {
        settings.validate()?;
        let palette = vocabulary::palette(&settings.encoder);
        if palette.is_empty() {
            return Err(MockError::Vocabulary);
        }
        let address = settings.http;
        let refused = |source| MockError::Http { address, source };
        let listener = listen(address).map_err(refused)?;
        let http = listener.local_addr().map_err(refused)?;
        let publishes = settings.events.is_some() || settings.replay.is_some();
        let publisher = publishes.then(|| Publisher::start(&settings).map(Arc::new)).transpose()?;
        let stats = Arc::new(Stats::default());
        let (commands, received) = mpsc::unbounded_channel();
        let cache = BlockManager::new(settings.block_size as usize, settings.num_gpu_blocks);
        let scheduler = Scheduler::new(cache, limits(&settings), palette.into());
        let speed = speed(&settings);
        let engine = engine::run(scheduler, received, speed, publisher.clone(), Arc::clone(&stats));
        let engine = tokio::spawn(engine);
        let app = Arc::new(App::new(settings, commands, Arc::clone(&stats), publisher.clone()));
        let faults = Arc::clone(&app.faults);
        let stop = CancellationToken::new();
        let (serving, loop_of_steps) = (serve(listener, router(app), stop.clone()), engine.abort_handle());
        let server = tokio::spawn(async move {
            serving.await;
            // Not before: a handler whose engine is gone would still answer, and a killed process answers
            // nothing.
            loop_of_steps.abort();
        });
        Ok(Self { http, stats, publisher, faults, stop, server, engine })
    }

    /// Where HTTP listens.
    pub fn http_addr(&self) -> SocketAddr {
        self.http
    }

    /// Where to subscribe to KV events, with the real port; `None` when none are published.
    pub fn events_endpoint(&self) -> Option<&str> {
        self.publisher.as_ref()?.events_endpoint()
    }

    /// Where to ask for replays, with the real port; `None` when there are none.
    pub fn replay_endpoint(&self) -> Option<&str> {
        self.publisher.as_ref()?.replay_endpoint()
    }

    /// The number of the last batch that was handed to the publisher. Whoever has seen the last token of an
    /// answer sees all its batches counted here, sent or not.
    pub fn last_sequence(&self) -> Option<u64> {
        self.publisher.as_ref()?.last_sequence()
    }

    /// Requests that run.
    pub fn running(&self) -> u64 {
        self.stats.running.get()
    }

    /// Requests that wait.
    pub fn waiting(&self) -> u64 {
        self.stats.waiting.get()
    }

    /// Blocks that carry a reusable prefix, copies included.
    pub fn cached_blocks(&self) -> u64 {
        self.stats.cached_blocks.get()
    }

    /// Blocks that running requests hold.
    pub fn used_blocks(&self) -> u64 {
        self.stats.used_blocks.get()
    }

    /// Preemptions so far.
    pub fn preemptions(&self) -> u64 {
        self.stats.preemptions.get()
    }

    /// Fault: keeps the next `count` batches off the live socket. The replay buffer has them.
    pub fn drop_batches(&self, count: u64) {
        if let Some(publisher) = &self.publisher {
            publisher.drop_batches(count);
        }
    }

    /// Fault: while stalled, batches are neither sent nor put into the replay buffer; when the stall ends
    /// they follow in order.
    pub fn stall_events(&self, stalled: bool) {
        if let Some(publisher) = &self.publisher {
            publisher.stall(stalled);
        }
    }

    /// Fault: one generating request (chat, completions, embeddings) is answered with `status`. Calls add up.
    pub fn fail_next(&self, status: StatusCode) {
        self.faults.fail_next(status);
    }

    /// Fault: one streaming answer breaks off after `events` events. Calls add up.
    pub fn cut_next(&self, events: u64) {
        self.faults.cut_next(events);
    }

    /// Kills the engine: connections break in the middle of what they carry, nothing is drained, nothing is
    /// said to subscribers. When this returns, every socket is closed and the same ports can be bound again.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let _ = (&mut self.server).await;
        let _ = (&mut self.engine).await;
        if let Some(publisher) = self.publisher.take() {
            // Joining a thread and closing ZMQ block.
            let _ = tokio::task::spawn_blocking(move || publisher.close()).await;
        }
    }
}

impl Drop for MockEngine {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(publisher) = &self.publisher {
            publisher.close();
        }
    }
}

fn limits(settings: &MockSettings) -> Limits {
    let MockSettings { max_num_seqs, max_num_batched_tokens, .. } = *settings;
    Limits { max_num_seqs, max_num_batched_tokens }
}

fn speed(settings: &MockSettings) -> Speed {
    let flat = || {
        StepTimes::flat(
            settings.step_overhead.as_secs_f64(),
            settings.prefill_tokens_per_second,
            settings.decode_tokens_per_second,
        )
    };
    Speed { times: settings.step_times.unwrap_or_else(flat), speedup: settings.speedup }
}
