//! The configuration file of `kvroute worker`.
//!
//! ```toml
//! [worker]
//! frontend = ["http://router:9091"]
//! namespace = "team-a"
//! advertise_url = "http://gpu-1:8000"
//!
//! [engine]
//! model_name = "llama"
//!
//! [router]
//! router_mode = "kv"
//! router_prefill_load_scale = 20.0
//! router_kv_overlap_score_credit = 2.0
//! ```

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, de::Error as _};

use super::{AttachArgs, WorkerArgs, WorkerConfigError, file::read_toml, flags::RouterSection};

/// A worker's file as it stands. Unknown keys are refused.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerFile {
    /// Where it was read, to name it as the source of what it says.
    #[serde(skip)]
    pub path: PathBuf,
    /// The flags of every worker, by their names with underscores.
    pub worker: WorkerArgs,
    /// The flags of a worker beside a running engine, by their names with underscores.
    pub engine: Option<AttachArgs>,
    /// The router flags that a card can carry, by their names with underscores.
    pub router: RouterSection,
}

impl WorkerFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`WorkerConfigError::File`], or [`WorkerConfigError::Contradiction`] for settings that do not go together.
    pub fn read(path: &Path) -> Result<Self, WorkerConfigError> {
        let file = Self { path: path.to_owned(), ..read_toml(path)? };
        let events = |engine: &AttachArgs| engine.kv_events_endpoint.is_some();
        let has_events = file.engine.as_ref().is_some_and(events);
        let has_replay = file.engine.as_ref().is_some_and(|engine| engine.kv_replay_endpoint.is_some());
        let problem = if has_replay && !has_events {
            "kv_replay_endpoint needs kv_events_endpoint"
        } else if has_events && file.worker.publish == Some(false) {
            "kv_events_endpoint and publish_kv_events = false contradict each other; leave one out"
        } else {
            return Ok(file);
        };
        Err(WorkerConfigError::Contradiction { path: file.path, problem })
    }

    /// The router flags and where they are from.
    #[must_use]
    pub fn router_section(&self) -> (&Path, &RouterSection) {
        (&self.path, &self.router)
    }
}

/// Reads what the flag's own parser would bound.
pub(super) fn lease_secs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let seconds = u32::deserialize(deserializer)?;
    let fits = super::worker::LEASE_SECS.contains(&i64::from(seconds));
    if fits { Ok(Some(seconds)) } else { Err(D::Error::custom("lease_secs is not within 1 to 3600")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::flags::{Field, Value};

    #[test]
    fn the_example_above_reads() {
        let file: WorkerFile =
            toml::from_str(&crate::config::file::example(include_str!("worker_file.rs"))).unwrap();
        assert_eq!(file.router.get(Field::RouterMode), Some(&Value::Text("kv".to_owned())));
        assert_eq!(file.worker.frontend, ["http://router:9091"]);
        assert_eq!(file.engine.unwrap().model_name.as_deref(), Some("llama"));
    }

    #[test]
    fn what_cannot_be_used_is_named_with_its_line() {
        let read = |text: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            WorkerFile::read(file.path()).unwrap_err().to_string()
        };
        for (text, parts) in [
            ("[worker]\nlease_secs = 0", ["line 2", "1 to 3600"]),
            ("[worker]\nlease_secs = 3601", ["line 2", "1 to 3600"]),
            ("[worker]\ndevice_sample_ms = 1", ["line 2", "100 to 60000"]),
            ("[worker]\nport = 1", ["line 2", "unknown field `port`"]),
            ("[worker]\nworker_config = 'x'", ["line 2", "unknown field"]),
            ("[worker]\nno_publish_kv_events = true", ["line 2", "unknown field"]),
            ("[engine]\nengine_device = 'tpu'", ["line 2", "tpu"]),
            ("[frontend]\nport = 1", ["line 1", "unknown field `frontend`"]),
            ("[router]\nrouter_temperature = -1", ["line 2", "router_temperature"]),
            ("[router]\nrouter_mod = 'kv'", ["line 2", "unknown key `router_mod`"]),
            ("[engine]\nkv_replay_endpoint = 'tcp://*:1'", ["kv_replay_endpoint", "kv_events_endpoint"]),
            (
                "[worker]\npublish_kv_events = false\n[engine]\nkv_events_endpoint = 'tcp://*:1'",
                ["kv_events_endpoint", "publish_kv_events = false"],
            ),
        ] {
            let error = read(text);
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }
}
