//! kvroute's prefix index beside those of its peers, in one process, on one list of operations.
//!
//! Each workload is made once, checked (every index against kvroute's literal one), then measured: ingest, lookups,
//! lookups beside a writer, two readers, memory. A table with medians and spreads comes first, then one `RATIO` line for each
//! figure, ours over theirs. `benches/README.md` says what each letter stands for.

mod adapter;
mod allocator;
mod arguments;
mod audit;
mod clock;
mod machine;
mod measure;
mod report;
mod trace;
mod workload;

use std::{error::Error, path::PathBuf};

use adapter::Contestant;
use arguments::{Arguments, HELP};
use audit::{Truth, audit};
use trace::{Request, TraceError};
use workload::Source;

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

/// When prompts are looked up, as fractions of a trace's requests.
const CHECKPOINTS: [f64; 5] = [0.3, 0.5, 0.7, 0.85, 1.0];
const QUICK_CHECKPOINTS: [f64; 2] = [0.5, 1.0];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    if arguments.help {
        print!("{HELP}");
        return Ok(());
    }
    println!(
        "kvroute {}, kv-index 2.0.0, dynamo-kv-router 1.6.1; {}; {} repetitions",
        env!("CARGO_PKG_VERSION"),
        machine::describe(),
        arguments.repetitions,
    );
    let source = Source {
        conversation: requests(&arguments.conversation, Source::conversation)?,
        synthetic: requests(&arguments.synthetic, Source::synthetic)?,
    };
    let checkpoints = if arguments.quick { &QUICK_CHECKPOINTS[..] } else { &CHECKPOINTS };
    for letter in arguments.letters.chars() {
        if let Some(workload) = workload::make(letter, &source, checkpoints) {
            run(&workload, arguments.repetitions);
        }
    }
    Ok(())
}

fn requests(trace: &Option<PathBuf>, own: fn() -> Vec<Request>) -> Result<Vec<Request>, TraceError> {
    trace.as_ref().map_or_else(|| Ok(own()), |path| trace::read(path))
}

fn run(workload: &workload::Workload, repetitions: usize) {
    report::title(workload);
    let truth = Truth::of(workload);
    let audits: Vec<_> =
        Contestant::ALL.into_iter().map(|contestant| audit(workload, contestant, &truth)).collect();
    report::audits(workload, &audits);
    let samples = measure::measure(workload, repetitions);
    report::table(workload, &samples, &audits);
    report::ratios(workload, &samples, &audits);
}
