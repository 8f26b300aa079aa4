//! Refusals, in vLLM's shape.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::json;

/// `{"error": {message, type, param, code}}` with the status that `code` repeats.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    param: Option<&'static str>,
    message: String,
}

impl ApiError {
    pub(super) fn bad_request(param: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, kind: "BadRequestError", param, message: message.into() }
    }

    pub(super) fn no_such_model(model: &str) -> Self {
        let message = format!("The model `{model}` does not exist.");
        Self { status: StatusCode::NOT_FOUND, kind: "NotFoundError", param: Some("model"), message }
    }

    pub(super) fn injected(status: StatusCode) -> Self {
        let message = format!("the mock engine was told to answer {}", status.as_u16());
        Self { status, kind: "InjectedError", param: None, message }
    }

    /// The loop has ended: the engine is being stopped.
    pub(super) fn engine_gone() -> Self {
        let message = "the engine loop has ended".into();
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, kind: "InternalServerError", param: None, message }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = self.status.as_u16();
        let error = json!({"message": self.message, "type": self.kind, "param": self.param, "code": code});
        (self.status, Json(json!({ "error": error }))).into_response()
    }
}
