//! What an engine hashes into a block besides its tokens.

use super::batch::{Batch, BlockKey, BlockObject, Key, Span};
use super::reader::{Fault, Item, MALFORMED, Reader};

/// `extra_keys`: for each block nil, a list of keys, or one key alone.
pub(super) fn extra_keys(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<Span, Fault> {
    let start = batch.keys.len();
    for block in 0..blocks(reader)? {
        match reader.peek()? {
            Item::Array(len) => {
                reader.item()?;
                for _ in 0..len {
                    key(reader, block, batch)?;
                }
            }
            _ => key(reader, block, batch)?,
        }
    }
    Ok(Span { start, end: batch.keys.len() })
}

/// Numbers, booleans and nested lists are stepped over: no engine is known to put there what tells one prompt's
/// block from another's. Bytes do (the digest of prompt embeddings), so those are kept.
fn key(reader: &mut Reader<'_>, block: usize, batch: &mut Batch) -> Result<(), Fault> {
    let item = reader.peek()?;
    let mut inside = *reader;
    reader.skip()?;
    let key = match item {
        Item::Text(_) => match item.text() {
            Some("") => return Ok(()),
            Some(text) => Key::Text(batch.push_text(text)),
            None => return Err(MALFORMED),
        },
        Item::Bytes(digest) => Key::Digest(fold(digest)),
        Item::Array(2) => {
            inside.item()?;
            match (inside.item()?, inside.peek()?) {
                (Item::Text(text), Item::Unsigned(_) | Item::Negative(_)) => {
                    let text = std::str::from_utf8(text).map_err(|_| MALFORMED)?;
                    Key::Object(batch.push_text(text))
                }
                _ => return Ok(()),
            }
        }
        _ => return Ok(()),
    };
    batch.keys.push(BlockKey { block, key });
    Ok(())
}

/// `block_mm_infos`: for each block nil or `{"mm_objects": [{"mm_hash": n, ...}, ...]}`. An object without a
/// hash makes the event malformed: its block would pass for plain text.
pub(super) fn multimodal_objects(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<Span, Fault> {
    let start = batch.objects.len();
    for block in 0..blocks(reader)? {
        let pairs = match reader.item()? {
            Item::Nil => continue,
            Item::Map(pairs) => pairs,
            _ => return Err(MALFORMED),
        };
        for _ in 0..pairs {
            let name = reader.peek()?.text();
            reader.skip()?;
            if name != Some("mm_objects") {
                reader.skip()?;
                continue;
            }
            let Item::Array(len) = reader.item()? else { return Err(MALFORMED) };
            for _ in 0..len {
                let hash = object(reader)?;
                batch.objects.push(BlockObject { block, hash });
            }
        }
    }
    Ok(Span { start, end: batch.objects.len() })
}

fn object(reader: &mut Reader<'_>) -> Result<u64, Fault> {
    let Item::Map(pairs) = reader.item()? else { return Err(MALFORMED) };
    let mut hash = None;
    for _ in 0..pairs {
        let name = reader.peek()?.text();
        reader.skip()?;
        let value = reader.peek()?;
        reader.skip()?;
        if name == Some("mm_hash") {
            hash = match value {
                Item::Unsigned(value) => Some(value),
                Item::Negative(value) => Some(value.cast_unsigned()),
                _ => None,
            };
        }
    }
    hash.ok_or(MALFORMED)
}

/// The length of a list with one element a block; nil is an empty one.
fn blocks(reader: &mut Reader<'_>) -> Result<usize, Fault> {
    match reader.item()? {
        Item::Array(len) => Ok(len),
        Item::Nil => Ok(0),
        _ => Err(MALFORMED),
    }
}

/// A digest's last 8 bytes, as far as it has them.
fn fold(digest: &[u8]) -> u64 {
    digest.iter().fold(0, |folded, &byte| (folded << 8) | u64::from(byte))
}
