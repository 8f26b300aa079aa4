//! Which worker set serves a request, where a model has several.

use std::{borrow::Cow, sync::Arc, time::Duration};

use super::{
    app::App, asked_model::AskedModel, error::ApiError, hints::Hints, session, two_hop::has, workspace::Tools,
};
use crate::fleet::{FleetView, PrefillPool, SessionId, SetView};

impl App {
    /// The set that serves what is asked for now, and the adapter if the name is one. Of several sets it is the one with
    /// the worker that the request is pinned to, else one is drawn, by their numbers of workers that can take it.
    ///
    /// # Errors
    /// 404 for a model nobody serves, or nobody at this route; 503 for one that has prefill workers only.
    pub(super) fn set_for(
        &self,
        asked: &AskedModel,
        hints: &Hints,
    ) -> Result<(Arc<SetView>, Option<String>), ApiError> {
        let view = self.fleet.view();
        let model = &asked.name;
        let route = view.route(model).ok_or_else(|| {
            if view.has_prefill(model) {
                return ApiError::unavailable(format!(
                    "no worker decodes '{model}' now, only prefill workers do serve it"
                ));
            }
            ApiError::model_not_found(model, &view.models())
        })?;
        let sets = serving(&view, &route.sets, asked).ok_or_else(|| asked.not_served(&view, &route.sets))?;
        let now = self.fleet.clock().now();
        let set = pinned_set(&view, &sets, hints)
            .or_else(|| session_set(&view, &sets, hints.session?, now))
            .or_else(|| draw_set(&view, &sets, route.lora.as_deref(), self.fleet.now_ms()))
            .ok_or_else(|| ApiError::unavailable(format!("no worker serves '{model}' now")))?;
        Ok((set, route.lora.clone()))
    }
}

/// Those of the sets at `positions` that have the route that is asked for; none if that is none of them.
fn serving<'a>(view: &FleetView, positions: &'a [usize], asked: &AskedModel) -> Option<Cow<'a, [usize]>> {
    let serves = |position: &usize| view.sets.get(*position).is_some_and(|set| asked.is_served_by(set));
    // Nearly always, and without a copy.
    if positions.iter().all(serves) {
        return Some(Cow::Borrowed(positions));
    }
    let some: Vec<_> = positions.iter().copied().filter(serves).collect();
    if some.is_empty() { None } else { Some(Cow::Owned(some)) }
}

fn pinned_set(view: &FleetView, sets: &[usize], hints: &Hints) -> Option<Arc<SetView>> {
    let sets = || sets.iter().filter_map(|&position| view.sets.get(position));
    let pinned = |set: &&Arc<SetView>| hints.pin.is_some_and(|pin| has(set, &pin));
    // A pinned prefill worker serves one decode set.
    let prefill_pinned = |set: &&Arc<SetView>| match (&set.prefill, hints.prefill_pin.or(hints.pin)) {
        (PrefillPool::Active(prefill), Some(pin)) => has(prefill, &pin),
        _ => false,
    };
    sets().find(pinned).or_else(|| sets().find(prefill_pinned)).map(Arc::clone)
}

fn session_set(
    view: &FleetView,
    positions: &[usize],
    session: SessionId,
    now: Duration,
) -> Option<Arc<SetView>> {
    if positions.len() == 1 {
        return None;
    }
    let sets = positions.iter().filter_map(|&position| view.sets.get(position));
    session::set_of(sets, session, now).map(Arc::clone)
}

fn draw_set(
    view: &FleetView,
    positions: &[usize],
    adapter: Option<&str>,
    now_ms: u64,
) -> Option<Arc<SetView>> {
    let sets = || positions.iter().filter_map(|&position| view.sets.get(position));
    if positions.len() == 1 {
        return sets().next().map(Arc::clone);
    }
    let total: usize = sets().map(|set| set.routable_for(adapter, now_ms)).sum();
    if total == 0 {
        // The refusal of any of them says why.
        return sets().next().map(Arc::clone);
    }
    let mut draw = Tools::lend(|tools| tools.draw(total));
    for set in sets() {
        let share = set.routable_for(adapter, now_ms);
        if draw < share {
            return Some(Arc::clone(set));
        }
        draw -= share;
    }
    // A worker left between the two counts.
    sets().next().map(Arc::clone)
}
