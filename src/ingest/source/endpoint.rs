//! Which side of a ZMQ connection listens.

use crate::fleet::StreamDirection;

/// Whether we connect to an endpoint or listen on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndpointMode {
    /// The engine listens, we connect. The usual way round.
    Connect,
    /// We listen, the engine connects.
    Bind,
}

/// A ZMQ address and which side of it is ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// As ZMQ spells it, e.g. `tcp://10.0.0.7:5557`.
    pub address: String,
    /// Our side.
    pub mode: EndpointMode,
}

impl Endpoint {
    /// The endpoint of an engine's stream.
    pub(crate) fn new(direction: StreamDirection, address: String) -> Self {
        match direction {
            StreamDirection::Connect => Self::connect(address),
            StreamDirection::Bind => Self::bind(address),
        }
    }

    /// An endpoint that the engine listens on.
    pub fn connect(address: impl Into<String>) -> Self {
        Self { address: address.into(), mode: EndpointMode::Connect }
    }

    /// An endpoint that we listen on.
    pub fn bind(address: impl Into<String>) -> Self {
        Self { address: address.into(), mode: EndpointMode::Bind }
    }
}
