//! One event: which kind it is, and its fields by position or by name.

use super::batch::{Batch, Ownership, Record, RemovedRecord, StoredRecord};
use super::field::{Draft, Field};
use super::reader::{Fault, Item, MALFORMED, Reader};
use crate::event::Rejection;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Stored,
    Removed,
    Cleared,
}

impl Tag {
    fn of(name: &str) -> Result<Self, Fault> {
        match name {
            "BlockStored" => Ok(Self::Stored),
            "BlockRemoved" => Ok(Self::Removed),
            "AllBlocksCleared" => Ok(Self::Cleared),
            "Ignored" => Err(Fault::Rejected(Rejection::IgnoredEvent)),
            _ => Err(Fault::Rejected(Rejection::UnknownTag)),
        }
    }

    /// The fields that follow the tag when they go by position. Releases only ever appended to these lists, so a
    /// shorter event is an older one.
    const fn order(self) -> &'static [Field] {
        match self {
            Self::Stored => &[
                Field::Hashes,
                Field::Parent,
                Field::Tokens,
                Field::BlockSize,
                Field::LoraId,
                Field::Medium,
                Field::LoraName,
                Field::ExtraKeys,
                Field::Group,
                Field::Kind,
                Field::Unused,
                Field::Locality,
                Field::Ownership,
            ],
            Self::Removed => &[
                Field::Hashes,
                Field::Medium,
                Field::Group,
                Field::Kind,
                Field::Unused,
                Field::Locality,
                Field::Ownership,
            ],
            Self::Cleared => &[Field::Ownership],
        }
    }
}

/// Reads one event into the batch. One that cannot be read is stepped over and counted; what it left in the flat
/// buffers no record refers to, and it is bounded by the event's own bytes.
///
/// # Errors
///
/// [`Fault::Truncated`] only: there is no next event to go on with.
pub(super) fn read(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<(), Fault> {
    let mut start = *reader;
    match parse(reader, batch) {
        Ok(record) => batch.records.push(record),
        Err(fault) => {
            *reader = start;
            reader.skip()?;
            if let Fault::Rejected(reason) = fault {
                batch.rejected.count(reason);
                batch.lost_removal |= read_tag(&mut start).is_ok_and(|(tag, _)| tag != Tag::Stored);
            }
        }
    }
    Ok(())
}

fn parse(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<Record, Fault> {
    let mut draft = Draft::default();
    let (tag, fields) = read_tag(reader)?;
    match fields {
        Fields::Positional(len) => positional(reader, len, tag, &mut draft, batch)?,
        Fields::Named(pairs) => named(reader, pairs, &mut draft, batch)?,
    }
    batch.lost_removal |= hides_removal(tag, &draft);
    finish(tag, &draft)
}

/// Whether an event takes blocks away and will be dropped though they may be among those that the index holds: which cache it is about
/// cannot be read, or it empties that of an owner who is not known. Not so a removal that names an owner or a medium to come: stores
/// that name it are dropped likewise.
fn hides_removal(tag: Tag, draft: &Draft) -> bool {
    match tag {
        Tag::Stored => false,
        Tag::Removed => draft.odd_scope,
        Tag::Cleared => draft.odd_scope || draft.stored.scope.ownership == Ownership::Unknown,
    }
}

/// How the fields of an event go, and how many there are.
enum Fields {
    Positional(usize),
    Named(usize),
}

/// Reads up to the fields of an event: its tag, which is there to see whatever is wrong with the rest.
fn read_tag(reader: &mut Reader<'_>) -> Result<(Tag, Fields), Fault> {
    match reader.item()? {
        Item::Array(len) if len > 0 => {
            let tag = Tag::of(reader.item()?.text().ok_or(MALFORMED)?)?;
            Ok((tag, Fields::Positional(len - 1)))
        }
        Item::Map(pairs) => Ok((find_tag(*reader, pairs)?, Fields::Named(pairs))),
        _ => Err(MALFORMED),
    }
}

/// The tag of a map, wherever in it: an event of an unknown kind must be known as such before a field of it that
/// happens to share a name with one of ours is found to be wrong.
fn find_tag(mut reader: Reader<'_>, pairs: usize) -> Result<Tag, Fault> {
    for _ in 0..pairs {
        let key = reader.peek()?;
        reader.skip()?;
        if key.text() == Some("type") {
            return Tag::of(reader.item()?.text().ok_or(MALFORMED)?);
        }
        reader.skip()?;
    }
    Err(MALFORMED)
}

fn named(reader: &mut Reader<'_>, pairs: usize, draft: &mut Draft, batch: &mut Batch) -> Result<(), Fault> {
    for _ in 0..pairs {
        let key = reader.peek()?;
        reader.skip()?;
        draft.read(Field::named(key.text().unwrap_or_default()), reader, batch)?;
    }
    Ok(())
}

fn positional(
    reader: &mut Reader<'_>,
    len: usize,
    tag: Tag,
    draft: &mut Draft,
    batch: &mut Batch,
) -> Result<(), Fault> {
    let mut order = tag.order().iter().copied().peekable();
    for _ in 0..len {
        let field = match (order.peek().copied().unwrap_or(Field::Unused), reader.peek()?) {
            // Some releases put the multimodal objects before the group, which moves the rest by one. The types
            // tell: objects are a list where the group is a number, and if they were nil and taken for the group,
            // the group is a number where the kind is a word.
            (Field::Group, Item::Array(_)) if tag == Tag::Stored => Field::MultimodalObjects,
            (Field::Kind, Item::Unsigned(_)) if draft.stored.scope.group.is_none() => Field::Group,
            (expected, _) => {
                order.next();
                expected
            }
        };
        draft.read(field, reader, batch)?;
    }
    Ok(())
}

fn finish(tag: Tag, draft: &Draft) -> Result<Record, Fault> {
    let hashes = || draft.hashes.ok_or(MALFORMED);
    Ok(match tag {
        Tag::Cleared => Record::Cleared(draft.stored.scope),
        Tag::Removed => {
            let hashes = hashes()?;
            // Counts that do not pair up with the hashes tell nothing: each removal then takes one copy.
            let copies = draft.copies.filter(|copies| copies.len() == hashes.len());
            Record::Removed(RemovedRecord { scope: draft.stored.scope, hashes, copies })
        }
        Tag::Stored => Record::Stored(StoredRecord { hashes: hashes()?, ..draft.stored }),
    })
}
