//! The `kvroute` command.

use std::process::ExitCode;

/// A frontend makes and frees a prompt's text several times for every request, on all of its threads: a tenth of its time went
/// into the system's allocator.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    kvroute::cli::main()
}
