//! Picking one of many by a number: the least, or by chance.

use fastrand::Rng;

/// The item with the least value. Items that tie have equal chances: the k-th of them replaces the pick so far
/// with chance 1/k. `None` without items.
pub fn least<T: PartialOrd + Copy>(
    items: impl IntoIterator<Item = (usize, T)>,
    rng: &mut Rng,
) -> Option<usize> {
    let mut items = items.into_iter();
    let (mut picked, mut value) = items.next()?;
    let mut ties = 1;
    for (item, candidate) in items {
        if candidate < value {
            (picked, value, ties) = (item, candidate, 1);
        } else if candidate == value {
            ties += 1;
            if rng.usize(..ties) == 0 {
                picked = item;
            }
        }
    }
    Some(picked)
}

/// An item drawn with chances that fall with its cost: `exp(-(cost - min) / ((max - min) * temperature))`, up to
/// a common factor. Costs enter relative to their range, so a temperature means the same whatever
/// their scale. Equal costs have equal chances.
///
/// `temperature` is above 0. Without it, or if the costs do not span a finite range, the least is taken.
/// `None` without items.
pub fn softmax<I>(items: I, temperature: f64, rng: &mut Rng) -> Option<usize>
where
    I: IntoIterator<Item = (usize, f64)>,
    I::IntoIter: Clone,
{
    let items = items.into_iter();
    let costs = || items.clone().map(|(_, cost)| cost);
    let (min, max) = (costs().fold(f64::INFINITY, f64::min), costs().fold(f64::NEG_INFINITY, f64::max));
    let range = max - min;
    if range == 0.0 {
        return least(items.map(|(item, _)| (item, 0_u8)), rng);
    }
    if !range.is_finite() || temperature.is_nan() || temperature <= 0.0 {
        return least(items, rng);
    }
    // Dividing twice keeps a tiny temperature from making the divisor 0.
    let weight = |cost: f64| (-(cost - min) / range / temperature).exp();
    let total: f64 = costs().map(weight).sum();
    let target = rng.f64() * total;
    let mut cumulative = 0.0;
    let mut last = None;
    for (item, cost) in items {
        cumulative += weight(cost);
        last = Some(item);
        if target <= cumulative {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 30_000;

    fn shares(n: usize, mut draw: impl FnMut() -> Option<usize>) -> Vec<f64> {
        let mut counts = vec![0_u32; n];
        for _ in 0..DRAWS {
            counts[draw().unwrap()] += 1;
        }
        counts.into_iter().map(|count| f64::from(count) / f64::from(DRAWS)).collect()
    }

    fn near(actual: &[f64], expected: &[f64]) {
        for (a, e) in actual.iter().zip(expected) {
            assert!((a - e).abs() < 0.02, "{actual:?} is not near {expected:?}");
        }
    }

    #[test]
    fn ties_have_equal_chances() {
        let mut rng = Rng::with_seed(1);
        let shares = shares(5, || least([5, 1, 1, 9, 1].into_iter().enumerate(), &mut rng));
        let third = 1.0 / 3.0;
        near(&shares, &[0.0, third, third, 0.0, third]);
    }

    #[test]
    fn chances_follow_the_formula() {
        let mut rng = Rng::with_seed(2);
        let costs = [10.0, 20.0, 30.0];
        let weights = costs.map(|cost: f64| (-(cost - 10.0) / (20.0 * 0.5)).exp());
        let total: f64 = weights.iter().sum();
        let shares = shares(3, || softmax(costs.into_iter().enumerate(), 0.5, &mut rng));
        near(&shares, &weights.map(|weight| weight / total));
    }

    #[test]
    fn equal_costs_have_equal_chances() {
        let mut rng = Rng::with_seed(3);
        let shares = shares(4, || softmax([7.0; 4].into_iter().enumerate(), 0.1, &mut rng));
        near(&shares, &[0.25; 4]);
    }

    #[test]
    fn a_tiny_temperature_takes_the_least() {
        let mut rng = Rng::with_seed(4);
        for temperature in [f64::MIN_POSITIVE, 5e-324, 0.0] {
            assert_eq!(softmax([3.0, 1.0, 2.0].into_iter().enumerate(), temperature, &mut rng), Some(1));
        }
    }

    #[test]
    fn an_endless_range_takes_the_least() {
        let mut rng = Rng::with_seed(5);
        assert_eq!(softmax([f64::INFINITY, 1.0].into_iter().enumerate(), 1.0, &mut rng), Some(1));
        assert!(softmax([f64::INFINITY; 2].into_iter().enumerate(), 1.0, &mut rng).is_some());
    }

    #[test]
    fn nothing_comes_of_nothing() {
        let mut rng = Rng::with_seed(6);
        assert_eq!(least(std::iter::empty::<(usize, u8)>(), &mut rng), None);
        assert_eq!(softmax(std::iter::empty(), 1.0, &mut rng), None);
    }
}
