//! The model that a client asks for, and the part of its API that the route needs.

use std::borrow::Cow;

use super::{counters::Surface, error::ApiError};
use crate::fleet::{Api, FleetView, SetView};

/// A model and the route that it is asked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AskedModel {
    /// As the client names it: a model or an adapter.
    pub(super) name: String,
    path: Cow<'static, str>,
    /// None for a route of which no card says whether a model has it.
    api: Option<Api>,
}

impl AskedModel {
    /// Asked at the route of a surface.
    pub(super) fn at(surface: Surface, name: String) -> Self {
        let (path, api) = match surface {
            Surface::Chat => ("/v1/chat/completions", Some(Api::Chat)),
            Surface::Completions => ("/v1/completions", Some(Api::Completions)),
            Surface::Other => ("/v1/", None),
        };
        Self { name, path: Cow::Borrowed(path), api }
    }

    /// Asked at a route that is forwarded.
    pub(super) fn at_path(path: &str, name: String) -> Self {
        let first = path.strip_prefix("/v1/").and_then(|path| path.split('/').next());
        let api = match (path, first) {
            ("/v1/audio/speech", _) => Some(Api::Audios),
            (_, Some("embeddings")) => Some(Api::Embedding),
            (_, Some("responses" | "messages")) => Some(Api::Chat),
            (_, Some("images")) => Some(Api::Images),
            (_, Some("videos")) => Some(Api::Videos),
            _ => None,
        };
        Self { name, path: Cow::Owned(path.to_owned()), api }
    }

    /// Whether a set has that route.
    pub(super) fn is_served_by(&self, set: &SetView) -> bool {
        self.api.is_none_or(|api| set.key.model_type.serves(api))
    }

    /// 404 for a model whose sets, at `positions`, have no such route.
    pub(super) fn not_served(&self, view: &FleetView, positions: &[usize]) -> ApiError {
        let sets = || positions.iter().filter_map(|&position| view.sets.get(position));
        let served = Api::ALL.into_iter().filter(|&api| sets().any(|set| set.key.model_type.serves(api)));
        let served: Vec<_> = served.map(Api::name).collect();
        let needed = self.api.map_or("another part of the API", Api::name);
        ApiError::route_not_served(format!(
            "the model '{}' is not served at {}: its workers would need {needed} in their model_type, and have {}",
            self.name,
            self.path,
            served.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_need_what_they_are_about() {
        for (path, api) in [
            ("/v1/embeddings", Some(Api::Embedding)),
            ("/v1/responses", Some(Api::Chat)),
            ("/v1/responses/abc/cancel", Some(Api::Chat)),
            ("/v1/messages", Some(Api::Chat)),
            ("/v1/messages/count_tokens", Some(Api::Chat)),
            ("/v1/images/generations", Some(Api::Images)),
            ("/v1/audio/speech", Some(Api::Audios)),
            ("/v1/videos", Some(Api::Videos)),
            ("/v1/audio/transcriptions", None),
            ("/v1/rerank", None),
            ("/v1/embeddings2", None),
        ] {
            assert_eq!(AskedModel::at_path(path, "m".to_owned()).api, api, "{path}");
        }
    }
}
