//! What a check found, and what follows from it.

use std::fmt;

use serde::Serialize;

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Check {
    /// The name that clients ask for is one that the engine serves.
    Model,
    /// The engine serves the adapters that are announced for it.
    LoraAdapters,
    /// The number of data-parallel ranks, and the rank that events name.
    Ranks,
    /// Plain text becomes the same tokens.
    Tokenizer,
    /// So does a conversation.
    ChatTemplate,
    /// So does a conversation with tools.
    ToolTemplate,
    /// The engine takes the canary, with as many tokens as were sent.
    Canary,
    /// KV events arrive.
    Events,
    /// What was missed can be asked for.
    Replay,
    /// Tokens per block.
    BlockSize,
    /// Blocks that the engine reports hash to what the router makes of the same prompt.
    HashRule,
    /// The engine's own names of the canary's blocks can be recomputed: they keep prompts apart by salt and adapter, and each block
    /// follows from the one before.
    EngineHash,
    /// Blocks of a salted prompt are reported under its salt.
    CacheSalt,
    /// Blocks that an adapter computed are reported under its name.
    LoraName,
    /// The engine takes from its cache what was predicted.
    CachedTokens,
}

impl Check {
    /// The name in tables and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::LoraAdapters => "lora adapters",
            Self::Ranks => "ranks",
            Self::Tokenizer => "tokenizer",
            Self::ChatTemplate => "chat template",
            Self::ToolTemplate => "chat template, tools",
            Self::Canary => "canary",
            Self::Events => "events",
            Self::Replay => "replay",
            Self::BlockSize => "block size",
            Self::HashRule => "hash rule",
            Self::EngineHash => "engine hashes",
            Self::CacheSalt => "cache salt",
            Self::LoraName => "lora name",
            Self::CachedTokens => "cached tokens",
        }
    }
}

/// How a comparison ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Both sides agree.
    Ok,
    /// They do not.
    Differs,
    /// Nobody could tell.
    Unknown,
}

impl Verdict {
    /// The name in tables and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Differs => "differs",
            Self::Unknown => "unknown",
        }
    }
}

/// What follows for the worker; the later ones outweigh the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Admission {
    /// It is routed by its cache and its load.
    #[default]
    Admit,
    /// What it has cached cannot be predicted: it is routed by load alone.
    LoadOnly,
    /// Requests that are sent to it as announced would fail.
    Refuse,
}

impl Admission {
    /// Every outcome.
    pub const ALL: [Self; 3] = [Self::Admit, Self::LoadOnly, Self::Refuse];

    /// The name in tables, logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::LoadOnly => "load_only",
            Self::Refuse => "refuse",
        }
    }
}

/// One row of a report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What was compared.
    pub check: Check,
    /// How that ended.
    pub verdict: Verdict,
    /// What follows.
    pub admission: Admission,
    /// What was seen, on both sides where they differ.
    pub found: String,
    /// What to change, and on which side; nothing if all is well.
    pub change: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: Check, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, admission: Admission::Admit, found: found.into(), change: None }
    }

    /// Nobody could tell, which is no reason to keep anybody away.
    pub(super) fn unknown(check: Check, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Unknown, ..Self::ok(check, found) }
    }

    pub(super) fn differs(check: Check, admission: Admission, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Differs, admission, ..Self::ok(check, found) }
    }

    pub(super) fn change(self, change: impl Into<String>) -> Self {
        Self { change: Some(change.into()), ..self }
    }
}

/// A finding in one line, for logs and for whoever is refused.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check.name(), self.found)?;
        match &self.change {
            Some(change) => write!(f, " ({change})"),
            None => Ok(()),
        }
    }
}

/// All that was found of one worker.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// One finding a check, in the order in which they are shown.
    pub findings: Vec<Finding>,
}

impl Report {
    /// What follows from all findings together.
    #[must_use]
    pub fn admission(&self) -> Admission {
        self.findings.iter().map(|finding| finding.admission).max().unwrap_or_default()
    }

    /// The findings that the outcome follows from, in one line; empty if there are none.
    #[must_use]
    pub fn reason(&self) -> String {
        let outcome = self.admission();
        let decisive = self
            .findings
            .iter()
            .filter(|finding| finding.admission == outcome && finding.admission != Admission::Admit);
        decisive.map(Finding::to_string).collect::<Vec<_>>().join("; ")
    }

    /// The report for programs. A field that is added breaks nobody, so that there may be more.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        #[derive(Serialize)]
        struct Row<'a> {
            check: &'a str,
            verdict: &'a str,
            admission: &'a str,
            found: &'a str,
            change: Option<&'a str>,
        }
        let rows = self.findings.iter().map(|finding| Row {
            check: finding.check.name(),
            verdict: finding.verdict.name(),
            admission: finding.admission.name(),
            found: &finding.found,
            change: finding.change.as_deref(),
        });
        let checks: Vec<_> = rows.collect();
        serde_json::json!({ "admission": self.admission().name(), "checks": checks })
    }
}
