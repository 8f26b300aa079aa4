//! Every text with which a router mode leaves a request without a worker, and what it means for whoever asked.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::{collections::BTreeSet, time::Duration};

use fastrand::Rng;
use kvroute::{
    hash::BlockSize,
    select::{Demand, Exclusion, Member, Mode, Phase, Pin, PinField, RefusalKind, Row, Tuning, decide},
    slot::{Rank, Slot, WorkerId},
};

use Exclusion::{Draining, Overloaded};
use PinField::{BackendInstanceId, DecodeWorkerId, PrefillWorkerId};
use RefusalKind::{Busy, Invalid, Unavailable};

/// Worker 1 with two ranks and worker 2 with one, all excluded alike or not at all.
fn fleet(exclusion: Option<Exclusion>) -> Vec<Row> {
    let member = |(index, worker, rank)| Member {
        exclusion,
        ..Member::new(Slot { index, generation: 0 }, WorkerId(worker), Rank(rank))
    };
    [(0, 1, 0), (1, 1, 1), (2, 2, 0)].map(member).iter().map(Row::new).collect()
}

fn pin(field: PinField, worker: u64, rank: Option<u32>) -> Option<Pin> {
    Some(Pin { worker: WorkerId(worker), rank: rank.map(Rank), field })
}

#[test]
fn every_refusal_has_its_text() {
    let everybody = || fleet(None);
    let direct = |phase| (Mode::Direct, everybody(), phase, None);
    let pinned = |mode, pin| (mode, everybody(), Phase::Decode, pin);
    let cases = [
        ((Mode::Kv, Vec::new(), Phase::Decode, None), "no workers available", Unavailable),
        (
            (Mode::RoundRobin, fleet(Some(Draining)), Phase::Decode, None),
            "no workers available: 3 draining",
            Unavailable,
        ),
        (
            (Mode::Random, fleet(Some(Overloaded)), Phase::Decode, None),
            "all workers are busy, please retry later",
            Busy,
        ),
        (
            direct(Phase::Aggregated),
            "worker ID required for aggregated request in Direct routing mode",
            Invalid,
        ),
        (direct(Phase::Prefill), "worker ID required for prefill request in Direct routing mode", Invalid),
        (direct(Phase::Decode), "worker ID required for decode request in Direct routing mode", Invalid),
        (
            pinned(Mode::Direct, pin(BackendInstanceId, 9, None)),
            "nvext.backend_instance_id=9 does not identify a known worker",
            Invalid,
        ),
        (
            pinned(Mode::Kv, pin(PrefillWorkerId, 9, None)),
            "nvext.prefill_worker_id=9 does not identify a known worker",
            Invalid,
        ),
        (
            pinned(Mode::LeastLoaded, pin(DecodeWorkerId, 9, Some(0))),
            "nvext.decode_worker_id=9 does not identify a known worker",
            Invalid,
        ),
        (
            pinned(Mode::PowerOfTwo, pin(DecodeWorkerId, 1, Some(7))),
            "worker 1 (nvext.decode_worker_id) has no rank 7; it has 2 ranks",
            Invalid,
        ),
        (
            pinned(Mode::Kv, pin(DecodeWorkerId, 1, None)),
            "pinned worker 1 requires an explicit dp_rank: it has 2 ranks",
            Invalid,
        ),
        (
            (Mode::DeviceAwareWeighted, fleet(Some(Draining)), Phase::Decode, pin(DecodeWorkerId, 2, None)),
            "pinned worker 2 (nvext.decode_worker_id) cannot take the request: draining",
            Unavailable,
        ),
        (
            (Mode::Direct, fleet(Some(Overloaded)), Phase::Decode, pin(BackendInstanceId, 2, Some(0))),
            "pinned worker 2 (nvext.backend_instance_id) cannot take the request: overloaded",
            Busy,
        ),
    ];
    let mut names = BTreeSet::new();
    for ((mode, mut rows, phase, pin), text, kind) in cases {
        let demand = Demand { phase, pin, ..Demand::new(128, BlockSize::new(16).unwrap(), &[]) };
        let mut rng = Rng::with_seed(1);
        let refusal = decide(mode, &Tuning::default(), &demand, 0, &mut rows, Duration::ZERO, &mut rng);
        let refusal = refusal.unwrap_err();
        assert_eq!((refusal.to_string().as_str(), refusal.kind()), (text, kind), "{mode}");
        names.insert(refusal.name());
    }
    assert_eq!(names.len(), 8, "a kind of refusal without its text: {names:?}");
}
