//! How each value is written: whole numbers as LEB128, floating-point numbers by their bits, options and lists with what says how
//! many there are, structs field by field in the order given here.
//!
//! Every struct is taken apart without `..`, and every enum is matched in full: whoever adds to one is told by the compiler
//! that a record changes, and with it [`FORMAT`](super::FORMAT).

mod records;
mod rows;
mod rules;

use std::time::Duration;

/// A record that cannot be what was written, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Malformed(pub(super) &'static str);

const SHORT: Malformed = Malformed("it is shorter than what it holds");
const BEYOND: Malformed = Malformed("a number in it is out of its range");

/// What is left of a record.
#[derive(Debug)]
pub(super) struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    pub(super) const fn new(record: &'a [u8]) -> Self {
        Self(record)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.bytes(N)?.try_into().map_err(|_| SHORT)
    }
}

/// Something that a record holds.
pub(super) trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed>;
}

impl Wire for u8 {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        Ok(from.bytes(1)?[0])
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        match u8::get(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BEYOND),
        }
    }
}

impl Wire for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = u8::get(from)?;
            let part = Self::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if part << shift >> shift != part {
                return Err(BEYOND);
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(BEYOND)
    }
}

/// Whole numbers of another width are written as a `u64`.
macro_rules! narrow {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                // No type here is wider than 64 bits.
                u64::try_from(*self).unwrap_or(u64::MAX).put(out);
            }

            fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
                u64::get(from)?.try_into().map_err(|_| BEYOND)
            }
        }
    )*};
}

narrow!(u16, u32, usize);

impl Wire for f64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        from.array().map(Self::from_le_bytes)
    }
}

impl Wire for Duration {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_secs().put(out);
        self.subsec_nanos().put(out);
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        let (secs, nanos) = (u64::get(from)?, u32::get(from)?);
        if nanos < 1_000_000_000 { Ok(Self::new(secs, nanos)) } else { Err(BEYOND) }
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        out.extend_from_slice(self.as_bytes());
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        let length = usize::get(from)?;
        let text = str::from_utf8(from.bytes(length)?);
        text.map(str::to_owned).map_err(|_| Malformed("a text in it is not UTF-8"))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        bool::get(from)?.then(|| T::get(from)).transpose()
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        self.iter().for_each(|item| item.put(out));
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        let length = usize::get(from)?;
        // Every item has at least a byte, so that a length that lies costs no memory.
        if length > from.0.len() {
            return Err(SHORT);
        }
        (0..length).map(|_| T::get(from)).collect()
    }
}

/// A struct, by its fields in this order.
macro_rules! fields {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let Self { $($field),* } = self;
                $($field.put(out);)*
            }

            fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
                Ok(Self { $($field: Wire::get(from)?),* })
            }
        }
    };
}

/// An enum without fields, by numbers that stay whatever comes to stand between them.
macro_rules! codes {
    ($type:ident { $($variant:ident = $code:literal),* $(,)? }) => {
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(match self { $(Self::$variant => $code),* });
            }

            fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
                match u8::get(from)? {
                    $($code => Ok(Self::$variant),)*
                    _ => Err($crate::decisions::wire::BEYOND),
                }
            }
        }
    };
}

use {codes, fields};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn again<T: Wire>(value: &T) -> Result<T, Malformed> {
        let mut out = Vec::new();
        value.put(&mut out);
        let mut from = Source::new(&out);
        let taken = T::get(&mut from)?;
        assert!(from.is_empty());
        Ok(taken)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            number: u64, small: u32, bits: u64, text: String, list: Vec<Option<u64>>, secs: u64, nanos in 0..1_000_000_000_u32,
        ) {
            prop_assert_eq!(again(&number), Ok(number));
            prop_assert_eq!(again(&small), Ok(small));
            prop_assert_eq!(again(&f64::from_bits(bits)).map(f64::to_bits), Ok(bits));
            prop_assert_eq!(again(&text), Ok(text.clone()));
            prop_assert_eq!(again(&list), Ok(list.clone()));
            prop_assert_eq!(again(&Duration::new(secs, nanos)), Ok(Duration::new(secs, nanos)));
        }

        #[test]
        fn other_bytes_are_refused_and_cost_nothing(bytes: Vec<u8>) {
            // Neither a panic nor memory beyond what came.
            let _ = Vec::<u64>::get(&mut Source::new(&bytes));
            let _ = String::get(&mut Source::new(&bytes));
            let _ = super::super::Decision::take_under(rule(), &mut Source::new(&bytes));
            let _ = super::super::Rule::get(&mut Source::new(&bytes));
        }
    }

    fn rule() -> std::sync::Arc<super::super::Rule> {
        std::sync::Arc::new(super::super::Rule {
            worker_set: String::new(),
            model: String::new(),
            fingerprint: None,
            block_size: crate::hash::BlockSize::new(16).unwrap(),
            mode: crate::select::Mode::Kv,
            tuning: crate::select::Tuning::default(),
        })
    }

    #[test]
    fn a_rule_is_read_though_its_settings_exclude_each_other_and_not_if_one_is_out_of_its_range() {
        use crate::select::{Tuning, queue::QueuePolicy};

        let of = |tuning| super::super::Rule { tuning, ..(*rule()).clone() };
        let held = Tuning { hold: Some(Duration::from_secs(2)), ..Tuning::default() };
        let two_orders = Tuning { queue_policy: QueuePolicy::Wspt, ..held };
        let unseen = Tuning { router_predicted_ttl_secs: Some(1.0), use_kv_events: false, ..held };
        for tuning in [held, two_orders, unseen] {
            assert_eq!(again(&of(tuning)), Ok(of(tuning)));
        }
        let beyond = Tuning { router_temperature: -1.0, ..held };
        assert_eq!(again(&of(beyond)), Err(Malformed("a setting in it is out of its range")));
    }

    #[test]
    fn numbers_out_of_their_range_are_no_numbers() {
        let mut long = vec![0xff; 9];
        long.push(2);
        assert_eq!(u64::get(&mut Source::new(&long)), Err(BEYOND));
        long[9] = 1;
        assert_eq!(u64::get(&mut Source::new(&long)), Ok(u64::MAX));
        assert_eq!(u32::get(&mut Source::new(&long)), Err(BEYOND));
        assert_eq!(u64::get(&mut Source::new(&long[..9])), Err(SHORT));
        assert_eq!(bool::get(&mut Source::new(&[2])), Err(BEYOND));
        assert_eq!(Vec::<u8>::get(&mut Source::new(&[200, 1, 0])), Err(SHORT));
    }
}
