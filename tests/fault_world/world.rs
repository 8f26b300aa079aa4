//! Engines, network and router in one thread, with one clock and one random source.

use std::{rc::Rc, time::Duration};

use ahash::AHashMap;
use kvroute::{hash, ingest::StreamSettings};

use crate::{
    engine::{Cache, Life, Said, Setup},
    network::{self, Faults, Link, Travelling},
    prompts::Prompts,
    router::{Broken, Shelf, Stream},
    wire::Dialect,
};

/// Tokens in a block: an engine has the one or the other.
pub(crate) const BLOCK_SIZES: [u32; 2] = [4, 8];

/// One rank: the engine's side, the router's, and what lies between.
pub(crate) struct Side {
    pub(crate) cache: Cache,
    /// Its incarnations; the last one is the present.
    pub(crate) lives: Vec<Life>,
    /// Which batch of which incarnation has this time of the engine's clock.
    pub(crate) stamps: AHashMap<u64, (usize, u64)>,
    pub(crate) link: Link,
    pub(crate) stream: Stream,
    /// The latest batch that the router was seen to be live at.
    pub(crate) highest: (usize, u64),
}

impl Side {
    pub(crate) fn present(&self) -> usize {
        self.lives.len() - 1
    }

    pub(crate) fn life(&self) -> &Life {
        &self.lives[self.present()]
    }
}

pub(crate) struct Engine {
    pub(crate) up: bool,
    pub(crate) settings: StreamSettings,
    pub(crate) can_replay: bool,
    /// Every request for a replay is answered while the engine is up. Where not, nothing but numbers may tell two
    /// incarnations apart, so there the world spares a new one's first batch.
    pub(crate) answers: bool,
    pub(crate) ring: usize,
    pub(crate) decodes: bool,
    has_host: bool,
    dialect: Dialect,
    /// Its worker has seen it start, and has not told yet.
    notice: bool,
    pub(crate) sides: Vec<Side>,
}

pub(crate) struct World {
    pub(crate) rng: fastrand::Rng,
    pub(crate) now: Duration,
    pub(crate) prompts: Prompts,
    pub(crate) shelves: [Shelf; 2],
    pub(crate) engines: Vec<Engine>,
    pub(crate) faults: Faults,
    /// Connections say everything once and in order, as those of ZMQ do.
    pub(crate) orderly: bool,
    broken: Broken,
    /// The engines' clocks, in milliseconds: no two batches have the same time.
    stamp: u64,
    /// The appliers do almost nothing.
    slow: bool,
    pub(crate) log: Option<Vec<String>>,
}

impl World {
    pub(crate) fn new(seed: u64, broken: Broken) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let prompts = Prompts::new(&mut rng);
        let shelves = BLOCK_SIZES.map(|size| Shelf::new(size, prompts.hashes(size)));
        let mut pick = |rates: [f64; 3]| rates[rng.usize(..3)];
        let faults = Faults {
            loss: pick([0.0, 0.03, 0.2]),
            duplication: pick([0.0, 0.0, 0.03]),
            reordering: pick([0.0, 0.0, 0.05]),
            garbling: pick([0.0, 0.0, 0.03]),
            silence: pick([0.2, 0.5, 1.0]),
        };
        let (now, engines) = (Duration::ZERO, Vec::new());
        let (stamp, slow, log) = (1_000_000, false, None);
        let orderly = faults.duplication + faults.reordering == 0.0;
        let mut world =
            Self { rng, now, prompts, shelves, engines, faults, orderly, broken, stamp, slow, log };
        (0..2 + world.rng.usize(..2)).for_each(|_| world.add_engine());
        world
    }

    fn add_engine(&mut self) {
        let rng = &mut self.rng;
        let can_replay = rng.u8(..4) > 0;
        let settings = StreamSettings {
            held_batches: rng.usize(2..20),
            idle_check: rng.bool().then_some(Duration::from_secs(30)),
            ..StreamSettings::default()
        };
        let mut engine = Engine {
            up: true,
            settings,
            can_replay,
            answers: can_replay && rng.u8(..4) > 0,
            ring: [3, 12, 10_000, 10_000][rng.usize(..4)],
            decodes: rng.u8(..4) == 0,
            has_host: rng.bool(),
            dialect: Dialect::ALL[rng.usize(..3)],
            notice: false,
            sides: Vec::new(),
        };
        let block_size = BLOCK_SIZES[rng.usize(..2)];
        for rank in 0..1 + rng.u32(..2) {
            let cache = Cache::new(self.setup(&engine, rank, block_size));
            let life = cache.life(&self.prompts);
            let stream = self.open(&engine, rank, block_size);
            let (link, stamps) = (Link::default(), AHashMap::new());
            engine.sides.push(Side { cache, lives: vec![life], stamps, link, stream, highest: (0, 0) });
        }
        self.engines.push(engine);
    }

    fn setup(&mut self, engine: &Engine, rank: u32, block_size: u32) -> Setup {
        let rng = &mut self.rng;
        // Larger than any text, and not by much.
        let blocks = 64 / block_size + rng.u32(2..16);
        let naming_seed = if rng.bool() { 7 } else { rng.u64(..) };
        let Engine { dialect, has_host, decodes, .. } = *engine;
        Setup { block_size, naming_seed, dialect, rank, blocks, has_host, decodes }
    }

    fn open(&mut self, engine: &Engine, rank: u32, block_size: u32) -> Stream {
        let at = usize::from(block_size == BLOCK_SIZES[1]);
        let predicts = self.rng.u8(..3) == 0;
        let machine = (engine.settings, engine.can_replay, engine.answers);
        Stream::open((&mut self.shelves[at], at), machine, rank, predicts, self.broken)
    }

    pub(crate) fn say(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>9.3} {}", self.now.as_secs_f64(), line()));
        }
    }

    /// Something happens somewhere.
    pub(crate) fn step(&mut self) {
        let engine = self.rng.usize(..self.engines.len());
        let rank = self.rng.usize(..self.engines[engine].sides.len());
        let at = (engine, rank);
        match self.rng.u16(..1_000) {
            0..=349 => self.work(at),
            350..=629 => (0..1 + self.rng.usize(..3)).for_each(|_| self.deliver(at)),
            630..=749 => (0..1 + self.rng.usize(..4)).for_each(|_| self.serve(at)),
            750..=874 => self.apply(),
            875..=919 => self.pass_if_answered(),
            920..=929 => self.cut(at),
            930..=937 => self.kill(engine),
            938..=942 => self.doubt(at),
            943..=946 => self.reregister(at),
            947..=953 => self.slow = !self.slow,
            _ if !self.engines[engine].up => self.start(engine),
            954..=969 => self.notice(engine),
            _ => self.link(at),
        }
    }

    pub(crate) fn side(&mut self, (engine, rank): (usize, usize)) -> &mut Side {
        &mut self.engines[engine].sides[rank]
    }

    pub(crate) fn all(&self) -> Vec<(usize, usize)> {
        let ranks = |engine: usize| 0..self.engines[engine].sides.len();
        (0..self.engines.len()).flat_map(|engine| ranks(engine).map(move |rank| (engine, rank))).collect()
    }

    /// The engine takes a step and publishes what it has to say.
    pub(crate) fn work(&mut self, at: (usize, usize)) {
        let Self { engines, prompts, rng, .. } = self;
        let Engine { up, answers, sides, .. } = &mut engines[at.0];
        let side = &mut sides[at.1];
        // With nothing but numbers to go by, an engine that spoke before it was heard could not be told apart.
        if !*up || (side.life().said.is_empty() && !*answers && !side.link.linked) {
            return;
        }
        let text = side.cache.work(prompts, rng);
        if let (Some(text), Some((_, predicted))) = (text, &side.stream.predicted) {
            let blocks = &self.shelves[side.stream.shelf].hashes[text];
            let mut sequence = Vec::new();
            hash::chain(blocks, &mut sequence);
            predicted.sent(blocks, &sequence);
        }
        self.publish(at, false);
    }

    pub(crate) fn publish(&mut self, at: (usize, usize), copies_all: bool) {
        let Self { engines, rng, faults, .. } = self;
        let Engine { answers, sides, .. } = &mut engines[at.0];
        let side = &mut sides[at.1];
        let Some(told) = side.cache.tell(copies_all, rng) else { return };
        self.stamp += 1 + rng.u64(..50);
        let mut payload: Rc<[u8]> = side.cache.encode(self.stamp, &told).into();
        if rng.f64() < faults.garbling / 2.0 {
            // Written so, and said so in every replay.
            payload = network::garbled(&payload, rng);
        }
        let incarnation = side.present();
        let said = &mut side.lives[incarnation].said;
        let sequence = said.len() as u64;
        said.push(Rc::new(Said { sequence, payload: Rc::clone(&payload), holds: side.cache.holds() }));
        side.stamps.insert(self.stamp, (incarnation, sequence));
        let is_spared = !*answers && sequence == 0;
        side.link.send((incarnation, sequence), &payload, (!is_spared).then_some(&*faults), rng);
        self.say(|| format!("{at:?} says {incarnation}:{sequence}"));
    }

    /// The next thing on the live connection arrives.
    pub(crate) fn deliver(&mut self, at: (usize, usize)) {
        let now = self.now;
        let side = self.side(at);
        let Some(travelling) = side.link.live.pop_front() else { return };
        let line = match &travelling {
            Travelling::Connected(incarnation) => format!("connected to {incarnation}"),
            Travelling::Disconnected => "disconnected".to_owned(),
            Travelling::Batch { incarnation, sequence, .. } => format!("hears {incarnation}:{sequence}"),
        };
        match travelling {
            Travelling::Connected(incarnation) => side.stream.connected(now, incarnation),
            Travelling::Disconnected => side.stream.disconnected(),
            Travelling::Batch { sequence, payload, .. } => side.stream.machine.live(now, sequence, payload),
        }
        self.say(|| format!("{at:?} {line}"));
        self.drain(at);
    }

    /// Does what the machine of a rank wants done.
    pub(crate) fn drain(&mut self, at: (usize, usize)) {
        let Self { engines, shelves, rng, faults, now, .. } = self;
        let Engine { answers, sides, .. } = &mut engines[at.0];
        let Side { link, stream, .. } = &mut sides[at.1];
        let lost = !*answers && rng.f64() < faults.silence;
        let shelf = &mut shelves[stream.shelf];
        stream.drain(*now, shelf, link, lost);
        stream.look_for_room(*now);
        stream.drain(*now, shelf, link, lost);
        if self.log.is_some() {
            let Side { stream, .. } = &self.engines[at.0].sides[at.1];
            let line = format!("{at:?}     is {}, {:?}", stream.machine.state(), stream.counted);
            self.say(|| line);
        }
    }

    /// Whether something of a replay can arrive at the router now, or at the engine.
    pub(crate) fn can_serve(&self, at: (usize, usize)) -> bool {
        let Engine { up, ring, sides, .. } = &self.engines[at.0];
        let side = &sides[at.1];
        match &side.link.request {
            None => false,
            Some(request) if request.answer.is_some() => {
                request.answer.iter().any(|answer| !answer.is_empty())
            }
            // A request may reach the next engine before the last one's end shows on the live connection. With a batch
            // to compare, and a ring that holds it, that must come out.
            Some(request) => {
                let is_known = request.from > 0 && *ring > 1_000;
                let is_other = side.stream.told.is_some_and(|told| told != side.present());
                *up && !request.lost && (is_known || !is_other)
            }
        }
    }

    /// The engine answers a request, or the next piece of an answer arrives.
    pub(crate) fn serve(&mut self, at: (usize, usize)) {
        if !self.can_serve(at) {
            return;
        }
        let now = self.now;
        let Engine { ring, sides, .. } = &mut self.engines[at.0];
        let side = &mut sides[at.1];
        let said = &side.lives[side.lives.len() - 1].said;
        let Some(request) = &mut side.link.request else { return };
        let Some(answer) = &mut request.answer else {
            let kept = said.iter().skip(said.len().saturating_sub(*ring));
            let asked = kept.filter(|said| said.sequence >= request.from);
            let pieces = asked.map(|said| Some((said.sequence, Rc::clone(&said.payload))));
            request.answer = Some(pieces.chain([None]).collect());
            return;
        };
        let Some(piece) = answer.pop_front() else { return };
        let line = piece.as_ref().map(|(sequence, _)| *sequence);
        match piece {
            Some((sequence, payload)) => side.stream.machine.replayed(now, sequence, payload),
            None => side.stream.machine.replay_ended(now),
        }
        self.say(|| format!("{at:?} is replayed {line:?}"));
        self.drain(at);
    }

    fn apply(&mut self) {
        let shelf = self.rng.usize(..2);
        let jobs = if self.slow { usize::from(self.rng.u8(..8) == 0) } else { self.rng.usize(1..24) };
        for _ in 0..jobs {
            self.shelves[shelf].applier.step();
        }
    }

    /// Lets time pass, unless an answer is due before, or word that there will be none.
    fn pass_if_answered(&mut self) {
        let due = |&at: &(usize, usize)| {
            let Engine { answers, sides, .. } = &self.engines[at.0];
            let Link { request, live, .. } = &sides[at.1].link;
            *answers && request.is_some() && (self.can_serve(at) || !live.is_empty())
        };
        match self.all().into_iter().find(due) {
            Some(at) if self.can_serve(at) => self.serve(at),
            Some(at) => self.deliver(at),
            None => {
                let milliseconds = self.rng.u64(..4_000);
                self.pass(Duration::from_millis(milliseconds));
            }
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        for at in self.all() {
            let side = self.side(at);
            side.link.pass(now);
            side.stream.machine.poll(now);
            self.drain(at);
        }
    }

    fn cut(&mut self, at: (usize, usize)) {
        let Self { engines, rng, now, .. } = self;
        let Engine { answers, sides, .. } = &mut engines[at.0];
        let link = &mut sides[at.1].link;
        if !link.linked {
            return;
        }
        match rng.u8(..3) {
            0 => link.fall_silent(*now + Duration::from_millis(rng.u64(15_000..20_000))),
            _ => link.cut(!*answers, rng),
        }
        self.say(|| format!("{at:?} is cut"));
    }

    fn kill(&mut self, at: usize) {
        let Self { engines, rng, now, .. } = self;
        let Engine { up, answers, sides, .. } = &mut engines[at];
        // It cannot answer any more. The router has to hear of that before it takes a number for the answer.
        let owes = *answers && sides.iter().any(|side| side.link.expects_answer());
        if owes && sides.iter().any(|side| side.link.silent_until.is_some()) {
            return;
        }
        let is_silent = rng.u8(..3) == 0 && !owes;
        let heard = is_silent.then(|| *now + Duration::from_millis(rng.u64(15_000..20_000)));
        *up = false;
        for Side { link, .. } in sides {
            match heard {
                Some(heard) => link.fall_silent(heard),
                None if link.linked => link.cut(!*answers, rng),
                None => {}
            }
            if let Some(request) = &mut link.request {
                (request.answer, request.lost) = (None, true);
            }
        }
        self.say(|| format!("{at} dies, silently: {}", heard.is_some()));
    }

    /// Another incarnation comes, in one of eight cases with another block size.
    pub(crate) fn start(&mut self, at: usize) {
        let mut engine = self.engines.remove(at);
        let before = engine.sides[0].life().block_size;
        let block_size = if self.rng.u8(..8) == 0 { BLOCK_SIZES[self.rng.usize(..2)] } else { before };
        for rank in 0..engine.sides.len() {
            let cache = Cache::new(self.setup(&engine, rank as u32, block_size));
            let side = &mut engine.sides[rank];
            side.lives.push(cache.life(&self.prompts));
            side.cache = cache;
        }
        (engine.up, engine.notice) = (true, self.rng.bool());
        self.engines.insert(at, engine);
        self.say(|| format!("{at} starts with blocks of {block_size}"));
    }

    /// The worker tells that its engine started anew, once nothing of the last one is on its way: what would arrive after that could
    /// follow the new one's numbers.
    fn notice(&mut self, at: usize) {
        let now = self.now;
        if !self.engines[at].notice {
            return;
        }
        self.engines[at].notice = false;
        for rank in 0..self.engines[at].sides.len() {
            let side = self.side((at, rank));
            let present = side.present();
            let is_old = |travelling: &Travelling| matches!(travelling, Travelling::Batch { incarnation, .. } if *incarnation != present);
            if side.stream.told.is_some() && !side.link.live.iter().any(is_old) {
                side.stream.told = Some(present);
                side.stream.machine.engine_start_changed(now);
                self.say(|| format!("{at} is said to have started"));
                self.drain((at, rank));
            }
        }
    }

    pub(crate) fn link(&mut self, at: (usize, usize)) {
        let side = self.side(at);
        if !side.link.linked && side.link.silent_until.is_none() {
            side.link.connect(side.lives.len() - 1);
        }
    }

    /// Somebody wants the rank built anew.
    fn doubt(&mut self, at: (usize, usize)) {
        let (now, rebuilds) = (self.now, self.rng.bool());
        let machine = &mut self.side(at).stream.machine;
        match rebuilds {
            true => machine.rebuild(now),
            false => machine.resync(now),
        }
        self.say(|| format!("{at:?} is built anew: {rebuilds}"));
        self.drain(at);
    }

    /// The rank goes and comes back as what it is now.
    pub(crate) fn reregister(&mut self, at: (usize, usize)) {
        let mut engine = self.engines.remove(at.0);
        let block_size = engine.sides[at.1].life().block_size;
        let stream = self.open(&engine, at.1 as u32, block_size);
        let side = &mut engine.sides[at.1];
        let old = std::mem::replace(&mut side.stream, stream);
        let shelf = old.shelf;
        old.close(&mut self.shelves[shelf]);
        side.link = Link::default();
        side.highest = (side.lives.len() - 1, 0);
        self.engines.insert(at.0, engine);
        self.say(|| format!("{at:?} is registered anew with blocks of {block_size}"));
    }
}
