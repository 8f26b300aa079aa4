//! How far the device has been got: not asked yet, open, or gone. And what is done with it once it is open.

use std::{
    mem,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use ahash::AHashMap;
use tracing::{debug, info, warn};

use super::{
    Accelerator, AcceleratorSettings, DeviceState, HashDevice, Where, calibrate,
    calibrate::Line,
    driver::{Device, Failure, contained, devices},
    gpu::{Gpu, NotOpened, Run},
    occupancy::{Verdict, Watch},
    presence::Absence,
};
use crate::hash::{
    BatchHasher as _, BatchPrompt, BlockHash, BlockHasher, BlockSize, CpuBatchHasher, HashedBatch, Identity,
    Prompt,
};

/// Tokens below which no device is thought of: no copy to one is over before the CPU is done.
const LEAST_TOKENS: usize = 1 << 16;

/// Failures in a row, none of which was the end by itself, after which a device is let go.
const MOST_FAILURES: u32 = 3;

/// From one attempt to open a device that had no time or memory to the next.
const OPEN_AGAIN: Duration = Duration::from_secs(10);

/// The least compute capability that the kernels are compiled for.
const LEAST_CAPABILITY: (i32, i32) = (7, 0);

/// How far the device has been got.
#[derive(Debug, Default)]
pub(super) enum Stage {
    #[default]
    Closed,
    /// It had no time or no memory then.
    Tried(Instant),
    Open(Box<Opened>),
    Gone,
}

/// An open device and what is known about it.
#[derive(Debug)]
pub(super) struct Opened {
    gpu: Gpu,
    watch: Watch,
    /// By the tokens that a digest covers, from how many blocks on it is faster; `None` is never.
    break_even: AHashMap<u32, Option<usize>>,
    failures: u32,
}

/// Whether a batch of `blocks` blocks may be worth a device.
pub(super) fn is_worth_a_look(settings: &AcceleratorSettings, cpu: &CpuBatchHasher, blocks: usize) -> bool {
    match settings.least_blocks {
        Some(least) => blocks > 0 && blocks >= least,
        None => blocks.saturating_mul(cpu.block_size().get() as usize) >= LEAST_TOKENS,
    }
}

impl Stage {
    /// Hashes a batch on the device if that is [`Where::Gpu`].
    pub(super) fn hash(
        &mut self,
        accelerator: &Accelerator,
        cpu: &mut CpuBatchHasher,
        prompts: &[BatchPrompt<'_>],
        out: &mut HashedBatch,
    ) -> Where {
        let opened = match self.opened(accelerator) {
            Ok(opened) => opened,
            Err(place) => return place,
        };
        if let Verdict::Busy(why) = opened.watch.now(&opened.gpu.device().uuid) {
            debug!(why, "a batch is not hashed on the GPU");
            return Where::Busy;
        }
        match opened.hash(&accelerator.settings, cpu, prompts, out) {
            Ok(place) => {
                opened.failures = 0;
                place
            }
            Err(failure) => {
                self.failed(accelerator, &failure);
                Where::Error
            }
        }
    }

    fn opened(&mut self, accelerator: &Accelerator) -> Result<&mut Opened, Where> {
        match self {
            Self::Gone => return Err(Where::NoDevice),
            Self::Tried(when) if when.elapsed() < OPEN_AGAIN => return Err(Where::Busy),
            _ => {}
        }
        if !matches!(self, Self::Open(_)) {
            *self = Self::open(accelerator)?;
        }
        match self {
            Self::Open(opened) => Ok(opened),
            Self::Tried(_) => Err(Where::Busy),
            Self::Closed | Self::Gone => Err(Where::NoDevice),
        }
    }

    /// Opens a device, and says how that went where it is not [`Stage::Tried`].
    fn open(accelerator: &Accelerator) -> Result<Self, Where> {
        let opened = open(&accelerator.settings);
        match opened {
            Ok(opened) => {
                let Device { name, uuid, .. } = opened.gpu.device();
                info!(name, uuid, "large batches of prompts are hashed on this GPU");
                accelerator.status.set(DeviceState::Ready, format!("{name} {uuid}"));
                Ok(Self::Open(Box::new(opened)))
            }
            Err(NoGpu::Now(why)) => {
                debug!(why, "no GPU is opened for hashing now");
                Ok(Self::Tried(Instant::now()))
            }
            Err(NoGpu::Ever(absence)) => {
                let reason = absence.to_string();
                info!(reason, "batches of prompts are hashed on the CPU");
                accelerator.status.set(DeviceState::Absent, reason);
                Ok(Self::Gone)
            }
        }
    }

    /// Goes on with the device after a failure that it survived, else lets it go.
    fn failed(&mut self, accelerator: &Accelerator, failure: &Failure) {
        let Self::Open(opened) = self else { return };
        opened.failures += 1;
        let survived = !failure.is_sticky() && opened.failures < MOST_FAILURES && opened.gpu.settle().is_ok();
        if survived {
            debug!(%failure, "a batch failed on the GPU and is hashed on the CPU");
            return;
        }
        let uuid = opened.gpu.device().uuid.clone();
        warn!(%failure, uuid, "the GPU is not used for hashing any more; batches of prompts are hashed on the CPU");
        accelerator.status.set(DeviceState::Failed, failure.to_string());
        if let Self::Open(opened) = mem::replace(self, Self::Gone) {
            // Nothing is given back: a context in this state answers no call, and some would hang.
            mem::forget(opened.gpu);
        }
    }
}

/// Why no device was opened.
enum NoGpu {
    Ever(Absence),
    Now(&'static str),
}

fn open(settings: &AcceleratorSettings) -> Result<Opened, NoGpu> {
    let listed = contained(devices).map_err(|failure| NoGpu::Ever(Absence::Unanswered(failure)))?;
    let able: Vec<_> = listed.into_iter().filter(|device| device.capability >= LEAST_CAPABILITY).collect();
    let watch = Watch::start(settings);
    let device = choose(settings, &able, &watch)?;
    let gpu = Gpu::open(device).map_err(|problem| match problem {
        NotOpened::Full => NoGpu::Now("too little free memory"),
        NotOpened::Unloadable(failure) => NoGpu::Ever(Absence::Unloadable(failure)),
        NotOpened::Failed(failure) => NoGpu::Ever(Absence::Unanswered(failure)),
    })?;
    Ok(Opened { gpu, watch, break_even: AHashMap::new(), failures: 0 })
}

/// The device that the settings mean, of those that can run the kernels.
fn choose<'a>(
    settings: &AcceleratorSettings,
    able: &'a [Device],
    watch: &Watch,
) -> Result<&'a Device, NoGpu> {
    if let HashDevice::Uuid(uuid) = &settings.device {
        let named = able.iter().find(|device| device.uuid.eq_ignore_ascii_case(uuid));
        let Some(device) = named else {
            let uuids: Vec<_> = able.iter().map(|device| device.uuid.as_str()).collect();
            let found = if uuids.is_empty() { "none".to_owned() } else { uuids.join(", ") };
            return Err(NoGpu::Ever(Absence::NoDevice(format!(" with the UUID {uuid}; it lists {found}"))));
        };
        return match watch.before_opening(&device.uuid) {
            Verdict::Busy(why) => Err(NoGpu::Now(why)),
            Verdict::Free(_) | Verdict::Unknown => Ok(device),
        };
    }
    let mut best: Option<(u64, &Device)> = None;
    let mut busy = None;
    for device in able {
        match watch.before_opening(&device.uuid) {
            Verdict::Free(Some(free)) if best.is_none_or(|(most, _)| free > most) => {
                best = Some((free, device));
            }
            Verdict::Busy(why) => busy = Some(why),
            Verdict::Free(_) | Verdict::Unknown => {}
        }
    }
    match (best, busy) {
        (Some((_, device)), _) => Ok(device),
        (None, Some(why)) => Err(NoGpu::Now(why)),
        (None, None) if able.is_empty() => Err(NoGpu::Ever(Absence::NoDevice(String::new()))),
        (None, None) => Err(NoGpu::Ever(Absence::NoDevice(
            " of which NVML tells the free memory; name one by its UUID to use it all the same".to_owned(),
        ))),
    }
}

impl Opened {
    fn hash(
        &mut self,
        settings: &AcceleratorSettings,
        cpu: &mut CpuBatchHasher,
        prompts: &[BatchPrompt<'_>],
        out: &mut HashedBatch,
    ) -> Result<Where, Failure> {
        let block_size = cpu.block_size();
        let mut plan = Vec::new();
        let mut any = false;
        let mut start = 0;
        for alike in prompts.chunk_by(|a, b| a.identity == b.identity && a.prompt.eagle == b.prompt.eagle) {
            let blocks = cpu.count(alike);
            let Some(words) = alike.first().and_then(|first| words(block_size, first.prompt.eagle)) else {
                return Ok(Where::Small);
            };
            let least = match settings.least_blocks {
                Some(least) => Some(least),
                None => self.break_even(block_size, words, settings.threads)?,
            };
            let large = blocks > 0 && least.is_some_and(|least| blocks >= least);
            any |= large;
            plan.push((alike, words, large, start..start + blocks));
            start += blocks;
        }
        if !any {
            return Ok(Where::Small);
        }
        let places = out.lay_out(prompts.iter().map(|of| cpu.count(std::slice::from_ref(of))));
        for (alike, words, large, range) in plan {
            let out = &mut places[range];
            if large {
                let identity = alike.first().map_or(Identity::plain(), |first| first.identity);
                let hasher = BlockHasher::new(block_size, identity);
                self.gpu.hash(Run { hasher: &hasher, prompts: alike, words }, out)?;
            } else {
                cpu.fill(alike, out);
            }
        }
        Ok(Where::Gpu)
    }

    /// From how many blocks on the device is faster, measured when it is asked for the first time.
    fn break_even(
        &mut self,
        block_size: BlockSize,
        words: u32,
        threads: NonZeroUsize,
    ) -> Result<Option<usize>, Failure> {
        if let Some(known) = self.break_even.get(&words) {
            return Ok(*known);
        }
        let (cpu, gpu) = measure_lines(&mut self.gpu, block_size, words, threads)?;
        let least = calibrate::break_even(cpu, gpu);
        debug!(words, ?least, ?cpu, ?gpu, "measured from how many blocks on the GPU is faster");
        self.break_even.insert(words, least);
        Ok(least)
    }
}

/// Tokens that a digest covers, where a slot has room for so many.
pub(super) fn words(block_size: BlockSize, eagle: bool) -> Option<u32> {
    block_size.get().checked_add(u32::from(eagle)).filter(|words| Gpu::takes(*words))
}

/// What both sides take for batches of text, by their size.
pub(super) fn measure_lines(
    gpu: &mut Gpu,
    block_size: BlockSize,
    words: u32,
    threads: NonZeroUsize,
) -> Result<(Line, Line), Failure> {
    let eagle = words > block_size.get();
    let tokens: Vec<u32> = (0..calibrate::SIZES[2] as u32 + 1).map(|i| i.wrapping_mul(0x9E37_79B1)).collect();
    let hasher = BlockHasher::new(block_size, Identity::plain());
    let mut cpu = CpuBatchHasher::with_threads(block_size, threads);
    let mut batch = HashedBatch::new();
    let mut out: Vec<BlockHash> = Vec::new();
    let (mut of_cpu, mut of_gpu) = (Vec::new(), Vec::new());
    for size in calibrate::SIZES {
        let prompt = Prompt { tokens: &tokens[..size + usize::from(eagle)], multimodal: &[], eagle };
        let prompts = [BatchPrompt { identity: Identity::plain(), prompt }];
        let blocks = hasher.count(&prompt);
        out.resize(blocks, BlockHash(0));
        let mut on_gpu = || {
            let start = Instant::now();
            gpu.hash(Run { hasher: &hasher, prompts: &prompts, words }, &mut out)?;
            Ok(start.elapsed())
        };
        // The first time it touches memory that nobody has touched.
        on_gpu()?;
        of_gpu.push((blocks, calibrate::fastest(on_gpu)?));
        let time = calibrate::fastest(|| {
            let start = Instant::now();
            cpu.hash(&prompts, &mut batch).map(|()| start.elapsed())
        });
        of_cpu.push((blocks, time.unwrap_or_default()));
    }
    Ok((Line::through(&of_cpu), Line::through(&of_gpu)))
}
