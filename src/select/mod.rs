//! Who gets the request.
//!
//! For every request the members of a worker set become [`Row`]s: what each holds of the prompt, what it is
//! doing, and why it may not be chosen, if so. [`decide`] picks one by the rule of the set's [`Mode`]. It is a
//! pure function; a dry run asks it the same question as live traffic does. A [`Selector`] joins it
//! with the loads: [`Selector::admit`] decides and books in one step, [`Selector::explain`] only decides. The
//! rows stay in the [`Scratch`], so that every choice can be explained candidate by candidate.
//!
//! [`ConditionalDisagg`] is the one rule that is not about who, but about how many: whether a request whose prompt could be
//! computed by one worker and decoded by another goes to the second alone.
//!
//! Nothing here waits, and nothing here reads the index, a clock or a random source of its own.

mod affinity;
mod approximate;
mod bypass;
mod candidate;
mod choice;
pub mod cost;
mod decide;
mod demand;
mod draw;
mod exclusion;
mod mode;
mod overrides;
pub mod queue;
mod refusal;
mod selector;
mod strategy;
mod tuning;

pub use affinity::{AffinityMode, SessionAffinity, Tie, UnknownAffinityMode};
pub use approximate::{ApproximateCache, ApproximatePolicy, UnknownApproximatePolicy};
pub use bypass::{BypassFacts, BypassPolicy, BypassVerdict, ConditionalDisagg, Level, UnknownBypassPolicy};
pub use candidate::{Member, Row, Scratch};
pub use choice::Choice;
pub use cost::{CostModel, UnknownCostModel};
pub use decide::decide;
pub use demand::{Demand, Phase, Pin, PinField};
pub use draw::{least, softmax};
pub use exclusion::{Exclusion, ExclusionCounts};
pub use mode::{Mode, UnknownMode};
pub use overrides::Overrides;
pub use refusal::{Refusal, RefusalKind};
pub use selector::{Admission, Selector};
pub use tuning::{Tuning, TuningError};
