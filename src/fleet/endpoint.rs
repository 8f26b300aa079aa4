//! Where a rank's KV events come from: ZMQ endpoints as engines write them, turned into ones to open.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Which side of an event socket opens the connection.
///
/// vLLM binds when its endpoint contains `*` or `::` (or is `ipc`/`inproc`) and connects otherwise; the
/// router does the opposite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamDirection {
    /// The engine binds, the router connects.
    #[default]
    Connect,
    /// The engine connects, the router binds.
    Bind,
}

impl StreamDirection {
    /// What a router has to do about an endpoint as the engine spells it, if the engine was not told to do otherwise.
    pub(crate) fn of_endpoint(endpoint: &str) -> Self {
        let local = endpoint.starts_with("ipc://") || endpoint.starts_with("inproc://");
        if local || endpoint.contains('*') || endpoint.contains("::") { Self::Connect } else { Self::Bind }
    }
}

/// A ZMQ endpoint of rank 0 of a worker; rank r uses the port r above it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventEndpoint {
    base: Base,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Base {
    Tcp {
        host: String,
        port: u16,
    },
    /// `ipc://` and `inproc://`: rank r > 0 appends `_dp{r}`, as engines do.
    Named(String),
}

/// An endpoint that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EndpointError {
    /// Not a form that ZMQ knows.
    #[error("'{0}' is not a ZMQ endpoint; accepted are tcp://HOST:PORT and ipc://PATH")]
    Malformed(String),
    /// Adding the rank to the port went past 65535.
    #[error("port {port} plus rank {rank} is past 65535")]
    PortOverflow {
        /// Port of rank 0.
        port: u16,
        /// The rank.
        rank: u32,
    },
}

impl EventEndpoint {
    /// Reads an endpoint as it stands in an engine's configuration. A wildcard host (`*`, `0.0.0.0`, `[::]`) is the
    /// engine's way to say "all my addresses": the router then connects to `worker_host`.
    ///
    /// # Errors
    /// [`EndpointError::Malformed`] for anything but `tcp://HOST:PORT`, `ipc://...` and `inproc://...`.
    pub fn parse(text: &str, worker_host: &str, direction: StreamDirection) -> Result<Self, EndpointError> {
        let malformed = || EndpointError::Malformed(text.to_owned());
        if text.starts_with("ipc://") || text.starts_with("inproc://") {
            return Ok(Self { base: Base::Named(text.to_owned()) });
        }
        let address = text.strip_prefix("tcp://").ok_or_else(malformed)?;
        let (host, port) = address.rsplit_once(':').ok_or_else(malformed)?;
        let port = port.parse().map_err(|_| malformed())?;
        let wildcard = matches!(host, "*" | "0.0.0.0" | "[::]" | "::");
        let host = match direction {
            StreamDirection::Connect if wildcard => worker_host,
            StreamDirection::Bind if matches!(host, "[::]" | "::") => "*",
            _ => host,
        };
        if host.is_empty() {
            return Err(malformed());
        }
        Ok(Self { base: Base::Tcp { host: host.to_owned(), port } })
    }

    /// The endpoint of one rank, in ZMQ's spelling.
    ///
    /// # Errors
    /// [`EndpointError::PortOverflow`].
    pub fn of_rank(&self, rank: u32) -> Result<String, EndpointError> {
        match &self.base {
            Base::Tcp { host, port } => {
                let overflow = EndpointError::PortOverflow { port: *port, rank };
                let shifted = u32::from(*port).checked_add(rank).and_then(|port| u16::try_from(port).ok());
                Ok(format!("tcp://{host}:{}", shifted.ok_or(overflow)?))
            }
            Base::Named(name) if rank == 0 => Ok(name.clone()),
            Base::Named(name) => Ok(format!("{name}_dp{rank}")),
        }
    }
}

impl fmt::Display for EventEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.base {
            Base::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Base::Named(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(text: &str, rank: u32) -> Result<String, EndpointError> {
        EventEndpoint::parse(text, "10.0.0.7", StreamDirection::Connect)?.of_rank(rank)
    }

    #[test]
    fn a_wildcard_host_means_the_worker_s_own() {
        assert_eq!(rank("tcp://*:5557", 0).unwrap(), "tcp://10.0.0.7:5557");
        assert_eq!(rank("tcp://0.0.0.0:5557", 2).unwrap(), "tcp://10.0.0.7:5559");
        assert_eq!(rank("tcp://[::]:5557", 0).unwrap(), "tcp://10.0.0.7:5557");
        assert_eq!(rank("tcp://gpu-3:5557", 1).unwrap(), "tcp://gpu-3:5558");
    }

    #[test]
    fn binding_keeps_the_wildcard() {
        let endpoint = EventEndpoint::parse("tcp://*:5557", "x", StreamDirection::Bind).unwrap();
        assert_eq!(endpoint.of_rank(0).unwrap(), "tcp://*:5557");
    }

    #[test]
    fn named_endpoints_get_the_engines_rank_suffix() {
        assert_eq!(rank("ipc:///run/kv", 0).unwrap(), "ipc:///run/kv");
        assert_eq!(rank("ipc:///run/kv", 3).unwrap(), "ipc:///run/kv_dp3");
    }

    #[test]
    fn what_zmq_does_not_know_is_refused() {
        for text in ["", "5557", "http://a:1", "tcp://a", "tcp://a:x", "tcp://:5557", "tcp://a:70000"] {
            assert!(matches!(rank(text, 0), Err(EndpointError::Malformed(_))), "{text}");
        }
        assert_eq!(rank("tcp://a:65535", 1), Err(EndpointError::PortOverflow { port: 65535, rank: 1 }));
    }
}
