//! How fast a slot prefills, learned from the times at which first tokens came.
//!
//! Nothing is asked of the engine. What is learned is the time that a token of prefill work takes *there*, with everything
//! that gets in its way: the GPU, the decodes beside it, clocks that nobody tells of. What devices are known to be slower for
//! the moment, as their weight has it, is taken out, or it would count twice. [`Speed`] is what one slot has shown,
//! [`MeanSpeed`] what a fleet's slots have shown together, which stands in for a slot that has shown little.

use std::time::Duration;

/// What is kept of everything seen before, each time something is seen: a memory of about a hundred prefills.
const MEMORY: f64 = 0.99;

/// How many tokens of its own work a slot must have shown to count as much as the fleet's mean does.
const PRIOR_TOKENS: f64 = 16_384.0;

/// Seconds a token where nothing has been seen: 10,000 tokens a second. Its error is shared by all slots until they show
/// theirs, so it does not tilt the choice between them.
const COLD_START: f64 = 1e-4;

/// The range of what is believed, in seconds a token: 10 million tokens a second down to 10.
const BELIEVED: std::ops::RangeInclusive<f64> = 1e-7..=1e-1;

/// A prefill that took more than this many times what it should have counts as so many times. A hiccup then costs a slot
/// little; of a slot that is slow in earnest, each outlier in a row doubles the limit.
const OUTLIER: f64 = 16.0;

/// Doublings after which nothing is cut any more.
const MOST_DOUBLINGS: u8 = 20;

/// What one slot has shown of its speed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Speed {
    /// Seconds that prefills took, older ones counting less.
    seconds: f64,
    /// Their work in tokens, older ones counting less.
    tokens: f64,
    /// One over the sum of those and the prior: it is divided once where it is learned, and not at every decision.
    per_token: f64,
    /// Outliers in a row, up to now.
    outliers: u8,
}

impl Default for Speed {
    fn default() -> Self {
        Self { seconds: 0.0, tokens: 0.0, per_token: PRIOR_TOKENS.recip(), outliers: 0 }
    }
}

impl Speed {
    /// The slot did `work` tokens of prefill work in `took`, where the fleet takes `mean` seconds a token. Its devices were
    /// known to have the share `pace` of their full speed meanwhile (see [`Terms::pace`](super::Terms::pace)), so at full speed it would
    /// have taken `pace * took`. A prefill that took no time at all was done beside another one, whose time covers both. No
    /// work shows nothing.
    pub fn observe(&mut self, work: u64, took: Duration, pace: f64, mean: f64) {
        if work == 0 {
            return;
        }
        let work = work as f64;
        let expected = self.seconds_per_token(mean) * work;
        let limit = expected * OUTLIER * f64::from(1_u32 << self.outliers.min(MOST_DOUBLINGS));
        let took = pace * took.as_secs_f64();
        self.outliers = if took > limit { self.outliers.saturating_add(1) } else { 0 };
        self.seconds = MEMORY * self.seconds + took.min(limit);
        self.tokens = MEMORY * self.tokens + work;
        self.per_token = (self.tokens + PRIOR_TOKENS).recip();
    }

    /// What it was learned from: seconds that prefills took, their work in tokens, both with older ones counting less, and
    /// outliers in a row.
    #[must_use]
    pub const fn seen(&self) -> (f64, f64, u8) {
        (self.seconds, self.tokens, self.outliers)
    }

    /// The speed of a slot that showed that, to the bit what [`Speed::seen`] was asked of.
    #[must_use]
    pub fn of_seen(seconds: f64, tokens: f64, outliers: u8) -> Self {
        Self { seconds, tokens, per_token: (tokens + PRIOR_TOKENS).recip(), outliers }
    }

    /// Seconds a token of prefill work takes here at full speed: what was seen, drawn to `mean` while that is little.
    #[must_use]
    pub fn seconds_per_token(&self, mean: f64) -> f64 {
        bounded((self.seconds + PRIOR_TOKENS * mean) * self.per_token)
    }
}

/// What the slots of a fleet have shown together.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct MeanSpeed {
    seconds: f64,
    tokens: f64,
    /// The sums over slots of what does not depend on the mean in a slot's seconds a token, and of what it is multiplied
    /// with.
    own: f64,
    drawn: f64,
    slots: u32,
}

impl MeanSpeed {
    /// Takes a slot's share in.
    pub fn add(&mut self, speed: Speed) {
        self.seconds += speed.seconds;
        self.tokens += speed.tokens;
        self.own += speed.seconds * speed.per_token;
        self.drawn += PRIOR_TOKENS * speed.per_token;
        self.slots = self.slots.saturating_add(1);
    }

    /// Seconds a token of prefill work takes in this fleet: 10,000 tokens a second until something was seen.
    #[must_use]
    pub fn seconds_per_token(&self) -> f64 {
        bounded((self.seconds + PRIOR_TOKENS * COLD_START) / (self.tokens + PRIOR_TOKENS))
    }

    /// The mean of the slots' own seconds a token, in which each slot counts once whatever it has shown.
    #[must_use]
    pub fn typical(&self) -> f64 {
        let mean = self.seconds_per_token();
        if self.slots == 0 { mean } else { bounded((self.own + self.drawn * mean) / f64::from(self.slots)) }
    }
}

/// Anything that is no number counts as the slowest.
const fn bounded(seconds: f64) -> f64 {
    if seconds.is_nan() { *BELIEVED.end() } else { seconds.clamp(*BELIEVED.start(), *BELIEVED.end()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mean() -> f64 {
        MeanSpeed::default().seconds_per_token()
    }

    fn after(prefills: impl IntoIterator<Item = (u64, f64)>) -> Speed {
        let mut speed = Speed::default();
        for (work, seconds) in prefills {
            speed.observe(work, Duration::from_secs_f64(seconds), 1.0, mean());
        }
        speed
    }

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-12 * b, "{a} is not {b}");
    }

    #[test]
    fn a_slot_that_showed_nothing_has_the_mean_and_a_fleet_the_cold_start() {
        assert_eq!(mean(), 1e-4);
        assert_eq!(Speed::default().seconds_per_token(3e-5), 3e-5);
    }

    #[test]
    fn one_prefill_moves_it_by_its_share_of_the_prior() {
        // (T + 16384 s) / (V + 16384), where T and V are what was seen.
        let speed = after([(2048, 0.1)]);
        near(speed.seconds_per_token(1e-4), (0.1 + 16_384.0 * 1e-4) / (2048.0 + 16_384.0));
        let speed = after([(2048, 0.1), (1024, 0.2)]);
        let (seconds, tokens) = (0.99 * 0.1 + 0.2, 0.99 * 2048.0 + 1024.0);
        near(speed.seconds_per_token(1e-4), (seconds + 16_384.0 * 1e-4) / (tokens + 16_384.0));
        let mut fleet = MeanSpeed::default();
        fleet.add(speed);
        fleet.add(after([(512, 0.05)]));
        let both = (seconds + 0.05 + 16_384.0 * 1e-4) / (tokens + 512.0 + 16_384.0);
        near(fleet.seconds_per_token(), both);
        let each = [speed, after([(512, 0.05)])].map(|speed| speed.seconds_per_token(both));
        near(fleet.typical(), each.iter().sum::<f64>() / 2.0);
    }

    #[test]
    fn it_is_the_same_again_from_what_was_seen() {
        for speed in [Speed::default(), after([(2048, 0.1), (1024, 0.2), (100, 900.0)])] {
            let (seconds, tokens, outliers) = speed.seen();
            assert_eq!(Speed::of_seen(seconds, tokens, outliers), speed);
        }
    }

    #[test]
    fn what_is_shown_often_is_learned() {
        for truth in [8e-5, 1e-5, 2e-4, 5e-3] {
            let (mut speed, mut mean) = (Speed::default(), mean());
            for _ in 0..400 {
                speed.observe(4000, Duration::from_secs_f64(4000.0 * truth), 1.0, mean);
                let mut fleet = MeanSpeed::default();
                fleet.add(speed);
                mean = fleet.seconds_per_token();
            }
            let learned = speed.seconds_per_token(mean);
            assert!((learned / truth - 1.0).abs() < 0.1, "{learned} for {truth}");
        }
    }

    #[test]
    fn a_hiccup_is_not_believed_and_slowness_is() {
        let healthy = || (0..100).map(|_| (1000, 0.1));
        let plain = after(healthy()).seconds_per_token(mean());
        let hiccup = after(healthy().chain([(1000, 300.0)])).seconds_per_token(mean());
        assert!(hiccup < 1.2 * plain, "{hiccup} against {plain}");
        let slow = after(healthy().chain((0..20).map(|_| (1000, 10.0)))).seconds_per_token(mean());
        assert!(slow > 10.0 * plain, "{slow} against {plain}");
    }

    #[test]
    fn what_is_known_to_be_slow_is_learned_as_it_is_at_full_speed() {
        let mut speeds = [Speed::default(); 2];
        for (speed, (took, pace)) in speeds.iter_mut().zip([(0.1, 1.0), (0.4, 0.25)]) {
            (0..50).for_each(|_| speed.observe(1000, Duration::from_secs_f64(took), pace, mean()));
        }
        near(speeds[1].seconds_per_token(mean()), speeds[0].seconds_per_token(mean()));
    }

    #[test]
    fn prefills_beside_each_other_share_their_time() {
        let speed = after((0..300).flat_map(|_| [(1000, 0.2), (1000, 0.0)]));
        assert!((speed.seconds_per_token(mean()) / 1e-4 - 1.0).abs() < 0.05);
    }

    proptest! {
        #[test]
        fn it_stays_within_bounds_whatever_it_sees(
            prefills in prop::collection::vec((any::<u64>(), 0.0..1e9_f64), 0..60),
            pace in 0.05..=1.0_f64,
            mean in prop_oneof![1e-9..1e3_f64, Just(f64::NAN), Just(f64::INFINITY), Just(-1.0)],
        ) {
            let mut speed = Speed::default();
            let mut fleet = MeanSpeed::default();
            for (work, seconds) in prefills {
                speed.observe(work, Duration::from_secs_f64(seconds), pace, mean);
                fleet.add(speed);
                prop_assert!(BELIEVED.contains(&speed.seconds_per_token(mean)));
                prop_assert!(BELIEVED.contains(&fleet.seconds_per_token()));
                prop_assert!(BELIEVED.contains(&fleet.typical()));
            }
        }
    }
}
