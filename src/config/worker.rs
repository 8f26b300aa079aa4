//! The flags of `kvroute worker`, and what they become.
//!
//! They share a command line with the router's flags and the engine's, so none may be spelled like one of those. What
//! the mock engine takes itself is not among its worker flags.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use ahash::AHashSet;
use clap::{ArgAction, Args, value_parser};
use http::{HeaderValue, Uri};
use serde::Deserialize;
use thiserror::Error;

use super::{
    devices::{SAMPLE_MS, device_sample_ms, settings_of},
    file::FileError,
    flags::{Environment, EnvironmentError},
    token::read_token,
    worker_file::{WorkerFile, lease_secs},
};
use crate::{
    fleet::{
        DeviceKind, ModelType, RouterConfig, StreamDirection, WorkerSpec, WorkerType, base_url, without_user,
    },
    worker::{
        agent::{AgentSettings, DescribeError, Pace},
        backend::{ArgumentError, Backend},
        facts::{Facts, KvEvents, PublishKvEvents, Stated},
    },
};

// The groups of `kvroute worker vllm --help`, in the order in which they are shown.
const REGISTRATION: &str = "Registration";
const ENGINE: &str = "Engine";
const DEVICES: &str = super::devices::HEADING;

/// What a lease may be, in seconds.
pub(super) const LEASE_SECS: RangeInclusive<i64> = 1..=3600;

/// Flags of every worker. The same names, with underscores, are the keys of `[worker]` in a file.
#[derive(Args, Deserialize, Clone, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerArgs {
    /// TOML file with the same settings, those of the engine and the router flags; flags and environment win over it
    #[arg(long, env = "KVROUTE_WORKER_CONFIG", value_name = "FILE", help_heading = REGISTRATION)]
    #[serde(skip)]
    pub worker_config: Option<PathBuf>,
    /// Admin listener of a frontend to register at; several are separated by commas [default: http://127.0.0.1:9091]
    #[arg(
        long,
        env = "KVROUTE_FRONTEND",
        value_delimiter = ',',
        value_name = "URL,...",
        help_heading = REGISTRATION
    )]
    pub frontend: Vec<String>,
    /// File with the token that the frontends' admin listeners ask for
    #[arg(long, env = "KVROUTE_FRONTEND_TOKEN_FILE", value_name = "FILE", help_heading = REGISTRATION)]
    pub frontend_token_file: Option<PathBuf>,
    /// Seconds that a frontend keeps the worker without a heartbeat, 1 to 3600; one is sent every third of it
    /// [default: 10]
    #[arg(
        long,
        env = "KVROUTE_LEASE_SECS",
        value_name = "SECONDS",
        value_parser = value_parser!(u32).range(LEASE_SECS),
        help_heading = REGISTRATION
    )]
    #[serde(deserialize_with = "lease_secs")]
    pub lease_secs: Option<u32>,
    /// Number of the worker in metrics, explain and pins [default: given out by each frontend]
    #[arg(long, env = "KVROUTE_WORKER_ID", value_name = "N", help_heading = REGISTRATION)]
    pub worker_id: Option<u64>,
    /// First part of the worker set's address; where it is not given, DYN_NAMESPACE counts [default: default]
    #[arg(long, env = "KVROUTE_NAMESPACE", value_name = "NAME", help_heading = REGISTRATION)]
    pub namespace: Option<String>,
    /// Second part of it [default: backend]
    #[arg(long, env = "KVROUTE_COMPONENT", value_name = "NAME", help_heading = REGISTRATION)]
    pub component: Option<String>,
    /// Third part of it [default: generate]
    #[arg(long, env = "KVROUTE_ENDPOINT", value_name = "NAME", help_heading = REGISTRATION)]
    pub endpoint: Option<String>,
    /// Base URL under which frontends reach the engine [default: where this process reaches it]
    #[arg(long, env = "KVROUTE_ADVERTISE_URL", value_name = "URL", help_heading = REGISTRATION)]
    pub advertise_url: Option<String>,
    /// Announce KV events, and do not register without knowing where they are [default: announce them if known]
    #[arg(long, action = ArgAction::SetTrue, overrides_with = "no_publish_kv_events", help_heading = ENGINE)]
    #[serde(skip)]
    pub publish_kv_events: bool,
    /// Announce no KV events: routers guess what is cached there
    #[arg(long, action = ArgAction::SetTrue, overrides_with = "publish_kv_events", help_heading = ENGINE)]
    #[serde(skip)]
    pub no_publish_kv_events: bool,
    /// What a file says of the same.
    #[arg(skip)]
    #[serde(rename = "publish_kv_events")]
    pub publish: Option<bool>,
    /// The engine's GPUs: UUIDs (GPU-... or MIG-..., as long as needed), or numbers as in CUDA_VISIBLE_DEVICES, separated by
    /// commas; or none [default: those that its processes are on, else what CUDA_VISIBLE_DEVICES or
    /// NVIDIA_VISIBLE_DEVICES shows]
    #[arg(long, env = "KVROUTE_ENGINE_GPUS", value_name = "LIST", help_heading = DEVICES)]
    pub engine_gpus: Option<String>,
    /// The engine's process [default: the one that listens on its port]
    #[arg(long, env = "KVROUTE_ENGINE_PID", value_name = "PID", help_heading = DEVICES)]
    pub engine_pid: Option<u32>,
    /// NVIDIA's library libnvidia-ml.so.1 [default: where the system finds it]
    #[arg(long, env = "KVROUTE_NVML_LIBRARY", value_name = "PATH", help_heading = DEVICES)]
    pub nvml_library: Option<PathBuf>,
    /// Milliseconds from one sample of the GPUs to the next, 100 to 60000 [default: 1000]
    #[arg(
        long,
        env = "KVROUTE_DEVICE_SAMPLE_MS",
        value_name = "MS",
        value_parser = value_parser!(u64).range(SAMPLE_MS),
        help_heading = DEVICES
    )]
    #[serde(deserialize_with = "device_sample_ms")]
    pub device_sample_ms: Option<u64>,
    /// Read no GPUs
    #[arg(long, action = ArgAction::SetTrue, help_heading = DEVICES)]
    pub no_device_telemetry: bool,
}

/// Flags of a worker beside an engine that runs already. The same names, with underscores, are the keys of `[engine]` in
/// a file.
#[derive(Args, Deserialize, Clone, Debug, Default)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = ENGINE)]
pub struct AttachArgs {
    /// Base URL of the engine's OpenAI-compatible server [default: http://127.0.0.1 with the engine's port]
    #[arg(long, env = "KVROUTE_ENGINE_URL", value_name = "URL")]
    pub engine_url: Option<String>,
    /// Name of the served model [default: of the engine arguments, else what the engine says]
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Tokens per KV block, the engine's own [default: of the engine arguments, else what the engine says]
    #[arg(long, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub engine_block_size: Option<u32>,
    /// Data-parallel ranks behind the URL, 1 to 1024 [default: of the engine arguments, else what the engine says, else 1]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1024))]
    pub engine_ranks: Option<u32>,
    /// What the engine computes on: cuda or cpu [default: of the engine arguments, else cuda]
    #[arg(long, value_name = "KIND", value_parser = device)]
    pub engine_device: Option<DeviceKind>,
    /// Role in a prefill/decode deployment: aggregated, prefill or decode [default: of the engine arguments, else
    /// aggregated]
    #[arg(long, value_name = "ROLE", value_parser = role)]
    pub worker_type: Option<WorkerType>,
    /// Parts of the API that the model serves: chat, completions, embedding, images, audios, videos, tensor, joined by
    /// commas [default: of the engine arguments, else chat,completions]
    #[arg(long, value_name = "LIST")]
    pub model_type: Option<ModelType>,
    /// ZMQ endpoint of the engine's KV events, of rank 0 [default: of the engine arguments, else what the engine says]
    #[arg(long, value_name = "ENDPOINT", conflicts_with = "no_publish_kv_events")]
    pub kv_events_endpoint: Option<String>,
    /// ZMQ endpoint of the engine's replay socket, of rank 0
    #[arg(long, value_name = "ENDPOINT", requires = "kv_events_endpoint")]
    pub kv_replay_endpoint: Option<String>,
}

/// Everything a worker starts with.
#[derive(Clone, Debug)]
pub struct WorkerPlan {
    /// What the agent is started with.
    pub agent: AgentSettings,
    /// Engine arguments that were read for the card, and have no other effect.
    pub not_applied: Vec<String>,
}

/// Worker flags that do not make a worker.
#[derive(Debug, Error)]
pub enum WorkerConfigError {
    /// The file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file whose settings do not go together.
    #[error("{path}: {problem}")]
    Contradiction {
        /// The file.
        path: PathBuf,
        /// What does not, and what to do.
        problem: &'static str,
    },
    /// The variable that may say the namespace.
    #[error(transparent)]
    Variable(#[from] EnvironmentError),
    /// A file that describes an engine to a command that brings its own.
    #[error(
        "{0}: [engine] describes an engine that runs already; kvroute worker mock starts its own: leave it out"
    )]
    MockEngine(PathBuf),
    /// A URL.
    #[error(
        "{flag} {text}: accepted is http://HOST:PORT or https://HOST:PORT, without a user, and with a path if the server has a prefix"
    )]
    Url {
        /// The flag.
        flag: &'static str,
        /// Its value, without a user.
        text: String,
    },
    /// The same worker twice in one place, each with half of its load.
    #[error("--frontend {0} is given twice")]
    FrontendTwice(String),
    /// Others would connect to themselves.
    #[error(
        "the frontend {frontend} is on another host, where {engine} is not this engine: give --advertise-url \
         http://HOST:PORT with an address of this host"
    )]
    Loopback {
        /// A frontend elsewhere.
        frontend: String,
        /// The engine's loopback URL.
        engine: String,
    },
    /// The token file.
    #[error("--frontend-token-file {path}: {problem}")]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// An engine argument that the card needs.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// What was stated cannot be part of a description.
    #[error(transparent)]
    Describe(#[from] DescribeError),
}

impl AttachArgs {
    /// What a worker beside a running engine starts with; `worker` has the file's settings already, whose `[engine]` is in
    /// `file`. The engine's arguments are read for the card.
    ///
    /// # Errors
    /// See [`WorkerConfigError`].
    pub fn plan(
        self,
        backend: Backend,
        worker: &WorkerArgs,
        file: Option<&WorkerFile>,
        router_config: Option<RouterConfig>,
        engine_arguments: Vec<String>,
    ) -> Result<WorkerPlan, WorkerConfigError> {
        let read = backend.read(&engine_arguments)?;
        let below = file.and_then(|file| Some((file.path.display(), file.engine.clone()?)));
        let engine_url = self.engine_url.clone().or_else(|| below.as_ref()?.1.engine_url.clone());
        let engine = match &engine_url {
            Some(text) => url("--engine-url", text)?,
            None => {
                let host = connectable(read.host.as_deref().unwrap_or("127.0.0.1"));
                let port = read.port.unwrap_or(backend.default_port());
                url("--host", &format!("http://{host}:{port}"))?
            }
        };
        let filed = below.map(|(path, engine)| engine.facts(|key| format!("{key} in {path}")));
        let flags = self.facts(|key| format!("--{}", key.replace('_', "-")));
        let facts = flags.or(filed.unwrap_or_default()).or(read.facts);
        let agent = worker.agent(backend, engine, facts, router_config)?;
        Ok(WorkerPlan { agent, not_applied: engine_arguments })
    }

    /// What is stated here; `by` makes of a key who says so.
    fn facts(self, by: impl Fn(&str) -> String) -> Facts {
        let events = self.kv_events_endpoint.map(|endpoint| {
            let (replay, direction) = (self.kv_replay_endpoint, StreamDirection::Connect);
            Stated::new(KvEvents::Published { endpoint, replay, direction }, by("kv_events_endpoint"))
        });
        Facts {
            model: self.model_name.map(|name| Stated::new(name, by("model_name"))),
            block_size: self.engine_block_size.map(|size| Stated::new(size, by("engine_block_size"))),
            ranks: self.engine_ranks.map(|ranks| Stated::new(ranks, by("engine_ranks"))),
            device: self.engine_device.map(|device| Stated::new(device, by("engine_device"))),
            model_type: self.model_type.map(|parts| Stated::new(parts, by("model_type"))),
            worker_type: self.worker_type.map(|role| Stated::new(role, by("worker_type"))),
            events,
            ..Facts::default()
        }
    }
}

impl WorkerArgs {
    /// The file, if there is one.
    ///
    /// # Errors
    /// See [`WorkerFile::read`].
    pub fn file(&self) -> Result<Option<WorkerFile>, WorkerConfigError> {
        self.worker_config.as_deref().map(WorkerFile::read).transpose()
    }

    /// These flags, `DYN_NAMESPACE` and, where they say nothing, a file's.
    ///
    /// # Errors
    /// [`WorkerConfigError::Variable`].
    pub fn over(
        self,
        environment: &Environment<'_>,
        file: Option<&WorkerFile>,
    ) -> Result<Self, WorkerConfigError> {
        let below = file.map_or_else(Self::default, |file| file.worker.clone());
        Ok(Self {
            worker_config: self.worker_config,
            frontend: if self.frontend.is_empty() { below.frontend } else { self.frontend },
            frontend_token_file: self.frontend_token_file.or(below.frontend_token_file),
            lease_secs: self.lease_secs.or(below.lease_secs),
            worker_id: self.worker_id.or(below.worker_id),
            namespace: self.namespace.or(environment.text("DYN_NAMESPACE")?).or(below.namespace),
            component: self.component.or(below.component),
            endpoint: self.endpoint.or(below.endpoint),
            advertise_url: self.advertise_url.or(below.advertise_url),
            publish_kv_events: self.publish_kv_events,
            no_publish_kv_events: self.no_publish_kv_events,
            publish: below.publish,
            engine_gpus: self.engine_gpus.or(below.engine_gpus),
            engine_pid: self.engine_pid.or(below.engine_pid),
            nvml_library: self.nvml_library.or(below.nvml_library),
            device_sample_ms: self.device_sample_ms.or(below.device_sample_ms),
            no_device_telemetry: self.no_device_telemetry || below.no_device_telemetry,
        })
    }

    /// What the agent of an engine at `engine` starts with.
    ///
    /// # Errors
    /// See [`WorkerConfigError`].
    pub fn agent(
        &self,
        backend: Backend,
        engine: Uri,
        facts: Facts,
        router_config: Option<RouterConfig>,
    ) -> Result<AgentSettings, WorkerConfigError> {
        let frontends: Vec<_> = match self.frontend.as_slice() {
            [] => vec![Uri::from_static(DEFAULT_FRONTEND)],
            given => given.iter().map(|text| url("--frontend", text)).collect::<Result<_, _>>()?,
        };
        let mut seen = AHashSet::new();
        if let Some(again) = frontends.iter().find(|frontend| !seen.insert(*frontend)) {
            return Err(WorkerConfigError::FrontendTwice(again.to_string()));
        }
        let advertised = match &self.advertise_url {
            Some(text) => url("--advertise-url", text)?,
            None => engine.clone(),
        };
        if is_loopback(&advertised)
            && let Some(elsewhere) = frontends.iter().find(|frontend| !is_loopback(frontend))
        {
            let (frontend, engine) = (elsewhere.to_string(), advertised.to_string());
            return Err(WorkerConfigError::Loopback { frontend, engine });
        }
        let mut spec = WorkerSpec { id: self.worker_id, router_config, ..WorkerSpec::new("", "model") };
        for (given, field) in [
            (&self.namespace, &mut spec.namespace),
            (&self.component, &mut spec.component),
            (&self.endpoint, &mut spec.endpoint),
        ] {
            if let Some(given) = given {
                field.clone_from(given);
            }
        }
        let settings = AgentSettings {
            backend,
            engine,
            advertised,
            frontends,
            authorization: self.authorization()?,
            lease: Duration::from_secs(u64::from(self.lease_secs.unwrap_or(DEFAULT_LEASE_SECS))),
            facts,
            publish_kv_events: self.publish_kv_events(),
            spec,
            devices: settings_of(self),
            pace: Pace::default(),
        };
        settings.check()?;
        Ok(settings)
    }

    fn publish_kv_events(&self) -> PublishKvEvents {
        let flag = match (self.publish_kv_events, self.no_publish_kv_events) {
            (true, _) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
        };
        match flag.or(self.publish) {
            Some(true) => PublishKvEvents::Yes,
            Some(false) => PublishKvEvents::No,
            None => PublishKvEvents::AsTheEngineSays,
        }
    }

    fn authorization(&self) -> Result<Option<HeaderValue>, WorkerConfigError> {
        let Some(path) = &self.frontend_token_file else { return Ok(None) };
        let token =
            read_token(path).map_err(|problem| WorkerConfigError::Token { path: path.clone(), problem })?;
        Ok(Some(token.authorization().clone()))
    }
}

const DEFAULT_FRONTEND: &str = "http://127.0.0.1:9091";
const DEFAULT_LEASE_SECS: u32 = 10;

fn url(flag: &'static str, text: &str) -> Result<Uri, WorkerConfigError> {
    base_url(text.trim())
        .ok_or_else(|| WorkerConfigError::Url { flag, text: without_user(text).into_owned() })
}

/// The host to connect to where an engine listens on `host`.
fn connectable(host: &str) -> String {
    match host {
        "" | "0.0.0.0" | "::" => "127.0.0.1".to_owned(),
        host if host.contains(':') && !host.starts_with('[') => format!("[{host}]"),
        host => host.to_owned(),
    }
}

fn is_loopback(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn device(text: &str) -> Result<DeviceKind, String> {
    match text {
        "cuda" => Ok(DeviceKind::Cuda),
        "cpu" => Ok(DeviceKind::Cpu),
        _ => Err("accepted are cuda and cpu".to_owned()),
    }
}

fn role(text: &str) -> Result<WorkerType, String> {
    match text {
        "aggregated" => Ok(WorkerType::Aggregated),
        "prefill" => Ok(WorkerType::Prefill),
        "decode" => Ok(WorkerType::Decode),
        _ => Err("accepted are aggregated, prefill and decode".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct Flags {
        #[command(flatten)]
        worker: WorkerArgs,
        #[command(flatten)]
        attach: AttachArgs,
    }

    fn plan(line: &str, engine: &str) -> Result<AgentSettings, String> {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let flags = Flags::try_parse_from(words(line)).map_err(|error| error.to_string())?;
        let plan = flags.attach.plan(Backend::Vllm, &flags.worker, None, None, words(engine));
        plan.map(|plan| plan.agent).map_err(|error| error.to_string())
    }

    #[test]
    fn the_engine_is_where_its_arguments_say() {
        let engine = |line, arguments| plan(line, arguments).unwrap().engine.to_string();
        assert_eq!(engine("", ""), "http://127.0.0.1:8000/");
        assert_eq!(engine("", "--host 0.0.0.0 --port 8123"), "http://127.0.0.1:8123/");
        assert_eq!(engine("", "--host ::1"), "http://[::1]:8000/");
        assert_eq!(engine("--engine-url http://127.0.0.1:9/", "--port 8123"), "http://127.0.0.1:9/");
    }

    #[test]
    fn a_flag_wins_over_an_engine_argument() {
        let facts = |line| plan(line, "--model m --block-size 32").unwrap().facts;
        let by = |facts: Facts| facts.block_size.map(|size| (size.value, size.by)).unwrap();
        assert_eq!(by(facts("")), (32, "engine argument --block-size".to_owned()));
        assert_eq!(by(facts("--engine-block-size 16")), (16, "--engine-block-size".to_owned()));
    }

    #[test]
    fn an_address_that_others_cannot_use_is_refused() {
        let error = plan("--frontend http://127.0.0.1:1,http://router:9091", "").unwrap_err();
        assert!(error.contains("http://router:9091") && error.contains("--advertise-url"), "{error}");
        let elsewhere = plan("--frontend http://router:9091 --advertise-url http://gpu-1:8000", "").unwrap();
        assert_eq!(elsewhere.advertised, "http://gpu-1:8000");
        assert!(plan("--frontend http://router:9091 --engine-url http://gpu-1:8000", "").is_ok());
    }

    #[test]
    fn what_cannot_be_used_is_named_before_anything_starts() {
        for (line, part) in [
            ("--frontend ftp://a:1", "--frontend ftp://a:1"),
            ("--frontend http://127.0.0.1:1,http://127.0.0.1:1/", "given twice"),
            ("--engine-url a:1", "--engine-url a:1"),
            ("--engine-url http://u:s3cret@a:1", "--engine-url http://***@a:1"),
            ("--advertise-url http://u:s3cret@a:1", "--advertise-url http://***@a:1"),
            ("--frontend http://u:s3cret@a:1", "--frontend http://***@a:1"),
            ("--frontend-token-file /none", "--frontend-token-file /none"),
            ("--kv-events-endpoint 5557", "kv_events_endpoint: '5557'"),
            ("--kv-replay-endpoint tcp://*:1", "--kv-events-endpoint"),
            ("--kv-events-endpoint tcp://*:1 --no-publish-kv-events", "--no-publish-kv-events"),
            ("--engine-device tpu", "cuda and cpu"),
            ("--worker-type encode", "aggregated, prefill and decode"),
            ("--lease-secs 0", "--lease-secs"),
        ] {
            let error = plan(line, "").unwrap_err();
            assert!(error.contains(part) && !error.contains("s3cret"), "{line}: {error}");
        }
        assert!(plan("", "--kv-events-config {").unwrap_err().contains("--kv-events-config"));
    }

    #[test]
    fn the_last_word_on_publishing_counts() {
        let publish = |line| plan(line, "").unwrap().publish_kv_events;
        assert_eq!(publish(""), PublishKvEvents::AsTheEngineSays);
        assert_eq!(publish("--publish-kv-events"), PublishKvEvents::Yes);
        assert_eq!(publish("--publish-kv-events --no-publish-kv-events"), PublishKvEvents::No);
        assert_eq!(publish("--no-publish-kv-events --publish-kv-events"), PublishKvEvents::Yes);
    }

    #[test]
    fn a_token_is_sent_and_not_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "s3cret\n").unwrap();
        let settings = plan(&format!("--frontend-token-file {}", file.path().display()), "").unwrap();
        assert_eq!(settings.authorization.as_ref().unwrap(), "Bearer s3cret");
        assert!(!format!("{settings:?}").contains("s3cret"));
    }
}
