//! Why a worker was not taken in.

use thiserror::Error;

use super::{namespaces::Namespaces, worker_set::SetKey, worker_spec::SpecError};
use crate::{select::TuningError, slot::WorkerId};

/// A worker that was not taken in.
#[derive(Debug, Error)]
pub enum RegistrationError {
    /// Its description cannot be used.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Its id belongs to another worker.
    #[error("worker id {id} is taken by {url}; leave the id out, or remove that worker first")]
    IdTaken {
        /// The id.
        id: WorkerId,
        /// Who has it.
        url: String,
    },
    /// A name of its card stands for something else already.
    #[error(
        "the name '{name}' is served already by worker set {set} as another model or adapter; a name stands for one \
         thing: rename the model or the adapter"
    )]
    NameTaken {
        /// The model's or the adapter's name.
        name: String,
        /// Whose it is.
        set: Box<SetKey>,
    },
    /// What its card says of routing, and what the frontend says where the card is silent, do not go together.
    #[error(
        "its card and this frontend's flags make no routing configuration together: {0}. What the card leaves out is the \
         frontend's: give the other value on the card too (router_hold = 0 turns the frontend's hold off), or change the frontend"
    )]
    Settings(TuningError),
    /// Its namespace is another frontend's.
    #[error(
        "namespace '{namespace}' is not served here: this frontend serves {served} (--namespace, --namespace-prefix)"
    )]
    OtherNamespace {
        /// The worker's.
        namespace: String,
        /// What is served.
        served: Namespaces,
    },
    /// There can be no index of its model now.
    #[error("its model has no index yet, and none could be made: {0}; register it again after that")]
    Index(String),
    /// Its event stream cannot be opened.
    #[error("kv_events_endpoint: {0}")]
    Stream(String),
}
