//! Records to bytes.

use std::sync::Arc;

use super::{
    Decision, Outcome, Rule,
    frame::{DECISION, OUTCOME, RULE, RULES, put_frame, put_header},
    wire::Wire as _,
};

/// Makes the bytes of one log. A rule is written once, before the first decision under it, and then named by its number.
#[derive(Debug, Default)]
pub struct Encoder {
    /// The rules of this log; numbers go around, so that a log of many configurations needs no more memory than another.
    rules: Vec<Arc<Rule>>,
    next: usize,
}

impl Encoder {
    /// An encoder for a log that begins with [`Encoder::header`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends what a log begins with.
    pub fn header(out: &mut Vec<u8>) {
        put_header(out);
    }

    /// Appends a decision, and its rule where this log does not have that yet.
    pub fn decision(&mut self, decision: &Decision, out: &mut Vec<u8>) {
        let rule = match self.rules.iter().position(|known| Arc::ptr_eq(known, &decision.rule)) {
            Some(known) => known as u64,
            None => self.rule(&decision.rule, out),
        };
        put_frame(out, |out| {
            out.push(DECISION);
            rule.put(out);
            decision.put_under_rule(out);
        });
    }

    /// Appends what came of the request of decision `number`.
    pub fn outcome(&self, number: u64, outcome: &Outcome, out: &mut Vec<u8>) {
        put_frame(out, |out| {
            out.push(OUTCOME);
            number.put(out);
            outcome.put(out);
        });
    }

    fn rule(&mut self, rule: &Arc<Rule>, out: &mut Vec<u8>) -> u64 {
        let number = self.next;
        self.next = (number + 1) % RULES as usize;
        match self.rules.get_mut(number) {
            Some(old) => *old = Arc::clone(rule),
            None => self.rules.push(Arc::clone(rule)),
        }
        put_frame(out, |out| {
            out.push(RULE);
            (number as u64).put(out);
            rule.put(out);
        });
        number as u64
    }
}
