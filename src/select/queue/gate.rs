//! Whether a request goes now or waits.

use super::HOLD_BEYOND;
use crate::select::{AffinityMode, Demand, Mode, Phase, Row, Scratch, Tuning, cost::time};
use std::time::Duration;

/// Tokens of the largest batch of an engine of which nobody said it.
const UNKNOWN_BATCH: u64 = 10_000_000;

/// What is added to a moment that was computed, so that the sum of its roundings does not fall short of it.
const ROUNDING: Duration = Duration::from_millis(1);

/// A request waits, and what is known of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wait {
    /// For what.
    pub reason: WaitReason,
    /// What there is to compute.
    pub prefill: PrefillEstimate,
    /// How long it will be until some rank can take it, as far as anybody can tell.
    pub expected: Duration,
}

/// How much of a prompt there is to compute.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PrefillEstimate {
    /// Prompt tokens that no rank that could take it has cached.
    pub uncached_tokens: u64,
    /// Seconds of its prefill on the rank that is cheapest for it.
    pub seconds: f64,
}

/// What a request waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WaitReason {
    /// Any rank with less prefill than the threshold. All requests that could go to the same ones wait alike.
    Threshold,
    /// The rank that is cheapest for it.
    Hold,
}

impl WaitReason {
    /// The name used in `explain`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Threshold => "threshold",
            Self::Hold => "hold",
        }
    }
}

/// Whether a set's ranks can take requests, whichever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outlook {
    /// Some rank can now, or none may be chosen at all, so that nobody has anything to wait for.
    pub free: bool,
    /// When some rank can, if nothing happens until then.
    pub at: Option<Duration>,
    /// How long it will be until some rank can, as far as anybody can tell.
    pub expected: Duration,
}

/// Why `demand`, for which the row at `picked` would be chosen, waits, if it does. `hold_over` says that it was held for long
/// enough.
#[expect(
    clippy::too_many_arguments,
    reason = "nothing is taken from the surroundings, so all of it is an argument"
)]
pub(in crate::select) fn judge(
    mode: Mode,
    tuning: &Tuning,
    demand: &Demand<'_>,
    scratch: &Scratch,
    picked: usize,
    hold_over: bool,
    now: Duration,
) -> Option<Wait> {
    // A decode hop has no prefill, neither of its own nor before it.
    if mode != Mode::Kv || !tuning.router_track_prefill_tokens || demand.phase == Phase::Decode {
        return None;
    }
    let rules = Rules::of(tuning)?;
    let (rows, mean) = (scratch.rows(), scratch.mean_speed());
    let row = rows.get(picked)?;
    let eligible = || rows.iter().filter(|row| row.is_eligible());
    let wait = |reason, expected: f64| Wait {
        reason,
        prefill: estimate(demand, scratch, picked),
        expected: Duration::try_from_secs_f64(expected).unwrap_or_default(),
    };
    if eligible().all(|row| rules.is_prefill_busy(row)) {
        let expected = eligible().map(|row| rules.until_below(row, mean)).fold(f64::INFINITY, f64::min);
        return Some(wait(WaitReason::Threshold, expected));
    }
    // Blocks that are on their way there cost the queue nothing, and to nobody but who waits beside them.
    let joins = row.carried > row.overlap.gpu;
    // Nobody else could take it, so there is nothing to keep open.
    let fixed = demand.pin.is_some() || row.tied == Some(AffinityMode::Hard);
    if !rules.holds || hold_over || joins || fixed {
        return None;
    }
    let beyond = Held::at(row, now, row.seconds_per_token(mean)).beyond;
    (beyond > 0.0).then(|| wait(WaitReason::Hold, beyond))
}

/// Whether any of the rows, which were made for no request in particular, can take one.
pub(in crate::select) fn outlook(tuning: &Tuning, scratch: &Scratch, now: Duration) -> Outlook {
    let open = Outlook { free: true, at: None, expected: Duration::ZERO };
    let Some(rules) = Rules::of(tuning) else { return open };
    let (rows, mean) = (scratch.rows(), scratch.mean_speed());
    let mut outlook = Outlook { free: false, at: None, expected: Duration::MAX };
    for row in rows.iter().filter(|row| row.is_eligible()) {
        let below = rules.until_below(row, mean);
        let held = if rules.holds { Held::at(row, now, row.seconds_per_token(mean)) } else { Held::NOT };
        if below <= 0.0 && held.beyond <= 0.0 {
            return open;
        }
        let expected = Duration::try_from_secs_f64(below.max(held.beyond)).unwrap_or(Duration::MAX);
        outlook.expected = outlook.expected.min(expected);
        if below <= 0.0 {
            outlook.at = outlook.at.into_iter().chain(held.ends).min();
        }
    }
    if outlook.expected == Duration::MAX { open } else { outlook }
}

/// How far a rank is from taking requests that are held.
struct Held {
    /// Seconds of prefill before it beyond what is let be.
    beyond: f64,
    /// When it is no more than that if no first token comes.
    ends: Option<Duration>,
}

impl Held {
    const NOT: Self = Self { beyond: 0.0, ends: None };

    fn at(row: &Row, now: Duration, seconds: f64) -> Self {
        let beyond = time::queue(&row.backlog, now, seconds) - HOLD_BEYOND.as_secs_f64();
        // Only the work of its first is done by time alone.
        let without_first = seconds * row.backlog.work.saturating_sub(row.backlog.head_work) as f64;
        let by_time = without_first <= HOLD_BEYOND.as_secs_f64();
        let ends = Duration::try_from_secs_f64(beyond.max(0.0)).ok().filter(|_| by_time);
        Self { beyond, ends: ends.map(|beyond| now.saturating_add(beyond).saturating_add(ROUNDING)) }
    }
}

/// What makes requests wait.
struct Rules {
    threshold: Option<f64>,
    holds: bool,
}

impl Rules {
    /// `None` if nothing does.
    fn of(tuning: &Tuning) -> Option<Self> {
        let rules = Self { threshold: tuning.queue_threshold, holds: tuning.hold.is_some() };
        (rules.threshold.is_some() || rules.holds).then_some(rules)
    }

    fn is_prefill_busy(&self, row: &Row) -> bool {
        self.most_tokens(row).is_some_and(|most| row.load.prefill_tokens as f64 > most)
    }

    /// Seconds until the row is not over the threshold; none if it is not.
    fn until_below(&self, row: &Row, mean: f64) -> f64 {
        let over = |most: f64| (row.load.prefill_tokens as f64 - most).max(0.0);
        self.most_tokens(row).map_or(0.0, over) * row.seconds_per_token(mean)
    }

    fn most_tokens(&self, row: &Row) -> Option<f64> {
        Some(self.threshold? * row.capacity.batch_tokens.unwrap_or(UNKNOWN_BATCH) as f64)
    }
}

/// What there is to compute of the prompt of `demand`, for which the row at `picked` would be chosen.
pub(in crate::select) fn estimate(demand: &Demand<'_>, scratch: &Scratch, picked: usize) -> PrefillEstimate {
    let (rows, mean) = (scratch.rows(), scratch.mean_speed());
    let eligible = rows.iter().filter(|row| row.is_eligible());
    let cached = eligible.map(|row| row.cached_tokens).max().unwrap_or(0);
    let seconds = rows.get(picked).map_or(0.0, |row| row.seconds_per_token(mean) * row.prefill_work as f64);
    PrefillEstimate { uncached_tokens: (demand.isl_tokens as u64).saturating_sub(cached), seconds }
}
