//! `kvroute doctor`: whether an engine's cache will be predicted rightly, and what to change if not.

use std::process::ExitCode;

use clap::Args;

use super::print;
use crate::{
    config::DoctorArgs,
    doctor::{Admission, Ears, Report, Subject, Told, examine, judge, look},
    proxy::PoolSettings,
};

/// Flags of `kvroute doctor`.
#[derive(Args, Debug)]
pub(super) struct DoctorCommand {
    #[command(flatten)]
    doctor: DoctorArgs,
}

impl DoctorCommand {
    /// The outcome is the exit status. 2 is left to command lines that do not read.
    pub(super) async fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let args = &self.doctor;
        let patience = args.patience();
        let told = look(&args.outline()?, &PoolSettings::default(), patience.answer).await?;
        let subject = args.subject(&told)?;
        let evidence = examine(&subject, patience, Ears::Own).await?;
        let report = judge(&subject.spec, &evidence);
        if args.json {
            let mut answer = report.to_json();
            answer["engine"] = serde_json::json!(subject.spec.url);
            print(&format!("{answer:#}\n"))?;
        } else {
            print(&text(&subject, &evidence.told, &report))?;
        }
        Ok(ExitCode::from(match report.admission() {
            Admission::Admit => 0,
            Admission::LoadOnly => 3,
            Admission::Refuse => 4,
        }))
    }
}

/// The report for people: a line a check, and below it what to change.
fn text(subject: &Subject, told: &Told, report: &Report) -> String {
    let version = told.version.as_ref().map(|version| format!(", version {version}")).unwrap_or_default();
    let mut text = format!("engine {} (model {}{version})\n\n", subject.spec.url, subject.spec.model);
    for finding in &report.findings {
        text += &format!("{:<22}{:<9}{}\n", finding.check.name(), finding.verdict.name(), finding.found);
        if let Some(change) = &finding.change {
            text += &format!("{:31}change: {change}\n", "");
        }
    }
    text += match report.admission() {
        Admission::Admit => "\nadmit: it is routed by its cache and its load\n",
        Admission::LoadOnly => {
            "\nadmit by load only: what it has cached cannot be predicted, so its overlaps must not count\n"
        }
        Admission::Refuse => "\nrefuse: requests that are sent to it as announced would fail\n",
    };
    text
}
