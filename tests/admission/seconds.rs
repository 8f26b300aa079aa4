//! The time model: queues, prefixes in flight, and speeds.

use super::*;

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
