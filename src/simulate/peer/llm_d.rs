//! llm-d's scheduler.

use fastrand::Rng;

use super::{Gauge, matched};
use crate::select::{Demand, Row, least};

/// Weights of the scorers for prefix cache, queue and cache usage.
const WEIGHTS: [f64; 3] = [3.0, 2.0, 2.0];

/// The greatest sum of weighed scores, each between 0 and 1: the part of the prompt that is cached; how short the queue is
/// between the longest and the shortest; the part of the cache that is free. Ties have equal chances.
pub(super) fn pick(rows: &[Row], gauges: &[Gauge], demand: &Demand<'_>, rng: &mut Rng) -> Option<usize> {
    let waiting = || gauges.iter().map(|gauge| gauge.waiting);
    let (longest, shortest) = (waiting().max()?, waiting().min()?);
    let score = |(row, gauge): (&Row, &Gauge)| {
        let queue = if longest == shortest {
            1.0
        } else {
            (longest - gauge.waiting) as f64 / (longest - shortest) as f64
        };
        WEIGHTS[0] * matched(row, demand) + WEIGHTS[1] * queue + WEIGHTS[2] * (1.0 - gauge.usage)
    };
    least(rows.iter().zip(gauges).map(score).enumerate().map(|(at, score)| (at, -score)), rng)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::row, *};
    use crate::hash::BlockSize;

    #[test]
    fn scores_are_weighed_against_each_other() {
        let demand = Demand::new(1000, BlockSize::new(100).unwrap(), &[]);
        let pick = |rows: &[(u32, usize, f64)]| {
            let gauges: Vec<_> = rows.iter().map(|&(_, waiting, usage)| Gauge { waiting, usage }).collect();
            let rows: Vec<_> = rows.iter().map(|&(gpu, ..)| row(gpu, 0)).collect();
            pick(&rows, &gauges, &demand, &mut Rng::with_seed(1)).unwrap()
        };
        assert_eq!(pick(&[(5, 0, 0.5), (0, 0, 0.4)]), 0);
        assert_eq!(
            pick(&[(5, 1, 0.5), (0, 0, 0.5)]),
            1,
            "the only queue costs 2, half of a prompt is worth 1.5"
        );
        assert_eq!(pick(&[(5, 0, 0.9), (0, 0, 0.1)]), 1, "a full cache");
    }
}
