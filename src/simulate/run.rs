//! The run: arrivals, steps and events in order of time.

use std::{collections::BTreeMap, num::NonZeroUsize, sync::Arc, time::Duration};

use fastrand::Rng;

use super::{
    engine::{Engine, Step},
    model::EngineModel,
    outcome::{Outcome, Served},
    policy::Policy,
    workload::Workload,
};
use crate::{
    device::DeviceClass,
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::{BlockSize, BlockSizeError},
    index::{self, IndexWriter, PrefixIndex},
    load::Booking,
    select::{Demand, Member, Scratch, Selector},
    slot::{Rank, Slot, WorkerId},
};

/// The fleet that a workload is sent to.
#[derive(Clone, PartialEq, Debug)]
pub struct Setting {
    /// What each engine is.
    pub model: EngineModel,
    /// How many times as fast as that each engine is; one entry an engine.
    pub speeds: Vec<f64>,
    /// Seconds from the end of a step to its KV events at the router.
    pub event_delay: f64,
    /// Seconds from a token to the router's knowing of it.
    pub reply_delay: f64,
    /// The share of the requests, in order of time, that warm the caches and do not count.
    pub warm_up: f64,
}

impl Setting {
    /// `engines` equal ones, as the default model says, with events 20 ms late and tokens 2 ms.
    #[must_use]
    pub fn of(engines: usize) -> Self {
        Self {
            model: EngineModel::default(),
            speeds: vec![1.0; engines],
            event_delay: 20e-3,
            reply_delay: 2e-3,
            warm_up: 0.0,
        }
    }
}

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
    while let Some(((now, _), what)) = run.agenda.pop_first() {
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
    /// An engine may begin a step.
    Step {
        engine: usize,
    },
    /// Events of an engine reach the router.
    Events {
        engine: usize,
        events: Vec<Event>,
    },
    /// The router sees a first token, or a last.
    FirstToken {
        request: usize,
    },
    Finished {
        request: usize,
    },
}

/// A request that came.
struct Request {
    came: Duration,
    session: usize,
    turn: usize,
    booking: Option<Booking>,
    served: Served,
    done: bool,
}

struct Run<'a> {
    workload: &'a Workload,
    setting: &'a Setting,
    block_size: BlockSize,
    now: Duration,
    /// What is to happen, by time and, of equal times, in order of its being put down.
    agenda: BTreeMap<(Duration, u64), What>,
    entries: u64,
    engines: Vec<Engine>,
    /// Whether each has a step on the agenda.
    stepping: Vec<bool>,
    prefilled: Vec<u64>,
    requests: Vec<Request>,
    members: Vec<Member>,
    selector: Selector,
    index: PrefixIndex,
    writers: Vec<IndexWriter>,
    found: index::Scratch,
    scratch: Scratch,
    rng: Rng,
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
        let count = setting.speeds.len();
        let (index, writers) = PrefixIndex::new(NonZeroUsize::MIN);
        let member = |index: u32| Member {
            slot: Slot { index, generation: 0 },
            worker: WorkerId(u64::from(index)),
            rank: Rank(0),
            class: DeviceClass::Accelerator,
            device: None,
            credits_overlap: true,
            expected: None,
            capacity: crate::load::Capacity::default(),
            exclusion: None,
        };
        let page = u64::from(block_size.get());
        let engine = |speed: &f64| Engine::new(setting.model, 1.0 / speed, page);
        let mut run = Self {
            workload,
            setting,
            block_size,
            now: Duration::ZERO,
            agenda: BTreeMap::new(),
            entries: 0,
            engines: setting.speeds.iter().map(engine).collect(),
            stepping: vec![false; count],
            prefilled: vec![0; count],
            requests: Vec::new(),
            members: (0..).map(member).take(count).collect(),
            selector: Selector::new(policy.mode, policy.tuning),
            index,
            writers,
            found: index::Scratch::new(),
            scratch: Scratch::new(),
            rng: Rng::with_seed(seed),
        };
        for (session, turns) in workload.sessions.iter().enumerate() {
            if let Some(first) = turns.first() {
                run.put(seconds(first.after), What::Turn { session, turn: 0 });
            }
        }
        run
    }

    fn put(&mut self, at: Duration, what: What) {
        self.agenda.insert((at, self.entries), what);
        self.entries += 1;
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Turn { session, turn } => self.route(session, turn),
            What::Step { engine } => self.step(engine),
            What::Events { engine, events } => {
                for event in events {
                    self.writers[0].apply(self.members[engine].slot, &event);
                }
            }
            What::FirstToken { request } => {
                let request = &mut self.requests[request];
                if let Some(booking) = &request.booking {
                    booking.first_token(self.now);
                }
            }
            What::Finished { request } => self.finish(request),
        }
    }

    /// Chooses an engine for a request that comes, and hands it over.
    fn route(&mut self, session: usize, turn: usize) {
        let job = Arc::clone(&self.workload.sessions[session][turn].job);
        let served = Served { prompt_tokens: job.prompt_tokens, ..Served::default() };
        let mut request = Request { came: self.now, session, turn, booking: None, served, done: false };
        let page = u64::from(self.block_size.get());
        // A request that fits no engine would keep its engine from all that come after it.
        if job.prompt_tokens + job.output_tokens + page > self.setting.model.cache_tokens {
            self.requests.push(request);
            return;
        }
        let full = usize::try_from(job.prompt_tokens / page).unwrap_or(usize::MAX).min(job.pages.len());
        let demand = Demand::new(
            usize::try_from(job.prompt_tokens).unwrap_or(usize::MAX),
            self.block_size,
            &job.sequence[..full],
        );
        let overlaps = self.index.overlap(&job.pages[..full], &mut self.found);
        let admitted =
            self.selector.admit(&self.members, overlaps, &demand, &mut self.scratch, self.now, &mut self.rng);
        let id = self.requests.len();
        let placed = admitted.ok().map(|(choice, booking)| (choice.row, booking));
        if let Some((engine, booking)) = placed {
            request.booking = Some(booking);
            self.engines[engine].arrive(id, job);
            self.wake(engine);
        }
        self.requests.push(request);
    }

    fn wake(&mut self, engine: usize) {
        if !std::mem::replace(&mut self.stepping[engine], true) {
            self.put(self.now, What::Step { engine });
        }
    }

    fn step(&mut self, engine: usize) {
        let Some(step) = self.engines[engine].step() else {
            self.stepping[engine] = false;
            return;
        };
        let end = self.now + seconds(step.seconds);
        self.prefilled[engine] += step.prefill_tokens;
        let seen = end + seconds(self.setting.reply_delay);
        for &(request, cached) in &step.first_tokens {
            let Request { came, served, .. } = &mut self.requests[request];
            served.first_token = end.saturating_sub(*came).as_secs_f64();
            served.cached_tokens = cached;
            self.put(seen, What::FirstToken { request });
        }
        for &request in &step.finished {
            let Request { came, served, .. } = &mut self.requests[request];
            served.total = end.saturating_sub(*came).as_secs_f64();
            self.put(seen, What::Finished { request });
        }
        let events = events_of(&step);
        if !events.is_empty() {
            self.put(end + seconds(self.setting.event_delay), What::Events { engine, events });
        }
        self.put(end, What::Step { engine });
    }

    fn finish(&mut self, request: usize) {
        let Request { session, turn, booking, done, .. } = &mut self.requests[request];
        *done = true;
        drop(booking.take());
        let (session, next) = (*session, *turn + 1);
        if let Some(turn) = self.workload.sessions[session].get(next) {
            self.put(self.now + seconds(turn.after), What::Turn { session, turn: next });
        }
    }

    fn outcome(self) -> Outcome {
        let warming = (self.requests.len() as f64 * self.setting.warm_up) as usize;
        let counts = || self.requests.iter().skip(warming);
        Outcome {
            served: counts().filter(|request| request.done).map(|request| request.served).collect(),
            unserved: counts().filter(|request| !request.done).count(),
            prefilled: self.prefilled,
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
mod tests {
    use super::*;
    use crate::simulate::Job;

    fn outcome(policy: &str, engines: usize, seed: u64) -> Outcome {
        let workload = Workload::agents(2.0, 25.0, &mut Rng::with_seed(seed));
        run(&workload, &policy.parse().unwrap(), &Setting::of(engines), seed).unwrap()
    }

    #[test]
    fn a_run_repeats_exactly_and_serves_every_request() {
        let workload = Workload::agents(2.0, 25.0, &mut Rng::with_seed(1));
        let turns: usize = workload.sessions.iter().map(Vec::len).sum();
        for policy in ["time", "blocks", "random", "power-of-two"] {
            let one = outcome(policy, 4, 1);
            assert_eq!((one.served.len(), one.unserved), (turns, 0), "{policy}");
            assert_eq!(one, outcome(policy, 4, 1), "{policy}");
            for served in &one.served {
                assert!(served.first_token > 0.0 && served.total >= served.first_token, "{served:?}");
                assert!(served.cached_tokens < served.prompt_tokens, "{served:?}");
            }
        }
    }

    #[test]
    fn the_index_holds_what_the_engines_hold_once_all_is_over() {
        let workload = Workload::burst(3.0, 30.0, &mut Rng::with_seed(5));
        let setting = Setting {
            model: EngineModel { cache_tokens: 60_000, ..EngineModel::default() },
            ..Setting::of(2)
        };
        let policy = "time".parse().unwrap();
        let mut run = Run::new(&workload, &policy, &setting, BlockSize::new(128).unwrap(), 5);
        let mut stored = vec![std::collections::BTreeSet::new(); 2];
        while let Some(((now, _), what)) = run.agenda.pop_first() {
            run.now = now;
            if let What::Events { engine, events } = &what {
                for event in events {
                    match event {
                        Event::Stored(of) => stored[*engine].extend(of.blocks.iter().map(|b| b.engine.0)),
                        Event::Removed(of) => of.hashes.iter().for_each(|hash| {
                            assert!(stored[*engine].remove(&hash.0), "removed what was not there");
                        }),
                        Event::Cleared(_) => {}
                    }
                }
            }
            run.happen(what);
        }
        for (member, stored) in run.members.iter().zip(&stored) {
            assert_eq!(run.index.blocks(member.slot)[0], stored.len() as u64);
        }
        assert_eq!(run.selector.loads().total(), crate::load::SlotLoad::default());
    }

    #[test]
    fn prefixes_are_found_where_they_are_cached() {
        let hit = |policy| outcome(policy, 4, 2).figures().hit_rate;
        assert!(hit("time") > hit("round-robin") + 0.1, "{} {}", hit("time"), hit("round-robin"));
    }

    #[test]
    fn what_fits_no_engine_is_not_served() {
        let jobs = [(0.0, Job::alone(500_000, 1, 1, 128)), (1.0, Job::alone(500, 1, 2, 128))];
        let workload = Workload::recorded(128, jobs);
        let outcome = run(&workload, &"time".parse().unwrap(), &Setting::of(1), 1).unwrap();
        assert_eq!((outcome.served.len(), outcome.unserved), (1, 1));
    }
}
