//! Which requests are recorded, and their decisions as they are made.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http::HeaderMap;
use parking_lot::Mutex;
use tracing::info;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    file::{LogFile, LogFileError},
    memory::{Kept, Memory},
    record::{LIMITS, Queue, Record},
    settings::DecisionLogSettings,
    ticket::Ticket,
    writer::Writer,
};
use crate::{
    decisions::{Decision, Outcome, Question, Rule, Verdict},
    fleet::{Clock, Fingerprint, SetView, unix_ms},
    frontend::{asking::Prompt, log_queue, request_id},
    select::{Choice, Demand, Refusal, Row, Scratch, Selector},
};

/// Records decisions, if they are to be.
#[derive(Default)]
pub(in crate::frontend) struct Recorder(Option<Log>);

/// A log that is open.
pub(super) struct Log {
    sample: f64,
    pub(super) queue: Arc<Queue>,
    pub(super) memory: Memory,
    /// The rule of each selector that recorded anything and is still there.
    rules: Mutex<Vec<Known>>,
    /// Relaxed: numbers need only differ.
    number: AtomicU64,
}

/// The rule of a selector, and the cohort that was admitted when it was made.
struct Known {
    selector: Weak<Selector>,
    admitted: Option<Fingerprint>,
    rule: Arc<Rule>,
}

/// A decision that was just made, in the words of whoever made it.
pub(in crate::frontend) struct Moment<'a> {
    pub(in crate::frontend) set: &'a SetView,
    pub(in crate::frontend) prompt: &'a Prompt,
    pub(in crate::frontend) demand: &'a Demand<'a>,
    /// What it was made in.
    pub(in crate::frontend) scratch: &'a Scratch,
    /// The state of the random source before it.
    pub(in crate::frontend) seed: u64,
    pub(in crate::frontend) clock: Clock,
    pub(in crate::frontend) now: Duration,
}

impl Recorder {
    /// Opens the log.
    ///
    /// # Errors
    /// When the file cannot be begun.
    pub(in crate::frontend) fn open(settings: &DecisionLogSettings) -> Result<Self, LogFileError> {
        let path = settings.path.clone();
        let file = LogFile::open(settings)?;
        let (queue, waiting) = Queue::new(LIMITS);
        let started = log_queue::start(Writer::new(file, settings.max_bytes, waiting), "decision-log");
        started.map_err(|error| LogFileError::Open { path: path.clone(), error })?;
        info!(path = %path.display(), sample = settings.sample, "decisions are recorded");
        Ok(Self(Some(Log {
            sample: settings.sample,
            queue: Arc::new(queue),
            memory: Memory::default(),
            rules: Mutex::default(),
            number: AtomicU64::new(0),
        })))
    }

    pub(super) const fn log(&self) -> Option<&Log> {
        self.0.as_ref()
    }

    /// The name of a request whose decisions are to be recorded; none without a log.
    pub(in crate::frontend) fn recorded(&self, headers: &HeaderMap) -> Option<Arc<str>> {
        let name = request_id::named(headers);
        self.0.as_ref().filter(|log| log.samples(name)).map(|_| name.into())
    }

    /// Keeps a decision of the request `name`. The ticket of one that chose a worker says later what came of it.
    pub(in crate::frontend) fn keep(
        &self,
        name: &str,
        moment: &Moment<'_>,
        made: Result<&Choice, &Refusal>,
    ) -> Option<Ticket> {
        let log = self.0.as_ref()?;
        let kept = Arc::new(log.kept(name, moment, made));
        log.memory.push(Arc::clone(&kept));
        let (number, weak) = (kept.decision.number, Arc::downgrade(&kept));
        let queued = log.queue.put(Record::Decision(kept));
        made.is_ok().then(|| Ticket {
            queue: Arc::clone(&log.queue),
            queued,
            number,
            kept: weak,
            clock: moment.clock,
            booked: moment.now,
            outcome: Outcome::default(),
        })
    }

    /// The decisions of a request that memory still has, the first made first.
    pub(in crate::frontend) fn of(&self, request: &str) -> Vec<Arc<Kept>> {
        self.0.as_ref().map_or_else(Vec::new, |log| log.memory.of(request))
    }

    /// How long decisions can be asked about, in a sentence.
    pub(in crate::frontend) fn how_long(&self) -> String {
        let Some(log) = &self.0 else {
            return "decisions can be asked about with --decision-log only".to_owned();
        };
        let (most, bytes) = log.memory.limits();
        let (count, _, oldest) = log.memory.extent();
        let age = oldest.map_or(0, |at| unix_ms().saturating_sub(at) / 1000);
        format!(
            "the last {most} recorded decisions are kept, in at most {} MiB: now {count}, the oldest from {age} seconds ago; of \
             all requests a share of {} is recorded (sample= in --decision-log), and the log's file has the older ones",
            bytes >> 20,
            log.sample
        )
    }

    /// Waits until the file has all that was recorded, for a while; whether it has.
    pub(in crate::frontend) fn flush(&self) -> bool {
        self.0.as_ref().is_none_or(|log| log.queue.flush())
    }
}

impl Log {
    /// By the name, so that all decisions of a request are recorded or none is.
    fn samples(&self, name: &str) -> bool {
        let draw = (xxh3_64(name.as_bytes()) >> 11) as f64 / (1_u64 << 53) as f64;
        draw < self.sample
    }

    fn kept(&self, name: &str, moment: &Moment<'_>, made: Result<&Choice, &Refusal>) -> Kept {
        let Moment { set, prompt, scratch, .. } = moment;
        let decision = Decision {
            number: self.number.fetch_add(1, Relaxed),
            request: name.to_owned(),
            at_ms: unix_ms(),
            generation: set.generation,
            config_generation: set.frontend.generation,
            rule: self.rule(set),
            question: Question::of(moment.demand),
            turn: scratch.turn(),
            now: moment.now,
            seed: moment.seed,
            rows: scratch.rows().iter().map(|row| Row { cost: None, ..*row }).collect(),
            verdict: Verdict::of(made),
        };
        Kept {
            decision,
            config: Arc::clone(&set.config),
            set_state: set.state().name(),
            config_from: set.source.name(),
            tokens_from: prompt.tokens.source.name(),
            tokens_complete: prompt.tokens.complete,
            tokens_problem: prompt.tokens.problem.clone(),
            outcome: OnceLock::new(),
        }
    }

    /// The rule of a set: one for all decisions of a selector, which is what the set has under one configuration.
    fn rule(&self, set: &SetView) -> Arc<Rule> {
        let mut rules = self.rules.lock();
        let of_set = |known: &&Known| known.selector.as_ptr() == Arc::as_ptr(&set.selector);
        if let Some(known) = rules.iter().find(of_set)
            && known.admitted == set.admitted
        {
            return Arc::clone(&known.rule);
        }
        rules.retain(|known| known.selector.strong_count() > 0 && !of_set(&known));
        let rule = Arc::new(Rule {
            worker_set: set.key.to_string(),
            model: set.key.model.clone(),
            fingerprint: set.admitted.map(|fingerprint| fingerprint.to_string()),
            block_size: set.block_size,
            mode: set.selector.mode(),
            tuning: *set.selector.tuning(),
        });
        let (selector, admitted) = (Arc::downgrade(&set.selector), set.admitted);
        rules.push(Known { selector, admitted, rule: Arc::clone(&rule) });
        rule
    }
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::*;
    use crate::frontend::request_id::RequestId;

    fn recorder(sample: f64) -> (Recorder, tempfile::TempDir) {
        let folder = tempdir().unwrap();
        let settings = DecisionLogSettings { sample, ..DecisionLogSettings::new(folder.path().join("d")) };
        (Recorder::open(&settings).unwrap(), folder)
    }

    #[test]
    fn a_share_of_the_requests_is_recorded_and_always_the_same_ones() {
        let (recorder, _folder) = recorder(0.25);
        let mut headers = vec![HeaderMap::new(); 4000];
        for headers in &mut headers {
            RequestId::put(headers);
        }
        let recorded: Vec<_> =
            headers.iter().filter(|headers| recorder.recorded(headers).is_some()).collect();
        assert!((850..1150).contains(&recorded.len()), "{}", recorded.len());
        for headers in recorded {
            assert_eq!(recorder.recorded(headers).as_deref(), Some(request_id::named(headers)));
        }
        assert_eq!(Recorder::default().recorded(&headers[0]), None, "without a log");
    }
}
