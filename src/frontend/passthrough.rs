//! The routes that are not tokenised: embeddings, responses, messages and whatever else names a model.
//!
//! They go to a worker of that model by load, through the set's own strategy with an empty prompt. They are never split:
//! engines hand prompts over on the two routes that are tokenised, and on no other. Where prefill workers stand beside
//! decode workers these routes are refused, unless the operator lets decode workers go on alone
//! (`--prefill-fallback decode`).

use std::sync::Arc;

use axum::{extract::Request, response::Response};
use bytes::Bytes;

use super::{
    app::App,
    asked_model::AskedModel,
    asking::{Hop, Prompt},
    bypass,
    counters::Surface,
    error::ApiError,
    hints::Hints,
    openai::Fields,
    retry::Tries,
    route::{self, Send},
    settings::PrefillFallback,
    watch::InFlight,
};
use crate::fleet::PrefillPool;

/// Engines' own routes that change what a worker serves. They are for its operator, not for clients.
const REFUSED: [&str; 2] = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"];

/// Whether a path is one that clients may send to a worker: a route of the API, spelled plainly. What a server
/// in between may read as another path (`/v1/../x`) or send elsewhere (`/v1/chat/completions/`, which would be
/// routed without its prompt) is not.
pub(super) fn is_forwarded(path: &str) -> bool {
    let plain =
        |segment: &str| !segment.is_empty() && segment != "." && segment != ".." && !segment.contains('%');
    let route = path.strip_prefix("/v1/");
    route.is_some_and(|route| route.split('/').all(plain)) && !REFUSED.contains(&path)
}

/// Proxies one request.
pub(super) async fn serve(app: Arc<App>, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    head.headers.remove(bypass::MARK);
    let recorded = app.decisions.recorded(&head.headers);
    answer(app, head, body, recorded).await
}

/// Answers it; its decisions are `recorded` under that name if it has one.
async fn answer(
    app: Arc<App>,
    mut head: http::request::Parts,
    body: axum::body::Body,
    recorded: Option<Arc<str>>,
) -> Response {
    let body = match route::read_body(&app, &head.headers, body).await {
        Ok(body) => body,
        Err(error) => return route::refuse(&app, Surface::Other, error),
    };
    let in_flight = InFlight::enter(&app.counters, Surface::Other).noted(&mut head, body.len());
    let in_flight = in_flight.within(app.settings.total_timeout);
    match prepare(&app, &head, &body) {
        Ok(send) => {
            in_flight.note(|facts| facts.asked(&send.model.name));
            let prompt = Prompt { recorded, ..send.prompt };
            route::send(app, in_flight, head, Send { prompt, ..send }).await
        }
        Err(error) => in_flight.refuse(error),
    }
}

fn prepare(app: &App, head: &http::request::Parts, body: &Bytes) -> Result<Send, ApiError> {
    if !route::is_json(&head.headers) {
        return Err(ApiError::not_json());
    }
    let fields = Fields::parse(body)?;
    let model = AskedModel::at_path(head.uri.path(), route::model(&fields)?);
    let hints = Hints::read(&head.headers, &fields)?;
    app.note_unknown_hints(&hints.unknown_keys);
    if hints.query_only {
        return Err(route::query_elsewhere());
    }
    let (set, lora) = app.set_for(&model, &hints)?;
    if app.settings.prefill_fallback != PrefillFallback::Decode {
        if !matches!(set.prefill, PrefillPool::None) {
            return Err(ApiError::not_split(head.uri.path(), &model.name));
        }
        // Whether there have to be prefill workers.
        app.split(&set, &hints)?;
    }
    let (salt, body) = route::for_engine(&set, &hints, &fields, body)?;
    let hop = Hop::whole(&hints);
    let prompt = Prompt { lora, salt, ..Prompt::default() };
    Ok(Send { model, set, body, prompt, hints, hop, prefiller: None, tries: Tries::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_routes_of_the_api_are_forwarded() {
        for path in ["/v1/embeddings", "/v1/audio/speech", "/v1/responses"] {
            assert!(is_forwarded(path), "{path}");
        }
        for path in [
            "/v1/",
            "/v1/embeddings/",
            "/v1/chat/completions/",
            "/v1//embeddings",
            "/v1/../sleep",
            "/v1/%2e%2e/sleep",
            "/v2/embeddings",
            "/sleep",
            "/v1/load_lora_adapter",
        ] {
            assert!(!is_forwarded(path), "{path}");
        }
    }
}
