//! A cursor over msgpack bytes that never trusts a length.

use rmp::Marker;

use crate::event::Rejection;

/// Why reading stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The bytes ended, or a length reaches past their end: where the next value starts is unknown.
    Truncated,
    /// The value is well-formed msgpack and is not what it has to be: it can be stepped over.
    Rejected(Rejection),
}

/// The fault of a value that has the wrong shape.
pub(super) const MALFORMED: Fault = Fault::Rejected(Rejection::Malformed);

/// One value, or the head of one: the elements of an array or a map follow as values of their own.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Item<'a> {
    Nil,
    Unsigned(u64),
    /// Below zero.
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    Array(usize),
    /// Number of pairs.
    Map(usize),
    /// Booleans, extension types and the marker that msgpack never uses: nothing here reads them.
    Other,
}

impl<'a> Item<'a> {
    /// The string that the value is, in either of the two types that encoders use for one.
    pub(super) fn text(self) -> Option<&'a str> {
        match self {
            Self::Text(bytes) | Self::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// What the value is, for error messages.
    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Unsigned(_) | Self::Negative(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "a string",
            Self::Bytes(_) => "a byte string",
            Self::Array(_) => "an array",
            Self::Map(_) => "a map",
            Self::Other => "a boolean or an extension value",
        }
    }
}

/// Where in the payload reading has got to. A copy is a bookmark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next value or head. A container that claims more elements than bytes are left is truncated, so a
    /// returned length never exceeds the size of the payload and is safe to reserve for.
    #[inline]
    pub(super) fn item(&mut self) -> Result<Item<'a>, Fault> {
        let item = self.head()?;
        let least = match item {
            Item::Array(len) => len,
            Item::Map(pairs) => pairs.saturating_mul(2),
            _ => 0,
        };
        if least > self.rest.len() { Err(Fault::Truncated) } else { Ok(item) }
    }

    /// As [`Reader::item`], but a container's length is what the payload claims: for those whose first elements
    /// count even if the last are cut off. Nothing may be reserved for it.
    #[inline]
    pub(super) fn head(&mut self) -> Result<Item<'a>, Fault> {
        let [marker] = self.take()?;
        Ok(match Marker::from_u8(marker) {
            Marker::FixPos(value) => Item::Unsigned(u64::from(value)),
            Marker::FixNeg(value) => Item::Negative(i64::from(value)),
            Marker::Null => Item::Nil,
            Marker::U8 => Item::Unsigned(self.size8()? as u64),
            Marker::U16 => Item::Unsigned(self.size16()? as u64),
            Marker::U32 => Item::Unsigned(u64::from(u32::from_be_bytes(self.take()?))),
            Marker::U64 => Item::Unsigned(u64::from_be_bytes(self.take()?)),
            Marker::I8 => signed(i64::from(i8::from_be_bytes(self.take()?))),
            Marker::I16 => signed(i64::from(i16::from_be_bytes(self.take()?))),
            Marker::I32 => signed(i64::from(i32::from_be_bytes(self.take()?))),
            Marker::I64 => signed(i64::from_be_bytes(self.take()?)),
            Marker::F32 => Item::Float(f64::from(f32::from_be_bytes(self.take()?))),
            Marker::F64 => Item::Float(f64::from_be_bytes(self.take()?)),
            Marker::FixStr(len) => Item::Text(self.bytes(usize::from(len))?),
            Marker::Str8 => Item::Text(self.sized(Self::size8)?),
            Marker::Str16 => Item::Text(self.sized(Self::size16)?),
            Marker::Str32 => Item::Text(self.sized(Self::size32)?),
            Marker::Bin8 => Item::Bytes(self.sized(Self::size8)?),
            Marker::Bin16 => Item::Bytes(self.sized(Self::size16)?),
            Marker::Bin32 => Item::Bytes(self.sized(Self::size32)?),
            Marker::FixArray(len) => Item::Array(usize::from(len)),
            Marker::Array16 => Item::Array(self.size16()?),
            Marker::Array32 => Item::Array(self.size32()?),
            Marker::FixMap(len) => Item::Map(usize::from(len)),
            Marker::Map16 => Item::Map(self.size16()?),
            Marker::Map32 => Item::Map(self.size32()?),
            Marker::True | Marker::False | Marker::Reserved => Item::Other,
            other => self.extension(other)?,
        })
    }

    /// What the next value is, without moving.
    pub(super) fn peek(self) -> Result<Item<'a>, Fault> {
        let mut ahead = self;
        ahead.item()
    }

    /// Steps over one whole value, however deeply nested: it counts the values still owed instead of
    /// recursing, and each of them takes a byte at least, so time and memory are bounded by the payload.
    pub(super) fn skip(&mut self) -> Result<(), Fault> {
        let mut owed = 1_usize;
        while owed > 0 {
            owed -= 1;
            owed = owed.saturating_add(match self.item()? {
                Item::Array(len) => len,
                Item::Map(pairs) => pairs.saturating_mul(2),
                _ => 0,
            });
        }
        Ok(())
    }

    /// Reads one token id; the short encodings, which are nearly all of them, first.
    #[inline]
    pub(super) fn token(&mut self) -> Result<u32, Fault> {
        match *self.rest {
            [value @ 0..=0x7f, ref rest @ ..] => {
                self.rest = rest;
                Ok(u32::from(value))
            }
            [0xcd, high, low, ref rest @ ..] => {
                self.rest = rest;
                Ok(u32::from(u16::from_be_bytes([high, low])))
            }
            _ => match self.item()? {
                Item::Unsigned(value) => u32::try_from(value).map_err(|_| MALFORMED),
                _ => Err(MALFORMED),
            },
        }
    }

    fn extension(&mut self, marker: Marker) -> Result<Item<'a>, Fault> {
        let len = match marker {
            Marker::FixExt1 => 1,
            Marker::FixExt2 => 2,
            Marker::FixExt4 => 4,
            Marker::FixExt8 => 8,
            Marker::FixExt16 => 16,
            Marker::Ext8 => self.size8()?,
            Marker::Ext16 => self.size16()?,
            _ => self.size32()?,
        };
        // One more byte than the data: the extension's type.
        self.bytes(len.saturating_add(1))?;
        Ok(Item::Other)
    }

    fn sized(&mut self, size: fn(&mut Self) -> Result<usize, Fault>) -> Result<&'a [u8], Fault> {
        let len = size(self)?;
        self.bytes(len)
    }

    fn size8(&mut self) -> Result<usize, Fault> {
        self.take().map(|[len]| usize::from(len))
    }

    fn size16(&mut self) -> Result<usize, Fault> {
        self.take().map(|len| usize::from(u16::from_be_bytes(len)))
    }

    fn size32(&mut self) -> Result<usize, Fault> {
        self.take().map(|len| usize::try_from(u32::from_be_bytes(len)).unwrap_or(usize::MAX))
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Fault> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Fault::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Fault::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }
}

/// Encoders are free to write a number that is not negative in a signed type.
fn signed(value: i64) -> Item<'static> {
    u64::try_from(value).map_or(Item::Negative(value), Item::Unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_beyond_the_payload_is_truncation_and_not_an_allocation() {
        for head in [
            &[0xdd, 0xff, 0xff, 0xff, 0xff][..],
            &[0xdf, 0xff, 0xff, 0xff, 0xff],
            &[0xc6, 0xff, 0xff, 0xff, 0xff],
        ] {
            assert_eq!(Reader::new(head).item(), Err(Fault::Truncated));
            assert_eq!(Reader::new(head).skip(), Err(Fault::Truncated));
        }
    }

    #[test]
    fn nesting_of_any_depth_is_stepped_over() {
        let mut bytes = vec![0x91; 1_000_000];
        bytes.extend([0xc0, 0x07]);
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.skip(), Ok(()));
        assert_eq!(reader.item(), Ok(Item::Unsigned(7)));
    }

    #[test]
    fn skip_steps_over_what_rmpv_writes() {
        let value = rmpv::Value::Map(vec![
            ("a".into(), rmpv::Value::Ext(3, vec![1, 2, 3])),
            ("b".into(), rmpv::Value::Array(vec![rmpv::Value::F32(1.5), true.into(), (-70_000).into()])),
            (rmpv::Value::Binary(vec![0; 300]), rmpv::Value::Nil),
        ]);
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &value).unwrap();
        bytes.push(0x2a);
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.skip(), Ok(()));
        assert_eq!(reader.item(), Ok(Item::Unsigned(42)));
    }

    #[test]
    fn a_positive_number_in_a_signed_type_is_the_same_number() {
        assert_eq!(Reader::new(&[0xd3, 0, 0, 0, 0, 0, 0, 0, 5]).item(), Ok(Item::Unsigned(5)));
        assert_eq!(Reader::new(&[0xd0, 0xff]).item(), Ok(Item::Negative(-1)));
    }
}
