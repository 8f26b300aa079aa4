//! `kvroute simulate --decisions`: recorded decisions made again, asked under other settings, or shown.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
};

use super::{Outcome, print};
use crate::{
    config::flags::Changes,
    decisions::{
        self, Comparison, Decision, Difference, Entry, Finish, LogError, Reader, Saving, Savings, Tail,
        Verdict, replay, what_if,
    },
    select::Row,
};

/// What is asked of logs.
pub(super) enum Question {
    /// Whether every decision comes out as it was recorded.
    Replay,
    /// What would have been decided with these changes.
    WhatIf(Changes),
    /// How the decisions of one request came about.
    Request(String),
}

/// How many differences are listed.
const LISTED: usize = 5;

/// Answers `question` for the logs, in this order.
pub(super) fn run(logs: &[PathBuf], question: Question) -> Outcome {
    let mut seen = Seen::default();
    let mut answer = Answer::of(question);
    let mut problem = None;
    for path in logs {
        if let Err(error) = read(path, &mut seen, &mut answer) {
            problem = Some(error);
            break;
        }
    }
    let printed = print(&(seen.text() + &answer.text(&seen)));
    match (problem, &answer) {
        (Some(problem), _) => Err(problem),
        (None, Answer::Replay { differences, .. }) if *differences > 0 => Err(format!(
            "{differences} of {} decisions come out otherwise than they were recorded; kvroute of the version that recorded them \
             reproduces them",
            seen.decisions
        )
        .into()),
        (None, Answer::Request { name, text }) if text.is_empty() => {
            Err(format!("no decision of a request '{name}' is in the log").into())
        }
        _ => printed,
    }
}

fn read(path: &Path, seen: &mut Seen, answer: &mut Answer) -> Outcome {
    let failed = |error: LogError| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut reader = Reader::new(BufReader::new(file)).map_err(failed)?;
    for entry in reader.by_ref() {
        match entry.map_err(failed)? {
            Entry::Decision(decision) => {
                seen.decisions += 1;
                answer.decision(&decision)?;
            }
            Entry::Outcome { number, outcome } => {
                seen.outcome(&outcome);
                answer.outcome(number, &outcome);
            }
        }
    }
    if let Tail::Torn { at } = reader.tail() {
        seen.torn.push(format!(
            "{}: the last record, at byte {at}, is not whole: its writer was killed, or has not finished; what precedes it was \
             read\n",
            path.display()
        ));
    }
    Ok(())
}

/// What the logs held.
#[derive(Default)]
struct Seen {
    decisions: u64,
    outcomes: BTreeMap<&'static str, u64>,
    torn: Vec<String>,
}

impl Seen {
    fn outcome(&mut self, outcome: &decisions::Outcome) {
        *self.outcomes.entry(outcome.finish.name()).or_default() += 1;
    }

    fn text(&self) -> String {
        let ends = Finish::ALL.iter().filter_map(|finish| {
            let count = self.outcomes.get(finish.name())?;
            Some(format!("{count} {}", finish.name()))
        });
        let ends: Vec<_> = ends.collect();
        let ends = if ends.is_empty() { "none is known to be over".to_owned() } else { ends.join(", ") };
        format!("{}{} decisions; of their requests: {ends}\n", self.torn.concat(), self.decisions)
    }
}

/// What is found out.
enum Answer {
    Replay { differences: u64, first: Vec<Difference> },
    WhatIf { changes: Changes, comparison: Box<Comparison> },
    Request { name: String, text: Vec<(u64, String)> },
}

impl Answer {
    fn of(question: Question) -> Self {
        match question {
            Question::Replay => Self::Replay { differences: 0, first: Vec::new() },
            Question::WhatIf(changes) => Self::WhatIf { changes, comparison: Box::default() },
            Question::Request(name) => Self::Request { name, text: Vec::new() },
        }
    }

    fn decision(&mut self, decision: &Decision) -> Outcome {
        match self {
            Self::Replay { differences, first } => {
                if let Some(difference) = replay(decision).difference(decision) {
                    *differences += 1;
                    if first.len() < LISTED {
                        first.push(difference);
                    }
                }
            }
            Self::WhatIf { changes, comparison } => {
                let (mode, tuning) = changes.apply(decision.rule.mode, &decision.rule.tuning)?;
                what_if(comparison, decision, mode, &tuning);
            }
            Self::Request { name, text } if decision.request == *name => {
                text.push((decision.number, shown(decision)));
            }
            Self::Request { .. } => {}
        }
        Ok(())
    }

    fn outcome(&mut self, number: u64, outcome: &decisions::Outcome) {
        let Self::Request { text, .. } = self else { return };
        // Numbers begin anew in every run, and a decision comes before its outcome.
        if let Some((_, text)) = text.iter_mut().rev().find(|(shown, _)| *shown == number)
            && !text.contains("came of it")
        {
            text.push_str(&ended(outcome));
        }
    }

    fn text(&self, seen: &Seen) -> String {
        match self {
            Self::Replay { differences, first } => {
                let mut text = format!(
                    "{} of {} are reproduced, bit for bit\n",
                    seen.decisions - differences,
                    seen.decisions
                );
                for difference in first {
                    // Writing to a string does not fail.
                    let _ = writeln!(text, "  {difference}");
                }
                if *differences > first.len() as u64 {
                    let _ = writeln!(text, "  and {} more", differences - first.len() as u64);
                }
                text
            }
            Self::WhatIf { changes, comparison } => compared(changes, comparison),
            Self::Request { text, .. } => text.iter().map(|(_, text)| text.as_str()).collect(),
        }
    }
}

fn compared(changes: &Changes, comparison: &Comparison) -> String {
    let Comparison { decisions, refused, changed, by_recorded, by_other, first_token } = comparison;
    let share = 100.0 * *changed as f64 / (*decisions).max(1) as f64;
    let mut text = format!(
        "what if {changes}:\n  choices that change: {changed} of {decisions} ({share:.1} %); {refused} were refused, or would \
         have been\n"
    );
    if *changed == 0 {
        return text;
    }
    text += "  what the other choices save, negative where they cost more, over all that change:\n";
    text += &lines("as the recorded settings count", by_recorded);
    text += &lines("as the other settings count", by_other);
    text += &match first_token.decisions {
        0 => "    neither counts in seconds: nothing is said of time\n".to_owned(),
        over => format!(
            "    to the first token, as cost model time predicts it: {:.3} seconds, {:.4} for each of {over}\n",
            first_token.sum,
            first_token.sum / over as f64
        ),
    };
    text + "  each choice is taken by itself: what it would have changed for later ones is not in it\n"
}

fn lines(whose: &str, Savings { time, blocks }: &Savings) -> String {
    let line = |saving: &Saving, unit: &str, places: usize| match saving.decisions {
        0 => String::new(),
        over => format!(
            "    {whose}: {:.places$} {unit}, {:.places$} for each of {over}\n",
            saving.sum,
            saving.sum / over as f64
        ),
    };
    let text = line(time, "seconds of cost (model time)", 3)
        + &line(blocks, "blocks (model blocks, which is no time)", 2);
    if text.is_empty() {
        format!("    {whose}: nothing, since their mode does not price candidates\n")
    } else {
        text
    }
}

/// A decision with its candidates.
fn shown(decision: &Decision) -> String {
    let rule = &decision.rule;
    let mut text = format!(
        "\ndecision {} at {} ms, {} of {}, mode {}, {} prompt tokens\n",
        decision.number,
        decision.at_ms,
        decision.question.phase,
        rule.worker_set,
        rule.mode,
        decision.question.isl_tokens
    );
    let chosen = match &decision.verdict {
        Verdict::Chosen { row, .. } => Some(*row),
        Verdict::Refused { reason } => {
            let _ = writeln!(text, "refused: {reason}");
            None
        }
    };
    text += "| | worker | rank | cached blocks | requests | prefill tokens | decode blocks | cost | not because |\n";
    text += "|---|---|---|---|---|---|---|---|---|\n";
    for (position, row) in replay(decision).rows.iter().enumerate() {
        text += &candidate(row, chosen == Some(position));
    }
    text
}

fn candidate(row: &Row, chosen: bool) -> String {
    let cost = row.cost.map_or(String::new(), |cost| format!("{:.6} {}", cost.total(), cost.model().unit()));
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {cost} | {} |\n",
        if chosen { "*" } else { "" },
        row.worker,
        row.rank,
        row.overlap.total(),
        row.load.requests,
        row.load.prefill_tokens,
        row.load.decode_blocks,
        row.exclusion.map_or(String::new(), |exclusion| exclusion.to_string())
    )
}

fn ended(outcome: &decisions::Outcome) -> String {
    let status = outcome.status.map_or(String::new(), |status| format!(" with status {status}"));
    let first = outcome.first_token.map_or(String::new(), |time| format!(", its first token after {time:?}"));
    let cached = match (outcome.prompt_tokens, outcome.cached_tokens) {
        (Some(prompt), Some(cached)) => format!(", {cached} of {prompt} prompt tokens cached"),
        _ => String::new(),
    };
    format!("what came of it: {}{status} after {:?}{first}{cached}\n", outcome.finish.name(), outcome.lasted)
}
