//! Which side of a ZMQ connection listens.

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
    /// An endpoint that the engine listens on.
    pub fn connect(address: impl Into<String>) -> Self {
        Self { address: address.into(), mode: EndpointMode::Connect }
    }

    /// An endpoint that we listen on.
    pub fn bind(address: impl Into<String>) -> Self {
        Self { address: address.into(), mode: EndpointMode::Bind }
    }

    /// Our side of the endpoint that an engine was configured with, seen from a machine that knows the
    /// engine's by the name `host`.
    ///
    /// vLLM and SGLang listen when their endpoint holds `*` or `::`, or is not TCP; else their publisher
    /// connects, and so it is for us to listen there.
    #[must_use]
    pub fn of_engine(configured: &str, host: &str) -> Self {
        let Some(rest) = configured.strip_prefix("tcp://") else { return Self::connect(configured) };
        if !rest.contains('*') && !rest.contains("::") {
            return Self::bind(configured);
        }
        let port = rest.rsplit_once(':').map_or("", |(_, port)| port);
        // An IPv6 address needs brackets, or its colons read as the port's.
        if host.contains(':') && !host.starts_with('[') {
            Self::connect(format!("tcp://[{host}]:{port}"))
        } else {
            Self::connect(format!("tcp://{host}:{port}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engines_endpoint_says_who_listens() {
        let table = [
            ("tcp://*:5557", "10.0.0.7", Endpoint::connect("tcp://10.0.0.7:5557")),
            ("tcp://[::]:5557", "gpu-3", Endpoint::connect("tcp://gpu-3:5557")),
            ("tcp://*:5557", "fd00::7", Endpoint::connect("tcp://[fd00::7]:5557")),
            ("tcp://10.0.0.1:5557", "10.0.0.7", Endpoint::bind("tcp://10.0.0.1:5557")),
            ("ipc:///run/kv", "10.0.0.7", Endpoint::connect("ipc:///run/kv")),
        ];
        for (configured, host, ours) in table {
            assert_eq!(Endpoint::of_engine(configured, host), ours, "{configured} on {host}");
        }
    }
}
