//! The stream's state machine in a random world, compared with a literal model: batches and connections are lost,
//! engines die and return, rings are short, replays fail, and every promise has to hold after every step.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]
#![cfg(feature = "server")]

use std::{collections::VecDeque, time::Duration};

use kvroute::{
    fleet::StreamState,
    ingest::{Output, StreamMachine, StreamSettings},
};

/// A batch as the world knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Said {
    engine: u32,
    sequence: u64,
    empties: bool,
}

impl Said {
    fn payload(self) -> Vec<u8> {
        format!("{} {} {}", self.engine, self.sequence, self.empties).into_bytes()
    }

    fn read(payload: &[u8]) -> Self {
        let text = std::str::from_utf8(payload).unwrap();
        let mut parts = text.split(' ');
        let mut part = || parts.next().unwrap();
        let (engine, sequence) = (part().parse().unwrap(), part().parse().unwrap());
        Self { engine, sequence, empties: part() == "true" }
    }
}

/// What travels on the live connection, in order.
#[derive(Clone, Copy, Debug)]
enum Travelling {
    Connected(u32),
    Batch(Said),
    Disconnected,
}

/// An engine, the network and the driver, and next to them what the index would hold.
struct World {
    rng: fastrand::Rng,
    machine: StreamMachine<Vec<u8>>,
    now: Duration,
    /// Whether every request is answered. Where not, nothing but numbers tells engines apart, so there the world
    /// spares a new engine's first batch.
    answers: bool,
    loss: f64,
    ring_size: usize,

    engine: u32,
    up: bool,
    next: u64,
    ring: VecDeque<Said>,
    linked: bool,
    live: VecDeque<Travelling>,

    /// A request the machine has made: from where, and the answer once the engine has given it.
    request: Option<(u64, Option<VecDeque<Option<Said>>>)>,

    /// The engine behind the connection that the machine was told of last. A replay may reach the next one already.
    told: Option<u32>,
    /// Applied and not cleared since, oldest first.
    held: Vec<Said>,
    /// The highest number applied in what the machine takes for one incarnation.
    highest: Option<u64>,
    state: StreamState,
    /// Whether the index takes no live batches now.
    full: bool,
    log: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let can_replay = rng.u8(..4) > 0;
        let settings = StreamSettings {
            held_batches: rng.usize(1..20),
            idle_check: rng.bool().then_some(Duration::from_secs(30)),
            ..StreamSettings::default()
        };
        Self {
            machine: StreamMachine::new(settings, can_replay),
            now: Duration::ZERO,
            answers: can_replay && rng.bool(),
            loss: [0.0, 0.1, 0.5][rng.usize(..3)],
            ring_size: [3, 10, 10_000][rng.usize(..3)],
            rng,
            engine: 0,
            up: true,
            next: 0,
            ring: VecDeque::new(),
            linked: false,
            live: VecDeque::new(),
            request: None,
            told: None,
            held: Vec::new(),
            highest: None,
            state: StreamState::Unproven,
            full: false,
            log: Vec::new(),
        }
    }

    fn step(&mut self) {
        match self.rng.u8(..100) {
            0..=39 => self.publish(),
            40..=69 => self.deliver(),
            70..=84 => self.serve(),
            // An answer in time is what `answers` means.
            85..=89 if !(self.answers && self.request.is_some()) => {
                let time = self.rng.u64(..6_000);
                self.pass(Duration::from_millis(time));
            }
            90..=93 if self.linked => self.cut(),
            94..=95 if self.up => self.kill(),
            96 => self.full = !self.full && self.rng.bool(),
            97 if self.rng.u8(..4) == 0 => self.rebuild(),
            _ if !self.up => self.start(),
            _ if !self.linked => self.link(),
            _ => {}
        }
    }

    fn publish(&mut self) {
        // With nothing but numbers to go by, an engine that spoke before it was heard could not be told apart.
        if !self.up || (!self.answers && !self.linked && self.next == 0) {
            return;
        }
        let said = Said { engine: self.engine, sequence: self.next, empties: self.rng.u8(..30) == 0 };
        self.next += 1;
        self.ring.push_back(said);
        if self.ring.len() > self.ring_size {
            self.ring.pop_front();
        }
        let spared = !self.answers && said.sequence == 0;
        if self.linked && (spared || self.rng.f64() >= self.loss) {
            self.live.push_back(Travelling::Batch(said));
        }
    }

    fn link(&mut self) {
        self.linked = true;
        self.live.push_back(Travelling::Connected(self.engine));
    }

    /// The connection breaks. Some of what travelled arrives nevertheless, a little of it late.
    fn cut(&mut self) {
        self.linked = false;
        let spare = usize::from(!self.answers);
        let keep = self.live.len().min(spare + self.rng.usize(..=self.live.len()));
        let kept_connects = |travelling: &Travelling| !matches!(travelling, Travelling::Batch(_));
        let tail = self.live.split_off(keep);
        self.live.extend(tail.into_iter().filter(|travelling| kept_connects(travelling) || spare == 1));
        let late = match self.live.back() {
            Some(&Travelling::Batch(said)) if (self.answers || said.sequence > 0) && self.rng.bool() => {
                self.live.pop_back()
            }
            _ => None,
        };
        self.live.push_back(Travelling::Disconnected);
        self.live.extend(late);
    }

    fn kill(&mut self) {
        if self.linked {
            self.cut();
        }
        self.up = false;
        if let Some((_, Some(answer))) = &mut self.request {
            answer.clear();
        }
    }

    fn start(&mut self) {
        self.up = true;
        self.engine += 1;
        self.next = 0;
        self.ring.clear();
    }

    fn deliver(&mut self) {
        let Some(travelling) = self.live.pop_front() else { return };
        self.log.push(format!("{travelling:?}"));
        match travelling {
            Travelling::Connected(engine) => {
                self.told = Some(engine);
                if self.held.is_empty() {
                    // Nothing is known of anybody: whoever it is begins anew.
                    self.highest = None;
                }
                self.machine.connected(self.now);
            }
            Travelling::Disconnected => {
                self.told = None;
                self.machine.disconnected();
            }
            Travelling::Batch(said) => self.machine.live(self.now, said.sequence, said.payload()),
        }
        self.check();
    }

    /// The engine answers a request, or the next piece of an answer arrives.
    fn serve(&mut self) {
        let Some((from, answer)) = &mut self.request else { return };
        if let Some(answer) = answer {
            let Some(piece) = answer.pop_front() else { return };
            self.log.push(format!("replay: {piece:?}"));
            match piece {
                Some(said) => self.machine.replayed(self.now, said.sequence, said.payload()),
                None => self.machine.replay_ended(self.now),
            }
            self.check();
        } else if self.up && (self.answers || self.rng.u8(..4) == 0) {
            // A request may reach the next engine before the last one's end shows on the live connection. With a
            // batch to compare and a ring that holds it, that must come out.
            let known = !self.held.is_empty() && self.ring_size > 1_000;
            if self.told.is_some_and(|told| told != self.engine) && !known {
                return;
            }
            let ring = self.ring.iter().filter(|said| said.sequence >= *from).copied().map(Some);
            *answer = Some(ring.chain([None]).collect());
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.log.push(format!("{:?}", self.now));
        self.machine.poll(self.now);
        self.check();
        if self.machine.wants_room(self.now) && !self.full {
            self.log.push("room".into());
            self.machine.room(self.now);
            self.check();
        }
    }

    /// The index shall be built anew.
    fn rebuild(&mut self) {
        self.log.push("rebuild".into());
        self.highest = None;
        self.machine.rebuild(self.now);
        self.check();
        assert!(self.held.is_empty());
    }

    /// Does what the machine asks for, and holds it to its promises.
    fn check(&mut self) {
        while let Some(output) = self.machine.next_output() {
            self.log.push(format!("    {output:?}"));
            match output {
                Output::Apply { sequence, payload } => {
                    let said = Said::read(&payload);
                    assert_eq!(said.sequence, sequence);
                    if self.full && !self.machine.awaits_replay() {
                        self.log.push("refused".into());
                        self.machine.refused(self.now, sequence);
                        if self.held.is_empty() {
                            // Nothing is kept of this engine: what it still has is taken from its start.
                            self.highest = None;
                        }
                        assert!(
                            !self.machine.state().credits_overlap()
                                || self.machine.state() == StreamState::Incomplete
                        );
                        continue;
                    }
                    if let Some(last) = self.held.last() {
                        assert_eq!(sequence, last.sequence + 1, "a gap was stepped over without a clear");
                    }
                    assert!(
                        self.highest.is_none_or(|highest| highest < sequence),
                        "{sequence} is older than what went before"
                    );
                    self.highest = Some(sequence);
                    self.held.push(said);
                    if said.empties {
                        self.machine.emptied(sequence);
                    }
                }
                Output::Clear => {
                    self.held.clear();
                    self.state = StreamState::Unproven;
                }
                Output::AskReplay { from, .. } => self.request = Some((from, None)),
                Output::State(state) => self.state = state,
                Output::GapFound | Output::Anew => {}
                Output::RestartFound => self.highest = None,
                // With nothing but numbers to go by, nothing that travels may be lost.
                Output::Reconnect if self.answers => {
                    self.live.clear();
                    (self.linked, self.told) = (false, None);
                    self.machine.disconnected();
                }
                Output::Reconnect => {}
            }
        }
        if !self.machine.awaits_replay() {
            self.request = None;
        }
        assert_eq!(self.state, self.machine.state(), "the last state told is the state");
        if self.told.is_none() {
            assert_eq!(self.state, StreamState::Unproven, "there is no connection");
        }
        if self.state.credits_overlap() {
            let holder = self.held.last().map(|said| said.engine);
            assert!(
                self.held.iter().all(|said| Some(said.engine) == holder),
                "two engines' blocks are mixed"
            );
            assert!(
                holder.is_none() || holder == self.told || holder == Some(self.engine),
                "blocks of engine {holder:?} credited to engine {:?}",
                self.told
            );
        }
        if self.state == StreamState::Live
            && let Some(first) = self.held.first()
        {
            let whole = first.sequence == 0 || self.held.iter().any(|said| said.empties);
            assert!(whole, "live, but {first:?} is the first that is held");
        }
    }

    /// Peace: the engine is up and answers, nothing is lost, and time passes.
    fn settle(&mut self) {
        (self.loss, self.answers, self.full) = (0.0, true, false);
        if !self.up {
            self.start();
        }
        if !self.linked {
            self.link();
        }
        for round in 0..40 {
            if round == 10 || round == 20 {
                self.publish();
            }
            for _ in 0..30_000 {
                let served = match &self.request {
                    None => true,
                    Some((_, answer)) => answer.as_ref().is_some_and(VecDeque::is_empty),
                };
                if served && self.live.is_empty() {
                    break;
                }
                self.deliver();
                self.serve();
            }
            self.pass(Duration::from_secs(1));
        }
        assert_eq!(
            self.held.last().map(|said| (said.engine, said.sequence)),
            Some((self.engine, self.next - 1))
        );
        assert!(matches!(self.state, StreamState::Live | StreamState::Incomplete), "{}", self.state);
    }
}

#[test]
fn a_random_world_finds_every_promise_kept() {
    let base = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    // The same worlds each time, and a few that nobody has seen yet.
    for seed in (0..2_000).chain((0..500).map(|n| base.wrapping_add(n))) {
        let mut world = World::new(seed);
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            world.link();
            for _ in 0..400 {
                world.step();
            }
            world.settle();
        }));
        if run.is_err() {
            let tail = world.log.len().saturating_sub(60);
            panic!("seed {seed}: \n{}", world.log[tail..].join("\n"));
        }
    }
}
