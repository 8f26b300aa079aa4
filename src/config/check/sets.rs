//! What is to say of worker sets that would start, and do less than they seem to.

use ahash::AHashMap;

use super::{Document, Severity, workers::first_place};
use crate::{
    config::flags::{OfTheFrontend, changed_weights},
    device::DeviceClass,
    fleet::{FleetView, PrefillPool, RouterConfig, SetView, WorkerSpec, WorkerType},
    select::{Mode, Tuning},
    slot::WorkerId,
};

/// Says it, set by set.
pub(super) fn check(
    view: &FleetView,
    (router, flags): (&RouterConfig, &OfTheFrontend),
    places: &AHashMap<WorkerId, String>,
    document: &mut Document,
) {
    for set in &view.sets {
        let place = first_place(set, places, |_| true);
        let said = [partner(view, set, flags), events(set), devices(set)];
        for (severity, text) in said.into_iter().flatten() {
            document.add(severity, &place, format!("worker set {}: {text}", set.key));
        }
    }
    let weighs = |mode| mode == Mode::DeviceAwareWeighted;
    let ratio = router.tuning.accelerator_to_cpu_ratio;
    let is_used = weighs(router.mode) || view.sets.iter().any(|set| weighs(set.config.mode));
    if ratio != Tuning::default().accelerator_to_cpu_ratio && !is_used {
        let text = format!(
            "router_accelerator_to_cpu_ratio = {ratio} changes nothing here: no worker set routes by \
             device-aware-weighted"
        );
        document.add(Severity::Hint, "router.router_accelerator_to_cpu_ratio", text);
    }
}

/// A card's weights that its mode does not look at.
pub(super) fn check_card(spec: &WorkerSpec, place: &str, document: &mut Document) {
    let Some(config) = spec.router_config.as_ref().filter(|config| config.mode != Mode::Kv) else { return };
    let changed = changed_weights(&config.tuning);
    if !changed.is_empty() {
        let text = format!(
            "worker {}: router_config: {} changes nothing: router mode {} does not look at it, only kv does",
            spec.url,
            changed.join(", "),
            config.mode
        );
        document.add(Severity::Warning, &format!("{place}.router_config"), text);
    }
}

type Said = Option<(Severity, String)>;

/// Prefill and decode workers need each other.
fn partner(view: &FleetView, set: &SetView, flags: &OfTheFrontend) -> Said {
    let beside = |role| {
        view.sets.iter().any(|other| {
            let (one, other) = (&set.key, &other.key);
            (&one.model, &one.namespace, role) == (&other.model, &other.namespace, other.worker_type)
        })
    };
    let namespace = &set.key.namespace;
    match set.key.worker_type {
        WorkerType::Prefill if !beside(WorkerType::Decode) => Some((
            Severity::Warning,
            format!("there is no decode worker in namespace {namespace}; prefill workers alone serve nobody"),
        )),
        WorkerType::Decode if flags.enforce_disagg && !beside(WorkerType::Prefill) => Some((
            Severity::Warning,
            format!(
                "there is no prefill worker in namespace {namespace}; with enforce_disagg its requests are refused until \
                 one registers"
            ),
        )),
        _ => None,
    }
}

/// Mode kv guesses without events, and no other mode looks at what they tell.
fn events(set: &SetView) -> Said {
    let mut silent: Vec<_> = set
        .members
        .iter()
        .filter(|member| member.worker.spec.kv_events_endpoint.is_none())
        .map(|member| member.worker.spec.url.as_str())
        .collect();
    let (mode, none) = (set.config.mode, silent.len() == set.members.len());
    if mode != Mode::Kv {
        let text =
            format!("kv_events_endpoint has its cache followed, and router mode {mode} does not look at it");
        return (!none).then_some((Severity::Hint, text));
    }
    let bypasses = set.config.tuning.conditional_disagg.is_some();
    // What decode workers have cached counts beside prefill workers only where it may make do without them.
    let counts_for_nothing = !bypasses && matches!(set.prefill, PrefillPool::Active(_));
    let followed = set.config.tuning.use_kv_events;
    if silent.is_empty() || !followed || is_load_aware(&set.config.tuning) || counts_for_nothing {
        return None;
    }
    silent.dedup();
    let whose =
        if none { "none of its workers has".to_owned() } else { format!("{} has no", silent.join(", ")) };
    let text = format!(
        "router mode kv, and {whose} kv_events_endpoint: what is cached there is guessed from what was sent"
    );
    Some((Severity::Warning, text))
}

/// Whether what is cached is worth nothing.
fn is_load_aware(tuning: &Tuning) -> bool {
    let weights = [tuning.overlap_score_credit, tuning.host_cache_hit_weight, tuning.disk_cache_hit_weight];
    weights == [0.0; 3] || tuning.prefill_load_scale == 0.0 || !tuning.router_track_prefill_tokens
}

/// Of one kind there is nothing to weigh.
fn devices(set: &SetView) -> Said {
    let mut classes = set.members.iter().map(|member| member.class);
    let first = classes.next()?;
    if set.config.mode != Mode::DeviceAwareWeighted || classes.any(|class| class != first) {
        return None;
    }
    let (kind, other) = match first {
        DeviceClass::Cpu => ("CPUs", "cuda"),
        DeviceClass::Accelerator => ("accelerators", "cpu"),
    };
    let text = format!(
        "all of its workers are {kind}, so router mode device-aware-weighted is least-loaded; a worker with \
         device = \"{other}\" would change that"
    );
    Some((Severity::Hint, text))
}
