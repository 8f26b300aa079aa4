//! The `[router]` section of a file.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error as _, MapAccess, Visitor},
};

use super::{Field, Kind, Row, TABLE, Value};
use crate::config::suggest::nearest;

/// The router flags in a file, by their names with underscores.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RouterSection(Vec<(Field, Value)>);

impl RouterSection {
    /// What it says of a field.
    #[must_use]
    pub fn get(&self, field: Field) -> Option<&Value> {
        self.0.iter().find(|(given, _)| *given == field).map(|(_, value)| value)
    }
}

impl<'de> Deserialize<'de> for RouterSection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Keys)
    }
}

struct Keys;

impl<'de> Visitor<'de> for Keys {
    type Value = RouterSection;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("router flags by their names with underscores, such as router_mode")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<RouterSection, M::Error> {
        let mut values = Vec::new();
        while let Some(row) = map.next_key_seed(Key)? {
            values.push((row.field, map.next_value_seed(ValueOf(row))?));
        }
        Ok(RouterSection(values))
    }
}

/// Reads a key as the row that it names. The errors of seeds have a place in the file, those of a map have none.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = &'static Row;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static Row, D::Error> {
        let key = String::deserialize(deserializer)?;
        TABLE.iter().find(|row| row.file_key() == key).ok_or_else(|| {
            let meant = meant_by(&key).map_or_else(String::new, |meant| format!(" did you mean `{meant}`?"));
            D::Error::custom(format!(
                "unknown key `{key}` in [router];{meant} its keys are the router flags with underscores, such as \
                 router_mode"
            ))
        })
    }
}

/// The key that somebody may have meant: that of a flag which a card calls so, or the nearest one.
fn meant_by(key: &str) -> Option<String> {
    let of_card = TABLE.iter().find(|row| row.key == Some(key)).map(Row::file_key);
    let keys: Vec<_> = TABLE.iter().map(Row::file_key).collect();
    of_card.or_else(|| nearest(key, keys.iter().map(String::as_str)).map(str::to_owned))
}

/// Reads a value as its row reads it.
struct ValueOf(&'static Row);

impl<'de> DeserializeSeed<'de> for ValueOf {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        read(self.0, &value).map_err(|problem| D::Error::custom(format!("{}: {problem}", self.0.file_key())))
    }
}

/// A value of the type that the row is of; a number in quotes is a typing error.
fn read(row: &Row, value: &toml::Value) -> Result<Value, String> {
    use toml::Value::{Boolean, Float, Integer, String};
    match (row.kind, value) {
        (Kind::Switch { .. }, Boolean(value)) => Ok(Value::Switch(*value)),
        (Kind::Number { .. } | Kind::Whole { .. }, Integer(_) | Float(_)) => {
            row.read(&value.to_string(), true)
        }
        (Kind::Choice { .. } | Kind::Text, String(text)) => row.read(text, true),
        _ => Err(format!(
            "{} is needed, not {} {value}",
            match row.kind {
                Kind::Switch { .. } => "true or false",
                Kind::Number { .. } => "a number",
                Kind::Whole { .. } => "a whole number",
                Kind::Choice { .. } | Kind::Text => "a string",
            },
            value.type_str()
        )),
    }
}
