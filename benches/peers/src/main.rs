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

use std::{error::Error, path::PathBuf, process::ExitCode, thread};

use adapter::Contestant;
use arguments::{Arguments, HELP};
use audit::{Audit, Truth, audit};
use measure::Effort;
use trace::{Request, TraceError};
use workload::{Source, Workload};

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

fn main() -> ExitCode {
    match compare() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    if arguments.help {
        print!("{HELP}");
        return Ok(());
    }
    println!(
        "kvroute {}, kv-index 2.0.0, dynamo-kv-router 1.6.1; {}; {} repetitions",
        env!("CARGO_PKG_VERSION"),
        machine::describe(),
        arguments.effort.repetitions,
    );
    let source = Source {
        conversation: requests(&arguments.conversation, Source::conversation)?,
        synthetic: requests(&arguments.synthetic, Source::synthetic)?,
    };
    let make = |letter| {
        let workload = workload::make(letter, &source, arguments.effort.checkpoints)?;
        let truth = Truth::of(&workload);
        Some((workload, truth))
    };
    let mut letters = arguments.letters.chars();
    let mut next = letters.next().and_then(make);
    while let Some((workload, truth)) = next {
        report::title(&workload);
        // The next workload is made while this one is checked: neither is timed.
        let (audits, made) = thread::scope(|scope| {
            let made = scope.spawn(|| allocator::uncounted(|| letters.next().and_then(make)));
            (audit_all(&workload, &truth), made.join())
        });
        report::audits(&workload, &audits);
        if arguments.effort.times(workload.letter) {
            time(&workload, &audits, &arguments.effort);
        }
        next = made.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
    Ok(())
}

fn requests(trace: &Option<PathBuf>, own: fn() -> Vec<Request>) -> Result<Vec<Request>, TraceError> {
    trace.as_ref().map_or_else(|| Ok(own()), |path| trace::read(path))
}

fn audit_all(workload: &Workload, truth: &Truth) -> Vec<Audit> {
    Contestant::ALL.into_iter().map(|contestant| audit(workload, contestant, truth)).collect()
}

fn time(workload: &Workload, audits: &[Audit], effort: &Effort) {
    let samples = measure::measure(workload, effort);
    report::table(workload, &samples, audits);
    report::ratios(workload, &samples, audits);
}
