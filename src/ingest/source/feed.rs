//! How to reach one rank's events.

use super::Endpoint;
use crate::ingest::stream::StreamSettings;

/// How to reach one rank's events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Feed {
    /// Where batches are published.
    pub endpoint: Endpoint,
    /// Where missed batches can be asked for, as ZMQ spells it; engines always listen there.
    pub replay: Option<String>,
    /// Only messages whose topic starts so are this rank's.
    pub topic: String,
    /// Limits and times.
    pub settings: StreamSettings,
}

impl Feed {
    /// A feed without replay, any topic, default settings.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, replay: None, topic: String::new(), settings: StreamSettings::default() }
    }

    /// The same with a replay endpoint.
    #[must_use]
    pub fn with_replay(mut self, address: impl Into<String>) -> Self {
        self.replay = Some(address.into());
        self
    }
}
