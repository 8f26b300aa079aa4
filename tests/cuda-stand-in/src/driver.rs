//! The driver's state: contexts, memory, modules, streams and their queues.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use crate::{
    machine::{self, Fault, FaultKind, Launch},
    memory::Memory,
    module::Module,
    settings::Settings,
};

/// A `CUresult`.
pub type Code = u32;

pub const SUCCESS: Code = 0;
pub const INVALID_VALUE: Code = 1;
pub const OUT_OF_MEMORY: Code = 2;
pub const NOT_INITIALIZED: Code = 3;
pub const NO_DEVICE: Code = 100;
pub const INVALID_DEVICE: Code = 101;
pub const INVALID_CONTEXT: Code = 201;
pub const NO_BINARY: Code = 209;
pub const INVALID_PTX: Code = 218;
pub const UNSUPPORTED_PTX: Code = 222;
pub const INVALID_HANDLE: Code = 400;
pub const NOT_FOUND: Code = 500;
pub const ILLEGAL_ADDRESS: Code = 700;
pub const TIMEOUT: Code = 702;
pub const MISALIGNED: Code = 716;
pub const LAUNCH_FAILED: Code = 719;
pub const NOT_SUPPORTED: Code = 801;

/// After these a context answers nothing else any more.
pub fn is_sticky(code: Code) -> bool {
    matches!(code, ILLEGAL_ADDRESS | TIMEOUT | 710 | 714..=719)
}

/// One process's driver, with one context.
#[derive(Debug)]
pub struct Driver {
    pub settings: Settings,
    pub memory: Memory,
    pub calls: BTreeMap<String, u64>,
    /// What callers did that a real driver might let pass.
    pub wrongs: Vec<String>,
    pub initialised: bool,
    pub retained: u32,
    sticky: Code,
    streams: HashMap<u64, VecDeque<Job>>,
    events: HashMap<u64, Event>,
    modules: HashMap<u64, Arc<Module>>,
    functions: HashMap<u64, (Arc<Module>, String)>,
    /// Host memory of ours, by address.
    pinned: BTreeMap<usize, Box<[u64]>>,
    next_handle: u64,
}

/// What waits in a stream.
#[derive(Debug)]
enum Job {
    Upload { to: u64, from: usize, bytes: usize },
    Download { to: usize, from: u64, bytes: usize },
    Launch { module: Arc<Module>, kernel: String, launch: Launch },
    Record(u64),
}

#[derive(Debug, Default)]
struct Event {
    /// The stream that it was last recorded in, while that has not come so far.
    waits_in: Option<u64>,
    reached: Option<Instant>,
}

impl Driver {
    pub fn new(settings: Settings) -> Self {
        let memory = Memory::new(settings.memory_mib << 20);
        Self {
            settings,
            memory,
            calls: BTreeMap::new(),
            wrongs: Vec::new(),
            initialised: false,
            retained: 0,
            sticky: SUCCESS,
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            pinned: BTreeMap::new(),
            next_handle: 0x100,
        }
    }

    /// Counts a call, and fails it if it is to fail.
    pub fn enter(&mut self, function: &str) -> Result<(), Code> {
        let calls = self.calls.entry(function.to_owned()).or_default();
        *calls += 1;
        if let Some(code) = self.settings.failure(function, *calls) {
            if is_sticky(code) {
                self.sticky = code;
            }
            return Err(code);
        }
        if function != "cuInit" && function != "cuDriverGetVersion" && !self.initialised {
            return Err(NOT_INITIALIZED);
        }
        if self.sticky == SUCCESS { Ok(()) } else { Err(self.sticky) }
    }

    /// What was not given back.
    pub fn left(&self) -> [(&'static str, usize); 5] {
        [
            ("device_memory", self.memory.allocations()),
            ("pinned_memory", self.pinned.len()),
            ("streams", self.streams.len()),
            ("events", self.events.len()),
            ("modules", self.modules.len()),
        ]
    }

    fn handle(&mut self) -> u64 {
        self.next_handle += 8;
        self.next_handle
    }

    pub fn load(&mut self, text: &str) -> Result<u64, Code> {
        let module = Module::parse(text).map_err(|invalid| {
            eprintln!("CUDA stand-in: {invalid}");
            INVALID_PTX
        })?;
        if module.version > self.settings.newest_ptx() {
            return Err(UNSUPPORTED_PTX);
        }
        if module.target > self.settings.capability {
            return Err(NO_BINARY);
        }
        let handle = self.handle();
        self.modules.insert(handle, Arc::new(module));
        Ok(handle)
    }

    pub fn unload(&mut self, module: u64) -> Result<(), Code> {
        self.modules.remove(&module).map(drop).ok_or(INVALID_HANDLE)
    }

    pub fn function(&mut self, module: u64, name: &str) -> Result<u64, Code> {
        let module = Arc::clone(self.modules.get(&module).ok_or(INVALID_HANDLE)?);
        if !module.kernels.contains_key(name) {
            return Err(NOT_FOUND);
        }
        let handle = self.handle();
        self.functions.insert(handle, (module, name.to_owned()));
        Ok(handle)
    }

    /// Where the parameters of a function lie: offset and size of each.
    pub fn parameters(&self, function: u64) -> Result<Vec<(usize, usize)>, Code> {
        let (module, name) = self.functions.get(&function).ok_or(INVALID_HANDLE)?;
        Ok(module.kernels[name].parameters.clone())
    }

    pub fn launch(&mut self, stream: u64, function: u64, launch: Launch) -> Result<(), Code> {
        let (module, name) = self.functions.get(&function).cloned().ok_or(INVALID_HANDLE)?;
        let kernel = &module.kernels[&name];
        let most = kernel.max_threads.unwrap_or(1024).min(1024);
        if launch.blocks == 0
            || launch.threads == 0
            || launch.threads > most
            || kernel.shared_bytes > 48 << 10
        {
            return Err(INVALID_VALUE);
        }
        self.push(stream, Job::Launch { module, kernel: name, launch })
    }

    pub fn pin(&mut self, bytes: usize) -> Result<usize, Code> {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        // Not zeros: whoever counts on them is wrong.
        let memory = vec![0xa5a5_a5a5_a5a5_a5a5; bytes.div_ceil(8)].into_boxed_slice();
        let address = memory.as_ptr() as usize;
        self.pinned.insert(address, memory);
        Ok(address)
    }

    pub fn unpin(&mut self, address: usize) -> Result<(), Code> {
        self.nothing_queued("pinned memory")?;
        self.pinned.remove(&address).map(drop).ok_or(INVALID_VALUE)
    }

    pub fn free(&mut self, address: u64) -> Result<(), Code> {
        self.nothing_queued("device memory")?;
        if self.memory.free(address) { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// Memory that queued work may still use is not to be given back. (A driver would wait first, or not, by kind.)
    fn nothing_queued(&mut self, what: &str) -> Result<(), Code> {
        if self.streams.values().all(VecDeque::is_empty) {
            return Ok(());
        }
        self.wrong(format!("{what} was given back while work was queued"));
        Err(INVALID_VALUE)
    }

    fn wrong(&mut self, what: String) {
        eprintln!("CUDA stand-in: {what}");
        self.wrongs.push(what);
    }

    /// Copies that are not from or to pinned memory would be neither asynchronous nor fast.
    fn check_pinned(&mut self, address: usize, bytes: usize) -> Result<(), Code> {
        let found = self.pinned.range(..=address).next_back();
        if found.is_some_and(|(start, memory)| address + bytes <= start + 8 * memory.len()) {
            return Ok(());
        }
        self.wrong("an asynchronous copy from or to memory that is not pinned".to_owned());
        Err(INVALID_VALUE)
    }

    pub fn upload(&mut self, stream: u64, to: u64, from: usize, bytes: usize) -> Result<(), Code> {
        self.check_pinned(from, bytes)?;
        self.push(stream, Job::Upload { to, from, bytes })
    }

    pub fn download(&mut self, stream: u64, to: usize, from: u64, bytes: usize) -> Result<(), Code> {
        self.check_pinned(to, bytes)?;
        self.push(stream, Job::Download { to, from, bytes })
    }

    pub fn create_stream(&mut self) -> u64 {
        let handle = self.handle();
        self.streams.insert(handle, VecDeque::new());
        handle
    }

    pub fn destroy_stream(&mut self, stream: u64) -> Result<(), Code> {
        self.finish(stream)?;
        self.streams.remove(&stream).map(drop).ok_or(INVALID_HANDLE)
    }

    fn push(&mut self, stream: u64, job: Job) -> Result<(), Code> {
        self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?.push_back(job);
        Ok(())
    }

    pub fn create_event(&mut self) -> u64 {
        let handle = self.handle();
        self.events.insert(handle, Event::default());
        handle
    }

    pub fn destroy_event(&mut self, event: u64) -> Result<(), Code> {
        self.events.remove(&event).map(drop).ok_or(INVALID_HANDLE)
    }

    pub fn record(&mut self, event: u64, stream: u64) -> Result<(), Code> {
        let known = self.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        *known = Event { waits_in: Some(stream), reached: None };
        self.push(stream, Job::Record(event))
    }

    /// Runs the event's stream up to it.
    pub fn wait_for(&mut self, event: u64) -> Result<(), Code> {
        while let Some(stream) = self.events.get(&event).ok_or(INVALID_HANDLE)?.waits_in {
            let job = self.streams.get_mut(&stream).and_then(VecDeque::pop_front);
            self.perform(job.ok_or(INVALID_HANDLE)?)?;
        }
        Ok(())
    }

    pub fn milliseconds(&self, from: u64, to: u64) -> Result<f32, Code> {
        let reached = |event| self.events.get(&event).and_then(|event| event.reached).ok_or(INVALID_HANDLE);
        Ok(reached(to)?.saturating_duration_since(reached(from)?).as_secs_f32() * 1e3)
    }

    /// Runs what waits in `stream`.
    pub fn finish(&mut self, stream: u64) -> Result<(), Code> {
        loop {
            match self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?.pop_front() {
                Some(job) => self.perform(job)?,
                None => return Ok(()),
            }
        }
    }

    fn perform(&mut self, job: Job) -> Result<(), Code> {
        self.try_perform(job).map_err(|fault| {
            self.wrong(fault.what);
            self.sticky = match fault.kind {
                FaultKind::Illegal => ILLEGAL_ADDRESS,
                FaultKind::Misaligned => MISALIGNED,
                FaultKind::Endless => TIMEOUT,
                FaultKind::Race | FaultKind::Barrier => LAUNCH_FAILED,
            };
            self.sticky
        })
    }

    fn try_perform(&mut self, job: Job) -> Result<(), Fault> {
        match job {
            Job::Upload { to, from, bytes } => {
                // SAFETY: the range lies in pinned memory (`check_pinned`), which is not given back while work is queued.
                let source = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
                self.memory.put(to, source)
            }
            Job::Download { to, from, bytes } => {
                let source = self.memory.get(from, bytes)?;
                // SAFETY: as above; nobody else writes there until the stream is waited for, or the result is not defined.
                unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), to as *mut u8, bytes) };
                Ok(())
            }
            Job::Launch { module, kernel, launch } => {
                machine::run(&module, &module.kernels[&kernel], &launch, &mut self.memory).map(drop)
            }
            Job::Record(event) => {
                if let Some(event) = self.events.get_mut(&event) {
                    *event = Event { waits_in: None, reached: Some(Instant::now()) };
                }
                Ok(())
            }
        }
    }
}
