//! From bytes to ranks.

use std::time::Duration;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    kept::{Kept, KeptRank, Whose},
    wire::{HASH_RULE, IndexRecord, LARGEST, MAGIC, RankRecord, Record, SNAPSHOT_FORMAT, SUM, learn, probe},
};
use crate::{event::Learned, fleet::IndexKey, ingest::stream::Memory};

/// A snapshot that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes are something else.
    #[error(
        "this is no snapshot of an index: it does not begin as one; GET /v1/index/snapshot of a frontend's admin listener answers with one"
    )]
    NotASnapshot,
    /// The format is another one.
    #[error(
        "the snapshot has format {found}, written by kvroute {writer}, and this version reads format {SNAPSHOT_FORMAT}: take \
         it from a frontend of this version"
    )]
    OtherFormat {
        /// The snapshot's.
        found: u32,
        /// The version that wrote it.
        writer: String,
    },
    /// The bytes are not all that was written.
    #[error("the snapshot is cut short or was changed on its way: its checksum is another; fetch it again")]
    Checksum,
    /// The bytes are what was written, and make no sense.
    #[error("the snapshot cannot be read at byte {at}: {problem}")]
    Corrupt {
        /// Where its frame begins.
        at: usize,
        /// What is wrong there.
        problem: &'static str,
    },
    /// Its blocks have other hashes than here.
    #[error(
        "the snapshot's blocks of model '{model}' are hashed by '{rule}', in blocks of {block_size}, and not as here ('{HASH_RULE}'): \
         take it from a frontend of this version"
    )]
    OtherHashes {
        /// The index's model.
        model: String,
        /// What the snapshot calls its rule.
        rule: String,
        /// Its block size.
        block_size: u32,
    },
}

/// A snapshot that was read, checked from its first byte to its last.
#[derive(Debug)]
pub struct Snapshot {
    ranks: Vec<KeptRank>,
    bytes: usize,
}

impl Snapshot {
    /// Reads a whole snapshot. The bytes stay in memory until every rank of it has been taken or given up.
    ///
    /// # Errors
    /// See [`SnapshotError`]. Nothing of a snapshot with an error is used.
    pub fn read(bytes: &Bytes) -> Result<Self, SnapshotError> {
        let mut at = header(bytes)?;
        let end = bytes.len().checked_sub(SUM).filter(|&end| end >= at).ok_or(SnapshotError::Checksum)?;
        let (body, sum) = bytes.split_at(end);
        if xxh3_64(body).to_le_bytes() != sum {
            return Err(SnapshotError::Checksum);
        }
        let mut reading = Reading::default();
        while at < end {
            let corrupt = |problem| SnapshotError::Corrupt { at, problem };
            let (record, length) = next_record(&body[at..]).map_err(corrupt)?;
            reading.take(record, (at, at + length), bytes)?;
            at += length;
        }
        if !reading.ended {
            return Err(SnapshotError::Corrupt { at, problem: "it has no end" });
        }
        Ok(Self { ranks: reading.ranks, bytes: bytes.len() })
    }

    /// Its ranks, which wait so long for the same ranks here.
    pub(in crate::ingest) fn kept_for(self, time: Duration) -> Kept {
        Kept::of(self.ranks, time)
    }

    /// Bytes of it.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Ranks whose blocks are in it.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }
}

/// Where the first frame begins.
fn header(bytes: &[u8]) -> Result<usize, SnapshotError> {
    let not_one = || SnapshotError::NotASnapshot;
    let rest = bytes.strip_prefix(&MAGIC).ok_or_else(not_one)?;
    let (format, rest) = rest.split_first_chunk::<4>().ok_or_else(not_one)?;
    let (&length, rest) = rest.split_first().ok_or_else(not_one)?;
    let writer = rest.get(..usize::from(length)).ok_or_else(not_one)?;
    let found = u32::from_le_bytes(*format);
    if found != SNAPSHOT_FORMAT {
        let writer = String::from_utf8_lossy(writer).into_owned();
        return Err(SnapshotError::OtherFormat { found, writer });
    }
    Ok(MAGIC.len() + 5 + usize::from(length))
}

/// The record of the frame that `bytes` begin with, and the frame's length; else what is wrong with it.
pub(super) fn next_record(bytes: &[u8]) -> Result<(Record, usize), &'static str> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or("a frame is cut short")?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > LARGEST {
        return Err("a record is larger than any");
    }
    let record = rest.get(..length).ok_or("a frame is cut short")?;
    match postcard::take_from_bytes(record) {
        Ok((record, [])) => Ok((record, 4 + length)),
        Ok(_) => Err("a record is longer than what it holds"),
        Err(_) => Err("a record is malformed"),
    }
}

/// Where something begins and ends.
type Range = (usize, usize);

#[derive(Default)]
struct Reading {
    key: Option<IndexKey>,
    /// The rank in hand, what was learned of it, and where its parts begin and end.
    rank: Option<(RankRecord, Learned, Option<Range>)>,
    ranks: Vec<KeptRank>,
    seen: u64,
    ended: bool,
}

impl Reading {
    fn take(
        &mut self,
        record: Record,
        (start, end): (usize, usize),
        bytes: &Bytes,
    ) -> Result<(), SnapshotError> {
        let corrupt = |problem| Err(SnapshotError::Corrupt { at: start, problem });
        if self.ended {
            return corrupt("it goes on behind its end");
        }
        match (record, &mut self.rank) {
            (Record::Index(index), None) => self.key = Some(key(index)?),
            (Record::Rank(rank), None) if self.key.is_some() => {
                self.rank = Some((rank, Learned::default(), None));
                self.seen += 1;
            }
            (Record::Learned(record), Some((_, learned, None))) => learn(learned, record),
            (Record::Parts(_), Some((_, _, parts))) => {
                let first = parts.map_or(start, |(first, _)| first);
                *parts = Some((first, end));
            }
            (Record::EndOfRank(_), Some(_)) => {
                if let (Some((rank, learned, parts)), Some(key)) = (self.rank.take(), &self.key)
                    && let Some(memory) = rank.memory
                {
                    let memory = Memory {
                        sequence: memory.sequence,
                        fingerprint: memory.fingerprint,
                        lost_before: memory.lost_before,
                    };
                    let records = parts.map_or_else(Bytes::new, |(start, end)| bytes.slice(start..end));
                    let whose = Whose::from(rank);
                    self.ranks.push(KeptRank { key: key.clone(), whose, memory, learned, records });
                }
            }
            (Record::End(ranks), None) if ranks == self.seen => self.ended = true,
            _ => return corrupt("its records come in an order that no frontend writes"),
        }
        Ok(())
    }
}

fn key(index: IndexRecord) -> Result<IndexKey, SnapshotError> {
    let IndexRecord { model, block_size, eagle, hash_rule, probe: theirs } = index;
    if hash_rule != HASH_RULE || probe(block_size) != Some(theirs) {
        return Err(SnapshotError::OtherHashes { model, rule: hash_rule, block_size });
    }
    Ok(IndexKey { model, block_size, eagle })
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::unbounded;

    use super::*;
    use crate::{
        event::EngineHash,
        fleet::StreamState,
        hash::BlockHash,
        index::snapshot::{Held, Parent, Part, Stretch, Waits},
        ingest::snapshot::{Claim, export::Exported, write::Writer},
    };

    fn key() -> IndexKey {
        IndexKey { model: "m".to_owned(), block_size: 16, eagle: false }
    }

    fn whose(rank: u32) -> Whose {
        Whose {
            worker: 7,
            url: "http://10.0.0.1:8000/".to_owned(),
            rank,
            events: format!("tcp://10.0.0.1:{}", 5557 + rank),
            replay: Some("tcp://10.0.0.1:5600".to_owned()),
            started_ms: Some(1_000),
        }
    }

    const MEMORY: Memory = Memory { sequence: 41, fingerprint: u64::MAX, lost_before: Some(3) };

    fn learned() -> Learned {
        Learned {
            groups: vec![(0, true), (-1, false)],
            salts: vec!["tenant".into()],
            blocks: vec![(EngineHash(9), Some(0), [1, 0, 0, 2]), (EngineHash(8), None, [1; 4])],
        }
    }

    fn parts() -> Vec<Part> {
        let held = vec![Held { offset: 1, name: EngineHash(u64::MAX), copies: [1, 0, 2, 0] }];
        let contents = vec![BlockHash(5), BlockHash(u64::MAX)];
        let stretch =
            |parent| Part::Stretch(Stretch { parent, contents: contents.clone(), held: held.clone() });
        let below = Some((EngineHash(4), BlockHash(6)));
        vec![
            stretch(Parent::Start),
            stretch(Parent::Named(EngineHash(77))),
            stretch(Parent::Unheld { stretch: 0, offset: 1 }),
            Part::Waits(Waits { name: EngineHash(1), below, copies: [0, 0, 0, 1] }),
            Part::Waits(Waits { name: EngineHash(2), below: None, copies: [3, 0, 0, 0] }),
        ]
    }

    /// A snapshot of one rank whose state is certain, one that has nothing, and one that is not certain.
    fn written() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(|piece: Bytes| {
            bytes.extend_from_slice(&piece);
            true
        });
        writer.index(&key()).unwrap();
        for (rank, parts) in [(0, Some(parts())), (1, Some(Vec::new())), (2, None)] {
            let (to, exported) = unbounded();
            if let Some(parts) = parts {
                let learned = if parts.is_empty() { Learned::default() } else { learned() };
                to.send(Exported::Begins(Box::new((MEMORY, StreamState::Live, learned)))).unwrap();
                parts.into_iter().for_each(|part| to.send(Exported::Parts(vec![part])).unwrap());
                to.send(Exported::Ends).unwrap();
            }
            drop(to);
            writer.rank(whose(rank), StreamState::Replaying, &exported).unwrap();
        }
        let totals = writer.end().unwrap();
        assert_eq!((totals.ranks, totals.left_out, totals.blocks), (2, 1, 5));
        assert_eq!(totals.bytes, bytes.len() as u64);
        bytes
    }

    /// Longer than a test takes.
    const LONG: Duration = Duration::from_secs(3600);

    fn read(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
        Snapshot::read(&Bytes::copy_from_slice(bytes))
    }

    fn parts_in(mut records: &[u8]) -> Vec<Part> {
        let mut parts = Vec::new();
        while !records.is_empty() {
            let (record, length) = next_record(records).unwrap();
            let Record::Parts(some) = record else { panic!("{record:?}") };
            parts.extend(some.into_iter().map(Part::from));
            records = &records[length..];
        }
        parts
    }

    #[test]
    fn what_was_written_is_read() {
        let snapshot = read(&written()).unwrap();
        assert_eq!(snapshot.ranks(), 2);
        let mut kept = snapshot.kept_for(LONG);
        let Claim::Rank(memory, what, records) = kept.claim(&key(), &whose(0)) else { panic!("nothing") };
        assert_eq!((memory, what), (MEMORY, learned()));
        assert_eq!(parts_in(&records), parts());
        let Claim::Rank(memory, what, records) = kept.claim(&key(), &whose(1)) else { panic!("nothing") };
        assert_eq!((memory, what, records.len()), (MEMORY, Learned::default(), 0));
        // Once each, and never what was not certain.
        assert!(matches!(kept.claim(&key(), &whose(0)), Claim::Nothing));
        assert!(matches!(kept.claim(&key(), &whose(2)), Claim::Nothing));
        assert!(kept.is_over());
    }

    #[test]
    fn a_changed_byte_is_refused_wherever_it_is() {
        let bytes = written();
        for at in 0..bytes.len() {
            for flipped in [1, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= flipped;
                assert!(read(&bytes).is_err(), "byte {at} ^ {flipped}");
            }
        }
    }

    #[test]
    fn a_snapshot_that_is_cut_short_or_goes_on_is_refused() {
        let bytes = written();
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "{length} bytes");
        }
        assert!(read(&[&bytes[..], b"x"].concat()).is_err());
        assert!(read(&[&bytes[..], &bytes[..]].concat()).is_err());
    }

    /// With a checksum that fits, as no accident makes it: nothing panics, whatever the bytes say.
    #[test]
    fn a_changed_byte_under_a_checksum_that_fits_does_no_harm() {
        let bytes = written();
        let end = bytes.len() - SUM;
        for at in 0..end {
            for flipped in [1, 0x10, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= flipped;
                let sum = xxh3_64(&bytes[..end]).to_le_bytes();
                bytes[end..].copy_from_slice(&sum);
                let Ok(snapshot) = read(&bytes) else { continue };
                let mut kept = snapshot.kept_for(LONG);
                for rank in 0..3 {
                    if let Claim::Rank(_, _, records) = kept.claim(&key(), &whose(rank)) {
                        parts_in(&records);
                    }
                }
            }
        }
    }

    #[test]
    fn another_format_is_refused_by_its_number_and_another_hash_by_its_name() {
        let mut bytes = written();
        bytes[8] = 9;
        let error = read(&bytes).unwrap_err().to_string();
        assert!(error.contains("format 9") && error.contains(env!("CARGO_PKG_VERSION")), "{error}");
        assert!(matches!(read(b"{}"), Err(SnapshotError::NotASnapshot)));

        let mut bytes = written();
        let end = bytes.len() - SUM;
        let at = bytes.windows(7).position(|text| text == b"xxh3-64").unwrap();
        bytes[at..at + 4].copy_from_slice(b"sip1");
        let sum = xxh3_64(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&sum);
        let error = read(&bytes).unwrap_err().to_string();
        assert!(error.contains("sip1-64") && error.contains("model 'm'"), "{error}");
    }

    #[test]
    fn a_rank_that_is_another_one_here_is_not_resumed() {
        let claim = |key: &IndexKey, change: fn(&mut Whose)| {
            let mut whose = whose(0);
            change(&mut whose);
            read(&written()).unwrap().kept_for(LONG).claim(key, &whose)
        };
        let unusable = |claim| matches!(claim, Claim::Unusable(_));
        assert!(unusable(claim(&IndexKey { model: "n".to_owned(), ..key() }, |_| {})));
        assert!(unusable(claim(&IndexKey { block_size: 32, ..key() }, |_| {})));
        assert!(unusable(claim(&IndexKey { eagle: true, ..key() }, |_| {})));
        assert!(unusable(claim(&key(), |whose| whose.started_ms = Some(2_000))));
        // A frontend numbers workers that chose no number, and not every worker says when it was started.
        assert!(matches!(claim(&key(), |whose| whose.worker = 8), Claim::Rank(..)));
        assert!(matches!(claim(&key(), |whose| whose.started_ms = None), Claim::Rank(..)));
        for change in [
            (|whose| whose.url = "http://10.0.0.2:8000/".to_owned()) as fn(&mut Whose),
            |whose| whose.rank = 5,
            |whose| whose.events = "tcp://10.0.0.1:1".to_owned(),
            |whose| whose.replay = None,
        ] {
            assert!(matches!(claim(&key(), change), Claim::Nothing));
        }
    }
}
