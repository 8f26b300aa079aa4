//! From how many blocks on a device is faster: a straight line through some measured times of each side.

use std::time::Duration;

/// Tokens of the batches that are measured.
pub(super) const SIZES: [usize; 3] = [1 << 16, 1 << 18, 1 << 20];

/// A device has to be so much faster: what was measured once is not what holds for ever.
const MARGIN: f64 = 1.25;

/// What a side takes: something for any batch, and something for each block, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Line {
    pub(super) batch: f64,
    pub(super) block: f64,
}

impl Line {
    /// The least-squares line through `points`, of blocks and seconds, at least two of which differ in blocks. It may not fall:
    /// noise makes no side faster the more it has to do.
    pub(super) fn through(points: &[(usize, Duration)]) -> Self {
        let n = points.len().max(1) as f64;
        let mean = |value: fn(&(usize, Duration)) -> f64| points.iter().map(value).sum::<f64>() / n;
        let (x, y) = (mean(|point| point.0 as f64), mean(|point| point.1.as_secs_f64()));
        let (mut across, mut along) = (0.0, 0.0);
        for &(blocks, time) in points {
            across += (blocks as f64 - x) * (time.as_secs_f64() - y);
            along += (blocks as f64 - x).powi(2);
        }
        let block = if along > 0.0 { (across / along).max(0.0) } else { 0.0 };
        Self { batch: (y - block * x).max(0.0), block }
    }
}

/// From how many blocks on `gpu` is faster than `cpu`, with a margin. `None`: never.
pub(super) fn break_even(cpu: Line, gpu: Line) -> Option<usize> {
    let gained = cpu.block - gpu.block * MARGIN;
    if gained <= 0.0 {
        return None;
    }
    let lost = gpu.batch * MARGIN - cpu.batch;
    Some((lost / gained).max(0.0).ceil() as usize)
}

/// The time of the fastest of three runs: what disturbs them only ever makes them slower.
pub(super) fn fastest<E>(mut run: impl FnMut() -> Result<Duration, E>) -> Result<Duration, E> {
    let mut best = run()?;
    for _ in 0..2 {
        best = best.min(run()?);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(batch: f64, block: f64) -> Line {
        let points = SIZES.map(|tokens| {
            let blocks = tokens / 16;
            (blocks, Duration::from_secs_f64((batch + block * blocks as f64) * 1e-6))
        });
        Line::through(&points)
    }

    #[test]
    fn a_line_goes_through_points_on_a_line() {
        let Line { batch, block } = line(25.0, 0.01);
        assert!((batch * 1e6 - 25.0).abs() < 0.01 && (block * 1e6 - 0.01).abs() < 1e-5, "{batch} {block}");
    }

    #[test]
    fn what_costs_more_to_begin_pays_from_some_size_on() {
        // 25 us and 1.3 ns a block against 3.3 ns a block: 31.25 / (3.3 - 1.625) ns.
        let least = break_even(line(0.0, 0.0033), line(25.0, 0.0013)).unwrap();
        assert!((18_000..19_500).contains(&least), "{least}");
        assert_eq!(break_even(line(0.0, 0.0033), line(25.0, 0.0033)), None, "no gain with a margin");
        assert_eq!(break_even(line(100.0, 0.0033), line(25.0, 0.001)), Some(0), "always");
    }

    #[test]
    fn noise_makes_no_line_fall() {
        let points = [(4096, Duration::from_micros(300)), (16_384, Duration::from_micros(200))];
        assert_eq!(Line::through(&points).block, 0.0);
    }

    #[test]
    fn the_fastest_of_three_counts() {
        let mut times = [30, 10, 20].into_iter().map(Duration::from_micros);
        assert_eq!(fastest(|| times.next().ok_or(())), Ok(Duration::from_micros(10)));
    }
}
