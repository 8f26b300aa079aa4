//! From decoded batches to events that the index can apply.
//!
//! An engine speaks of more than the index wants to know: caches of several attention kinds, of other workers, in
//! media that nobody routes by. And it says less: a salt is told once, at the head of a chain, and blocks are
//! named by hashes of the engine's own making. The [`Normaliser`] of a rank drops the first and adds the second.
//! What it drops it counts, by reason.
//!
//! The order in which an event is judged: owner, locality, medium, attention group, shape of the chain, adapter,
//! block size, salt, tokens. Events for disk and external stores are not judged by attention group, because
//! engines name none there.

mod content;
mod groups;
mod keys;
mod learned;
mod salts;

use content::Hashing;
use groups::AttentionGroups;
pub use learned::Learned;
use salts::{Salt, SaltMemory};

use super::rejection::{Rejection, Rejections};
use super::wire::{Batch, Locality, Medium, Ownership, Record, RemovedRecord, Scope, StoredRecord};
use super::{EngineHash, Event, Removed, Stored, StoredBlock, Tier};
use smallvec::SmallVec;

use crate::hash::{BlockHash, BlockSize};

/// Turns the decoded batches of one rank, in their order, into events.
///
/// It remembers, for the life of the engine process: the attention kind of each cache group, and the salt of each
/// block that has one. [`Normaliser::reset`] forgets both.
#[derive(Debug)]
pub struct Normaliser {
    hashing: Hashing,
    groups: AttentionGroups,
    salts: SaltMemory,
    rejections: Rejections,
    /// Scratch: the content hashes of the event in hand.
    content: Vec<BlockHash>,
    /// Scratch: the names of the event in hand, sorted.
    names: Vec<EngineHash>,
}

impl Normaliser {
    /// For a rank whose prompts are hashed in blocks of `block_size`, with a token of look-ahead if `eagle`.
    /// Stores that carry their tokens as pairs are hashed with look-ahead in either case.
    #[must_use]
    pub fn new(block_size: BlockSize, eagle: bool) -> Self {
        Self {
            hashing: Hashing::new(block_size, eagle),
            groups: AttentionGroups::default(),
            salts: SaltMemory::default(),
            rejections: Rejections::default(),
            content: Vec::new(),
            names: Vec::new(),
        }
    }

    /// Clears `events` and fills it with what `batch` says, in order. What the decoder could not read
    /// ([`Batch::rejected`]) is counted here too, so that [`Normaliser::rejections`] tells everything.
    pub fn normalise(&mut self, batch: &Batch, events: &mut Vec<Event>) {
        events.clear();
        self.rejections.add(&batch.rejected);
        for record in batch.records() {
            let event = match record {
                Record::Stored(stored) => self.stored(batch, stored),
                Record::Removed(removed) => self.removed(batch, removed),
                Record::Cleared(scope) => self.cleared(scope),
            };
            match event {
                Ok(event) => events.extend(event),
                Err(reason) => self.rejections.count(reason),
            }
        }
    }

    /// Forgets what was learned of the engine: a new incarnation of it begins. The counts go on.
    pub fn reset(&mut self) {
        self.groups = AttentionGroups::default();
        self.salts = SaltMemory::default();
    }

    /// Forgets what was learned of blocks, because all of it is going to be told again: copies that are told twice are counted twice.
    pub fn forget_blocks(&mut self) {
        self.salts = SaltMemory::default();
    }

    /// What was learned of the engine.
    #[must_use]
    pub fn learned(&self) -> Learned {
        let mut learned = Learned { groups: self.groups.learned(), ..Learned::default() };
        self.salts.write(&mut learned);
        learned
    }

    /// The same for a normaliser that has read nothing yet, as another one of the same engine had it.
    pub fn resume(&mut self, learned: &Learned) {
        self.reset();
        self.groups.resume(&learned.groups);
        self.salts.resume(learned);
    }

    /// What was dropped so far, by reason.
    #[must_use]
    pub const fn rejections(&self) -> &Rejections {
        &self.rejections
    }

    /// Blocks whose salt is remembered, for a gauge.
    #[must_use]
    pub fn salted_blocks(&self) -> usize {
        self.salts.len()
    }

    fn stored(&mut self, batch: &Batch, record: &StoredRecord) -> Result<Option<Event>, Rejection> {
        let tier = self.tier(&record.scope, true)?;
        let names = batch.hashes(record.hashes);
        self.check_chain(record.parent, names)?;
        let tokens = batch.tokens(record.tokens);
        if tokens.is_empty() && tier != Tier::Gpu {
            self.salts.copy(names, tier);
            return Ok(Some(named_only(tier, record.parent, names)));
        }
        if record.has_lora_id && record.lora_name.is_none() {
            return Err(Rejection::UnnamedLora);
        }
        let keys = keys::read(batch, record);
        let salt = self.salt(keys.salt, record.parent)?;
        let hashed =
            self.hashing.hash(batch, record, salt.as_ref().map(Salt::text), &keys, &mut self.content);
        let names = names.get(..self.content.len()).unwrap_or(names);
        let remembered = self.salts.store(names, salt, tier);
        // The walk over the blocks stops where they can no longer be hashed: those before are kept, the rest counted.
        if let Err(reason) = hashed {
            self.rejections.count(reason);
        }
        if !remembered {
            self.rejections.count(Rejection::SaltMemoryFull);
        }
        if names.is_empty() {
            return Ok(None);
        }
        let blocks = names.iter().zip(&self.content);
        let blocks =
            blocks.map(|(&engine, &content)| StoredBlock { engine, content: Some(content) }).collect();
        Ok(Some(Event::Stored(Stored { tier, parent: record.parent, blocks })))
    }

    fn removed(&mut self, batch: &Batch, record: &RemovedRecord) -> Result<Option<Event>, Rejection> {
        let tier = self.tier(&record.scope, false)?;
        let hashes = batch.hashes(record.hashes);
        let remaining = record.copies.map(|span| batch.copies(span));
        self.salts.remove(hashes, remaining, tier);
        if hashes.is_empty() {
            return Ok(None);
        }
        let remaining_copies = remaining.map(<[u32]>::to_vec);
        Ok(Some(Event::Removed(Removed { tier, hashes: SmallVec::from_slice(hashes), remaining_copies })))
    }

    fn cleared(&mut self, scope: &Scope) -> Result<Option<Event>, Rejection> {
        check_owner(scope)?;
        let tier = match scope.medium {
            Medium::Unnamed => None,
            Medium::Tier(tier) => Some(tier),
            Medium::Unknown => return Err(Rejection::UnknownMedium),
        };
        self.salts.clear(tier);
        Ok(Some(Event::Cleared(tier)))
    }

    /// The tier that an event speaks of, if the index wants to know of its cache at all.
    fn tier(&mut self, scope: &Scope, store: bool) -> Result<Tier, Rejection> {
        check_owner(scope)?;
        let tier = match scope.medium {
            Medium::Unnamed => Tier::Gpu,
            Medium::Tier(tier) => tier,
            Medium::Unknown => return Err(Rejection::UnknownMedium),
        };
        if matches!(tier, Tier::Gpu | Tier::Host) {
            if store {
                self.groups.learn(scope);
            }
            self.groups.check(scope)?;
        }
        Ok(tier)
    }

    /// Every name once, and none of them the parent's: otherwise the blocks would follow themselves.
    fn check_chain(&mut self, parent: Option<EngineHash>, names: &[EngineHash]) -> Result<(), Rejection> {
        if names.is_empty() {
            return Err(Rejection::EmptyStore);
        }
        self.names.clear();
        self.names.extend(names.iter().copied().chain(parent));
        self.names.sort_unstable();
        if self.names.is_sorted_by(|a, b| a < b) { Ok(()) } else { Err(Rejection::RepeatedBlock) }
    }

    /// The salt that a chain is cached under: its own, else its parent's.
    fn salt(&self, own: Option<&str>, parent: Option<EngineHash>) -> Result<Option<Salt>, Rejection> {
        match (own, parent) {
            (Some(own), _) => Ok(Some(Salt::new(own))),
            (None, Some(parent)) => self.salts.of(parent),
            (None, None) => Ok(None),
        }
    }
}

fn check_owner(scope: &Scope) -> Result<(), Rejection> {
    match (scope.ownership, scope.locality) {
        (Ownership::Unsupported, _) => Err(Rejection::UnsupportedOwnership),
        (Ownership::Unknown, _) => Err(Rejection::UnknownOwnership),
        (Ownership::Engine, Locality::Elsewhere) => Err(Rejection::NonLocalLocality),
        (Ownership::Engine, Locality::Local) => Ok(()),
    }
}

/// Lower tiers need not repeat the tokens: the blocks lie where their names already have a place.
fn named_only(tier: Tier, parent: Option<EngineHash>, names: &[EngineHash]) -> Event {
    let blocks = names.iter().map(|&engine| StoredBlock { engine, content: None }).collect();
    Event::Stored(Stored { tier, parent, blocks })
}
