//! SMG's `cache_aware`.

use fastrand::Rng;

use super::matched;
use crate::select::{Demand, Row, least};

/// The part of a prompt that has to be cached for the cache to count.
const CACHE_THRESHOLD: f64 = 0.3;

/// Loads count instead where the greatest is above the least by so many requests, and by this factor.
const BALANCE_ABS: u32 = 64;
const BALANCE_REL: f64 = 1.5;

/// The least loaded, if loads are far apart; else the least loaded of those that hold most of the prompt, if that is enough of
/// it; else the least loaded. Ties have equal chances.
pub(super) fn pick(rows: &[Row], demand: &Demand<'_>, rng: &mut Rng) -> Option<usize> {
    let load = |row: &Row| row.load.requests;
    let least_loaded = |deepest: u32, rng: &mut Rng| {
        let deep = rows.iter().enumerate().filter(|(_, row)| row.overlap.gpu >= deepest);
        least(deep.map(|(at, row)| (at, load(row))), rng)
    };
    let (most, fewest) = (rows.iter().map(load).max()?, rows.iter().map(load).min()?);
    if most - fewest > BALANCE_ABS && f64::from(most) > BALANCE_REL * f64::from(fewest) {
        return least_loaded(0, rng);
    }
    let deepest = rows.iter().max_by_key(|row| row.overlap.gpu)?;
    if matched(deepest, demand) > CACHE_THRESHOLD {
        return least_loaded(deepest.overlap.gpu, rng);
    }
    least_loaded(0, rng)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::row, *};
    use crate::hash::BlockSize;

    #[test]
    fn caches_count_while_loads_are_close() {
        let demand = Demand::new(1000, BlockSize::new(100).unwrap(), &[]);
        let pick = |rows: &[Row]| pick(rows, &demand, &mut Rng::with_seed(1)).unwrap();
        assert_eq!(pick(&[row(3, 0), row(4, 9), row(0, 0)]), 1);
        assert_eq!(pick(&[row(4, 12), row(4, 9), row(0, 0)]), 1, "the less loaded holder");
        assert_eq!(pick(&[row(3, 5), row(2, 9), row(0, 1)]), 2, "three tenths are not enough");
        assert_eq!(pick(&[row(9, 64), row(0, 0)]), 0);
        assert_eq!(pick(&[row(9, 65), row(0, 0)]), 1, "too far apart");
        assert_eq!(pick(&[row(9, 200), row(0, 134)]), 0, "not by the factor");
    }
}
