//! As much of protocol buffers' wire format as reading takes: <https://protobuf.dev/programming-guides/encoding/>.

/// A field of a message.
pub(crate) struct Field<'a> {
    pub(crate) number: u64,
    /// Of a number.
    pub(crate) value: u64,
    /// Of anything with a length.
    pub(crate) bytes: &'a [u8],
}

impl Field<'_> {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.bytes.to_vec()).unwrap()
    }
}

/// The fields of a message in their order. Panics at what is none.
pub(crate) fn fields(mut message: &[u8]) -> impl Iterator<Item = Field<'_>> {
    std::iter::from_fn(move || {
        if message.is_empty() {
            return None;
        }
        let tag = varint(&mut message);
        let (mut value, mut bytes) = (0, &message[..0]);
        match tag & 7 {
            0 => value = varint(&mut message),
            1 => value = u64::from_le_bytes(take(&mut message, 8).try_into().unwrap()),
            2 => {
                let length = varint(&mut message);
                bytes = take(&mut message, usize::try_from(length).unwrap());
            }
            5 => value = u64::from(u32::from_le_bytes(take(&mut message, 4).try_into().unwrap())),
            other => panic!("wire type {other}"),
        }
        Some(Field { number: tag >> 3, value, bytes })
    })
}

fn take<'a>(message: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (taken, rest) = message.split_at(length);
    *message = rest;
    taken
}

fn varint(message: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = take(message, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
        shift += 7;
    }
}
