//! A rank that comes or goes: its slot, its event stream, and what it is expected to hold.

use std::{sync::Arc, time::Duration};

use super::{
    card::WorkerType,
    cohort::Cohort,
    endpoint::EventEndpoint,
    registration_error::RegistrationError,
    stream_status::{StreamState, StreamStatus},
    streams::{Expectations, ExpectedLimits, StreamSource, Streams},
    view::RankMember,
    worker_info::WorkerInfo,
    worker_spec::CheckedSpec,
};
use crate::{
    select::{ApproximatePolicy, Mode, Tuning},
    slot::{Rank, Slot, SlotAllocator},
};

/// Blocks that a rank is expected to hold at most where it does not say how many fit: two million tokens in blocks of 16.
const UNKNOWN_ROOM: u64 = 1 << 17;

/// Someone who is told what is sent to a rank, and the slot under which the index has what that lets expect.
#[derive(Debug)]
pub struct Expected {
    /// The rank's own slot, if it has no events that are followed; else one beside it.
    pub slot: Slot,
    /// Who is told.
    pub kept_by: Box<dyn Expectations>,
}

/// Where ranks come from and go to.
pub(super) struct Ranks<'a> {
    pub(super) streams: &'a dyn Streams,
    pub(super) slots: &'a mut SlotAllocator,
}

impl Ranks<'_> {
    /// Gives a rank a slot, a stream, and someone to tell what it is sent, as its cohort's configuration says.
    ///
    /// # Errors
    /// What is wrong with its endpoints. It has no slot then.
    pub(super) fn open(
        &mut self,
        cohort: &Arc<Cohort>,
        info: &Arc<WorkerInfo>,
        checked: &CheckedSpec,
        rank: Rank,
    ) -> Result<Arc<RankMember>, RegistrationError> {
        let slot = self.slots.allocate();
        let opened = self.open_stream(cohort, info, checked, rank, slot);
        opened.inspect_err(|_| self.slots.release(slot))
    }

    fn open_stream(
        &mut self,
        cohort: &Arc<Cohort>,
        info: &Arc<WorkerInfo>,
        checked: &CheckedSpec,
        rank: Rank,
        slot: Slot,
    ) -> Result<Arc<RankMember>, RegistrationError> {
        let of_rank = |endpoint: &Option<EventEndpoint>| {
            let endpoint = endpoint.as_ref().map(|endpoint| endpoint.of_rank(rank.0)).transpose();
            endpoint.map_err(|error| RegistrationError::Stream(error.to_string()))
        };
        let (key, tuning, room) = (&cohort.index_key, &cohort.config.tuning, info.spec.total_kv_blocks);
        let Some(events) = of_rank(&checked.events)?.filter(|_| tuning.use_kv_events) else {
            let limits = guesses(cohort, checked.card.set.worker_type).then(|| approximate(tuning, room));
            let expected = limits.and_then(|limits| self.streams.expect(key, slot, slot, limits));
            let expected = expected.map(|kept_by| Expected { slot, kept_by });
            let state = if expected.is_some() { StreamState::Approximate } else { StreamState::Absent };
            let status = Arc::new(StreamStatus::new(state));
            return Ok(Arc::new(RankMember::new((slot, rank), info, cohort, status, expected)));
        };
        let status = Arc::new(StreamStatus::new(StreamState::Unproven));
        let source = StreamSource {
            slot,
            worker: info.id,
            url: info.url.to_string(),
            started_ms: info.spec.registered_ms,
            rank,
            events,
            replay: of_rank(&checked.replay)?,
            direction: info.spec.kv_events_direction,
            block_size: checked.block_size,
            eagle: checked.card.eagle,
            room,
        };
        self.streams.open(key, source, Arc::clone(&status)).map_err(RegistrationError::Stream)?;
        let expected = predicted(tuning, room).and_then(|limits| {
            let beside = self.slots.allocate();
            let kept_by = self.streams.expect(key, slot, beside, limits);
            if kept_by.is_none() {
                self.slots.release(beside);
            }
            kept_by.map(|kept_by| Expected { slot: beside, kept_by })
        });
        Ok(Arc::new(RankMember::new((slot, rank), info, cohort, status, expected)))
    }

    /// Begins to guess what a rank without events has cached, where its configuration asks for that by now, and drops what was
    /// guessed where it does not any more. While the mode is `kv` what it is sent from then on is noted all the same, and counts
    /// once guesses do again.
    pub(super) fn guess_as_told(&mut self, kind: WorkerType, member: &mut Arc<RankMember>) {
        let (cohort, guessed) = (&member.cohort, member.status.state() == StreamState::Approximate);
        match (guesses(cohort, kind), &member.expected) {
            (false, Some(expected)) if guessed => expected.kept_by.doubt(),
            (true, None) if member.status.state() == StreamState::Absent => {
                let limits = approximate(&cohort.config.tuning, member.worker.spec.total_kv_blocks);
                let slot = member.slot;
                let Some(kept_by) = self.streams.expect(&cohort.index_key, slot, slot, limits) else {
                    return;
                };
                let expected = Some(Arc::new(Expected { slot, kept_by }));
                member.status.set_state(StreamState::Approximate);
                *member = Arc::new(member.within(cohort, expected));
            }
            _ => {}
        }
    }

    /// Takes back what a rank had.
    pub(super) fn close(&mut self, member: &RankMember) {
        let key = &member.cohort.index_key;
        for slot in [Some(member.slot), member.expected_beside()].into_iter().flatten() {
            self.streams.close(key, slot);
            self.slots.release(slot);
        }
        member.status.set_state(StreamState::Absent);
    }
}

/// Whether it is guessed what a rank without events has cached: where that may count. A prefill set may be routed by the
/// configuration of a decode set that is not there yet.
fn guesses(cohort: &Cohort, kind: WorkerType) -> bool {
    let counts = cohort.config.tuning.overlap_score_credit > 0.0;
    counts && (cohort.config.mode == Mode::Kv || kind == WorkerType::Prefill)
}

/// What a rank without events is expected to hold.
fn approximate(tuning: &Tuning, room: Option<u64>) -> ExpectedLimits {
    let by_room = tuning.approximate_cache.policy == ApproximatePolicy::Lru && room.is_some();
    let ttl = (!by_room).then(|| seconds(tuning.approximate_cache.ttl_secs));
    ExpectedLimits { ttl, most: most(room) }
}

/// What a rank is expected to hold beside what its events say.
fn predicted(tuning: &Tuning, room: Option<u64>) -> Option<ExpectedLimits> {
    let ttl = tuning.router_predicted_ttl_secs?;
    Some(ExpectedLimits { ttl: Some(seconds(ttl)), most: most(room) })
}

fn most(room: Option<u64>) -> usize {
    usize::try_from(room.unwrap_or(UNKNOWN_ROOM)).unwrap_or(usize::MAX)
}

/// More than a clock can tell is for ever.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::ApproximateCache;

    #[test]
    fn limits_follow_the_policy_and_the_room() {
        let tuning = |policy| Tuning {
            use_kv_events: false,
            approximate_cache: ApproximateCache { ttl_secs: 60.0, policy },
            ..Tuning::default()
        };
        let minute = Some(Duration::from_secs(60));
        for (policy, room, ttl, most) in [
            (ApproximatePolicy::Ttl, None, minute, 1 << 17),
            (ApproximatePolicy::Ttl, Some(500), minute, 500),
            (ApproximatePolicy::Lru, Some(500), None, 500),
            (ApproximatePolicy::Lru, None, minute, 1 << 17),
        ] {
            assert_eq!(
                approximate(&tuning(policy), room),
                ExpectedLimits { ttl, most },
                "{policy}, {room:?}"
            );
        }
        let predicts = |ttl| predicted(&Tuning { router_predicted_ttl_secs: ttl, ..Tuning::default() }, None);
        assert_eq!(predicts(None), None);
        assert_eq!(predicts(Some(0.5)).unwrap().ttl, Some(Duration::from_millis(500)));
        assert_eq!(predicts(Some(f64::MAX)).unwrap().ttl, Some(Duration::MAX));
    }
}
