//! Which of an engine's caches a prefix can be matched by.

use smallvec::SmallVec;

use crate::event::Rejection;
use crate::event::wire::{AttentionKind, Scope};

/// A hybrid model keeps one cache a group of layers, each with an attention kind of its own, and reports them all.
/// Only groups that keep every block of a prefix can be matched. The kind is told in stores and not always in
/// removals, so it is learned.
#[derive(Debug, Default)]
pub(super) struct AttentionGroups {
    main: SmallVec<[(i64, bool); 8]>,
}

/// Models have a handful of groups. Beyond this, groups are not learned and pass for unlearned ones.
const LIMIT: usize = 64;

impl AttentionGroups {
    /// Notes the kind of the group that a store names. The last word counts.
    pub(super) fn learn(&mut self, scope: &Scope) {
        let (Some(group), Some(kind)) = (scope.group, scope.kind) else { return };
        let is_main = kind == AttentionKind::Main;
        if let Some((_, main)) = self.main.iter_mut().find(|(known, _)| *known == group) {
            *main = is_main;
        } else if self.main.len() < LIMIT {
            self.main.push((group, is_main));
        }
    }

    pub(super) fn learned(&self) -> Vec<(i64, bool)> {
        self.main.to_vec()
    }

    pub(super) fn resume(&mut self, learned: &[(i64, bool)]) {
        self.main = learned.iter().take(LIMIT).copied().collect();
    }

    /// Whether the index wants to know of the event's cache. Without any word of a kind, an event that names no
    /// group, or group 0, is taken for the only cache of an ordinary model.
    pub(super) fn check(&self, scope: &Scope) -> Result<(), Rejection> {
        let learned = scope.group.and_then(|group| self.main.iter().find(|(known, _)| *known == group));
        match (scope.kind, learned, scope.group) {
            (Some(AttentionKind::Main), _, _) | (None, Some((_, true)), _) | (None, None, None | Some(0)) => {
                Ok(())
            }
            (Some(AttentionKind::Other), _, _) => Err(Rejection::NonMainAttentionKind),
            (Some(AttentionKind::Unknown), _, _) => Err(Rejection::UnknownKind),
            (None, Some((_, false)), _) => Err(Rejection::NonMainAttentionGroup),
            (None, None, Some(_)) => Err(Rejection::UnlearnedGroupIdx),
        }
    }
}
