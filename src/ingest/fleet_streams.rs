//! The fleet's event streams: opened and closed as ranks come and go.

use std::sync::Arc;

use ahash::AHashMap;
use parking_lot::Mutex;
use tracing::error;

use super::{
    applier::Ingestor,
    budget::{Budget, IndexMemory},
    counters::IngestTotals,
    handle::Stream,
    index_sink::Source,
    settings::IngestSettings,
    source::{Endpoint, Feed},
};
use crate::{
    fleet::{Expectations, ExpectedLimits, IndexKey, StreamSource, StreamStatus, Streams},
    index::IndexWriter,
    slot::Slot,
};

/// Runs the streams of a fleet: an [`Ingestor`] per index, a [`Stream`] per rank that has one. Clones share
/// them, so that one can go to the fleet and another to whoever reads the totals.
#[derive(Clone)]
pub struct FleetStreams {
    /// Held to look something up or to put it in, never while sockets open, threads end or a queue is full: a scrape
    /// must not wait for those.
    open: Arc<Mutex<Open>>,
    settings: IngestSettings,
    /// Of all indexes together.
    budget: Arc<Budget>,
}

#[derive(Default)]
struct Open {
    ingestors: AHashMap<IndexKey, Arc<Ingestor>>,
    streams: AHashMap<Slot, Stream>,
}

impl FleetStreams {
    /// No streams yet; those that come keep to `settings`.
    #[must_use]
    pub fn new(settings: IngestSettings) -> Self {
        Self { open: Arc::default(), settings, budget: Arc::new(Budget::new(&settings)) }
    }

    /// What all indexes together use, and may.
    #[must_use]
    pub fn memory(&self) -> IndexMemory {
        self.budget.memory()
    }

    fn ingestor(&self, key: &IndexKey) -> Option<Arc<Ingestor>> {
        self.open.lock().ingestors.get(key).map(Arc::clone)
    }

    /// Drops what the index holds of a slot and replays what its engine still knows. Nothing happens to a slot without a stream.
    pub fn resync(&self, slot: Slot) {
        if let Some(stream) = self.open.lock().streams.get(&slot) {
            stream.resync();
        }
    }

    /// What all streams of all indexes have done.
    #[must_use]
    pub fn totals(&self) -> Vec<(IndexKey, IngestTotals)> {
        let open = self.open.lock();
        let totals =
            |(key, ingestor): (&IndexKey, &Arc<Ingestor>)| (key.clone(), ingestor.counters().totals());
        open.ingestors.iter().map(totals).collect()
    }
}

impl Streams for FleetStreams {
    fn index_created(&self, key: &IndexKey, writers: Vec<IndexWriter>) {
        match Ingestor::start_within(writers, self.settings, Arc::clone(&self.budget)) {
            Ok(ingestor) => {
                self.open.lock().ingestors.insert(key.clone(), Arc::new(ingestor));
            }
            // `open` then refuses every worker of the model with the reason.
            Err(error) => error!(%error, model = key.model, "no thread to apply KV events with"),
        }
    }

    fn index_dropped(&self, key: &IndexKey) {
        let ingestor = self.open.lock().ingestors.remove(key);
        // Its appliers end by themselves once they have worked off what is queued.
        drop(ingestor);
    }

    fn open(&self, key: &IndexKey, source: StreamSource, status: Arc<StreamStatus>) -> Result<(), String> {
        let Some(ingestor) = self.ingestor(key) else {
            return Err("the index of this model has no thread to apply KV events with".to_owned());
        };
        let StreamSource { slot, worker, rank, block_size, eagle, room, .. } = source;
        let endpoint = Endpoint::new(source.direction, source.events);
        let feed = Feed { replay: source.replay, settings: self.settings.stream, ..Feed::new(endpoint) };
        let source = Source { slot, worker, rank, feed, block_size, eagle, room };
        let stream = ingestor.open(source, status).map_err(|error| error.to_string())?;
        self.open.lock().streams.insert(slot, stream);
        Ok(())
    }

    fn expect(
        &self,
        key: &IndexKey,
        rank: Slot,
        slot: Slot,
        limits: ExpectedLimits,
    ) -> Option<Box<dyn Expectations>> {
        let notices = self.ingestor(key)?.expect(rank, slot, limits)?;
        Some(Box::new(notices))
    }

    fn close(&self, key: &IndexKey, slot: Slot) {
        // Joining the stream's thread comes before the retirement, so that nothing of it is queued after.
        let stream = self.open.lock().streams.remove(&slot);
        drop(stream);
        if let Some(ingestor) = self.ingestor(key) {
            ingestor.retire(slot);
        }
    }
}
