//! Logs that are torn, bent, or not for us.

use std::sync::LazyLock;

use kvroute::decisions::{Entry, FORMAT, LogError, Reader, Tail};
use proptest::prelude::*;

use crate::recorded_fleet::Fleet;

/// What is read of `bytes`, and how that ends.
fn read(bytes: &[u8]) -> Result<(Vec<Entry>, Tail), (Vec<Entry>, LogError)> {
    let mut reader = Reader::new(bytes).map_err(|error| (Vec::new(), error))?;
    let mut entries = Vec::new();
    for entry in reader.by_ref() {
        match entry {
            Ok(entry) => entries.push(entry),
            Err(error) => return Err((entries, error)),
        }
    }
    Ok((entries, reader.tail()))
}

/// Where each record of a log ends, by its entries.
fn ends(log: &[u8]) -> Vec<usize> {
    let mut reader = Reader::new(log).unwrap();
    let mut ends = vec![usize::try_from(reader.position()).unwrap()];
    while let Some(entry) = reader.next() {
        entry.unwrap();
        ends.push(usize::try_from(reader.position()).unwrap());
    }
    ends
}

#[test]
fn of_a_torn_log_all_that_precedes_the_tear_is_read() {
    let log = Fleet::record(21, 12).log();
    let (whole, tail) = read(&log).unwrap();
    assert_eq!(tail, Tail::Whole);
    let ends = ends(&log);
    for cut in ends[0]..log.len() {
        let (entries, tail) = read(&log[..cut]).unwrap();
        let complete = ends.iter().filter(|end| **end <= cut).count() - 1;
        assert_eq!(entries, whole[..complete], "cut at {cut}");
        // Between an entry and the next there may be a rule, which is whole by itself.
        match tail {
            Tail::Torn { at } => assert!((ends[complete]..cut).contains(&usize::try_from(at).unwrap())),
            Tail::Whole => assert!(cut >= ends[complete]),
        }
    }
    let (_, tail) = read(&log[..log.len() - 1]).unwrap();
    assert!(matches!(tail, Tail::Torn { .. }));
}

#[test]
fn a_corrupt_record_ends_the_log_and_what_precedes_it_is_read() {
    let log = Fleet::record(22, 30).log();
    let (whole, _) = read(&log).unwrap();
    let ends = ends(&log);
    for (position, end) in ends.iter().enumerate().skip(1) {
        let mut bent = log.clone();
        // The last byte of a record is never that of a length.
        bent[end - 1] ^= 0x10;
        let (entries, error) = read(&bent).unwrap_err();
        assert_eq!(entries, whole[..position - 1]);
        let text = error.to_string();
        assert!(matches!(error, LogError::Corrupt { at, .. } if at < *end as u64), "{text}");
        assert!(text.contains("checksum"), "{text}");
    }
}

#[test]
fn a_log_of_another_format_is_refused_and_says_who_can_read_it() {
    let mut log = Fleet::record(23, 2).log();
    log[8..12].copy_from_slice(&(FORMAT + 1).to_le_bytes());
    let (_, error) = read(&log).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LogError::OtherFormat { .. }), "{text}");
    assert!(text.contains(&format!("format {}", FORMAT + 1)), "{text}");
    assert!(text.contains(concat!("kvroute ", env!("CARGO_PKG_VERSION"))), "{text}");
    assert!(text.contains("replay it with") && text.contains("record a new one"), "{text}");
}

#[test]
fn what_is_no_log_is_told() {
    for bytes in [&b""[..], b"KVRDECN", b"{\"timestamp\": 0, \"input_length\": 7}"] {
        assert!(matches!(read(bytes), Err((_, LogError::NotALog))), "{bytes:?}");
    }
}

static LOG: LazyLock<Vec<u8>> = LazyLock::new(|| Fleet::record(24, 8).log());

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_byte_can_be_changed_without_notice(at in 0_usize..4000, bit in 0_u32..8) {
        let log = &*LOG;
        let mut bent = log.clone();
        let at = at % log.len();
        bent[at] ^= 1 << bit;
        let (whole, _) = read(log).unwrap();
        match read(&bent) {
            // The version of the writer is for people, and a length that reaches beyond the end is like a tear.
            Ok((entries, Tail::Whole)) => prop_assert!(at < ends(log)[0] && entries == whole),
            Ok((entries, Tail::Torn { .. })) => prop_assert!(entries.len() < whole.len()),
            Err((entries, _)) => prop_assert!(whole.starts_with(&entries)),
        }
    }
}
