//! Admission: what is booked where, and that all of it comes back.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use fastrand::Rng;
use kvroute::{
    device::{Condition, Weights},
    event::{EngineHash, Event, Stored, StoredBlock, Tier},
    hash::{BlockHash, BlockSize, SequenceHash, chain},
    index::{self, IndexWriter, Overlap, PrefixIndex},
    load::{Backlog, Booking, Claim, Loads, OutputGrowth, SlotLoad},
    select::{
        Choice, CostModel, Demand, Exclusion, Member, Mode, Overrides, Pin, PinField, Refusal, Row, Scratch,
        Selector, Tuning,
        cost::{Cost, blocks::BlockCost, time::TimeCost},
    },
    slot::{Rank, Slot, WorkerId},
};
use proptest::prelude::*;
use std::{collections::BTreeSet, num::NonZeroUsize, sync::Arc, thread, time::Duration};

const BLOCK: u32 = 4;

fn block_size() -> BlockSize {
    BlockSize::new(BLOCK).unwrap()
}

fn member(index: u32) -> Member {
    Member::new(Slot { index, generation: 0 }, WorkerId(u64::from(index) + 100), Rank(0))
}

/// A prompt of complete blocks, each named by a letter.
struct Prompt {
    hashes: Vec<BlockHash>,
    sequence: Vec<SequenceHash>,
}

impl Prompt {
    fn new(blocks: &str) -> Self {
        let hashes: Vec<_> = blocks.bytes().map(|letter| BlockHash(u64::from(letter))).collect();
        let mut sequence = Vec::new();
        chain(&hashes, &mut sequence);
        Self { hashes, sequence }
    }

    fn tokens(&self) -> u64 {
        (self.hashes.len() * BLOCK as usize) as u64
    }

    fn demand(&self) -> Demand<'_> {
        Demand::new(self.hashes.len() * BLOCK as usize, block_size(), &self.sequence)
    }
}

/// A selector with its members and an index.
struct Fleet {
    members: Vec<Member>,
    index: PrefixIndex,
    writer: IndexWriter,
    selector: Selector,
    scratch: Scratch,
    now: Duration,
    rng: Rng,
}

impl Fleet {
    fn new(mode: Mode, tuning: Tuning, members: u32) -> Self {
        let (index, writers) = PrefixIndex::new(NonZeroUsize::MIN);
        Self {
            members: (0..members).map(member).collect(),
            index,
            writer: writers.into_iter().next().unwrap(),
            selector: Selector::new(mode, tuning),
            scratch: Scratch::new(),
            now: Duration::ZERO,
            rng: Rng::with_seed(7),
        }
    }

    fn store(&mut self, slot: Slot, tier: Tier, prompt: &str) {
        let content = Prompt::new(prompt);
        let blocks = content.hashes.iter().zip(&content.sequence);
        let blocks = blocks
            .map(|(&content, engine)| StoredBlock { engine: EngineHash(engine.0), content: Some(content) });
        self.writer.apply(slot, &Event::Stored(Stored { tier, parent: None, blocks: blocks.collect() }));
    }

    fn admit(&mut self, prompt: &Prompt, demand: &Demand<'_>) -> Result<(Choice, Booking), Refusal> {
        let mut found = index::Scratch::new();
        let overlaps = self.index.overlap(&prompt.hashes, &mut found);
        self.selector.admit(&self.members, overlaps, demand, &mut self.scratch, self.now, &mut self.rng)
    }

    fn explain(&mut self, prompt: &Prompt, demand: &Demand<'_>) -> Result<Choice, Refusal> {
        let mut found = index::Scratch::new();
        let overlaps = self.index.overlap(&prompt.hashes, &mut found);
        self.selector.explain(&self.members, overlaps, demand, &mut self.scratch, self.now, &mut self.rng)
    }

    fn load(&self, index: usize) -> SlotLoad {
        self.selector.loads().get(self.members[index].slot)
    }
}

fn pin(index: u32) -> Option<Pin> {
    Some(Pin { worker: member(index).worker, rank: None, field: PinField::BackendInstanceId })
}

fn load(requests: u32, prefill_tokens: u64, decode_blocks: u64) -> SlotLoad {
    SlotLoad { requests, prefill_tokens, decode_blocks }
}

#[test]
fn bookings_can_go_anywhere() {
    fn goes_anywhere<T: Send + Sync + 'static>() {}
    goes_anywhere::<Booking>();
}

fn blocks_model() -> Tuning {
    Tuning { cost_model: CostModel::Blocks, ..Tuning::default() }
}

fn in_blocks(row: &Row) -> BlockCost {
    match row.cost {
        Some(Cost::Blocks(cost)) => cost,
        other => panic!("no cost in blocks: {other:?}"),
    }
}

fn in_seconds(row: &Row) -> TimeCost {
    match row.cost {
        Some(Cost::Time(cost)) => cost,
        other => panic!("no cost in seconds: {other:?}"),
    }
}

#[test]
fn kv_books_what_is_not_cached_where_the_prefix_is() {
    let mut fleet = Fleet::new(Mode::Kv, blocks_model(), 3);
    fleet.store(member(1).slot, Tier::Gpu, "abc");
    fleet.store(member(1).slot, Tier::Host, "abcd");
    let prompt = Prompt::new("abcde");
    let (choice, booking) = fleet.admit(&prompt, &prompt.demand()).unwrap();
    assert_eq!((choice.slot, choice.worker, choice.rank), (member(1).slot, WorkerId(101), Rank(0)));
    assert_eq!(choice.overlap, Overlap { gpu: 3, host: 1, ..Overlap::default() });
    // 3 blocks and three quarters of one, of 4 tokens each.
    assert_eq!((choice.cached_tokens, choice.prefill_tokens), (15, 5));
    assert_eq!((choice.candidates, choice.excluded), (3, 0));
    assert_eq!(choice.cost.map(|cost| cost.total()), Some(5.0 - 3.75 + 5.0));
    let rows = fleet.scratch.rows();
    assert_eq!(rows[choice.row].cost, choice.cost);
    assert_eq!(in_blocks(&rows[0]).total, 10.0);
    assert_eq!(fleet.load(1), load(1, 5, 5));
    drop(booking);
    assert_eq!(fleet.selector.loads().total(), SlotLoad::default());
}

#[test]
fn shared_blocks_of_a_slot_count_once() {
    let mut fleet = Fleet::new(Mode::Kv, blocks_model(), 2);
    let (first, second) = (Prompt::new("abcd"), Prompt::new("abxyz"));
    let demand = Demand { pin: pin(0), ..first.demand() };
    let (_, one) = fleet.admit(&first, &demand).unwrap();
    let choice = fleet.explain(&second, &second.demand()).unwrap();
    let rows = fleet.scratch.rows();
    assert_eq!((rows[0].new_blocks, rows[1].new_blocks), (3, 5));
    assert_eq!(in_blocks(&rows[0]).decode, 4.0 + 3.0);
    assert_eq!(choice.slot, member(1).slot);
    let demand = Demand { pin: pin(0), ..second.demand() };
    let (_, two) = fleet.admit(&second, &demand).unwrap();
    assert_eq!(fleet.load(0), load(2, 16 + 20, 7));
    drop(one);
    assert_eq!(fleet.load(0), load(1, 20, 5), "the blocks of the one that is left");
    drop(two);
    assert_eq!(fleet.load(0), SlotLoad::default());
}

#[test]
fn an_unproven_overlap_is_shown_and_not_credited() {
    let mut fleet = Fleet::new(Mode::Kv, blocks_model(), 1);
    fleet.store(member(0).slot, Tier::Gpu, "ab");
    fleet.members[0].credits_overlap = false;
    let prompt = Prompt::new("abc");
    let (choice, _booking) = fleet.admit(&prompt, &prompt.demand()).unwrap();
    assert_eq!((choice.overlap, choice.cached_tokens), (Overlap::default(), 0));
    assert_eq!(choice.prefill_tokens, prompt.tokens());
    let row = fleet.scratch.rows()[choice.row];
    assert_eq!(row.withheld, Some(Overlap { gpu: 2, ..Overlap::default() }));
    assert_eq!(in_blocks(&row).credit, 0.0);
}

#[test]
fn a_successor_is_not_credited_with_what_another_generation_holds() {
    let mut fleet = Fleet::new(Mode::Kv, Tuning::default(), 1);
    fleet.store(member(0).slot, Tier::Gpu, "ab");
    fleet.members[0].slot.generation = 1;
    let prompt = Prompt::new("ab");
    let choice = fleet.explain(&prompt, &prompt.demand()).unwrap();
    assert_eq!(choice.overlap, Overlap::default());
}

#[test]
fn explaining_changes_nothing() {
    let mut fleet = Fleet::new(Mode::RoundRobin, Tuning::default(), 3);
    let prompt = Prompt::new("ab");
    let (_, _one) = fleet.admit(&prompt, &prompt.demand()).unwrap();
    let before = fleet.selector.loads().total();
    for _ in 0..3 {
        assert_eq!(fleet.explain(&prompt, &prompt.demand()).unwrap().slot, member(1).slot);
    }
    assert_eq!(fleet.selector.loads().total(), before);
    let (choice, _two) = fleet.admit(&prompt, &prompt.demand()).unwrap();
    assert_eq!(choice.slot, member(1).slot, "the explanation took no turn");
    assert_eq!(choice.cost, None);
}

#[test]
fn a_pinned_request_is_booked_and_takes_no_turn() {
    let mut fleet = Fleet::new(Mode::RoundRobin, Tuning::default(), 2);
    let prompt = Prompt::new("ab");
    let pinned = Demand { pin: pin(1), ..prompt.demand() };
    let (choice, _booking) = fleet.admit(&prompt, &pinned).unwrap();
    assert_eq!((choice.slot, choice.candidates, choice.excluded), (member(1).slot, 1, 1));
    assert_eq!(fleet.scratch.rows()[0].exclusion, Some(Exclusion::NotPinned));
    assert_eq!(fleet.load(1).requests, 1);
    let (choice, _next) = fleet.admit(&prompt, &prompt.demand()).unwrap();
    assert_eq!(choice.slot, member(0).slot);
}

#[test]
fn a_refused_request_is_not_booked() {
    for mode in Mode::ALL {
        let mut fleet = Fleet::new(mode, Tuning::default(), 2);
        for member in &mut fleet.members {
            member.exclusion = Some(Exclusion::Overloaded);
        }
        let prompt = Prompt::new("ab");
        assert!(fleet.admit(&prompt, &prompt.demand()).is_err(), "{mode}");
        assert_eq!(fleet.selector.loads().total(), SlotLoad::default());
    }
}

#[test]
fn a_worker_that_failed_is_not_tried_again() {
    let mut fleet = Fleet::new(Mode::LeastLoaded, Tuning::default(), 3);
    let prompt = Prompt::new("ab");
    let tried = [member(0).worker, member(2).worker];
    let demand = Demand { avoid: &tried, ..prompt.demand() };
    let (choice, _booking) = fleet.admit(&prompt, &demand).unwrap();
    assert_eq!(choice.slot, member(1).slot);
    let tried = [0, 1, 2].map(|index| member(index).worker);
    let demand = Demand { avoid: &tried, ..prompt.demand() };
    let refusal = fleet.admit(&prompt, &demand).unwrap_err();
    assert_eq!(refusal.to_string(), "no workers available: 3 already tried");
}

#[test]
fn a_member_that_retired_meanwhile_is_not_chosen() {
    let mut fleet = Fleet::new(Mode::LeastLoaded, Tuning::default(), 2);
    fleet.selector.loads().forget(member(0).slot);
    let prompt = Prompt::new("ab");
    let (choice, _booking) = fleet.admit(&prompt, &prompt.demand()).unwrap();
    assert_eq!(choice.slot, member(1).slot);
    assert_eq!(fleet.scratch.rows()[0].exclusion, Some(Exclusion::Retired));
    fleet.members[0].slot.generation = 1;
    let (choice, _next) = fleet.admit(&prompt, &prompt.demand()).unwrap();
    assert_eq!(choice.slot, fleet.members[0].slot, "its successor is idle");
}

#[test]
fn two_admissions_do_not_both_see_an_idle_slot() {
    let mut fleet = Fleet::new(Mode::LeastLoaded, Tuning::default(), 8);
    let prompt = Prompt::new("ab");
    let bookings: Vec<_> = (0..24).map(|_| fleet.admit(&prompt, &prompt.demand()).unwrap().1).collect();
    assert!((0..8).all(|index| fleet.load(index).requests == 3));
    drop(bookings);
}

#[test]
fn what_is_not_tracked_is_not_booked() {
    let prompt = Prompt::new("abc");
    let booked = |tuning: Tuning, overrides: Overrides| {
        let mut fleet = Fleet::new(Mode::Kv, tuning, 1);
        let demand = Demand { overrides, ..prompt.demand() };
        let bookings = [fleet.admit(&prompt, &demand).unwrap().1, fleet.admit(&prompt, &demand).unwrap().1];
        bookings[0].output(1);
        let booked = fleet.load(0);
        drop(bookings);
        assert_eq!(fleet.load(0), SlotLoad::default());
        booked
    };
    let (tuning, none) = (Tuning::default(), Overrides::default());
    assert_eq!(booked(tuning, none), load(2, 24, 3));
    assert_eq!(booked(Tuning { router_track_prefill_tokens: false, ..tuning }, none), load(2, 0, 3));
    assert_eq!(booked(Tuning { router_track_active_blocks: false, ..tuning }, none), load(2, 24, 0));
    assert_eq!(booked(Tuning { router_assume_kv_reuse: false, ..tuning }, none), load(2, 24, 6));
    assert_eq!(booked(Tuning { router_track_output_blocks: true, ..tuning }, none), load(2, 24, 4));
    let overrides = Overrides { assume_kv_reuse: Some(false), track_prefill_tokens: Some(false), ..none };
    assert_eq!(booked(tuning, overrides), load(2, 0, 6));
}

#[test]
fn a_prompt_that_was_not_hashed_counts_its_complete_blocks() {
    let mut fleet = Fleet::new(Mode::RoundRobin, Tuning::default(), 1);
    let prompt = Prompt::new("");
    let demand = Demand::new(11, block_size(), &[]);
    let (_, _booking) = fleet.admit(&prompt, &demand).unwrap();
    assert_eq!(fleet.load(0), load(1, 11, 2));
}

#[test]
fn prefill_goes_once_and_output_fills_blocks() {
    let tuning = Tuning { router_track_output_blocks: true, ..Tuning::default() };
    let mut fleet = Fleet::new(Mode::Kv, tuning, 1);
    let prompt = Prompt::new("ab");
    let demand = Demand { isl_tokens: 10, ..prompt.demand() };
    let (_, booking) = fleet.admit(&prompt, &demand).unwrap();
    assert_eq!(fleet.load(0), load(1, 10, 2));
    booking.prefill_done();
    booking.prefill_done();
    assert_eq!(fleet.load(0), load(1, 0, 2));
    let blocks: Vec<_> = [0, 1, 1, 1, 4, 100]
        .map(|tokens| {
            booking.output(tokens);
            fleet.load(0).decode_blocks
        })
        .to_vec();
    // 10, 11, 12, 13, 17 and 117 tokens in blocks of 4.
    assert_eq!(blocks, [2, 3, 3, 4, 5, 30]);
    drop(booking);
    assert_eq!(fleet.load(0), SlotLoad::default());
}

#[test]
fn rebinding_moves_everything() {
    let mut fleet = Fleet::new(Mode::Kv, Tuning::default(), 2);
    let (first, second) = (Prompt::new("abc"), Prompt::new("abd"));
    let on = |index| Demand { pin: pin(index), ..first.demand() };
    let (_, mut moving) = fleet.admit(&first, &on(0)).unwrap();
    let (_, staying) = fleet.admit(&second, &Demand { sequence: &second.sequence, ..on(1) }).unwrap();
    moving.rebind(member(1).slot, Duration::ZERO);
    assert_eq!(moving.slot(), member(1).slot);
    assert_eq!(fleet.load(0), SlotLoad::default());
    assert_eq!(fleet.load(1), load(2, 24, 4), "shared with what is there");
    drop(staying);
    assert_eq!(fleet.load(1), load(1, 12, 3));
    drop(moving);
    assert_eq!(fleet.load(1), SlotLoad::default());
}

#[test]
fn a_booking_of_a_forgotten_slot_returns_nothing_and_can_move_on() {
    let loads = Loads::new();
    let prompt = Prompt::new("abc");
    let claim = Claim { prefill_tokens: 12, sequence: &prompt.sequence, ..Claim::default() };
    let old = member(0).slot;
    let new = Slot { generation: 1, ..old };
    let (gone, mut moving) =
        (loads.book(old, &claim, Duration::ZERO), loads.book(old, &claim, Duration::ZERO));
    loads.forget(old);
    let successor = loads.book(new, &claim, Duration::ZERO);
    gone.prefill_done();
    drop(gone);
    assert_eq!((loads.get(old), loads.get(new)), (SlotLoad::default(), load(1, 12, 3)));
    moving.rebind(new, Duration::ZERO);
    assert_eq!(loads.get(new), load(2, 24, 6), "the names of its blocks are gone: it shares none");
    drop(moving);
    drop(successor);
    assert_eq!(loads.get(new), SlotLoad::default());
}

#[derive(Clone, Debug)]
enum Step {
    Book { slot: u32, prompt: usize, private: u64, uncounted: bool },
    Prefilled(usize),
    Output(usize, u64),
    Rebind(usize, u32),
    Drop(usize),
    Forget(u32),
}

const PROMPTS: [&str; 7] = ["", "a", "ab", "abc", "abd", "xyz", "xyzabc"];
const SLOTS: u32 = 3;

fn any_step() -> impl Strategy<Value = Step> {
    let any = 0_usize..64;
    prop_oneof![
        4 => (0..SLOTS, 0..PROMPTS.len(), 0_u64..3, prop::bool::ANY)
            .prop_map(|(slot, prompt, private, uncounted)| Step::Book { slot, prompt, private, uncounted }),
        2 => any.clone().prop_map(Step::Prefilled),
        2 => (any.clone(), 0_u64..12).prop_map(|(at, tokens)| Step::Output(at, tokens)),
        1 => (any.clone(), 0..SLOTS).prop_map(|(at, slot)| Step::Rebind(at, slot)),
        3 => any.prop_map(Step::Drop),
        1 => (0..SLOTS).prop_map(Step::Forget),
    ]
}

/// What a booking should hold, in the plainest terms.
struct Expected {
    slot: Slot,
    prefill: u64,
    work: u64,
    blocks: Vec<SequenceHash>,
    private: u64,
    growth: OutputGrowth,
    output: u64,
}

impl Expected {
    fn output_blocks(&self) -> u64 {
        if self.output == 0 {
            return 0;
        }
        (self.growth.prompt_tokens + self.output).div_ceil(u64::from(BLOCK)) - self.growth.prompt_blocks
    }
}

fn expected_load(slot: Slot, bookings: &[(Booking, Expected)]) -> SlotLoad {
    let of_slot = || bookings.iter().map(|(_, expected)| expected).filter(|expected| expected.slot == slot);
    let union: BTreeSet<_> = of_slot().flat_map(|expected| &expected.blocks).collect();
    SlotLoad {
        requests: u32::try_from(of_slot().count()).unwrap(),
        prefill_tokens: of_slot().map(|expected| expected.prefill).sum(),
        decode_blocks: union.len() as u64
            + of_slot().map(|expected| expected.private + expected.output_blocks()).sum::<u64>(),
    }
}

fn expected_work(slot: Slot, bookings: &[(Booking, Expected)]) -> u64 {
    let of_slot = bookings.iter().map(|(_, expected)| expected).filter(|expected| expected.slot == slot);
    of_slot.map(|expected| expected.work).sum()
}

proptest! {
    #[test]
    fn counters_follow_the_bookings_and_end_at_zero(steps in prop::collection::vec(any_step(), 0..80)) {
        let loads = Loads::new();
        let mut generations = [0; SLOTS as usize];
        let mut bookings: Vec<(Booking, Expected)> = Vec::new();
        for (now, step) in (0..).map(Duration::from_millis).zip(steps) {
            let current = |index: u32, generations: &[u32]| Slot { index, generation: generations[index as usize] };
            let at = |at: usize, bookings: &[_]| if bookings.is_empty() { None } else { Some(at % bookings.len()) };
            match step {
                Step::Book { slot, prompt, private, uncounted } => {
                    let slot = current(slot, &generations);
                    let prompt = Prompt::new(PROMPTS[prompt]);
                    let growth = OutputGrowth {
                        prompt_tokens: prompt.tokens() + 1,
                        prompt_blocks: prompt.hashes.len() as u64,
                        block_size: block_size(),
                    };
                    let claim = Claim {
                        prefill_tokens: prompt.tokens(),
                        prefill_work: prompt.tokens() + 1,
                        first_token_seen: prompt.tokens().is_multiple_of(8),
                        sequence_uncounted: uncounted,
                        sequence: &prompt.sequence,
                        private_blocks: private,
                        output: Some(growth),
                    };
                    let booking = loads.book(slot, &claim, now);
                    let prefill = prompt.tokens();
                    let blocks = if uncounted { Vec::new() } else { prompt.sequence };
                    bookings.push((booking, Expected { slot, prefill, work: prefill + 1, blocks, private, growth, output: 0 }));
                }
                Step::Prefilled(i) => if let Some(i) = at(i, &bookings) {
                    if i % 2 == 0 {
                        bookings[i].0.prefill_done();
                    } else {
                        bookings[i].0.first_token(now);
                    }
                    (bookings[i].1.prefill, bookings[i].1.work) = (0, 0);
                },
                Step::Output(i, tokens) => if let Some(i) = at(i, &bookings) {
                    bookings[i].0.output(tokens);
                    bookings[i].1.output += tokens;
                },
                Step::Rebind(i, slot) => if let Some(i) = at(i, &bookings) {
                    let (booking, expected) = &mut bookings[i];
                    if expected.slot != current(expected.slot.index, &generations) {
                        expected.private += expected.blocks.len() as u64;
                        expected.blocks.clear();
                    }
                    expected.slot = current(slot, &generations);
                    booking.rebind(expected.slot, now);
                },
                Step::Drop(i) => if let Some(i) = at(i, &bookings) {
                    bookings.swap_remove(i);
                },
                Step::Forget(slot) => {
                    loads.forget(current(slot, &generations));
                    generations[slot as usize] += 1;
                }
            }
            for index in 0..SLOTS {
                let slot = current(index, &generations);
                prop_assert_eq!(loads.get(slot), expected_load(slot, &bookings));
                prop_assert_eq!(loads.backlog(slot).work, expected_work(slot, &bookings));
            }
        }
        drop(bookings);
        prop_assert_eq!(loads.total(), SlotLoad::default());
        for index in 0..SLOTS {
            let slot = Slot { index, generation: generations[index as usize] };
            prop_assert_eq!(loads.backlog(slot), Backlog::default());
        }
    }
}

#[test]
fn counters_return_to_zero_whatever_threads_do() {
    const THREADS: u64 = 4;
    let tuning = Tuning { router_track_output_blocks: true, ..Tuning::default() };
    let selector = Arc::new(Selector::new(Mode::Kv, tuning));
    let (index, _writers) = PrefixIndex::new(NonZeroUsize::MIN);
    let forgotten = Slot { index: 3, generation: 0 };
    let work = |seed: u64| {
        let (selector, index) = (Arc::clone(&selector), index.clone());
        move || {
            let mut rng = Rng::with_seed(seed);
            let mut members: Vec<_> = (0..4).map(member).collect();
            let (mut scratch, mut found) = (Scratch::new(), index::Scratch::new());
            let mut bookings = Vec::new();
            for round in 0..1500 {
                if round == 700 {
                    selector.loads().forget(forgotten);
                    members[3].slot.generation = 1;
                }
                let prompt = Prompt::new(PROMPTS[rng.usize(..PROMPTS.len())]);
                let overlaps = index.overlap(&prompt.hashes, &mut found);
                let now = Duration::from_millis(round);
                let demand = prompt.demand();
                let (_, mut booking) =
                    selector.admit(&members, overlaps, &demand, &mut scratch, now, &mut rng).unwrap();
                booking.output(rng.u64(..20));
                match rng.u8(..4) {
                    0 => booking.first_token(now),
                    1 => booking.rebind(members[rng.usize(..4)].slot, now),
                    2 => drop(booking),
                    _ => bookings.push(booking),
                }
                if bookings.len() > 16 {
                    bookings.swap_remove(rng.usize(..bookings.len()));
                }
            }
        }
    };
    let threads: Vec<_> = (0..THREADS).map(|seed| thread::spawn(work(seed))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(selector.loads().total(), SlotLoad::default());
    // Nothing is left among the active blocks either: every block is new again.
    let (mut scratch, mut found) = (Scratch::new(), index::Scratch::new());
    let prompt = Prompt::new("xyzabc");
    let overlaps = index.overlap(&prompt.hashes, &mut found);
    let members: Vec<_> = (0..3).map(member).collect();
    let (now, mut rng) = (Duration::from_secs(9), Rng::with_seed(0));
    selector.explain(&members, overlaps, &prompt.demand(), &mut scratch, now, &mut rng).unwrap();
    assert!(scratch.rows().iter().all(|row| row.new_blocks == 6 && row.backlog == Backlog::default()));
}

/// A fleet under the time model, whose slots take a ten-thousandth of a second a token until they show otherwise.
fn timed(members: u32) -> Fleet {
    Fleet::new(Mode::Kv, Tuning::default(), members)
}

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A prompt of so many tokens that shares nothing with any other.
fn alone(tokens: usize) -> Demand<'static> {
    Demand::new(tokens, block_size(), &[])
}

impl Fleet {
    /// What the time model says of every member for `demand`, at `now`.
    fn seconds(&mut self, demand: &Demand<'_>, now: Duration) -> Vec<TimeCost> {
        self.now = now;
        self.explain(&Prompt::new(""), demand).unwrap();
        self.scratch.rows().iter().map(in_seconds).collect()
    }

    fn on(&mut self, index: u32, demand: &Demand<'_>, now: Duration) -> Booking {
        self.now = now;
        self.admit(&Prompt::new(""), &Demand { pin: pin(index), ..*demand }).unwrap().1
    }
}

#[test]
fn the_queue_is_what_was_booked_and_runs_down_with_time() {
    let mut fleet = timed(1);
    let first = fleet.on(0, &alone(4_744), at(0));
    let second = fleet.on(0, &alone(1_744), at(100));
    let queue = |fleet: &mut Fleet, ms| fleet.seconds(&alone(100), at(ms))[0].queue;
    let near =
        |seconds: f64, expected: f64| assert!((seconds - expected).abs() < 1e-9, "{seconds} {expected}");
    near(queue(&mut fleet, 100), 0.5 - 0.1 + 0.2);
    near(queue(&mut fleet, 400), 0.5 - 0.4 + 0.2);
    near(queue(&mut fleet, 900), 0.2);
    first.first_token(at(500));
    near(queue(&mut fleet, 600), 0.2 - 0.1);
    drop(second);
    near(queue(&mut fleet, 600), 0.0);
}

#[test]
fn a_prefix_in_flight_counts_as_cached_and_joins_cost_less() {
    let mut fleet = timed(3);
    let sequence: Vec<_> = (0..500).map(SequenceHash).collect();
    let demand = Demand::new(2_003, block_size(), &sequence);
    let (first, _one) = fleet.admit(&Prompt::new(""), &demand).unwrap();
    let (second, _two) = fleet.admit(&Prompt::new(""), &demand).unwrap();
    assert_eq!(second.slot, first.slot);
    assert_eq!((second.overlap, second.prefill_tokens), (Overlap::default(), 2_003), "no event has come yet");
    let row = fleet.scratch.rows()[second.row];
    assert_eq!((row.carried, row.carriers, row.predicted.gpu, row.prefill_work), (500, 1, 500, 3 + 256));
    let short = Demand::new(103, block_size(), &sequence[..25]);
    let elsewhere = fleet.admit(&Prompt::new(""), &short).unwrap().0;
    assert_ne!(elsewhere.slot, first.slot, "a short prefix is not worth the wait");
}

#[test]
fn a_burst_of_one_long_prompt_spreads_over_the_fleet() {
    let mut fleet = timed(4);
    let sequence: Vec<_> = (0..4_000).map(SequenceHash).collect();
    let demand = Demand::new(16_000, block_size(), &sequence);
    let bookings: Vec<_> = (0..60).map(|_| fleet.admit(&Prompt::new(""), &demand).unwrap()).collect();
    assert!(bookings[..3].iter().all(|(choice, _)| choice.slot == bookings[0].0.slot), "the first few join");
    assert!((0..4).all(|index| fleet.load(index).requests > 0), "many are worth a copy");
}

#[test]
fn what_a_slot_shows_of_its_speed_moves_the_choice() {
    let mut fleet = timed(2);
    for round in 0..50 {
        let now = at(10_000 * round);
        let (slow, fast) = (fleet.on(0, &alone(7_744), now), fleet.on(1, &alone(7_744), now));
        slow.first_token(now + at(1_600));
        fast.first_token(now + at(400));
    }
    let costs = fleet.seconds(&alone(4_000), at(600_000));
    let [slow, fast] = [0, 1].map(|index: usize| costs[index].seconds_per_token);
    assert!((slow / 2e-4 - 1.0).abs() < 0.1 && (fast / 5e-5 - 1.0).abs() < 0.1, "{slow} {fast}");
    assert_eq!(fleet.selector.loads().seconds_per_token(member(0).slot), slow);
    assert!(costs[0].total > costs[1].total);
    assert!((costs[0].first_token.unwrap() / costs[1].first_token.unwrap() - slow / fast).abs() < 0.1);
    // Half way between, by their ratio: sqrt(4) = 2.
    assert!((costs[0].own_prefill / costs[1].own_prefill - (slow / fast).sqrt()).abs() < 1e-9);
}

#[test]
fn an_answer_in_one_piece_leaves_the_queue_when_its_time_is_over_and_teaches_nothing() {
    let mut fleet = timed(1);
    let unseen = Demand { first_token_seen: false, ..alone(4_744) };
    let whole = fleet.on(0, &unseen, at(0));
    assert_eq!(fleet.seconds(&alone(1), at(0))[0].harm, 0.0);
    assert_eq!(fleet.seconds(&alone(1), at(499))[0].harm, 0.0);
    let after = fleet.seconds(&alone(1), at(501))[0];
    assert!(after.queue == 0.0 && after.harm > 0.0, "it is held to decode: {after:?}");
    assert_eq!(fleet.load(0).prefill_tokens, 4_744, "the count says what was told");
    whole.prefill_done();
    assert_eq!(fleet.load(0).prefill_tokens, 0);
    assert_eq!(fleet.selector.loads().seconds_per_token(member(0).slot), 1e-4);
}

#[test]
fn a_successor_starts_with_no_speed_and_no_queue() {
    let mut fleet = timed(1);
    let slow = fleet.on(0, &alone(7_744), at(0));
    slow.first_token(at(9_000));
    let late = fleet.on(0, &alone(7_744), at(9_000));
    fleet.selector.loads().forget(member(0).slot);
    fleet.members[0].slot.generation = 1;
    late.first_token(at(99_000));
    let successor = fleet.seconds(&alone(100), at(99_000))[0];
    assert_eq!((successor.queue, successor.seconds_per_token), (0.0, 1e-4));
}

#[test]
fn one_switch_takes_devices_out_of_the_decision() {
    let prompt = Prompt::new("abcd");
    for enabled in [true, false] {
        let device_weights = Weights { enabled, ..Weights::default() };
        let mut fleet = Fleet::new(Mode::Kv, Tuning { device_weights, ..Tuning::default() }, 2);
        fleet.members[0].device = Some(Condition { capability: 0.5, external_load: 0.0, age_ms: 0 });
        let choice = fleet.explain(&prompt, &prompt.demand()).unwrap();
        let rows = fleet.scratch.rows();
        let cost = |row: usize| rows[row].cost.unwrap().total();
        assert_eq!(rows[0].device.map(|terms| terms.weight), enabled.then_some(0.5));
        assert_eq!(cost(0), cost(1) * if enabled { 2.0 } else { 1.0 });
        assert!(!enabled || choice.row == 1);
    }
}

#[test]
fn blocks_on_their_way_are_known_where_blocks_are_no_load() {
    let tuning = Tuning { router_track_active_blocks: false, ..Tuning::default() };
    let mut fleet = Fleet::new(Mode::Kv, tuning, 3);
    let sequence: Vec<_> = (0..500).map(SequenceHash).collect();
    let demand = Demand::new(2_003, block_size(), &sequence);
    let (first, one) = fleet.admit(&Prompt::new(""), &demand).unwrap();
    let (second, mut two) = fleet.admit(&Prompt::new(""), &demand).unwrap();
    assert_eq!(second.slot, first.slot);
    let row = fleet.scratch.rows()[second.row];
    assert_eq!((row.carried, row.new_blocks, in_seconds(&row).context), (500, 0, 0.0));
    let total = |fleet: &Fleet| fleet.selector.loads().total().decode_blocks;
    assert_eq!(total(&fleet), 0);
    let elsewhere = fleet.members.iter().map(|member| member.slot).find(|slot| *slot != first.slot).unwrap();
    two.rebind(elsewhere, at(1));
    fleet.explain(&Prompt::new(""), &demand).unwrap();
    assert_eq!(fleet.scratch.rows().iter().filter(|row| row.carried == 500).count(), 2, "it moves along");
    fleet.selector.loads().forget(elsewhere);
    two.rebind(first.slot, at(2));
    drop((one, two));
    assert_eq!(fleet.selector.loads().total(), SlotLoad::default());
    fleet.explain(&Prompt::new(""), &demand).unwrap();
    assert!(fleet.scratch.rows().iter().all(|row| row.carried == 0));
}
