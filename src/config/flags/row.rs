//! What the table says of one flag.

use super::{Field, Kind, Range, Value};

/// All there is to say about one flag.
#[derive(Debug)]
pub struct Row {
    /// Which flag it is.
    pub field: Field,
    /// The long option, without its dashes.
    pub flag: &'static str,
    /// The long option that turns a switch off.
    pub negated: Option<&'static str>,
    /// An old spelling that is still read, and warned of; its negated form is `no-` before it.
    pub alias: Option<Alias>,
    /// Its environment variable, if it has one.
    pub variable: Option<&'static str>,
    /// A second variable, read where the first is unset, and warned of.
    pub old_variable: Option<&'static str>,
    /// What it accepts, and its default.
    pub kind: Kind,
    /// Where on a card its key is.
    pub group: Group,
    /// Whether workers have a flag of that name for themselves, with a meaning of its own.
    pub workers_have_their_own: bool,
    /// Its key on a card; none if no card carries it.
    pub key: Option<&'static str>,
    /// Whether it works.
    pub status: Status,
    /// What to use in its place, if it is an old flag.
    pub deprecated: Option<&'static str>,
    /// One sentence on what it does.
    pub help: &'static str,
    /// What its value is called in the help.
    pub value_name: &'static str,
}

/// An old spelling.
#[derive(Clone, Copy, Debug)]
pub struct Alias {
    /// The long option, without its dashes.
    pub flag: &'static str,
    /// The long option that turns a switch off.
    pub negated: Option<&'static str>,
}

/// Where on a card a flag's key is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// On the card itself, beside `router_config`: a worker may advertise it without a mode.
    Card,
    /// At the top of `router_config`.
    Router,
    /// In `load_threshold_config`.
    Threshold,
    /// In `kv_router_config`.
    Kv,
    /// In `device_weights`, beside `router_config`.
    Devices,
    /// On no card: the flag is the frontend's alone, and a worker refuses it.
    FrontendOnly,
}

/// Whether a flag works in this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It does what it says.
    Works,
    /// It is refused, except at its default or at `also`, which ask for nothing.
    Refused {
        /// Why, as the end of a sentence that begins with "because".
        reason: &'static str,
        /// What would have to be built.
        needs: &'static str,
        /// Further values that ask for nothing.
        also: &'static [&'static str],
    },
}

impl Row {
    /// Whether only frontends take it.
    #[must_use]
    pub fn frontend_only(&self) -> bool {
        self.group == Group::FrontendOnly
    }

    /// Its key in the `[router]` section of a file.
    #[must_use]
    pub fn file_key(&self) -> String {
        self.flag.replace('-', "_")
    }

    /// Every long option that it is read by, without dashes: its own, the one that turns it off, the old ones.
    pub fn spellings(&self) -> impl Iterator<Item = &'static str> {
        let alias = self.alias.map_or([None, None], |alias| [Some(alias.flag), alias.negated]);
        [Some(self.flag), self.negated].into_iter().chain(alias).flatten()
    }

    /// Its variables, in the order in which they are looked up.
    pub fn variables(&self) -> impl Iterator<Item = &'static str> {
        self.variable.into_iter().chain(self.old_variable)
    }

    /// What holds without it. The mode has no default of its own: that is the role's.
    #[must_use]
    pub fn default(&self) -> Value {
        self.kind.default()
    }

    /// What errors call it. A frontend's own settings go by their flag there; what a card carries goes by its key.
    #[must_use]
    pub fn name(&self, frontend: bool) -> String {
        match (self.group, self.key) {
            (Group::Kv, Some(key)) => key.to_owned(),
            (_, Some(key)) if !frontend => key.to_owned(),
            (Group::Kv, None) => self.file_key(),
            _ => format!("--{}", self.flag),
        }
    }

    /// Reads a value as the command line, the environment and the file spell it.
    ///
    /// # Errors
    /// A text that says what is accepted.
    pub fn read(&self, text: &str, frontend: bool) -> Result<Value, String> {
        self.kind.read(text, || self.name(frontend))
    }

    /// Whether `value` asks for nothing that this version does not do.
    #[must_use]
    pub fn does(&self, value: &Value) -> bool {
        match self.status {
            Status::Works => true,
            Status::Refused { also, .. } => {
                *value == self.default()
                    || also.iter().any(|also| self.read(also, true).as_ref() == Ok(value))
            }
        }
    }

    /// What it accepts, in words.
    #[must_use]
    pub fn accepted(&self) -> String {
        match self.kind {
            Kind::Switch { .. } => "true or false".to_owned(),
            Kind::Number { range, .. } => range.words().to_owned(),
            Kind::Whole { range, .. } => format!("a whole number, {}", range.words()),
            Kind::Choice { words, .. } => words.join(", "),
            Kind::Text if self.value_name == "JSON" => "a JSON object".to_owned(),
            Kind::Text if self.value_name == "RATES" => "rates".to_owned(),
            Kind::Text => format!("a {}", self.value_name.to_lowercase()),
        }
    }
}

/// How the table writes a row.
impl Row {
    pub(super) const fn new(field: Field, flag: &'static str, variable: &'static str, group: Group) -> Self {
        Self {
            field,
            flag,
            negated: None,
            alias: None,
            variable: Some(variable),
            old_variable: None,
            kind: Kind::Text,
            group,
            workers_have_their_own: false,
            key: None,
            status: Status::Works,
            deprecated: None,
            help: "",
            value_name: "TEXT",
        }
    }

    pub(super) const fn switch(mut self, negated: &'static str, default: bool) -> Self {
        self.negated = Some(negated);
        self.kind = Kind::Switch { default };
        self
    }

    pub(super) const fn number(mut self, name: &'static str, range: Range, default: Option<f64>) -> Self {
        self.value_name = name;
        self.kind = Kind::Number { default, range, nullable: false };
        self
    }

    pub(super) const fn whole(mut self, name: &'static str, range: Range, default: Option<u64>) -> Self {
        self.value_name = name;
        self.kind = Kind::Whole { default, range, nullable: false };
        self
    }

    pub(super) const fn nullable(mut self) -> Self {
        match &mut self.kind {
            Kind::Number { nullable, .. } | Kind::Whole { nullable, .. } => *nullable = true,
            Kind::Switch { .. } | Kind::Choice { .. } | Kind::Text => {}
        }
        self
    }

    pub(super) const fn choice(
        mut self,
        name: &'static str,
        words: &'static [&'static str],
        default: Option<&'static str>,
    ) -> Self {
        self.value_name = name;
        let unknown = "'{value}' is not known; expected one of {words}";
        self.kind = Kind::Choice { default, words, old_word: None, unknown };
        self
    }

    pub(super) const fn unknown(mut self, text: &'static str) -> Self {
        if let Kind::Choice { unknown, .. } = &mut self.kind {
            *unknown = text;
        }
        self
    }

    pub(super) const fn old_word(mut self, old: &'static str, new: &'static str) -> Self {
        if let Kind::Choice { old_word, .. } = &mut self.kind {
            *old_word = Some((old, new));
        }
        self
    }

    pub(super) const fn text(mut self, name: &'static str) -> Self {
        self.value_name = name;
        self
    }

    pub(super) const fn key(mut self, key: &'static str) -> Self {
        self.key = Some(key);
        self
    }

    pub(super) const fn alias(mut self, flag: &'static str, negated: Option<&'static str>) -> Self {
        self.alias = Some(Alias { flag, negated });
        self
    }

    pub(super) const fn workers_have_their_own(mut self) -> Self {
        self.workers_have_their_own = true;
        self
    }

    pub(super) const fn no_variable(mut self) -> Self {
        self.variable = None;
        self
    }

    pub(super) const fn old_variable(mut self, name: &'static str) -> Self {
        self.old_variable = Some(name);
        self
    }

    pub(super) const fn deprecated(mut self, instead: &'static str) -> Self {
        self.deprecated = Some(instead);
        self
    }

    pub(super) const fn refused(mut self, reason: &'static str, needs: &'static str) -> Self {
        self.status = Status::Refused { reason, needs, also: &[] };
        self
    }

    pub(super) const fn also(mut self, values: &'static [&'static str]) -> Self {
        if let Status::Refused { also, .. } = &mut self.status {
            *also = values;
        }
        self
    }

    pub(super) const fn help(mut self, help: &'static str) -> Self {
        self.help = help;
        self
    }
}
