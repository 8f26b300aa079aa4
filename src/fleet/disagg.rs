//! Prefill and decode pools: which prefill set computes the prompts of which decode set, and how it is routed.
//!
//! In a (model, namespace) a pair exists exactly where there is one prefill set and one decode set. The decode set
//! is what the model's name stands for; its view says what is known of the prefill workers beside it
//! ([`PrefillPool`]). Everything here is worked out anew at every change of the fleet, so that a prefill set that
//! is gone, or is joined by a second one, serves no further request. Nothing is tried again on a timer, and nothing waits
//! for one: cards come with registrations and go with leases, each of which is such a change.
//!
//! A prefill worker whose card cannot be read is remembered for a while ([`Unreadable`]): it is there, and a
//! deployment whose prefill workers all came with such cards must say so, not go on without them.

use std::{fmt, sync::Arc};

use thiserror::Error;
use tracing::{error, info, warn};

use super::{
    card::WorkerType,
    router_config::RouterConfig,
    unreadable::Unreadable,
    view::SetView,
    worker_set::{ConfigSource, SetKey},
    worker_spec::WorkerSpec,
};
use crate::select::{ConditionalDisagg, Selector, Tuning, TuningError};

/// What a decode set knows of the prefill workers beside it. Other sets know of none.
#[derive(Clone, Debug, Default)]
pub enum PrefillPool {
    /// There are none: the set computes its prompts itself.
    #[default]
    None,
    /// There are, and how to route to them is not known yet.
    Pending(ActivationError),
    /// They compute this set's prompts. The view has the configuration that was resolved for them.
    Active(Arc<SetView>),
    /// There are, and nobody can say whose.
    Unavailable(Ambiguity),
}

impl PrefillPool {
    /// The name of every state.
    pub const NAMES: [&'static str; 4] = ["none", "unavailable", "pending", "active"];

    /// The name in explain, in metrics and on the admin listener.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Pending(_) => "pending",
            Self::Active(_) => "active",
            Self::Unavailable(_) => "unavailable",
        }
    }
}

/// Why the prefill workers that are there cannot be routed to. It may change by itself, with the next card.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ActivationError {
    /// A prefill set without a card.
    #[error("no readable prefill model card; cannot resolve prefill routing: none published")]
    NonePublished,
    /// The prefill workers' cards differ, and none of them is admitted.
    #[error(
        "the cards of the prefill workers differ, and none is admitted; GET /v1/worker-sets on the admin listener says in what"
    )]
    Conflict,
    /// What the prefill cards say, and what they leave to the decode set, do not go together.
    #[error(
        "the prefill workers' cards and their decode set's configuration, which holds where they are silent, do not go \
         together: {0}. Give the prefill workers a router_config of their own, or change one of the two"
    )]
    Settings(TuningError),
    /// Cards, but none that this frontend can read.
    #[error(
        "no readable prefill model card; cannot resolve prefill routing: all {published} published cards are \
         unreadable"
    )]
    AllUnreadable {
        /// How many there are.
        published: usize,
    },
}

/// More sets than make a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ambiguity {
    /// Prefill sets of the (model, namespace).
    pub prefill: usize,
    /// Its decode sets.
    pub decode: usize,
}

impl fmt::Display for Ambiguity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefill, decode } = self;
        write!(f, "{prefill} prefill sets and {decode} decode sets; a pair needs exactly one of each")
    }
}

/// How requests are routed to a prefill set.
#[derive(Clone, PartialEq, Debug)]
struct Resolved {
    config: RouterConfig,
    /// Whether the prefill cards said so; otherwise it is the decode set's.
    advertised: bool,
    cards: usize,
    /// Cards that want another mode than the one taken.
    disagreeing: usize,
    unreadable: usize,
    /// The decode set's rule of bypasses.
    rule: Option<ConditionalDisagg>,
}

/// Works out how a prefill set is routed from what each of its cards advertises (nothing, for a silent one), the
/// number of cards that could not be read, and the decode set's effective configuration.
///
/// Of several cards the first counts. What it advertises holds as a whole; where it is silent, the decode set's
/// configuration holds. Blocks in use are not tracked in either case: a prompt leaves a prefill worker once it is
/// computed. The busy thresholds are the decode set's in either case.
fn resolve(
    cards: &[Option<&RouterConfig>],
    unreadable: usize,
    decode: &RouterConfig,
) -> Result<Resolved, ActivationError> {
    let Some(first) = cards.first() else {
        return Err(match unreadable {
            0 => ActivationError::NonePublished,
            published => ActivationError::AllUnreadable { published },
        });
    };
    let effective = first.unwrap_or(decode);
    let mode = |card: &Option<&RouterConfig>| card.unwrap_or(decode).mode;
    let config = RouterConfig {
        tuning: Tuning {
            router_track_active_blocks: false,
            // Output counts with the blocks in use or not at all.
            router_track_output_blocks: false,
            // It says when prefill workers are bypassed, not what they do.
            conditional_disagg: None,
            busy: decode.tuning.busy,
            ..effective.tuning
        },
        ..effective.clone()
    };
    Ok(Resolved {
        advertised: first.is_some(),
        cards: cards.len(),
        disagreeing: cards.iter().filter(|card| mode(card) != config.mode).count(),
        unreadable,
        rule: decode.tuning.conditional_disagg,
        config,
    })
}

/// The same of sets in a view, with what is a key of its own on the prefill cards.
fn resolve_beside(
    decode: &RouterConfig,
    prefill: Option<&SetView>,
    unreadable: usize,
) -> Result<Resolved, ActivationError> {
    let mut resolved = resolve(&prefill.map_or_else(Vec::new, cards), unreadable, decode)?;
    let whose = |on_card| whose(prefill, decode, resolved.advertised, on_card);
    let cost_model = whose(|spec| spec.router_cost_model.is_some()).cost_model;
    let hold = whose(|spec| spec.router_hold.is_some()).hold;
    let tuning = &mut resolved.config.tuning;
    (tuning.cost_model, tuning.hold) = (cost_model, hold);
    if let Some(prefill) = prefill {
        // Never the decode set's, whatever is silent, nor what no card can say: see `Card::effective_config`.
        let own = &prefill.config.tuning;
        tuning.device_weights = own.device_weights;
        tuning.accelerator_to_cpu_ratio = own.accelerator_to_cpu_ratio;
        tuning.approximate_cache.policy = own.approximate_cache.policy;
    }
    resolved.config.validate().map_err(ActivationError::Settings)?;
    Ok(resolved)
}

/// The pairs of a fleet, kept over its changes: a pair that stays as it was keeps its selector, and with it its
/// turn, and is logged once.
#[derive(Default)]
pub(super) struct Pools {
    pairs: Vec<Pair>,
}

/// A decode set and what was last said of its prefill workers.
struct Pair {
    decode: SetKey,
    outcome: Result<Active, Problem>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Problem {
    Activation(ActivationError),
    Ambiguous(Ambiguity),
}

struct Active {
    prefill: SetKey,
    resolved: Resolved,
    config: Arc<RouterConfig>,
    selector: Arc<Selector>,
}

impl Pools {
    /// Writes into every decode set of `sets` what holds for its prefill workers, and into every prefill set that is
    /// paired the configuration that was resolved for it.
    pub(super) fn pair(&mut self, sets: &mut [SetView], unreadable: &Unreadable) {
        let mut before = std::mem::take(&mut self.pairs);
        for position in 0..sets.len() {
            let key = &sets[position].key;
            if key.worker_type != WorkerType::Decode {
                continue;
            }
            let beside = |role| of_role(sets, key, role);
            let (prefill, decode) = (beside(WorkerType::Prefill), beside(WorkerType::Decode));
            let unreadable = unreadable.count(key);
            let known = before.iter().position(|pair| pair.decode == *key).map(|at| before.swap_remove(at));
            sets[position].prefill = match (&prefill[..], decode.len()) {
                ([], _) if unreadable == 0 => PrefillPool::None,
                ([], 1) => self.enter(known, position, None, unreadable, sets),
                (&[prefill], 1) => self.enter(known, position, Some(prefill), unreadable, sets),
                _ => {
                    let ambiguity = Ambiguity { prefill: prefill.len(), decode: decode.len() };
                    self.fail(known, sets[position].key.clone(), Problem::Ambiguous(ambiguity))
                }
            };
        }
        let left = before.iter().filter(|pair| pair.outcome.is_ok());
        left.for_each(|pair| info!(decode = %pair.decode, "prefill router target cleared"));
    }

    fn enter(
        &mut self,
        known: Option<Pair>,
        decode: usize,
        prefill: Option<usize>,
        unreadable: usize,
        sets: &mut [SetView],
    ) -> PrefillPool {
        if prefill.is_some_and(|prefill| sets[prefill].admitted.is_none()) {
            let conflict = Problem::Activation(ActivationError::Conflict);
            return self.fail(known, sets[decode].key.clone(), conflict);
        }
        let config = Arc::clone(&sets[decode].config);
        let resolved = resolve_beside(&config, prefill.map(|prefill| &sets[prefill]), unreadable);
        let (resolved, prefill) = match (resolved, prefill) {
            (Ok(resolved), Some(prefill)) => (resolved, prefill),
            (resolved, _) => {
                let error = resolved.err().unwrap_or(ActivationError::NonePublished);
                return self.fail(known, sets[decode].key.clone(), Problem::Activation(error));
            }
        };
        let known = known.and_then(|pair| pair.outcome.ok());
        let known = known.filter(|active| active.still_routes(&sets[prefill], &resolved));
        if known.as_ref().is_none_or(|active| active.resolved.is_news(&resolved)) {
            resolved.announce(&sets[prefill], &sets[decode]);
        }
        let active = match known {
            Some(active) => Active { resolved, ..active },
            None => Active::new(&sets[prefill], resolved),
        };
        let set = &mut sets[prefill];
        set.config = Arc::clone(&active.config);
        set.selector = Arc::clone(&active.selector);
        if !active.resolved.advertised {
            set.source = ConfigSource::DecodeSet;
        }
        let pool = PrefillPool::Active(Arc::new(set.clone()));
        self.pairs.push(Pair { decode: sets[decode].key.clone(), outcome: Ok(active) });
        pool
    }

    fn fail(&mut self, known: Option<Pair>, decode: SetKey, problem: Problem) -> PrefillPool {
        if known.is_none_or(|pair| pair.outcome.err() != Some(problem)) {
            let reason = match problem {
                Problem::Activation(error) => error.to_string(),
                Problem::Ambiguous(ambiguity) => ambiguity.to_string(),
            };
            error!(%decode, reason, "failed to activate prefill router target");
        }
        self.pairs.push(Pair { decode, outcome: Err(problem) });
        match problem {
            Problem::Activation(error) => PrefillPool::Pending(error),
            Problem::Ambiguous(ambiguity) => PrefillPool::Unavailable(ambiguity),
        }
    }
}

impl Resolved {
    /// Whether `next` says more than that workers came or went.
    fn is_news(&self, next: &Self) -> bool {
        let said = |of: &Self| (of.advertised, of.disagreeing, of.unreadable, of.rule);
        said(self) != said(next)
    }

    fn announce(&self, prefill: &SetView, decode: &SetView) {
        let Self { config, advertised, cards, disagreeing, unreadable, rule } = self;
        if *disagreeing > 0 {
            warn!(
                prefill = %prefill.key, resolved_mode = %config.mode, disagreeing, total = cards,
                "prefill workers advertise conflicting router modes; using the first"
            );
        }
        if *unreadable > 0 {
            warn!(
                prefill = %prefill.key, readable = cards, total = cards + unreadable,
                "some prefill cards cannot be read; their workers get no requests"
            );
        }
        if let Some(rule) = rule {
            warn_of_unknown_levels(rule, prefill, decode);
        }
        info!(
            prefill = %prefill.key, decode = %decode.key, prefill_mode = %config.mode,
            decode_mode = %decode.config.mode, advertised, eagle = prefill.eagle,
            block_size = prefill.block_size.get(), tuning = ?config.tuning,
            "prefill router target activated"
        );
    }
}

/// What is not known never speaks for a bypass, so a rule that asks for it may do nothing at all.
fn warn_of_unknown_levels(rule: &ConditionalDisagg, prefill: &SetView, decode: &SetView) {
    let asks_prefill = rule.policy.asks_load();
    let asks_decode = rule.decode_busy_threshold.is_some();
    for (asks, set, field, states) in [
        (asks_prefill, prefill, "max_num_batched_tokens", (|spec| spec.max_num_batched_tokens) as States),
        (asks_decode, decode, "total_kv_blocks", |spec| spec.total_kv_blocks),
    ] {
        if asks && set.members.iter().any(|member| states(&member.worker.spec).is_none()) {
            warn!(
                worker_set = %set.key, field,
                "the rule of bypasses asks how busy these workers are, and not all of them state what it is measured by: \
                 those count as unknown, which is against a bypass"
            );
        }
    }
}

type States = fn(&WorkerSpec) -> Option<u64>;

impl Active {
    fn new(prefill: &SetView, resolved: Resolved) -> Self {
        let RouterConfig { mode, tuning, .. } = resolved.config;
        // The loads stay the set's own: what is booked by one configuration is returned under the next.
        let selector = Selector::with_loads(mode, tuning, Arc::clone(prefill.selector.loads()));
        let config = Arc::new(resolved.config.clone());
        Self { prefill: prefill.key.clone(), resolved, config, selector: Arc::new(selector) }
    }

    /// Whether the selector can stay. A set that was founded anew has loads of its own.
    fn still_routes(&self, prefill: &SetView, resolved: &Resolved) -> bool {
        self.prefill == prefill.key
            && self.resolved.config == resolved.config
            && Arc::ptr_eq(self.selector.loads(), prefill.selector.loads())
    }
}

/// The positions of the sets of a role beside `key`.
fn of_role(sets: &[SetView], key: &SetKey, role: WorkerType) -> Vec<usize> {
    let beside = sets.iter().enumerate().filter(|(_, set)| {
        let other = &set.key;
        other.worker_type == role && other.model == key.model && other.namespace == key.namespace
    });
    beside.map(|(position, _)| position).collect()
}

/// Whose tuning says a prefill set's setting that has a key of its own on the card: the set's, if its cards have the key; else
/// it is whose the rest of the configuration is. A card with a configuration that leaves it out leaves it to the frontend,
/// as in any other set.
fn whose<'a>(
    prefill: Option<&'a SetView>,
    decode: &'a RouterConfig,
    advertised: bool,
    on_card: fn(&WorkerSpec) -> bool,
) -> &'a Tuning {
    let own = prefill.filter(|set| advertised || set.says(on_card));
    own.map_or(&decode.tuning, |set| &set.config.tuning)
}

/// What each worker of a set advertises, in order of joining.
fn cards(set: &SetView) -> Vec<Option<&RouterConfig>> {
    let admitted = set.members.iter().filter(|member| set.admitted == Some(member.cohort.fingerprint));
    // The ranks of a worker stand beside each other.
    let mut workers: Vec<_> = admitted.map(|member| &member.worker).collect();
    workers.dedup_by_key(|worker| worker.id);
    workers.into_iter().map(|worker| worker.spec.router_config.as_ref()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::Mode;

    fn config(mode: Mode, credit: f64) -> RouterConfig {
        let tuning =
            Tuning { overlap_score_credit: credit, router_track_output_blocks: true, ..Tuning::default() };
        RouterConfig { mode, tuning }
    }

    #[test]
    fn a_card_s_configuration_holds_as_a_whole_and_a_silent_one_has_the_decode_set_s() {
        let (card, decode) = (config(Mode::Kv, 2.5), config(Mode::RoundRobin, 0.5));
        for (advertised, mode, credit) in [(Some(&card), Mode::Kv, 2.5), (None, Mode::RoundRobin, 0.5)] {
            let resolved = resolve(&[advertised], 0, &decode).unwrap();
            assert_eq!(resolved.advertised, advertised.is_some());
            assert_eq!((resolved.config.mode, resolved.config.tuning.overlap_score_credit), (mode, credit));
            assert!(!resolved.config.tuning.router_track_active_blocks, "forced off in both cases");
            assert_eq!(resolved.config.tuning.validate(), Ok(()));
        }
    }

    #[test]
    fn of_conflicting_modes_the_first_is_taken_and_the_others_are_counted() {
        let (kv, random) = (config(Mode::Kv, 1.0), config(Mode::Random, 1.0));
        let resolved = resolve(&[Some(&random), None, Some(&kv), Some(&random)], 0, &kv).unwrap();
        assert_eq!((resolved.config.mode, resolved.disagreeing, resolved.cards), (Mode::Random, 2, 4));
        // A silent card wants what it inherits; tunings are not compared.
        let other = config(Mode::Kv, 9.0);
        assert_eq!(resolve(&[None, Some(&other)], 0, &kv).unwrap().disagreeing, 0);
    }

    #[test]
    fn without_a_readable_card_nothing_is_inherited() {
        let decode = config(Mode::Kv, 1.0);
        let says = |unreadable| resolve(&[], unreadable, &decode).unwrap_err().to_string();
        assert!(says(0).contains("no readable prefill model card") && says(0).ends_with("none published"));
        assert!(says(3).ends_with("all 3 published cards are unreadable"));
        let resolved = resolve(&[None], 3, &decode).unwrap();
        assert_eq!((resolved.cards, resolved.unreadable), (1, 3));
    }
}
