//! `kvroute config check`.

use std::{fmt::Write as _, fs, path::PathBuf};

use clap::Args;

use crate::{
    cli::{Outcome, print},
    config::{FileError, ModelEntry, Report, Severity, check},
    prompt::Encoder,
};

/// Flags of `kvroute config check`.
#[derive(Args, Debug)]
pub(super) struct CheckCommand {
    /// The TOML file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl CheckCommand {
    pub(super) fn run(self) -> Outcome {
        let path = self.file;
        let text =
            fs::read_to_string(&path).map_err(|error| FileError::Read { path: path.clone(), error })?;
        let load = |entry: &ModelEntry| {
            let encoder = Encoder::load(&entry.tokenizer, entry.chat_template.as_deref());
            encoder.map(drop).map_err(|error| error.to_string())
        };
        let report = check(&path, &text, &load);
        let path = path.display();
        let mut lines = String::new();
        for finding in &report.findings {
            let line = finding.line.map_or_else(String::new, |line| format!("{line}:"));
            // Writing to a string does not fail.
            let _ = writeln!(lines, "{path}:{line} {}: {}", finding.severity, finding.text);
        }
        let errors = report.count(Severity::Error);
        if errors == 0 {
            lines += &format!("ok: {}{}\n", report.summary, others(&report));
        }
        let printed = print(&lines);
        match errors {
            0 => printed,
            1 => Err(format!("{path}: 1 error").into()),
            errors => Err(format!("{path}: {errors} errors").into()),
        }
    }
}

fn others(report: &Report) -> String {
    let count = |severity, name| match report.count(severity) {
        0 => String::new(),
        count => format!("; {count} {name}{}", if count == 1 { "" } else { "s" }),
    };
    count(Severity::Warning, "warning") + &count(Severity::Hint, "hint")
}
