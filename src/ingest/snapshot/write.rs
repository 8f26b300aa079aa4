//! From ranks to bytes.

use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use xxhash_rust::xxh3::Xxh3;

use super::{
    export::Exported,
    kept::Whose,
    wire::{
        HASH_RULE, IndexRecord, MAGIC, MemoryRecord, PartRecord, RankRecord, Record, SNAPSHOT_FORMAT,
        learned_records, probe, written,
    },
};
use crate::fleet::{IndexKey, StreamState};

/// How long a rank may take to say where it stands. Its stream's thread waits with its batches while its queue is full.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may take for the next part after that.
const PART_PATIENCE: Duration = Duration::from_secs(30);

/// Another snapshot is being written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("another snapshot is being written, and one at a time is; ask again in a moment")]
pub struct SnapshotBusy;

/// What a snapshot has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SnapshotTotals {
    /// Ranks whose blocks are in it.
    pub ranks: u64,
    /// Ranks that are named in it without their blocks: what the index holds of them was not certain.
    pub left_out: u64,
    /// Names of blocks.
    pub blocks: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Whoever read the snapshot has left.
#[derive(Debug)]
pub(in crate::ingest) struct Left;

/// Writes a snapshot to wherever `put` puts it, which says whether anybody is still there.
pub(in crate::ingest) struct Writer<F> {
    put: F,
    sum: Xxh3,
    buffer: Vec<u8>,
    totals: SnapshotTotals,
}

/// Bytes that are put together.
const CHUNK: usize = 64 << 10;

impl<F: FnMut(Bytes) -> bool> Writer<F> {
    pub(in crate::ingest) fn new(put: F) -> Self {
        let writer = env!("CARGO_PKG_VERSION").as_bytes();
        let mut buffer = MAGIC.to_vec();
        buffer.extend_from_slice(&SNAPSHOT_FORMAT.to_le_bytes());
        buffer.push(u8::try_from(writer.len()).unwrap_or(0));
        buffer.extend_from_slice(writer);
        Self { put, sum: Xxh3::new(), buffer, totals: SnapshotTotals::default() }
    }

    pub(in crate::ingest) fn index(&mut self, key: &IndexKey) -> Result<(), Left> {
        let IndexKey { model, block_size, eagle } = key.clone();
        let probe = probe(block_size).unwrap_or(0);
        let hash_rule = HASH_RULE.to_owned();
        self.record(&Record::Index(IndexRecord { model, block_size, eagle, hash_rule, probe }))
    }

    /// Writes what comes of a rank.
    pub(in crate::ingest) fn rank(
        &mut self,
        whose: Whose,
        state: StreamState,
        exported: &Receiver<Exported>,
    ) -> Result<(), Left> {
        let Whose { worker, url, rank, events, replay, started_ms } = whose;
        let record = |state: StreamState, memory| {
            let state = state.name().to_owned();
            Record::Rank(RankRecord { worker, url, rank, events, replay, started_ms, state, memory })
        };
        let Ok(Exported::Begins(begins)) = exported.recv_timeout(PATIENCE) else {
            return self.leave_out(&record(state, None));
        };
        let (memory, state, learned) = *begins;
        // In memory first: what is written after a rank that could not be finished would be taken for whole.
        let Some((parts, blocks)) = all_parts(exported) else {
            return self.leave_out(&record(state, None));
        };
        let memory = MemoryRecord {
            sequence: memory.sequence,
            fingerprint: memory.fingerprint,
            lost_before: memory.lost_before,
        };
        self.record(&record(state, Some(memory)))?;
        for learned in learned_records(&learned) {
            self.record(&Record::Learned(learned))?;
        }
        for record in parts {
            self.frame(&record)?;
        }
        self.totals.ranks += 1;
        self.totals.blocks += blocks;
        self.record(&Record::EndOfRank(blocks))
    }

    /// Names a rank without its blocks.
    fn leave_out(&mut self, rank: &Record) -> Result<(), Left> {
        self.record(rank)?;
        self.totals.left_out += 1;
        self.record(&Record::EndOfRank(0))
    }

    pub(in crate::ingest) fn end(mut self) -> Result<SnapshotTotals, Left> {
        self.record(&Record::End(self.totals.ranks + self.totals.left_out))?;
        self.flush()?;
        let sum = self.sum.digest();
        self.buffer.extend_from_slice(&sum.to_le_bytes());
        self.flush()?;
        Ok(self.totals)
    }

    fn record(&mut self, record: &Record) -> Result<(), Left> {
        self.frame(&written(record))
    }

    fn frame(&mut self, record: &[u8]) -> Result<(), Left> {
        // A record is far smaller than u32 can count.
        let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
        self.buffer.extend_from_slice(&length.to_le_bytes());
        self.buffer.extend_from_slice(record);
        if self.buffer.len() >= CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Left> {
        let chunk = std::mem::take(&mut self.buffer);
        self.sum.update(&chunk);
        self.totals.bytes += chunk.len() as u64;
        if (self.put)(Bytes::from(chunk)) { Ok(()) } else { Err(Left) }
    }
}

/// The records of all parts of a rank, and how many names they have; `None` if its end does not come.
fn all_parts(exported: &Receiver<Exported>) -> Option<(Vec<Vec<u8>>, u64)> {
    let (mut records, mut blocks) = (Vec::new(), 0);
    loop {
        match exported.recv_timeout(PART_PATIENCE) {
            Ok(Exported::Parts(parts)) => {
                let parts: Vec<PartRecord> = parts.iter().map(PartRecord::from).collect();
                blocks += parts.iter().map(names).sum::<u64>();
                records.push(written(&Record::Parts(parts)));
            }
            Ok(Exported::Ends) => return Some((records, blocks)),
            Ok(Exported::Begins(_)) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return None;
            }
        }
    }
}

fn names(part: &PartRecord) -> u64 {
    match part {
        PartRecord::Stretch { held, .. } => held.len() as u64,
        PartRecord::Waits { .. } => 1,
    }
}
