//! What a prefill costs the requests that decode beside it.

/// The part of a prefill's time by which each decoding request is held to be set back. It trades times to first token
/// against the smoothness of decoding; anything between 0.003 and 0.03 is within a few per cent.
const SET_BACK: f64 = 0.01;

/// Seconds that a prefill of `own` seconds costs `decoding` requests together.
#[must_use]
pub fn harm(own: f64, decoding: u32) -> f64 {
    SET_BACK * f64::from(decoding) * own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_decoding_request_is_set_back_by_a_hundredth() {
        assert_eq!(harm(0.5, 0), 0.0);
        assert_eq!(harm(0.5, 40), 0.01 * 40.0 * 0.5);
        assert!(harm(1e9, u32::MAX).is_finite());
    }
}
