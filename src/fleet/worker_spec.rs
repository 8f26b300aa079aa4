//! What is needed to take a worker into the fleet: the shape that TOML files, `--worker` flags and HTTP
//! registrations share.

use std::borrow::Cow;

use http::Uri;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    base_url::{base_url, without_user},
    card::{Card, WorkerType},
    device_weights::DeviceWeights,
    endpoint::{EndpointError, EventEndpoint, StreamDirection},
    model_type::ModelType,
    name::{LONGEST_ADDRESS, NameError, check_name, check_text},
    router_config::RouterConfig,
    worker_set::SetKey,
};
use crate::{
    device::DeviceClass,
    hash::{BlockSize, BlockSizeError},
    select::CostModel,
};

/// One worker, as whoever announces it describes it. Unknown keys are refused, so that a typing error
/// does not become a default.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSpec {
    /// Its id; given out by the frontend when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Base URL of its OpenAI-compatible server, `http://HOST:PORT` or `https://HOST:PORT`.
    pub url: String,
    /// The name that clients put into `model`.
    pub model: String,
    /// Tokens per KV block. Must be the engine's own, or no prefix ever matches.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// ZMQ endpoint of rank 0's KV events, as in the engine's own configuration (`tcp://*:5557` is taken to mean
    /// the host of `url`). Absent: what it has cached is guessed from
    /// what it was sent, where that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_events_endpoint: Option<String>,
    /// ZMQ endpoint of rank 0's replay socket. Absent: what is lost stays lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_replay_endpoint: Option<String>,
    /// `bind` if the engine's event socket connects to us.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kv_events_direction: StreamDirection,
    /// First data-parallel rank of this worker.
    #[serde(default, skip_serializing_if = "is_default")]
    pub first_rank: u32,
    /// Number of data-parallel ranks.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub ranks: u32,
    /// What it computes on; `cpu` workers take a smaller share under `device-aware-weighted`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub device: DeviceKind,
    /// First part of the worker set's address.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// Second part.
    #[serde(default = "default_component")]
    pub component: String,
    /// Third part.
    #[serde(default = "default_endpoint")]
    pub endpoint: String,
    /// The parts of the API that it serves, joined by `|`; requests for others are not sent there.
    #[serde(default)]
    pub model_type: ModelType,
    /// Role in a prefill/decode deployment. A decode set serves alone, or with the prefill set beside it; a prefill
    /// set alone serves nobody; encode workers are refused.
    #[serde(default, skip_serializing_if = "is_default")]
    pub worker_type: WorkerType,
    /// Whether the engine speculates with EAGLE (block hashes look one token ahead).
    #[serde(default, skip_serializing_if = "is_default")]
    pub eagle: bool,
    /// LoRA adapters that the worker serves as models of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lora_adapters: Vec<String>,
    /// Longest prompt plus output, in tokens. Known, a longer prompt is refused here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u64>,
    /// KV blocks of one rank's engine, in all. Without it nobody knows how full the worker is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_kv_blocks: Option<u64>,
    /// Tokens of one rank's largest batch. Without it nobody knows how busy the worker's prefill is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_num_batched_tokens: Option<u64>,
    /// Port at which decode engines meet this prefill engine, as SGLang's do; absent: they are told of its blocks when it
    /// has computed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_port: Option<u16>,
    /// The host that goes with it; absent = that of `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_host: Option<String>,
    /// The routing configuration that the worker wants for its set; absent = the frontend's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router_config: Option<RouterConfig>,
    /// What the worker wants devices to have to say in its set; absent = the frontend's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_weights: Option<DeviceWeights>,
    /// The cost model that the worker wants for its set: `time` or `blocks`; absent = the frontend's.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "cost_model")]
    pub router_cost_model: Option<CostModel>,
    /// For how many seconds the worker wants requests of its set to be held at most, 0 to 3600; absent = the frontend's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router_hold: Option<f64>,
    /// When it was rolled out, in milliseconds since the Unix epoch, so that all frontends agree whose configuration
    /// came first; absent = when it came to this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered_ms: Option<u64>,
}

/// What a worker computes on, as registrations spell it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A CUDA GPU, or any other accelerator.
    #[default]
    Cuda,
    /// The host's processors.
    Cpu,
}

impl DeviceKind {
    /// The class that selection tells apart.
    #[must_use]
    pub const fn class(self) -> DeviceClass {
        match self {
            Self::Cuda => DeviceClass::Accelerator,
            Self::Cpu => DeviceClass::Cpu,
        }
    }
}

/// A worker description that cannot be used.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum SpecError {
    /// Not an absolute http URL.
    #[error(
        "url '{0}' is not usable; accepted is http://HOST:PORT or https://HOST:PORT, with a path if the server has a prefix"
    )]
    Url(String),
    /// A URL with a user, and a password perhaps, which are left out here.
    #[error(
        "url '{0}' has a user in it, whom no request would name; leave user and password out, and give the frontend the key that workers \
         ask for by --worker-api-key-file"
    )]
    UrlUser(String),
    /// An event or replay endpoint that ZMQ does not take.
    #[error("{field}: {error}")]
    Endpoint {
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        error: EndpointError,
    },
    /// A block size that no engine has.
    #[error("block_size: {0}")]
    BlockSize(#[from] BlockSizeError),
    /// A text that would be unreadable where it is shown, or would forge what is beside it.
    #[error("{field} {error}")]
    Name {
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        error: NameError,
    },
    /// A size of nothing, which nobody has.
    #[error("{0} = 0 is not usable; accepted are 1 or more; leave it out if it is not known")]
    Zero(&'static str),
    /// No ranks, or more than a worker has.
    #[error("ranks = {0} is not usable; accepted are 1 to 1024")]
    Ranks(u32),
    /// A first rank past any real one.
    #[error("first_rank = {0} is not usable; accepted are 0 to 65535")]
    FirstRank(u32),
    /// Ranks past any real one.
    #[error("first_rank = {first} with ranks = {ranks} is not usable; accepted are ranks up to 65535")]
    LastRank {
        /// The first of them.
        first: u32,
        /// How many there are.
        ranks: u32,
    },
    /// An adapter that no request could name.
    #[error("lora_adapters: '{0}' is not usable; each needs a name of its own, other than the model's")]
    Adapter(String),
    /// A role that is not routed yet.
    #[error(
        "worker_type = \"{}\" is not supported by this version; leave it out, or set it to \"aggregated\", \"prefill\" or \"decode\"",
        .0.name()
    )]
    Role(WorkerType),
    /// A hold that is no time, or hours.
    #[error("router_hold = {0} is not usable; accepted are 0 to 3600 seconds")]
    Hold(f64),
    /// A meeting point on a worker that hands nothing over.
    #[error(
        "{0} is where decode engines meet a prefill engine; leave it out, or set worker_type to \"prefill\" and give \
         bootstrap_port"
    )]
    Bootstrap(&'static str),
    /// A replay endpoint without the events that it would complete.
    #[error("kv_replay_endpoint needs kv_events_endpoint")]
    ReplayWithoutEvents,
}

/// A [`WorkerSpec`] whose parts have been read and found usable.
#[derive(Clone, Debug)]
pub(super) struct CheckedSpec {
    pub(super) url: Uri,
    pub(super) card: Card,
    pub(super) block_size: BlockSize,
    pub(super) events: Option<EventEndpoint>,
    pub(super) replay: Option<EventEndpoint>,
}

impl WorkerSpec {
    /// A worker of `model` at `url`, everything else at its default.
    #[must_use]
    pub fn new(url: &str, model: &str) -> Self {
        Self {
            id: None,
            url: url.to_owned(),
            model: model.to_owned(),
            block_size: default_block_size(),
            kv_events_endpoint: None,
            kv_replay_endpoint: None,
            kv_events_direction: StreamDirection::default(),
            first_rank: 0,
            ranks: 1,
            device: DeviceKind::default(),
            namespace: default_namespace(),
            component: default_component(),
            endpoint: default_endpoint(),
            model_type: ModelType::default(),
            worker_type: WorkerType::default(),
            eagle: false,
            lora_adapters: Vec::new(),
            max_model_len: None,
            total_kv_blocks: None,
            max_num_batched_tokens: None,
            bootstrap_port: None,
            bootstrap_host: None,
            router_config: None,
            device_weights: None,
            router_cost_model: None,
            router_hold: None,
            registered_ms: None,
        }
    }

    /// The part of the description that must be equal over a worker set's replicas.
    #[must_use]
    pub fn card(&self) -> Card {
        let mut lora_adapters = self.lora_adapters.clone();
        lora_adapters.sort_unstable();
        let set = SetKey {
            model: self.model.clone(),
            namespace: self.namespace.clone(),
            component: self.component.clone(),
            endpoint: self.endpoint.clone(),
            model_type: self.model_type,
            worker_type: self.worker_type,
        };
        Card {
            set,
            block_size: self.block_size,
            eagle: self.eagle,
            lora_adapters,
            max_model_len: self.max_model_len,
            router_config: self.router_config.clone(),
            device_weights: self.device_weights,
            router_cost_model: self.router_cost_model,
            router_hold: self.router_hold,
        }
    }

    /// Whether a fleet can take it in, as far as the description alone tells.
    ///
    /// # Errors
    /// See [`SpecError`].
    pub fn validate(&self) -> Result<(), SpecError> {
        self.check().map(drop)
    }

    pub(super) fn check(&self) -> Result<CheckedSpec, SpecError> {
        self.check_names()?;
        for (field, size) in [
            ("max_model_len", self.max_model_len),
            ("total_kv_blocks", self.total_kv_blocks),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
        ] {
            if size == Some(0) {
                return Err(SpecError::Zero(field));
            }
        }
        if self.worker_type == WorkerType::Encode {
            return Err(SpecError::Role(self.worker_type));
        }
        self.check_adapters()?;
        if let Some(hold) = self.router_hold.filter(|hold| !(0.0..=3600.0).contains(hold)) {
            return Err(SpecError::Hold(hold));
        }
        if !(1..=1024).contains(&self.ranks) {
            return Err(SpecError::Ranks(self.ranks));
        }
        if self.first_rank > 65_535 {
            return Err(SpecError::FirstRank(self.first_rank));
        }
        let last_rank = self.first_rank + self.ranks - 1;
        if last_rank > 65_535 {
            return Err(SpecError::LastRank { first: self.first_rank, ranks: self.ranks });
        }
        if self.kv_replay_endpoint.is_some() && self.kv_events_endpoint.is_none() {
            return Err(SpecError::ReplayWithoutEvents);
        }
        self.check_bootstrap()?;
        let url = self.base_url()?;
        let host = url.host().unwrap_or("127.0.0.1");
        let endpoint = |field, text: &Option<String>, direction| {
            text.as_deref()
                .map(|text| EventEndpoint::parse(text, host, direction))
                .transpose()
                .map_err(|error| SpecError::Endpoint { field, error })
        };
        let events = endpoint("kv_events_endpoint", &self.kv_events_endpoint, self.kv_events_direction)?;
        // The replay socket is a ROUTER that the engine always binds.
        let replay = endpoint("kv_replay_endpoint", &self.kv_replay_endpoint, StreamDirection::Connect)?;
        for (field, known) in [("kv_events_endpoint", &events), ("kv_replay_endpoint", &replay)] {
            let ranks = known.as_ref().map(|endpoint| endpoint.of_rank(last_rank)).transpose();
            ranks.map_err(|error| SpecError::Endpoint { field, error })?;
        }
        Ok(CheckedSpec {
            card: self.card(),
            block_size: BlockSize::new(self.block_size)?,
            url,
            events,
            replay,
        })
    }

    fn check_names(&self) -> Result<(), SpecError> {
        let unusable = |field| move |error| SpecError::Name { field, error };
        for (field, name) in [
            ("model", &self.model),
            ("namespace", &self.namespace),
            ("component", &self.component),
            ("endpoint", &self.endpoint),
        ] {
            check_name(name).map_err(unusable(field))?;
        }
        let adapters = self.lora_adapters.iter().map(|name| ("lora_adapters", name));
        for (field, name) in adapters.chain(self.bootstrap_host.iter().map(|host| ("bootstrap_host", host))) {
            check_name(name).map_err(unusable(field))?;
        }
        for (field, address) in [
            ("url", Some(&self.url)),
            ("kv_events_endpoint", self.kv_events_endpoint.as_ref()),
            ("kv_replay_endpoint", self.kv_replay_endpoint.as_ref()),
        ] {
            let checked = address.map_or(Ok(()), |address| check_text(address, LONGEST_ADDRESS));
            checked.map_err(unusable(field))?;
        }
        Ok(())
    }

    fn check_bootstrap(&self) -> Result<(), SpecError> {
        match (self.bootstrap_port, &self.bootstrap_host) {
            (None, Some(_)) => Err(SpecError::Bootstrap("bootstrap_host")),
            (Some(_), _) if self.worker_type != WorkerType::Prefill => {
                Err(SpecError::Bootstrap("bootstrap_port"))
            }
            _ => Ok(()),
        }
    }

    fn check_adapters(&self) -> Result<(), SpecError> {
        for (position, name) in self.lora_adapters.iter().enumerate() {
            let earlier = &self.lora_adapters[..position];
            if *name == self.model || earlier.contains(name) {
                return Err(SpecError::Adapter(name.clone()));
            }
        }
        Ok(())
    }

    /// `url` as requests are sent to it.
    pub(crate) fn base_url(&self) -> Result<Uri, SpecError> {
        base_url(&self.url).ok_or_else(|| match without_user(&self.url) {
            Cow::Borrowed(url) => SpecError::Url(url.to_owned()),
            Cow::Owned(url) => SpecError::UrlUser(url),
        })
    }
}

/// A cost model by its name.
mod cost_model {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use crate::select::CostModel;

    // serde hands fields over as references.
    #[expect(clippy::ref_option, clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
    pub(super) fn serialize<S: Serializer>(
        model: &Option<CostModel>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match model {
            Some(model) => serializer.serialize_str(model.name()),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<CostModel>, D::Error> {
        let name = Option::<String>::deserialize(deserializer)?;
        name.map(|name| name.parse().map_err(D::Error::custom)).transpose()
    }
}

fn default_block_size() -> u32 {
    16
}

fn default_namespace() -> String {
    "default".to_owned()
}

fn default_component() -> String {
    "backend".to_owned()
}

fn default_endpoint() -> String {
    "generate".to_owned()
}

fn one() -> u32 {
    1
}

// serde hands `skip_serializing_if` a reference.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_one(ranks: &u32) -> bool {
    *ranks == 1
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimal_toml_worker_reads() {
        let spec: WorkerSpec = toml::from_str("url = 'http://h:8000'\nmodel = 'm'").unwrap();
        assert_eq!(spec, WorkerSpec::new("http://h:8000", "m"));
        assert!(spec.check().is_ok());
    }

    #[test]
    fn a_misspelt_key_is_named_with_its_line() {
        let error = toml::from_str::<WorkerSpec>("url = 'http://h:1'\nmodel = 'm'\nkv_event = 'x'")
            .unwrap_err()
            .to_string();
        assert!(error.contains("kv_event") && error.contains("line 3"), "{error}");
    }

    #[test]
    fn a_cost_model_is_read_and_written_by_its_name() {
        let spec: WorkerSpec =
            toml::from_str("url = 'http://h:1'\nmodel = 'm'\nrouter_cost_model = 'blocks'").unwrap();
        assert_eq!(spec.router_cost_model, Some(CostModel::Blocks));
        let json = serde_json::to_value(&spec).unwrap();
        assert_eq!(json["router_cost_model"], "blocks");
        assert_eq!(serde_json::from_value::<WorkerSpec>(json).unwrap(), spec);
        let silent = serde_json::to_value(WorkerSpec::new("http://h:1", "m")).unwrap();
        assert!(silent.get("router_cost_model").is_none(), "older frontends know no such key");
        let wrong = toml::from_str::<WorkerSpec>("url = 'http://h:1'\nmodel = 'm'\nrouter_cost_model = 'x'");
        assert!(wrong.unwrap_err().to_string().contains("blocks, time"));
    }

    #[test]
    fn unusable_fields_are_named() {
        let base = WorkerSpec::new("http://h:8000", "m");
        let cases: [(WorkerSpec, &str); 14] = [
            (WorkerSpec { url: "h:8000".into(), ..base.clone() }, "url"),
            (WorkerSpec { url: "ftp://h:8000".into(), ..base.clone() }, "url"),
            (WorkerSpec { url: "http://u:s3cret@h".into(), ..base.clone() }, "--worker-api-key-file"),
            (WorkerSpec { model: String::new(), ..base.clone() }, "model"),
            (WorkerSpec { endpoint: String::new(), ..base.clone() }, "endpoint"),
            (WorkerSpec { lora_adapters: vec!["m".into()], ..base.clone() }, "lora_adapters"),
            (WorkerSpec { lora_adapters: vec!["a".into(), "a".into()], ..base.clone() }, "lora_adapters"),
            (WorkerSpec { worker_type: WorkerType::Encode, ..base.clone() }, "worker_type"),
            (WorkerSpec { block_size: 0, ..base.clone() }, "block_size"),
            (WorkerSpec { ranks: 0, ..base.clone() }, "ranks"),
            (WorkerSpec { bootstrap_port: Some(8998), ..base.clone() }, "bootstrap_port"),
            (WorkerSpec { bootstrap_host: Some("h".into()), ..base.clone() }, "bootstrap_host"),
            (WorkerSpec { kv_events_endpoint: Some("5557".into()), ..base.clone() }, "kv_events_endpoint"),
            (
                WorkerSpec { kv_replay_endpoint: Some("tcp://*:1".into()), ..base.clone() },
                "kv_replay_endpoint",
            ),
        ];
        for (spec, field) in cases {
            let error = spec.check().unwrap_err().to_string();
            assert!(error.contains(field) && !error.contains("s3cret"), "{field}: {error}");
        }
    }
}
