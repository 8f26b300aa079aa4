//! Who is there: workers, their cards, and the worker sets that they form.
//!
//! A worker enters by a file, a flag or an HTTP registration with a [`WorkerSpec`]: where it is reached, and the
//! [`Card`] of what it serves. Workers whose cards share a [`SetKey`] form a worker set, which has one routing
//! configuration: the one its cards advertise, else the frontend's. Members whose cards agree in effect are a
//! [`Cohort`]. A set with several of them admits none, or the one registered first ([`OnConfigMismatch`]); the others
//! keep their slots, streams and blocks up to date, so that they can be admitted at any moment. The [`Fleet`]
//! publishes a [`FleetView`] on every change; a request takes the view once and decides on that.
//!
//! A prefill set and a decode set beside each other make a pair: the decode set is what the model's name stands for,
//! and it knows who computes its prompts ([`PrefillPool`]).
//!
//! Where a set's sessions went is remembered beside its loads ([`Sessions`]).
//!
//! The fleet opens no socket. Event streams are opened and closed through the [`Streams`] it is given.

mod affinity;
mod base_url;
mod breaker;
mod card;
mod clock;
mod cohort;
mod device_report;
mod device_status;
mod device_weights;
mod disagg;
mod endpoint;
mod failures;
mod fence;
mod fingerprint;
mod frontend_routing;
mod health_check;
mod kv_router_config;
mod lease;
mod load_threshold_config;
mod mismatch;
mod model_type;
mod name;
mod namespaces;
mod parity;
mod prediction;
mod rank;
mod reconfigure;
mod registration_error;
mod registry;
mod router_config;
mod slow_start;
mod stream_status;
mod streams;
mod unreadable;
mod view;
mod worker_info;
mod worker_set;
mod worker_spec;

pub use affinity::{MOST_SESSIONS, SessionId, SessionUse, Sessions};
pub(crate) use base_url::{base_url, without_user};
pub use breaker::{BreakerState, DEFAULT_INHIBITION};
pub use card::{Card, WorkerType};
pub use clock::Clock;
pub(crate) use clock::unix_ms;
pub use cohort::{Cohort, Standing};
pub use device_report::{DeviceReport, FaultReport, FieldReport, GpuReport, RankDevices, ReportError};
pub use device_status::{DeviceState, DeviceStatus};
pub use device_weights::DeviceWeights;
pub use disagg::{ActivationError, Ambiguity, PrefillPool};
pub use endpoint::{EndpointError, EventEndpoint, StreamDirection};
pub use failures::{Probe, ProbeTaken};
pub use fence::Fence;
pub use fingerprint::Fingerprint;
pub use frontend_routing::FrontendRouting;
pub use health_check::{HealthChange, HealthChecks, MISSED_CHECKS};
pub use load_threshold_config::LoadThresholdConfig;
pub use mismatch::OnConfigMismatch;
pub use model_type::{Api, ModelType};
pub use name::{NameError, check_name};
pub use namespaces::Namespaces;
pub use parity::{Parity, ParityStatus, ParityVerdict};
pub use prediction::{PredictionError, Predictions};
pub use rank::Expected;
pub use reconfigure::{ReconfigureError, Reconfigured};
pub use registration_error::RegistrationError;
pub use registry::Fleet;
pub use router_config::{RouterConfig, RouterConfigError};
pub use slow_start::LEAST_SLOW_START;
pub use stream_status::{IndexOrigin, StreamState, StreamStatus, StreamTotals};
pub use streams::{Expectations, ExpectedLimits, IndexKey, StreamSource, Streams};
pub use view::{FleetView, ModelRoute, RankMember, RankTally, SetView};
pub use worker_info::WorkerInfo;
pub use worker_set::{ConfigSource, SetKey, SetState};
pub use worker_spec::{DeviceKind, SpecError, WorkerSpec};
