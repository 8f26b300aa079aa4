//! Ranks of a snapshot that wait for the same ranks here.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::wire::RankRecord;
use crate::{
    event::Learned,
    fleet::{IndexKey, StreamSource},
    ingest::stream::Memory,
};

/// Which rank it is, as it was registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::ingest) struct Whose {
    pub(in crate::ingest) worker: u64,
    pub(in crate::ingest) url: String,
    pub(in crate::ingest) rank: u32,
    pub(in crate::ingest) events: String,
    pub(in crate::ingest) replay: Option<String>,
    /// When the worker was started, if it says.
    pub(in crate::ingest) started_ms: Option<u64>,
}

impl From<&StreamSource> for Whose {
    fn from(source: &StreamSource) -> Self {
        Self {
            worker: source.worker.0,
            url: source.url.clone(),
            rank: source.rank.0,
            events: source.events.clone(),
            replay: source.replay.clone(),
            started_ms: source.started_ms,
        }
    }
}

impl From<RankRecord> for Whose {
    fn from(record: RankRecord) -> Self {
        let RankRecord { worker, url, rank, events, replay, started_ms, .. } = record;
        Self { worker, url, rank, events, replay, started_ms }
    }
}

impl Whose {
    /// Whether the two are one place. Ids are each frontend's own where a worker did not choose one, so they do not count.
    fn is_at_the_place_of(&self, other: &Self) -> bool {
        (&self.url, self.rank, &self.events, &self.replay)
            == (&other.url, other.rank, &other.events, &other.replay)
    }

    /// Whether both say when they were started, and differ.
    fn was_started_apart_from(&self, other: &Self) -> bool {
        matches!((self.started_ms, other.started_ms), (Some(one), Some(other)) if one != other)
    }
}

/// One rank, as it was written.
#[derive(Debug)]
pub(super) struct KeptRank {
    pub(super) key: IndexKey,
    pub(super) whose: Whose,
    pub(super) memory: Memory,
    pub(super) learned: Learned,
    /// Frames of its parts.
    pub(super) records: Bytes,
}

/// The ranks of a snapshot that nobody has asked for yet.
#[derive(Debug)]
pub(in crate::ingest) struct Kept {
    ranks: Vec<KeptRank>,
    until: Instant,
}

/// What a snapshot has for a rank that comes.
#[derive(Debug)]
pub(in crate::ingest) enum Claim {
    /// Nothing.
    Nothing,
    /// Something that cannot be used, and why.
    Unusable(&'static str),
    /// Where its stream stood, what that had learned, and the frames of what it held.
    Rank(Memory, Learned, Bytes),
}

impl Kept {
    pub(super) fn of(ranks: Vec<KeptRank>, kept_for: Duration) -> Self {
        Self { ranks, until: Instant::now() + kept_for }
    }

    /// Whether it is of no more use.
    pub(in crate::ingest) fn is_over(&self) -> bool {
        self.ranks.is_empty() || Instant::now() >= self.until
    }

    /// How many ranks were never asked for.
    pub(in crate::ingest) fn left(&self) -> usize {
        self.ranks.len()
    }

    /// Takes out what there is for a rank.
    pub(in crate::ingest) fn claim(&mut self, key: &IndexKey, whose: &Whose) -> Claim {
        let same = self.ranks.iter().position(|rank| rank.whose.is_at_the_place_of(whose));
        let Some(at) = same.filter(|_| !self.is_over()) else { return Claim::Nothing };
        let rank = self.ranks.swap_remove(at);
        if rank.key.model != key.model {
            return Claim::Unusable("its model is another one here");
        }
        if rank.key != *key {
            return Claim::Unusable("its blocks have another size, or are hashed otherwise, here");
        }
        if rank.whose.was_started_apart_from(whose) {
            return Claim::Unusable("its worker was started again since");
        }
        if whose.replay.is_none() {
            return Claim::Unusable(
                "it has no replay endpoint, so nobody can say whether its engine is the same",
            );
        }
        Claim::Rank(rank.memory, rank.learned, rank.records)
    }
}
