//! The rules of the router modes, asked of the pure decision.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use fastrand::Rng;
use kvroute::{
    device::{Condition, DeviceClass, Terms, Weights},
    hash::BlockSize,
    index::Overlap,
    load::SlotLoad,
    select::{
        CostModel, Demand, Exclusion, ExclusionCounts, Member, Mode, Overrides, Phase, Pin, PinField,
        Refusal, RefusalKind, Row, Tuning,
        cost::{self, Cost},
        decide,
    },
    slot::{Rank, Slot, WorkerId},
};
use proptest::prelude::*;
use std::time::Duration;

const BLOCK: u32 = 16;

fn row(worker: u64, rank: u32, requests: u32) -> Row {
    let index = u32::try_from(worker).unwrap() * 8 + rank;
    let member = Member::new(Slot { index, generation: 0 }, WorkerId(worker), Rank(rank));
    Row { load: SlotLoad { requests, ..SlotLoad::default() }, ..Row::new(&member) }
}

fn rows(requests: &[u32]) -> Vec<Row> {
    requests.iter().enumerate().map(|(worker, &requests)| row(worker as u64, 0, requests)).collect()
}

fn excluded(row: Row, exclusion: Exclusion) -> Row {
    Row { exclusion: Some(exclusion), ..row }
}

fn demand() -> Demand<'static> {
    Demand::new(128, BlockSize::new(BLOCK).unwrap(), &[])
}

fn pinned(worker: u64, rank: Option<u32>) -> Demand<'static> {
    let pin = Pin { worker: WorkerId(worker), rank: rank.map(Rank), field: PinField::DecodeWorkerId };
    Demand { pin: Some(pin), ..demand() }
}

/// What a selector does with a pin before it decides.
fn pin_rows(rows: &mut [Row], demand: &Demand<'_>) {
    for row in rows {
        if !demand.pin.unwrap().holds(row.worker, row.rank) {
            row.exclusion = row.exclusion.or(Some(Exclusion::NotPinned));
        }
    }
}

fn pick(mode: Mode, rows: &mut [Row], rng: &mut Rng) -> usize {
    decide(mode, &Tuning::default(), &demand(), 0, rows, Duration::ZERO, rng).unwrap()
}

/// The share of each row over many decisions.
fn shares(mode: Mode, rows: &mut [Row], seed: u64) -> Vec<f64> {
    const DRAWS: u32 = 20_000;
    let mut rng = Rng::with_seed(seed);
    let mut counts = vec![0_u32; rows.len()];
    for _ in 0..DRAWS {
        counts[pick(mode, rows, &mut rng)] += 1;
    }
    counts.into_iter().map(|count| f64::from(count) / f64::from(DRAWS)).collect()
}

fn assert_near(actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len());
    for (a, e) in actual.iter().zip(expected) {
        assert!((a - e).abs() < 0.02, "{actual:?} is not near {expected:?}");
    }
}

#[test]
fn round_robin_takes_turns_over_the_eligible_rows() {
    let mut rows = rows(&[9, 0, 5, 0]);
    rows[1] = excluded(rows[1], Exclusion::Draining);
    let mut rng = Rng::with_seed(0);
    let tuning = Tuning::default();
    let mut at = |turn, rows: &mut [Row]| {
        decide(Mode::RoundRobin, &tuning, &demand(), turn, rows, Duration::ZERO, &mut rng)
    };
    let turns: Vec<_> = (0..6).map(|turn| at(turn, &mut rows).unwrap()).collect();
    assert_eq!(turns, [0, 2, 3, 0, 2, 3], "whatever the load");
    rows[1].exclusion = None;
    assert_eq!(at(6, &mut rows), Ok(2), "the cursor is not re-based when the list grows: 6 mod 4");
    assert_eq!(at(u64::MAX, &mut rows), Ok(3));
}

#[test]
fn random_is_uniform_over_the_eligible_rows() {
    let mut rows = rows(&[0, 100, 7, 3]);
    rows[2] = excluded(rows[2], Exclusion::Unroutable);
    let third = 1.0 / 3.0;
    assert_near(&shares(Mode::Random, &mut rows, 11), &[third, third, 0.0, third]);
}

#[test]
fn power_of_two_prefers_the_less_loaded_of_two_different_rows() {
    // Of the three pairs, the idlest wins two and the middle one the third; the busiest never wins.
    let shares = shares(Mode::PowerOfTwo, &mut rows(&[5, 1, 3]), 12);
    let third = 1.0 / 3.0;
    assert_near(&shares, &[0.0, 2.0 * third, third]);
}

#[test]
fn power_of_two_gives_a_tie_to_the_first_drawn() {
    let mut rows = rows(&[4; 5]);
    for seed in 0..200 {
        let first = Rng::with_seed(seed).usize(..5);
        assert_eq!(pick(Mode::PowerOfTwo, &mut rows, &mut Rng::with_seed(seed)), first, "seed {seed}");
    }
}

#[test]
fn power_of_two_takes_the_only_one() {
    let mut rows = rows(&[0, 9]);
    rows[0] = excluded(rows[0], Exclusion::Draining);
    assert_eq!(pick(Mode::PowerOfTwo, &mut rows, &mut Rng::with_seed(0)), 1);
}

#[test]
fn least_loaded_breaks_ties_evenly() {
    let shares = shares(Mode::LeastLoaded, &mut rows(&[2, 1, 1, 4, 1]), 13);
    let third = 1.0 / 3.0;
    assert_near(&shares, &[0.0, third, third, 0.0, third]);
}

#[test]
fn cpus_and_accelerators_are_loaded_by_what_they_are_worth() {
    let mut rows = rows(&[0; 3]);
    rows[0].class = DeviceClass::Cpu;
    rows[1].class = DeviceClass::Cpu;
    let mut rng = Rng::with_seed(14);
    assert_eq!(pick(Mode::DeviceAwareWeighted, &mut rows, &mut rng), 2, "an idle fleet starts on it");
    for _ in 0..200 {
        let picked = pick(Mode::DeviceAwareWeighted, &mut rows, &mut rng);
        rows[picked].load.requests += 1;
    }
    let requests: Vec<_> = rows.iter().map(|row| row.load.requests).collect();
    assert_eq!(requests[2], 160, "{requests:?}: eight times as many as on each of the two CPUs");
    assert_eq!((requests[0], requests[1]), (20, 20));
}

#[test]
fn the_ratio_counts_eligible_rows_only() {
    let mut rows = rows(&[0, 50, 8]);
    rows[0].class = DeviceClass::Cpu;
    rows[1].class = DeviceClass::Cpu;
    rows[1] = excluded(rows[1], Exclusion::Overloaded);
    let mut rng = Rng::with_seed(15);
    assert_eq!(pick(Mode::DeviceAwareWeighted, &mut rows, &mut rng), 0, "1 CPU may hold floor(8*1/8) = 1");
    rows[2] = excluded(rows[2], Exclusion::Draining);
    rows[0].load.requests = 1000;
    assert_eq!(pick(Mode::DeviceAwareWeighted, &mut rows, &mut rng), 0, "only one class is left");
}

/// Devices that are capable of that much, by a sample of that age.
fn devices(capability: f64, age_ms: u64) -> Option<Terms> {
    Weights::default().of(Some(Condition { capability, external_load: 0.0, age_ms }))
}

/// How the rows share 600 requests that stay.
fn lasting(rows: &mut [Row], seed: u64) -> Vec<u32> {
    let mut rng = Rng::with_seed(seed);
    for _ in 0..600 {
        let picked = pick(Mode::DeviceAwareWeighted, rows, &mut rng);
        rows[picked].load.requests += 1;
    }
    rows.iter().map(|row| row.load.requests).collect()
}

#[test]
fn with_telemetry_load_follows_what_devices_are_worth_within_and_across_classes() {
    let mut rows = rows(&[0, 0, 0, 0]);
    rows[0].device = devices(1.0, 0);
    rows[1].device = devices(0.5, 0);
    rows[2].class = DeviceClass::Cpu;
    rows[3] = excluded(rows[3], Exclusion::Fenced);
    // 8, half of 8, and 1: of 13 parts.
    let shares = lasting(&mut rows, 16);
    for (share, expected) in shares.iter().zip([369, 185, 46, 0]) {
        assert!(share.abs_diff(expected) <= 2, "{shares:?}");
    }
}

#[test]
fn telemetry_that_is_too_old_leaves_the_rule_as_it_was() {
    let with = |device| {
        let mut rows = rows(&[0, 0, 0]);
        rows[2].class = DeviceClass::Cpu;
        rows[0].device = device;
        lasting(&mut rows, 17)
    };
    assert_eq!(with(devices(0.2, 1_000_000)), with(None));
    assert!(with(devices(0.2, 0))[0] < with(None)[0]);
}

#[test]
fn kv_costs_are_divided_by_the_weight_and_otherwise_the_model_s_to_the_letter() {
    for cost_model in [CostModel::Blocks, CostModel::Time] {
        let tuning = Tuning { cost_model, ..Tuning::default() };
        let mut rows = rows(&[0, 0, 0]);
        for row in &mut rows {
            row.load.decode_blocks = 7;
        }
        let mut costs = |device| {
            rows[1].device = device;
            let rng = &mut Rng::with_seed(18);
            let picked = decide(Mode::Kv, &tuning, &demand(), 0, &mut rows, Duration::ZERO, rng).unwrap();
            (picked, [0, 1].map(|row: usize| rows[row].cost.unwrap()))
        };
        let (_, plain) = costs(None);
        assert_eq!(plain[0], plain[1]);
        let (picked, weighed) = costs(devices(0.25, 0));
        assert_ne!(picked, 1);
        assert_eq!(weighed[1].total(), plain[1].total() / 0.25);
        for neutral in [devices(1.0, 0), devices(0.25, 1_000_000)] {
            assert_eq!(costs(neutral).1, plain);
        }
    }
}

#[test]
fn direct_needs_a_pin() {
    let demand = Demand { phase: Phase::Decode, ..demand() };
    let refusal = decide(
        Mode::Direct,
        &Tuning::default(),
        &demand,
        0,
        &mut rows(&[0]),
        Duration::ZERO,
        &mut Rng::with_seed(0),
    );
    let refusal = refusal.unwrap_err();
    assert_eq!(refusal.to_string(), "worker ID required for decode request in Direct routing mode");
    assert_eq!(refusal.kind(), RefusalKind::Invalid);
}

#[test]
fn every_mode_honours_a_pin() {
    for mode in Mode::ALL {
        let demand = pinned(1, None);
        let mut rows = rows(&[0, 9, 0]);
        pin_rows(&mut rows, &demand);
        let picked =
            decide(mode, &Tuning::default(), &demand, 2, &mut rows, Duration::ZERO, &mut Rng::with_seed(0));
        assert_eq!(picked, Ok(1), "{mode}");
    }
}

#[test]
fn a_pin_without_a_rank_takes_the_least_loaded_rank_except_in_kv() {
    for mode in Mode::ALL {
        let demand = pinned(1, None);
        let mut rows = vec![row(0, 0, 0), row(1, 0, 5), row(1, 1, 2), row(1, 2, 7)];
        pin_rows(&mut rows, &demand);
        let picked =
            decide(mode, &Tuning::default(), &demand, 0, &mut rows, Duration::ZERO, &mut Rng::with_seed(0));
        if mode == Mode::Kv {
            let refusal = picked.unwrap_err();
            assert_eq!(refusal, Refusal::RankRequired { worker: WorkerId(1), ranks: 3 });
            assert!(refusal.to_string().starts_with("pinned worker 1 requires an explicit dp_rank"));
        } else {
            assert_eq!(picked, Ok(2), "{mode}");
        }
    }
}

#[test]
fn a_pin_with_a_rank_is_exact() {
    for mode in Mode::ALL {
        let demand = pinned(1, Some(2));
        let mut rows = vec![row(1, 0, 0), row(1, 1, 0), row(1, 2, 7)];
        pin_rows(&mut rows, &demand);
        let picked =
            decide(mode, &Tuning::default(), &demand, 0, &mut rows, Duration::ZERO, &mut Rng::with_seed(0));
        assert_eq!(picked, Ok(2), "{mode}");
    }
}

#[test]
fn a_pin_to_what_does_not_exist_is_an_invalid_request() {
    let refuse = |demand: Demand<'_>| {
        let mut rows = vec![row(1, 0, 0), row(1, 1, 0)];
        pin_rows(&mut rows, &demand);
        decide(
            Mode::Random,
            &Tuning::default(),
            &demand,
            0,
            &mut rows,
            Duration::ZERO,
            &mut Rng::with_seed(0),
        )
        .unwrap_err()
    };
    let worker = refuse(pinned(7, None));
    assert_eq!(worker.to_string(), "nvext.decode_worker_id=7 does not identify a known worker");
    let rank = refuse(pinned(1, Some(5)));
    assert_eq!(rank.to_string(), "worker 1 (nvext.decode_worker_id) has no rank 5; it has 2 ranks");
    assert_eq!((worker.kind(), rank.kind()), (RefusalKind::Invalid, RefusalKind::Invalid));
}

#[test]
fn a_pin_to_an_excluded_worker_says_why() {
    let cases = [(Exclusion::Draining, RefusalKind::Unavailable), (Exclusion::Overloaded, RefusalKind::Busy)];
    for (exclusion, kind) in cases {
        let demand = pinned(1, None);
        let mut rows = rows(&[0, 0]);
        rows[1] = excluded(rows[1], exclusion);
        pin_rows(&mut rows, &demand);
        let refusal = decide(
            Mode::Kv,
            &Tuning::default(),
            &demand,
            0,
            &mut rows,
            Duration::ZERO,
            &mut Rng::with_seed(0),
        );
        let refusal = refusal.unwrap_err();
        let (field, worker) = (PinField::DecodeWorkerId, WorkerId(1));
        assert_eq!(refusal, Refusal::PinExcluded { field, worker, exclusion });
        assert_eq!(refusal.kind(), kind);
    }
}

#[test]
fn a_fleet_that_cannot_serve_says_how_many_and_why() {
    let refuse = |rows: &mut [Row]| {
        decide(Mode::Kv, &Tuning::default(), &demand(), 0, rows, Duration::ZERO, &mut Rng::with_seed(0))
            .unwrap_err()
    };
    assert_eq!(refuse(&mut []), Refusal::NoWorkers);

    let mut rows = rows(&[0; 3]);
    rows[0] = excluded(rows[0], Exclusion::Draining);
    rows[1] = excluded(rows[1], Exclusion::ConflictingConfiguration);
    rows[2] = excluded(rows[2], Exclusion::Draining);
    let refusal = refuse(&mut rows);
    assert_eq!(refusal.to_string(), "no workers available: 2 draining, 1 with a conflicting configuration");
    assert_eq!(refusal.kind(), RefusalKind::Unavailable);

    rows[2] = excluded(rows[2], Exclusion::Overloaded);
    let refusal = refuse(&mut rows);
    let counts: ExclusionCounts = rows.iter().filter_map(|row| row.exclusion).collect();
    assert_eq!(refusal, Refusal::AllBusy(counts));
    assert_eq!(refusal.kind(), RefusalKind::Busy);
}

#[test]
fn kv_breaks_ties_evenly() {
    let shares = shares(Mode::Kv, &mut rows(&[3; 4]), 16);
    assert_near(&shares, &[0.25; 4]);
}

#[test]
fn an_override_of_the_temperature_spreads_one_request() {
    let mut rows = rows(&[0, 0]);
    rows[1].load.decode_blocks = 5;
    let warm = Overrides { router_temperature: Some(1.0), ..Overrides::default() };
    let demand = Demand { overrides: warm, ..demand() };
    let mut rng = Rng::with_seed(17);
    let draws = 20_000;
    let costly = (0..draws)
        .filter(|_| {
            decide(Mode::Kv, &Tuning::default(), &demand, 0, &mut rows, Duration::ZERO, &mut rng) == Ok(1)
        })
        .count();
    let weight = (-1.0_f64).exp();
    assert_near(&[costly as f64 / f64::from(draws)], &[weight / (1.0 + weight)]);
}

fn any_exclusion() -> impl Strategy<Value = Option<Exclusion>> {
    prop::option::weighted(0.3, prop::sample::select(Exclusion::ALL.to_vec()))
}

prop_compose! {
    fn any_overlap()(gpu in 0_u32..9, host in 0_u32..4, disk in 0_u32..4, external in 0_u32..4) -> Overlap {
        Overlap { gpu, host, disk, external }
    }
}

prop_compose! {
    fn any_load()(requests in 0_u32..4, prefill_tokens in 0_u64..300, decode_blocks in 0_u64..40) -> SlotLoad {
        SlotLoad { requests, prefill_tokens, decode_blocks }
    }
}

prop_compose! {
    fn any_row()(
        worker in 0_u64..6, rank in 0_u32..2, overlap in any_overlap(), load in any_load(), new_blocks in 0_u64..9,
        cpu in any::<bool>(), exclusion in any_exclusion(),
    ) -> Row {
        Row {
            class: if cpu { DeviceClass::Cpu } else { DeviceClass::Accelerator },
            exclusion,
            overlap,
            cached_tokens: cost::cached_tokens(overlap, BlockSize::new(BLOCK).unwrap(), &Tuning::default()),
            load,
            new_blocks,
            ..row(worker, rank, 0)
        }
    }
}

prop_compose! {
    fn any_tuning()(
        credit in 0.0..4.0, decay in 0.0..2.0, scale in 0.0..30.0, weight in 0.0..10.0, track in any::<bool>(),
    ) -> Tuning {
        Tuning {
            cost_model: CostModel::Blocks,
            overlap_score_credit: credit,
            overlap_score_credit_decay: decay,
            prefill_load_scale: scale,
            decode_active_request_weight: weight,
            router_track_prefill_tokens: track,
            ..Tuning::default()
        }
    }
}

/// The formula as it is written, computed anew from plain numbers.
fn formula(row: &Row, tuning: &Tuning, isl: f64, least_prefill: f64) -> f64 {
    let block = f64::from(BLOCK);
    let (d, h) = (f64::from(row.overlap.gpu), f64::from(row.overlap.host));
    let k = f64::from(row.overlap.disk + row.overlap.external);
    let p = row.load.prefill_tokens as f64;
    let slower = 0.75 * h + 0.25 * k;
    let cached = ((d + slower) * block).round();
    let (decay, tokens) = if tuning.router_track_prefill_tokens {
        let behind = (p - least_prefill) / block / (isl / block).ceil().max(1.0);
        (1.0 / (1.0 + tuning.overlap_score_credit_decay * behind), p + (isl - cached).max(0.0) + cached)
    } else {
        (1.0, 0.0)
    };
    let credit = tuning.overlap_score_credit * decay * d + slower;
    tuning.prefill_load_scale * (tokens / block - credit).max(0.0)
        + (row.load.decode_blocks + row.new_blocks) as f64
        + tuning.decode_active_request_weight * f64::from(row.load.requests)
}

proptest! {
    #[test]
    fn no_mode_picks_an_excluded_row(
        rows in prop::collection::vec(any_row(), 0..9), mode in prop::sample::select(Mode::ALL.to_vec()),
        temperature in prop::sample::select(vec![0.0, 0.3]), turn in any::<u64>(), seed in any::<u64>(),
    ) {
        let tuning = Tuning { router_temperature: temperature, ..Tuning::default() };
        let mut after = rows.clone();
        match decide(mode, &tuning, &demand(), turn, &mut after, Duration::ZERO, &mut Rng::with_seed(seed)) {
            Ok(picked) => prop_assert!(after[picked].is_eligible()),
            Err(Refusal::WorkerIdRequired { .. }) => prop_assert_eq!(mode, Mode::Direct),
            Err(_) => prop_assert!(rows.iter().all(|row| !row.is_eligible())),
        }
        for (before, after) in rows.iter().zip(&after) {
            prop_assert_eq!(before, &Row { cost: None, ..*after }, "only the cost is written");
        }
    }

    #[test]
    fn kv_takes_the_least_of_the_blocks_formula_and_shows_it(
        rows in prop::collection::vec(any_row(), 1..9), tuning in any_tuning(), isl in 0_usize..400,
        seed in any::<u64>(),
    ) {
        let demand = Demand { isl_tokens: isl, ..demand() };
        let mut rows = rows;
        let Ok(picked) = decide(Mode::Kv, &tuning, &demand, 0, &mut rows, Duration::ZERO, &mut Rng::with_seed(seed)) else {
            return Ok(());
        };
        let eligible = || rows.iter().filter(|row| row.is_eligible());
        let least_prefill = eligible().map(|row| row.load.prefill_tokens).min().unwrap() as f64;
        let expected = |row: &Row| formula(row, &tuning, isl as f64, least_prefill);
        let least = eligible().map(expected).fold(f64::INFINITY, f64::min);
        prop_assert!((expected(&rows[picked]) - least).abs() <= 1e-9 * (1.0 + least.abs()));
        for row in eligible() {
            let Some(Cost::Blocks(cost)) = row.cost else { panic!("no cost in blocks: {row:?}") };
            prop_assert!((cost.total - expected(row)).abs() <= 1e-9 * (1.0 + cost.total));
            prop_assert_eq!(cost.total, cost.prefill + cost.decode + cost.requests);
        }
    }
}
