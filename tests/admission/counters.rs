//! All that is booked comes back, whatever happens in between.

use super::*;
use crate::cases::cases;

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
    #![proptest_config(cases(256))]

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
