//! A GPU against the CPU, on a machine that has one: `just bench-gpu`.
//!
//! Checks that hashes are those of the CPU, bit for bit, on the driver and the device that are there; measures the kernels, the
//! copies, whole batches, and from how many blocks on the GPU is faster; and compares what NVML's sampler reads with what
//! `nvidia-smi` says. All of it goes into one Markdown report, to standard output or to the file after `--report`; it takes less
//! than four minutes.
//!
//! `--device N` takes the device of that number in CUDA's order. The device should be idle. Without one a line says
//! so, and that is all.

use std::{error::Error, fmt::Write as _, process::Command, time::Instant};

use kvroute::{
    accel::{AcceleratorSettings, MeasuredDevice},
    device::{
        DeviceReading,
        nvml::{SamplerSettings, sample_once},
    },
    hash::BlockSize,
};

const BLOCK_SIZES: [u32; 2] = [16, 64];

/// Tokens of the batches that are timed.
const BATCHES: [usize; 5] = [1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24];

/// What NVML and `nvidia-smi` are asked for alike: the latter's name, the former's reading, and how far apart two looks at a
/// device that does nothing may be.
type Question = (&'static str, fn(&DeviceReading) -> Option<f64>, f64);

const QUESTIONS: [Question; 9] = [
    ("utilization.gpu", |reading| reading.sm_utilisation.value().map(|share| share * 100.0), 10.0),
    ("memory.total", |reading| reading.memory_total_bytes.value().map(mebibytes), 1.0),
    ("memory.used", |reading| reading.memory_used_bytes.value().map(mebibytes), 1024.0),
    ("power.draw", |reading| reading.power_watts.value(), 50.0),
    ("enforced.power.limit", |reading| reading.power_cap_watts.value(), 1.0),
    ("temperature.gpu", |reading| reading.temperature_celsius.value().map(f64::from), 5.0),
    ("clocks.max.sm", |reading| reading.sm_clock_max_mhz.value().map(f64::from), 0.5),
    ("pcie.link.gen.max", |reading| reading.pcie_generation_max.value().map(f64::from), 0.5),
    ("pcie.link.width.max", |reading| reading.pcie_width_max.value().map(f64::from), 0.5),
];

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().collect();
    let after = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let ordinal = after("--device").map_or(Ok(0), |text| text.parse())?;
    let settings = AcceleratorSettings::default();
    let mut device = match MeasuredDevice::open(ordinal, &settings) {
        Ok(device) => device,
        Err(why) => {
            println!("no GPU is measured: {why}");
            return Ok(());
        }
    };
    // `cargo test` runs benches once, to see that they work: without `--bench`. Then a little of everything will do.
    let thorough = arguments.iter().any(|argument| argument == "--bench");
    let text = report(&mut device, settings.threads.get(), thorough)?;
    match after("--report") {
        Some(path) => {
            std::fs::write(&path, text)?;
            println!("wrote {path}");
        }
        None => println!("{text}"),
    }
    Ok(())
}

fn report(device: &mut MeasuredDevice, threads: usize, thorough: bool) -> Result<String, Box<dyn Error>> {
    let start = Instant::now();
    let mut text =
        format!("# kvroute on a GPU\n\n{}; kvroute {}\n", device.name(), env!("CARGO_PKG_VERSION"));
    let (blocks, runs) = if thorough { (1 << 20, 51) } else { (1 << 10, 3) };
    let compared = device.verify(&BLOCK_SIZES, blocks)?;
    writeln!(
        text,
        "\n## Hashes\n\n{compared} hashes of blocks of 1 to 320 tokens are those of the CPU, bit for bit."
    )?;
    writeln!(text, "\n## One chunk on the device\n")?;
    writeln!(text, "Medians of {runs} runs, in microseconds, by the device's own clock.\n")?;
    writeln!(text, "| tokens in a block | blocks | copy in | GB/s | kernel | ns a block | copy out |")?;
    writeln!(text, "|---|---|---|---|---|---|---|")?;
    for size in BLOCK_SIZES {
        let steps = device.chunk(BlockSize::new(size)?, runs)?;
        let bytes = (4 * size as usize * steps.blocks) as f64;
        writeln!(
            text,
            "| {size} | {} | {:.1} | {:.1} | {:.1} | {:.3} | {:.1} |",
            steps.blocks,
            steps.upload,
            bytes / steps.upload / 1e3,
            steps.kernel,
            steps.kernel * 1e3 / steps.blocks as f64,
            steps.download
        )?;
    }
    writeln!(text, "\n## Whole batches\n")?;
    writeln!(text, "From tokens to hashes in ordinary memory: the fastest of three, in microseconds.\n")?;
    writeln!(text, "| tokens in a block | blocks | CPU, 1 thread | CPU, {threads} threads | GPU |")?;
    writeln!(text, "|---|---|---|---|---|")?;
    for size in BLOCK_SIZES {
        for tokens in BATCHES.into_iter().take(if thorough { BATCHES.len() } else { 1 }) {
            let times = device.batch(BlockSize::new(size)?, tokens / size as usize)?;
            let [one, several, gpu] =
                [times.one_thread, times.threads, times.gpu].map(|time| time.as_secs_f64() * 1e6);
            writeln!(text, "| {size} | {} | {one:.0} | {several:.0} | {gpu:.0} |", times.blocks)?;
        }
    }
    writeln!(text, "\n## From how many blocks on the GPU is faster\n")?;
    writeln!(text, "As it is decided in operation: by a quarter, or never.\n")?;
    writeln!(text, "| tokens in a block | than 1 thread | than {threads} threads |\n|---|---|---|")?;
    for size in BLOCK_SIZES.into_iter().take(if thorough { 2 } else { 0 }) {
        let blocks = device.break_even(BlockSize::new(size)?)?;
        let [one, several] = blocks.map(|blocks| blocks.map_or("never".to_owned(), |n| n.to_string()));
        writeln!(text, "| {size} | {one} | {several} |")?;
    }
    writeln!(text, "\n## NVML's readings beside those of nvidia-smi\n\n{}", readings()?)?;
    writeln!(text, "Taken in {:.0} s.", start.elapsed().as_secs_f64())?;
    Ok(text)
}

/// One look by each, a moment apart.
fn readings() -> Result<String, Box<dyn Error>> {
    let names: Vec<_> = QUESTIONS.iter().map(|(name, ..)| *name).collect();
    let asked = Command::new("nvidia-smi")
        .arg(format!("--query-gpu=uuid,{}", names.join(",")))
        .arg("--format=csv,noheader,nounits")
        .output();
    let sample = sample_once(&SamplerSettings::default());
    if let Some(absence) = sample.absence {
        return Ok(format!("NVML says nothing: {absence}.\n"));
    }
    let answer = match asked {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout)?,
        _ => return Ok("There is no nvidia-smi that answers.\n".to_owned()),
    };
    let mut text = "| GPU | reading | NVML | nvidia-smi | |\n|---|---|---|---|---|\n".to_owned();
    for line in answer.lines() {
        let mut cells = line.split(',').map(str::trim);
        let uuid = cells.next().unwrap_or_default();
        let reading = sample.devices.iter().find(|reading| reading.uuid == uuid);
        for ((name, read, apart), theirs) in QUESTIONS.iter().zip(cells) {
            let ours = reading.and_then(read);
            let verdict = match (ours, theirs.parse::<f64>()) {
                (Some(ours), Ok(theirs)) if (ours - theirs).abs() <= *apart => "agree",
                (Some(_), Ok(_)) => "DIFFER",
                (None, Err(_)) => "neither knows",
                _ => "ONE KNOWS",
            };
            let ours = ours.map_or("-".to_owned(), |ours| format!("{ours:.1}"));
            writeln!(text, "| {uuid} | {name} | {ours} | {theirs} | {verdict} |")?;
        }
    }
    Ok(text)
}
