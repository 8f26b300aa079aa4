//! From what was given to a router configuration, for frontends and workers alike.

use thiserror::Error;

use super::{
    Field, Given, Group, Role, Setting, Settings, Source, Status, Value, Warning, conditional_disagg,
    presets, row, rules::Rule, tuning,
};
use crate::{
    device::Weights,
    fleet::{Namespaces, RouterConfig},
    select::{CostModel, Mode, Tuning, TuningError, UnknownMode},
};

/// A configuration, with what there is to say of it.
#[derive(Clone, Debug)]
pub struct Built<C> {
    /// The configuration.
    pub config: C,
    /// Every field's value as it holds, and where it came from.
    pub settings: Settings,
    /// What a person should know of.
    pub warnings: Vec<Warning>,
}

/// Router flags that are no part of a configuration: no card carries them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OfTheFrontend {
    /// What `--enforce-disagg` was set to.
    pub enforce_disagg: bool,
    /// What `--namespace` and `--namespace-prefix` come down to.
    pub namespaces: Namespaces,
}

/// Flags that do not make a router configuration.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum BuildError {
    /// A frontend without a configuration.
    #[error("the frontend has no router configuration: give --router-mode")]
    NoConfiguration,
    /// A worker was given a flag that a configuration without a mode cannot carry.
    #[error(
        "{0} needs --router-mode on a worker (router_mode in a file): without a mode it advertises no router \
         configuration and inherits the frontend's. Give a mode too, or leave it out"
    )]
    NeedsMode(Setting),
    /// A worker's file has a flag that no card can carry.
    #[error(
        "{0}: it belongs to the frontend: no worker can advertise it. Give it to kvroute frontend instead"
    )]
    Withheld(Setting),
    /// Fields that do not go together.
    #[error("{text} ({given})")]
    Rule {
        /// The demand.
        text: &'static str,
        /// What was given, as spelled.
        given: String,
    },
    /// A flag that this version does not do.
    #[error("{setting}: not in this version, because {reason}; it needs {needs}. {accepted}")]
    Refused {
        /// As given.
        setting: Setting,
        /// Why.
        reason: &'static str,
        /// What would have to be built.
        needs: &'static str,
        /// What is accepted.
        accepted: String,
    },
    /// A rule of conditional disaggregation that does not read, or cannot work.
    #[error(
        "{setting}: {problem}. It is a JSON object with any of policy (isl_bounding, isl_or_load, prefill_load), \
         eff_isl_threshold, eff_isl_ratio_threshold, prefill_busy_threshold and decode_busy_threshold"
    )]
    ConditionalDisagg {
        /// As given.
        setting: Setting,
        /// What is wrong.
        problem: String,
    },
    /// A mode nobody knows.
    #[error(transparent)]
    Mode(#[from] UnknownMode),
    /// A weight out of its range.
    #[error(transparent)]
    Tuning(#[from] TuningError),
}

impl<C> Built<C> {
    /// What was said of the frontend itself.
    #[must_use]
    pub fn of_the_frontend(&self) -> OfTheFrontend {
        let name = |field| self.settings.text(field).map(str::to_owned);
        let namespaces = match (name(Field::NamespacePrefix), name(Field::Namespace)) {
            (Some(prefix), _) => Namespaces::WithPrefix(prefix),
            (None, Some(name)) => Namespaces::Named(name),
            (None, None) => Namespaces::Every,
        };
        OfTheFrontend { enforce_disagg: self.settings.switch(Field::EnforceDisagg), namespaces }
    }

    /// The device weights, if any of their settings was given; a card carries them beside the configuration.
    #[must_use]
    pub fn device_weights(&self) -> Option<Weights> {
        let given = |setting: &Setting| is_on_devices(setting) && setting.source.is_given();
        self.settings.iter().any(given).then(|| tuning::device_weights(&self.settings))
    }

    /// The cost model that was asked for; `None` if nobody did. A worker's card names it beside the configuration.
    #[must_use]
    pub fn cost_model(&self) -> Option<CostModel> {
        let given = self.settings.get(Field::RouterCostModel).source.is_given();
        if given { tuning::cost_model(&self.settings) } else { None }
    }

    /// The hold that was asked for, in seconds; `None` if nobody did. A worker's card names it beside the configuration.
    #[must_use]
    pub fn hold(&self) -> Option<f64> {
        let hold = self.settings.get(Field::RouterHold);
        if hold.source.is_given() { self.settings.number(Field::RouterHold) } else { None }
    }

    /// What was not left at its default, in the order of the table.
    pub fn changed(&self) -> impl Iterator<Item = &Setting> {
        self.settings.iter().filter(|setting| setting.source != Source::Default)
    }
}

/// Makes the configuration that a role was given: a frontend's always, a worker's if it has a mode.
///
/// # Errors
/// See [`BuildError`]; nothing is accepted and ignored without a [`Warning`].
pub fn build_router_config<R: Role>(given: &Given<R>) -> Result<Built<R::Config>, BuildError> {
    let mut settings = given.settings.clone();
    let mut warnings = given.warnings.clone();
    if let Some(withheld) = settings.iter().find(|setting| is_withheld::<R>(setting)) {
        return Err(BuildError::Withheld(withheld.clone()));
    }
    if !R::FRONTEND {
        // What is left of it is a variable's, and not said to this worker.
        let policy = Field::ApproximateCachePolicy;
        settings.put(policy, row(policy).default(), Source::Default);
    }
    presets::apply_old_weight(&mut settings, &mut warnings);
    presets::apply(&mut settings, &mut warnings);
    warnings.extend(presets::overruled_namespace(&settings));
    let config = match settings.text(Field::RouterMode).map(str::parse::<Mode>).transpose()? {
        Some(mode) => {
            check(&settings)?;
            warnings.extend(presets::mode_without_sessions(&settings));
            match mode {
                Mode::Kv => warnings.extend(presets::without_effect(&settings)),
                _ => warnings.extend(idle(&settings, mode)),
            }
            Some(RouterConfig { mode, tuning: tuning_for::<R>(&settings, mode)? })
        }
        None => {
            warnings.extend(inherit(&settings)?);
            None
        }
    };
    Ok(Built { config: R::complete(config)?, settings, warnings })
}

/// Flags of that kind are refused by the parser, and variables do not speak to workers; a worker's file does. Dynamo's
/// workers take the policy of approximate caches, and no card of theirs carries it.
fn is_withheld<R: Role>(setting: &Setting) -> bool {
    if R::FRONTEND || !setting.source.is_given() {
        return false;
    }
    let row = row(setting.field);
    let is_shared = matches!(setting.source, Source::Variable(_)) || setting.value == row.default();
    row.frontend_only() || (row.field == Field::ApproximateCachePolicy && !is_shared)
}

/// Other modes do not look at the weights, and carry the defaults.
fn tuning_for<R: Role>(settings: &Settings, mode: Mode) -> Result<Tuning, BuildError> {
    let base = R::default_config().map_or_else(Tuning::default, |config| config.tuning);
    let tuning = if mode == Mode::Kv {
        Tuning { conditional_disagg: conditional_disagg::read(settings)?, ..tuning::tuning(settings, base) }
    } else {
        // The cost model and the hold are for cards with a mode of their own, too.
        let cost_model = tuning::cost_model(settings).unwrap_or(base.cost_model);
        Tuning {
            cost_model,
            session_affinity: tuning::session_affinity(settings),
            hold: tuning::hold(settings),
            busy: tuning::thresholds(settings),
            accelerator_to_cpu_ratio: tuning::ratio(settings),
            device_weights: tuning::device_weights(settings),
            ..Tuning::default()
        }
    };
    tuning.validate()?;
    Ok(tuning)
}

/// The demands of the fields on each other, then what this version does not do.
fn check(settings: &Settings) -> Result<(), BuildError> {
    broken_rules(settings).chain(refused(settings)).next().map_or(Ok(()), |(_, error)| Err(error))
}

fn broken_rules(settings: &Settings) -> impl Iterator<Item = (Field, BuildError)> {
    Rule::broken(settings).map(|rule| {
        let given: Vec<_> = rule.fields.iter().map(|field| settings.get(*field).to_string()).collect();
        (rule.fields[0], BuildError::Rule { text: rule.text, given: given.join(", ") })
    })
}

fn refused(settings: &Settings) -> impl Iterator<Item = (Field, BuildError)> {
    settings.iter().filter(|setting| setting.source.is_given()).filter_map(|setting| {
        let row = row(setting.field);
        let Status::Refused { reason, needs, .. } = row.status else { return None };
        if row.does(&setting.value) {
            return None;
        }
        let accepted = match row.default() {
            Value::Unset => "Leave it out".to_owned(),
            default => format!("Leave it out, or at {default}"),
        };
        Some((setting.field, BuildError::Refused { setting: setting.clone(), reason, needs, accepted }))
    })
}

/// Everything that [`build_router_config`] would stop at, one after another, each with the field to blame.
#[must_use]
pub fn problems<R: Role>(given: &Given<R>) -> Vec<(Field, BuildError)> {
    let mut settings = given.settings.clone();
    presets::apply_old_weight(&mut settings, &mut Vec::new());
    presets::apply(&mut settings, &mut Vec::new());
    let unreadable = conditional_disagg::read(&settings).err();
    let unreadable = unreadable.map(|error| (Field::ConditionalDisaggConfig, error));
    broken_rules(&settings).chain(refused(&settings)).chain(unreadable).collect()
}

/// A worker without a mode: a flag is a mistake, a shared environment is not.
fn inherit(settings: &Settings) -> Result<Option<Warning>, BuildError> {
    let in_config = |setting: &&Setting| !matches!(row(setting.field).group, Group::Card | Group::Devices);
    let given = || settings.iter().filter(|setting| setting.source.is_given()).filter(in_config);
    if let Some(setting) = given().find(|setting| !matches!(setting.source, Source::Variable(_))) {
        return Err(BuildError::NeedsMode(setting.clone()));
    }
    let variables: Vec<_> = given().map(|setting| setting.source.to_string()).collect();
    Ok(if variables.is_empty() { None } else { Some(Warning::Inherits { variables }) })
}

fn is_on_devices(setting: &Setting) -> bool {
    row(setting.field).group == Group::Devices
}

/// Weights that were given to a mode that does not look at them. Whether devices have a say, and when what is known of them is too
/// old, matters in every mode: their faults fence.
fn idle(settings: &Settings, mode: Mode) -> Option<Warning> {
    let looks_at = |field: Field| match row(field).group {
        Group::Kv => mode == Mode::Kv,
        Group::Devices if matches!(field, Field::DeviceWeightExternal | Field::DeviceWeightLeast) => {
            matches!(mode, Mode::Kv | Mode::DeviceAwareWeighted)
        }
        _ => true,
    };
    let idle = |setting: &&Setting| {
        !looks_at(setting.field) && setting.source.is_given() && setting.value != row(setting.field).default()
    };
    let settings: Vec<_> = settings.iter().filter(idle).cloned().collect();
    if settings.is_empty() { None } else { Some(Warning::Idle { settings, mode }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::flags::{Environment, Frontend, RouterFlags, Worker, role};

    /// A frontend whose defaults were forgotten.
    #[derive(Clone, Debug)]
    enum Forgetful {}

    impl role::Sealed for Forgetful {}

    impl Role for Forgetful {
        type Config = RouterConfig;
        const FRONTEND: bool = true;

        fn default_config() -> Option<RouterConfig> {
            None
        }

        fn complete(config: Option<RouterConfig>) -> Result<RouterConfig, BuildError> {
            Frontend::complete(config)
        }
    }

    #[test]
    fn review_finding_01_a_frontend_without_a_configuration_fails_at_startup() {
        let given = RouterFlags::<Forgetful>::none().resolve(&Environment::empty(), None).unwrap();
        let error = build_router_config(&given).unwrap_err();
        assert_eq!(error, BuildError::NoConfiguration);
        assert_eq!(error.to_string(), "the frontend has no router configuration: give --router-mode");
    }

    #[test]
    fn every_setting_is_carried_into_the_configuration() {
        let mut given = RouterFlags::<Worker>::none().resolve(&Environment::empty(), None).unwrap();
        given.settings.put(Field::RouterMode, Value::Text("kv".to_owned()), Source::Flag("router-mode"));
        let plain = build_router_config(&given).unwrap().config.unwrap().tuning;
        for row in &super::super::TABLE {
            let changed = match tuning::value(&Tuning::default(), row.field) {
                Some(Value::Number(number)) => Value::Number((number - 0.625).abs()),
                Some(Value::Switch(on)) => Value::Switch(!on),
                _ => continue,
            };
            let mut given = given.clone();
            given.settings.put(row.field, changed.clone(), Source::Flag(row.flag));
            let tuning = build_router_config(&given).unwrap().config.unwrap().tuning;
            assert_eq!(tuning::value(&tuning, row.field), Some(changed), "{}", row.flag);
            assert_ne!(tuning, plain, "{}", row.flag);
        }
    }
}
