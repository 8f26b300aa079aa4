//! The fleet's event streams: opened and closed as ranks come and go.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use ahash::AHashMap;
use bytes::Bytes;
use crossbeam_channel::unbounded;
use parking_lot::Mutex;
use tracing::{error, info, warn};

use super::{
    budget::{Budget, IndexMemory},
    counters::{Counters, IngestTotals},
    handle::Stream,
    index_sink::Source,
    ingestor::Ingestor,
    replays::{ReplayTotals, Replays},
    settings::IngestSettings,
    snapshot::{Claim, ExportRequest, Kept, Snapshot, SnapshotBusy, SnapshotTotals, Whose, Writer},
    source::{Endpoint, Feed},
    stream::Memory,
};
use crate::{
    event::Learned,
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
    replays: Arc<Replays>,
    snapshots: Arc<Snapshots>,
}

#[derive(Default)]
struct Open {
    ingestors: AHashMap<IndexKey, Arc<Ingestor>>,
    /// What the streams of indexes that went had done by then: totals that fell would read as a restart.
    gone: Counters,
    streams: AHashMap<Slot, Followed>,
}

/// A rank whose events are followed.
struct Followed {
    key: IndexKey,
    whose: Whose,
    status: Arc<StreamStatus>,
    stream: Stream,
}

/// The snapshot that ranks are resumed from, if any, and what was made of such.
#[derive(Default)]
struct Snapshots {
    kept: Mutex<Option<Kept>>,
    /// Held while one is written.
    writing: Mutex<()>,
    /// Relaxed: a statistic.
    written: AtomicU64,
    unusable: AtomicU64,
}

/// Snapshots that were written and used, at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SnapshotUse {
    /// Snapshots written to their end.
    pub written: u64,
    /// Ranks of the snapshot that was read that have not registered here yet.
    pub waiting: u64,
    /// Ranks that registered here as another model, with other blocks, or started anew, so that it was of no use.
    pub unusable: u64,
}

impl FleetStreams {
    /// No streams yet; those that come keep to `settings`.
    #[must_use]
    pub fn new(settings: IngestSettings) -> Self {
        let (budget, replays) = (Arc::new(Budget::new(&settings)), Replays::new(settings.replays));
        Self { open: Arc::default(), settings, budget, replays, snapshots: Arc::default() }
    }

    /// What all indexes together use, and may.
    #[must_use]
    pub fn memory(&self) -> IndexMemory {
        self.budget.memory()
    }

    /// The replays of all indexes' streams.
    #[must_use]
    pub fn replays(&self) -> ReplayTotals {
        self.replays.totals()
    }

    fn ingestor(&self, key: &IndexKey) -> Option<Arc<Ingestor>> {
        self.open.lock().ingestors.get(key).map(Arc::clone)
    }

    /// Drops what the index holds of a slot and replays what its engine still knows. Nothing happens to a slot without a stream.
    pub fn resync(&self, slot: Slot) {
        if let Some(stream) = self.open.lock().streams.get(&slot) {
            stream.stream.resync();
        }
    }

    /// Writes what the indexes hold, of one model or of all, to wherever `put` puts it, which says whether anybody is still there.
    /// It blocks for as long as that takes. Streams and lookups go on; see `snapshot/mod.rs`.
    ///
    /// # Errors
    /// Another one is being written.
    pub fn write_snapshot(
        &self,
        model: Option<&str>,
        put: impl FnMut(Bytes) -> bool,
    ) -> Result<SnapshotTotals, SnapshotBusy> {
        let Some(_writing) = self.snapshots.writing.try_lock() else { return Err(SnapshotBusy) };
        let totals = self.write(model, Writer::new(put)).unwrap_or_default();
        if totals.bytes > 0 {
            self.snapshots.written.fetch_add(1, Relaxed);
        }
        Ok(totals)
    }

    /// `None` if whoever read it has left.
    fn write(
        &self,
        model: Option<&str>,
        mut writer: Writer<impl FnMut(Bytes) -> bool>,
    ) -> Option<SnapshotTotals> {
        let mut keys: Vec<IndexKey> = self.open.lock().ingestors.keys().cloned().collect();
        keys.retain(|key| model.is_none_or(|model| key.model == model));
        for key in keys {
            writer.index(&key).ok()?;
            let of_key = |(&slot, followed): (&Slot, &Followed)| (followed.key == key).then_some(slot);
            let slots: Vec<Slot> = self.open.lock().streams.iter().filter_map(of_key).collect();
            for slot in slots {
                let asked = self.open.lock().streams.get(&slot).map(|followed| {
                    let (to, exported) = unbounded();
                    followed.stream.export(ExportRequest(to));
                    (followed.whose.clone(), followed.status.state(), exported)
                });
                // It may have left meanwhile.
                let Some((whose, state, exported)) = asked else { continue };
                writer.rank(whose, state, &exported).ok()?;
            }
        }
        writer.end().ok()
    }

    /// Lets ranks that come begin where a snapshot says that they stood, in place of any before it.
    pub fn keep(&self, snapshot: Snapshot) {
        *self.snapshots.kept.lock() = Some(snapshot.kept_for(self.settings.snapshot_kept));
    }

    /// Gives up what is left of a snapshot whose time is over, and says so. To be called now and then.
    pub fn give_up_snapshot(&self) {
        let over = self.snapshots.kept.lock().take_if(|kept| kept.is_over());
        if let Some(left) = over.map(|kept| kept.left()).filter(|&left| left > 0) {
            info!(ranks = left, "the rest of the snapshot is given up: these ranks did not register");
        }
    }

    /// What became of snapshots.
    #[must_use]
    pub fn snapshots(&self) -> SnapshotUse {
        let kept = self.snapshots.kept.lock();
        let waiting = kept.as_ref().filter(|kept| !kept.is_over()).map_or(0, |kept| kept.left() as u64);
        let read = |count: &AtomicU64| count.load(Relaxed);
        SnapshotUse {
            written: read(&self.snapshots.written),
            waiting,
            unusable: read(&self.snapshots.unusable),
        }
    }

    /// What the snapshot has for a rank that comes.
    fn claim(&self, key: &IndexKey, whose: &Whose) -> Option<(Memory, Learned, Bytes)> {
        let mut kept = self.snapshots.kept.lock();
        let claim = kept.as_mut().map_or(Claim::Nothing, |kept| kept.claim(key, whose));
        // What is left when its time is over goes with a word about it; see `give_up_snapshot`.
        drop(kept.take_if(|kept| kept.left() == 0));
        drop(kept);
        match claim {
            Claim::Nothing => None,
            Claim::Rank(memory, learned, records) => Some((memory, learned, records)),
            Claim::Unusable(why) => {
                self.snapshots.unusable.fetch_add(1, Relaxed);
                warn!(worker = whose.worker, rank = whose.rank, why, "the snapshot is of no use for a rank");
                None
            }
        }
    }

    /// What all streams of all indexes have done, those of indexes that went included.
    #[must_use]
    pub fn totals(&self) -> IngestTotals {
        let sum = Counters::default();
        let open = self.open.lock();
        let there = open.ingestors.values().map(|ingestor| &**ingestor.counters());
        there.chain([&open.gone]).for_each(|counters| sum.add_all(counters));
        sum.totals()
    }
}

impl Streams for FleetStreams {
    fn index_created(&self, key: &IndexKey, writers: Vec<IndexWriter>) -> Result<(), String> {
        let (budget, replays) = (Arc::clone(&self.budget), Arc::clone(&self.replays));
        let ingestor = Ingestor::start_within(writers, self.settings, budget, replays).map_err(|error| {
            error!(%error, model = key.model, "no thread to apply KV events with");
            format!("no thread to apply its KV events with ({error}); raise the process's limits")
        })?;
        self.open.lock().ingestors.insert(key.clone(), Arc::new(ingestor));
        Ok(())
    }

    fn index_dropped(&self, key: &IndexKey) {
        let ingestor = {
            // Under one lock: a reader sees it here or there, and once.
            let mut open = self.open.lock();
            let ingestor = open.ingestors.remove(key);
            // What its appliers have left to do, which is no more than to forget slots, is not counted.
            ingestor.iter().for_each(|ingestor| open.gone.add_all(ingestor.counters()));
            ingestor
        };
        // Its appliers end by themselves once they have worked off what is queued.
        drop(ingestor);
    }

    fn open(&self, key: &IndexKey, source: StreamSource, status: Arc<StreamStatus>) -> Result<(), String> {
        let Some(ingestor) = self.ingestor(key) else {
            return Err("the model has no index to write its KV events to".to_owned());
        };
        let whose = Whose::from(&source);
        let StreamSource { slot, worker, rank, block_size, eagle, room, .. } = source;
        let endpoint = Endpoint::new(source.direction, source.events);
        let feed = Feed { replay: source.replay, settings: self.settings.stream, ..Feed::new(endpoint) };
        let source = Source { slot, worker, rank, feed, block_size, eagle, room };
        let snapshot = self.claim(key, &whose);
        let stream =
            ingestor.resume(source, Arc::clone(&status), snapshot).map_err(|error| error.to_string())?;
        self.open.lock().streams.insert(slot, Followed { key: key.clone(), whose, status, stream });
        Ok(())
    }

    fn restarted(&self, slot: Slot, started_ms: u64) {
        if let Some(followed) = self.open.lock().streams.get_mut(&slot) {
            // What a snapshot says of the rank is true of the engine that is there now.
            followed.whose.started_ms = Some(started_ms);
            followed.stream.engine_start_changed();
        }
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::{event::Rejection, index::PrefixIndex};

    /// A scrape would take it for a restart.
    #[test]
    fn what_was_counted_stays_when_an_index_goes() {
        let streams = FleetStreams::new(IngestSettings::default());
        let open = |model: &str| {
            let key = IndexKey { model: model.to_owned(), block_size: 16, eagle: false };
            streams.index_created(&key, PrefixIndex::new(NonZeroUsize::MIN).1).unwrap();
            let counters = Arc::clone(streams.ingestor(&key).unwrap().counters());
            counters.note_bad_message();
            counters.note_rejected(Rejection::ALL[1], 2);
            key
        };
        let seen = || {
            let totals = streams.totals();
            (totals.bad_messages, totals.rejected[1].1)
        };
        assert_eq!(seen(), (0, 0));
        let (one, _) = (open("a"), open("b"));
        assert_eq!(seen(), (2, 4));
        streams.index_dropped(&one);
        assert_eq!(seen(), (2, 4));
        open("a");
        assert_eq!(seen(), (3, 6), "it came back");
    }
}
