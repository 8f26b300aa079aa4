//! The layout of a snapshot.
//!
//! ```text
//! header   "KVRINDEX", format (u32), length of the writer's version (u8), the version ("0.1.0")
//! frame    length of the record (u32), the record in postcard; any number of them, of which only the last is an `End`
//! end      XXH3-64 of everything before (u64)
//! ```
//!
//! Numbers are little-endian. The header's layout is the same in every format, so that a reader of another format can say
//! who wrote it. Nothing may be believed before the checksum has been compared.

use serde::{Deserialize, Serialize};

use crate::{
    event::{EngineHash, Learned},
    hash::{BlockHash, BlockHasher, BlockSize, Identity, Prompt},
    index::snapshot::{Held, Parent, Part, Stretch, Waits},
};

/// The format that this version writes and reads. It changes whenever anything about a record does.
pub const SNAPSHOT_FORMAT: u32 = 1;

pub(super) const MAGIC: [u8; 8] = *b"KVRINDEX";

/// Bytes of the checksum at the end.
pub(super) const SUM: usize = 8;

/// The largest record that is read, in bytes: what is longer was not written by a frontend.
pub(super) const LARGEST: usize = 16 << 20;

/// How blocks are hashed, by name. What comes of it is in the snapshot, too: see [`IndexRecord::probe`].
pub(super) const HASH_RULE: &str = "xxh3-64 seed 1337";

#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Record {
    /// What comes is of this index.
    Index(IndexRecord),
    /// What comes is of this rank of it.
    Rank(RankRecord),
    /// What its stream has learned, in any number of pieces.
    Learned(LearnedRecord),
    /// What it holds, in any number of pieces.
    Parts(Vec<PartRecord>),
    /// The rank is through, with so many blocks.
    EndOfRank(u64),
    /// All is through, with so many ranks.
    End(u64),
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(super) struct IndexRecord {
    pub(super) model: String,
    pub(super) block_size: u32,
    pub(super) eagle: bool,
    pub(super) hash_rule: String,
    /// The hash of a block whose tokens count up from 0: the same name for another rule would show here.
    pub(super) probe: u64,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(super) struct RankRecord {
    pub(super) worker: u64,
    pub(super) url: String,
    pub(super) rank: u32,
    pub(super) events: String,
    pub(super) replay: Option<String>,
    pub(super) started_ms: Option<u64>,
    /// Of its stream, when it was written.
    pub(super) state: String,
    /// Where its stream stood; without this there are no blocks.
    pub(super) memory: Option<MemoryRecord>,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MemoryRecord {
    pub(super) sequence: u64,
    pub(super) fingerprint: u64,
    pub(super) lost_before: Option<u64>,
}

#[derive(Serialize, Deserialize, Default, Debug)]
pub(super) struct LearnedRecord {
    groups: Vec<(i64, bool)>,
    salts: Vec<String>,
    blocks: Vec<(u64, Option<u32>, [u16; 4])>,
}

#[derive(Serialize, Deserialize, Debug)]
pub(super) enum PartRecord {
    Stretch { parent: ParentRecord, contents: Vec<u64>, held: Vec<(u32, u64, [u32; 4])> },
    Waits { name: u64, below: Option<(u64, u64)>, copies: [u32; 4] },
}

#[derive(Serialize, Deserialize, Debug)]
pub(super) enum ParentRecord {
    Start,
    Named(u64),
    Unheld { stretch: u32, offset: u32 },
}

impl From<&Part> for PartRecord {
    fn from(part: &Part) -> Self {
        match part {
            Part::Stretch(Stretch { parent, contents, held }) => Self::Stretch {
                parent: match *parent {
                    Parent::Start => ParentRecord::Start,
                    Parent::Named(name) => ParentRecord::Named(name.0),
                    Parent::Unheld { stretch, offset } => ParentRecord::Unheld { stretch, offset },
                },
                contents: contents.iter().map(|content| content.0).collect(),
                held: held.iter().map(|held| (held.offset, held.name.0, held.copies)).collect(),
            },
            Part::Waits(Waits { name, below, copies }) => Self::Waits {
                name: name.0,
                below: below.map(|(parent, content)| (parent.0, content.0)),
                copies: *copies,
            },
        }
    }
}

impl From<PartRecord> for Part {
    fn from(record: PartRecord) -> Self {
        match record {
            PartRecord::Stretch { parent, contents, held } => {
                let parent = match parent {
                    ParentRecord::Start => Parent::Start,
                    ParentRecord::Named(name) => Parent::Named(EngineHash(name)),
                    ParentRecord::Unheld { stretch, offset } => Parent::Unheld { stretch, offset },
                };
                let contents = contents.into_iter().map(BlockHash).collect();
                let held = held.into_iter();
                let held = held
                    .map(|(offset, name, copies)| Held { offset, name: EngineHash(name), copies })
                    .collect();
                Self::Stretch(Stretch { parent, contents, held })
            }
            PartRecord::Waits { name, below, copies } => Self::Waits(Waits {
                name: EngineHash(name),
                below: below.map(|(parent, content)| (EngineHash(parent), BlockHash(content))),
                copies,
            }),
        }
    }
}

/// A record's bytes.
pub(super) fn written(record: &Record) -> Vec<u8> {
    // Writing to memory what has a known length does not fail.
    postcard::to_allocvec(record).unwrap_or_default()
}

/// Blocks with a salt in one record.
const SALTED: usize = 4_096;

/// What a stream has learned, in records of a bounded size.
pub(super) fn learned_records(learned: &Learned) -> impl Iterator<Item = LearnedRecord> + '_ {
    let first = LearnedRecord {
        groups: learned.groups.clone(),
        salts: learned.salts.iter().map(ToString::to_string).collect(),
        blocks: Vec::new(),
    };
    let is_empty = first.groups.is_empty() && first.salts.is_empty() && learned.blocks.is_empty();
    let rest = learned.blocks.chunks(SALTED).map(|blocks| LearnedRecord {
        blocks: blocks.iter().map(|&(name, salt, copies)| (name.0, salt, copies)).collect(),
        ..LearnedRecord::default()
    });
    (!is_empty).then_some(first).into_iter().chain(rest)
}

/// Adds what a record says to what is known.
pub(super) fn learn(learned: &mut Learned, record: LearnedRecord) {
    let LearnedRecord { groups, salts, blocks } = record;
    learned.groups.extend(groups);
    learned.salts.extend(salts.into_iter().map(Into::into));
    let blocks = blocks.into_iter().map(|(name, salt, copies)| (EngineHash(name), salt, copies));
    learned.blocks.extend(blocks);
}

/// Tokens of a block that are hashed for a probe at most: a size that lies costs nothing.
const PROBED: u32 = 1 << 16;

/// What [`IndexRecord::probe`] is here.
pub(super) fn probe(block_size: u32) -> Option<u64> {
    let size = BlockSize::new(block_size.min(PROBED)).ok()?;
    let tokens: Vec<u32> = (0..size.get()).collect();
    let mut hashes = Vec::new();
    BlockHasher::new(size, Identity::default()).hash(&Prompt::text(&tokens), &mut hashes);
    hashes.first().map(|hash| hash.0)
}
