//! The `kvroute` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvroute::cli::main()
}
