//! Worker sets that decide at random on whatever can happen to them, and keep a record of every decision.
#![allow(dead_code, reason = "each test file that includes this uses its part of it")]

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use fastrand::Rng;
use kvroute::{
    decisions::{Decision, Encoder, Entry, Finish, Outcome, Question, Reader, Rule, Tail, Verdict},
    device::{Condition, DeviceClass},
    event::{EngineHash, Event, Stored, StoredBlock, Tier},
    hash::{BlockHash, BlockSize, SequenceHash, chain},
    index::{self, IndexWriter, PrefixIndex},
    load::Booking,
    select::{
        AffinityMode, CostModel, Demand, Exclusion, Member, Mode, Overrides, Phase, Pin, PinField, Scratch,
        Selector, Tie, Tuning,
    },
    slot::{Rank, Slot, WorkerId},
};

/// One worker set, with members of two ranks each.
struct Set {
    rule: Arc<Rule>,
    selector: Selector,
    members: Vec<Member>,
    index: PrefixIndex,
    writer: IndexWriter,
    bookings: Vec<Booking>,
}

/// A few worker sets, and what they decided.
pub(crate) struct Fleet {
    sets: Vec<Set>,
    generation: u64,
    now: Duration,
    /// What happens.
    rng: Rng,
    /// What decisions draw from.
    draws: Rng,
    pub(crate) decisions: Vec<Decision>,
    pub(crate) outcomes: Vec<(u64, Outcome)>,
}

const BLOCK: u32 = 16;

fn block_size() -> BlockSize {
    BlockSize::new(BLOCK).unwrap()
}

/// The settings that sets begin with: both cost models with and without a temperature, with odd weights, and every mode.
fn settings() -> Vec<(Mode, Tuning)> {
    let kv = |change: fn(&mut Tuning)| {
        let mut tuning = Tuning::default();
        change(&mut tuning);
        (Mode::Kv, tuning)
    };
    let mut settings = vec![
        kv(|_| {}),
        kv(|tuning| tuning.router_temperature = 0.7),
        kv(|tuning| {
            tuning.overlap_score_credit_decay = 0.5;
            tuning.decode_active_request_weight = 3.0;
            tuning.router_track_output_blocks = true;
        }),
        kv(|tuning| tuning.cost_model = CostModel::Blocks),
        kv(|tuning| (tuning.cost_model, tuning.router_temperature) = (CostModel::Blocks, 0.3)),
        kv(|tuning| {
            tuning.cost_model = CostModel::Blocks;
            tuning.prefill_load_scale = 20.0;
            tuning.overlap_score_credit = 2.0;
            tuning.router_assume_kv_reuse = false;
        }),
        kv(|tuning| tuning.device_weights.enabled = false),
    ];
    settings.extend(Mode::ALL.map(|mode| (mode, Tuning::default())));
    settings
}

impl Set {
    fn new(number: usize, (mode, tuning): (Mode, Tuning)) -> Self {
        let (index, mut writers) = PrefixIndex::new(NonZeroUsize::MIN);
        let member = |at: u32| Member {
            class: if at < 2 { DeviceClass::Cpu } else { DeviceClass::Accelerator },
            expected: (at % 2 == 1).then_some(Slot { index: 100 + at, generation: 0 }),
            ..Member::new(Slot { index: at, generation: 0 }, WorkerId(u64::from(at / 2) + 1), Rank(at % 2))
        };
        let rule = Rule {
            worker_set: format!("set-{number}"),
            model: "m".to_owned(),
            fingerprint: Some("0123456789abcdef".to_owned()),
            block_size: block_size(),
            mode,
            tuning,
        };
        Self {
            rule: Arc::new(rule),
            selector: Selector::new(mode, tuning),
            members: (0..10).map(member).collect(),
            index,
            writer: writers.remove(0),
            bookings: Vec::new(),
        }
    }

    /// Another configuration, over the same loads.
    fn configure(&mut self, change: impl FnOnce(&mut Tuning)) {
        let mut rule = Rule::clone(&self.rule);
        change(&mut rule.tuning);
        self.selector = Selector::with_loads(rule.mode, rule.tuning, Arc::clone(self.selector.loads()));
        self.rule = Arc::new(rule);
    }

    fn member(&mut self, rng: &mut Rng) -> &mut Member {
        let at = rng.usize(..self.members.len());
        &mut self.members[at]
    }
}

/// One of a few prompts that begin alike, so many blocks of it.
fn prompt(rng: &mut Rng) -> (Vec<BlockHash>, Vec<SequenceHash>) {
    let (family, branch, blocks) = (rng.u64(..6), rng.u64(..3), rng.u64(1..40));
    let name = |block: u64| if block < 12 { family } else { family * 10 + branch + 100 };
    let hashes: Vec<_> = (0..blocks).map(|block| BlockHash(name(block) * 1000 + block)).collect();
    let mut sequence = Vec::new();
    chain(&hashes, &mut sequence);
    (hashes, sequence)
}

impl Fleet {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            sets: (0..).zip(settings()).map(|(number, settings)| Set::new(number, settings)).collect(),
            generation: 1,
            now: Duration::from_millis(5),
            rng: Rng::with_seed(seed),
            draws: Rng::with_seed(seed + 1),
            decisions: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    /// A log of so many decisions.
    pub(crate) fn record(seed: u64, decisions: usize) -> Self {
        let mut fleet = Self::new(seed);
        while fleet.decisions.len() < decisions {
            fleet.happen();
            fleet.decide();
        }
        fleet
    }

    /// The log's bytes.
    pub(crate) fn log(&self) -> Vec<u8> {
        let (mut bytes, mut encoder) = (Vec::new(), Encoder::new());
        Encoder::header(&mut bytes);
        let mut outcomes = self.outcomes.iter().peekable();
        for decision in &self.decisions {
            encoder.decision(decision, &mut bytes);
            if let Some((number, outcome)) = outcomes.next_if(|(number, _)| *number == decision.number) {
                encoder.outcome(*number, outcome, &mut bytes);
            }
        }
        bytes
    }

    /// Something changes: a load, the index, a member, a configuration.
    fn happen(&mut self) {
        let Self { sets, rng, now, generation, .. } = self;
        *now += Duration::from_nanos(rng.u64(..40_000_000));
        let at = rng.usize(..sets.len());
        let set = &mut sets[at];
        match rng.u32(..12) {
            0..=3 => {
                let (hashes, sequence) = prompt(rng);
                let tier = Tier::ALL[if rng.bool() { 0 } else { rng.usize(..4) }];
                let blocks = hashes.iter().zip(&sequence).map(|(&content, name)| StoredBlock {
                    engine: EngineHash(name.0),
                    content: Some(content),
                });
                let member = *set.member(rng);
                let slot = member.expected.filter(|_| rng.bool()).unwrap_or(member.slot);
                let stored = Stored { tier, parent: None, blocks: blocks.collect() };
                set.writer.apply(slot, &Event::Stored(stored));
            }
            4..=6 => {
                if let Some(booking) = set.bookings.get(rng.usize(..set.bookings.len().max(1))) {
                    booking.first_token(*now);
                    booking.output(rng.u64(..40));
                }
            }
            7 => {
                let capability = rng.f64().max(0.1);
                let condition = Condition { capability, external_load: rng.f64(), age_ms: rng.u64(..40_000) };
                let known = rng.bool();
                set.member(rng).device = known.then_some(condition);
            }
            8 => {
                let exclusion = Exclusion::ALL[rng.usize(..Exclusion::ALL.len())];
                let excluded = rng.u32(..4) == 0;
                set.member(rng).exclusion = excluded.then_some(exclusion);
                let trusted = rng.u32(..4) > 0;
                set.member(rng).credits_overlap = trusted;
                *generation += 1;
            }
            9 => {
                // An engine restarts: its slot comes again under another generation.
                let old = set.member(rng).slot;
                set.selector.loads().forget(old);
                let member = set.members.iter_mut().find(|member| member.slot == old).unwrap();
                member.slot.generation += 1;
                *generation += 1;
            }
            10 => {
                let (credit, host) = (rng.f64() * 2.0, rng.f64());
                set.configure(|tuning| {
                    (tuning.overlap_score_credit, tuning.host_cache_hit_weight) = (credit, host);
                });
                *generation += 1;
            }
            _ => {
                let keep = set.bookings.len() / 2;
                set.bookings.truncate(keep);
            }
        }
    }

    fn decide(&mut self) {
        let Self { sets, rng, draws, now, generation, decisions, outcomes, .. } = self;
        let at = rng.usize(..sets.len());
        let set = &mut sets[at];
        let (hashes, sequence) = prompt(rng);
        let avoid = [WorkerId(rng.u64(1..6))];
        let mut demand =
            Demand::new(sequence.len() * BLOCK as usize + rng.usize(..16), block_size(), &sequence);
        demand.phase = [Phase::Aggregated, Phase::Prefill, Phase::Decode][rng.usize(..3)];
        if rng.u32(..8) == 0 || set.rule.mode == Mode::Direct {
            let rank = rng.bool().then(|| Rank(rng.u32(..3)));
            let field = PinField::BackendInstanceId;
            demand.pin = Some(Pin { worker: WorkerId(rng.u64(1..7)), rank, field });
        } else if rng.u32(..8) == 0 {
            demand.avoid = &avoid;
        }
        if rng.u32(..5) == 0 {
            let mode = AffinityMode::ALL[rng.usize(..2)];
            demand.tie = Some(Tie { slot: set.member(rng).slot, mode });
        }
        if rng.u32(..4) == 0 {
            demand.overrides = Overrides {
                overlap_score_credit: rng.bool().then(|| rng.f64()),
                prefill_load_scale: rng.bool().then(|| rng.f64() * 4.0),
                router_temperature: rng.bool().then(|| rng.f64()),
                assume_kv_reuse: rng.bool().then(|| rng.bool()),
                track_prefill_tokens: rng.bool().then(|| rng.bool()),
            };
        }
        let (mut found, mut scratch) = (index::Scratch::new(), Scratch::new());
        let overlaps = set.index.overlap(&hashes, &mut found);
        let seed = draws.get_seed();
        let admitted = set.selector.admit(&set.members, overlaps, &demand, &mut scratch, *now, draws);
        let number = decisions.len() as u64;
        decisions.push(Decision {
            number,
            request: format!("request-{number}"),
            at_ms: 1_790_000_000_000 + number,
            generation: *generation,
            config_generation: *generation / 7,
            rule: Arc::clone(&set.rule),
            question: Question::of(&demand),
            turn: scratch.turn(),
            now: *now,
            seed,
            rows: scratch.rows().iter().map(|row| kvroute::select::Row { cost: None, ..*row }).collect(),
            verdict: Verdict::of(admitted.as_ref().map(|(choice, _)| choice)),
        });
        if let Ok((choice, booking)) = admitted {
            outcomes.push((
                number,
                Outcome {
                    finish: Finish::Ok,
                    status: Some(200),
                    first_token: Some(Duration::from_micros(number * 7)),
                    lasted: Duration::from_micros(number * 9),
                    prompt_tokens: Some(demand.isl_tokens as u64),
                    cached_tokens: Some(choice.cached_tokens),
                },
            ));
            set.bookings.push(booking);
            if set.bookings.len() > 24 {
                set.bookings.remove(0);
            }
        }
    }
}

/// What a log holds that is whole: its decisions, and its outcomes by the decisions' numbers.
pub(crate) fn read(log: &[u8]) -> (Vec<Decision>, Vec<(u64, Outcome)>) {
    let mut reader = Reader::new(log).unwrap();
    let (mut decisions, mut outcomes) = (Vec::new(), Vec::new());
    for entry in reader.by_ref() {
        match entry.unwrap() {
            Entry::Decision(decision) => decisions.push(*decision),
            Entry::Outcome { number, outcome } => outcomes.push((number, outcome)),
        }
    }
    assert_eq!(reader.tail(), Tail::Whole);
    assert_eq!(reader.position(), log.len() as u64);
    (decisions, outcomes)
}
