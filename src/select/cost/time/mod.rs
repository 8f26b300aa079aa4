//! The cost in seconds.
//!
//! What a request would cost on a slot is the time it takes there, plus the time it costs others, in seconds that are
//! learned from first tokens (see [`Speed`](crate::device::Speed)); nothing is asked of the engine. For a slot `x`
//! that takes `s` seconds a token, of a fleet in which the mean of the slots' own is `typical`:
//!
//! ```text
//! sigma        = typical * (s / typical)^0.5                              its own speed, half way to that mean
//! work         = max(1, prompt tokens - what cached blocks are worth) + 256
//! queue        = s * work booked there and not done, less what the engine has done of its head   queue.rs
//! own prefill  = sigma * work                                             own.rs
//! surcharge    = own prefill * 1 / (1 + c)                                surcharge.rs
//! replication  = sigma * (work - work at the deepest) * (1 - 1 / (1 + 0.2 * (c / H - 1))), 0 while c <= H
//! harm         = 0.01 * requests that decode there * own prefill          harm.rs
//! context      = 0.02 * sigma * tokens in use there with the request      context.rs
//! requests     = decode_active_request_weight * sigma * tokens of a block * requests there      requests.rs
//! session      = prefill_load_scale * sigma * half of the prompt's tokens, where its session wishes for the slot
//! cost         = prefill_load_scale * (queue + own prefill + surcharge - replication) + harm + context + requests - session
//! ```
//!
//! The deepest overlap of any candidate is held by `H` of them, and `c` requests in flight use its last block. An overlap
//! counts what events say a slot holds and what requests in flight will leave there (see [`predicted`](super::predicted)).
//!
//! The form and the constants were found in simulation, as `kvroute simulate` does it, against other cost functions on
//! traces and made workloads; within a factor of two or so none of the constants matters. No GPU was involved.
//!
//! All of this is at the full speed of the devices. What they are slower than that now, as far as telemetry tells, comes in
//! once, by their weight, which the sum is divided by: [`on_devices`](super::on_devices).
//!
//! While prefill is not tracked, the terms for it are 0 and the choice is by context and requests.

mod context;
mod harm;
mod own;
mod queue;
mod replication;
mod requests;
mod surcharge;
mod survey;

use context::READING;
pub use context::context;
pub use harm::harm;
pub use own::{FIXED_TOKENS, own_prefill, work};
pub use queue::queue;
pub use replication::replicated_share;
pub use requests::request_seconds;
pub use surcharge::surcharge_rate;
pub use survey::Survey;

use super::{decay, decodes_only, session_bonus};
use crate::select::{Demand, Row, Tuning};
use std::time::Duration;

/// The terms of one candidate's cost, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TimeCost {
    /// The prefill that is before this request there, in seconds at full speed, as all terms are.
    pub queue: f64,
    /// This request's own prefill there.
    pub own_prefill: f64,
    /// What a prefill that the cache did not spare costs later requests.
    pub surcharge: f64,
    /// What a copy of a hot prefix there would save later requests; it is taken off.
    pub replication: f64,
    /// What the prefill costs the requests that decode there.
    pub harm: f64,
    /// What the context in use there costs.
    pub context: f64,
    /// What the requests in flight there cost, if the tuning says that they do.
    pub requests: f64,
    /// What going on with the request's session is worth; it is taken off.
    pub session: f64,
    /// The sum, its first four terms scaled; never NaN.
    pub total: f64,
    /// Seconds from now to the first token there, as predicted: what is before the request, and its own prefill at the
    /// slot's own speed. `None` while prefill is not tracked.
    pub first_token: Option<f64>,
    /// Seconds that a token of prefill work takes there now.
    pub seconds_per_token: f64,
    /// What is left of the credit for GPU blocks, 0 to 1. No unit.
    pub decay: f64,
}

/// The cost of `demand` on the slot of `row` at `now`, in the fleet that `survey` found; `tuning` holds for this request.
#[inline] // Into the loop over candidates, which then computes once what is the same for all of them.
#[must_use]
pub fn price(row: &Row, demand: &Demand<'_>, tuning: &Tuning, survey: &Survey, now: Duration) -> TimeCost {
    let at_full_speed = row.speed.seconds_per_token(survey.mean());
    let sigma = survey.tempered(at_full_speed);
    let pace = row.pace();
    let seconds_per_token = at_full_speed / pace;
    let block = f64::from(demand.block_size.get());
    let decay = decay(row.load.prefill_tokens.saturating_sub(survey.least_prefill()), demand, tuning);
    let own_work = work(row.predicted, decay, demand, tuning);

    let tracked = tuning.router_track_prefill_tokens;
    let before = if tracked { queue(&row.backlog, now, seconds_per_token) } else { 0.0 };
    let queue = pace * before;
    let own = if tracked { own_prefill(sigma, own_work) } else { 0.0 };
    let surcharge = own * survey.surcharge_rate();
    let replication = if tracked && survey.replicated_share() > 0.0 {
        let deepest = work(survey.deepest(row.predicted), decay, demand, tuning);
        sigma * (own_work - deepest).max(0.0) * survey.replicated_share()
    } else {
        0.0
    };
    let harm = harm(own, row.load.requests.saturating_sub(row.backlog.requests));
    let spared = if decodes_only(demand, tuning) { super::credit(row.predicted, decay, tuning) } else { 0.0 };
    let context = context(sigma, row.load.decode_blocks, row.new_blocks, spared, block);
    let requests = request_seconds(sigma, block, row.load.requests, tuning);

    let prefill = queue + own + surcharge - replication;
    let session = session_bonus(row, demand, tuning) * sigma * if tracked { 1.0 } else { READING };
    let total = tuning.prefill_load_scale * prefill + harm + context + requests - session;
    // Settings beyond reason can make 0 * infinity. Such a slot is the last choice, and never undefined.
    let total = if total.is_nan() { f64::INFINITY } else { total };
    let first_token = tracked.then_some(before + seconds_per_token * row.prefill_work as f64);
    TimeCost {
        queue,
        own_prefill: own,
        surcharge,
        replication,
        harm,
        context,
        requests,
        session,
        total,
        first_token,
        seconds_per_token,
        decay,
    }
}
