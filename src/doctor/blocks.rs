//! Which of a prompt's blocks were reported, and under which reading of the reports they are the prompt's.

use ahash::AHashMap;

use crate::{
    event::{EngineHash, Event, Normaliser, Rejections, wire},
    hash::{BlockHash, BlockHasher, BlockSize, Identity, Prompt},
};

/// How blocks are cut and told apart. A router has one reading of an engine, which its card says; if the engine's is another,
/// no block matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reading {
    /// Tokens per block.
    pub(super) block_size: u32,
    /// Whether hashes look one token ahead.
    pub(super) eagle: bool,
    /// Whether the prompt's salt is told.
    pub(super) salted: bool,
    /// Whether the prompt's adapter is told.
    pub(super) adapted: bool,
}

impl Reading {
    /// Full blocks that so many tokens have.
    pub(super) fn blocks(self, tokens: usize) -> usize {
        tokens.saturating_sub(usize::from(self.eagle)) / self.block_size.max(1) as usize
    }
}

/// A prompt, and what separates it from others of the same tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent<'a> {
    pub(super) tokens: &'a [u32],
    pub(super) salt: &'a str,
    pub(super) lora: Option<&'a str>,
}

/// What was found of a prompt under some reading.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Match {
    pub(super) reading: Reading,
    /// Leading blocks that were reported, at least one.
    pub(super) names: Vec<EngineHash>,
    /// Full blocks that the prompt has.
    pub(super) of: usize,
    /// The rank that the first one's batch names, if it names one.
    pub(super) rank: Option<u32>,
    /// The first of them that was reported after another block than the one before it.
    pub(super) unlinked: Option<usize>,
}

impl Match {
    pub(super) fn is_whole(&self) -> bool {
        self.names.len() == self.of
    }
}

/// What came, whether or not it is understood.
#[derive(Clone, Debug, Default)]
pub(super) struct Stock {
    pub(super) batches: usize,
    pub(super) unreadable: usize,
    pub(super) stored_blocks: usize,
    pub(super) rejections: Rejections,
}

/// The sizes that engines have, to be tried in place of one that does not fit.
const SIZES: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// The prompt's blocks under the reading that was announced.
pub(super) fn find(payloads: &[Vec<u8>], sent: Sent<'_>, reading: Reading) -> Option<Match> {
    let size = BlockSize::new(reading.block_size).ok()?;
    find_among(&reported(payloads, size, reading.eagle).0, size, sent, reading)
}

fn find_among(reported: &Reported, size: BlockSize, sent: Sent<'_>, reading: Reading) -> Option<Match> {
    let mut hashes = Vec::new();
    let lora = sent.lora.filter(|_| reading.adapted);
    let identity = Identity::new(lora, Some(sent.salt).filter(|_| reading.salted));
    let prompt = Prompt { eagle: reading.eagle, ..Prompt::text(sent.tokens) };
    BlockHasher::new(size, identity).hash(&prompt, &mut hashes);
    let rank = reported.get(hashes.first()?)?.last()?.rank;
    let (mut names, mut unlinked) = (Vec::new(), None);
    for (block, hash) in hashes.iter().enumerate() {
        let Some(seen) = reported.get(hash) else { break };
        // A small block has the content of others, and its place tells which it is.
        let linked = seen.iter().rfind(|seen| seen.parent == names.last().copied());
        if linked.is_none() {
            unlinked = unlinked.or(Some(block));
        }
        names.extend(linked.or(seen.last()).map(|seen| seen.name));
    }
    Some(Match { reading, names, of: hashes.len(), rank, unlinked })
}

/// The prompt's blocks under the reading that explains all of them, the announced one if it does; else under the nearest that
/// explains some.
pub(super) fn explain(payloads: &[Vec<u8>], sent: Sent<'_>, announced: Reading) -> Option<Match> {
    // What was reported depends on a part of the reading, and payloads may be many.
    let mut decoded = AHashMap::new();
    let mut find = |reading: Reading| {
        let Reading { block_size, eagle, .. } = reading;
        let size = BlockSize::new(block_size).ok()?;
        let reported =
            decoded.entry((block_size, eagle)).or_insert_with(|| reported(payloads, size, eagle).0);
        find_among(reported, size, sent, reading)
    };
    let as_announced = find(announced);
    if as_announced.as_ref().is_some_and(Match::is_whole) {
        return as_announced;
    }
    let mut others = other_readings(sent, announced).into_iter().filter_map(find);
    match as_announced {
        // A reading that looks ahead where the engine does not lacks the last block of every event, and no other.
        Some(partly) => Some(others.find(Match::is_whole).unwrap_or(partly)),
        None => others.next(),
    }
}

/// Every reading but the announced one, the nearest to it first.
fn other_readings(sent: Sent<'_>, announced: Reading) -> Vec<Reading> {
    // Without an adapter it makes no difference whether it is told.
    let adapted_or_not = if sent.lora.is_some() { &[true, false][..] } else { &[true] };
    let mut readings = Vec::new();
    for block_size in SIZES {
        for eagle in [false, true] {
            for salted in [true, false] {
                for &adapted in adapted_or_not {
                    readings.push(Reading { block_size, eagle, salted, adapted });
                }
            }
        }
    }
    let differing = |reading: &Reading| {
        usize::from(reading.block_size != announced.block_size)
            + usize::from(reading.eagle != announced.eagle)
            + usize::from(!reading.salted)
            + usize::from(!reading.adapted)
    };
    readings.retain(|reading| *reading != announced);
    readings.sort_by_key(differing);
    readings
}

/// What came, under the reading that was announced.
pub(super) fn stock(payloads: &[Vec<u8>], block_size: u32, eagle: bool) -> Stock {
    let Ok(size) = BlockSize::new(block_size) else { return Stock::default() };
    reported(payloads, size, eagle).1
}

/// Every report of a block of some content, the last one last.
type Reported = AHashMap<BlockHash, Vec<Seen>>;

#[derive(Clone, Copy, Debug)]
struct Seen {
    name: EngineHash,
    parent: Option<EngineHash>,
    rank: Option<u32>,
}

fn reported(payloads: &[Vec<u8>], size: BlockSize, eagle: bool) -> (Reported, Stock) {
    let mut normaliser = Normaliser::new(size, eagle);
    let (mut batch, mut events) = (wire::Batch::default(), Vec::new());
    let (mut reported, mut stock) = (Reported::default(), Stock::default());
    for payload in payloads {
        stock.batches += 1;
        if wire::decode(payload, &mut batch).is_err() {
            stock.unreadable += 1;
            continue;
        }
        normaliser.normalise(&batch, &mut events);
        for event in &events {
            let Event::Stored(stored) = event else { continue };
            stock.stored_blocks += stored.blocks.len();
            let mut parent = stored.parent;
            for block in &stored.blocks {
                let name = block.engine;
                if let Some(content) = block.content {
                    let seen = Seen { name, parent, rank: batch.rank };
                    reported.entry(content).or_default().push(seen);
                }
                parent = Some(name);
            }
        }
    }
    stock.rejections = normaliser.rejections().clone();
    (reported, stock)
}
