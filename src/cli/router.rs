//! The router flags of a command, made into a configuration and said in the log.

use std::{error::Error, path::Path};

use tracing::{info, warn};

use crate::{
    config::flags::{
        Built, Environment, Field, MockFleet, OfTheFrontend, Role, RouterFlags, RouterSection, Source,
        build_router_config, row,
    },
    fleet::{Namespaces, RouterConfig},
};

/// Puts flags over the environment and a file's section. What is not left at its default is logged with where it came from: whoever
/// wonders about a choice begins there.
pub(super) fn router_config<R: Role>(
    flags: &RouterFlags<R>,
    section: Option<(&Path, &RouterSection)>,
) -> Result<Built<R::Config>, Box<dyn Error + Send + Sync>> {
    let built = build(flags, section)?;
    for warning in &built.warnings {
        warn!("{warning}");
    }
    for setting in built.changed() {
        let flag = row(setting.field).flag;
        info!(setting = flag, value = %setting.value, from = %setting.source, "router setting");
    }
    Ok(built)
}

/// The same, and nothing is logged.
pub(super) fn build<R: Role>(
    flags: &RouterFlags<R>,
    section: Option<(&Path, &RouterSection)>,
) -> Result<Built<R::Config>, Box<dyn Error + Send + Sync>> {
    Ok(build_router_config(&flags.resolve(&Environment::process(), section)?)?)
}

/// The same for a frontend with mock engines of its own, which are all that it serves, and do prefill and decode in one
/// place.
pub(super) fn mock_router_config(
    flags: &RouterFlags<MockFleet>,
) -> Result<RouterConfig, Box<dyn Error + Send + Sync>> {
    let built = router_config(flags, None)?;
    let OfTheFrontend { enforce_disagg, namespaces } = built.of_the_frontend();
    if enforce_disagg {
        return Err(
            "--enforce-disagg: the mock engines here are aggregated ones, so there is nothing to enforce; \
             leave it out"
                .into(),
        );
    }
    if namespaces != Namespaces::Every {
        let fields = [Field::Namespace, Field::NamespacePrefix].map(|field| built.settings.get(field));
        let given: Vec<_> = fields.iter().filter(|setting| setting.source != Source::Default).collect();
        let given: Vec<_> = given.iter().map(ToString::to_string).collect();
        let given = given.join(", ");
        return Err(format!("{given}: the mock engines here are all that is served; leave it out").into());
    }
    Ok(built.config)
}
