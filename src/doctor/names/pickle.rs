//! What Python's `pickle.dumps` makes of what vLLM hashes, at protocol 5, which is its highest from 3.8 on.
//!
//! The opcodes are those of the module `pickletools`. Python puts whatever could be met again (strings, bytes, tuples) into a memo,
//! and no object of a key is met again.

use super::key::{Extra, Key};

const PROTOCOL: [u8; 2] = [0x80, 5];
const FRAME: u8 = 0x95;
const STOP: u8 = b'.';
const MEMOIZE: u8 = 0x94;
const MARK: u8 = b'(';
const NONE: u8 = b'N';
const BYTE: u8 = b'K';
const TWO_BYTES: u8 = b'M';
const FOUR_BYTES_SIGNED: u8 = b'J';
const LONG: u8 = 0x8a;
const SHORT_BYTES: u8 = b'C';
const SHORT_TEXT: u8 = 0x8c;
const TEXT: u8 = b'X';
const EMPTY_TUPLE: u8 = b')';
const TUPLE: u8 = b't';
/// Of one, two and three elements, which need no mark.
const TUPLES: [u8; 3] = [0x85, 0x86, 0x87];

/// What goes into one frame. Python begins another behind it, which no block of a sensible size needs.
const FRAME_LIMIT: usize = 64 << 10;

pub(super) fn text(text: &str) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    put_text(&mut body, text);
    framed(body)
}

/// `None` for a key that is too large for one frame.
pub(super) fn key(key: &Key<'_>) -> Option<Vec<u8>> {
    let mut body = vec![SHORT_BYTES, u8::try_from(key.parent.len()).ok()?];
    body.extend_from_slice(key.parent);
    body.push(MEMOIZE);
    tuple(&mut body, key.tokens, |body, &token| put_number(body, token));
    if key.extra.is_empty() {
        body.push(NONE);
    } else {
        tuple(&mut body, key.extra, |body, extra| match extra {
            Extra::Text(text) => put_text(body, text),
            Extra::Tuple(texts) => tuple(body, texts, |body, text| put_text(body, text)),
        });
    }
    body.extend([TUPLES[2], MEMOIZE]);
    framed(body)
}

fn framed(mut body: Vec<u8>) -> Option<Vec<u8>> {
    body.push(STOP);
    let mut out = PROTOCOL.to_vec();
    out.push(FRAME);
    out.extend((body.len() as u64).to_le_bytes());
    out.append(&mut body);
    (out.len() < FRAME_LIMIT).then_some(out)
}

fn tuple<T>(out: &mut Vec<u8>, items: &[T], mut put: impl FnMut(&mut Vec<u8>, &T)) {
    match items.len() {
        // Python has one empty tuple, and remembers it by itself.
        0 => {
            out.push(EMPTY_TUPLE);
            return;
        }
        count @ 1..=3 => {
            items.iter().for_each(|item| put(out, item));
            out.push(TUPLES[count - 1]);
        }
        _ => {
            out.push(MARK);
            items.iter().for_each(|item| put(out, item));
            out.push(TUPLE);
        }
    }
    out.push(MEMOIZE);
}

fn put_number(out: &mut Vec<u8>, number: u32) {
    if let Ok(number) = u8::try_from(number) {
        out.extend([BYTE, number]);
    } else if let Ok(number) = u16::try_from(number) {
        out.push(TWO_BYTES);
        out.extend(number.to_le_bytes());
    } else if let Ok(number) = i32::try_from(number) {
        out.push(FOUR_BYTES_SIGNED);
        out.extend(number.to_le_bytes());
    } else {
        // Two's complement, so the highest bit takes a byte more.
        out.extend([LONG, 5]);
        out.extend(number.to_le_bytes());
        out.push(0);
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    if let Ok(len) = u8::try_from(text.len()) {
        out.extend([SHORT_TEXT, len]);
    } else {
        out.push(TEXT);
        // Whatever is longer than this is too long for a frame.
        out.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    }
    out.extend_from_slice(text.as_bytes());
    out.push(MEMOIZE);
}
