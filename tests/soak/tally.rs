//! What came of all requests.

use std::{collections::BTreeMap, fmt};

use parking_lot::Mutex;

use crate::ending::Ending;

/// Counts by what was asked and how it ended.
#[derive(Default)]
pub(crate) struct Tally {
    counts: Mutex<BTreeMap<(&'static str, String), u64>>,
    defects: Mutex<Vec<String>>,
}

impl Tally {
    /// A request ended.
    pub(crate) fn ended(&self, kind: &'static str, ending: Ending) {
        let name = match ending {
            Ending::Complete => "complete".to_owned(),
            Ending::Refused(status, code) => format!("error {status} {code}"),
            Ending::Broken { told: true } => "broken off, with the reason".to_owned(),
            Ending::Broken { told: false } => "broken off".to_owned(),
            Ending::Defect(what) => {
                println!("DEFECT, {kind}: {what}");
                self.defects.lock().push(format!("{kind}: {what}"));
                "DEFECT".to_owned()
            }
        };
        self.note(kind, name);
    }

    /// Something was done whose end nobody sees.
    pub(crate) fn note(&self, kind: &'static str, what: impl Into<String>) {
        *self.counts.lock().entry((kind, what.into())).or_default() += 1;
    }

    pub(crate) fn defects(&self) -> Vec<String> {
        self.defects.lock().clone()
    }

    /// All of it in a few words.
    pub(crate) fn short(&self) -> String {
        let counts = self.counts.lock();
        let of = |is: &dyn Fn(&str) -> bool| -> u64 {
            counts.iter().filter(|((_, what), _)| is(what)).map(|(_, count)| count).sum()
        };
        format!(
            "{} requests, {} complete, {} broken off, {} defects",
            of(&|_| true),
            of(&|what| what == "complete"),
            of(&|what| what.starts_with("broken")),
            of(&|what| what == "DEFECT")
        )
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.short())?;
        for ((kind, what), count) in &*self.counts.lock() {
            writeln!(f, "  {kind:<24} {what:<44} {count:>8}")?;
        }
        Ok(())
    }
}
