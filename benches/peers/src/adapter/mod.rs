//! The indexes, each behind the same two faces.
//!
//! An adapter hands an index what its own face takes, in the form that suits the index best, and makes that form
//! outside of the timed calls. What a lookup has to deliver is the same for all: a score for every worker that holds
//! something of the prompt, in memory of the caller or in the map that the index returns.

mod dense;
mod dynamo;
mod kvroute;
mod reference;
mod smg;
mod stopwatch;

use std::{ops::Range, sync::Arc, time::Duration};

use ::kvroute::hash::BlockHash;

use crate::workload::Workload;

/// The index that says what is right.
pub(crate) use reference::open as open_reference;

/// An index that readers in several threads share.
pub(crate) trait Index: Send + Sync {
    /// Whatever one thread needs to look prompts up.
    fn reader(&self) -> Box<dyn Reader + '_>;
}

/// One thread's lookups.
pub(crate) trait Reader {
    /// Takes a prompt over, in the form that the index wants. Not timed.
    fn load(&mut self, prompt: &[BlockHash]);

    /// Looks the loaded prompt up: one score for each worker that holds something of it. Timed.
    fn lookup(&mut self);

    /// Hashes the tokens and looks the hashes up. Timed, all of it.
    fn lookup_tokens(&mut self, hashing: Hashing, tokens: &[u32]);

    /// What the last lookup found: (worker, blocks), in any order.
    fn scores(&self) -> Vec<(u32, u32)>;
}

/// The one that applies events.
pub(crate) trait Writer {
    /// Makes events of operations, in the index's own form. Not timed.
    fn load(&mut self, workload: &Workload, ops: Range<usize>);

    /// Applies what was loaded, or hands it to the threads that will.
    fn apply(&mut self);

    /// Waits until everything is applied, forgets what was loaded with its memory, and says how much CPU time applying
    /// took since the last call.
    fn finish(&mut self) -> Duration;
}

/// An index with its writer.
pub(crate) struct Opened {
    pub(crate) index: Arc<dyn Index>,
    pub(crate) writer: Box<dyn Writer>,
}

/// Who is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contestant {
    Kvroute,
    SmgInto,
    SmgMap,
    DynamoCrtc,
}

/// Whose block hashing precedes a lookup. All give the same digests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hashing {
    Kvroute,
    Dynamo,
    Smg,
}

impl Contestant {
    pub(crate) const ALL: [Self; 4] = [Self::Kvroute, Self::SmgInto, Self::SmgMap, Self::DynamoCrtc];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kvroute => "kvroute",
            Self::SmgInto => "smg-into",
            Self::SmgMap => "smg-map",
            Self::DynamoCrtc => "dynamo-crtc",
        }
    }

    /// An empty index for the workers of a workload.
    pub(crate) fn open(self, workload: &Workload) -> Opened {
        match self {
            Self::Kvroute => kvroute::open(workload),
            Self::SmgInto => smg::open(workload, smg::Face::Into),
            Self::SmgMap => smg::open(workload, smg::Face::Map),
            Self::DynamoCrtc => dynamo::open(workload),
        }
    }

    /// The hashings that its lookups are measured behind. SMG's map face is left out: its other face is the faster.
    pub(crate) fn hashings(self) -> &'static [Hashing] {
        match self {
            Self::Kvroute => &[Hashing::Kvroute],
            Self::SmgMap => &[],
            Self::SmgInto | Self::DynamoCrtc => &[Hashing::Dynamo, Hashing::Smg],
        }
    }
}

impl Hashing {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kvroute => "kvroute",
            Self::Dynamo => "dynamo",
            Self::Smg => "smg",
        }
    }
}
