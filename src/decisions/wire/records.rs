//! Decisions and outcomes.

use std::sync::Arc;

use super::{Malformed, Source, Wire, codes, fields};
use crate::{
    decisions::{Decision, Finish, Outcome, Question, Rule, Verdict},
    select::{
        Overrides, Phase, Pin, PinField,
        cost::{Cost, blocks::BlockCost, time::TimeCost},
    },
};

codes!(Phase { Aggregated = 1, Prefill = 2, Decode = 3 });
codes!(PinField { BackendInstanceId = 1, PrefillWorkerId = 2, DecodeWorkerId = 3 });
codes!(Finish { Ok = 1, ClientError = 2, ServerError = 3, Cancelled = 4, Cut = 5, Unanswered = 6 });
fields!(Pin { worker, rank, field });
fields!(Overrides {
    overlap_score_credit,
    prefill_load_scale,
    router_temperature,
    assume_kv_reuse,
    track_prefill_tokens,
});
fields!(TimeCost {
    queue,
    own_prefill,
    surcharge,
    replication,
    harm,
    context,
    requests,
    session,
    total,
    first_token,
    seconds_per_token,
    decay,
});
fields!(BlockCost { decay, credit, prefill, decode, requests, session, total });
fields!(Outcome { finish, status, first_token, lasted, prompt_tokens, cached_tokens });

/// More tokens than any prompt has. Sums of token counts rely on it.
const TOKENS: u64 = 1 << 40;

impl Wire for Question {
    fn put(&self, out: &mut Vec<u8>) {
        let Self { isl_tokens, prompt_blocks, phase, pin, overrides } = self;
        isl_tokens.put(out);
        prompt_blocks.put(out);
        phase.put(out);
        pin.put(out);
        // Most requests replace nothing.
        (*overrides != Overrides::default()).then_some(*overrides).put(out);
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        let question = Self {
            isl_tokens: Wire::get(from)?,
            prompt_blocks: Wire::get(from)?,
            phase: Wire::get(from)?,
            pin: Wire::get(from)?,
            overrides: Option::get(from)?.unwrap_or_default(),
        };
        if question.isl_tokens <= TOKENS { Ok(question) } else { Err(super::BEYOND) }
    }
}

const UNKNOWN: Malformed = Malformed("it holds a variant that nobody writes");

impl Wire for Cost {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Time(cost) => {
                out.push(1);
                cost.put(out);
            }
            Self::Blocks(cost) => {
                out.push(2);
                cost.put(out);
            }
        }
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        match u8::get(from)? {
            1 => TimeCost::get(from).map(Self::Time),
            2 => BlockCost::get(from).map(Self::Blocks),
            _ => Err(UNKNOWN),
        }
    }
}

impl Wire for Verdict {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Chosen { row, cost } => {
                out.push(1);
                row.put(out);
                cost.put(out);
            }
            Self::Refused { reason } => {
                out.push(2);
                reason.put(out);
            }
        }
    }

    fn get(from: &mut Source<'_>) -> Result<Self, Malformed> {
        match u8::get(from)? {
            1 => Ok(Self::Chosen { row: Wire::get(from)?, cost: Wire::get(from)? }),
            2 => Ok(Self::Refused { reason: Wire::get(from)? }),
            _ => Err(UNKNOWN),
        }
    }
}

impl Decision {
    /// Writes all of it but its rule, which stands in a record of its own.
    pub(in crate::decisions) fn put_under_rule(&self, out: &mut Vec<u8>) {
        let Self {
            number,
            request,
            at_ms,
            generation,
            config_generation,
            rule: _,
            question,
            turn,
            now,
            seed,
            rows,
            verdict,
        } = self;
        number.put(out);
        request.put(out);
        at_ms.put(out);
        generation.put(out);
        config_generation.put(out);
        question.put(out);
        turn.put(out);
        now.put(out);
        // Its bits are all alike likely, so that fewer bytes than eight are rare.
        out.extend_from_slice(&seed.to_le_bytes());
        rows.put(out);
        verdict.put(out);
    }

    /// Reads a decision under `rule`.
    pub(in crate::decisions) fn take_under(
        rule: Arc<Rule>,
        from: &mut Source<'_>,
    ) -> Result<Self, Malformed> {
        let decision = Self {
            number: Wire::get(from)?,
            request: Wire::get(from)?,
            at_ms: Wire::get(from)?,
            generation: Wire::get(from)?,
            config_generation: Wire::get(from)?,
            rule,
            question: Wire::get(from)?,
            turn: Wire::get(from)?,
            now: Wire::get(from)?,
            seed: u64::from_le_bytes(from.array()?),
            rows: Wire::get(from)?,
            verdict: Wire::get(from)?,
        };
        match decision.verdict {
            Verdict::Chosen { row, .. } if row >= decision.rows.len() => {
                Err(Malformed("it chose a row that it does not have"))
            }
            _ => Ok(decision),
        }
    }
}
