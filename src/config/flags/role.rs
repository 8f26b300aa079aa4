//! Who reads the flags: the difference between a frontend and a worker, as types.
//!
//! There is no default role, and none is inferred: whoever reads router flags says for whom. A worker built like a
//! frontend would advertise the frontend's defaults where it should advertise nothing, so what each of them
//! gets has another type.
//!
//! ```
//! use kvroute::config::flags::{Environment, RouterFlags, Worker, build_router_config};
//! use kvroute::fleet::RouterConfig;
//!
//! let given = RouterFlags::<Worker>::none().resolve(&Environment::empty(), None)?;
//! let advertised: Option<RouterConfig> = build_router_config(&given)?.config;
//! assert!(advertised.is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With the frontend's defaults the same is a type error:
//!
//! ```compile_fail,E0308
//! use kvroute::config::flags::{Environment, Frontend, RouterFlags, build_router_config};
//! use kvroute::fleet::RouterConfig;
//!
//! let given = RouterFlags::<Frontend>::none().resolve(&Environment::empty(), None)?;
//! let advertised: Option<RouterConfig> = build_router_config(&given)?.config;
//! assert!(advertised.is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! And a role has to be named:
//!
//! ```compile_fail,E0283
//! use kvroute::config::flags::{Environment, RouterFlags};
//!
//! let given = RouterFlags::none().resolve(&Environment::empty(), None);
//! ```

use std::fmt::Debug;

use super::BuildError;
use crate::{
    fleet::RouterConfig,
    select::{Mode, Tuning},
};

/// Who reads the flags.
pub trait Role: Sealed + Clone + Debug + Send + Sync + 'static {
    /// What the flags become.
    type Config: Debug;

    /// Whether it takes the flags that no card can carry.
    const FRONTEND: bool;

    /// What holds where nothing is given; none for a worker, which then inherits the frontend's.
    fn default_config() -> Option<RouterConfig>;

    /// What the builder's result is to this role.
    ///
    /// # Errors
    /// A frontend without a configuration cannot route.
    fn complete(config: Option<RouterConfig>) -> Result<Self::Config, BuildError>;
}

/// `kvroute frontend`: it always has a configuration, and its sets inherit it.
#[derive(Clone, Debug)]
pub enum Frontend {}

/// The frontend that `kvroute up` and `kvroute drive` start: it routes by prefixes unless told otherwise.
#[derive(Clone, Debug)]
pub enum MockFleet {}

/// A worker: it advertises a configuration only if it was given one.
#[derive(Clone, Debug)]
pub enum Worker {}

mod sealed {
    /// Keeps the roles to those of this file: what a role may leave out is decided here.
    pub trait Sealed {}
}
#[cfg(test)]
pub(super) use sealed::Sealed;
#[cfg(not(test))]
use sealed::Sealed;

impl Sealed for Frontend {}
impl Sealed for MockFleet {}
impl Sealed for Worker {}

fn required(config: Option<RouterConfig>) -> Result<RouterConfig, BuildError> {
    config.ok_or(BuildError::NoConfiguration)
}

impl Role for Frontend {
    type Config = RouterConfig;
    const FRONTEND: bool = true;

    fn default_config() -> Option<RouterConfig> {
        Some(RouterConfig { mode: Mode::RoundRobin, tuning: Tuning::default() })
    }

    fn complete(config: Option<RouterConfig>) -> Result<RouterConfig, BuildError> {
        required(config)
    }
}

impl Role for MockFleet {
    type Config = RouterConfig;
    const FRONTEND: bool = true;

    fn default_config() -> Option<RouterConfig> {
        Some(RouterConfig { mode: Mode::Kv, tuning: Tuning::default() })
    }

    fn complete(config: Option<RouterConfig>) -> Result<RouterConfig, BuildError> {
        required(config)
    }
}

impl Role for Worker {
    type Config = Option<RouterConfig>;
    const FRONTEND: bool = false;

    fn default_config() -> Option<RouterConfig> {
        None
    }

    fn complete(config: Option<RouterConfig>) -> Result<Option<RouterConfig>, BuildError> {
        Ok(config)
    }
}
