//! The layout of a log.
//!
//! ```text
//! header   "KVRDECNS", format (u32), length of the writer's version (u8), the version ("0.1.0")
//! frame    length of the record (u32), checksum of the record (u32), the record
//! ```
//!
//! Numbers are little-endian; the checksum is the low half of the record's XXH3-64. The header's layout is the same in every
//! format, so that a reader of another format can say who wrote the file. A record's first byte is its kind.

use std::io;

use xxhash_rust::xxh3::xxh3_64;

/// The format that this version writes and reads. It changes whenever anything about a record does.
pub const FORMAT: u32 = 3;

pub(super) const MAGIC: [u8; 8] = *b"KVRDECNS";

/// The largest record that is read, in bytes: what is longer was not written by an [`Encoder`](super::Encoder).
pub(super) const LARGEST: usize = 64 << 20;

/// The kinds of records.
pub(super) const RULE: u8 = 1;
pub(super) const DECISION: u8 = 2;
pub(super) const OUTCOME: u8 = 3;

/// How many rules are known at a time. An encoder numbers them around, so that neither side's memory grows.
pub(super) const RULES: u64 = 256;

/// A log that cannot be read, or not on.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The bytes are something else.
    #[error("this is no decision log: it does not begin as one; give a file that --decision-log wrote")]
    NotALog,
    /// The format is another one.
    #[error(
        "the log has format {found}, written by kvroute {writer}, and this version reads format {FORMAT}: replay it with \
         kvroute {writer}, or record a new one with this version"
    )]
    OtherFormat {
        /// The file's.
        found: u32,
        /// The version that wrote it.
        writer: String,
    },
    /// A record is not what was written.
    #[error(
        "the record at byte {at} is corrupt: {problem}; what is before it was read, and nothing behind it can be trusted"
    )]
    Corrupt {
        /// Where its frame begins.
        at: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The bytes do not come.
    #[error("the log cannot be read: {0}")]
    Read(#[from] io::Error),
}

/// Writes the header.
pub(super) fn put_header(out: &mut Vec<u8>) {
    let writer = env!("CARGO_PKG_VERSION").as_bytes();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.push(u8::try_from(writer.len()).unwrap_or(0));
    out.extend_from_slice(writer);
}

/// Writes a frame around what `record` writes.
pub(super) fn put_frame(out: &mut Vec<u8>, record: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    record(out);
    let written = &out[start + 8..];
    // A record is far smaller than u32 can count.
    let (length, sum) = (u32::try_from(written.len()).unwrap_or(u32::MAX), checksum(written));
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
}

pub(super) fn checksum(record: &[u8]) -> u32 {
    (xxh3_64(record) & u64::from(u32::MAX)) as u32
}
