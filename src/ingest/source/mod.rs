//! Where events come from.

mod accepted;
mod contexts;
mod endpoint;
mod feed;
mod zmq;

pub use self::{
    contexts::Contexts,
    endpoint::{Endpoint, EndpointMode},
    feed::Feed,
    zmq::SourceError,
};
pub(super) use self::{
    contexts::Lent,
    zmq::{Arrival, ReplaySocket, Subscriber, SubscriberEvent},
};
