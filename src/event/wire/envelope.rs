//! The batch around the events.

use super::batch::Batch;
use super::reader::{Fault, Item, Reader};
use super::record;
use crate::event::Rejection;

/// Why a payload is no batch. The batch decoded into is left empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The payload is neither of the two shapes.
    #[error(
        "event batch is {found}; expected an array [timestamp, events, rank] or a map with the key \"events\""
    )]
    NotABatch {
        /// What it is.
        found: &'static str,
    },
    /// There are no events in it.
    #[error("event batch has no events; expected them as the second element or under the key \"events\"")]
    NoEvents,
    /// The events are not a list.
    #[error("the events of the batch are {found}; expected an array")]
    EventsNotAnArray {
        /// What they are.
        found: &'static str,
    },
    /// The payload ends before the events begin.
    #[error("event batch ends before its events begin; the payload was cut or is not msgpack")]
    Truncated,
}

/// Decodes one payload into `batch`, whose former content is dropped and whose buffers are reused.
///
/// ```
/// use kvroute::event::wire::{Batch, decode};
///
/// let mut batch = Batch::new();
/// decode(&[0x92, 0x01, 0x91, 0x91, 0xb0, b'A', b'l', b'l', b'B', b'l', b'o', b'c', b'k', b's',
///     b'C', b'l', b'e', b'a', b'r', b'e', b'd'], &mut batch)?;
/// assert_eq!((batch.len(), batch.timestamp_ms, batch.rank), (1, 1000, None));
/// # Ok::<(), kvroute::event::wire::DecodeError>(())
/// ```
///
/// # Errors
///
/// [`DecodeError`] when the payload is no batch. Events that cannot be read are no error: they are counted in
/// [`Batch::rejected`]. A payload that ends among its events is none either: [`Batch::truncated`] says so.
pub fn decode(payload: &[u8], batch: &mut Batch) -> Result<(), DecodeError> {
    batch.clear();
    let mut reader = Reader::new(payload);
    let result = match reader.head() {
        Ok(Item::Array(len)) => positional(&mut reader, len, batch),
        Ok(Item::Map(pairs)) => named(&mut reader, pairs, batch),
        Ok(item) => Err(DecodeError::NotABatch { found: item.kind() }),
        Err(_) => Err(DecodeError::Truncated),
    };
    if result.is_err() {
        batch.clear();
    }
    result
}

fn positional(reader: &mut Reader<'_>, len: usize, batch: &mut Batch) -> Result<(), DecodeError> {
    if len < 2 {
        return Err(DecodeError::NoEvents);
    }
    batch.timestamp_ms = timestamp(reader).map_err(|_| DecodeError::Truncated)?;
    events(reader, batch)?;
    if len > 2 && !batch.truncated {
        // Elements after the rank belong to releases to come.
        match rank(reader) {
            Ok(rank) => batch.rank = rank,
            Err(_) => batch.truncated = true,
        }
    }
    Ok(())
}

fn named(reader: &mut Reader<'_>, pairs: usize, batch: &mut Batch) -> Result<(), DecodeError> {
    let mut found = false;
    for _ in 0..pairs {
        match pair(reader, batch) {
            Ok(was_events) => found |= was_events,
            Err(Unreadable::Cut) if found => batch.truncated = true,
            Err(Unreadable::Cut) => return Err(DecodeError::Truncated),
            Err(Unreadable::Envelope(error)) => return Err(error),
        }
        if batch.truncated {
            break;
        }
    }
    if found { Ok(()) } else { Err(DecodeError::NoEvents) }
}

/// Why one pair of a map could not be read.
enum Unreadable {
    Cut,
    Envelope(DecodeError),
}

impl From<Fault> for Unreadable {
    fn from(_: Fault) -> Self {
        Self::Cut
    }
}

/// Reads one pair of a map; whether it was the events.
fn pair(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<bool, Unreadable> {
    let key = reader.peek()?.text();
    reader.skip()?;
    match key {
        Some("ts") => batch.timestamp_ms = timestamp(reader)?,
        Some("data_parallel_rank" | "attn_dp_rank" | "dp_rank") => batch.rank = rank(reader)?.or(batch.rank),
        Some("events") => {
            events(reader, batch).map_err(Unreadable::Envelope)?;
            return Ok(true);
        }
        _ => reader.skip()?,
    }
    Ok(false)
}

fn events(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<(), DecodeError> {
    let len = match reader.head() {
        Ok(Item::Array(len)) => len,
        Ok(Item::Nil) => 0,
        Ok(item) => return Err(DecodeError::EventsNotAnArray { found: item.kind() }),
        Err(_) => return Err(DecodeError::Truncated),
    };
    read_events(reader, len, batch);
    Ok(())
}

fn read_events(reader: &mut Reader<'_>, len: usize, batch: &mut Batch) {
    for _ in 0..len {
        if record::read(reader, batch).is_err() {
            batch.rejected.count(Rejection::Truncated);
            batch.truncated = true;
            return;
        }
    }
}

/// Seconds, as an integer or a float, to milliseconds. Whatever cannot be a time is 0: no event is worth losing
/// for its timestamp.
fn timestamp(reader: &mut Reader<'_>) -> Result<u64, Fault> {
    let item = reader.peek()?;
    reader.skip()?;
    Ok(match item {
        Item::Unsigned(seconds) => seconds.saturating_mul(1000),
        // A cast from float saturates, and makes 0 of what is negative or not a number.
        Item::Float(seconds) => (seconds * 1000.0).round() as u64,
        _ => 0,
    })
}

fn rank(reader: &mut Reader<'_>) -> Result<Option<u32>, Fault> {
    let item = reader.peek()?;
    reader.skip()?;
    Ok(match item {
        Item::Unsigned(rank) => u32::try_from(rank).ok(),
        _ => None,
    })
}
