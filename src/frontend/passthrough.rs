//! The routes that are not tokenised: embeddings, responses, messages and whatever else names a model.
//!
//! They go to a worker of that model by load, through the set's own strategy with an empty prompt.

use std::sync::Arc;

use axum::{extract::Request, response::Response};
use bytes::Bytes;

use super::{
    app::App,
    counters::Surface,
    error::ApiError,
    hints::Hints,
    openai::Fields,
    place::Prompt,
    route::{self, Send},
    watch::InFlight,
};

/// Proxies one request.
pub(super) async fn serve(app: Arc<App>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = match route::read_body(&app, &head.headers, body).await {
        Ok(body) => body,
        Err(error) => return route::refuse(&app, Surface::Other, error),
    };
    let in_flight = InFlight::enter(&app.counters, Surface::Other);
    match prepare(&app, &head, &body) {
        Ok(send) => route::send(app, in_flight, head, send).await,
        Err(error) => in_flight.refuse(error),
    }
}

fn prepare(app: &App, head: &http::request::Parts, body: &Bytes) -> Result<Send, ApiError> {
    let json = head
        .headers
        .get(http::header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_none_or(|value| value.to_ascii_lowercase().starts_with("application/json"));
    if !json {
        return Err(ApiError::bad_request(
            "only JSON bodies are routed here; send content-type application/json with a 'model' field",
        ));
    }
    let fields = Fields::parse(body)?;
    let model = route::model(&fields)?;
    let hints = Hints::read(&head.headers, &fields)?;
    if hints.query_only {
        return Err(route::query_elsewhere());
    }
    let set = app.set_for(&model, &hints)?;
    let forwarded = if hints.has_nvext { fields.rewrite(&["nvext"], None) } else { body.clone() };
    Ok(Send { set: set.0, body: forwarded, prompt: Prompt::default(), hints })
}
