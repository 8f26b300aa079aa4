//! What has to hold: after every step, and once the faults have stopped.

use std::time::Duration;

use kvroute::{
    event::{EngineHash, Tier},
    fleet::StreamState,
};

use crate::{
    engine::{Held, Holds},
    network::Faults,
    router::{MOST_PREDICTED, MOST_QUEUED, PENDING, Shelf},
    world::{BLOCK_SIZES, Side, World},
};

/// Seconds after the last fault within which every stream has found its way: twenty until the last heartbeat tells of a connection
/// that is gone, five for a replay that is not answered to time out, and a batch from which on nothing that was lost stays unnoticed.
const BOUND: u64 = 30;
/// When engines say that batch.
const SPEAKS_AT: u64 = 25;

/// How it ended.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Settled {
    /// After the last fault, until every stream had found its way.
    pub(crate) seconds: u64,
    pub(crate) ranks: u64,
    /// Ranks that are live.
    pub(crate) live: u64,
    /// Ranks that say they are incomplete.
    pub(crate) incomplete: u64,
    /// Of those, ranks whose engine still has all that was said since its start, and would say it again.
    pub(crate) curable: u64,
    /// What the streams went through.
    pub(crate) gaps: u64,
    pub(crate) restarts: u64,
    pub(crate) unreadable: u64,
    pub(crate) overloads: u64,
}

/// Which texts are looked up.
#[derive(Clone, Copy)]
pub(crate) enum Texts {
    One(usize),
    All,
}

impl Settled {
    pub(crate) fn add(&mut self, other: Self) {
        self.seconds = self.seconds.max(other.seconds);
        self.ranks += other.ranks;
        self.live += other.live;
        self.incomplete += other.incomplete;
        self.curable += other.curable;
        self.gaps += other.gaps;
        self.restarts += other.restarts;
        self.unreadable += other.unreadable;
        self.overloads += other.overloads;
    }
}

/// What a rank's overlap with a text has to be, on its GPU and with what host memory adds.
fn overlap(holds: &Holds, names: &[EngineHash]) -> (u32, u32) {
    let of = |name| holds.get(name).copied().unwrap_or_default();
    let gpu = names.iter().take_while(|name| of(*name).gpu > 0).count();
    let host = names[gpu..].iter().take_while(|name| of(*name).host).count();
    (gpu as u32, host as u32)
}

impl World {
    pub(crate) fn check_all(&mut self, texts: Texts) -> Result<(), String> {
        let ranks = self.all().len();
        for shelf in &self.shelves {
            let (queued, pending) = (shelf.ingestor.queued()[0], shelf.index.totals().pending);
            let is_bounded = queued <= ranks * MOST_QUEUED && pending <= (ranks * PENDING) as u64;
            ensure(is_bounded, || format!("{queued} jobs and {pending} blocks wait"))?;
        }
        self.all().into_iter().try_for_each(|at| {
            self.check(at, texts)
                .map_err(|found| format!("{:.3} s: rank {at:?}: {found}", self.now.as_secs_f64()))
        })
    }

    /// What routing sees of a rank: nothing without a connection, nothing of an incarnation that is known to be over, and of the
    /// present one what was true at the batch that the router says it has come to; all of that, if it says that it is live.
    fn check(&mut self, at: (usize, usize), texts: Texts) -> Result<(), String> {
        let decodes = self.engines[at.0].decodes;
        let Side { lives, stamps, stream, highest, .. } = &mut self.engines[at.0].sides[at.1];
        let shelf = &mut self.shelves[stream.shelf];
        if let Some((beside, _)) = &stream.predicted {
            let predicted = shelf.index.blocks(*beside)[Tier::Gpu.index()];
            ensure(predicted <= MOST_PREDICTED as u64, || format!("{predicted} blocks are predicted"))?;
        }
        let (state, totals) = (stream.status.state(), stream.status.totals());
        if !state.credits_overlap() {
            return Ok(());
        }
        let Some(told) = stream.told else { return Err(format!("{state} without a connection")) };
        let [gpu, host, ..] = shelf.index.blocks(stream.slot);
        let Some(cursor) = stream.status.cursor() else {
            return ensure(gpu + host == 0, || format!("{gpu} + {host} blocks of nobody"));
        };
        let Some(&(incarnation, sequence)) = stamps.get(&totals.last_batch_ms) else {
            return Err(format!("{state} at {cursor}, which could not be read"));
        };
        ensure(sequence == cursor, || format!("the cursor is {cursor}, the last batch was {sequence}"))?;
        ensure(incarnation == told || incarnation + 1 == lives.len(), || {
            format!("blocks of incarnation {incarnation}, connected to {told}")
        })?;
        let life = &lives[incarnation];
        if life.block_size != shelf.block_size {
            return ensure(gpu + host == 0, || format!("{gpu} + {host} blocks of another size"));
        }
        let holds = &life.said[sequence as usize].holds;
        let is_exact = state == StreamState::Live && !decodes;
        let fits = |have: u64, truth: u64| if is_exact { have == truth } else { have <= truth };
        let count = |held: &dyn Fn(&Held) -> bool| holds.values().filter(|block| held(block)).count() as u64;
        let truth = (count(&|block| block.gpu > 0), count(&|block| block.host));
        ensure(fits(gpu, truth.0) && fits(host, truth.1), || {
            format!("{state} at {incarnation}:{sequence} with {gpu} + {host} blocks of {truth:?}")
        })?;
        let texts = match texts {
            Texts::One(text) => text..text + 1,
            Texts::All => 0..shelf.hashes.len(),
        };
        for text in texts {
            let credited = shelf.index.overlap(&shelf.hashes[text], &mut shelf.scratch).of(stream.slot);
            let truth = overlap(holds, &life.names[text]);
            let is_right = match is_exact {
                true => (credited.gpu, credited.host) == truth,
                false => credited.gpu <= truth.0 && credited.gpu + credited.host <= truth.0 + truth.1,
            };
            ensure(is_right, || {
                format!(
                    "{state} at {incarnation}:{sequence}, credited {credited:?} of text {text}, which has {truth:?}"
                )
            })?;
        }
        if state == StreamState::Live {
            // What a connection says twice, or too late, passes for the word of a new incarnation, which holds nothing else.
            let came_back = self.orderly && (incarnation, sequence) < *highest;
            ensure(!came_back, || format!("live at {incarnation}:{sequence} after {highest:?}"))?;
            *highest = (incarnation, sequence);
        }
        Ok(())
    }

    /// Peace: every engine is up and answers, nothing is lost any more, and time passes.
    pub(crate) fn settle(&mut self) -> Result<Settled, String> {
        self.faults = Faults::default();
        for engine in 0..self.engines.len() {
            if !self.engines[engine].up {
                self.start(engine);
            }
        }
        for at in self.all() {
            let side = self.side(at);
            let is_other = side.life().block_size != BLOCK_SIZES[side.stream.shelf];
            if is_other && self.rng.bool() {
                self.reregister(at);
            }
        }
        let mut settled = Settled::default();
        for second in 0..=BOUND {
            self.all().into_iter().for_each(|at| self.link(at));
            if second == SPEAKS_AT {
                self.speak();
            }
            self.arrive();
            self.check_all(Texts::All)?;
            if !self.all().into_iter().all(|at| self.is_settled(at)) {
                settled.seconds = second + 1;
            }
            self.pass(Duration::from_secs(1));
        }
        ensure(settled.seconds <= BOUND, || format!("not settled after {BOUND} s: {}", self.unsettled()))?;
        for at in self.all() {
            self.check_counts(at)?;
            let (ring, can_replay) = (self.engines[at.0].ring, self.engines[at.0].can_replay);
            let Side { stream, lives, .. } = self.side(at);
            let is_live = stream.status.state() == StreamState::Live;
            let is_curable = can_replay && lives.last().is_some_and(|life| life.said.len() <= ring);
            settled.ranks += 1;
            settled.live += u64::from(is_live);
            settled.incomplete += u64::from(!is_live);
            settled.curable += u64::from(!is_live && is_curable);
            let totals = stream.status.totals();
            settled.gaps += totals.gaps;
            settled.restarts += totals.restarts;
            settled.unreadable += totals.unreadable_batches;
            settled.overloads += totals.overloads;
        }
        self.turn_over()?;
        self.end()?;
        Ok(settled)
    }

    /// Every rank says something, so that whatever was lost before can be noticed.
    fn speak(&mut self) {
        for at in self.all() {
            let before = self.side(at).life().said.len();
            for _ in 0..1_000 {
                self.work(at);
                if self.side(at).life().said.len() > before {
                    break;
                }
            }
        }
    }

    /// Everything that travels arrives, and is applied.
    fn arrive(&mut self) {
        for at in self.all() {
            while !self.side(at).link.live.is_empty() || self.can_serve(at) {
                self.deliver(at);
                self.serve(at);
                self.shelves.iter_mut().for_each(Shelf::apply_all);
            }
        }
        self.shelves.iter_mut().for_each(Shelf::apply_all);
    }

    fn is_settled(&self, at: (usize, usize)) -> bool {
        let Side { stream, lives, .. } = &self.engines[at.0].sides[at.1];
        let status = &stream.status;
        let last = lives.last().and_then(|life| life.said.last()).map(|said| said.sequence);
        let knows_last =
            status.cursor() == last || status.state() == StreamState::Incomplete && status.cursor().is_none();
        matches!(status.state(), StreamState::Live | StreamState::Incomplete) && knows_last
    }

    fn unsettled(&self) -> String {
        let unsettled = self.all().into_iter().filter(|&at| !self.is_settled(at));
        let name = |at: (usize, usize)| {
            let Side { stream, lives, .. } = &self.engines[at.0].sides[at.1];
            let said = lives.last().map_or(0, |life| life.said.len());
            format!("{at:?} is {} at {:?} of {said} batches", stream.status.state(), stream.status.cursor())
        };
        unsettled.map(name).collect::<Vec<_>>().join(", ")
    }

    /// All that a stream went through is in the numbers that people see.
    fn check_counts(&mut self, at: (usize, usize)) -> Result<(), String> {
        let stream = &self.side(at).stream;
        let (totals, counted) = (stream.status.totals(), stream.counted);
        let seen = [
            totals.gaps,
            totals.replays,
            totals.restarts,
            totals.batches,
            totals.unreadable_batches,
            totals.reconnects,
        ];
        let happened = [
            counted.gaps,
            counted.replays,
            counted.restarts,
            counted.batches,
            counted.unreadable,
            counted.reconnects,
        ];
        ensure(seen == happened, || format!("rank {at:?}: {seen:?} is shown of {happened:?}"))?;
        let (shown, state) = (stream.status.state(), stream.machine.state());
        ensure(shown == state, || format!("rank {at:?}: {shown} is shown, and it is {state}"))
    }

    /// Engines compute so much else that nothing is left of what they held: from there on even an incomplete index is the truth.
    fn turn_over(&mut self) -> Result<(), String> {
        for at in self.all() {
            let fillers = self.side(at).cache.fillers_for_all();
            for round in 0..fillers + 20 {
                if round < fillers {
                    self.side(at).cache.fill();
                    self.publish(at, true);
                } else {
                    self.work(at);
                }
                self.arrive();
            }
        }
        self.check_all(Texts::All)?;
        for at in self.all().into_iter().filter(|at| !self.engines[at.0].decodes) {
            let Side { lives, stream, .. } = &self.engines[at.0].sides[at.1];
            let (life, shelf) = (&lives[lives.len() - 1], &mut self.shelves[stream.shelf]);
            let (true, Some(said)) = (life.block_size == shelf.block_size, life.said.last()) else {
                continue;
            };
            for (text, names) in life.names.iter().enumerate() {
                let credited = shelf.index.overlap(&shelf.hashes[text], &mut shelf.scratch).of(stream.slot);
                let truth = overlap(&said.holds, names);
                ensure((credited.gpu, credited.host) == truth, || {
                    format!(
                        "rank {at:?}: turned over, credited {credited:?} of text {text}, which has {truth:?}"
                    )
                })?;
            }
        }
        Ok(())
    }

    /// Every rank goes, and nothing is left behind.
    fn end(&mut self) -> Result<(), String> {
        for side in self.engines.drain(..).flat_map(|engine| engine.sides) {
            let shelf = side.stream.shelf;
            side.stream.close(&mut self.shelves[shelf]);
        }
        for shelf in &mut self.shelves {
            shelf.apply_all();
            let (totals, queued) = (shelf.index.totals(), shelf.ingestor.queued());
            let is_empty = (totals.blocks, totals.pending, &queued[..]) == ([0; 4], 0, &[0][..]);
            ensure(is_empty, || format!("left behind: {totals:?}, queued {queued:?}"))?;
        }
        Ok(())
    }
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}
