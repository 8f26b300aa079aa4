//! The fields of events, whichever event and encoding they come in.

use super::batch::{AttentionKind, Batch, Locality, Medium, Ownership, Span, StoredRecord};
use super::keys;
use super::reader::{Fault, Item, MALFORMED, Reader};
use crate::event::{EngineHash, Rejection, Tier};

/// A field that something is made of. Everything else is [`Field::Unused`] and stepped over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    LoraName,
    CacheSalt,
    ExtraKeys,
    MultimodalObjects,
    RemainingCopies,
    Medium,
    Group,
    Kind,
    Locality,
    Ownership,
    Unused,
}

impl Field {
    pub(super) fn named(key: &str) -> Self {
        match key {
            "block_hashes" => Self::Hashes,
            "parent_block_hash" => Self::Parent,
            "token_ids" => Self::Tokens,
            "block_size" => Self::BlockSize,
            "lora_id" => Self::LoraId,
            "lora_name" => Self::LoraName,
            "cache_salt" => Self::CacheSalt,
            "extra_keys" => Self::ExtraKeys,
            "block_mm_infos" => Self::MultimodalObjects,
            "remaining_copy_counts" => Self::RemainingCopies,
            "medium" => Self::Medium,
            "group_idx" => Self::Group,
            "kv_cache_spec_kind" => Self::Kind,
            "locality" => Self::Locality,
            "ownership" => Self::Ownership,
            _ => Self::Unused,
        }
    }
}

/// What has been read of an event.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) stored: StoredRecord,
    pub(super) hashes: Option<Span>,
    pub(super) copies: Option<Span>,
    /// What says which cache the event is about was no word where it has to be one.
    pub(super) odd_scope: bool,
}

impl Draft {
    /// Reads one field's value.
    ///
    /// A field that an event can do without is taken as absent when it has an odd type. Not so those that keep
    /// events out of the index (medium, locality, owner, attention kind): what cannot be understood there is
    /// unknown, and the event is dropped later, because a block credited wrongly is worse than one missed.
    pub(super) fn read(
        &mut self,
        field: Field,
        reader: &mut Reader<'_>,
        batch: &mut Batch,
    ) -> Result<(), Fault> {
        match field {
            Field::Hashes => self.hashes = Some(hashes(reader, batch)?),
            Field::Parent => self.stored.parent = parent(reader)?,
            Field::Tokens => (self.stored.tokens, self.stored.bigram) = tokens(reader, batch)?,
            Field::LoraName => self.lora_name(reader, batch)?,
            Field::CacheSalt => self.stored.cache_salt = optional_text(reader, batch)?,
            Field::ExtraKeys => self.stored.keys = keys::extra_keys(reader, batch)?,
            Field::MultimodalObjects => self.stored.objects = keys::multimodal_objects(reader, batch)?,
            Field::RemainingCopies => self.copies = copies(reader, batch)?,
            Field::BlockSize | Field::LoraId | Field::Group => {
                let item = scalar(reader)?;
                self.number(field, item);
            }
            Field::Medium | Field::Kind | Field::Locality | Field::Ownership => {
                let item = scalar(reader)?;
                self.word(field, item);
            }
            Field::Unused => reader.skip()?,
        }
        Ok(())
    }

    fn number(&mut self, field: Field, item: Item<'_>) {
        match (field, item) {
            (Field::BlockSize, Item::Unsigned(size)) => self.stored.block_size = u32::try_from(size).ok(),
            (Field::Group, Item::Unsigned(group)) => {
                self.stored.scope.group = Some(i64::try_from(group).unwrap_or(i64::MAX));
            }
            (Field::Group, Item::Negative(group)) => self.stored.scope.group = Some(group),
            (Field::LoraId, item) => self.stored.has_lora_id = item != Item::Nil && item != Item::Unsigned(0),
            _ => {}
        }
    }

    fn word(&mut self, field: Field, item: Item<'_>) {
        // Nil is the absence that every default stands for, and so is the empty string.
        if item == Item::Nil || item.text() == Some("") {
            return;
        }
        self.odd_scope |= item.text().is_none();
        let (word, scope) = (item.text().unwrap_or("?"), &mut self.stored.scope);
        match field {
            Field::Medium => scope.medium = Tier::from_medium(word).map_or(Medium::Unknown, Medium::Tier),
            Field::Kind => scope.kind = Some(attention_kind(word)),
            Field::Locality if word.eq_ignore_ascii_case("LOCAL") => scope.locality = Locality::Local,
            Field::Locality => scope.locality = Locality::Elsewhere,
            _ if word == "kvcr" => scope.ownership = Ownership::Unsupported,
            _ => scope.ownership = Ownership::Unknown,
        }
    }

    /// A name, or SGLang's map of metadata in the same place.
    fn lora_name(&mut self, reader: &mut Reader<'_>, batch: &mut Batch) -> Result<(), Fault> {
        let Item::Map(pairs) = reader.peek()? else {
            self.stored.lora_name = optional_text(reader, batch)?;
            return Ok(());
        };
        reader.item()?;
        for _ in 0..pairs {
            let key = scalar(reader)?;
            match key.text() {
                Some("cache_salt") => self.stored.cache_salt = optional_text(reader, batch)?,
                Some("lora_name") => self.stored.lora_name = optional_text(reader, batch)?,
                _ => reader.skip()?,
            }
        }
        Ok(())
    }
}

/// The next value if it is a scalar; of a container only the head, but all of it is stepped over.
fn scalar<'a>(reader: &mut Reader<'a>) -> Result<Item<'a>, Fault> {
    let item = reader.peek()?;
    reader.skip()?;
    Ok(item)
}

/// A string that is not empty, or nothing. Anything else is malformed: these strings say whose cache it is.
fn optional_text(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<Option<Span>, Fault> {
    match reader.item()? {
        Item::Nil => Ok(None),
        item => match item.text() {
            Some("") => Ok(None),
            Some(text) => Ok(Some(batch.push_text(text))),
            None => Err(MALFORMED),
        },
    }
}

/// A block's name: a number as its 64 bits, a digest as its last 8 bytes read big-endian, which is the number that
/// an engine set to send numbers would have sent.
fn engine_hash(item: Item<'_>) -> Result<EngineHash, Fault> {
    Ok(EngineHash(match item {
        Item::Unsigned(value) => value,
        Item::Negative(value) => value.cast_unsigned(),
        Item::Bytes(digest) | Item::Text(digest) => {
            let last = digest.last_chunk().ok_or(Fault::Rejected(Rejection::ShortHash))?;
            u64::from_be_bytes(*last)
        }
        _ => return Err(MALFORMED),
    }))
}

fn parent(reader: &mut Reader<'_>) -> Result<Option<EngineHash>, Fault> {
    match reader.item()? {
        Item::Nil => Ok(None),
        item => engine_hash(item).map(Some),
    }
}

fn hashes(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<Span, Fault> {
    let Item::Array(len) = reader.item()? else { return Err(MALFORMED) };
    let start = batch.hashes.len();
    batch.hashes.reserve(len);
    for _ in 0..len {
        batch.hashes.push(engine_hash(reader.item()?)?);
    }
    Ok(Span { start, end: batch.hashes.len() })
}

/// Token ids, flat or as overlapping pairs (a, b), (b, c), ...: of these the first of each pair and, at the end, the
/// second of the last. The flag tells which.
fn tokens(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<(Span, bool), Fault> {
    let len = match reader.item()? {
        Item::Array(len) => len,
        Item::Nil => 0,
        _ => return Err(MALFORMED),
    };
    let start = batch.tokens.len();
    let bigram = len > 0 && matches!(reader.peek()?, Item::Array(_));
    batch.tokens.reserve(len);
    if bigram {
        let mut look_ahead = 0;
        for _ in 0..len {
            if reader.item()? != Item::Array(2) {
                return Err(MALFORMED);
            }
            batch.tokens.push(reader.token()?);
            look_ahead = reader.token()?;
        }
        batch.tokens.push(look_ahead);
    } else {
        for _ in 0..len {
            batch.tokens.push(reader.token()?);
        }
    }
    Ok((Span { start, end: batch.tokens.len() }, bigram))
}

/// Counts that cannot be read are as good as none, and no reason to miss a removal.
fn copies(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<Option<Span>, Fault> {
    let mut inside = *reader;
    reader.skip()?;
    let Item::Array(len) = inside.item()? else { return Ok(None) };
    let start = batch.copies.len();
    batch.copies.reserve(len);
    for _ in 0..len {
        match inside.token() {
            Ok(count) => batch.copies.push(count),
            Err(_) => {
                batch.copies.truncate(start);
                return Ok(None);
            }
        }
    }
    Ok(Some(Span { start, end: batch.copies.len() }))
}

fn attention_kind(word: &str) -> AttentionKind {
    match word {
        "full_attention" | "mla_attention" | "sink_full_attention" => AttentionKind::Main,
        "sliding_window"
        | "sliding_window_mla"
        | "chunked_local_attention"
        | "mamba"
        | "cross_attention"
        | "encoder_only_attention" => AttentionKind::Other,
        _ => AttentionKind::Unknown,
    }
}
