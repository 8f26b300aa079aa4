//! One rank of an engine: its cache, and all that was ever true of it.

use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    sync::Arc,
};

use kvroute::{
    event::EngineHash,
    worker::mock::{BlockManager, CacheEvent, Namespace, Naming, Sequence, StoredRun},
};

use crate::{
    prompts::Prompts,
    wire::{Dialect, Told},
};

/// Blocks of host memory, where an engine has some.
const HOST_ROOM: usize = 8;
/// Requests that run at a time.
const MOST_RUNNING: usize = 3;

/// Copies of a block on the GPU, and whether one is in host memory.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Held {
    pub(crate) gpu: usize,
    pub(crate) host: bool,
}

/// What a rank holds at one moment.
pub(crate) type Holds = BTreeMap<EngineHash, Held>;

/// A batch as it was published, and what was true when it was.
pub(crate) struct Said {
    pub(crate) sequence: u64,
    pub(crate) payload: Rc<[u8]>,
    pub(crate) holds: Holds,
}

/// One incarnation.
pub(crate) struct Life {
    pub(crate) block_size: u32,
    /// What this incarnation calls the blocks of every text.
    pub(crate) names: Vec<Vec<EngineHash>>,
    pub(crate) said: Vec<Rc<Said>>,
}

/// How an incarnation is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) block_size: u32,
    pub(crate) naming_seed: u64,
    pub(crate) dialect: Dialect,
    pub(crate) rank: u32,
    pub(crate) blocks: u32,
    pub(crate) has_host: bool,
    /// Takes prompts over from elsewhere, most of the time.
    pub(crate) decodes: bool,
}

/// What a rank has and does now.
pub(crate) struct Cache {
    setup: Setup,
    naming: Naming,
    manager: BlockManager,
    /// The oldest first.
    host: VecDeque<EngineHash>,
    running: VecDeque<(Sequence, usize)>,
    fillers: u32,
}

impl Cache {
    pub(crate) fn new(setup: Setup) -> Self {
        let block_size = setup.block_size as usize;
        Self {
            naming: Naming { seed: setup.naming_seed, block_size },
            manager: BlockManager::new(block_size, setup.blocks),
            setup,
            host: VecDeque::new(),
            running: VecDeque::new(),
            fillers: 0,
        }
    }

    /// The life that begins with this cache.
    pub(crate) fn life(&self, prompts: &Prompts) -> Life {
        let names = prompts.texts.iter().map(|text| {
            Sequence::new(self.naming, Arc::clone(&text.namespace), text.tokens.clone()).names().to_vec()
        });
        Life { block_size: self.setup.block_size, names: names.collect(), said: Vec::new() }
    }

    /// A step of the engine. Returns the text of which it was sent the prompt, if it was sent one.
    pub(crate) fn work(&mut self, prompts: &Prompts, rng: &mut fastrand::Rng) -> Option<usize> {
        match rng.u8(..20) {
            0..=9 => {
                let text = rng.usize(..prompts.texts.len());
                self.begin(prompts, text, rng.u8(..4) > 0);
                return Some(text);
            }
            10..=17 if !self.running.is_empty() => {
                let at = rng.usize(..self.running.len());
                self.go_on(prompts, at, rng.usize(1..6));
            }
            18 => self.end_all(),
            // Silent until the next step that has something to say, which may never come.
            19 if self.running.is_empty() && self.manager.reset() => self.host.clear(),
            _ => {}
        }
        None
    }

    fn begin(&mut self, prompts: &Prompts, at: usize, may_transfer: bool) {
        if self.running.len() == MOST_RUNNING {
            self.end_first();
        }
        let text = &prompts.texts[at];
        let mut sequence =
            Sequence::new(self.naming, Arc::clone(&text.namespace), text.tokens[..text.prompt].to_vec());
        let transfers = self.setup.decodes && may_transfer;
        let admit = |manager: &mut BlockManager, sequence: &mut Sequence| match transfers {
            true => manager.admit_transferred(sequence),
            false => manager.admit(sequence),
        };
        while admit(&mut self.manager, &mut sequence).is_err() {
            if !self.end_first() {
                return;
            }
        }
        let missing = sequence.uncomputed();
        self.manager.compute(&mut sequence, missing).unwrap();
        self.running.push_back((sequence, at));
    }

    fn go_on(&mut self, prompts: &Prompts, at: usize, tokens: usize) {
        let Some((mut sequence, text)) = self.running.remove(at) else { return };
        let rest = &prompts.texts[text].tokens[sequence.tokens().len()..];
        for &token in &rest[..rest.len().min(tokens)] {
            sequence.push(token);
            while self.manager.compute(&mut sequence, 1).is_err() {
                if !self.end_first() {
                    self.manager.release(&mut sequence);
                    return;
                }
            }
        }
        if rest.len() <= tokens {
            self.manager.release(&mut sequence);
        } else {
            self.running.push_back((sequence, text));
        }
    }

    fn end_first(&mut self) -> bool {
        let first = self.running.pop_front();
        let ended = first.is_some();
        first.into_iter().for_each(|(mut sequence, _)| self.manager.release(&mut sequence));
        ended
    }

    fn end_all(&mut self) {
        while self.end_first() {}
    }

    /// Computes a prompt that nobody else has: enough of these, and nothing is left of what was cached before.
    pub(crate) fn fill(&mut self) {
        self.end_all();
        self.fillers += 1;
        let tokens = (0..4 * self.setup.block_size).map(|at| 1_000 * self.fillers + at).collect();
        let mut sequence = Sequence::new(self.naming, Arc::new(Namespace::default()), tokens);
        self.manager.admit(&mut sequence).unwrap();
        let missing = sequence.uncomputed();
        self.manager.compute(&mut sequence, missing).unwrap();
        self.manager.release(&mut sequence);
    }

    /// How many of them that takes.
    pub(crate) fn fillers_for_all(&self) -> usize {
        self.manager.capacity() / 4 + HOST_ROOM
    }

    /// What is said of everything since the last time; `None` if there is nothing. `copies`: of what was stored, everything
    /// goes to host memory, or some.
    pub(crate) fn tell(&mut self, copies_all: bool, rng: &mut fastrand::Rng) -> Option<Vec<Told>> {
        let events = self.manager.take_events();
        let mut told = Vec::with_capacity(events.len());
        for event in events {
            let run = match &event {
                CacheEvent::Stored(run) if self.setup.has_host && (copies_all || rng.bool()) => {
                    Some(run.clone())
                }
                _ => None,
            };
            told.push(Told::Gpu(event));
            told.extend(run.into_iter().flat_map(|run| self.copy(run, rng.bool())));
        }
        (!told.is_empty()).then_some(told)
    }

    fn copy(&mut self, run: StoredRun, by_name: bool) -> Vec<Told> {
        if run.names.iter().any(|name| self.host.contains(name)) {
            return Vec::new();
        }
        self.host.extend(&run.names);
        let surplus = self.host.len().saturating_sub(HOST_ROOM);
        let gone: Vec<_> = self.host.drain(..surplus).collect();
        let stored = Told::HostStored { run, by_name };
        if gone.is_empty() { vec![stored] } else { vec![stored, Told::HostRemoved(gone)] }
    }

    pub(crate) fn encode(&self, stamp: u64, told: &[Told]) -> Vec<u8> {
        self.setup.dialect.batch(stamp as f64 / 1_000.0, self.setup.rank, told)
    }

    pub(crate) fn holds(&self) -> Holds {
        let gpu = self.manager.held().map(|(name, gpu)| (name, Held { gpu, host: false }));
        let mut holds: Holds = gpu.collect();
        for &name in &self.host {
            holds.entry(name).or_default().host = true;
        }
        holds
    }
}
