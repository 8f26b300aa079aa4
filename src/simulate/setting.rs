//! The fleet that a workload is sent to, and what happens to it.

use super::model::EngineModel;

/// The fleet that a workload is sent to.
#[derive(Clone, PartialEq, Debug)]
pub struct Setting {
    /// What each engine is.
    pub model: EngineModel,
    /// How many times as fast as that each engine is; one entry an engine.
    pub speeds: Vec<f64>,
    /// What happens to engines while it runs.
    pub changes: Vec<Change>,
    /// Seconds from the end of a step to its KV events at the router.
    pub event_delay: f64,
    /// Seconds from a token, or from an engine's death, to the router's knowing of it.
    pub reply_delay: f64,
    /// The share of the requests of a trace, or of the time of a made workload, that warms the caches and does not count.
    pub warm_up: f64,
    /// Whether the router is told of the engines' GPUs, by a sample a second. Default false.
    pub telemetry: bool,
    /// What the router is told that each engine is capable of, above 0, to 1, before any telemetry; one entry an engine, or none.
    /// Default none.
    pub capabilities: Vec<f64>,
}

/// Something that happens to an engine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Change {
    /// Seconds after the start.
    pub at: f64,
    /// The engine, from 0.
    pub engine: usize,
    /// What happens.
    pub what: Happening,
}

/// What can happen to an engine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Happening {
    /// From now on it is so many times as fast as it was at first; nobody tells the router.
    Speed(f64),
    /// Heat holds its GPU's clocks at this share of their highest, and makes it as much slower; 1 is none. Its utilisation is what
    /// it was.
    Clocks(f64),
    /// Its GPU falls off the bus: nothing that it has goes on, and what it is sent waits. Mostly it dies of it before long.
    LosesGpu,
    /// Its GPU is there again.
    RegainsGpu,
    /// It dies, with its cache. Requests without a first token are sent elsewhere, others break off.
    Dies,
    /// It comes, with an empty cache. An engine whose first change this is was not there before.
    Comes,
}

impl Setting {
    /// `engines` equal ones, as the default model says, with events 20 ms late and tokens 2 ms.
    #[must_use]
    pub fn of(engines: usize) -> Self {
        Self {
            model: EngineModel::default(),
            speeds: vec![1.0; engines],
            changes: Vec::new(),
            event_delay: 20e-3,
            reply_delay: 2e-3,
            warm_up: 0.0,
            telemetry: false,
            capabilities: Vec::new(),
        }
    }

    /// Whether `engine` is there from the beginning.
    pub(super) fn starts_with(&self, engine: usize) -> bool {
        let of = self.changes.iter().filter(|change| change.engine == engine);
        let presence = of.filter(|change| matches!(change.what, Happening::Dies | Happening::Comes));
        presence
            .min_by(|one, other| one.at.total_cmp(&other.at))
            .is_none_or(|first| first.what == Happening::Dies)
    }
}
