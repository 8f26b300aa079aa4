//! A file read piece by piece, so that one that does not read hides no other.

use std::path::Path;

use ahash::AHashMap;
use serde::de::DeserializeOwned;
use toml::{
    Table, Value,
    de::{DeTable, DeValue},
};

use super::{Finding, Severity};
use crate::config::{file::ConfigFile, flags::TABLE, suggest::with_suggestion};

/// What of a file reads, what is to say of it, and where everything is.
pub(super) struct Document {
    pub(super) file: ConfigFile,
    pub(super) findings: Vec<Finding>,
    /// Lines by place: `router`, `router.router_mode`, `worker.0`, `worker.0.url`.
    lines: AHashMap<String, usize>,
    /// The places of the `[[model]]` and `[[worker]]` tables that read, in the order of the file.
    kept: AHashMap<&'static str, Vec<String>>,
}

impl Document {
    pub(super) fn read(path: &Path, text: &str) -> Self {
        let file = ConfigFile { path: path.to_owned(), ..ConfigFile::default() };
        let mut document = Self { file, findings: Vec::new(), lines: AHashMap::new(), kept: AHashMap::new() };
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            document.add_syntax(text, error);
        }
        if !errors.is_empty() {
            return document;
        }
        document.locate(text, "", table.get_ref());
        match toml::from_str::<Table>(text) {
            Ok(table) => document.read_tables(table),
            Err(error) => document.add_syntax(text, &error),
        }
        document
    }

    /// Notes something about a place.
    pub(super) fn add(&mut self, severity: Severity, place: &str, text: String) {
        let line = self.line(place);
        self.findings.push(Finding { severity, line, text });
    }

    /// The line of a place, or of the table that it is in.
    pub(super) fn line(&self, place: &str) -> Option<usize> {
        let above = || place.rsplit_once('.').and_then(|(above, _)| self.line(above));
        self.lines.get(place).copied().or_else(above)
    }

    /// The places of the tables in the array `name` that read.
    pub(super) fn kept(&self, name: &str) -> Vec<String> {
        self.kept.get(name).cloned().unwrap_or_default()
    }

    fn add_syntax(&mut self, text: &str, error: &toml::de::Error) {
        let line = error.span().map(|span| line_of(text, span.start));
        self.findings.push(Finding { severity: Severity::Error, line, text: error.message().to_owned() });
    }

    fn locate(&mut self, text: &str, above: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let place = format!("{above}{}", key.get_ref());
            self.lines.insert(place.clone(), line_of(text, key.span().start));
            self.locate_in(text, &place, value.get_ref());
        }
    }

    fn locate_in(&mut self, text: &str, place: &str, value: &DeValue<'_>) {
        match value {
            DeValue::Table(table) => self.locate(text, &format!("{place}."), table),
            DeValue::Array(items) => {
                for (number, item) in items.iter().enumerate() {
                    let place = format!("{place}.{number}");
                    self.lines.insert(place.clone(), line_of(text, item.span().start));
                    self.locate_in(text, &place, item.get_ref());
                }
            }
            _ => {}
        }
    }

    fn read_tables(&mut self, table: Table) {
        for (key, value) in table {
            match (key.as_str(), value) {
                ("frontend", Value::Table(table)) => self.file.frontend = self.section("frontend", table),
                ("router", Value::Table(table)) => self.file.router = self.section("router", table),
                ("model", Value::Array(items)) => self.file.model = self.entries("model", items),
                ("worker", Value::Array(items)) => self.file.worker = self.entries("worker", items),
                (key, value) => {
                    let alone = Table::from_iter([(key.to_owned(), value)]);
                    if let Err(error) = alone.try_into::<ConfigFile>() {
                        self.add(
                            Severity::Error,
                            key,
                            format!("{key}: {}", with_suggestion(error.message())),
                        );
                    }
                }
            }
        }
    }

    /// A section, without the keys that do not read.
    fn section<T: DeserializeOwned + Default>(&mut self, name: &str, table: Table) -> T {
        let (good, _) = self.good_keys::<T>(name, name, table, &Table::new());
        good.try_into().unwrap_or_default()
    }

    /// The tables of an array, without those that do not read.
    fn entries<T: DeserializeOwned>(&mut self, name: &'static str, items: Vec<Value>) -> Vec<T> {
        let mut entries = Vec::new();
        for (number, item) in items.into_iter().enumerate() {
            let place = format!("{name}.{number}");
            if let Some(entry) = self.entry(name, &place, item) {
                entries.push(entry);
                self.kept.entry(name).or_default().push(place);
            }
        }
        entries
    }

    fn entry<T: DeserializeOwned>(&mut self, name: &str, place: &str, item: Value) -> Option<T> {
        let Value::Table(table) = item else {
            self.add(Severity::Error, place, format!("{name}: a table is needed, as in [[{name}]]"));
            return None;
        };
        // What a key's table cannot be without, so that the key can be read on its own.
        let required: &[&str] = if name == "worker" { &["url", "model"] } else { &["name", "tokenizer"] };
        let base = required.iter().map(|key| ((*key).to_owned(), Value::String("-".to_owned()))).collect();
        let (good, all) = self.good_keys::<T>(name, place, table, &base);
        match good.try_into() {
            Ok(entry) if all => Some(entry),
            Ok(_) => None,
            Err(error) => {
                // A required key that does not read was told of already.
                if all || error.message().starts_with("missing") {
                    self.add(Severity::Error, place, format!("{name}: {}", error.message()));
                }
                None
            }
        }
    }

    /// The keys that read on top of `base`, and whether all do.
    fn good_keys<T: DeserializeOwned>(
        &mut self,
        name: &str,
        place: &str,
        table: Table,
        base: &Table,
    ) -> (Table, bool) {
        let mut good = Table::new();
        let mut all = true;
        for (key, value) in table {
            let mut alone = base.clone();
            alone.insert(key.clone(), value.clone());
            match alone.try_into::<T>() {
                Ok(_) => drop(good.insert(key, value)),
                Err(error) => {
                    all = false;
                    let mut text = format!("{name}.{key}: {}", with_suggestion(error.message()));
                    if name == "frontend" && TABLE.iter().any(|row| row.file_key() == key) {
                        text += "; it belongs into [router]";
                    }
                    self.add(Severity::Error, &format!("{place}.{key}"), text);
                }
            }
        }
        (good, all)
    }
}

/// The line that a byte is on, from 1.
fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}
