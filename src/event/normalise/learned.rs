//! What a normaliser has learned of its engine, for another one that goes on from there.

use std::sync::Arc;

use crate::event::{EngineHash, Tier};

/// What is remembered of an engine beside its blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Learned {
    /// Cache groups, and whether prefixes can be matched by them.
    pub groups: Vec<(i64, bool)>,
    /// The salts that blocks are cached under.
    pub salts: Vec<Arc<str>>,
    /// Blocks with a salt: their names, which salt it is (`None` if it could be one of several), and their copies by tier.
    pub blocks: Vec<(EngineHash, Option<u32>, [u16; Tier::ALL.len()])>,
}
