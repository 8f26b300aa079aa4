//! The cost in seconds: against the formula written out, and as what it must never do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::time::Duration;

use kvroute::{
    device::{MeanSpeed, Speed},
    hash::BlockSize,
    index::Overlap,
    load::{Backlog, SlotLoad},
    select::{
        CostModel, Demand, Exclusion, Member, Mode, Overrides, Phase, Row, Tuning,
        cost::{
            Cost, predicted,
            time::{FIXED_TOKENS, Survey, TimeCost, price},
        },
        decide,
    },
    slot::{Rank, Slot, WorkerId},
};
use proptest::prelude::*;

const BLOCK: u64 = 16;
const NOW: Duration = Duration::from_secs(100);

fn demand(tokens: u64) -> Demand<'static> {
    Demand::new(tokens as usize, BlockSize::new(BLOCK as u32).unwrap(), &[])
}

/// What a slot is, in the words of the formula.
#[derive(Clone, Debug)]
struct Engine {
    /// Blocks by events, and by requests in flight, with how many use the last of these.
    held: u32,
    carried: u32,
    carriers: u32,
    host: u32,
    /// Work of requests before their first token, the head first, and since when the head is computed.
    queue: Vec<u64>,
    head_start: f64,
    decoding: u32,
    /// Blocks in use, and those that the request adds.
    context: (u64, u64),
    /// Prefills that it has shown: tokens of work and seconds.
    shown: Vec<(u64, f64)>,
}

impl Engine {
    fn row(&self, index: u32, tokens: u64) -> Row {
        let mut speed = Speed::default();
        for &(work, seconds) in &self.shown {
            speed.observe(work, Duration::from_secs_f64(seconds), 1.0, 1e-4);
        }
        let member = Member::new(Slot { index, generation: 0 }, WorkerId(u64::from(index)), Rank(0));
        let overlap = Overlap { gpu: self.held, host: self.host, ..Overlap::default() };
        let predicted = predicted(overlap, self.carried);
        let waiting = u32::try_from(self.queue.len()).unwrap();
        Row {
            overlap,
            carried: self.carried,
            carriers: self.carriers,
            predicted,
            new_blocks: self.context.1,
            prefill_work: tokens.saturating_sub(u64::from(predicted.gpu) * BLOCK).max(1) + FIXED_TOKENS,
            load: SlotLoad {
                requests: self.decoding + waiting,
                prefill_tokens: self.queue.iter().sum(),
                decode_blocks: self.context.0,
            },
            backlog: Backlog {
                requests: waiting,
                work: self.queue.iter().sum(),
                head_work: self.queue.first().copied().unwrap_or(0),
                head_since: Duration::from_secs_f64(self.head_start),
            },
            speed,
            ..Row::new(&member)
        }
    }
}

/// The formula, one line a line, without the host tier and with every weight at its default.
fn literal(engines: &[Engine], rows: &[Row], x: usize, isl: f64) -> f64 {
    let g = BLOCK as f64;
    let mut sums = MeanSpeed::default();
    rows.iter().for_each(|row| sums.add(row.speed));
    let s_of = |x: usize| rows[x].speed.seconds_per_token(sums.seconds_per_token());
    let n = engines.len();
    let s = (0..n).map(s_of).sum::<f64>() / n as f64;
    let d = |x: usize| f64::from(engines[x].held.max(engines[x].carried));
    let m = (0..n).map(d).fold(0.0, f64::max);
    let deepest = || (0..n).filter(|&x| m > 0.0 && d(x) == m);
    let h = deepest().count() as f64;
    let c: f64 = deepest()
        .filter(|&x| f64::from(engines[x].carried) == m)
        .map(|x| f64::from(engines[x].carriers))
        .sum();
    let engine = &engines[x];
    let u = (isl - d(x) * g).max(1.0);
    let u0 = 256.0;
    let sigma = s * (s_of(x) / s).powf(0.5);
    let own = sigma * (u + u0);
    let w = if engine.queue.is_empty() {
        0.0
    } else {
        let all: u64 = engine.queue.iter().sum();
        let since = (NOW.as_secs_f64() - engine.head_start).max(0.0);
        s_of(x) * all as f64 - since.min(s_of(x) * engine.queue[0] as f64)
    };
    let kappa_eff = 1.0 / (1.0 + c);
    let repl = if h > 0.0 && c / h > 1.0 {
        // One token less where the whole prompt is cached somewhere: that one is computed everywhere.
        let missing = ((m - d(x)) * g).min(u - 1.0).max(0.0);
        missing * sigma * (1.0 - 1.0 / (1.0 + 0.2 * (c / h - 1.0)))
    } else {
        0.0
    };
    let harm = 0.01 * f64::from(engine.decoding) * own;
    let load = 0.02 * sigma * (engine.context.0 + engine.context.1) as f64 * g;
    w + own * (1.0 + kappa_eff) - repl + harm + load
}

fn engine() -> impl Strategy<Value = Engine> {
    let queue = prop::collection::vec(257_u64..40_000, 0..5);
    let shown = prop::collection::vec((257_u64..40_000, 0.0..8.0_f64), 0..30);
    let cached = (0_u32..200, 0_u32..200, 1_u32..30, 0_u32..50);
    let load = (0_u32..100, (0_u64..30_000, 0_u64..300));
    // In whole nanoseconds, as moments are kept: half of one is more than the formula may be off.
    let head_start = (90_000_000_000..101_000_000_000_u64).prop_map(|nanos| nanos as f64 / 1e9);
    (cached, queue, head_start, load, shown).prop_map(
        |((held, carried, carriers, host), queue, head_start, (decoding, context), shown)| Engine {
            held,
            carried,
            carriers: if carried == 0 { 0 } else { carriers },
            host,
            queue,
            head_start,
            decoding,
            context,
            shown,
        },
    )
}

fn rows(engines: &[Engine], tokens: u64) -> Vec<Row> {
    (0..).zip(engines).map(|(index, engine)| engine.row(index, tokens)).collect()
}

fn cost(row: &Row, rows: &[Row], demand: &Demand<'_>, tuning: &Tuning) -> TimeCost {
    price(row, demand, tuning, &Survey::of(rows), NOW)
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-3)
}

proptest! {
    #[test]
    fn the_cost_is_the_formula(mut engines in prop::collection::vec(engine(), 1..6), extra in 0_u64..16) {
        // A prompt of 200 blocks and a rest, so that no overlap is longer than it.
        let tokens = 200 * BLOCK + extra;
        engines.iter_mut().for_each(|engine| engine.host = 0);
        let rows = rows(&engines, tokens);
        for (x, row) in rows.iter().enumerate() {
            let ours = cost(row, &rows, &demand(tokens), &Tuning::default());
            let expected = literal(&engines, &rows, x, tokens as f64);
            prop_assert!(near(ours.total, expected), "{} against {expected}: {ours:?}", ours.total);
            let prefill = ours.queue + ours.own_prefill + ours.surcharge - ours.replication;
            prop_assert!(near(ours.total, prefill + ours.harm + ours.context + ours.requests));
            let first = ours.queue + ours.seconds_per_token * row.prefill_work as f64;
            prop_assert!(near(ours.first_token.unwrap(), first));
        }
    }

    /// Of two slots that differ in one thing, the one that is better off never costs more.
    #[test]
    fn better_never_costs_more(
        others in prop::collection::vec(engine(), 0..4),
        worse in engine(),
        by in 1_u32..50,
        credit in 0.0..3.0_f64,
        scale in 0.0..30.0_f64,
        what in 0_u8..6,
    ) {
        let mut better = worse.clone();
        match what {
            0 => better.held += by,
            1 => better.host += by,
            2 => drop(better.queue.pop()),
            3 => better.decoding = better.decoding.saturating_sub(by),
            4 => better.context.0 = better.context.0.saturating_sub(u64::from(by)),
            _ => better.head_start -= 1.0,
        }
        // Alone, or the two would change each other's fleet: a deeper overlap makes a prefix hot.
        let mut engines = others;
        engines.push(Engine { held: 400, carried: 400, ..worse.clone() });
        let tokens = 300 * BLOCK;
        let all = rows(&engines, tokens);
        let tuning = Tuning { overlap_score_credit: credit, prefill_load_scale: scale, ..Tuning::default() };
        let survey = Survey::of(&all);
        let total = |engine: &Engine| price(&engine.row(99, tokens), &demand(tokens), &tuning, &survey, NOW).total;
        let (better, worse) = (total(&better), total(&worse));
        prop_assert!(better <= worse + 1e-12 * worse.abs(), "{better} against {worse}");
    }

    /// Whatever the numbers, there is a cost, and it is one.
    #[test]
    fn every_cost_is_a_number(
        mut engines in prop::collection::vec(engine(), 1..4),
        tokens in prop_oneof![Just(0_u64), Just(1), any::<u32>().prop_map(u64::from)],
        huge in any::<bool>(),
        credit in prop_oneof![Just(0.0), Just(1.0), Just(f64::MAX), Just(f64::INFINITY)],
        scale in prop_oneof![Just(0.0), Just(1.0), Just(f64::MAX), Just(f64::INFINITY)],
        decay in prop_oneof![Just(0.0), Just(1e300)],
    ) {
        if huge {
            engines[0].queue = vec![u64::MAX / 4; 3];
            engines[0].context = (u64::MAX, u64::MAX);
            engines[0].decoding = u32::MAX - 10;
        }
        let tuning = Tuning {
            overlap_score_credit: credit,
            prefill_load_scale: scale,
            overlap_score_credit_decay: decay,
            ..Tuning::default()
        };
        let mut rows = rows(&engines, tokens);
        for row in &rows {
            let priced = cost(row, &rows, &demand(tokens), &tuning);
            prop_assert!(!priced.total.is_nan() && priced.total > f64::NEG_INFINITY, "{priced:?}");
            let first = priced.first_token.unwrap();
            prop_assert!(first.is_finite() && first >= 0.0, "{priced:?}");
            if scale == 1.0 {
                prop_assert!(priced.total.is_finite() && priced.total >= 0.0, "{priced:?}");
            }
        }
        let mut rng = fastrand::Rng::with_seed(1);
        prop_assert!(decide(Mode::Kv, &tuning, &demand(tokens), 0, &mut rows, NOW, &mut rng).is_ok());
    }
}

/// An engine that holds nothing, does nothing, and has shown nothing.
fn idle() -> Engine {
    Engine {
        held: 0,
        carried: 0,
        carriers: 0,
        host: 0,
        queue: Vec::new(),
        head_start: 0.0,
        decoding: 0,
        context: (0, 0),
        shown: Vec::new(),
    }
}

#[test]
fn without_any_speed_learned_ten_thousand_tokens_take_a_second() {
    let rows = rows(&[idle()], 9_744);
    let cost = cost(&rows[0], &rows, &demand(9_744), &Tuning::default());
    assert!(near(cost.first_token.unwrap(), 1.0) && near(cost.total, 2.0), "{cost:?}");
}

#[test]
fn a_host_block_is_worth_its_weight_and_a_carried_one_is_on_the_gpu() {
    let own = |engine: Engine| {
        let rows = rows(&[engine, idle()], 3_200);
        cost(&rows[0], &rows, &demand(3_200), &Tuning::default()).own_prefill
    };
    let saved = own(idle()) - own(Engine { host: 40, ..idle() });
    assert!(near(saved, 1e-4 * 0.75 * 40.0 * 16.0), "{saved}");
    let on_the_way = Engine { host: 40, carried: 40, carriers: 1, ..idle() };
    assert!(near(own(on_the_way), own(Engine { held: 40, ..idle() })));
}

#[test]
fn the_settings_keep_their_meaning() {
    let slow = Engine { held: 50, queue: vec![1000, 800], decoding: 3, context: (500, 40), ..idle() };
    let rows = rows(&[slow, idle()], 3_200);
    let of = |tuning: Tuning| cost(&rows[0], &rows, &demand(3_200), &tuning);
    let plain = of(Tuning::default());
    let blind = of(Tuning { overlap_score_credit: 0.0, ..Tuning::default() });
    assert!(near(blind.own_prefill, 1e-4 * (3_200.0 + 256.0)), "cached blocks are worth nothing");
    let decayed = of(Tuning { overlap_score_credit_decay: 2.0, ..Tuning::default() });
    assert!(near(decayed.decay, 1.0 / (1.0 + 2.0 * (1800.0 / 16.0) / 200.0)) && plain.decay == 1.0);
    assert!(near(decayed.own_prefill, 1e-4 * (3_200.0 - decayed.decay * 800.0 + 256.0)));
    let scaled = of(Tuning { prefill_load_scale: 3.0, ..Tuning::default() });
    let prefill = plain.queue + plain.own_prefill + plain.surcharge;
    assert!(near(scaled.total - plain.total, 2.0 * prefill));
    let weighed = of(Tuning { decode_active_request_weight: 7.0, ..Tuning::default() });
    assert!(near(weighed.total - plain.total, 7.0 * 16.0 * 1e-4 * 5.0));
    let untracked = of(Tuning { router_track_prefill_tokens: false, ..Tuning::default() });
    assert!(near(untracked.total, untracked.context) && untracked.first_token.is_none(), "{untracked:?}");
}

#[test]
fn a_decode_worker_saves_the_context_that_it_has() {
    let rows = rows(&[Engine { held: 50, context: (500, 100), ..idle() }], 3_200);
    let tuning = Tuning { router_track_prefill_tokens: false, ..Tuning::default() };
    let context = |phase| cost(&rows[0], &rows, &Demand { phase, ..demand(3_200) }, &tuning).context;
    assert!(near(context(Phase::Aggregated), 0.02 * 1e-4 * 600.0 * 16.0));
    assert!(near(context(Phase::Decode), 0.02 * 1e-4 * 550.0 * 16.0));
}

#[test]
fn a_request_s_overrides_hold_in_both_models_and_the_model_is_the_set_s() {
    for cost_model in CostModel::ALL {
        let tuning = Tuning { cost_model, ..Tuning::default() };
        let pick = |overrides| {
            let full = Engine { held: 190, decoding: 1, context: (10, 0), ..idle() };
            let mut rows = rows(&[full, idle()], 3_200);
            let demand = Demand { overrides, ..demand(3_200) };
            let mut rng = fastrand::Rng::with_seed(1);
            let picked = decide(Mode::Kv, &tuning, &demand, 0, &mut rows, NOW, &mut rng).unwrap();
            assert!(rows.iter().all(|row| row.cost.as_ref().map(Cost::model) == Some(cost_model)));
            picked
        };
        assert_eq!(pick(Overrides::default()), 0, "{cost_model}: to the cache");
        let blind = Overrides { overlap_score_credit: Some(0.0), ..Overrides::default() };
        assert_eq!(pick(blind), 1, "{cost_model}: to the idle one");
    }
}

#[test]
fn what_excluded_slots_hold_makes_no_prefix_hot() {
    let hot = Engine { held: 100, carried: 100, carriers: 50, ..idle() };
    let mut rows = rows(&[hot, idle()], 3_200);
    let crowded = cost(&rows[1], &rows, &demand(3_200), &Tuning::default());
    assert!(crowded.replication > 0.0 && crowded.surcharge < crowded.own_prefill / 50.0, "{crowded:?}");
    rows[0].exclusion = Some(Exclusion::Draining);
    let alone = cost(&rows[1], &rows, &demand(3_200), &Tuning::default());
    assert!(alone.replication == 0.0 && alone.surcharge == alone.own_prefill, "{alone:?}");
}
