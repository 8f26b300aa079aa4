//! The `[router]` section of a frontend's file, read again while the frontend serves.

use std::path::{Path, PathBuf};

use super::{
    file::ConfigFile,
    flags::{Environment, Field, Frontend, RouterFlags, Settings, build_router_config, row},
    frontend::FrontendArgs,
};
use crate::frontend::{Routing, RoutingSource};

/// A frontend's file, with the flags that win over it.
///
/// The whole file is read and checked as at the start. `[router]` is what can change; everything beside it is read by a start
/// alone, and what differs there is named.
#[derive(Debug)]
pub struct RoutingFile {
    path: PathBuf,
    router: RouterFlags<Frontend>,
    frontend: FrontendArgs,
    workers: Vec<String>,
    /// What the frontend was started with.
    settings: Settings,
    beside: toml::Table,
}

/// Router settings that decide what is opened when a worker joins, or who may join at all.
const OF_A_START: [Field; 6] = [
    Field::KvEvents,
    Field::TtlSecs,
    Field::PredictedTtlSecs,
    Field::ApproximateCachePolicy,
    Field::Namespace,
    Field::NamespacePrefix,
];

impl RoutingFile {
    /// The file of a frontend that was started with `file`, these flags and `--worker`s, which made `settings`.
    #[must_use]
    pub fn new(
        file: &ConfigFile,
        router: &RouterFlags<Frontend>,
        frontend: &FrontendArgs,
        workers: &[String],
        settings: &Settings,
    ) -> Self {
        Self {
            path: file.path.clone(),
            router: router.clone(),
            frontend: frontend.clone(),
            workers: workers.to_vec(),
            settings: settings.clone(),
            beside: file.beside_router.clone(),
        }
    }

    fn check_fixed(&self, now: &Settings) -> Result<(), String> {
        for field in OF_A_START {
            let (before, now) = (self.settings.get(field), now.get(field));
            if before.value != now.value {
                return Err(format!(
                    "{now}: {} cannot change while the frontend runs, workers were taken in under {}; restart it, or set \
                     this back",
                    row(field).file_key(),
                    before.value
                ));
            }
        }
        Ok(())
    }
}

impl RoutingSource for RoutingFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self) -> Result<Routing, String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let file = ConfigFile::read(&self.path).map_err(|error| text(&error))?;
        let needs_restart = differing(&self.beside, &file.beside_router);
        let given = self.router.resolve(&Environment::process(), Some(file.router_section()));
        let built =
            build_router_config(&given.map_err(|error| text(&error))?).map_err(|error| text(&error))?;
        self.check_fixed(&built.settings)?;
        let (flags, config) = (built.of_the_frontend(), built.config);
        let plan = self.frontend.clone().plan(config.clone(), &self.workers, Some(file));
        plan.and_then(|plan| plan.with(flags.clone())).map_err(|error| text(&error))?;
        let warnings = built.warnings.iter().map(ToString::to_string).collect();
        Ok(Routing { config, enforce_disagg: flags.enforce_disagg, warnings, needs_restart })
    }
}

/// The keys in which two files differ, as in `frontend.port`; of a list of tables, its name.
fn differing(before: &toml::Table, now: &toml::Table) -> Vec<String> {
    let mut keys: Vec<_> = before.keys().chain(now.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut found = Vec::new();
    for key in keys {
        let empty = toml::Value::Table(toml::Table::new());
        let of = |table: &toml::Table| table.get(key).cloned();
        match (of(before), of(now)) {
            (before, now) if before == now => {}
            (before, now)
                if [&before, &now].iter().all(|side| side.as_ref().is_none_or(toml::Value::is_table)) =>
            {
                let [before, now] = [before, now].map(|side| side.unwrap_or_else(|| empty.clone()));
                if let (toml::Value::Table(before), toml::Value::Table(now)) = (before, now) {
                    found.extend(differing(&before, &now).into_iter().map(|below| format!("{key}.{below}")));
                }
            }
            _ => found.push(key.clone()),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_beside_the_router_is_named() {
        let table = |text: &str| text.parse::<toml::Table>().unwrap();
        let before = table("[frontend]\nport = 1\nretries = 2\n[[worker]]\nurl = 'a'");
        let now = table("[frontend]\nport = 1\nretries = 3\nhost = '::'\n[[model]]\nname = 'm'");
        assert_eq!(differing(&before, &now), ["frontend.host", "frontend.retries", "model", "worker"]);
        assert!(differing(&before, &before).is_empty());
        assert_eq!(differing(&before, &table("")), ["frontend.port", "frontend.retries", "worker"]);
    }
}
