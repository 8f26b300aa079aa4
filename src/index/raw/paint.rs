//! One number into many places of a dense answer.

/// Sets those of 64 places whose bit is set.
#[inline(always)]
pub(super) fn paint(places: &mut [u32; 64], bits: u64, depth: u32) {
    if bits == u64::MAX {
        places.fill(depth);
        return;
    }
    // In steps of eight, each of which the compiler turns into a comparison and a blend. A loop over the ones has
    // a jump for each of them that nobody can foresee.
    for (eight, byte) in places.as_chunks_mut::<8>().0.iter_mut().zip(bits.to_le_bytes()) {
        for (at, place) in eight.iter_mut().enumerate() {
            *place = if byte & 1 << at == 0 { *place } else { depth };
        }
    }
}

/// The ones among 64 bits, from the lowest on.
#[inline(always)]
pub(super) fn ones(mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let one = (bits != 0).then(|| bits.trailing_zeros());
        bits &= bits.wrapping_sub(1);
        one
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_places_of_ones_change() {
        let mut rng = fastrand::Rng::with_seed(5);
        for round in 0..200 {
            let bits = match round {
                0 => 0,
                1 => u64::MAX,
                _ => rng.u64(..) & rng.u64(..),
            };
            let mut places = std::array::from_fn(|at| at as u32);
            paint(&mut places, bits, 700);
            for (at, place) in places.into_iter().enumerate() {
                assert_eq!(
                    place,
                    if bits >> at & 1 == 1 { 700 } else { at as u32 },
                    "place {at} of {bits:x}"
                );
            }
            assert!(ones(bits).eq((0..64).filter(|at| bits >> at & 1 == 1)));
        }
    }
}
