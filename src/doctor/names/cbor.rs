//! Canonical CBOR of what vLLM hashes: integers, byte strings, text, tuples and nil (RFC 8949, section 4.2.1).

use super::key::{Extra, Key};

const UNSIGNED: u8 = 0;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const NIL: u8 = 0xf6;

pub(super) fn text(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_text(&mut out, text);
    out
}

pub(super) fn key(key: &Key<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    head(&mut out, ARRAY, 3);
    head(&mut out, BYTES, key.parent.len() as u64);
    out.extend_from_slice(key.parent);
    head(&mut out, ARRAY, key.tokens.len() as u64);
    for &token in key.tokens {
        head(&mut out, UNSIGNED, token.into());
    }
    if key.extra.is_empty() {
        out.push(NIL);
        return out;
    }
    head(&mut out, ARRAY, key.extra.len() as u64);
    for extra in key.extra {
        match extra {
            Extra::Text(text) => put_text(&mut out, text),
            Extra::Tuple(texts) => {
                head(&mut out, ARRAY, texts.len() as u64);
                texts.iter().for_each(|text| put_text(&mut out, text));
            }
        }
    }
    out
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    head(out, TEXT, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// A type and a number, in the fewest bytes that it fits.
fn head(out: &mut Vec<u8>, major: u8, value: u64) {
    let major = major << 5;
    if value < 24 {
        out.push(major | value as u8);
    } else if let Ok(value) = u8::try_from(value) {
        out.extend([major | 24, value]);
    } else if let Ok(value) = u16::try_from(value) {
        out.push(major | 25);
        out.extend(value.to_be_bytes());
    } else if let Ok(value) = u32::try_from(value) {
        out.push(major | 26);
        out.extend(value.to_be_bytes());
    } else {
        out.push(major | 27);
        out.extend(value.to_be_bytes());
    }
}
