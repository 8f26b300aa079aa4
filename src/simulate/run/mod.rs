//! The run: arrivals, steps and events in order of time.

mod agenda;
mod router;
mod telemetry;

use std::{sync::Arc, time::Duration};

use ahash::AHashSet;

use self::{
    agenda::Agenda,
    router::{Placed, Router},
};
use super::{
    cache::Cache,
    engine::{Engine, Step},
    gpu::{Gpu, Told},
    outcome::{Fence, Outcome, Served},
    peer::Gauge,
    policy::{Policy, Rule},
    setting::{Happening, Setting},
    workload::{Job, Workload},
};
use crate::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::{BlockSize, BlockSizeError, SequenceHash},
    load::Booking,
};

/// Sends `workload` through `policy` to the engines of `setting`; chance comes from `seed`.
///
/// # Errors
/// When the workload's page size is no block size.
pub fn run(
    workload: &Workload,
    policy: &Policy,
    setting: &Setting,
    seed: u64,
) -> Result<Outcome, BlockSizeError> {
    let block_size = BlockSize::new(workload.page_tokens)?;
    let mut run = Run::new(workload, policy, setting, block_size, seed);
    while let Some((now, what)) = run.agenda.next() {
        run.now = now;
        run.happen(what);
    }
    Ok(run.outcome())
}

#[derive(Debug)]
enum What {
    /// A turn of a session comes.
    Turn {
        session: usize,
        turn: usize,
    },
    /// The step of an engine's incarnation is over.
    StepEnds {
        engine: usize,
        life: u32,
    },
    /// Events of an engine reach the router.
    Events {
        engine: usize,
        life: u32,
        events: Vec<Event>,
    },
    /// The router sees a first token, or a last, or that the connection broke.
    FirstToken {
        request: usize,
    },
    Finished {
        request: usize,
    },
    Lost {
        request: usize,
    },
    /// Something happens to an engine, and the router sees it.
    Change {
        number: usize,
    },
    Gone {
        engine: usize,
    },
    /// Somebody may leave the router's queue.
    Wake,
    /// GPUs are sampled.
    Sample,
}

/// A request that came.
struct Request {
    came: Duration,
    session: usize,
    turn: usize,
    booking: Option<Booking>,
    served: Served,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nobody serves it.
    Unserved,
    /// In the router's queue.
    Waiting,
    /// At an engine, without a first token.
    Prefilling,
    /// With one.
    Answering,
    Done,
    Broken,
}

/// An engine and what it is doing.
struct Unit {
    engine: Engine,
    gpu: Gpu,
    /// Its step would be over, but for its GPU.
    overdue: bool,
    /// The step that it is at.
    step: Option<Step>,
    /// How often it has died; what a former incarnation had under way comes to nothing.
    life: u32,
    present: bool,
    prefilled: u64,
    busy: f64,
}

struct Run<'a> {
    workload: &'a Workload,
    setting: &'a Setting,
    page: u64,
    now: Duration,
    agenda: Agenda<What>,
    units: Vec<Unit>,
    /// One an engine; only the first where all share it.
    caches: Vec<Cache>,
    pooled: bool,
    requests: Vec<Request>,
    router: Router,
    /// When the router's queue is looked at next.
    wakes: Option<Duration>,
    /// Every page that any request had, for what an engine that forgets nothing would have.
    seen: AHashSet<SequenceHash>,
    counts_from: Duration,
    fences: Vec<Fence>,
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

impl<'a> Run<'a> {
    fn new(
        workload: &'a Workload,
        policy: &Policy,
        setting: &'a Setting,
        block_size: BlockSize,
        seed: u64,
    ) -> Self {
        let page = u64::from(block_size.get());
        let unit = |(engine, &speed): (usize, &f64)| Unit {
            engine: Engine::new(setting.model, speed, page),
            gpu: Gpu::new(),
            overdue: false,
            step: None,
            life: 0,
            present: setting.starts_with(engine),
            prefilled: 0,
            busy: 0.0,
        };
        let pooled = policy.rule == Rule::Pooled;
        let mut run = Self {
            workload,
            setting,
            page,
            now: Duration::ZERO,
            agenda: Agenda::new(),
            units: setting.speeds.iter().enumerate().map(unit).collect(),
            caches: Vec::new(),
            pooled,
            requests: Vec::new(),
            router: Router::new(policy, &setting.model, setting.speeds.len(), block_size, seed),
            wakes: None,
            seen: AHashSet::new(),
            counts_from: seconds(workload.after(setting.warm_up)),
            fences: Vec::new(),
        };
        run.caches = (0..run.units.len()).map(|_| run.empty_cache()).collect();
        for engine in 0..run.units.len() {
            if run.units[engine].present {
                run.comes(engine, None);
            }
        }
        if setting.telemetry {
            run.agenda.put(Duration::ZERO, What::Sample);
        }
        for (number, change) in setting.changes.iter().enumerate() {
            run.agenda.put(seconds(change.at), What::Change { number });
        }
        for (session, turns) in workload.sessions.iter().enumerate() {
            if let Some(first) = turns.first() {
                run.agenda.put(seconds(first.after), What::Turn { session, turn: 0 });
            }
        }
        run
    }

    fn comes(&mut self, engine: usize, told: Option<Told>) {
        self.router.comes(engine);
        let stated = self.setting.capabilities.get(engine);
        if let Some(told) = told.or_else(|| stated.map(|&capability| Told::capable(capability))) {
            self.router.tell(engine, told);
        }
    }

    fn empty_cache(&self) -> Cache {
        let pages = usize::try_from(self.setting.model.cache_tokens / self.page).unwrap_or(usize::MAX);
        Cache::new(if self.pooled { pages.saturating_mul(self.units.len()) } else { pages })
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Turn { session, turn } => {
                self.arrive(session, turn);
                self.release();
            }
            What::StepEnds { engine, life } => {
                let unit = &mut self.units[engine];
                if unit.life == life && unit.gpu.lost {
                    unit.overdue = true;
                } else if unit.life == life {
                    self.end_step(engine);
                    self.begin_step(engine);
                }
            }
            What::Events { engine, life, events } => {
                if self.pooled || self.units[engine].life == life {
                    self.router.learn(engine, &events);
                }
            }
            What::FirstToken { request } => {
                if let Some(booking) = &self.requests[request].booking {
                    booking.first_token(self.now);
                }
                self.release();
            }
            What::Finished { request } => {
                self.leave(request);
                self.release();
            }
            What::Lost { request } => match self.requests[request].state {
                State::Prefilling => {
                    self.requests[request].booking = None;
                    self.route(request);
                }
                State::Answering => {
                    self.requests[request].state = State::Broken;
                    self.leave(request);
                }
                State::Unserved | State::Waiting | State::Done | State::Broken => {}
            },
            What::Change { number } => {
                self.change(number);
                self.release();
            }
            What::Gone { engine } => {
                self.router.goes(engine);
                self.release();
            }
            What::Wake => {
                self.wakes = None;
                self.release();
            }
            What::Sample => {
                self.sample();
                self.release();
            }
        }
    }

    fn arrive(&mut self, session: usize, turn: usize) {
        let job = &self.workload.sessions[session][turn].job;
        let reusable = usize::try_from(job.prompt_tokens / self.page).unwrap_or(usize::MAX);
        let kept = job.sequence.iter().take(reusable).take_while(|hash| self.seen.contains(*hash)).count();
        self.seen.extend(&job.sequence);
        let served = Served {
            prompt_tokens: job.prompt_tokens,
            came: self.now.as_secs_f64(),
            ideal: self.setting.model.alone(job.prompt_tokens, kept as u64 * self.page),
            ..Served::default()
        };
        let request =
            Request { came: self.now, session, turn, booking: None, served, state: State::Unserved };
        // A request that fits no engine would keep its engine from all that come after it.
        let fits = job.prompt_tokens + job.output_tokens + self.page <= self.setting.model.cache_tokens;
        self.requests.push(request);
        if fits {
            self.route(self.requests.len() - 1);
        }
    }

    /// Chooses an engine for a request, and hands it over.
    fn route(&mut self, id: usize) {
        let Request { session, turn, .. } = self.requests[id];
        let job: &Arc<Job> = &self.workload.sessions[session][turn].job;
        let Self { units, caches, pooled, router, .. } = self;
        let gauge = |engine: usize| Gauge {
            waiting: units[engine].engine.waiting(),
            usage: caches[if *pooled { 0 } else { engine }].usage(),
        };
        let placed = router.place(id, job, self.now, gauge);
        self.hand_over(id, placed);
    }

    /// Lets go of whom the router need not keep any longer.
    fn release(&mut self) {
        let workload = self.workload;
        loop {
            let Self { router, requests, .. } = self;
            let job = |id: usize| {
                let Request { session, turn, .. } = requests[id];
                &*workload.sessions[session][turn].job
            };
            let Some((id, placed)) = router.released(self.now, job) else { break };
            self.hand_over(id, placed);
        }
        if let Some(at) = self.router.wakes()
            && self.wakes.is_none_or(|wakes| at < wakes)
        {
            self.wakes = Some(at);
            self.agenda.put(at, What::Wake);
        }
    }

    fn hand_over(&mut self, id: usize, placed: Placed) {
        let request = &mut self.requests[id];
        let (engine, booking) = match placed {
            Placed::At(engine, booking) => (engine, booking),
            Placed::Waits => {
                request.state = State::Waiting;
                return;
            }
            Placed::Nowhere => {
                request.state = State::Unserved;
                return;
            }
        };
        (request.booking, request.state) = (Some(booking), State::Prefilling);
        request.served.engine = engine;
        self.units[engine].gpu.sent();
        if self.units[engine].present {
            let job = &self.workload.sessions[request.session][request.turn].job;
            self.units[engine].engine.arrive(id, Arc::clone(job));
            self.wake(engine);
        } else {
            // The router does not know yet; the connection is refused.
            self.agenda.put(self.now + seconds(self.setting.reply_delay), What::Lost { request: id });
        }
    }

    fn wake(&mut self, engine: usize) {
        if self.units[engine].present && self.units[engine].step.is_none() {
            self.begin_step(engine);
        }
    }

    fn begin_step(&mut self, engine: usize) {
        let unit = &mut self.units[engine];
        if unit.gpu.lost {
            return;
        }
        let cache = &mut self.caches[if self.pooled { 0 } else { engine }];
        unit.step = unit.engine.step(cache);
        let Some(step) = &unit.step else { return };
        if self.now >= self.counts_from {
            unit.prefilled += step.prefill_tokens;
            unit.busy += step.prefill_seconds;
        }
        let end = self.now + seconds(step.seconds);
        self.agenda.put(end, What::StepEnds { engine, life: unit.life });
    }

    fn end_step(&mut self, engine: usize) {
        let life = self.units[engine].life;
        let Some(step) = self.units[engine].step.take() else { return };
        let seen = self.now + seconds(self.setting.reply_delay);
        for &(request, cached) in &step.first_tokens {
            let Request { came, served, state, .. } = &mut self.requests[request];
            served.first_token = self.now.saturating_sub(*came).as_secs_f64();
            served.cached_tokens = cached;
            *state = State::Answering;
            self.agenda.put(seen, What::FirstToken { request });
        }
        for &request in &step.finished {
            let Request { came, served, state, .. } = &mut self.requests[request];
            served.total = self.now.saturating_sub(*came).as_secs_f64();
            *state = State::Done;
            self.agenda.put(seen, What::Finished { request });
        }
        let events = events_of(&step);
        if !events.is_empty() {
            let at = self.now + seconds(self.setting.event_delay);
            self.agenda.put(at, What::Events { engine, life, events });
        }
        if self.pooled && !step.finished.is_empty() {
            // Pages that others wait for came back.
            (0..self.units.len()).filter(|&other| other != engine).for_each(|other| self.wake(other));
        }
    }

    /// The router is done with a request; its session's next turn comes in its time.
    fn leave(&mut self, request: usize) {
        let Request { session, turn, booking, .. } = &mut self.requests[request];
        drop(booking.take());
        let (session, next) = (*session, *turn + 1);
        if let Some(turn) = self.workload.sessions[session].get(next) {
            let at = self.now + seconds(turn.after);
            if at.as_secs_f64() <= self.workload.until {
                self.agenda.put(at, What::Turn { session, turn: next });
            }
        }
    }

    fn change(&mut self, number: usize) {
        let change = self.setting.changes[number];
        let engine = change.engine;
        let Some(unit) = self.units.get_mut(engine) else { return };
        match change.what {
            Happening::Speed(factor) => unit.engine.set_speed(factor * self.setting.speeds[engine]),
            Happening::Clocks(share) => {
                unit.gpu.clocks = share;
                unit.engine.set_speed(share * self.setting.speeds[engine]);
            }
            Happening::LosesGpu => self.lose_gpu(engine),
            Happening::RegainsGpu => self.regain_gpu(engine),
            Happening::Comes if !unit.present => {
                unit.present = true;
                let told = unit.gpu.told();
                self.comes(engine, told);
            }
            Happening::Dies if unit.present => {
                unit.present = false;
                unit.life += 1;
                unit.overdue = false;
                let under_way = unit.step.take().map_or_else(Vec::new, |step| step.finished);
                let shared = if self.pooled { 0 } else { engine };
                let lost = unit.engine.die(&mut self.caches[shared]);
                if !self.pooled {
                    self.caches[engine] = self.empty_cache();
                }
                let seen = self.now + seconds(self.setting.reply_delay);
                self.agenda.put(seen, What::Gone { engine });
                for request in under_way.into_iter().chain(lost) {
                    self.agenda.put(seen, What::Lost { request });
                }
            }
            Happening::Comes | Happening::Dies => {}
        }
    }

    fn outcome(self) -> Outcome {
        let counts = || self.requests.iter().filter(|request| request.came >= self.counts_from);
        let of = |state| counts().filter(move |request| request.state == state);
        Outcome {
            fences: self.fences.clone(),
            served: of(State::Done).map(|request| request.served).collect(),
            unserved: of(State::Unserved).count() + of(State::Waiting).count(),
            broken: of(State::Broken).count(),
            prefilled: self.units.iter().map(|unit| unit.prefilled).collect(),
            busy: self.units.iter().map(|unit| unit.busy).collect(),
        }
    }
}

/// What a step's pages are to the router. Room is made before anything is computed, so pages go before others come.
fn events_of(step: &Step) -> Vec<Event> {
    let mut events = Vec::new();
    if !step.dropped.is_empty() {
        let hashes = step.dropped.iter().map(|hash| EngineHash(hash.0)).collect();
        events.push(Event::Removed(Removed { tier: Tier::Gpu, hashes, remaining_copies: None }));
    }
    events.extend(step.stored.iter().map(|page| {
        let block = StoredBlock { engine: EngineHash(page.name.0), content: Some(page.content) };
        let parent = page.before.map(|before| EngineHash(before.0));
        Event::Stored(Stored { tier: Tier::Gpu, parent, blocks: [block].into_iter().collect() })
    }));
    events
}

#[cfg(test)]
mod tests;
