//! Every field's value, and where it came from.

use std::{
    fmt,
    marker::PhantomData,
    path::{Path, PathBuf},
};

use super::{
    Environment, EnvironmentError, Field, Role, RouterFlags, RouterSection, Row, TABLE, Value, Warning, row,
    table::REFUSED_VARIABLES, tuning,
};

/// Where a value came from. A flag wins over its variable, that over the file, that over the default.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// The command line, with the spelling given, without its dashes.
    Flag(&'static str),
    /// A variable of the environment.
    Variable(&'static str),
    /// A file's `[router]` section.
    File(PathBuf),
    /// The preset of `--load-aware`.
    LoadAware,
    /// The value given for an old name of this field.
    OldName(Field),
    /// Nothing said otherwise.
    Default,
}

/// One field's value, and where it came from. It displays as it was spelled.
#[derive(Clone, PartialEq, Debug)]
pub struct Setting {
    /// The field.
    pub field: Field,
    /// Its value.
    pub value: Value,
    /// Where it came from.
    pub source: Source,
}

/// A setting of each field, in the order of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings(Vec<Setting>);

/// What a role was given: the settings before they are checked against each other.
#[derive(Clone, Debug)]
pub struct Given<R> {
    pub(super) settings: Settings,
    pub(super) warnings: Vec<Warning>,
    role: PhantomData<R>,
}

impl Source {
    /// How much it counts: the highest wins. None if nobody gave it.
    pub(super) fn rank(&self) -> Option<u8> {
        match self {
            Self::Flag(_) => Some(3),
            Self::Variable(_) => Some(2),
            Self::File(_) => Some(1),
            Self::LoadAware | Self::OldName(_) | Self::Default => None,
        }
    }

    /// Whether somebody said so: on the command line, in the environment or in the file.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.rank().is_some()
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "--{flag}"),
            Self::Variable(variable) => f.write_str(variable),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::LoadAware => f.write_str("--load-aware"),
            Self::OldName(field) => write!(f, "--{}", row(*field).flag),
            Self::Default => f.write_str("default"),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value, source } = self;
        match source {
            // A switch's spelling says its value.
            Source::Flag(flag) if matches!(value, Value::Switch(_)) => write!(f, "--{flag}"),
            Source::Flag(flag) => write!(f, "--{flag} {value}"),
            Source::Variable(variable) => write!(f, "{variable}={value}"),
            Source::File(path) => write!(f, "{} in {} ({value})", row(*field).file_key(), path.display()),
            Source::LoadAware | Source::OldName(_) => write!(f, "{source}"),
            Source::Default => write!(f, "--{} left at {value}", row(*field).flag),
        }
    }
}

impl Settings {
    /// What `setting` says of each row.
    pub(super) fn of(setting: impl Fn(&'static Row) -> Setting) -> Self {
        Self(TABLE.iter().map(setting).collect())
    }

    /// A field's setting.
    #[must_use]
    pub fn get(&self, field: Field) -> &Setting {
        // One setting a row, made in `resolve`.
        &self.0[field as usize]
    }

    /// All of them, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.0.iter()
    }

    /// A switch; false for a field that is none.
    pub(super) fn switch(&self, field: Field) -> bool {
        self.get(field).value == Value::Switch(true)
    }

    pub(super) fn number(&self, field: Field) -> Option<f64> {
        match self.get(field).value {
            Value::Number(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn whole(&self, field: Field) -> Option<u64> {
        match self.get(field).value {
            Value::Whole(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn text(&self, field: Field) -> Option<&str> {
        match &self.get(field).value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn is_set(&self, field: Field) -> bool {
        self.get(field).value != Value::Unset
    }

    pub(super) fn put(&mut self, field: Field, value: Value, source: Source) {
        self.0[field as usize] = Setting { field, value, source };
    }
}

impl<R> Given<R> {
    /// The settings as given.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}

impl<R: Role> RouterFlags<R> {
    /// Puts these flags over the environment, that over the file, that over the role's defaults.
    ///
    /// # Errors
    /// The first variable that cannot be used, even where a flag wins over it.
    pub fn resolve(
        &self,
        environment: &Environment<'_>,
        file: Option<(&Path, &RouterSection)>,
    ) -> Result<Given<R>, EnvironmentError> {
        let mut settings = Vec::with_capacity(TABLE.len());
        let mut warnings = Vec::new();
        for row in &TABLE {
            // A shared environment may speak to the frontend; on a worker those variables mean nothing.
            let withheld = row.frontend_only() && !R::FRONTEND;
            let variable = if withheld { None } else { environment.read::<R>(row)? };
            let filed = file.and_then(|(path, section)| Some((path, section.get(row.field)?)));
            let (value, source) = if let Some((value, flag)) = self.get(row.field) {
                (value.clone(), Source::Flag(flag))
            } else if let Some((value, variable)) = variable {
                (value, Source::Variable(variable))
            } else if let Some((path, value)) = filed {
                (value.clone(), Source::File(path.to_owned()))
            } else {
                (default::<R>(row.field), Source::Default)
            };
            warnings.extend(Warning::of_old_name(row, &source));
            settings.push(Setting { field: row.field, value, source });
        }
        if R::FRONTEND {
            refuse_variables(environment)?;
        }
        Ok(Given { settings: Settings(settings), warnings, role: PhantomData })
    }
}

/// What holds for a role where nothing is given.
pub(super) fn default<R: Role>(field: Field) -> Value {
    let config = R::default_config();
    match (field, config) {
        (Field::RouterMode, Some(config)) => Value::Text(config.mode.name().to_owned()),
        (field, Some(config)) => tuning::value(&config.tuning, field).unwrap_or_else(|| row(field).default()),
        (field, None) => row(field).default(),
    }
}

fn refuse_variables(environment: &Environment<'_>) -> Result<(), EnvironmentError> {
    for (variable, reason) in REFUSED_VARIABLES {
        if let Some(value) = environment.text(variable)? {
            return Err(EnvironmentError::Refused { variable, value, reason });
        }
    }
    Ok(())
}
